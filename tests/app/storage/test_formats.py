"""The formats that we know: spelling, options, packages."""

from __future__ import annotations

import pyspark
import pytest

from shardline.app.protocol.objects import Envelope, SinkDescription
from shardline.app.storage.formats import (
    Use,
    canonical_format,
    invalid_values,
    missing_option,
    package_of,
    unknown_options,
)
from shardline.app.storage.sink_query import check_sink
from shardline.datasource.errors import InvalidUsage


def test_formats_are_spelt_as_ours_are() -> None:
    """A format is known in any case; one of somebody else stays as it was written."""
    assert [
        canonical_format(name) for name in ("PARQUET", "foreachbatch", "Nexmark", "org.Own")
    ] == [
        "parquet",
        "foreachBatch",
        "nexmark",
        "org.Own",
    ]


@pytest.mark.parametrize(
    ("name", "use", "option", "hint"),
    [
        ("csv", "source", "haeder", "did you mean 'header'?"),
        ("csv", "source", "maxFilePerTrigger", "did you mean 'maxFilesPerTrigger'?"),
        ("json", "source", "orderingColumns", "did you mean 'orderingColumn'?"),
        ("rate", "source", "rowPerSecond", "did you mean 'rowsPerSecond'?"),
        ("kafka", "source", "maxOffsetPerTrigger", "did you mean 'maxOffsetsPerTrigger'?"),
        ("csv", "source", "onBadRwo", "did you mean 'onBadRow'?"),
        ("parquet", "source", "onBadRow", ""),
        ("socket", "source", "zzz", "known names: deleteColumn, host, includeTimestamp, "),
        ("parquet", "source", "zzz", "see Spark's page on the format"),
        ("parquet", "sink", "partitonBy", "did you mean 'partitionBy'?"),
        ("parquet", "sink", "maxFilesPerTrigger", ""),
        ("kafka", "sink", "topics", "did you mean 'topic'?"),
        ("console", "sink", "numRow", "did you mean 'numRows'?"),
    ],
)
def test_unknown_options_have_the_nearest_name(name: str, use: Use, option: str, hint: str) -> None:
    """An option that a known format does not have is told, with the one that was meant."""
    ((found, told),) = unknown_options(name, {option: "1"}, use)

    assert found == option
    assert hint in told


@pytest.mark.parametrize(
    ("name", "use", "option"),
    [
        ("CSV", "source", "HEADER"),
        ("XML", "source", "onbadrow"),
        ("csv", "source", "fs.s3a.endpoint"),
        ("parquet", "sink", "parquet.encryption.footer.key"),
        ("kafka", "source", "subscribe"),
        ("kafka", "source", "kafka.own.thing"),
        ("kafka", "sink", "kafka.own.thing"),
        ("org.own.Format", "source", "anything"),
        ("org.own.Format", "sink", "anything"),
        ("parquet", "sink", "Interval"),
    ],
)
def test_what_may_be_an_option_is_left_alone(name: str, use: Use, option: str) -> None:
    """Case does not matter; a file system's options and those of other people's formats pass."""
    assert unknown_options(name, [option], use) == []


@pytest.mark.parametrize(
    ("format_", "envelope", "options", "message"),
    [
        ("parquet", "diff", {"path": "p", "compresion": "zstd"}, "did you mean 'compression'"),
        ("csv", "debezium", {"path": "p"}, "ENVELOPE_MISMATCH.*write json"),
        ("text", "diff", {"path": "p"}, "ENVELOPE_MISMATCH.*envelope none"),
        ("shard", "diff", {"shard": "copy", "shrad": "x"}, "did you mean 'shard'"),
        ("shard", "diff", {}, "MISSING_OPTION"),
        ("memory", "diff", {"path": "p"}, "UNKNOWN_OPTION"),
        ("xml", "diff", {"path": "p"}, "option 'rowTag' of sink 'out' is missing"),
    ],
)
def test_sinks_that_cannot_work(
    format_: str, envelope: Envelope, options: dict[str, str], message: str
) -> None:
    """What a target cannot hold, or does not know, is refused before anything runs."""
    sink = SinkDescription(name="out", on="in", format=format_, envelope=envelope, options=options)
    with pytest.raises(InvalidUsage, match=message):
        check_sink(sink)


