"""Interrupts: whatever raises in a thread that commits for others, the others hear the truth.

A leader commits the commands of several threads by one record. An interrupt (Ctrl-C, a signal
handler that raises, an exception set by another thread) can reach it between any two instructions.
It is injected here after each instruction at which the interpreter looks for one.
"""

from __future__ import annotations

import dis
import linecache
import sys
import threading
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

import pytest
from typing_extensions import override

from shardline.datasource.errors import Indeterminate
from shardline.datasource.shard import machine as machine_module
from shardline.datasource.shard.commands.readers import register_leased
from shardline.datasource.stores.objects import CREATED
from support.models.shards import SETTINGS, Crash, World, rows, schema_of, table

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from shardline.datasource.client import ShardClient
    from shardline.datasource.shard.group_commit import Command
    from shardline.datasource.shard.machine import Machine

SHARD: Final = "orders"
JOIN_S: Final = 30

_LOOKS: Final = ("CALL", "RESUME", "JUMP_BACKWARD")
"""Instructions at whose end the interpreter looks for an interrupt."""


class InterruptError(BaseException):
    """Came from outside."""


@cache
def _looking(code: CodeType) -> frozenset[int]:
    """Offsets of the instructions of `code` where an interrupt can be raised in a test.

    It belongs to the instruction before, so both must have the same handler.
    """
    # Missing in the annotations of the library.
    spans = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    found = set()
    previous = None
    for instruction in dis.get_instructions(code):
        if previous is not None and previous.opname.startswith(_LOOKS):
            handlers = [
                next((span.target for span in spans if span.start <= one.offset < span.end), None)
                for one in (previous, instruction)
            ]
            if handlers[0] == handlers[1]:
                found.add(instruction.offset)
        previous = instruction
    return frozenset(found)


@dataclass
class Injection:
    """Raises in this thread, in the module of the machine, at the `at`-th chance; None for never.

    Attributes:
        chances: How many there were.
        where: Function and line of the one that was used, after the function that called it.
    """

    at: int | None
    chances: int = 0
    where: str = ""

    def run(self, work: Callable[[], Any]) -> Any:
        """`work()`, with the interrupt in it."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            return work()
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        del event, arg
        if frame.f_code.co_filename != machine_module.__file__:
            return None
        frame.f_trace_opcodes = True
        return self._step

    def _step(self, frame: FrameType, event: str, arg: object) -> Any:
        del arg
        if event == "opcode" and frame.f_lasti in _looking(frame.f_code):
            self.chances += 1
            if self.chances - 1 == self.at:
                outer = frame.f_back
                above = "" if outer is None else f"{outer.f_code.co_name} > "
                line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
                self.where = f"{above}{frame.f_code.co_name}: {line}"
                raise InterruptError(self.where)
        return self._step


class Turns:
    """A lock that other threads than the one that made it get when `open` is set."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.waited = threading.Event()
        self._lock = threading.Lock()
        self._first = threading.get_ident()

    def __enter__(self) -> None:
        if threading.get_ident() != self._first:
            self.waited.set()
            assert self.open.wait(JOIN_S)
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@dataclass
class Told:
    """What a thread was answered."""

    answer: Any = None
    error: BaseException | None = None

    def run(self, work: Callable[[], Any]) -> None:
        """Do `work` and note what comes of it."""
        try:
            self.answer = work()
        except BaseException as error:  # noqa: BLE001 - noted, and compared with the store
            self.error = error


@dataclass
class Scene:
    """A machine whose leader is this thread, and a follower that waits with a command queued."""

    world: World
    machine: Machine
    landed: list[str] = field(default_factory=list)
    follower: Told = field(default_factory=Told)
    turns: Turns = field(default_factory=Turns)

    @classmethod
    def made(cls, rollup_every: int = 128, *, raced: bool = False) -> Scene:
        """One over a shard of its own; what its store creates is noted.

        Args:
            rollup_every: As in the settings.
            raced: Whether another process is faster with the next record.
        """
        world = World()
        store = world.objects()
        client = world.client(replace(SETTINGS, rollup_every=rollup_every), store)
        client.create(SHARD, schema_of())
        machine = client.machine(SHARD)
        machine.state()
        scene = cls(world, machine)
        machine._commit_lock = scene.turns  # type: ignore[assignment]
        create = store.create

        rivals = [world.client()] if raced else []

        def noted(key: str, value: bytes) -> Any:
            if rivals:
                rival = rivals.pop().machine(SHARD)
                other = threading.Thread(target=rival.apply, args=(registering("rival"),))
                other.start()
                other.join(JOIN_S)
            answer = create(key, value)
            if answer is CREATED:
                scene.landed.append(key)
            return answer

        store.create = noted  # type: ignore[method-assign]
        return scene

    def queued(self, work: Callable[[], Any]) -> threading.Thread:
        """A thread that does `work` and waits with it for the one that leads."""
        thread = threading.Thread(target=self.follower.run, args=(work,), daemon=True)
        thread.start()
        assert self.turns.waited.wait(JOIN_S)
        return thread

    def released(self, thread: threading.Thread) -> None:
        """Let `thread` go on, to its end."""
        self.turns.open.set()
        thread.join(JOIN_S)
        assert not thread.is_alive(), "the follower waits for ever"


