"""Failures are made for real, by name: damaged files, missing folders, functions that raise.

    ./spark-submit.sh python tests/support/spark/failures.py    writes tests/golden/spark_errors/

The texts that are written have Spark's version in the file's name, and no paths of the machine.
They are written again when Spark is upgraded. A text that has changed may need another rule:
`CAUSES` says, by hand, what is to be made of each.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["BRIEF", "CAUSES", "FOLDER", "GOLDEN", "SITUATIONS", "Place", "made"]

FOLDER = "/data"
"""Stands in all texts for the folder in which situations are made."""

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "spark_errors"


class Place:
    """A session and a folder in which situations are made."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder

    def file(self, name: str, content: bytes) -> str:
        """A file in a folder of its own; returns the folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return str(path.parent)

    def good(self, name: str) -> Path:
        """A folder with one Parquet file, `a.parquet`."""
        folder = self.folder / name
        numbers(self).coalesce(1).write.mode("overwrite").parquet(str(folder))
        (part,) = folder.glob("part-*.parquet")
        for path in folder.iterdir():
            if path != part:
                path.unlink()
        part.rename(folder / "a.parquet")
        return folder

    def stream(self, folder: Path, each: Callable[[DataFrame, int], None]) -> None:
        """Run a streaming query over Parquet files until it fails."""
        rows = self.spark.readStream.schema("id BIGINT, k BIGINT").parquet(str(folder))
        checkpoint = tempfile.mkdtemp(dir=self.folder)
        query = (
            rows.writeStream.foreachBatch(each)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()


def numbers(place: Place) -> DataFrame:
    return place.spark.range(5).selectExpr("id", "id AS k")


def function(name: str, *, arrow: bool = False) -> Any:
    from pyspark import cloudpickle
    from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

    users = users_functions()
    cloudpickle.register_pickle_by_value(users)  # type: ignore[no-untyped-call]
    return F.udf(getattr(users, name), "bigint", useArrow=arrow)("id")


def users_functions() -> Any:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from support.spark import user_functions

    sys.path.pop(0)
    return user_functions


BAD = b"this is no Parquet at all"


def cut(place: Place) -> str:
    folder = place.good("cut")
    data = (folder / "a.parquet").read_bytes()
    return place.file("cut/a.parquet", data[:20] + bytes(60) + data[80:])


def vanished(place: Place) -> None:
    folder = place.good("vanished")
    frame = place.spark.read.parquet(str(folder))
    (folder / "a.parquet").unlink()
    frame.collect()


def below_a_file(place: Place) -> str:
    place.file("target/file", b"x")
    return str(place.folder / "target" / "file" / "below")


def create_below_a_file(place: Place) -> None:
    jvm: Any = place.spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(below_a_file(place), "owner.json")
    path.getFileSystem(place.spark._jsc.hadoopConfiguration()).create(path, True)


def write_to_a_full_disk(place: Place) -> None:
    jvm: Any = place.spark._jvm
    jvm.java.io.FileOutputStream("/dev/full").write(1)


def write_to_a_full_disk_in_python(_place: Place) -> None:
    Path("/dev/full").write_text("x", encoding="utf-8")


def collected(query: str) -> Callable[[Place], Any]:
    return lambda place: place.spark.sql(query).collect()


def by_function(name: str, *, arrow: bool = False) -> Callable[[Place], Any]:
    # One partition: of several it is by chance whose row is the first.
    return lambda place: numbers(place).coalesce(1).select(function(name, arrow=arrow)).collect()


def by_batches(place: Place) -> None:
    check = users_functions().check_city
    numbers(place).mapInPandas(lambda frames: (check(3) for _ in frames), "id bigint").collect()


def in_a_stream(name: str) -> Callable[[Place], None]:
    return lambda place: place.stream(place.good(name), getattr(users_functions(), name))


def divide_by_frame(place: Place) -> None:
    rows = numbers(place)
    rows.select(1 / rows.id).collect()


def parquet(place: Place, folder: str, columns: str = "id BIGINT") -> DataFrame:
    return place.spark.read.schema(columns).parquet(folder)


def bad(place: Place) -> str:
    return place.file("days/day 1.parquet", BAD)


BRIEF: dict[str, Callable[[Place], Any]] = {
    "footer": lambda p: p.spark.read.parquet(bad(p)),
    "no parquet": lambda p: parquet(p, bad(p)).collect(),
    "no parquet, cached": lambda p: parquet(p, bad(p)).persist().count(),
    "no parquet, written": lambda p: parquet(p, bad(p)).write.parquet(str(p.folder / "copy")),
    "no parquet, streamed": lambda p: p.stream(Path(bad(p)), users_functions().collect_all),
    "damaged pages": lambda p: parquet(p, cut(p)).collect(),
    "other type": lambda p: parquet(p, str(p.good("typed")), "id ARRAY<STRING>").collect(),
    "file vanished": vanished,
    "no path": lambda p: p.spark.read.parquet(str(p.folder / "not here")),
    "no orc": lambda p: p.spark.read.schema("id INT").orc(p.file("o/a.orc", BAD)).collect(),
    "no gzip": lambda p: p.spark.read.schema("id INT").csv(p.file("z/a.csv.gz", BAD)).collect(),
    "no json": lambda p: (
        p.spark.read.schema("id INT")
        .option("mode", "FAILFAST")
        .json(p.file("j/a.json", b'{"id": 1}\n{"id": \n'))
        .collect()
    ),
    "write below a file": lambda p: numbers(p).write.parquet(below_a_file(p)),
    "create below a file": create_below_a_file,
    "disk full": write_to_a_full_disk,
    "disk full, Python": write_to_a_full_disk_in_python,
    "function": by_function("check_city"),
    "streamed function": in_a_stream("hand_over"),
    "streamed function by Spark": in_a_stream("hand_over_shares"),
    "division": collected("SELECT id, 10 / id AS share FROM range(5)"),
    "division by frame": divide_by_frame,
    "cast": collected("SELECT CAST(concat('x', min(id)) AS INT) FROM range(5)"),
    "overflow": collected("SELECT CAST(min(id) + 3000000000 AS INT) FROM range(5)"),
    "raised": collected("SELECT raise_error('no good at all') FROM range(5)"),
    "raised by us": collected("SELECT raise_error('[NULL_KEY] a key is NULL — hint: fill it in')"),
    "unknown column": collected("SELECT nothing FROM range(5)"),
    "syntax": collected("SELEC 1"),
    "no kafka": lambda p: p.spark.read.format("kafka").load(),
}
"""Situations that are made in a second or two."""

SITUATIONS: dict[str, Callable[[Place], Any]] = BRIEF | {
    "function that calls": by_function("parse"),
    "function of Arrow": by_function("check_city", arrow=True),
    "function, written": lambda p: (
        numbers(p).select(function("check_city").alias("x")).write.parquet(str(p.folder / "w"))
    ),
    "function that opens": by_function("open_prices"),
    "function that ends its process": by_function("crash"),
    "function of batches": by_batches,
    "streamed function of rows": lambda p: p.stream(
        p.good("rows"), lambda f, _: f.select(function("check_city")).collect()
    ),
    "division, written": lambda p: p.spark.sql("SELECT 10 / id AS x FROM range(5)").write.parquet(
        str(p.folder / "d")
    ),
}
"""All of them; those of Python workers take Spark's four attempts."""


