"""An answer takes one peek from its text to its rows, by the cheapest strategy that is exact.

A Spark job costs tens of milliseconds before it reads a row. Many queries ask for a few rows of one
object, and are answered from memory or from a few parts; all others go to Spark. The contract of a
peek, and the threads that run it, are in `peek`.

    task = PeekTask(peek, came_ms, came_elapsed_ms)
    table = PeekRun(services, task, pool="peek-0").table()

Invariants:
    Leases are taken before any state is looked at, and given up when the table is complete.
    A strategy without Spark is taken only if Spark would certainly give the same rows.
    Spark reads the peek's objects and nothing else, whatever names a query makes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

import pyarrow as pa

from shardline.app.compute.index.index import Index, IndexRegistry
from shardline.app.compute.peek.fast_path import (
    Select,
    lookup_keys,
    read_simple_select,
    spark_schema,
)
from shardline.app.compute.results import too_large
from shardline.app.execution.host import Host
from shardline.app.execution.live_errors import Catalog, find_error_shards, find_live_errors
from shardline.app.execution.shard_follower import ShardFollower
from shardline.app.protocol.compute import Peek, PeekStrategy
from shardline.app.settings.live import (
    LiveSetting,
    LiveSettings,
    parse_positive_count,
    parse_size_bytes,
)
from shardline.app.sql.parsed_relations import refuse_foreign_relations
from shardline.datasource.errors import Determinate, InvalidUsage
from shardline.datasource.frontier import Frontier, meet, with_date
from shardline.datasource.read import not_yet_readable_error
from shardline.datasource.state import ShardState, volume_of
from shardline.datasource.waiting import poll_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "DEFAULTS",
    "PEEK_KNOBS",
    "BindQuery",
    "FindBlockage",
    "OnStrategy",
    "PeekCancelled",
    "PeekRun",
    "PeekServices",
    "PeekSettings",
    "PeekTask",
    "Relations",
]

BindQuery: TypeAlias = Callable[[str, Mapping[str, str]], str]
"""Takes a query and the view for each object or `introspection.<relation>`; returns the query over
the views."""

OnStrategy: TypeAlias = Callable[[str, PeekStrategy], None]
"""Called with the id and strategy of a peek once it is decided; must return at once."""

FindBlockage: TypeAlias = Callable[[str], tuple[str, str] | None]
"""Returns why an object does not move until somebody does something, and what to do; else None."""

_RELATIONS: Final = "introspection."
"""Prefix of inputs that are relations: read at a time of their own, and not at the peek's."""


class Relations(Protocol):
    """The relations of introspection, as tables."""

    def __call__(self, name: str, as_of: int | None, /) -> pa.Table:
        """Read relation `name` as it was at `as_of`, in ms since the epoch; None for now.

        Raises:
            InvalidUsage: There is no such relation, or it is not known what it was then.
        """
        ...


@dataclass(frozen=True, slots=True)
class PeekSettings:
    """Settings of peeks.

    Attributes:
        threads: Peeks that run at once; others wait in order. 4.
        waiting: Most peeks that wait; more are refused. 100.
        settle_ms: Longest wait, from a peek's arrival, until its objects are settled at its time
            and have no errors. 58 s.
        poll_ms: Longest pause between two looks at states while it waits. 50 ms.
        shard_bytes: A simple query is answered from the shard without Spark if at most so many
            encoded bytes must be read. 8 MiB: about as much is decoded while Spark starts a job.
        index_wait_ms: Longest wait for an index that is behind. 200 ms.
    """

    threads: int = 4
    waiting: int = 100
    settle_ms: int = 58_000
    poll_ms: int = 50
    shard_bytes: int = 8 << 20
    index_wait_ms: int = 200


DEFAULTS: Final = PeekSettings()
"""The default settings."""

PEEK_KNOBS: Final[LiveSettings] = {
    "queries_waiting": LiveSetting("waiting", parse_positive_count),
    "direct_read_limit": LiveSetting("shard_bytes", parse_size_bytes),
}
"""Settings that may change while peeks run."""


@dataclass(frozen=True, slots=True)
class PeekServices:
    """The dependencies that all peeks of a runtime share; see `PeekServer`."""

    host: Host
    catalog: Catalog
    relations: Relations
    bind: BindQuery
    indexes: IndexRegistry
    settings: PeekSettings
    decided: OnStrategy
    find_blockage: FindBlockage = lambda _: None


