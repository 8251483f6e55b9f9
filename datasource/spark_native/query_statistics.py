"""Shows our statistics of a streaming query on the page that Spark's UI has for it.

    hide = show_statistics(spark, describe)      what `describe` says of each query, in sections
    hide()                                       Spark's page is again as Spark makes it

On that page Spark draws metrics of others only if a state store reports them: a data source, of
Python or of Java, cannot, and a query without state has none. So a page of ours stands in the place
of Spark's: a subclass that adds sections to what Spark says (`QueryStatistics.java`). It has the
same address, so every link to a query leads to it. Sections are made when somebody opens the page:
a page that nobody looks at costs nothing.

Invariants:
    A page is shown whatever `describe` does: its errors are logged, and the sections are left out.
    No text becomes markup.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from py4j.protocol import Py4JError

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.offsets import ShardOffset, parse_offset
from shardline.datasource.spark_native.compiled_java import java_object
from shardline.datasource.spark_native.jvm import read_map
from shardline.datasource.spark_native.rule_loader import is_checked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "Describe",
    "SeenQuery",
    "StatisticsSection",
    "StatisticsTable",
    "encode_sections",
    "metrics_table",
    "show_statistics",
    "source_sections",
]

_log = logging.getLogger(__name__)

_CLASS: Final = "QueryStatistics"


@dataclass(frozen=True, slots=True)
class SeenQuery:
    """A run of a streaming query whose page somebody has opened.

    Attributes:
        run: Id of the run.
        name: Name of the query; "" if it has none.
        progress: Its newest progress, as Spark's JSON has it; empty before the first.
    """

    run: str
    name: str
    progress: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StatisticsTable:
    """Numbers and states, for people.

    Attributes:
        columns: Name and meaning of each; "" is the meaning of one whose name says it.
        rows: As many cells each as there are columns.
    """

    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class StatisticsSection:
    """The statistics of one thing that a query has to do with.

    Attributes:
        title: What it is.
        state: How it is, in a few words that are seen while the section is closed; "" for none.
        link: Where more is said of it; "" for nowhere.
        tables: The statistics.
    """

    title: str
    state: str
    link: str
    tables: tuple[StatisticsTable, ...]


Describe: TypeAlias = Callable[[SeenQuery], Iterable[StatisticsSection]]
"""Says what is known of a query: none for one that is not known. Called in any thread."""


def show_statistics(spark: SparkSession, describe: Describe) -> Callable[[], None]:
    """Show what `describe` says of a query on its page in Spark's UI.

    Where the UI is off, or Spark is another version than was checked, nothing is done. If several
    have asked for it in one UI, the last one is shown.

    Args:
        spark: A session of the application.
        describe: What to show.

    Returns:
        Ends it; may be called when the session has ended.

    Raises:
        Py4JError: Spark is not as expected; its pages are as they were.
    """
    if spark.sparkContext.uiWebUrl is None:
        return _do_nothing
    if not is_checked(spark):
        _log.info("Spark's UI shows no statistics of ours: Spark %s is not known", spark.version)
        return _do_nothing
    page = java_object(spark, _CLASS, _Described(describe))
    if not page.show(spark._jsparkSession):  # noqa: SLF001 - no public door
        return _do_nothing

    def hide() -> None:
        with suppress(Py4JError, OSError):  # the JVM has ended, and the page with it
            page.hide()

    return hide


def _do_nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class _Described:
    """Answers the page, in a thread of Spark's web server."""

    describe: Describe

    def apply(self, request: Any) -> str | None:
        """The section as HTML; None if there is nothing to be said."""
        try:
            asked = read_map(request)
            progress = json.loads(asked.get("progress") or "{}")
            query = SeenQuery(asked["run"], asked["name"] or "", progress)
            return encode_sections(self.describe(query)) or None
        except Exception:  # noqa: BLE001 - Spark's page is shown without
            _log.warning("a query's page in Spark's UI is without our statistics", exc_info=True)
            return None

    class Java:
        """The Java interface that py4j gives the object in the JVM."""

        implements: ClassVar = ["java.util.function.Function"]


# --- shards that are read ----------------------------------------------------------------------