_REPAIR = "repair the file, or put a good one in its place"
_CORRECT = "correct the function, and start the application again"
_NO_PARQUET = (
    "[FAILED_READ_FILE] file '/data/days/day 1.parquet' cannot be read: it is not a Parquet file"
)
_CITY = "ValueError: no such city: 3, in function 'check_city' (user_functions.py, line 17)"
_BLOCKED = "'/data/target/file' is a file, and a folder is needed there"
_ELSEWHERE = "choose another path, or move the file away"
_FREE = "free some space, or give the application a larger disk"
_ZERO = "use try_divide, which gives NULL, or leave out rows with a zero"

CAUSES: dict[str, tuple[str, str]] = {
    "footer": (_NO_PARQUET, _REPAIR),
    "no parquet": (_NO_PARQUET, _REPAIR),
    "no parquet, cached": (_NO_PARQUET, _REPAIR),
    "no parquet, written": (_NO_PARQUET, _REPAIR),
    "no parquet, streamed": (
        f"{_NO_PARQUET}, in function 'collect_all' (user_functions.py, line 54)",
        _REPAIR,
    ),
    "damaged pages": (
        (
            "[FAILED_READ_FILE] file '/data/cut/a.parquet' cannot be read: it is damaged "
            "(TProtocolException: Required field 'definition_level_encoding' was not present! "
            "Struct: DataPageHeader(num_values:5, en…)"
        ),
        _REPAIR,
    ),
    "other type": (
        (
            "[FAILED_READ_FILE] file '/data/typed/a.parquet' cannot be read: "
            "column 'id' is INT64, not array<string>"
        ),
        "declare the type that the file has, or put a file with this type in its place",
    ),
    "file vanished": (
        "[FAILED_READ_FILE] file '/data/vanished/a.parquet' is not there",
        "put the file back",
    ),
    "no path": (
        "[PATH_NOT_FOUND] Path does not exist: /data/not here",
        "make the folder, or correct the path",
    ),
    "no orc": (
        "[FAILED_READ_FILE] file '/data/o/a.orc' cannot be read: it is not an ORC file",
        _REPAIR,
    ),
    "no gzip": (
        "[FAILED_READ_FILE] file '/data/z/a.csv.gz' cannot be read: it is not compressed by gzip",
        _REPAIR,
    ),
    "no json": (
        "[FAILED_READ_FILE] file '/data/j/a.json' cannot be read: it has a malformed record",
        _REPAIR,
    ),
    "write below a file": (_BLOCKED, _ELSEWHERE),
    "create below a file": (_BLOCKED, _ELSEWHERE),
    "disk full": ("no space is left on the disk", _FREE),
    "disk full, Python": ("no space is left on the disk", _FREE),
    "function": (_CITY, _CORRECT),
    "function of Arrow": (_CITY, _CORRECT),
    "function of batches": (_CITY, _CORRECT),
    "function, written": (_CITY, _CORRECT),
    "streamed function of rows": (_CITY, _CORRECT),
    "function that calls": (
        (
            "ValueError: invalid literal for int() with base 10: 'x0', "
            "in function '_digits' (user_functions.py, line 27)"
        ),
        _CORRECT,
    ),
    "function that opens": (
        (
            "'/nowhere/prices.csv' is not there, "
            "in function 'open_prices' (user_functions.py, line 43)"
        ),
        "put it back, or correct the path",
    ),
    "function that ends its process": (
        "Spark's Python process ended while it ran a function",
        "look whether it runs out of memory, or what native code the function calls",
    ),
    "streamed function": (
        "KeyError: 'b', in function 'hand_over' (user_functions.py, line 33)",
        _CORRECT,
    ),
    "streamed function by Spark": (
        (
            '[DIVIDE_BY_ZERO] Division by zero, in "1 div (k - k)", '
            "in function 'hand_over_shares' (user_functions.py, line 38)"
        ),
        _ZERO,
    ),
    "division": ('[DIVIDE_BY_ZERO] Division by zero, in "10 / id"', _ZERO),
    "division, written": ('[DIVIDE_BY_ZERO] Division by zero, in "10 / id"', _ZERO),
    "division by frame": ("[DIVIDE_BY_ZERO] Division by zero", _ZERO),
    "cast": (
        (
            '[CAST_INVALID_INPUT] The value \'x0\' of the type "STRING" cannot be cast to "INT" '
            "because it is malformed, in \"CAST(concat('x', min(id)) AS INT)\""
        ),
        (
            "correct the value as per the syntax, or change its target type. "
            "Use `try_cast` to tolerate malformed input and return NULL instead"
        ),
    ),
    "overflow": (
        (
            '[CAST_OVERFLOW] The value 3000000000L of the type "BIGINT" cannot be cast to "INT" '
            "due to an overflow"
        ),
        "use `try_cast` to tolerate overflow and return NULL instead",
    ),
    "raised": (
        "[USER_RAISED_EXCEPTION] no good at all",
        "the query raises it itself: correct the rows or the query",
    ),
    "raised by us": ("[NULL_KEY] a key is NULL", "fill it in"),
    "unknown column": (
        (
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with "
            "name `nothing` cannot be resolved"
        ),
        "did you mean `id`?",
    ),
    "syntax": ("[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'", "correct the query"),
    "no kafka": (
        "[KAFKA_DATA_SOURCE_NOT_ENABLED] Failed to find data source: kafka",
        "start with the package of this format (--packages)",
    ),
}
"""For each situation the sentence and the hint."""