@dataclass(slots=True)
class PeekTask:
    """One peek that waits or runs.

    Attributes:
        peek: The command.
        came_ms: Its arrival, ms since the epoch.
        came_elapsed_ms: Its arrival by the clock's `elapsed_ms`, from which its waits count.
        number: Distinguishes it from another run of the same peek, for a later connection.
        cancelled: Set once the answer is not needed any more.
        strategy: Its strategy; "" while that is not decided.
        error: The error that ended it; None if there was none.
    """

    peek: Peek
    came_ms: int
    came_elapsed_ms: float
    number: int = 0
    cancelled: threading.Event = field(default_factory=threading.Event)
    strategy: PeekStrategy | Literal[""] = ""
    error: BaseException | None = None

    @property
    def group(self) -> str:
        """Name of the group of its Spark jobs, never used by another run."""
        return f"peek-{self.peek.uuid}-{self.number}"


class PeekCancelled(Exception):
    """The peek was cancelled: its answer is not needed any more."""


class PeekRun:
    """One run of one peek, in the thread that calls it."""

    def __init__(self, services: PeekServices, task: PeekTask, *, pool: str) -> None:
        """A run that has read nothing yet.

        Args:
            services: The dependencies that all peeks share.
            task: The peek.
            pool: Scheduler pool of its Spark jobs.
        """
        self._services = services
        self._host = services.host
        self._task = task
        self._peek = task.peek
        self._pool = pool
        self._stack = ExitStack()

    def table(self) -> pa.Table:
        """Compute the rows of the peek.

        Raises:
            PeekCancelled: The peek was cancelled.
            InvalidUsage: An object is not readable at the time, or has errors; the result is too
                large.
            Determinate: An object was not settled in time.
            PySparkException: Spark refuses the query or fails in it.
        """
        with self._stack:
            relations, inputs = self._relations(), self._objects()
            if not inputs:
                return self._check_size(self._by_spark({}, relations))
            # All leases before any state: a part of a state from before its lease may be gone.
            held = {name: self._open_held(name, name) for name in inputs}
            states = self._wait_until_settled(held)
            # After the objects are settled: their errors are written first, so an error shard that
            # is not there by now has no error at this time. Asked before, one could be missed.
            self._check_errors()
            if len(inputs) == 1 and not relations:
                found = self._without_spark(held[inputs[0]], states[inputs[0]])
                if found is not None:
                    return self._check_size(found)
            return self._check_size(self._by_spark(held, relations))

    def _objects(self) -> list[str]:
        return [name for name in self._peek.inputs if not name.startswith(_RELATIONS)]

    def _check_size(self, table: pa.Table) -> pa.Table:
        if table.nbytes > self._peek.limit_bytes:
            raise too_large(self._peek.limit_bytes)
        return table

    # --- when ------------------------------------------------------------------------------------

    def _open_held(self, shard: str, of: str) -> ShardFollower:
        """Open a shard under a lease at the peek's time, until the peek ends."""
        as_of = self._peek.as_of
        try:
            found = ShardFollower.open(
                self._host.client, shard, since=as_of, purpose=f"query {self._peek.uuid}"
            )
        except InvalidUsage as error:
            if error.code != "HISTORY_GONE":
                raise
            since = self._host.client.state(shard).since
            first = "" if since.time is None else with_date(since.time)
            raise InvalidUsage(
                f"'{of}' can no longer be read at {with_date(as_of)}: its since is {first}",
                code="HISTORY_GONE",
                hint=f"ask AS OF {since.time} or later; RETAIN HISTORY keeps more",
            ) from error
        self._stack.callback(found.close)
        return found

    def _wait_until_settled(self, held: Mapping[str, ShardFollower]) -> dict[str, ShardState]:
        """Wait for states of the shards in which all are settled at the peek's time.

        All waits of a peek, that for a thread included, share `settle_ms`: whoever asks waits only
        a little longer, and is to be told the name of what is behind.

        Raises:
            PeekCancelled: It was cancelled meanwhile.
            Determinate: One was not settled in time, or does not move any more; says which.
        """
        as_of, settings = self._peek.as_of, self._services.settings

        def look() -> dict[str, ShardState] | None:
            states = {name: shard.look() for name, shard in held.items()}
            upper = meet(state.upper for state in states.values())
            if upper.is_beyond(as_of):
                return states
            for name, state in states.items():
                if not state.upper.is_beyond(as_of):
                    self._check_moving(name, state)
            return None

        found = poll_until(
            look,
            self._host.clock,
            self._task.cancelled,
            # 0 or less looks once: a peek that had to queue is answered if all are settled by now.
            timeout_ms=self._task.came_elapsed_ms
            + settings.settle_ms
            - self._host.clock.elapsed_ms(),
            poll_ms=settings.poll_ms,
        )
        # Before the timeout is concluded: `poll_until` returns None for either.
        self._check_cancelled()
        if found is None:
            states = [shard.look() for shard in held.values()]
            slowest = min(states, key=lambda state: state.upper)
            raise not_yet_readable_error(slowest, as_of, settings.settle_ms)
        return found

    def _check_moving(self, name: str, state: ShardState) -> None:
        """Refuse to wait for an object that does not move until somebody does something.

        Raises:
            Determinate: Says why it does not.
        """
        found = self._services.find_blockage(name)
        if found is None:
            return
        because, to_do = found
        last = (state.upper.time or 0) - 1
        older = f"AS OF {last} reads what it has" if Frontier(last) >= state.since else ""
        raise Determinate(
            f"'{name}' cannot be read at {self._peek.as_of}: {because}",
            code="OBJECT_BLOCKED",
            hint="; ".join(filter(None, (to_do, older))),
        )

    def _check_cancelled(self) -> None:
        if self._task.cancelled.is_set():
            raise PeekCancelled

    def _check_errors(self) -> None:
        """Refuse the read if an object, or any of its inputs, has live errors.

        Raises:
            InvalidUsage: Names the object, how many there are, and the first one.
        """
        objects = set(self._objects())
        for name in self._objects():
            objects.update(self._services.catalog.inputs_of(name))
        shards = find_error_shards(self._host.client, objects)
        if not shards:
            return
        held = {of: self._open_held(shard, of) for of, shard in shards.items()}
        for of, state in self._wait_until_settled(held).items():
            found = find_live_errors(held[of], of, state, self._peek.as_of)
            if found is not None:
                raise found.error()

    # --- without Spark ---------------------------------------------------------------------------

    def _without_spark(self, shard: ShardFollower, state: ShardState) -> pa.Table | None:
        """The rows of a simple query; None if it must go to Spark."""
        name, schema = self._peek.inputs[0], shard.schema
        zone = self._host.spark.conf.get("spark.sql.session.timeZone") or "UTC"
        select = read_simple_select(self._peek.query, name, schema, zone)
        result_schema = None if select is None else spark_schema(schema)
        if select is None or result_schema is None:
            return None
        found = self._from_index(shard, select)
        if found is None:
            found = self._from_shard(shard, state, select)
        return None if found is None else select.shaped(found, result_schema)

    def _indexes(self, shard: ShardFollower) -> list[Index]:
        """The indexes that have what the peek reads of an object."""
        url = self._host.client.location.url
        # One that has not looked yet still answers: without the new columns after a schema
        # evolution, and of the former object after a drop.
        return [
            index
            for index in self._services.indexes.of(url, shard.name)
            if (index.shard, index.arranged.schema) == (shard.shard, shard.schema)
        ]

    def _from_index(self, shard: ShardFollower, select: Select) -> pa.Table | None:
        found = None
        for index in self._indexes(shard):
            keys = lookup_keys(select, index.key, shard.schema)
            if keys is not None or found is None:
                found = (index, keys)
            if keys is not None:
                break
        if found is None:
            return None
        index, keys = found
        with index.hold(self._peek.as_of):
            if not self._wait_for_index(index):
                return None
            self._set_strategy("index")
            return _indexed(index, keys, select, self._peek.as_of, self._peek.limit_bytes)

    def _wait_for_index(self, index: Index) -> bool:
        """Wait a little; True once the index answers at the peek's time."""
        as_of, settings = self._peek.as_of, self._services.settings
        if as_of < index.arranged.view.since:
            return False
        found = poll_until(
            lambda: True if index.is_readable(as_of) else None,
            self._host.clock,
            self._task.cancelled,
            timeout_ms=settings.index_wait_ms,
            poll_ms=settings.poll_ms,
        )
        self._check_cancelled()
        return found is not None

    def _from_shard(
        self, shard: ShardFollower, state: ShardState, select: Select
    ) -> pa.Table | None:
        plan = shard.plan(state, self._peek.as_of, select.where)
        if volume_of(plan.planned).size_bytes > self._services.settings.shard_bytes:
            return None
        self._set_strategy("shard")
        columns = tuple(dict.fromkeys(select.columns))
        wanted = shard.schema.arrow
        rows = shard.rows(state, plan, columns, select.where)
        schema = pa.schema([wanted.field(name) for name in columns])
        return pa.Table.from_batches(self._bounded(rows, select.limit), schema)

    def _bounded(
        self, batches: Iterable[pa.RecordBatch], limit: int | None
    ) -> Iterator[pa.RecordBatch]:
        """The batches until the query's limit of rows is reached.

        Raises:
            PeekCancelled: The peek was cancelled.
            InvalidUsage: They exceed the peek's limit of bytes.
        """
        rows = size = 0
        for batch in batches:
            self._check_cancelled()
            if limit is not None and rows >= limit:
                return
            rows += batch.num_rows
            size += batch.nbytes
            if size > self._peek.limit_bytes:
                raise too_large(self._peek.limit_bytes)
            yield batch

    # --- with Spark ------------------------------------------------------------------------------

    def _relations(self) -> dict[str, pa.Table]:
        """The relations that the query reads, by their names in it."""
        names = [name for name in self._peek.inputs if name.startswith(_RELATIONS)]
        as_of = self._peek.relations_as_of
        return {
            name: self._services.relations(name.removeprefix(_RELATIONS), as_of) for name in names
        }

    def _by_spark(
        self, held: Mapping[str, ShardFollower], relations: Mapping[str, pa.Table]
    ) -> pa.Table:
        # Both load pyspark.
        from shardline.app.compute.peek.collect import collect, job_group  # noqa: PLC0415
        from shardline.app.sql.outside_calls import refuse_outside_calls  # noqa: PLC0415

        spark, uuid = self._host.spark, self._peek.uuid
        self._set_strategy("standard" if held or relations else "constant")
        views: dict[str, str] = {}
        described = f"query {uuid}: {self._peek.query:.200}"
        with job_group(spark, self._task.group, pool=self._pool, description=described):
            try:
                for name, shard in held.items():
                    views[name] = self._view(self._frame(shard))
                for name, table in relations.items():
                    views[name] = self._view(spark.createDataFrame(table))
                bound = self._services.bind(self._peek.query, views)
                refuse_foreign_relations(_parsed(spark, bound), views.values(), bound)
                frame = spark.sql(bound)
                refuse_outside_calls(frame._jdf.queryExecution().analyzed())  # noqa: SLF001
                self._check_cancelled()
                return collect(frame, self._peek.limit_bytes, self._task.group)
            finally:
                for view in views.values():
                    with suppress(Exception):  # the session may be gone, and the views with it
                        spark.catalog.dropTempView(view)

    def _frame(self, shard: ShardFollower) -> DataFrame:
        """The contents of an object at the peek's time: a frame of an index, or of its shard."""
        from shardline.datasource.frames import snapshot  # noqa: PLC0415 - loads pyspark

        as_of, url, name = self._peek.as_of, self._host.client.location.url, shard.name
        for index in self._indexes(shard):
            with index.hold(as_of) as readable:
                frame = index.frame(as_of) if readable else None
            if frame is not None:
                return frame
        return snapshot(
            self._host.spark,
            location=url,
            shard=name,
            as_of=as_of,
            storage=self._host.storage,
            pads=False,
        )

    def _view(self, frame: DataFrame) -> str:
        name = f"peek_{self._host.ids.token().hex()}"
        # Spark uncaches the plan of a temporary view that is dropped, and would so take an index's
        # cached frame away from all. A filter makes it another plan, and the optimizer removes it.
        frame.where("true").createTempView(name)
        return name

    def _set_strategy(self, strategy: PeekStrategy) -> None:
        self._task.strategy = strategy
        self._services.decided(self._peek.uuid, strategy)
        # After the strategy is set: `Peeks._end` sets the flag and then reads the strategy. One of
        # the two sees the other, so no job starts that nobody will cancel.
        self._check_cancelled()


def _parsed(spark: SparkSession, query: str) -> str:
    """The parsed plan of a query, in Spark's JSON."""
    session: Any = spark._jsparkSession  # noqa: SLF001 - the parser is on that side
    return str(session.sessionState().sqlParser().parsePlan(query).toJSON())


def _indexed(
    index: Index, keys: list[pa.Table] | None, select: Select, as_of: int, bytes_max: int
) -> pa.Table:
    """The rows of an index that pass the query's condition."""
    where = select.where
    if keys is None:
        mask = None if where is None else where.predicate.mask
        return index.arranged.scan(as_of, mask=mask, bytes_max=bytes_max)
    # An empty list of keys is an answer, too: the condition asks for no value of the column.
    none = index.arranged.schema.arrow.empty_table()
    rows = [index.arranged.lookup(key, as_of, bytes_max=bytes_max) for key in keys]
    found = pa.concat_tables([none, *rows])
    return found if where is None else found.filter(where.predicate.mask(found))
