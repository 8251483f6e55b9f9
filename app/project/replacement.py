"""Finds the objects whose shard a project cannot keep, what of their history is lost, and for whom.

A shard takes new columns and wider types, and nothing else: contents of other columns need another
shard. The old one is dropped then, with a history that nobody can read any more, and a sink that
has written changes of it stops for good. A plan that did not say so would be agreed to by mistake.

    find_replacements(descriptions, columns, shards)     (Replacement("orders", why, since, upper),)
    find_misfits(descriptions, columns, shards)          the same of objects that stay as they are
    find_stopped_sinks(wanted, running, replaced, shards)        (StoppedSink("out", "orders", …),)

What a type may become is decided by `evolve`, as for every write to a shard (Delta's widening:
INT to BIGINT, FLOAT to DOUBLE, a DECIMAL with more digits on both sides of the point).

Invariants:
    Pure: everything about the location is in the arguments.
    An object whose description stays is replaced only if it is a source that can write nothing as
    it is: its shard has another key, or columns that cannot become those of the description.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from shardline.app.protocol.fingerprint import fingerprint
from shardline.app.protocol.objects import (
    IndexDescription,
    SinkDescription,
    SourceDescription,
    ViewDescription,
    progress_shard,
)
from shardline.app.storage.formats import FILES, path_option
from shardline.datasource.schema import Field, Incompatible, Record, ShardSchema, evolve

__all__ = [
    "ExistingShard",
    "Replacement",
    "StoppedSink",
    "find_misfits",
    "find_replacements",
    "find_stopped_sinks",
]

_Object: TypeAlias = SourceDescription | ViewDescription | IndexDescription | SinkDescription


@dataclass(frozen=True, slots=True)
class ExistingShard:
    """A shard of the location, as far as a plan needs to know it.

    Attributes:
        schema: Its columns.
        key: Its key.
        since: The first time at which it can be read, ms since the epoch; None if at none.
        upper: Its upper, ms since the epoch; None if it is finished.
        rows: How many rows it has now.
        source_format: Format of the source that has filled it; "" if no source has.
        retain_ms: How far back it stays readable without a reader; None for as long as it is read.
        first: The first time of which it knows anything: its since, or when it began, if that was
            later; ms since the epoch.
        newest: The time from which `retain_ms` counts back: the one before its upper, or that of
            its last update if it is finished.
    """

    schema: ShardSchema
    key: tuple[str, ...] = ()
    since: int | None = 0
    upper: int | None = 0
    rows: int = 0
    source_format: str = ""
    retain_ms: int | None = None
    first: int = 0
    newest: int = 0


@dataclass(frozen=True, slots=True)
class Replacement:
    """An object whose shard is dropped and made anew.

    Attributes:
        name: The object.
        why: The reason, as a clause: "column 'price' cannot change from …".
        since: The first time that can be read now and cannot afterwards; None if there is none.
        upper: The time up to which it can be read now; None if its shard is finished.
        rows: How many rows it has now.
        stalled: True if its definition stays as it is: it is stalled already by an earlier change.
            Without a permission it stays so, and keeps nothing else from starting.
        of_source: True if it is a view, and a source has filled the shard: all shards of that
            source go. Its errors have other columns than a view's, and its bindings would be taken
            for true by the next source of that name.
    """

    name: str
    why: str
    since: int | None
    upper: int | None
    rows: int
    stalled: bool = False
    of_source: bool = False

    @property
    def loses_history(self) -> bool:
        """False if nothing was ever written, so that nobody needs to be asked."""
        return self.upper != 0


@dataclass(frozen=True, slots=True)
class StoppedSink:
    """A sink that stops for good, since its target has changes of a shard that is dropped.

    Attributes:
        name: The sink.
        on: Its input, which is replaced.
        hint: What to do about it.
    """

    name: str
    on: str
    hint: str


def find_replacements(
    descriptions: Iterable[_Object],
    columns: Mapping[str, str],
    shards: Mapping[str, ExistingShard],
) -> tuple[Replacement, ...]:
    """The objects among `descriptions` that cannot have the shard that is there.

    Args:
        descriptions: Objects that are created or changed.
        columns: Columns of their contents in Spark's JSON; what is not in it is not looked at.
        shards: The shards that are there, by name.
    """
    found = []
    for description in descriptions:
        name = description.name
        if name not in shards or name not in columns:
            continue
        shard, wanted = shards[name], ShardSchema.parse(columns[name])
        of_source = isinstance(description, ViewDescription) and _is_of_source(shard)
        match description:
            case SourceDescription():
                why = _source_misfit(description, wanted, shard)
            case ViewDescription() if of_source:
                why = "a source has filled the shard that is there"
            case ViewDescription():
                why = _columns_misfit(shard.schema, wanted)
            case _:
                why = ""
        if why:
            found.append(_replacement(name, why, shard, of_source=of_source))
    return tuple(found)


def find_misfits(
    descriptions: Iterable[_Object],
    columns: Mapping[str, str],
    shards: Mapping[str, ExistingShard],
) -> tuple[Replacement, ...]:
    """The sources among `descriptions`, none of which changes, that are stalled by their shard.

    A view is none of them: it makes its own shard anew. Nor is a source whose columns are guessed
    from the files that happen to be there: that the guess is another one now stalls nothing.

    Args:
        descriptions: Objects that are wanted as they are.
        columns: As of `find_replacements`.
        shards: The same.
    """
    found = []
    for source in descriptions:
        name = source.name
        if not isinstance(source, SourceDescription) or not source.schema:
            continue
        if name in shards and name in columns:
            why = _shape_misfit(source, ShardSchema.parse(columns[name]), shards[name])
            if why:
                found.append(_replacement(name, why, shards[name], stalled=True))
    return tuple(found)


def _replacement(
    name: str,
    why: str,
    shard: ExistingShard,
    *,
    stalled: bool = False,
    of_source: bool = False,
) -> Replacement:
    return Replacement(name, why, shard.since, shard.upper, shard.rows, stalled, of_source)


def find_stopped_sinks(
    wanted: Iterable[_Object],
    running: Mapping[str, _Object],
    replaced: Collection[str],
    shards: Mapping[str, ExistingShard],
) -> tuple[StoppedSink, ...]:
    """The sinks that cannot go on once `replaced` are.

    Args:
        wanted: All objects of the project.
        running: The objects that run, by name.
        replaced: Names of objects whose shards are dropped.
        shards: The shards that are there, by name.
    """
    found = []
    for sink in wanted:
        if not isinstance(sink, SinkDescription) or sink.on not in replaced:
            continue
        before = running.get(sink.name)
        progress = shards.get(progress_shard(sink.name))
        # A sink that has written nothing yet begins with the new shard, as a new one does.
        if not isinstance(before, SinkDescription) or progress is None or progress.upper == 0:
            continue
        if fingerprint(before) == fingerprint(sink) or _same_folder(before, sink):
            found.append(StoppedSink(sink.name, sink.on, _way_out(sink)))
    return tuple(found)


def _source_misfit(source: SourceDescription, wanted: ShardSchema, shard: ExistingShard) -> str:
    """The reason why a source cannot go on with a shard; "" if it can."""
    if not shard.source_format:
        # Its bindings come before its first row: without them the rows are somebody else's.
        if shard.upper != 0:
            return "no source has filled the shard that is there"
    elif shard.source_format != source.format.lower():
        return f"offsets of format '{shard.source_format}' mean nothing to '{source.format}'"
    return _shape_misfit(source, wanted, shard)


def _shape_misfit(source: SourceDescription, wanted: ShardSchema, shard: ExistingShard) -> str:
    """The reason why a shard cannot take the rows of a source; "" if it can."""
    return _key_misfit(source, shard) or _columns_misfit(
        shard.schema, _as_nullable_as(wanted, shard.schema)
    )


def _is_of_source(shard: ExistingShard) -> bool:
    """True if a source has made a shard: no view has a key."""
    return shard.source_format != "" or shard.key != ()


def _key_misfit(source: SourceDescription, shard: ExistingShard) -> str:
    if shard.key == source.key:
        return ""
    before, after = (", ".join(key) or "none" for key in (shard.key, source.key))
    return f"a shard's key never changes: it is ({before}), and would be ({after})"


def _columns_misfit(there: ShardSchema, wanted: ShardSchema) -> str:
    found = evolve(there, wanted)
    return f"column '{found.column}' {found.reason}" if isinstance(found, Incompatible) else ""


def _as_nullable_as(wanted: ShardSchema, there: ShardSchema) -> ShardSchema:
    """The columns of a source as its writes bring them: nulls are looked for row by row."""
    fields = (
        Field(
            field.name,
            field.type,
            nullable=there.field(field.name).nullable if field.name in there else True,
            metadata=field.metadata,
        )
        for field in wanted.record.fields
    )
    return ShardSchema(Record(tuple(fields)))


def _same_folder(before: SinkDescription, after: SinkDescription) -> bool:
    """True if both write the same folder, which remembers whose rows it has."""
    folder = path_option(after.options)
    return after.format in FILES and folder is not None and folder == path_option(before.options)


def _way_out(sink: SinkDescription) -> str:
    if sink.format in FILES:
        return "give it another path; or take it out of the project, empty its folder, put it back"
    return "give it another name and an empty target; or take it out, empty its target, put it back"
