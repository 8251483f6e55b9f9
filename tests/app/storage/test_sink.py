"""Sinks without Spark: intervals, what a checkpoint is worth, accounts, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.app.execution import ending_holds
from shardline.app.protocol.fingerprint import fingerprint
from shardline.app.protocol.objects import Envelope, SinkDescription
from shardline.app.storage import sink_holds
from shardline.app.storage.sink_holds import drop_sink, hold_name, release_former
from shardline.app.storage.sink_query import check_sink
from shardline.app.storage.sinks.interval import LAST, Interval, end_of, frontier_of, may_continue
from shardline.app.storage.sinks.progress import _COLUMNS, SinkProgress, read_progress
from shardline.app.storage.sinks.target import guarantee, interval_ms, options_of
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import (
    Corrupt,
    Determinate,
    Fenced,
    InvalidUsage,
    MissingBlob,
    ShardError,
)
from shardline.datasource.frontier import EMPTY, Frontier
from shardline.datasource.types.schema import ShardSchema
from support.spark.sinks import SCHEMA

_TIMES = (pa.field("_ts", pa.int64()), pa.field("_diff", pa.int64()))


def described(name: str = "out", on: str = "in", **options: str) -> SinkDescription:
    return SinkDescription(name=name, on=on, format="memory", options=options)


@pytest.fixture
def client(tmp_path: Path) -> ShardClient:
    return ShardClient.open(str(tmp_path / "lake"))


KEPT = Frontier(10)
"""The since of the hold of a sink whose newest micro-batch ends at 11."""


def checkpoint(folder: Path, ends: list[int | None], commits: int) -> Path:
    """A checkpoint with micro-batches that end at `ends`, the first `commits` of them committed."""
    for log in ("offsets", "commits"):
        (folder / log).mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"0123-4567"}')
    for number, end in enumerate(ends):
        offset = {"v": 1, "shard": "s" + "0" * 32, "hold": "h", "as_of": 1, "frontier": end}
        text = f"v1\n{{}}\n{json.dumps(offset)}"
        (folder / "offsets" / str(number)).write_text(text)
        (folder / "offsets" / f".{number}.crc").write_text("")
        if number < commits:
            (folder / "commits" / str(number)).write_text("v1\n{}")
    return folder


def test_micro_batches_end_where_the_checkpoint_says(tmp_path: Path) -> None:
    """The end of each planned micro-batch is read back; before the first one there is none."""
    folder = checkpoint(tmp_path / "c", [11, 21, None], 2)
    assert [end_of(folder, n) for n in range(-1, 3)] == [None, Frontier(11), Frontier(21), EMPTY]


def test_a_micro_batch_before_the_start_reads_nothing(tmp_path: Path) -> None:
    """One that Spark makes before the stream has begun ends nowhere."""
    folder = checkpoint(tmp_path / "c", [11], 0)
    (folder / "offsets" / "0").write_text('v1\n{}\n{"v": 1, "init": true}')

    assert end_of(folder, 0) is None
    assert may_continue(folder, None, KEPT)


@pytest.mark.parametrize(
    ("made", "known", "expected"),
    [
        (([], 0), (None, 0), True),
        (([], 0), (11, 10), True),
        (([11], 0), (None, 0), True),  # planned, not done: it is done again
        (([11], 0), (11, 10), False),  # of another life: where the target is decides
        (([11, 21], 1), (11, 10), True),
        (([11, 21], 1), (21, 10), True),  # the target is ahead: the micro-batch is left out
        (([11, 21], 1), (21, 11), False),  # and the input may have forgotten what it would repeat
        (([11, 21], 1), (21, None), False),
        (([11, 21], 2), (11, 0), False),  # the checkpoint is ahead: times would be skipped
        (([11], 1), (None, 0), False),
        (([11, None], 2), (None, 0), False),
    ],
)
def test_a_checkpoint_never_skips(
    tmp_path: Path,
    made: tuple[list[int | None], int],
    known: tuple[int | None, int | None],
    expected: bool,
) -> None:
    """It is used only if it begins no later than what the target has, where the input goes on."""
    committed, kept = known
    frontier = None if committed is None else Frontier(committed)

    assert may_continue(checkpoint(tmp_path / "c", *made), frontier, Frontier(kept)) is expected


def test_a_damaged_checkpoint_is_none(tmp_path: Path) -> None:
    """What cannot be read is thrown away; so is one whose offsets are gone."""
    folder = checkpoint(tmp_path / "c", [11], 1)
    (folder / "offsets" / "0").write_text("v1\n{}\n{")
    assert not may_continue(folder, Frontier(11), KEPT)
    (folder / "offsets" / "0").unlink()
    assert not may_continue(folder, Frontier(11), KEPT)
    assert may_continue(tmp_path / "missing", Frontier(11), KEPT)


@pytest.mark.parametrize(
    ("file", "left"),
    [
        ("offsets/1", b""),
        ("offsets/1", b"\0\0\0"),
        ("offsets/1", b'v1\n{}\n{"v": 1, "sh'),
        ("offsets/0", b""),
        ("commits/0", b""),
        ("commits/0", b"v1\n{"),
        ("metadata", b""),
    ],
)
def test_a_checkpoint_that_a_power_cut_has_torn_is_none(
    tmp_path: Path, file: str, left: bytes
) -> None:
    """Spark syncs nothing of it, and cannot begin with a file that is empty or cut."""
    folder = checkpoint(tmp_path / "c", [11, 21], 1)
    assert may_continue(folder, Frontier(11), KEPT)
    (folder / file).write_bytes(left)

    assert not may_continue(folder, Frontier(11), KEPT)


@given(st.lists(st.one_of(st.none(), st.integers(1, 1 << 60)), min_size=2, max_size=2))
def test_numbers_grow_with_intervals(uppers: list[int | None]) -> None:
    """Numbers of intervals are ordered as their uppers, and lead back to them."""
    one, two = (Interval(0, Frontier(upper)) for upper in uppers)

    assert (one.number < two.number) == (one.upper < two.upper)
    assert frontier_of(one.number) == one.upper
    assert Interval(5, EMPTY).number == LAST


def test_progress_is_kept(client: ShardClient) -> None:
    """The newest row, and only it, is in the shard; its upper is the shard's upper."""
    sink = described()
    progress = SinkProgress.open(client, sink)
    assert progress.committed is None
    progress.record(Interval(0, Frontier(11)), 3)
    progress.record(Interval(11, Frontier(21)), 0)
    again = SinkProgress.open(client, sink)

    assert again.committed == progress.committed == Frontier(21)
    assert client.state("out_progress").upper == Frontier(21)
    with client.reader("out_progress") as reader:
        (row,) = reader.snapshot().to_pylist()
    assert (row["input"], row["lower"], row["upper"], row["rows"]) == ("in", 11, 21, 0)


