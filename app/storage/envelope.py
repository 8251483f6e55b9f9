"""An envelope says what a source's rows mean; staging turns a micro-batch into updates of shards.

    Staging(host, reading).stage(decoded, …)     Spark's jobs; nothing is visible yet

    none       every row is added
    diff       `_diff` says how many copies come or go; `_ts`, if there is one, is the other side's
               clock and is dropped
    upsert     the latest row of a key replaces it; one with nothing but its key deletes it
    debezium   `after` replaces `before`

"Latest" is decided by the option `orderingColumn` where the source has it, and by the position in
the source (`reading`) without it and between equal values of it. A row replaces what the shard
itself holds: a state store beside it would have to agree with the shard after every crash. The
price is a read of the shard's matching rows for each micro-batch.

A row that cannot be decoded is, unless it is to be skipped (`bad_rows`), an error of its key: it
replaces an earlier error of the key, and goes when a later row of the key can be decoded, deletes
included. One whose ordering value cannot be decoded either is later than all others of its
micro-batch: nobody can tell that it is not the latest. The shard meanwhile keeps the last row of
the key that could be decoded. Without a key errors only add up.

Invariants:
    The same micro-batch gives the same rows and errors whenever it is run, and the same row wins
    among those of a key.
    The value of a key is the one in the shard: no state is kept elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import StructType

from shardline import datasource
from shardline.app.execution.host import Host
from shardline.app.protocol.objects import errors_shard, skipped_shard
from shardline.app.storage.commit import WRITER, StagedMicroBatch
from shardline.app.storage.errors import ERRORS
from shardline.app.storage.json_texts import key_text
from shardline.app.storage.kafka import AT, DELETED, PARTITION, is_kafka
from shardline.app.storage.reading import CORRUPT, FILE, POSITION, Decoded, Reading
from shardline.app.storage.unfit_rows import unfit_clause
from shardline.datasource.client import ShardClient
from shardline.datasource.frames import (
    BYTES_MAX,
    ROWS_MAX,
    StagedInterval,
    quoted,
    stage_by_tasks,
    stage_interval,
)
from shardline.datasource.frontier import TIME_MIN
from shardline.datasource.ids import new_id
from shardline.datasource.read import open_reader
from shardline.datasource.schema import DIFF, ShardSchema
from shardline.datasource.sink import (
    AFTER,
    BEFORE,
    EnvelopeConverter,
    SinkOptions,
    assign_roles,
    find_shard,
    parse_sink,
    resolve_target,
)
from shardline.datasource.state import plan_changes
from shardline.datasource.upsert import upsert_difference
from shardline.datasource.write import Staged, UncommittedParts

__all__ = ["Staging", "in_source_order", "stage_replacements"]

_ORDER = "_shardline_order"

_SMALL_BYTES: Final = 4 * BYTES_MAX
"""Files up to which rows are collected: texts are larger than Arrow's values of them."""


