"""Targets of sinks without Spark: what they accept of a definition that has changed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from msgspec.structs import replace

from shardline.app.execution import ending_holds
from shardline.app.execution.host import Host
from shardline.app.execution.live_errors import EMPTY_CATALOG
from shardline.app.protocol.fingerprint import accepted_fingerprints, fingerprint
from shardline.app.protocol.objects import SinkDescription
from shardline.app.storage.sink_query import _SinkRun
from shardline.app.storage.sinks import delta
from shardline.app.storage.sinks.delta import DeltaTarget
from shardline.app.storage.sinks.interval import Interval
from shardline.app.storage.sinks.others import FunctionTarget
from shardline.app.storage.sinks.progress import SinkProgress
from shardline.app.storage.sinks.shards import ShardTarget
from shardline.app.storage.sinks.stalls import SinkStalled
from shardline.app.storage.sinks.target import options_of
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Corrupt, InvalidUsage
from shardline.datasource.frontier import EMPTY, Frontier
from shardline.datasource.types.schema import ShardSchema
from support.spark.sinks import SCHEMA, host_of, life

COPY = SinkDescription(
    name="out", on="in", format="shard", options={"shard": "copy", "s3.pool-size": "5"}
)
ROTATED = replace(COPY, options={"shard": "copy", "s3.pool-size": "9"})


@pytest.fixture
def client(tmp_path: Path) -> ShardClient:
    return ShardClient.open(str(tmp_path / "lake"))


def host_without_spark(client: ShardClient, folder: Path) -> Host:
    return host_of(cast("Any", None), client.location.url, folder)


def opened(
    client: ShardClient, sink: SinkDescription, recorded: Frontier | None = None
) -> ShardTarget:
    host = host_without_spark(client, Path("unused"))
    return ShardTarget(host, sink, options_of(sink), recorded)


def written(
    client: ShardClient, sink: str, definition: str, time: int, number: int | None = None
) -> None:
    """A row in the copy, as a sink of that name and fingerprint appends it."""
    if not client.exists("copy"):
        client.create("copy", ShardSchema.from_arrow(SCHEMA))
    columns = SCHEMA.append(pa.field("_ts", pa.int64())).append(pa.field("_diff", pa.int64()))
    rows = pa.Table.from_pylist([{"k": 1, "v": "a", "_ts": time, "_diff": 1}], columns)
    writer = client.writer("copy", f"app:sink:{sink}:{definition}")
    writer.compare_and_append(
        rows, client.state("copy").upper, Frontier(time + 1), sequence=number or time + 1
    )


def test_a_copy_goes_on_when_a_credential_changes(client: ShardClient) -> None:
    """What decides no row, such as a credential or a size, leaves a copy what it is."""
    written(client, "out", fingerprint(COPY), 10)

    assert opened(client, COPY).committed() == opened(client, ROTATED).committed() == Frontier(11)


@pytest.mark.parametrize("place", ["shard", "path"])
def test_no_sink_writes_to_a_runtimes_own_shards(client: ShardClient, place: str) -> None:
    """The log of the lane would count times for positions, and no runtime could open it."""
    named = {"shard": "_lane"} if place == "shard" else {"path": f"{client.location.url}/_lane"}
    with pytest.raises(InvalidUsage, match="RESERVED_NAME"):
        opened(client, replace(COPY, options=named))


KEPT = ("in", "in_errors", "v", "v_errors", "v_state_1", "another_progress")


@pytest.mark.parametrize("shard", KEPT)
def test_no_sink_writes_to_a_shard_of_an_object_of_its_location(
    client: ShardClient, tmp_path: Path, shard: str
) -> None:
    """Whatever path leads there; its own input would feed itself. Elsewhere names are free."""
    other = ShardClient.open(str(tmp_path / "other"))
    for one in (client, other):
        for name, by in (("in_errors", "source in"), ("v", "view v"), ("v_errors", "view v")):
            one.create(name, ShardSchema.from_arrow(SCHEMA), times_by=by)
        for name in ("in", "v_state_1", "v_state_x", "mine_state_1", "mine"):
            one.create(name, ShardSchema.from_arrow(SCHEMA))
        SinkProgress.open(one, replace(COPY, name="another"))
    (tmp_path / "link").symlink_to(tmp_path / "lake")
    for place in (client.location.url, str(tmp_path / "link")):
        with pytest.raises(InvalidUsage, match=f"RESERVED_NAME.*'{shard}'"):
            opened(client, replace(COPY, options={"path": f"{place}/{shard}"}))
    if shard == "in":
        opened(client, replace(COPY, options={"path": f"{other.location.url}/{shard}"}))
    for free in ("v_state_x", "mine_state_1", "mine"):
        opened(client, replace(COPY, options={"location": client.location.url, "shard": free}))


def test_a_copy_of_an_earlier_version_goes_on(client: ShardClient) -> None:
    """Fingerprints had credentials in them: such a copy is the sink's, and so is what comes now."""
    _, former = accepted_fingerprints(COPY)
    written(client, "out", former, 10)
    assert opened(client, COPY).committed() == Frontier(11)
    written(client, "out", fingerprint(COPY), 20)
    assert opened(client, COPY).committed() == Frontier(21)
    assert opened(client, ROTATED, Frontier(21)).committed() == Frontier(21)


