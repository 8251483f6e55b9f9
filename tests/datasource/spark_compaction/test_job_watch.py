"""The claim of a merge on Spark: it lives while the work goes on, as far as can be seen."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from shardline.datasource.client import ShardClient
from shardline.datasource.maintenance.compaction_claim import CLAIM_LEASE_MS, MergeClaim, Superseded
from shardline.datasource.shard.commands.claims import live_claims
from shardline.datasource.spark_compaction.driver import plan_tasks
from shardline.datasource.spark_compaction.job_watch import JobWatch, TaskCounts
from support.models.merging import SHARD, filled, sizes
from support.models.shards import SETTINGS, World

MINUTE_MS = 60_000
BATCHES = 4


@dataclass
class Job:
    """A job that does nothing by itself, and the watch over it."""

    world: World
    largest_bytes: int = 0
    done: int = 0
    active: int = 1
    is_cancelled: bool = False
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.client = filled(
            self.world.client(replace(SETTINGS, inline_part_bytes=0, compact_inline_bytes=0)),
            BATCHES,
        )
        machine = self.client.machine(SHARD)
        self.claim = MergeClaim.on(machine, machine.state().trace.batches, "a job")
        self.watch = JobWatch(
            self.claim,
            self.world.clock,
            count=10,
            largest_bytes=self.largest_bytes,
            where="orders",
            counts=lambda: TaskCounts(self.done, self.active),
            cancel=self.cancel,
            report=self.said.append,
        )

    def cancel(self) -> None:
        self.is_cancelled = True

    def run(self, minutes: int) -> None:
        """Let time pass, with a look at the end of each minute."""
        for _ in range(minutes):
            self.world.clock.advance(MINUTE_MS)
            self.watch.look()

    @property
    def claims(self) -> int:
        """How many claims others see."""
        state = self.world.client().state(SHARD)
        return len(live_claims(state, self.world.clock.now_ms()))


@pytest.fixture
def job(world: World) -> Job:
    return Job(world)


def other(world: World) -> ShardClient:
    return world.client(replace(SETTINGS, compact_inline_bytes=0))


def test_a_job_that_goes_on_keeps_its_claim(world: World, job: Job) -> None:
    """Nobody else makes its merge, however long it takes; it says how far it is."""
    with job.claim, job.watch.running():
        for number in range(1, 8):
            job.run(25)
            assert (job.claims, other(world).compact(SHARD, force=True)) == (1, 0)
            job.done = number
    assert job.said == [f"orders: {number} of 10 tasks are done" for number in range(1, 7)]
    assert not job.is_cancelled
    assert job.claims == 0


def test_a_job_in_which_no_task_finishes_loses_its_claim(world: World, job: Job) -> None:
    """It says so once; others may merge, and it is cancelled as soon as they have."""
    with job.claim, job.watch.running():
        job.run(29)
        assert (job.claims, job.said) == (1, [])
        job.run(1 + CLAIM_LEASE_MS // MINUTE_MS)
        [said] = job.said
        assert "no task has finished for 30 minutes" in said
        assert job.claims == 0
        job.run(60)
        assert (job.is_cancelled, job.said) == (False, [said]), "it may come to itself"
        assert other(world).compact(SHARD, force=True) == 1
        job.run(2)
        assert job.watch.superseded.is_set()
        assert job.is_cancelled
    assert sizes(job.client) == [2 * BATCHES]


def test_a_job_of_a_large_task_keeps_its_claim_for_longer(world: World) -> None:
    """A range that cannot be cut takes hours, of which nothing can be seen; but not days."""
    job = Job(world, largest_bytes=100 << 30)
    with job.claim, job.watch.running():
        job.run(60)
        assert (job.claims, job.said) == (1, [])
        job.run(24 * 60)
        [said] = job.said
        assert "no task has finished" in said
        assert job.claims == 0


def test_a_job_that_no_executor_runs_keeps_nothing_for_its_large_task(world: World) -> None:
    """Nothing of it is under way, however long it would take."""
    job = Job(world, largest_bytes=100 << 30, active=0)
    with job.claim, job.watch.running():
        job.run(45)
        assert job.claims == 0


def test_a_task_tells_how_much_it_may_read(world: World) -> None:
    """With all that it may have to read, of each source."""
    client = filled(world.client(replace(SETTINGS, inline_part_bytes=0)), 12)
    state = client.state(SHARD)
    [task] = plan_tasks(client.machine(SHARD), {}, state, state.trace.batches, 1 << 30)
    encoded = [part.size_bytes for batch in state.trace.batches for part in batch.parts]
    assert task.size_bytes == sum(encoded)


def test_a_job_that_comes_to_itself_takes_its_claim_again(job: Job) -> None:
    """Its executors are there at last, and nobody has come in between."""
    with job.claim, job.watch.running():
        job.run(60)
        assert job.claims == 0
        job.done = 1
        job.run(3)
        assert job.claims == 1
        job.run(36)
        assert job.claims == 0
    assert [said.split(": ")[1][:7] for said in job.said] == ["no task", "1 of 10", "no task"]


def test_a_job_that_hangs_is_cancelled_when_others_begin(world: World, job: Job) -> None:
    """Not only when they are done: two would make the same."""
    with job.claim, job.watch.running():
        job.run(60)
        machine = other(world).machine(SHARD)
        with MergeClaim.on(machine, machine.state().trace.batches, "another") as theirs:
            job.run(2)
            assert job.is_cancelled
            assert theirs.held


def test_spark_that_does_not_answer_does_not_end_the_renewals_at_once(job: Job) -> None:
    """Its status of a job that has just ended is one such case."""

    def fails() -> TaskCounts:
        raise RuntimeError

    job.watch.counts = fails
    with job.claim, job.watch.running():
        for _ in range(20):
            with pytest.raises(RuntimeError):
                job.run(1)
        assert job.claims == 1


def test_planning_is_work_as_well(world: World) -> None:
    """Each part and each range looked at shows that it goes on; it ends when the claim is lost."""
    client = filled(world.client(replace(SETTINGS, inline_part_bytes=0)), 12)
    state = client.state(SHARD)
    parts = [part for batch in state.trace.batches for part in batch.parts]
    looked: list[None] = []
    machine = client.machine(SHARD)
    plan = partial(plan_tasks, machine, {}, state, state.trace.batches, 100)
    tasks = plan(progress=lambda: looked.append(None))
    assert len(tasks) > 1
    assert len(looked) == len(parts) + len(tasks)

    def lost() -> None:
        raise Superseded

    with pytest.raises(Superseded):
        plan(progress=lost)