@dataclass(frozen=True, slots=True)
class Staging:
    """Stages micro-batches of one source.

    Attributes:
        host: What all objects share.
        reading: The source as a stream.
    """

    host: Host
    reading: Reading

    def stage(self, decoded: Decoded, live_errors: int, expected: int) -> StagedMicroBatch:
        """Stage a micro-batch for the source's shard, and for that of its errors.

        Args:
            decoded: The micro-batch.
            live_errors: How many errors are live; 0 spares a read of them.
            expected: How many rows it may have, if they were not counted: few are collected on the
                driver, more are written by tasks.
        """
        counted = decoded.counts.messages
        # A guess that is too low costs a second read of the source: only far below the bound.
        small = counted <= ROWS_MAX if counted is not None else expected <= ROWS_MAX // 4
        # Of large rows a few are too many: all that are collected are in memory before their bytes
        # are counted.
        small = small and decoded.bytes_max <= _SMALL_BYTES
        rows = self._rows(self.reading.good(decoded), small=small)
        errors = skipped = None
        if self.reading.marks_errors:
            bad, keeps = decoded.counts.errors, self.reading.bad_rows == "keep"
            # Also where bad rows are skipped: errors of an earlier definition go with their keys.
            if (bad and keeps) or (live_errors and self._is_keyed):
                changes = self._errors(decoded, live_errors)
                changes = changes if keeps else changes.where(F.col(DIFF) < 0)
                errors = stage_interval(changes, self._options(errors_shard))
            if bad and not keeps:
                noted = self._bad_rows(decoded).withColumn(DIFF, F.lit(1).cast("bigint"))
                skipped = stage_interval(noted, self._options(skipped_shard))
        return StagedMicroBatch(rows, errors, live_errors, skipped)

    def _rows(self, good: DataFrame, *, small: bool) -> StagedInterval:
        options = self._row_options
        if not self.reading.replaces_by_key:
            return stage_interval(good, options, small=small)
        frame = assign_roles(options, good.schema)
        # Not by Spark's own Parquet writer: it would write the images of a Debezium event as
        # structs, and makes no carriers of replacing rows. The tasks' unwrapper does both.
        client = self.host.client
        target = resolve_target(client, options, frame, find_shard(client, options.shard))
        staged = stage_by_tasks(good, options, target)
        if target.unwrapper.stages_carriers:
            staged = stage_replacements(client, options.shard, staged, target.unwrapper)
        state = client.state(options.shard)
        return StagedInterval(
            client,
            options.shard,
            target.shard,
            ShardSchema.parse(target.schema),
            state.schema_id,
            target.key,
            new_id("t", client.ids),
            staged,
        )

    @property
    def _row_options(self) -> SinkOptions:
        options, kafka = self.reading.options, is_kafka(self.reading.description.format)
        if not self.reading.replaces_by_key:
            return options
        if kafka:
            options = replace(options, delete_column=DELETED)
        return in_source_order(options, (PARTITION, AT) if kafka else None)

    # -- errors -----------------------------------------------------------------------------------

    @property
    def _is_keyed(self) -> bool:
        return self.reading.replaces_by_key and bool(self.reading.description.key)

    def _options(self, shard_of: Callable[[str], str]) -> SinkOptions:
        name = shard_of(self.reading.description.name)
        given = {"location": self.host.client.location.url, "shard": name}
        return parse_sink({**self.host.storage, **given})

    def _errors(self, decoded: Decoded, live_errors: int) -> DataFrame:
        """The changes of the errors as updates: new ones, and retractions of those they replace."""
        if not self._is_keyed:
            return self._bad_rows(decoded).withColumn(DIFF, F.lit(1).cast("bigint"))
        rank = [F.col(POSITION), self._order()]
        rows = decoded.rows.select(*self._error_columns(decoded), *rank)
        if BEFORE in decoded.rows.columns:
            # An event that changes a key is the last one of the key that it leaves, too.
            old = self._key(decoded.rows, BEFORE)
            left = decoded.rows.where(F.col(CORRUPT).isNull() & (old != self._key(decoded.rows)))
            columns = [*self._error_columns(decoded, BEFORE), *rank]
            rows = rows.unionAll(left.select(*columns))
        newest = Window.partitionBy("key").orderBy(F.col(_ORDER).desc())
        last = rows.where("key IS NOT NULL").withColumn("_place", F.row_number().over(newest))
        last = last.where("_place = 1")
        names = ERRORS.names
        bad = last.where("raw IS NOT NULL").select(*names)
        unknown = rows.where("raw IS NOT NULL AND key IS NULL").select(*names)
        added = bad.unionAll(unknown).withColumn(DIFF, F.lit(1).cast("bigint"))
        if not live_errors:
            return added
        live = datasource.snapshot(
            rows.sparkSession,
            location=self.host.client.location.url,
            shard=errors_shard(self.reading.description.name),
            storage=self.host.storage,
        )
        gone = live.join(last.select("key"), "key", "left_semi").select(*names)
        return added.unionAll(gone.withColumn(DIFF, F.lit(-1).cast("bigint")))

    def _bad_rows(self, decoded: Decoded) -> DataFrame:
        """The rows that cannot be decoded, with the columns of the errors shard."""
        return decoded.rows.select(*self._error_columns(decoded)).where("raw IS NOT NULL")

    def _error_columns(self, decoded: Decoded, *images: str) -> list[Column]:
        clause = unfit_clause(self.reading.description)
        error = f"a row cannot be decoded as ({self._column_list()}){clause}"
        return [
            F.lit(error).alias("error"),
            F.col(CORRUPT).alias("raw"),
            self._key(decoded.rows, *images).alias("key"),
            F.col(FILE).alias("file"),
        ]

    def _key(self, rows: DataFrame, *images: str) -> Column:
        """The row's key as JSON; null if a part of it is null.

        Args:
            rows: Of the micro-batch.
            images: Of an event, in whose first one that has it the key is looked for; by default
                `AFTER`, then `BEFORE`.
        """
        if not self._is_keyed:
            return F.lit(None).cast("string")
        keys = self.reading.description.key
        parts = {name: _key_column(rows, name, images or (AFTER, BEFORE)) for name in keys}
        known = F.lit(True)
        for column in parts.values():
            known = known & column.isNotNull()
        return F.when(known, key_text(rows, parts))

    def _order(self) -> Column:
        path = assign_roles(self.reading.options, StructType(self.reading.columns)).order
        if not path:
            return F.struct(POSITION).alias(_ORDER)
        # Step by step: of a column with a dot in its name Spark would take a text for a path.
        value = reduce(Column.getField, path[1:], quoted(path[0]))
        # A bad row has null where its order cannot be decoded, and null is least: a good row would
        # pass over it, and the bad one, which may be the latest, would leave no trace at all.
        unknown = F.col(CORRUPT).isNotNull() & value.isNull()
        return F.struct(unknown, value, F.col(POSITION)).alias(_ORDER)

    def _column_list(self) -> str:
        own = self.reading.columns
        return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in own)