@pytest.mark.parametrize(
    ("name", "use", "options", "missing"),
    [
        ("csv", "source", ["header"], "path"),
        ("CSV", "source", ["PATH"], ""),
        ("xml", "source", ["path"], "rowTag"),
        ("xml", "sink", ["path"], "rowTag"),
        ("binaryFile", "source", [], "path"),
        ("kafka", "source", ["subscribe"], "kafka.bootstrap.servers"),
        ("kafka", "source", ["kafka.bootstrap.servers"], "subscribe"),
        ("kafka", "source", ["kafka.bootstrap.servers", "subscribepattern"], ""),
        ("kafka", "sink", ["topic"], "kafka.bootstrap.servers"),
        ("kafka", "sink", ["kafka.bootstrap.servers"], "topic"),
        ("kafka", "sink", ["Kafka.Bootstrap.Servers", "TOPIC"], ""),
        ("iceberg", "sink", [], "path"),
        ("foreachBatch", "sink", [], "function"),
        ("org.own.Format", "source", [], ""),
        ("rate", "source", [], ""),
        ("socket", "source", ["host"], "port"),
    ],
)
def test_what_a_format_needs_is_missed(
    name: str, use: Use, options: list[str], missing: str
) -> None:
    """The first option without which nothing can be read, in any case of its letters."""
    found = missing_option(name, options, use)
    assert (found or ("", ""))[0] == missing


def test_values_that_spark_would_replace_are_refused() -> None:
    """Its parser takes an unknown mode for PERMISSIVE, and a rebase mode is read with the rows."""
    given = {"Mode": "ignore", "wholetext": "TRUE", "int96RebaseMode": "x", "sep": "x"}
    assert [option for option, _ in invalid_values("csv", {"Sep": "", "delimiter": ""})] == [
        "Sep",
        "delimiter",
    ]
    assert [option for option, _ in invalid_values("csv", given)] == ["Mode", "int96RebaseMode"]
    assert invalid_values("org.own.Format", given) == []


KAFKA = {
    "maxOffsetsPerTrigger": (["1", "5000000"], ["many", "0", "-1", "1.5", ""]),
    "minPartitions": (["8"], ["0", "eight"]),
    "fetchOffset.numRetries": (["0", "3"], ["-1", "3s"]),
    "startingTimestamp": (["1700000000000"], ["2026-01-01"]),
    "failOnDataLoss": (["true", "FALSE"], ["yes", ""]),
    "kafka.bootstrap.servers": (
        ["h:9092", " a:1 , b:2", "SSL://h:9093", "[::1]:9092"], ["h", "", "h:", "a:1,", "a:1 b:2"]
    ),
    "subscribe": (["one", "one, two"], ["", " ", "one,", ",two"]),
    "assign": (['{"t": [0, 1]}'], ["t", "[0]"]),
    "startingOffsets": (["earliest", "LATEST", '{"t": {"0": 23}}'], ["first", "0", ""]),
    "topic": (["t", "a.b_c-1", "..."], ["", "one,two", "..", "a b", "x" * 250]),
    "startingOffsetsByTimestampStrategy": (["error", "latest"], ["earliest"]),
}  # fmt: skip


@pytest.mark.parametrize("option", KAFKA)
def test_values_of_kafka_have_their_form_before_anything_starts(option: str) -> None:
    """Spark's source looks at them when its query starts, and the package need not be there."""
    good, bad = KAFKA[option]
    assert [value for value in good if invalid_values("Kafka", {option: value})] == []
    assert [value for value in bad if not invalid_values("kafka", {option.upper(): value})] == []


def test_other_options_of_kafka_are_for_kafka_to_check() -> None:
    """Those of its client, of which there are hundreds, and topics by a pattern."""
    given = {"kafka.session.timeout.ms": "soon", "subscribePattern": "(", "groupIdPrefix": ""}
    assert invalid_values("kafka", given) == []


def test_packages_are_named() -> None:
    """A format that is not in Spark has a package; one that is has none."""
    assert package_of("csv") is None
    found = package_of("Kafka")
    assert found is not None
    assert "spark-sql-kafka" in found[1]
    # As `--packages` takes it: Spark refuses one without a version.
    assert found[1].endswith(f":{pyspark.__version__}")
