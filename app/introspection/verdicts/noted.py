"""Notes verdicts that have changed: the history of verdicts, and since when each one holds.

    note_verdicts(facts, now_ms)      once a second, by the sink

A lag that goes to and fro over the limit would fill a history and a terminal with lines that nobody
can use. So a change is noted when a second look sees the same; that an object falls behind, once it
has done so for ten seconds; that another one waits for it, not before. Only what is bad, other than
late, is noted at once, and that there are errors once they are known.

A verdict whose cause has become another one is noted again, with the time since which it holds: who
looks back would else read of an error that had been mended for hours.
"""

from __future__ import annotations

import re
from typing import Final

from shardline.app.execution.causes import without_run_ids
from shardline.app.introspection.facts import Facts, NotedVerdict
from shardline.app.introspection.histories import SUBSCRIPTION
from shardline.app.introspection.verdicts.judged import judge_facts
from shardline.app.introspection.verdicts.situation import Judged, Judgement, Situation
from shardline.app.protocol.object_state import FAILED_VERDICTS

__all__ = ["note_verdicts"]

_LATE_MS: Final = 10_000
"""Shortest time after which it is noted that an object falls behind: one long step is no news, and
the first steps after a start are long."""


def _is_not_noted(facts: Facts, name: str) -> bool:
    """True if the present verdict of an object is another than what is noted of it."""
    judged, noted = facts.judgements.get(name), facts.verdicts.get(name)
    return judged is not None and noted is not None and noted.verdict != judged.verdict


def _lacks_error(one: Situation) -> bool:
    """True of an object of whose errors only the number is known.

    Its shard has been looked at before its report has come, which says what they are.
    """
    return one.errors > 0 and not one.error


_NUMBERS: Final = re.compile(r"\d+")


def _cause(found: Judged, name: str) -> tuple[str, str]:
    """The object to blame for a verdict, and the error, without numbers and ids of runs."""
    judgement = found.judgements[name]
    if judgement.verdict not in FAILED_VERDICTS and not judgement.blame:
        return ("", "")
    root = found.situations[judgement.blame or name]
    return judgement.blame, _NUMBERS.sub("", without_run_ids(root.lost or root.error))


def _is_seen_again(
    facts: Facts, noted: NotedVerdict, judgement: Judgement, cause: tuple[str, str], now_ms: int
) -> bool:
    """True if this look has seen the same as the last ones, and for long enough."""
    verdict = judgement.verdict
    is_same = verdict == noted.verdict
    # What another verdict is due to may change from look to look, and it is seen again.
    seen = (verdict, cause if is_same else None)
    if noted.pending != seen:
        noted.pending, noted.pending_ms = seen, now_ms
        return False
    blamed = facts.judgements.get(judgement.blame)
    # Of inputs that are late, now this one is the worst and now that one.
    is_late = is_same and blamed is not None and blamed.verdict not in FAILED_VERDICTS
    if (verdict == "falling behind" or is_late) and now_ms - noted.pending_ms < _LATE_MS:
        return False
    # Else it would wait for something that is well, as far as is noted.
    return verdict != "waiting" or not _is_not_noted(facts, judgement.blame)


def note_verdicts(facts: Facts, now_ms: int) -> None:
    """Note the verdicts that have changed since the last call.

    Args:
        facts: Their judgements, verdicts and the history of these are changed.
        now_ms: Now, ms since the epoch.
    """
    found = judge_facts(facts, now_ms)
    facts.judgements = judged = found.judgements
    for name in facts.verdicts.keys() - judged.keys():
        del facts.verdicts[name]
    for name, judgement in judged.items():
        noted, verdict, cause = facts.verdicts.get(name), judgement.verdict, _cause(found, name)
        since_ms = now_ms
        if noted is not None:
            if (noted.verdict, noted.cause) == (verdict, cause):
                noted.pending = None
                continue
            is_same = noted.verdict == verdict
            is_known = verdict in FAILED_VERDICTS and not _lacks_error(found.situations[name])
            if (is_same or not is_known) and not _is_seen_again(
                facts, noted, judgement, cause, now_ms
            ):
                continue
            since_ms = noted.since_ms if is_same else now_ms
        facts.verdicts[name] = NotedVerdict(verdict, since_ms, cause)
        if found.situations[name].kind == SUBSCRIPTION:
            continue  # it comes and goes with its client: so would the rows of all others
        texts = (judgement.because or None, judgement.to_do or None, judgement.blame or None)
        row = (name, found.situations[name].kind, verdict, *texts, since_ms)
        facts.verdict_changes.add(now_ms, row)
