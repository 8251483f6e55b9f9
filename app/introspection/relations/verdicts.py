"""Relations of verdicts say how each object is, why, and what to do; see the room `verdicts`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from shardline.app.introspection.facts import Facts
from shardline.app.introspection.histories import newest
from shardline.app.introspection.relation import (
    AT,
    BYTES,
    FLAG,
    MS,
    NUMBER,
    TEXT,
    TEXTS,
    Column,
    Metric,
    Past,
    Relation,
    Row,
    instant,
)
from shardline.app.introspection.verdicts.judged import judge_facts
from shardline.app.introspection.verdicts.rules import summarize
from shardline.app.introspection.verdicts.situation import Judgement
from shardline.app.protocol import object_state

__all__ = ["VERDICTS"]

_SINCE: Final = 6
"""Place of the time in a row of the history."""


def _verdicts(facts: Facts, now_ms: int) -> Iterator[Row]:
    found = judge_facts(facts, now_ms)
    for name, judged in found.judgements.items():
        noted = facts.verdicts.get(name)
        since = noted.since_ms if noted is not None and noted.verdict == judged.verdict else now_ms
        one, known = found.situations[name], facts.objects.get(name)
        yield (
            name,
            one.kind,
            judged.verdict,
            judged.tone,
            judged.tone == "bad",
            judged.because or None,
            judged.to_do or None,
            judged.blame or None,
            instant(since),
            _from_now(now_ms, judged.ready_in_ms),
            one.backlog.files,
            one.backlog.size_bytes,
            one.backlog.offsets,
            None if known is None else known.rows,
            None if known is None else known.size_bytes,
            one.failures,
            _from_now(now_ms, one.retry_in_ms),
            None if known is None or known.changed_ms is None else instant(known.changed_ms),
            None if one.phase == "paused" else one.fresh_ms,
        )


def _from_now(now_ms: int, span_ms: int | None) -> int | None:
    return None if span_ms is None else instant(now_ms + span_ms)


def _verdicts_past(facts: Facts, at_ms: int) -> Iterator[Row]:
    """The verdicts that were noted; the numbers beside them are not recorded."""
    for name, (since_ms, kind, judged) in _noted(facts, at_ms).items():
        texts = (judged.because or None, judged.to_do or None, judged.blame or None)
        known = (name, kind, judged.verdict, judged.tone, judged.tone == "bad", *texts)
        yield (*known, instant(since_ms), *(None,) * 10)


def _summary_past(facts: Facts, at_ms: int) -> Iterator[Row]:
    noted = {name: judged for name, (_, _, judged) in _noted(facts, at_ms).items()}
    found = summarize(noted)
    yield (found.words, found.objects, found.fresh, found.bad)


def _noted(facts: Facts, at_ms: int) -> dict[str, tuple[int, object, Judgement]]:
    """Since when each object that there was had which verdict, with its kind."""
    there = facts.existing_at(at_ms)
    return {
        name: (_since_ms(at_ms, row), row[1], _judgement(row))
        for name, (at_ms, row) in newest(facts.verdict_changes.rows).items()
        if name in there and row[2] in object_state.VERDICTS
    }


def _since_ms(at_ms: int, row: tuple[object, ...]) -> int:
    """Since when the verdict of a row holds; those of old were noted when it began."""
    since_ms = row[_SINCE] if len(row) > _SINCE else at_ms
    assert isinstance(since_ms, int), row
    return since_ms


def _judgement(row: tuple[object, ...]) -> Judgement:
    """The judgement that a row of the history was made of; those of old have no blame."""
    _, _, verdict, because, to_do, *blame = row
    return Judgement(
        verdict,  # type: ignore[arg-type]  # one of the words, as the caller has seen
        str(because or ""),
        str(to_do or ""),
        str(blame[0] or "") if blame else "",
    )


def _summary(facts: Facts, now_ms: int) -> Iterator[Row]:
    found = summarize(judge_facts(facts, now_ms).judgements)
    yield (found.words, found.objects, found.fresh, found.bad)


def _history(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for at_ms, (name, kind, verdict, because, to_do, *blame) in facts.verdict_changes.rows:
        # Rows that were stored before causes were have none.
        row = (instant(at_ms), name, kind, verdict, because, to_do)
        yield (*row, blame[0] if blame else None)


def _error_counts(facts: Facts, now_ms: int) -> Iterator[Row]:
    found = judge_facts(facts, now_ms)
    for name, judged in found.judgements.items():
        known = facts.objects.get(name)
        if judged.errors or (known is not None and known.errors is not None):
            yield (name, judged.errors, found.situations[name].errors, list(judged.unreadable))


_NAMED: Final = Column("object_id", TEXT, "the object")
_KIND: Final = Column("type", TEXT, "source, view, index, sink or subscribe")
*_BETTER, _WORST = object_state.VERDICTS
_VERDICT: Final = Column("verdict", TEXT, f"{', '.join(_BETTER)} or {_WORST}")
_BECAUSE: Final = Column("because", TEXT, "why, in a sentence or two")
_TO_DO: Final = Column("to_do", TEXT, "what a person can do about it")
_BLAME: Final = Column("blame_id", TEXT, "the object that is the cause, if it is another one")
_HISTORIES: Final = ("verdict_history", "status_history")
"""The verdicts, and which objects there were."""

VERDICTS: Final = (
    Relation(
        "verdicts",
        "How an object is, in words: also one that the project wants and that waits to be created",
        (
            _NAMED,
            _KIND,
            _VERDICT,
            Column("tone", TEXT, "good, idle, wait or bad"),
            Column(
                "bad",
                FLAG,
                "it needs a person",
                Metric("object_bad", "Whether the object needs a person."),
            ),
            _BECAUSE,
            _TO_DO,
            _BLAME,
            Column("since", AT, "since when it is so"),
            Column("ready_at", AT, "when it is expected to be fresh, at the present speed"),
            Column("files_waiting", NUMBER, "files that a source has found outside and not read"),
            Column("bytes_waiting", NUMBER, "their size"),
            Column(
                "offsets_behind",
                NUMBER,
                "messages behind the newest one",
                Metric("source_offsets_behind", "Messages behind the newest one outside."),
            ),
            Column("records", NUMBER, "rows of its newest contents, if it has a shard"),
            Column("size", BYTES, "their size, encoded, in bytes"),
            Column("failures", NUMBER, "failures in a row, by which it was stopped"),
            Column("retry_at", AT, "when it is started again; NULL if it is not suspended"),
            Column(
                "changed_at",
                AT,
                "when rows of it have come or gone the last time; NULL: not since the start",
            ),
            Column(
                "allowed_lag",
                NUMBER,
                "lag up to which it counts as fresh, in ms; NULL while it is paused",
                Metric(
                    "object_allowed_lag_seconds",
                    "Lag up to which the object counts as fresh; none while it is paused.",
                    MS,
                ),
            ),
        ),
        _verdicts,
        "object_id",
        past=Past(_verdicts_past, _HISTORIES),
    ),
    Relation(
        "verdict_summary",
        "How the whole is, in a sentence or two: one row",
        (
            Column("summary", TEXT, "for people"),
            Column("objects", NUMBER, "how many there are"),
            Column("fresh", NUMBER, "how many are healthy, idle or finished"),
            Column(
                "bad",
                NUMBER,
                "how many need a person",
                Metric("objects_bad", "Objects that need a person."),
            ),
        ),
        _summary,
        labels=(),
        past=Past(_summary_past, _HISTORIES),
    ),
    Relation(
        "verdict_history",
        "An object's verdict has changed, or its cause",
        (Column("occurred_at", AT, "when"), _NAMED, _KIND, _VERDICT, _BECAUSE, _TO_DO, _BLAME),
        _history,
        "object_id",
        ("verdict_history",),
        separable=True,
        past=Past(_history, ("verdict_history",)),
    ),
    Relation(
        "error_counts",
        "Live errors by which reads of an object fail",
        (
            Column("export_id", TEXT, "the object"),
            Column(
                "count",
                NUMBER,
                "its own, and those of all that it is made of: reads fail unless it is 0",
                Metric("object_errors", "Live errors by which reads of the object fail."),
            ),
            Column("own", NUMBER, "those of its own contents"),
            Column("erring_ids", TEXTS, "the objects that have them"),
        ),
        _error_counts,
        "export_id",
    ),
)