def made(place: Place, chosen: dict[str, Callable[[Place], Any]]) -> Iterator[tuple[str, Any]]:
    """Make situations one after the other; their names and errors."""
    for name, situation in chosen.items():
        try:
            situation(place)
        except Exception as error:  # noqa: BLE001 - that is what is wanted
            yield name, error
        else:
            raise AssertionError(f"'{name}' has raised nothing")


def neutral(text: str, folder: Path) -> str:
    """Without the paths of this machine, and without most frames of the JVM."""
    root = Path(__file__).resolve().parents[3]
    text = re.sub(r"(\n\s+at [^\n]+){3,}", r"\1", text)
    text = text.replace(str(folder), FOLDER)
    text = re.sub(re.escape(str(root)) + r"/\.venv/\w+", "/srv/env", text)
    return text.replace(str(root), "/srv/clone")


def main() -> None:
    """Make all situations, and write their texts."""
    os.environ["SPARK_CONF_DIR"] = str(Path(__file__).resolve().parents[3] / "conf")
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = {
            situation: {
                "kind": type(error).__name__,
                "text": neutral(str(error), folder),
                "trace": neutral(getattr(error, "_stackTrace", ""), folder),
            }
            for situation, error in made(Place(spark, folder), SITUATIONS)
        }
    GOLDEN.mkdir(parents=True, exist_ok=True)
    written = json.dumps(texts, indent=1, ensure_ascii=False)
    (GOLDEN / f"{spark.version}.json").write_text(written + "\n", encoding="utf-8")
    spark.stop()


if __name__ == "__main__":
    main()
