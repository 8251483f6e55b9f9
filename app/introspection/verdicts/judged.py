"""Judges all objects once for a moment, whoever asks.

    judge_facts(facts, now_ms).judgements["delays"]

Several relations of a moment are made of verdicts, and with 300 objects a judgement of all takes
15 ms of processor time. It is kept with the facts for as long as both they and the time are the
same; relations that are read together are read at one time.
"""

from __future__ import annotations

from shardline.app.introspection.facts import Facts
from shardline.app.introspection.verdicts.gather import situations
from shardline.app.introspection.verdicts.rules import judge
from shardline.app.introspection.verdicts.situation import Judged

__all__ = ["judge_facts"]


def judge_facts(facts: Facts, now_ms: int) -> Judged:
    """Judge all objects, or return what they were judged to be a moment ago.

    Args:
        facts: Keeps the result; call this under the sink's lock.
        now_ms: Now, ms since the epoch.
    """
    known = facts.judged
    if known is None or (known.at_ms, known.revision) != (now_ms, facts.revision):
        found = situations(facts, now_ms)
        facts.judged = known = Judged(now_ms, facts.revision, found, judge(found))
    return known
