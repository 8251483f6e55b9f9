"""The relation of events has the marks of a time line: what has happened to objects, and when.

It is made of the histories and of nothing else, so it reaches as far back as they do, and an event
of an earlier run of the application is told as one of this run.

    verdict_history      error, recovery, pause, and start of an object that was paused
    definition_history   definition, drop
    maintenance          maintenance
    action_history       action; pause and start of an object whose pause was over before it showed
    run_history          start of the application, also of one that had stood still

A verdict that needs a person is an error, and the first one that is well after it the recovery: an
object that is late and then fails has two errors and one recovery. Subscriptions, which histories
of earlier versions have, are left out. Of actions those are left out that were refused, and those
whose effect has a mark of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, TypeAlias, get_args

from shardline.app.introspection.facts import Facts
from shardline.app.introspection.histories import SUBSCRIPTION, gaps
from shardline.app.introspection.relation import AT, TEXT, Column, Past, Relation, Row, instant
from shardline.app.introspection.verdicts.wording import span
from shardline.app.protocol.object_state import VERDICTS

__all__ = ["MARKS", "Kind"]

Kind: TypeAlias = Literal[
    "start", "error", "recovery", "definition", "maintenance", "action", "drop", "pause"
]

_Mark: TypeAlias = tuple[int, Kind, str | None, str]
"""When, of which kind, about what, and in words."""

_MARKED_BY_EFFECT: Final = frozenset({"drop", "pause", "resume"})
_OF_APPLICATION: Final = frozenset({"allow_writes", "apply_project", "configure"})


def _events(facts: Facts, _now_ms: int) -> list[Row]:
    sources = (
        facts.verdict_changes,
        facts.definitions,
        facts.maintenance,
        facts.actions,
        facts.runs,
    )
    return facts.derive("events", sources, lambda: _make(facts))


def _make(facts: Facts) -> list[Row]:
    marks = [
        *_starts(facts),
        *_definitions(facts),
        *_verdicts(facts),
        *_rounds(facts),
        *_actions(facts),
        *_short_pauses(facts),
    ]
    marks.sort(key=lambda mark: mark[0])
    return [(instant(at_ms), *rest) for at_ms, *rest in marks]


def _starts(facts: Facts) -> Iterator[_Mark]:
    ended = {began_ms: ended_ms for ended_ms, began_ms in gaps(facts.runs)}
    for at_ms, row in facts.runs.rows:
        if row[0] == "start":
            text = "the application started"
            if at_ms in ended:
                text = f"{text}; it had not run for {span(at_ms - ended[at_ms])}"
            yield (at_ms, "start", None, text)
        elif row[0] == "resumed" and at_ms in ended:
            stood = span(at_ms - ended[at_ms])
            yield (at_ms, "start", None, f"the application went on; it had stood still for {stood}")


def _definitions(facts: Facts) -> Iterator[_Mark]:
    before: dict[object, tuple[object, ...]] = {}
    for at_ms, row in facts.definitions.rows:
        name, kind, state, _, global_id, _, *described = row
        if kind == SUBSCRIPTION:
            continue
        if state == "dropped":
            # One that was given up before it was created has left nothing.
            if before.pop(name, None) is not None:
                yield (at_ms, "drop", str(name), f"{kind} dropped")
        elif state == "created":
            now = (kind, *described[:3])
            old = before.get(name)
            before[name] = (global_id, *now)
            if old is None:
                yield (at_ms, "definition", str(name), f"{kind} created")
            elif old[1:] != now:
                yield (at_ms, "definition", str(name), f"definition of the {kind} changed")
            elif old[0] != global_id:
                yield (at_ms, "definition", str(name), f"{kind} created anew")


def _verdicts(facts: Facts) -> Iterator[_Mark]:
    verdicts: dict[str, str] = {}
    bad_since: dict[str, int] = {}
    dropped = [(at, row[0]) for at, row in facts.definitions.rows if row[2] == "dropped"]
    gone = iter([*dropped, (None, "")])
    at_drop, dropped_name = next(gone)
    for at_ms, row in facts.verdict_changes.rows:
        while at_drop is not None and at_drop <= at_ms:
            # Another object of that name is judged on its own.
            verdicts.pop(str(dropped_name), None)
            bad_since.pop(str(dropped_name), None)
            at_drop, dropped_name = next(gone)
        name, kind, verdict, because = str(row[0]), row[1], str(row[2]), row[3]
        before, verdicts[name] = verdicts.get(name), verdict
        if verdict == before or kind == SUBSCRIPTION or verdict not in VERDICTS:
            continue
        tone = VERDICTS[verdict]  # type: ignore[index]  # it is one of them
        if before == "paused":
            # Also of one that fails at once: the action has no other mark.
            yield (at_ms, "start", name, "resumed")
        if tone == "bad":
            bad_since.setdefault(name, at_ms)
            yield (at_ms, "error", name, f"{verdict}: {because}" if because else verdict)
        elif verdict == "paused":
            bad_since.pop(name, None)
            yield (at_ms, "pause", name, str(because or verdict))
        elif tone != "wait" and name in bad_since:
            took = span(at_ms - bad_since.pop(name))
            yield (at_ms, "recovery", name, f"{verdict} again, after {took}")


def _rounds(facts: Facts) -> Iterator[_Mark]:
    for at_ms, (shard, took_ms, merges, collected, swept, failed) in facts.maintenance.rows:
        counts = (
            (merges, "merge", "merges"),
            (collected, "blob deleted", "blobs deleted"),
            (swept, "leaked blob swept", "leaked blobs swept"),
        )
        done = [f"{n} {one if n == 1 else many}" for n, one, many in counts if n]
        if failed:
            assert isinstance(failed, tuple), failed
            done.append(f"failed: {', '.join(map(str, failed))}")
        assert isinstance(took_ms, int | float), took_ms
        text = f"{', '.join(done) or 'nothing to do'}, in {span(took_ms)}"
        yield (at_ms, "maintenance", str(shard), text)


def _actions(facts: Facts) -> Iterator[_Mark]:
    for at_ms, (action, target, outcome, _) in facts.actions.rows:
        if outcome == "refused" or action in _MARKED_BY_EFFECT:
            continue
        about = None if target is None else str(target)
        text = str(action).replace("_", " ")
        if action in _OF_APPLICATION:
            about, text = None, f"{text} {target}" if target else text
        elif action == "expire_hold" and about is not None:
            about, _, hold = about.partition("/")
            text = f"{text} {hold}"
        yield (at_ms, "action", about, text if outcome == "done" else f"{text}: outcome unknown")


def _short_pauses(facts: Facts) -> Iterator[_Mark]:
    """Pauses that ended before the next look at verdicts, which are looked at once a second.

    Only their actions tell of them. Any other pause has a verdict between the end of the one before
    and its own, as long as verdicts of that time are kept.
    """
    paused_at: dict[str, list[int]] = {}
    for at_ms, row in facts.verdict_changes.rows:
        if row[2] == "paused":
            paused_at.setdefault(str(row[0]), []).append(at_ms)
    kept_since_ms = facts.verdict_changes.horizon_ms or 0
    began: dict[str, int] = {}
    ended: dict[str, int] = {}
    for at_ms, (action, target, outcome, _) in facts.actions.rows:
        name = str(target)
        if action == "pause" and outcome == "done":
            began.setdefault(name, at_ms)
        elif action == "resume" and outcome != "refused":
            before_ms, ended[name] = ended.get(name, -1), at_ms
            began_ms = began.pop(name, None)
            # Of one that may have been done it is not known when the pause ended.
            if began_ms is None or began_ms < kept_since_ms or outcome == "unknown":
                continue
            if not any(before_ms < t <= at_ms for t in paused_at.get(name, ())):
                yield (began_ms, "pause", name, "it was stopped for a moment")
                yield (at_ms, "start", name, "resumed")


_SOURCES: Final = (
    "verdict_history",
    "definition_history",
    "maintenance",
    "action_history",
    "run_history",
)

MARKS: Final = (
    Relation(
        "events",
        "Something has happened: a mark of the time line",
        (
            Column("occurred_at", AT, "when"),
            Column("kind", TEXT, f"{', '.join(get_args(Kind)[:-1])} or {get_args(Kind)[-1]}"),
            Column(
                "object_id",
                TEXT,
                "the object; of maintenance, and of what a person does to it, the shard; NULL: the "
                "application",
            ),
            Column("message", TEXT, "what, in a few words"),
        ),
        _events,
        "object_id",
        _SOURCES,
        # Not those of maintenance: a shard that is busy fills its thousand rows in a few days, and
        # what happened to objects before that is known all the same.
        past=Past(_events, ("verdict_history", "definition_history", "action_history")),
    ),
)
