"""Reduced histories: shorter, and to the same effect."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.app.protocol.compute import (
    AllowCompaction,
    AllowWrites,
    CancelPeek,
    ComputeCommand,
    CreateDataflow,
    CreateInstance,
    Hello,
    InitializationComplete,
    Peek,
    Schedule,
    UpdateConfiguration,
)
from shardline.app.protocol.history import (
    GONE_MAX,
    ComputeHistory,
    StorageHistory,
    reduce_compute,
    reduce_storage,
)
from shardline.app.protocol.storage import RunIngestion, RunSink, StorageCommand
from shardline.datasource.errors import InvalidUsage
from support.fakes.replicas import (
    ComputeReplica,
    StorageReplica,
    compute_commands,
    dataflow,
    sink,
    source,
    storage_commands,
    thorough,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def cuts(most: int = 3) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 14), max_size=most).map(sorted)


def in_pieces(
    commands: list[ComputeCommand] | list[StorageCommand], at: list[int]
) -> list[list[ComputeCommand | StorageCommand]]:
    bounds = [0, *(min(cut, len(commands)) for cut in at), len(commands)]
    return [list(commands[a:b]) for a, b in pairwise(bounds)]


# --- compute -----------------------------------------------------------------------------------


@given(compute_commands(("a", "b", "d")), cuts())
@thorough
def test_reducing_compute_changes_nothing(commands: list[ComputeCommand], at: list[int]) -> None:
    """A replica that is told a history reduced here and there comes to what the whole comes to."""
    said: list[ComputeCommand] = []
    for piece in in_pieces(commands, at):
        said = reduce_compute([*said, *piece])  # type: ignore[list-item]
    told, whole = ComputeReplica().do(said), ComputeReplica().do(commands)
    assert told.outcome() == whole.outcome()
    assert told.answers() == whole.answers()


@given(compute_commands(("a", "b", "d")))
@thorough
def test_reduced_compute_is_shortest(commands: list[ComputeCommand]) -> None:
    """Reduced twice is reduced once, and never longer than what came."""
    once = reduce_compute(commands)
    assert reduce_compute(once) == once
    assert len(once) <= len(commands)


def test_a_compute_history_in_its_order() -> None:
    """What is given comes in the order of the documentation, whatever order it came in."""
    a, b = dataflow("a"), dataflow("b", 2)
    peek = Peek(uuid="p", query="select * from a", inputs=("a",), as_of=5, limit_bytes=1)
    history = reduce_compute(
        [
            Hello("first"),
            AllowWrites(),
            CreateInstance({"k": "v"}),
            CreateDataflow(dataflow=a, as_of=3),
            UpdateConfiguration({"x": "1"}),
            Schedule("a"),
            CreateDataflow(dataflow=dataflow("gone"), as_of=1),
            peek,
            AllowCompaction("a", 9),
            CreateDataflow(dataflow=b, as_of=2),
            AllowCompaction("b", 4),
            UpdateConfiguration({"y": "2", "x": "3"}),
            AllowCompaction("gone", None),
            InitializationComplete(),
        ]
    )
    assert history == [
        Hello("first"),
        CreateInstance({"k": "v"}),
        UpdateConfiguration({"x": "3", "y": "2"}),
        CreateDataflow(dataflow=a, as_of=9),
        CreateDataflow(dataflow=b, as_of=4),
        Schedule("a"),
        peek,
        InitializationComplete(),
        AllowWrites(),
    ]
    assert peek not in reduce_compute([*history, CancelPeek("p")])


def test_a_drop_cancels_the_peeks_that_read_what_is_dropped() -> None:
    """A peek never outlives what it reads, so that it cannot read another thing of that name."""
    peek = Peek(uuid="p", query="select", inputs=("a", "src"), as_of=5, limit_bytes=1)
    said = (CreateDataflow(dataflow=dataflow("a"), as_of=3), peek, AllowCompaction("a", None))
    assert reduce_compute(said) == []


def test_other_settings_of_the_whole_are_refused() -> None:
    """What cannot be changed while objects run is not changed by saying it differently."""
    history = ComputeHistory([CreateInstance({"k": "v", "same": "1"})])
    with pytest.raises(InvalidUsage, match=r"\[INCOMPATIBLE_INSTANCE\].* k would change"):
        history.append(CreateInstance({"k": "w", "same": "1"}))
    assert history.commands() == [CreateInstance({"k": "v", "same": "1"})]


# --- storage -----------------------------------------------------------------------------------


@given(storage_commands(("a", "b", "d")), cuts())
@thorough
def test_reducing_storage_changes_nothing(commands: list[StorageCommand], at: list[int]) -> None:
    """A replica that is told a history reduced here and there comes to what the whole comes to."""
    said: list[StorageCommand] = []
    for piece in in_pieces(commands, at):
        said = reduce_storage([*said, *piece])  # type: ignore[list-item]
    assert StorageReplica().do(said).outcome() == StorageReplica().do(commands).outcome()


@given(storage_commands(("a", "b", "d")))
@thorough
def test_reduced_storage_is_shortest(commands: list[StorageCommand]) -> None:
    """Reduced twice is reduced once, and never longer than what came."""
    once = reduce_storage(commands)
    assert reduce_storage(once) == once
    assert len(once) <= len(commands)


def test_a_storage_history_in_its_order() -> None:
    """The newest definition stays, with the frontier of its name; a sink keeps it as its as_of."""
    history = reduce_storage(
        [
            Hello("n"),
            RunSink(sink=sink("out"), as_of=3),
            RunIngestion(source("in")),
            AllowCompaction("in", 7),
            AllowCompaction("out", 8),
            RunIngestion(source("in", 1)),
            RunIngestion(source("gone")),
            AllowCompaction("gone", None),
            InitializationComplete(),
        ]
    )
    assert history == [
        Hello("n"),
        RunIngestion(source("in", 1)),
        RunSink(sink=sink("out"), as_of=8),
        AllowCompaction("in", 7),
        InitializationComplete(),
    ]


# --- what never was there ----------------------------------------------------------------------

APPENDS: list[tuple[Callable[[], ComputeHistory | StorageHistory], ComputeCommand]] = [
    (lambda: ComputeHistory([CreateDataflow(dataflow=dataflow("view"), as_of=0)]), Schedule("vew")),
    (
        lambda: ComputeHistory([CreateDataflow(dataflow=dataflow("view"), as_of=0)]),
        AllowCompaction("vew", 3),
    ),
    (lambda: StorageHistory([RunIngestion(source("view"))]), AllowCompaction("vew", None)),
]


@pytest.mark.parametrize(("make", "command"), APPENDS)
def test_regression_compaction_of_the_unknown_is_an_error(
    make: Callable[[], ComputeHistory | StorageHistory], command: ComputeCommand
) -> None:
    """A name that never was there is a mistake, and is told with the nearest that is."""
    history = make()
    before = history.commands()
    with pytest.raises(InvalidUsage, match=r"\[UNKNOWN_OBJECT\].*'vew'.*did you mean 'view'"):
        history.append(command)  # type: ignore[arg-type]
    assert history.commands() == before


def test_regression_compaction_of_what_was_dropped_does_nothing() -> None:
    """Commands about what was dropped, here or by the reconciliation before, may still come."""
    compute = ComputeHistory(gone=("reconciled",))
    compute.append(CreateDataflow(dataflow=dataflow("a"), as_of=0))
    compute.append(AllowCompaction("a", None))
    storage = StorageHistory(gone=("reconciled",))
    storage.append(RunIngestion(source("a")))
    storage.append(AllowCompaction("a", None))
    for name in ("a", "reconciled"):
        for frontier in (5, None):
            compute.append(AllowCompaction(name, frontier))
            storage.append(AllowCompaction(name, frontier))
    assert compute.commands() == []
    assert storage.commands() == []


def test_a_history_remembers_only_so_many_names() -> None:
    """Subscriptions without end leave no trace without end."""
    history = ComputeHistory()
    for n in range(GONE_MAX + 1):
        history.append(CreateDataflow(dataflow=dataflow(f"t{n}", 3), as_of=0))
        history.append(AllowCompaction(f"t{n}", None))
    history.append(AllowCompaction("t1", None))
    with pytest.raises(InvalidUsage, match="t0"):
        history.append(AllowCompaction("t0", None))
