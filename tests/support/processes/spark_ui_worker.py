"""A process whose Spark has its UI on, and what that says of queries, asked for as a browser would.

python -m support.processes.spark_ui_worker <folder>

It prints what it has seen as one line of JSON. All other tests share a session without a UI, and a
process has one context.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.error import HTTPError
from urllib.request import urlopen

from shardline.app.spark_session import open_session
from shardline.datasource.spark_native.compiled_java import java_object
from shardline.datasource.spark_native.query_statistics import (
    SeenQuery,
    StatisticsSection,
    metrics_table,
    show_statistics,
    source_sections,
)
from support.spark.native import client_at, ids, put
from support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["main"]

PATIENCE_S = 60
UI = {
    "spark.ui.enabled": "true",
    "spark.ui.port": "0",
    # A frozen stream makes no micro-batch: what it says is in the progress of idle triggers.
    "spark.sql.streaming.noDataProgressEventInterval": "100ms",
}


def said(title: str) -> Any:
    """A description of every query, and after it of the shards that it reads."""
    table = metrics_table([("number", "7", "<b>hostile</b>")])
    return lambda query: [
        StatisticsSection(f"{title} {query.name}", "", "http://x/", (table,)),
        *source_sections(query.progress, {}),
    ]


def fail(_: SeenQuery) -> list[StatisticsSection]:
    """A description that fails."""
    raise RuntimeError("nobody knows")


class Silent:
    """What the JVM asks, and gets an error of py4j from instead of an answer."""

    def apply(self, _: Any) -> str:
        raise RuntimeError("shutting down")

    class Java:
        """The Java interface that py4j gives the object in the JVM."""

        implements: ClassVar = ["java.util.function.Function"]


class Browser:
    """Asks the UI of a session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._url = f"{spark.sparkContext.uiWebUrl}/StreamingQuery"

    def get(self, path: str) -> dict[str, Any]:
        try:
            with urlopen(f"{self._url}{path}", timeout=PATIENCE_S) as answer:  # noqa: S310 - ours
                policy = answer.headers["Content-Security-Policy"]
                return {"status": answer.status, "policy": policy, "text": answer.read().decode()}
        except HTTPError as error:
            return {"status": error.code, "policy": None, "text": ""}

    def page(self, query: StreamingQuery) -> dict[str, Any]:
        """The page of a query, once Spark knows of a micro-batch of it."""
        address = f"/statistics/?id={query.runId}"
        drawn = "input-rate-timeline"  # of which there is none before
        wait_until("a micro-batch", lambda: drawn in self.get(address)["text"], PATIENCE_S)
        return self.get(address)

    def pages(self) -> list[str]:
        """The classes of the pages of Spark's tab."""
        tabs = self._spark._jsc.sc().ui().get().getTabs()
        (tab,) = [t for t in map(tabs.apply, range(tabs.size())) if t.prefix() == "StreamingQuery"]
        pages = tab.pages()
        names = [pages.apply(n).getClass().getName() for n in range(pages.length())]
        return [name.replace("$", ".").rpartition(".")[2] for name in names]


def main(folder: Path) -> dict[str, Any]:
    """Ask for the pages before, while and after sections are shown."""
    location = str(folder / "shards")
    client = client_at(location, inline_part_bytes=0)
    for time in range(3):
        put(client, "in", time, ids(time))
    batches = client.state("in").trace.batches
    (lost,) = [p for b in batches for p in b.parts if p.time_bounds == (1, 1)]
    (folder / "shards" / lost.key).unlink()
    spark = open_session("ui", UI)
    browser = Browser(spark)

    def start(name: str, frame: Any) -> StreamingQuery:
        writer = frame.writeStream.format("noop").queryName(name)
        query: StreamingQuery = writer.option("checkpointLocation", str(folder / name)).start()
        return query

    stream = spark.readStream.format("shard").options(onMissingPart="freeze", startingTimestamp=0)
    ours = start("ours", stream.load(f"{location}/in"))
    other = start("other", spark.readStream.format("rate").load())
    ours.processAllAvailable()
    seen: dict[str, Any] = {"before": browser.page(ours), "lost": lost.key}
    seen["json_before"] = browser.get(ADDRESSES["json"])
    first = show_statistics(spark, said("first"))
    seen |= {"shown": browser.page(ours), "other": browser.page(other)}
    second = show_statistics(spark, said("second"))
    first()  # somebody else's, by now
    seen |= {"second": browser.page(ours), "pages": browser.pages()}
    seen |= {name: browser.get(path) for name, path in ADDRESSES.items()}
    show_statistics(spark, fail)
    seen["failing"] = browser.page(ours)
    show_statistics(spark, lambda _: [])
    seen["silent"] = browser.page(ours)
    last = show_statistics(spark, lambda query: source_sections(query.progress, {}))

    def is_frozen() -> bool:
        return lost.key in browser.get(f"/statistics/?id={ours.runId}")["text"]

    wait_until("the page names the part that the stream stands before", is_frozen, PATIENCE_S)
    seen["frozen"] = browser.page(ours)
    ours.stop()
    seen["ended"] = browser.page(ours)
    for hide in (second, last):
        hide()
    seen["hidden"] = browser.page(ours)
    # A question that Python does not answer, as while its interpreter shuts down.
    java_object(spark, "QueryStatistics", Silent()).show(spark._jsparkSession)
    seen["unanswered"] = browser.page(ours)
    other.stop()
    spark.stop()
    last()  # nothing is left to be hidden
    return seen


ADDRESSES = {"list": "/", "json": "/statistics/json", "unknown": "/statistics/?id=none"}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))  # noqa: T201 - what its caller reads