def test_a_copy_of_an_earlier_version_is_known_by_its_accounts(client: ShardClient) -> None:
    """Nothing was written since the update: the accounts have the sink, and it goes on by them."""
    _, former = accepted_fingerprints(COPY)
    written(client, "out", former, 10)

    assert opened(client, ROTATED, Frontier(15)).committed() is None
    with pytest.raises(InvalidUsage, match="TARGET_TAKEN"):
        opened(client, ROTATED)


@pytest.mark.parametrize(
    ("changes", "writer", "refused"),
    [
        ({}, "out", True),
        ({}, "another", True),
        ({"envelope": "none"}, "out", True),
        ({"envelope": "none"}, "another", False),  # a shard of rows from many sinks
        ({"envelope": "debezium"}, "out", True),
        ({"envelope": "debezium", "key": ("k",)}, "out", False),
        ({"envelope": "upsert", "key": ("k",)}, "out", False),
        ({"snapshot": False}, "out", False),
    ],
)
def test_a_copy_of_another_definition_is_refused(
    client: ShardClient, changes: dict[str, Any], writer: str, refused: bool
) -> None:
    """Where the contents that a sink begins with would come to those that are there."""
    written(client, writer, "0123456789abcdef", 10)
    sink = replace(COPY, **changes)
    if not refused:
        assert opened(client, sink).committed() is None
        return
    with pytest.raises(InvalidUsage) as error:
        opened(client, sink)
    assert str(error.value).startswith("[TARGET_TAKEN] shard 'copy' holds what sink")
    assert "go back to the definition before" in str(error.value)
    # A copy has one writer, of whatever name.
    assert ("rename the sink" in str(error.value)) == (sink.envelope != "diff")
    client.drop("copy")
    assert opened(client, sink).committed() is None


def test_a_definition_that_others_have_followed_is_refused(client: ShardClient) -> None:
    """It would go on where it was, and bring again what they have written since."""
    later = replace(COPY, envelope="none", snapshot=False)
    written(client, "out", "0123456789abcdef", 10)
    written(client, "out", fingerprint(later), 20)
    assert opened(client, later).committed() == Frontier(21)
    written(client, "out", "fedcba9876543210", 30)

    with pytest.raises(InvalidUsage, match="TARGET_TAKEN"):
        opened(client, later)
    assert opened(client, later, Frontier(41)).committed() == Frontier(21)


def test_rows_of_others_keep_no_copy_from_its_start(client: ShardClient) -> None:
    """A shard that no sink has written is anybody's, as it was."""
    client.create("copy", ShardSchema.from_arrow(SCHEMA))
    client.writer("copy", "loader").append_now(None)

    assert opened(client, COPY).committed() is None


def there_is_an_input(client: ShardClient, upper: Frontier) -> None:
    client.create("in", ShardSchema.from_arrow(SCHEMA))
    client.writer("in").compare_and_append(None, Frontier(0), upper)


@pytest.mark.parametrize("end", [Frontier(15), EMPTY])
@pytest.mark.parametrize("noted", [True, False])
def test_a_copy_ends_where_its_input_does_though_a_step_has_failed(
    client: ShardClient, tmp_path: Path, end: Frontier, noted: bool
) -> None:
    """The rows of a micro-batch were appended; its times were not, be it that progress has them."""
    interval = Interval(0, end)
    there_is_an_input(client, end)
    written(client, "out", fingerprint(COPY), 10, interval.number)
    progress = SinkProgress.open(client, COPY)
    if noted:
        progress.record(interval, 1)
    run = _SinkRun(host_without_spark(client, tmp_path), life(), COPY, EMPTY_CATALOG)
    run._catch_up(progress, opened(client, COPY, progress.committed))

    assert client.state("copy").upper == end
    assert SinkProgress.open(client, COPY).committed == end