@pytest.mark.parametrize("end", [Frontier(21), EMPTY])
def test_the_newest_micro_batch_with_rows_is_kept(client: ShardClient, end: Frontier) -> None:
    """Times without rows pass and leave it; another definition has given nothing yet."""
    progress = SinkProgress.open(client, described())
    progress.record(Interval(0, Frontier(11)), 3)
    progress.record(Interval(11, end), 1)
    if end != EMPTY:
        progress.record(Interval(21, Frontier(31)), 0)
    assert SinkProgress.open(client, described()).given == progress.given == end
    assert SinkProgress.open(client, described(kind="other")).given is None


def test_accounts_of_an_earlier_version_get_the_new_columns(client: ShardClient) -> None:
    """What they did not note is not known."""
    schema = ShardSchema.from_arrow(pa.schema([f for f in _COLUMNS if f.name != "given"]))
    client.create("out_progress", schema)
    row = {"definition": fingerprint(described()), "input": "in", "lower": 0, "upper": 11}
    row |= {"rows": 1, "shard": "", "_ts": 10, "_diff": 1}
    rows = pa.Table.from_pylist([row], pa.schema([*_COLUMNS, *_TIMES]).remove(6))
    client.writer("out_progress").compare_and_append(rows, Frontier(0), Frontier(11))
    progress = SinkProgress.open(client, described())
    assert (progress.committed, progress.given) == (Frontier(11), None)
    progress.record(Interval(11, Frontier(21)), 1)
    assert SinkProgress.open(client, described()).given == Frontier(21)


def test_of_two_incarnations_one_is_refused(client: ShardClient) -> None:
    """Who notes progress that another one has noted meanwhile is fenced."""
    one, two = SinkProgress.open(client, described()), SinkProgress.open(client, described())
    one.record(Interval(0, Frontier(11)), 1)

    with pytest.raises(Fenced, match="another incarnation"):
        two.record(Interval(0, Frontier(12)), 1)