def in_source_order(options: SinkOptions, partitions: tuple[str, str] | None = None) -> SinkOptions:
    """Options of a write by which the last row of a key wins, as the option or `POSITION` has it.

    Args:
        options: Of the write to the source's shard.
        partitions: As `SinkOptions.partition_columns`, if positions mean nothing between those.
    """
    if options.ordering_column is None:
        return replace(options, ordering_column=POSITION, partition_columns=partitions)
    # A clock of milliseconds has ties, and the source has an order of them: without it a delete
    # would lose to the row that it deletes, and a later row to one that only sorts after it.
    return replace(options, tie_column=POSITION)


def stage_replacements(
    client: ShardClient, name: str, carriers: Staged, unwrapper: EnvelopeConverter
) -> Staged:
    """Stage the difference of staged rows to the shard's contents, and delete the former.

    Args:
        client: Of the shard's location.
        name: Name of the shard.
        carriers: Staged rows that replace those of their keys.
        unwrapper: Of the target.
    """
    machine = client.machine(name)
    difference = upsert_difference(machine, unwrapper.staged_schema, carriers)
    with (
        UncommittedParts(client.location.blob, carriers.runs),
        open_reader(machine, purpose=f"rows that {WRITER} replaces"),
    ):
        state = machine.state()
        there = plan_changes(state, TIME_MIN, state.upper.time)
        return client.writer(name).stager().stage(difference.against(state, there, whole=True))


def _key_column(rows: DataFrame, name: str, images: Sequence[str]) -> Column:
    if AFTER not in rows.columns:
        return quoted(name)
    found = [F.col(image)[name] for image in images if _has(rows, image, name)]
    return F.coalesce(*found) if found else F.lit(None)


def _has(rows: DataFrame, image: str, name: str) -> bool:
    if image not in rows.columns:
        return False
    kind = rows.schema[image].dataType
    return isinstance(kind, StructType) and name in kind.names