@pytest.mark.parametrize("envelope", ["diff", "none", "upsert"])
def test_a_target_ahead_of_its_input_is_given_nothing(
    client: ShardClient, tmp_path: Path, envelope: Any
) -> None:
    """The input was restored from a copy: what comes to it now may be what the target has.

    By key as well: a key that only the target has would never be deleted. Nothing is noted
    meanwhile: a target that is restored to the same moment goes on from there.
    """
    copy = replace(COPY, envelope=envelope, key=("k",) if envelope == "upsert" else ())
    there_is_an_input(client, Frontier(11))
    written(client, "out", fingerprint(copy), 20)
    progress = SinkProgress.open(client, copy)
    run = _SinkRun(host_without_spark(client, tmp_path), life(), copy, EMPTY_CATALOG)
    with pytest.raises(SinkStalled, match=r"INPUT_WENT_BACK.*up to \[21\].*at \[11\]"):
        run._catch_up(progress, opened(client, copy))
    assert SinkProgress.open(client, copy).committed is None
    client.drop("copy")
    written(client, "out", fingerprint(copy), 10)
    run._catch_up(progress, opened(client, copy))
    assert SinkProgress.open(client, copy).committed == Frontier(11)


@pytest.mark.parametrize("left", [True, False])
def test_a_target_behind_its_accounts_is_given_nothing(
    client: ShardClient, tmp_path: Path, left: bool
) -> None:
    """It alone was restored from a copy, or is gone: what lies between would be missing for good.

    Times without rows are no loss. Once the target is back the sink goes on.
    """
    there_is_an_input(client, Frontier(31))
    progress = SinkProgress.open(client, COPY)
    for lower, upper, rows in ((0, 11, 1), (11, 21, 1), (21, 31, 0)):
        progress.record(Interval(lower, Frontier(upper)), rows)
    if left:
        written(client, "out", fingerprint(COPY), 10)
    run = _SinkRun(host_without_spark(client, tmp_path), life(), COPY, EMPTY_CATALOG)
    progress = SinkProgress.open(client, COPY)
    with pytest.raises(SinkStalled, match=r"TARGET_WENT_BACK.*up to \[21\]"):
        run._catch_up(progress, opened(client, COPY, progress.committed))
    written(client, "out", fingerprint(COPY), 20)
    run._catch_up(progress, opened(client, COPY, progress.committed))
    assert SinkProgress.open(client, COPY).committed == Frontier(31)


def test_accounts_that_do_not_say_what_was_given_are_gone_on_with(
    client: ShardClient, tmp_path: Path
) -> None:
    """Earlier versions did not note it, and neither does a sink of changes before its first."""
    there_is_an_input(client, Frontier(31))
    progress = SinkProgress.open(client, COPY)
    progress.record(Interval(0, Frontier(31)), 0)
    run = _SinkRun(host_without_spark(client, tmp_path), life(), COPY, EMPTY_CATALOG)
    run._catch_up(progress, opened(client, COPY, progress.committed))
    assert (progress.given, progress.committed) == (None, Frontier(31))


def test_what_a_crash_has_left_in_the_target_was_given_to_it(
    client: ShardClient, tmp_path: Path
) -> None:
    """The accounts note it at the next start: it may be lost after that as well."""
    there_is_an_input(client, Frontier(31))
    written(client, "out", fingerprint(COPY), 20)
    progress = SinkProgress.open(client, COPY)
    run = _SinkRun(host_without_spark(client, tmp_path), life(), COPY, EMPTY_CATALOG)
    run._catch_up(progress, opened(client, COPY))
    assert SinkProgress.open(client, COPY).given == Frontier(21)


