"""Readers: snapshots, listeners, holds on history; all see what the model says, or an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from shardline.datasource.errors import Fenced, InvalidUsage, LeaseExpired, MissingBlob, ShardError
from shardline.datasource.frontier import Frontier
from shardline.datasource.shard.state import is_tombstone
from simulation.actors import Actor
from simulation.rows import changes_of, rows_of
from simulation.scheduler import Violation

if TYPE_CHECKING:
    from shardline.datasource.read import ReadHandle
    from simulation.world import Process

__all__ = ["Holder", "Listener", "SnapshotReader"]


class Reader(Actor):
    """Reads under a lease, which may be over when its process stood still."""

    @override
    def refused(self, error: ShardError) -> None:
        self.memory.pop("model", None)
        reader: ReadHandle | None = self.memory.pop("reader", None)
        lost = reader is None or reader.lease.reader not in self.truth.leased
        if reader is not None:
            reader.close()
        if isinstance(error, LeaseExpired | MissingBlob) and lost:
            return
        if isinstance(error, InvalidUsage) and error.code == "HISTORY_GONE" and lost:
            return
        super().refused(error)

    @override
    def close(self, process: Process) -> None:
        self.memory.pop("model", None)
        reader: ReadHandle | None = self.memory.pop("reader", None)
        if reader is not None:
            reader.close()


class SnapshotReader(Reader):
    """Opens the shard anew each time and reads it at some time."""

    kind = "snapshot"

    @override
    def act(self, process: Process) -> None:
        if self.chance.random() < 0.3:
            process.forget_client()
        state = self.fresh(process)
        if state.upper == Frontier(0):
            return
        reader = process.client.reader(self.shard, lease_ms=process.client.settings.lease_ms)
        self.memory["reader"] = reader
        state = self.fresh(process)
        first = reader.lease.since.time
        last = (state.upper.time or 1) - 1
        if first is None or first > last:
            last = first or 0
        as_of = self.chance.choice([last, self.chance.randint(first or 0, last)])
        found = rows_of(reader.snapshot(as_of, timeout_ms=500))
        model = self.model_of(reader)
        if model is not None:
            self.check_rows(found, model.contents(as_of), f"at {as_of}")
        reader.close()
        self.memory.pop("reader")

    @override
    def finish(self, process: Process) -> None:
        """Everything can be read when nothing fails."""
        self.memory = {}
        if not is_tombstone(self.truth) and not (self.attempt(process) or self.attempt(process)):
            raise Violation("progress", f"{self.name} cannot read though nothing fails")


class Listener(Reader):
    """Reads the contents once, and every change after them."""

    kind = "listen"

    @override
    def act(self, process: Process) -> None:
        reader: ReadHandle | None = self.memory.get("reader")
        if reader is None or "model" not in self.memory:
            self.close(process)
            if self.fresh(process).upper == Frontier(0):
                return
            reader = process.client.reader(self.shard)
            self.memory["reader"] = reader
            state = self.fresh(process)
            as_of = max((state.upper.time or 1) - 1, reader.lease.since.time or 0)
            found = rows_of(reader.snapshot(as_of, timeout_ms=500))
            model = self.model_of(reader)
            if model is None:
                return
            self.check_rows(found, model.contents(as_of), f"at {as_of}")
            self.memory |= {"model": model, "frontier": as_of + 1}
            return
        model, frontier = self.memory["model"], self.memory["frontier"]
        steps = self.chance.randint(1, 3)
        for step in reader.listen(frontier - 1, timeout_ms=300):
            if step.lower != frontier:
                raise Violation("listen", f"{self.name}: {step.lower} after {frontier}")
            found_changes = changes_of(step.updates)
            wanted = model.changes(step.lower, step.upper.time)
            if found_changes != wanted:
                raise Violation(
                    "listen",
                    f"{self.name}: [{step.lower}, {step.upper}): {found_changes}, not {wanted}",
                )
            if step.upper.time is None:
                return
            frontier = self.memory["frontier"] = step.upper.time
            steps -= 1
            if not steps:
                break
        if self.chance.random() < 0.15:
            self.close(process)


class Holder(Actor):
    """Owns a since hold, with others of its name now and then, and reads what it protects."""

    kind = "hold"

    @override
    def act(self, process: Process) -> None:
        hold = self.memory.get("hold")
        if hold is None or self.chance.random() < 0.2:
            hold = process.client.hold(self.shard, f"hold of {self.shard}")
            self.memory["hold"] = hold
        state = self.fresh(process)
        upper = state.upper.time
        if upper and hold.since.time is not None and self.chance.random() < 0.6:
            to = Frontier(self.chance.randint(0, upper - 1))
            entry = self.truth.critical.get(hold.name)
            fenced = entry is not None and entry.epoch != hold.epoch and to > hold.since
            hold.downgrade(to)
            if fenced:
                raise Violation("fenced", f"{self.name} moved a hold that another one owns")
        as_of = hold.since.time
        if as_of is None or not state.upper.is_beyond(as_of):
            return
        self.memory["as_of"] = as_of
        with process.client.reader(self.shard, since=as_of) as reader:
            found = rows_of(reader.snapshot(as_of, timeout_ms=500))
            model = self.model_of(reader)
        if model is not None:
            self.check_rows(found, model.contents(as_of), f"held at {as_of}")

    @override
    def refused(self, error: ShardError) -> None:
        self.memory.pop("hold", None)
        entry = self.truth.critical.get(f"hold of {self.shard}")
        as_of = self.memory.pop("as_of", 0)
        if isinstance(error, Fenced | LeaseExpired):
            return
        moved = entry is None or Frontier(entry.since) > Frontier(as_of)
        if isinstance(error, InvalidUsage) and error.code == "HISTORY_GONE" and moved:
            return
        super().refused(error)
