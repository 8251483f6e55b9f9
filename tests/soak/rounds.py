"""The soak: starts everything, kills at random, and compares with what is known.

Each round waits a random while, kills one writer and, as chance has it, one process of another
kind, starts again what does not come back by itself, and waits until every writer, the keeper and
both queries have made progress. Every few rounds it lets the writers come to a known end, waits for
the copies, and compares all shards row by row with the oracle: what the writers' acknowledgements
say, which nobody but this process has kept.

Invariants:
    An append that was acknowledged counts, whatever happened later; one that was not is repeated
    under its number before anything is compared.
    Every wait has a limit: a process that does not come back is a failure, not a longer soak.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from typing_extensions import override

from shardline.datasource.clock import Clock, SystemClock, SystemIds
from shardline.datasource.errors import ShardError
from shardline.datasource.stores.objects import Objects
from shardline.datasource.stores.open import open_location, open_objects
from shardline.datasource.stores.retry import Retrying
from soak import keeper, session, writer
from soak.child import Child, Place, Task, said
from soak.known import (
    COPIES,
    KEY,
    SHARDS,
    SOURCE,
    Contents,
    contents_of,
    difference,
    known_schema,
)
from soak.measured import Sample, broken, look, memory_bytes
from soak.plan import FailedError, Plan, Result
from soak.victims import Kind, bury, family, kill, members

__all__ = ["soak"]


_POLL_MS: Final = 250.0
_LAST_ROUNDS_MAX: Final = 8
"""Rounds of collection on the next day, at most."""

_GRACE_MS: Final = 5_000
_DAY_MS: Final = 26 * 3600 * 1000


class _NextDay(SystemClock):
    """The clock of somebody who comes when leases are over and nothing staged can be committed."""

    @override
    def now_ms(self) -> int:
        return super().now_ms() + _DAY_MS


def soak(plan: Plan, tell: Callable[[Sample, Result], None]) -> Result:
    """Run to the end of the plan.

    Args:
        tell: Called after each comparison.

    Raises:
        FailedError: A shard is not what the oracle says, or something does not come back.
    """
    return _Soak(plan, tell).run()


@dataclass(slots=True)
class _Writer:
    """A writer process, over its deaths.

    Attributes:
        name: Of the durable writer.
        known: The last append that was acknowledged.
        child: The process; None between two.
    """

    name: str
    known: int = 0
    child: Child | None = None


class _Soak:
    def __init__(self, plan: Plan, tell: Callable[[Sample, Result], None]) -> None:
        self._plan = plan
        self._tell = tell
        self._clock: Clock = SystemClock()
        self._chance = random.Random(plan.seed)
        self._result = Result()
        self._began_ms = self._clock.elapsed_ms()
        self._place = Place(
            plan.url, plan.storage, str(plan.folder), plan.lease_ms, plan.rollup_every
        )
        open_location(
            plan.url,
            plan.storage,
            clock=self._clock,
            ids=SystemIds(),
            if_missing="create",
            grace_ms=_GRACE_MS,
        )
        self._client = self._place.client()
        # The soak itself looks at what is stored, and is not misled.
        self._unreliable = msgspec.structs.replace(self._place, faults=plan.faults)
        for name in SHARDS:
            self._client.create(name, known_schema(), key=KEY)
        self._writers = [_Writer(f"w{n}") for n in range(plan.writers)]
        self._keeper: Child | None = None
        self._session: Child | None = None
        self._sessions = 0
        self._family: set[int] = set()
        self._remains: list[Path] = []
        self._kept = 0

    def run(self) -> Result:
        """All rounds, and an end in which nothing is left running."""
        try:
            self._start_all()
            self._wait_for_progress()
            self._compare()
            while self._result.rounds < self._plan.rounds and not self._is_late():
                self._round()
            if self._result.rounds % self._plan.compare_every:
                self._compare()
            self._end_all()
            self._come_back_next_day()
        except ShardError as error:
            raise self._failed(f"the soak itself met {error}") from error
        finally:
            self._end_all()
        return self._result

    def _is_late(self) -> bool:
        minutes = self._plan.minutes
        return minutes is not None and self._elapsed_ms() > minutes * 60_000

    def _elapsed_ms(self) -> float:
        return self._clock.elapsed_ms() - self._began_ms

    # ------------------------------------------------------------------------------------ rounds

    def _round(self) -> None:
        self._revive()
        self._pause(self._chance.random() * 1500)
        self._kill("writer")
        kinds = [kind for kind, _ in self._plan.odds]
        weights = [weight for _, weight in self._plan.odds]
        if self._chance.random() < sum(weights):
            self._kill(self._chance.choices(kinds, weights)[0])
        self._wait_for_progress()
        self._result.rounds += 1
        if self._result.rounds % self._plan.compare_every == 0:
            self._compare()

    def _kill(self, kind: Kind) -> None:
        if kind == "writer":
            one = self._chance.choice(self._writers)
            assert one.child is not None, one
            one.child.kill()
            self._result.kills[kind] += 1
            return
        child = self._keeper if kind == "keeper" else self._session
        if child is None or not child.lives:
            return
        self._see_family()
        pids = (
            [child.process.pid]
            if kind in {"keeper", "session"}
            else members(kind, child.process.pid)
        )
        if pids:
            self._result.kills[kind] += kill([self._chance.choice(pids)])

    def _wait_for_progress(self) -> None:
        """Until everybody has done something that began after this call."""
        written = {one.name: one.known for one in self._writers}
        kept, copied = self._kept, self._copied()
        gives_up_at = self._clock.elapsed_ms() + self._plan.patience_ms
        while True:
            self._revive()
            waiting = [one.name for one in self._writers if one.known <= written[one.name]]
            waiting += ["keeper"] * (self._kept <= kept + 1)
            if self._plan.masters:
                now = self._copied()
                waiting += [name for name in COPIES if now[name] <= copied[name]]
            if not waiting:
                return
            if self._clock.elapsed_ms() > gives_up_at:
                seconds = self._plan.patience_ms / 1000
                raise self._failed(f"no progress of {', '.join(waiting)} in {seconds:.0f} s")
            self._pause(_POLL_MS)

    def _copied(self) -> dict[str, int]:
        """The last micro-batch of each query that is in its copy."""
        writers = {name: self._client.state(name).writers.values() for name in COPIES}
        return {
            name: max((one.last for one in found if one.lease_ms is None), default=-1)
            for name, found in writers.items()
        }

    # --------------------------------------------------------------------------------- processes

    def _start_all(self) -> None:
        self._revive()

    def _start(self, module: object, task: Task) -> Child:
        return Child.start(module, task, os.environ)  # type: ignore[arg-type]

    def _revive(self) -> None:
        """Hear what was said, and start again what is gone."""
        for one in self._writers:
            self._hear_writer(one)
            if one.child is None or not one.child.lives:
                self._expect_killed(one.name, one.child)
                task = Task(
                    self._unreliable, one.name, first=one.known + 1, pause_ms=self._plan.pause_ms
                )
                one.child = self._start(writer, task)
        self._hear_keeper()
        if self._keeper is None or not self._keeper.lives:
            self._expect_killed("keeper", self._keeper)
            self._keeper = self._start(keeper, Task(self._unreliable))
        if self._plan.masters:
            self._revive_session(self._plan.masters)

    def _revive_session(self, masters: Sequence[str]) -> None:
        self._hear_session()
        if self._session is not None and self._session.lives:
            self._see_family()
            return
        if self._session is not None:
            self._session.wait()
            self._result.orphans += bury(self._family, self._clock)
            self._family = set()
        master = masters[self._sessions % len(masters)]
        self._sessions += 1
        self._session = self._start(session, Task(self._place, master=master))

    def _see_family(self) -> None:
        if self._session is not None and self._session.lives:
            self._family |= family(self._session.process.pid)

    def _expect_killed(self, name: str, child: Child | None) -> None:
        if child is not None and (status := child.wait()) >= 0:
            raise self._failed(f"{name} ended by itself with status {status}; see its log")

    def _hear_writer(self, one: _Writer) -> None:
        if one.child is None:
            return
        for event in said(one.child):
            if isinstance(event, int):
                one.known = event
            else:
                self._result.troubles[f"writer {event['trouble']}"] += 1

    def _hear_keeper(self) -> None:
        if self._keeper is None:
            return
        for event in said(self._keeper):
            if event == "round":
                self._kept += 1
            else:
                self._result.troubles[f"keeper {event['trouble']}"] += 1

    def _hear_session(self) -> None:
        if self._session is None:
            return
        for event in said(self._session):
            if "ready" in event:
                # Where executors of a local cluster print to: beside Spark's own jars.
                self._remains.append(Path(event["home"], "work", event["ready"]))
            elif "restarts" in event:
                self._result.restarts += 1
                with (self._plan.folder / "restarts.log").open("a", encoding="utf-8") as log:
                    log.write(f"{self._result.rounds} {event['restarts']} {event['after']!r}\n")

    def _end_all(self) -> None:
        self._see_family()
        for child in [*(one.child for one in self._writers), self._keeper, self._session]:
            if child is not None and child.lives:
                child.kill()
        bury(self._family, self._clock)
        for folder in self._remains:
            shutil.rmtree(folder, ignore_errors=True)

    def _come_back_next_day(self) -> None:
        """Merge, collect and sweep everything: what is stored then is what is referred to."""
        client = self._place.client(_NextDay())
        for name in SHARDS:
            client.compact(name, force=True)
        # A log is truncated one grace after its floor was published, by whoever saw that: when that
        # is done depends on how the rounds meet the last records of those that were killed.
        broken: list[str] = []
        for _ in range(_LAST_ROUNDS_MAX):
            for name in SHARDS:
                client.collect_garbage(name)
                self._result.swept += client.sweep(name).total.count
            self._pause(_GRACE_MS + 500)
            found = look(client, self._objects())
            broken = [
                f"on the next day: shard '{name}' stores {one.stored_bytes} bytes of parts and "
                f"{one.log} records, and refers to {one.live_bytes} bytes"
                for name, one in found.items()
                if one.stored_bytes != one.live_bytes or one.log > 2 * self._plan.rollup_every
            ]
            self._result.left = (
                sum(one.stored_bytes for one in found.values()),
                sum(one.live_bytes for one in found.values()),
            )
            if not broken:
                break
        self._result.broken += broken
        wanted = self._wanted()
        for name in SHARDS if self._plan.masters else (SOURCE,):
            if wrong := difference(self._contents(name), wanted):
                raise self._failed(f"on the next day: shard '{name}': {wrong}")

    # ------------------------------------------------------------------------------- comparisons

    def _compare(self) -> None:
        """Bring the writers to a known end, and compare all shards with what they then hold."""
        for one in self._writers:
            self._settle(one)
        self._result.appended = sum(one.known for one in self._writers)
        wanted = self._wanted()
        if wrong := difference(self._contents(SOURCE), wanted):
            raise self._failed(f"shard '{SOURCE}': {wrong}")
        for name in COPIES if self._plan.masters else ():
            self._compare_copy(name, wanted)
        self._measure()
        for one in self._writers:
            one.child = None

    def _wanted(self) -> Contents:
        """What all shards must hold, by the acknowledgements alone."""
        wanted: Contents = Counter()
        for one in self._writers:
            wanted += contents_of(one.name, one.known)
        return wanted

    def _settle(self, one: _Writer) -> None:
        """Kill a writer, and let another one repeat the append whose fate nobody knows."""
        if one.child is not None and one.child.lives:
            one.child.kill()
            self._result.kills["writer"] += 1
        self._hear_writer(one)
        number = one.known + 1
        one.child = self._start(writer, Task(self._unreliable, one.name, first=number, last=number))
        status = one.child.wait(self._plan.patience_ms / 1000)
        self._hear_writer(one)
        if status or one.known != number:
            raise self._failed(f"{one.name} could not repeat append {number}; see its log")

    def _compare_copy(self, name: str, wanted: Contents) -> None:
        gives_up_at = self._clock.elapsed_ms() + self._plan.patience_ms
        while wrong := difference(self._contents(name), wanted):
            if self._clock.elapsed_ms() > gives_up_at:
                raise self._failed(f"shard '{name}': {wrong}")
            self._revive_session(self._plan.masters)
            self._pause(_POLL_MS)

    def _contents(self, name: str) -> Contents:
        if self._client.state(name).upper.time == 0:
            return Counter()
        with self._client.reader(name, purpose="soak") as reader:
            table = reader.snapshot(timeout_ms=int(self._plan.patience_ms))
        columns = (table.column(i).to_pylist() for i in range(table.num_columns))
        return Counter(zip(*columns, strict=True))

    def _measure(self) -> None:
        plan = self._plan
        sample = Sample(
            round=self._result.rounds,
            elapsed_ms=self._elapsed_ms(),
            appended=self._result.appended,
            shards=look(self._client, self._objects()),
            memory=self._memory(),
        )
        self._result.samples.append(sample)
        self._result.broken += [
            f"after round {self._result.rounds}: {line}"
            for line in broken(
                self._result.samples,
                writers=plan.writers,
                lease_ms=plan.lease_ms,
                rollup_every=plan.rollup_every,
                window_ms=plan.lease_ms + 3 * _GRACE_MS + 30_000,
            )
        ]
        self._tell(sample, self._result)

    def _objects(self) -> Objects:
        plan = self._plan
        ids = SystemIds()
        bare = open_objects(plan.url, plan.storage, clock=self._clock, ids=ids)
        return Retrying(bare, clock=self._clock, ids=ids)

    def _memory(self) -> dict[str, int]:
        found = {"soak": memory_bytes(os.getpid())}
        if self._keeper is not None:
            found["keeper"] = memory_bytes(self._keeper.process.pid)
        if self._session is not None:
            root = self._session.process.pid
            found["session"] = memory_bytes(root)
            for kind in ("jvm", "planner"):
                sizes = [memory_bytes(pid) for pid in members(kind, root)]
                found[kind] = max(sizes, default=0)
        return found

    # ------------------------------------------------------------------------------------ others

    def _pause(self, ms: float) -> None:
        self._clock.wait(threading.Event(), ms)

    def _failed(self, what: str) -> FailedError:
        return FailedError(
            f"{what} (round {self._result.rounds}, seed {self._plan.seed}, kills "
            f"{dict(self._result.kills)}; '{self._plan.folder}' is kept)"
        )
