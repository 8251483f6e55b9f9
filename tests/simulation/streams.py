"""Streaming queries: Spark's micro-batch engine over our planner, killed and started again."""

from __future__ import annotations

import copy
import json
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from shardline.datasource.errors import Fenced, InvalidUsage, LeaseExpired, MissingBlob, ShardError
from simulation.actors import Actor
from simulation.scheduler import Violation
from support.fakes.engine import Checkpoint, Killed, Query, options_of
from support.models.shards import Crash

if TYPE_CHECKING:
    from simulation.model import Row
    from simulation.world import Process, World

__all__ = ["Streamer"]

_LIMITS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {},
    {"maxFilesPerTrigger": 1},
    {"maxRowsPerTrigger": 4},
    {"maxBytesPerTrigger": 1500},
)


class Streamer(Actor):
    """A query: what it has written is compared with the model after each micro-batch."""

    kind = "stream"
    actions = (2, 8)

    def __init__(self, world: World, name: str, shard: str) -> None:
        super().__init__(world, name, shard)
        self.checkpoint = Checkpoint()
        limits = _LIMITS[2:] if world.theme == "pieces" else _LIMITS
        given = {"shard": shard, "columns": "id,v", **self.chance.choice(limits)}
        if world.theme == "losses":
            given = {"shard": shard, "columns": "id,v", "onMissingPart": "freeze"}
        self.options = options_of(**given)
        self.restless = 0.3 if world.theme == "pieces" else 0.05
        self.kills = self.chance.choice([0.0, 0.0, 0.02])
        self.kept: Checkpoint | None = None

    @override
    def act(self, process: Process) -> None:
        query: Query | None = self.memory.get("query")
        if query is None:
            if self.checkpoint.commits > 1 and self.chance.random() < 0.1:
                self._roll_back()
            query = Query(process.client, self.checkpoint, self.options, kill=self._dies)
            self.memory["query"] = query
        try:
            moved = query.step()
        except Killed:
            process.crash()
            raise Crash(self.name) from None
        self.kept = None
        self.world.note(f"micro-batches {self.checkpoint.commits}: {self.checkpoint.offsets[-1:]}")
        if moved:
            self.check()
        if self.chance.random() < self.restless:
            query.run.release()
            self.memory.pop("query")

    def _dies(self, step: str, batch: int) -> bool:
        del batch
        if step == "offset log":
            self._check_frozen()
        return not self.world.calm and self.chance.random() < self.kills

    def _check_frozen(self) -> None:
        """What was published just now does not pass a part that its planner cannot read."""
        freezer = self.memory["query"].run._freezer
        offset = json.loads(self.checkpoint.offsets[-1])
        if "snapshot" in offset:
            return  # a piece of it, which says by itself which parts it has
        end = offset["frontier"]
        for part in (p for batch in self.truth.trace.batches for p in batch.parts):
            known = freezer is not None and part.key in freezer._bad
            if known and part.key not in self.world.objects and part.time_bounds is not None:
                start = (
                    json.loads(self.checkpoint.offsets[-2])["frontier"]
                    if self.checkpoint.commits
                    else 0
                )
                if end is None or end > max(part.time_bounds[0], start):
                    raise Violation("freeze", f"{self.name} goes to {end}, past {part.key}")

    def _roll_back(self) -> None:
        """Somebody removes the last micro-batch from the checkpoint by hand."""
        self.kept = copy.deepcopy(self.checkpoint)
        self.world.note("the last micro-batch is rolled back by hand")
        last = self.checkpoint.commits - 1
        del self.checkpoint.offsets[last:]
        self.checkpoint.sink = {n: rows for n, rows in self.checkpoint.sink.items() if n < last}
        self.checkpoint.commits = last

    def check(self) -> None:
        """What was written is the contents at the start and every change since, by time."""
        end = json.loads(self.checkpoint.offsets[-1])
        if "snapshot" in end:
            return  # some pieces of it are still to come
        model = self.seen.models[end["shard"] if "shard" in end else end["shards"][0]]
        as_of, upper = end["as_of"], end["frontier"]
        wanted: Counter[tuple[Row, int]] = Counter()
        for row, count in model.contents(as_of).items():
            wanted[row, as_of] += count
        wanted.update(model.changes(as_of + 1, upper))
        found: Counter[tuple[Row, int]] = Counter()
        for rows in self.checkpoint.sink.values():
            for key, value, time, diff in rows:
                found[(key, value), time] += diff
        found = Counter({key: count for key, count in found.items() if count})
        if found != wanted:
            keys = [key for key in found.keys() | wanted.keys() if found[key] != wanted[key]]
            some = [f"{key}: {found[key]}, not {wanted[key]}" for key in sorted(keys, key=repr)[:4]]
            raise Violation("stream", f"{self.name} up to {upper}: {'; '.join(some)}")

    @override
    def close(self, process: Process) -> None:
        query = self.memory.pop("query", None)
        if query is not None:
            query.run.release()

    @override
    def refused(self, error: ShardError) -> None:
        query = self.memory.pop("query", None)
        if query is not None:
            for each in query.run._inputs._inputs:
                each.holds._drop_lease()
        if self.was_dropped and isinstance(error, InvalidUsage | LeaseExpired | MissingBlob):
            self.left = 0
            return
        if self.kept is not None and isinstance(error, InvalidUsage | LeaseExpired):
            # What was rolled back is not readable any more, and the query says so.
            if error.code not in {"HISTORY_GONE", "HOLD_EXPIRED"}:
                raise Violation("refused", f"{self.name} was told {error}")
            self.checkpoint, self.kept = self.kept, None
            return
        if isinstance(error, LeaseExpired | MissingBlob) and error.code in {
            "LEASE_EXPIRED",
            "LEASE_LOST",
        }:
            return
        if isinstance(error, MissingBlob) and self.world.theme == "losses":
            return  # taken away between the look and the fetch
        if isinstance(error, Fenced):
            raise Violation("refused", f"{self.name} has no other run, and was told {error}")
        super().refused(error)

    @override
    def finish(self, process: Process) -> None:
        """The query reads all there is."""
        self.memory = {}
        if self.was_dropped:
            return
        self.options = options_of(shard=self.shard, columns="id,v")
        for _ in range(50):
            before = list(self.checkpoint.offsets)
            read = self.attempt(process) and self.checkpoint.commits == len(before)
            if read and before == self.checkpoint.offsets:
                break
        else:
            raise Violation("progress", f"{self.name} does not come to the end of the shard")
        self.close(process)