def test_a_new_definition_begins_behind_the_old_one(client: ShardClient) -> None:
    """Progress of another definition is none, but says where the new one can begin."""
    SinkProgress.open(client, described()).record(Interval(0, Frontier(11)), 1)
    progress = SinkProgress.open(client, described(on="other"))

    assert progress.committed is None
    assert progress.earliest == 11
    assert progress.previous_input == "in"
    progress.record(Interval(0, Frontier(13)), 1)
    assert SinkProgress.open(client, described(on="other")).committed == Frontier(13)


def test_the_end_is_kept(client: ShardClient) -> None:
    """A finished sink stays finished; defined anew it begins anew."""
    progress = SinkProgress.open(client, described())
    progress.record(Interval(0, Frontier(11)), 1)
    progress.record(Interval(11, EMPTY), 1)

    assert SinkProgress.open(client, described()).committed == EMPTY
    assert SinkProgress.open(client, described(on="other")).committed is None


def test_a_drop_gives_up_hold_and_progress(client: ShardClient) -> None:
    """After a drop the input is free of the sink, and so is the location; again does nothing."""
    client.create("in", ShardSchema.from_arrow(SCHEMA))
    client.writer("in").append_now(None)
    client.hold("in", hold_name("out"))
    SinkProgress.open(client, described())
    drop_sink(client, described())
    drop_sink(client, described())

    assert client.state("in").critical == {}
    assert not client.exists("out_progress")
    client.drop("in")
    drop_sink(client, described())


def test_a_drop_leaves_what_another_runtime_has_taken_over_meanwhile(client: ShardClient) -> None:
    """Right behind its look at the fence the process rests; a sink of that name runs elsewhere."""
    client.create("in", ShardSchema.from_arrow(SCHEMA))
    client.writer("in").append_now(None)
    client.hold("in", hold_name("out"))
    SinkProgress.open(client, described()).record(Interval(0, Frontier(11)), 1)
    looks: list[SinkProgress] = []

    def take_over() -> None:
        client.hold("in", hold_name("out"))
        looks.append(SinkProgress.open(client, described()))

    with pytest.raises(Determinate, match="SHARD_CHANGED"):
        drop_sink(client, described(), take_over)
    assert list(client.state("in").critical) == [hold_name("out")]
    looks[-1].record(Interval(11, Frontier(12)), 1)
    assert SinkProgress.open(client, described()).committed == Frontier(12)

    def fenced() -> None:
        raise Fenced("another runtime")

    with pytest.raises(Fenced):
        drop_sink(client, described(), fenced)
    assert list(client.state("in").critical) == [hold_name("out")]


@pytest.fixture
def dropped_sink(client: ShardClient) -> SinkDescription:
    """A sink that reads `in`, and by the definition before still has a hold on `old`."""
    for name in ("in", "old", "other_errors"):
        client.create(name, ShardSchema.from_arrow(SCHEMA))
        client.writer(name).append_now(None)
    for name in ("in", "old"):
        client.hold(name, hold_name("out"))
    SinkProgress.open(client, described(on="old")).record(Interval(0, Frontier(11)), 1)
    return described()