@pytest.mark.parametrize("damaged", ["other_errors", "before"])
def test_what_is_damaged_and_not_read_keeps_no_sink_from_its_start(
    client: ShardClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: str
) -> None:
    """Be it errors of another object, or the input of the definition before."""
    for name in ("before", "other_errors"):
        client.create(name, ShardSchema.from_arrow(SCHEMA))
        client.hold(name, "sink:out", since=0)
    there_is_an_input(client, Frontier(11))
    SinkProgress.open(client, replace(COPY, on="before")).record(Interval(0, Frontier(5)), 0)
    host = host_without_spark(client, tmp_path)
    begun: list[int] = []
    real = ending_holds.find_holds

    def find_holds(client: ShardClient, shard: str) -> dict[str, str]:
        if shard == damaged:
            raise Corrupt("damaged")
        return real(client, shard)

    monkeypatch.setattr(ending_holds, "find_holds", find_holds)
    monkeypatch.setattr(_SinkRun, "_query_from", lambda _, as_of, *__: begun.append(as_of))
    run = _SinkRun(host, life(), COPY, EMPTY_CATALOG)
    with run._times:
        run._begin()
    assert begun == [10]
    held = [name for name in ("before", "other_errors") if client.state(name).critical]
    assert held == [damaged]


class Table:
    """A table of Delta, as far as it is asked for the numbers of its appends."""

    def __init__(self, numbers: dict[str, int]) -> None:
        self.numbers = numbers

    def forTable(self, *_: Any) -> Table:  # noqa: N802 - Delta's name
        return self

    def startTransaction(self) -> Table:  # noqa: N802
        return self

    def txnVersion(self, app: str) -> int:  # noqa: N802
        return self.numbers.get(app, -1)


def delta_target(
    monkeypatch: pytest.MonkeyPatch, sink: SinkDescription, table: Table, previous: str
) -> DeltaTarget:
    def java(_: object, name: str) -> Any:
        other = SimpleNamespace(toScalaMap=lambda given: given)
        return table if name.endswith("DeltaLog") else other if "Utils" in name else str

    monkeypatch.setattr(delta, "java_class", java)
    spark = cast("Any", SimpleNamespace(_jsparkSession=None))
    return DeltaTarget(spark, sink, options_of(sink), previous)


TABLE = SinkDescription(name="out", on="in", format="delta", options={"path": "t", "a.token": "1"})


def test_a_table_goes_on_when_a_credential_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one whose newest append is of an earlier version."""
    now, former = accepted_fingerprints(TABLE)
    table = Table({f"sink:out:{former}": 11})
    assert delta_target(monkeypatch, TABLE, table, "").committed() == Frontier(11)
    table.numbers[f"sink:out:{now}"] = 21
    rotated = replace(TABLE, options={**TABLE.options, "a.token": "2"})
    for sink in (TABLE, rotated):
        assert delta_target(monkeypatch, sink, table, "").committed() == Frontier(21)


def test_a_table_of_the_definition_before_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows would come twice; another table takes the sink, and so does one without snapshot."""
    table = Table({"sink:out:before": 11})
    with pytest.raises(InvalidUsage, match=r"TARGET_TAKEN.*table 't' holds what sink 'out'"):
        delta_target(monkeypatch, TABLE, table, "before")
    later = replace(TABLE, snapshot=False)
    assert delta_target(monkeypatch, later, table, "before").committed() is None
    assert delta_target(monkeypatch, TABLE, Table({}), "before").committed() is None
    table.numbers[f"sink:out:{fingerprint(later)}"] = 7
    with pytest.raises(InvalidUsage, match="TARGET_TAKEN"):
        delta_target(monkeypatch, later, table, "before")
    table.numbers[f"sink:out:{fingerprint(later)}"] = 21
    assert delta_target(monkeypatch, later, table, "before").committed() == Frontier(21)


def test_accounts_of_an_earlier_version_are_the_sinks(client: ShardClient) -> None:
    """An update is no new definition; after the first note a credential may change as well."""
    _, former = accepted_fingerprints(COPY)
    written_then = SinkProgress.open(client, COPY)
    written_then.definition = former
    written_then.record(Interval(0, Frontier(11)), 1)

    assert SinkProgress.open(client, ROTATED).previous_definition == former
    progress = SinkProgress.open(client, COPY)
    assert (progress.committed, progress.previous_definition) == (Frontier(11), "")
    progress.record(Interval(11, Frontier(21)), 1)
    assert SinkProgress.open(client, ROTATED).committed == Frontier(21)


def test_a_function_that_is_not_there_says_where_it_belongs() -> None:
    """It is no part of the project, and the command `run` has none."""
    with pytest.raises(InvalidUsage, match=r"UNKNOWN_FUNCTION.*call register_function\('deliver'"):
        FunctionTarget({"Function": "deliver"})
