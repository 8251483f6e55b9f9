"""Relations of the system show peeks, shards, maintenance, and the commands of the lane."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from shardline.app.execution.hold_owners import find_hold_owner, find_lease_owner
from shardline.app.introspection.facts import COMMANDS_MAX, Facts
from shardline.app.introspection.relation import (
    AT,
    BYTES,
    FLAG,
    FRONTIER,
    MS,
    NUMBER,
    REAL,
    TEXT,
    TEXTS,
    Column,
    Metric,
    Past,
    Relation,
    Row,
    instant,
)
from shardline.datasource.report import HolderReport

__all__ = ["SYSTEM"]


def _active_peeks(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for peek in facts.peeks.values():
        for name in peek.inputs or (None,):
            yield (peek.uuid, name, peek.path, peek.time, instant(peek.at_ms))


def _peek_durations(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for (path, bound), count in facts.peek_durations.items():
        yield (path, bound, count)


def _commands(facts: Facts, _now_ms: int) -> Iterator[Row]:
    # Memory has some more for a while: a row that goes for each that comes would be dear.
    for _, (index, producer, at_ms, *rest) in facts.commands.rows[-COMMANDS_MAX:]:
        assert isinstance(at_ms, int), at_ms
        yield (index, producer, instant(at_ms), *rest)


def _shards(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for seen in facts.shards.values():
        shard = seen.report
        most = max(shard.holders, key=lambda holder: holder.gain_ms, default=None)
        if most is not None and most.gain_ms == 0:
            most = None
        yield (
            shard.name,
            shard.id,
            shard.since,
            shard.upper,
            shard.seqno,
            shard.batches,
            shard.empty_batches,
            shard.part_count,
            shard.rows,
            shard.size_bytes,
            shard.diff_sum,
            shard.dropped_bytes,
            None if seen.lost is None else len(seen.lost),
            shard.retain_ms,
            len(shard.holders),
            None if most is None else _hold_owner(facts, most) or most.owner or most.name,
            0 if most is None else most.gain_ms,
            instant(seen.at_ms),
        )


def _levels(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for seen in facts.shards.values():
        for level in seen.report.levels:
            yield (
                seen.report.name,
                level.level,
                level.batches,
                level.parts,
                level.rows,
                level.size_bytes,
            )


def _batches(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for seen in facts.shards.values():
        for batch in seen.report.newest_batches or ():
            yield (
                seen.report.name,
                batch.lower,
                batch.upper,
                batch.since,
                batch.level,
                batch.parts,
                batch.diff_sum,
                batch.rows,
                batch.size_bytes,
            )


def _hold_owner(facts: Facts, holder: HolderReport) -> str | None:
    """Name of the object that has taken a lease or hold, if it is one of this application."""
    if holder.kind == "lease":
        name = find_lease_owner(holder.owner)
    else:
        owner = find_hold_owner(holder.name)
        # A source of another application, whose location is another one, may read our shards.
        here = "" if facts.process.started is None else facts.process.started.location_id
        ours = owner is not None and owner.location in {"", here}
        name = owner.id if owner is not None and ours else None
    return name if name in facts.objects else None


def _holds(facts: Facts, now_ms: int) -> Iterator[Row]:
    for seen in facts.shards.values():
        for holder in seen.report.holders:
            made = holder.made_ms
            yield (
                seen.report.name,
                holder.name,
                holder.kind,
                holder.owner,
                _hold_owner(facts, holder),
                holder.since,
                holder.seqno,
                None if made is None else max(0, now_ms - made),
                max(0, now_ms - holder.heard_ms),
                holder.behind_ms,
                holder.behind_seqnos,
                holder.gain_ms,
                holder.kept_bytes,
                holder.only_bytes,
                holder.overdue,
            )


def _maintenance(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for at_ms, (*done, failed) in facts.maintenance.rows:
        assert isinstance(failed, tuple), failed
        yield (instant(at_ms), *done, list(failed))


def _shard_maintenance(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for name in sorted(facts.rounds.keys() | facts.writer_merges.keys()):
        done = facts.rounds.get(name)
        newest: Row = (None,) * 4
        if done is not None:
            newest = (instant(done.at_ms), done.took_ms, len(done.failed), list(done.failed))
        yield (name, *newest, facts.writer_merges[name])


def _actions(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for at_ms, row in facts.actions.rows:
        yield (instant(at_ms), *row)


SYSTEM: Final = (
    Relation(
        "active_peeks",
        "A read that is under way, and an object that it reads",
        (
            Column("id", TEXT, "of the peek"),
            Column("object_id", TEXT, "the object; NULL if it reads none"),
            Column(
                "type",
                TEXT,
                "where the answer comes from: index, persist or constant; NULL: undecided",
            ),
            Column("time", FRONTIER, "as of when"),
            Column("started_at", AT, "since when"),
        ),
        _active_peeks,
        "object_id",
    ),
    Relation(
        "peek_durations_histogram",
        "How often a read took how long",
        (
            Column("type", TEXT, "where the answers came from: index, persist or constant"),
            Column("duration_ns", NUMBER, "at most so long: a power of two"),
            Column("count", NUMBER, "so often, and longer than half of it"),
        ),
        _peek_durations,
    ),
    Relation(
        "command_history",
        "A record of the lane: the newest thousand",
        (
            Column("index", NUMBER, "position in the one order"),
            Column("producer", TEXT, "who asked"),
            Column("occurred_at", AT, "when"),
            Column("kind", TEXT, "which command"),
            Column("object_id", TEXT, "about what"),
            Column("says", TEXT, "what it asks for, in words"),
            Column("command", TEXT, "all of it, as JSON"),
        ),
        _commands,
        "object_id",
        ("command_history",),
        past=Past(_commands, ("command_history",)),
    ),
    Relation(
        "shards",
        "A shard of the location, as last looked into",
        (
            Column("name", TEXT, "of the shard"),
            Column("shard_id", TEXT, "its identity"),
            Column("since", FRONTIER, "reads at this time and later are exact"),
            Column("upper", FRONTIER, "everything before is settled"),
            Column(
                "seqno",
                NUMBER,
                "number of its newest state",
                Metric("shard_seqno", "Of the shard: seqno."),
            ),
            Column(
                "batches",
                NUMBER,
                "intervals of time it is made of",
                Metric("shard_batches", "Of the shard: batches."),
            ),
            Column("empty_batches", NUMBER, "those without updates"),
            Column(
                "parts",
                NUMBER,
                "blobs, or inline parts",
                Metric("shard_parts", "Of the shard: parts."),
            ),
            Column(
                "updates",
                NUMBER,
                "in all parts, before consolidation",
                Metric("shard_updates", "Of the shard: updates."),
            ),
            Column(
                "size",
                BYTES,
                "encoded, in bytes",
                Metric("shard_size_bytes", "Of the shard: size."),
            ),
            Column(
                "records",
                NUMBER,
                "rows of the newest contents",
                Metric("shard_records", "Of the shard: records."),
            ),
            Column(
                "dropped_size",
                BYTES,
                "kept for old seqnos only, in bytes; NULL if not known",
                Metric("shard_dropped_bytes", "Of the shard: dropped_size."),
            ),
            Column(
                "lost_parts",
                NUMBER,
                "parts that the store does not have, or has with another size; NULL: not asked yet",
                Metric("shard_lost_parts", "Of the shard: lost_parts."),
            ),
            Column("retain", NUMBER, "how long history is kept, in ms; NULL: as long as read"),
            Column("holds", NUMBER, "readers that keep history or blobs: see `shard_holds`"),
            Column(
                "held_back_by",
                TEXT,
                "the reader that keeps the most history alone: its object, or what it says of "
                "itself; NULL: none keeps any alone",
            ),
            Column("held_back", NUMBER, "how much history that is, in ms; 0: none"),
            Column("seen_at", AT, "when it was looked into"),
        ),
        _shards,
        "name",
        labels=(("shard", "name"),),
    ),
    Relation(
        "shard_levels",
        "The batches of one size class of a shard, empty ones left out",
        (
            Column("shard", TEXT, "the shard"),
            Column("level", NUMBER, "the size class"),
            Column("batches", NUMBER, "so many"),
            Column("parts", NUMBER, "in them"),
            Column("updates", NUMBER, "in them"),
            Column("size", BYTES, "in bytes"),
        ),
        _levels,
        "shard",
        separable=True,
    ),
    Relation(
        "shard_batches",
        "A batch of a shard: of the newest five hundred of each",
        (
            Column("shard", TEXT, "the shard"),
            Column("lower", FRONTIER, "first time of its updates"),
            Column("upper", FRONTIER, "first time after them"),
            Column("since", FRONTIER, "times before this one are brought up to it"),
            Column("level", NUMBER, "the size class; NULL: it is empty"),
            Column("parts", NUMBER, "blobs, or inline parts"),
            Column("records", NUMBER, "rows that it adds to the contents; below 0: it takes more"),
            Column("updates", NUMBER, "in its parts, before consolidation"),
            Column("size", BYTES, "encoded, in bytes"),
        ),
        _batches,
        "shard",
        separable=True,
    ),
    Relation(
        "shard_holds",
        "A reader, and what it holds back",
        (
            Column("shard", TEXT, "the shard"),
            Column("name", TEXT, "id of a lease, or name of a hold"),
            Column("kind", TEXT, "lease: ends by itself when its owner is silent; hold: never"),
            Column("owner", TEXT, "who it is and what for"),
            Column("object_id", TEXT, "the object that has taken it; NULL: none that is known"),
            Column("since", FRONTIER, "what it may still read at"),
            Column("seqno", NUMBER, "blobs of this state and later ones stay; NULL: holds none"),
            Column("age", NUMBER, "of a hold, in ms; NULL for a lease"),
            Column(
                "silent",
                NUMBER,
                "since it was heard of, in ms",
                Metric("hold_silent_seconds", "Since a reader was heard of.", MS),
            ),
            Column(
                "behind",
                NUMBER,
                "history that it keeps apart, in ms",
                Metric("hold_behind_seconds", "History that a reader holds back.", MS),
            ),
            Column("behind_seqnos", NUMBER, "states that it keeps"),
            Column("gain", NUMBER, "how far the since could go if it alone were gone, in ms"),
            Column(
                "kept_size",
                BYTES,
                "old blobs that it keeps, alone or with others, in bytes; NULL if not known",
                Metric("hold_kept_bytes", "What is kept for a reader, alone or with others."),
            ),
            Column(
                "only_size",
                BYTES,
                "kept for it alone, in bytes; NULL if not known",
                Metric("hold_only_bytes", "What is kept for a reader alone."),
            ),
            Column("overdue", FLAG, "a lease that is about to be forgotten"),
        ),
        _holds,
        "shard",
        labels=(("shard", "shard"), ("holder", "name"), ("kind", "kind")),
    ),
    Relation(
        "maintenance",
        "A round of maintenance on a shard that did something, failed otherwise than the one "
        "before, or did not fail any more: the newest thousand",
        (
            Column("occurred_at", AT, "when"),
            Column("shard", TEXT, "the shard; /: the listing of all"),
            Column("took", REAL, "in ms"),
            Column("merges", NUMBER, "merges of batches"),
            Column("collected", NUMBER, "blobs deleted by collection; NULL if there was none"),
            Column("swept", NUMBER, "leaked blobs deleted; NULL if there was no sweep"),
            Column(
                "failed",
                TEXTS,
                "steps that failed; state: it was not readable; listing: of all",
            ),
        ),
        _maintenance,
        "shard",
        ("maintenance",),
        separable=True,
        past=Past(_maintenance, ("maintenance",)),
    ),
    Relation(
        "shard_maintenance",
        "A shard, the newest round of maintenance on it that did something or failed, or did not "
        "fail any more, and merges by writers",
        (
            Column("shard", TEXT, "the shard; /: the listing of all"),
            Column("last_round_at", AT, "when the round ended; NULL: none is known"),
            Column(
                "took",
                REAL,
                "in ms",
                Metric("maintenance_seconds", "How long the newest such round took.", MS),
            ),
            Column(
                "failed",
                NUMBER,
                "how many of its steps failed",
                Metric("maintenance_failed_steps", "Steps of that round that failed."),
            ),
            Column("failed_steps", TEXTS, "which ones, as in `maintenance`"),
            Column(
                "writer_merges",
                NUMBER,
                "merges that writers of this process have done after their commits",
                Metric(
                    "writer_merges",
                    "Merges that writers have done after their commits.",
                    grows=True,
                ),
            ),
        ),
        _shard_maintenance,
        "shard",
        labels=(("shard", "shard"),),
    ),
    Relation(
        "action_history",
        "An action that a person has asked the application for: by the page, a command or HTTP",
        (
            Column("occurred_at", AT, "when it ended"),
            Column("action", TEXT, "its name"),
            Column(
                "target",
                TEXT,
                "what it is about; of apply_project the project; NULL: the application",
            ),
            Column(
                "outcome", TEXT, "done; refused; unknown: it may have been done, or may be done yet"
            ),
            Column("message", TEXT, "the error, if it was not done"),
        ),
        _actions,
        "target",
        ("action_history",),
        past=Past(_actions, ("action_history",)),
    ),
)