def source_sections(
    progress: Mapping[str, Any], names: Mapping[str, str]
) -> Iterator[StatisticsSection]:
    """A section for each source of a query that reads shards; none for sources of others.

    Args:
        progress: Of the query, as Spark's JSON has it.
        names: Those of shards that are known, by their ids.
    """
    for source in progress.get("sources", ()):
        try:
            offset = parse_offset(source.get("endOffset"))
        except InvalidUsage:
            continue
        if isinstance(offset, ShardOffset):
            shards = ", ".join(names.get(shard, shard) for shard in offset.shards)
            noun = "shard" if len(offset.shards) == 1 else "shards"
            # Spark's word for what a source says of itself, whether it has read that far or not.
            said = source.get("latestOffset") or {}
            state, tables = _state(offset, said), _source_tables(offset, said)
            yield StatisticsSection(f"reads {noun} {shards}", state, "", tables)


def _state(offset: ShardOffset, said: Mapping[str, Any]) -> str:
    if "frozen" in said:
        return "frozen"
    behind_ms = _behind_ms(offset, said)
    return "" if behind_ms is None else f"{behind_ms:,} ms behind"


def _behind_ms(offset: ShardOffset, said: Mapping[str, Any]) -> int | None:
    frontier, upper = offset.frontier.time, said.get("upper")
    return None if frontier is None or upper is None else max(0, upper - frontier)


def _source_tables(offset: ShardOffset, said: Mapping[str, Any]) -> tuple[StatisticsTable, ...]:
    rows = [("frontier", _time(offset.frontier.time), "Every update before it has been read.")]
    if "upper" in said:
        rows.append(("upper", _time(said["upper"]), "Every update before it is settled."))
    behind_ms = _behind_ms(offset, said)
    if behind_ms is not None:
        rows.append(("behind", f"{behind_ms:,} ms", "From the frontier to the upper."))
    if offset.cut is not None:
        rows.append(("snapshot", f"{offset.cut.done:,}", "Units of the snapshot that are read."))
    rows.append(("hold", offset.hold, "Keeps the history that is still to be read."))
    if "frozen" in said:
        since, part = said["frozen"]["since_ms"], said["frozen"]["part"]
        rows.append(("frozen", part, f"The part that it stands before, since {_instant(since)}."))
    tables = [metrics_table(rows)]
    if "uppers" in said:
        uppers = tuple((name, _time(upper)) for name, upper in said["uppers"].items())
        tables.append(StatisticsTable((("shard", ""), ("upper", "")), uppers))
    return tuple(tables)


def _time(time: int | None) -> str:
    return "empty: all is read" if time is None else f"{time}"


def _instant(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(" ", "seconds")


# --- HTML --------------------------------------------------------------------------------------


def metrics_table(rows: Iterable[tuple[str, str, str]]) -> StatisticsTable:
    """A table of single metrics: the name, value and meaning of each."""
    return StatisticsTable((("Metric", ""), ("Value", ""), ("Meaning", "")), tuple(rows))


def encode_sections(sections: Iterable[StatisticsSection]) -> str:
    """The sections as HTML, in the classes of Spark's pages; "" of none.

    The first is open, and none is higher than half of a window: Spark's charts are below them.
    """
    return "".join(
        _encode_section(section, " open" if number == 0 else "")
        for number, section in enumerate(sections)
    )


def _encode_section(section: StatisticsSection, is_open: str) -> str:
    state = f": {_encode(section.state)}" if section.state else ""
    link = f' <a href="{_encode(section.link)}" rel="noreferrer">its page</a>'
    return (
        f'<details class="shardline mb-2"{is_open}>'
        f"<summary><strong>{_encode(section.title)}</strong>{state}"
        f"{link if section.link else ''}</summary>"
        # Can be focused, so that it can be scrolled by keys.
        '<div class="d-flex flex-wrap gap-3 align-items-start mt-1" tabindex="0" '
        'style="max-height: 45vh; overflow: auto">'
        f"{''.join(map(_encode_table, section.tables))}</div></details>"
    )


def _encode_table(table: StatisticsTable) -> str:
    head = "".join(f"<th>{_encode(name)}{_hint(meaning)}</th>" for name, meaning in table.columns)
    rows = "".join(
        f"<tr>{''.join(f'<td>{_encode(cell)}</td>' for cell in row)}</tr>" for row in table.rows
    )
    return (
        '<table class="table table-bordered table-sm table-striped mb-1" style="width: auto">'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    )


def _hint(meaning: str) -> str:
    """The mark that Spark's pages have behind words that they explain."""
    if not meaning:
        return ""
    return f' <sup>(<a data-bs-toggle="tooltip" title="{_encode(meaning)}">?</a>)</sup>'


def _encode(text: str) -> str:
    # In ASCII: a name of a file may have bytes that are no text, which no answer can be sent with.
    return escape(text).encode("ascii", "xmlcharrefreplace").decode()