def test_damaged_errors_of_another_object_keep_nothing_of_a_dropped_sink(
    client: ShardClient, dropped_sink: SinkDescription, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its accounts a new sink of that name would leave out all that came before."""
    real = ending_holds.find_holds

    def find_holds(client: ShardClient, shard: str) -> dict[str, str]:
        if shard == "other_errors":
            raise Corrupt("damaged")
        return real(client, shard)

    monkeypatch.setattr(ending_holds, "find_holds", find_holds)
    with pytest.raises(Corrupt):
        drop_sink(client, dropped_sink)
    assert [list(client.state(name).critical) for name in ("in", "old")] == [[], []]
    assert not client.exists("out_progress")


def test_a_hold_that_stays_on_a_damaged_former_input_is_logged(
    client: ShardClient,
    dropped_sink: SinkDescription,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With all that `expire-reader` needs: once the sink has started nothing else knows it."""

    def find_holds(*_: object) -> dict[str, str]:
        raise Corrupt("damaged")

    monkeypatch.setattr(ending_holds, "find_holds", find_holds)
    release_former(client, dropped_sink, "old", (), lambda: None)
    (record,) = caplog.records
    assert "expire-reader" in record.message
    context = {"sink": "out", "former": ["old"], "hold": "sink:out"}
    assert vars(record)["context"] == context


@pytest.mark.parametrize("error", [Corrupt, MissingBlob, Determinate])
def test_accounts_that_are_damaged_keep_nothing_of_a_dropped_sink(
    client: ShardClient,
    dropped_sink: SinkDescription,
    error: type[ShardError],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which input it has a hold on is found without them; if they do not answer, they stay."""

    def read(*_: object) -> None:
        raise error("cannot be read")

    with monkeypatch.context() as patch:
        patch.setattr(sink_holds, "read_progress", read)
        if error is Determinate:
            with pytest.raises(Determinate):
                drop_sink(client, dropped_sink)
            assert client.exists("out_progress")
        else:
            drop_sink(client, dropped_sink)
    if error is Determinate:
        drop_sink(client, dropped_sink)
    assert [list(client.state(name).critical) for name in ("in", "old")] == [[], []]
    assert not client.exists("out_progress")


def test_an_input_is_noted_before_anything_is_written(client: ShardClient) -> None:
    """A definition that never commits leaves the name of its input to the next one."""
    first = SinkProgress.open(client, described())
    first.note_input()
    first.note_input()
    again = SinkProgress.open(client, described())

    assert (again.committed, again.previous_input) == (None, "in")
    assert client.state("out_progress").upper == Frontier(first.earliest)
    progress = SinkProgress.open(client, described(on="other"))
    assert (progress.committed, progress.previous_input) == (None, "in")
    progress.note_input()
    assert SinkProgress.open(client, described(on="third")).previous_input == "other"
    progress.record(Interval(0, Frontier(11)), 1)
    progress.note_input()
    row = read_progress(client, "out")
    assert row is not None
    assert (row.definition, row.input, row.upper) == (progress.definition, "other", 11)


def test_a_finished_definition_is_followed_by_another(client: ShardClient) -> None:
    """The input of one that is finished is known until the next one has noted its own."""
    progress = SinkProgress.open(client, described())
    progress.record(Interval(0, EMPTY), 1)
    later = SinkProgress.open(client, described(on="other"))

    assert (later.committed, later.previous_input) == (None, "in")
    assert SinkProgress.open(client, described(on="other")).previous_input == "in"
    later.note_input()
    assert SinkProgress.open(client, described(on="third")).previous_input == "other"
    later.record(Interval(0, Frontier(11)), 1)
    assert SinkProgress.open(client, described(on="other")).committed == Frontier(11)


def test_a_drop_gives_up_the_hold_of_the_definition_before(client: ShardClient) -> None:
    """A definition that is refused from the start has the hold of the one before: both go."""
    for name in ("in", "other"):
        client.create(name, ShardSchema.from_arrow(SCHEMA))
        client.writer(name).append_now(None)
    client.hold("in", hold_name("out"))
    SinkProgress.open(client, described()).record(Interval(0, Frontier(11)), 1)
    drop_sink(client, described(on="other"))

    assert client.state("in").critical == {}
    assert not client.exists("out_progress")


@pytest.mark.parametrize(
    ("format_", "envelope", "options", "message"),
    [
        ("parquet", "diff", {}, "option 'path' of sink 'out' is missing"),
        ("memory", "upsert", {}, "KEY_NEEDED"),
        ("console", "diff", {"numrow": "3"}, "did you mean 'numRows'"),
        ("foreachBatch", "diff", {}, "option 'function'"),
        ("memory", "diff", {"interval": "soon"}, "a duration such as"),
    ],
)
def test_what_is_refused(
    format_: str, envelope: Envelope, options: dict[str, str], message: str
) -> None:
    """A description that cannot work is refused before anything starts."""
    sink = SinkDescription(name="out", on="in", format=format_, envelope=envelope, options=options)
    with pytest.raises(InvalidUsage, match=message):
        check_sink(sink)


def test_options_of_the_sink_are_not_the_targets() -> None:
    """The distance of micro-batches is the sink's option, all others are the target's."""
    sink = described(Interval="10s", path="p")

    assert interval_ms(sink) == 10_000
    assert options_of(sink) == {"path": "p"}
    assert interval_ms(described()) is None


def test_guarantees_are_stated() -> None:
    """What remembers is written exactly once, everything else at least once."""
    exact = {"parquet", "csv", "shard", "delta", "memory"}
    for name in (*exact, "kafka", "iceberg", "console", "foreachBatch", "jdbc"):
        sink = SinkDescription(name="out", on="in", format=name)
        assert guarantee(sink) == ("exactly once" if name in exact else "at least once")
