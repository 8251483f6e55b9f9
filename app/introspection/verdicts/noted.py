"""Notes verdicts that have changed: the history of verdicts, and since when each one holds.

    note_verdicts(facts, now_ms)      once a second, by the sink

A lag that goes to and fro over the limit would fill a history and a terminal with lines that nobody
can use. So a change is noted when a second look sees the same; that an object falls behind, once it
has done so for ten seconds; that another one waits for it, not before. Only what is bad, other than
late, is noted at once, and that there are errors once they are known.
"""

from __future__ import annotations

from typing import Final

from shardline.app.introspection.facts import Facts, NotedVerdict
from shardline.app.introspection.histories import SUBSCRIPTION
from shardline.app.introspection.verdicts.judged import judge_facts
from shardline.app.introspection.verdicts.situation import Situation
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
        noted, verdict = facts.verdicts.get(name), judgement.verdict
        if noted is not None and noted.verdict == verdict:
            noted.pending = None
            continue
        is_known = verdict in FAILED_VERDICTS and not _lacks_error(found.situations[name])
        if noted is not None and not is_known:
            if noted.pending != verdict:
                noted.pending, noted.pending_ms = verdict, now_ms
                continue
            if verdict == "falling behind" and now_ms - noted.pending_ms < _LATE_MS:
                continue
            if verdict == "waiting" and _is_not_noted(facts, judgement.blame):
                continue  # it would wait for something that is well, as far as is noted
        facts.verdicts[name] = NotedVerdict(verdict, now_ms)
        if found.situations[name].kind == SUBSCRIPTION:
            continue  # it comes and goes with its client: so would the rows of all others
        texts = (judgement.because or None, judgement.to_do or None, judgement.blame or None)
        row = (name, found.situations[name].kind, verdict, *texts)
        facts.verdict_changes.add(now_ms, row)