def registering(reader: str) -> Command[Any]:
    return partial(register_leased, reader=reader, since=None, lease_ms=60_000, purpose="")


def chances(rollup_every: int, *, raced: bool) -> int:
    """How many places there are to interrupt a leader with one follower."""
    scene, injection = Scene.made(rollup_every, raced=raced), Injection(None)
    thread = scene.queued(lambda: scene.machine.apply(registering("follower")))
    injection.run(lambda: scene.machine.apply(registering("leader")))
    scene.released(thread)
    return injection.chances


@pytest.mark.slow
@pytest.mark.parametrize(("rollup_every", "raced"), [(128, False), (1, False), (128, True)])
def test_an_interrupted_leader_leaves_nobody_without_a_true_answer(
    rollup_every: int, *, raced: bool
) -> None:
    """A follower has its own answer, or may not know; nobody is told of what never happened."""
    unknown = 0
    total = chances(rollup_every, raced=raced)
    assert total > 40, total
    for at in range(total):
        scene, injection = Scene.made(rollup_every, raced=raced), Injection(at)
        thread = scene.queued(partial(scene.machine.apply, registering("follower")))
        leader = Told()
        leader.run(partial(injection.run, partial(scene.machine.apply, registering("leader"))))
        landed = len(scene.landed)
        scene.released(thread)
        assert isinstance(leader.error, InterruptError), (at, leader)
        where = (at, injection.where, scene.follower)
        there = scene.world.client().state(SHARD).leased
        if isinstance(scene.follower.error, Indeterminate):
            unknown += 1
            # Where the store is asked, nobody can know what it was about to do, or had answered.
            assert landed or "_compare_and_set" in injection.where, where
        else:
            assert scene.follower.error is None, where
            assert scene.follower.answer is not None, where
            assert scene.follower.answer.seqno <= scene.machine.state().seqno, where
            assert "follower" in there, where
        if not landed:
            assert "leader" not in there, where
        # Whoever comes next finds a machine that works.
        assert scene.machine.apply(registering("next")) is not None, where
        assert scene.machine.state() == scene.world.client().state(SHARD), where
    assert unknown < total / 2, "most of the time the outcome is known"


@pytest.mark.parametrize("at", [0, 1])
def test_an_interrupt_in_the_store_leaves_the_outcome_unknown(at: int) -> None:
    """Before or after the record was created: the follower cannot know, and is told so."""
    scene = Scene.made()
    objects = scene.machine.location.consensus._objects  # type: ignore[attr-defined]
    create = objects.create

    def interrupted(key: str, value: bytes) -> Any:
        objects.create = create
        if at:
            create(key, value)
        raise InterruptError

    thread = scene.queued(lambda: scene.machine.apply(registering("follower")))
    objects.create = interrupted
    with pytest.raises(InterruptError):
        scene.machine.apply(registering("leader"))
    scene.released(thread)
    assert isinstance(scene.follower.error, Indeterminate), scene.follower
    assert ("follower" in scene.world.client().state(SHARD).leased) == bool(at)


@pytest.mark.parametrize("at", [0, 1])
def test_a_writer_whose_leader_was_interrupted_has_appended_once(at: int) -> None:
    """The whole way: an append of a follower is acknowledged, and there exactly once."""
    world = World()
    store = world.objects()
    client: ShardClient = world.client(SETTINGS, store)
    client.create(SHARD, schema_of())
    leader, follower = client.writer(SHARD), client.writer(SHARD)
    scene = Scene(world, client.machine(SHARD))
    scene.machine._commit_lock = scene.turns  # type: ignore[assignment]
    create = store.create

    def interrupted(key: str, value: bytes) -> Any:
        store.create = create  # type: ignore[method-assign]
        if at:
            create(key, value)
        raise Crash

    thread = scene.queued(lambda: follower.append_now(table((2, "follower"))))
    store.create = interrupted  # type: ignore[method-assign]
    with pytest.raises(Crash):
        leader.append_now(table((1, "leader")))
    scene.released(thread)
    assert scene.follower.error is None, scene.follower
    with world.client().reader(SHARD) as reader:
        there = rows(reader.snapshot())
    assert there[2, "follower"] == 1, there
    assert there == rows(table((2, "follower"), *([(1, "leader")] if at else [])))


def test_a_command_whose_caller_has_left_is_not_begun() -> None:
    """Interrupted while it waits: it is not committed along with a later one."""
    scene = Scene.made()

    class Interrupting(Turns):
        @override
        def __enter__(self) -> None:
            raise InterruptError

    scene.machine._commit_lock = Interrupting()  # type: ignore[assignment]
    with pytest.raises(InterruptError):
        scene.machine.apply(registering("left"))
    scene.machine._commit_lock = scene.turns  # type: ignore[assignment]
    scene.machine.apply(registering("next"))
    assert set(scene.world.client().state(SHARD).leased) == {"next"}
