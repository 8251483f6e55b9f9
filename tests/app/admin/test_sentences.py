"""Sentences say what a verb would do, of one thing as of many."""

from __future__ import annotations

import pytest

from shardline.app.admin.plans import (
    CompactPlan,
    ExpiredReader,
    ExpirePlan,
    GcPlan,
    MergeStep,
    SweepPlan,
)
from shardline.app.admin.sentences import DescribedPlan, describe_plan
from shardline.datasource.shard.references import Amount

MERGE = MergeStep(
    lower=0, upper=9, batches=4, parts=4, rows=40, size_bytes=1 << 20, work_bytes=1 << 21
)
READER = ExpiredReader(
    name="report",
    kind="hold",
    owner="a report",
    since=5,
    seqno=None,
    silent_ms=60_000,
    overdue=False,
    breaks="its owner fails",
)
NONE, ONE, MANY = Amount(), Amount(1, 1 << 20), Amount(3, 3 << 20)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (CompactPlan((), 0, 1), ["No merge is due: the shard has 1 batch."]),
        (
            CompactPlan((MERGE,), 1, 20),
            [
                "1 merge is due, of 20 batches; it reads 1.0 MiB. Readers see no difference.",
                "1 range left alone: others merge there.",
            ],
        ),
        (
            CompactPlan((MERGE, MERGE), 2, 20),
            [
                "2 merges are due, of 20 batches; they read 2.0 MiB. Readers see no difference.",
                "2 ranges left alone: others merge there.",
            ],
        ),
        (GcPlan(NONE, NONE, 9, 5), ["There is nothing to collect."]),
        (
            GcPlan(ONE, ONE, 9, 5),
            [
                "1 object of 1.0 MiB that nobody can ask for any more: deleted.",
                "1 object of 1.0 MiB of older states stays: readers hold it.",
            ],
        ),
        (
            GcPlan(NONE, MANY, 9, 5),
            [
                "There is nothing to collect.",
                "3 objects of 3.0 MiB of older states stay: readers hold them.",
            ],
        ),
        (SweepPlan(NONE, NONE, ()), ["There is nothing that nothing refers to."]),
        (
            SweepPlan(ONE, MANY, ()),
            ["4 objects of 4.0 MiB that nothing refers to, left by crashes: deleted."],
        ),
        (
            ExpirePlan((READER,), since=5, since_after=3_600_005, freed=ONE),
            [
                "The hold 'report' of a report is given up; it was heard of 1 min ago.",
                "What that breaks: its owner fails.",
                "The since can then move on by 1 h.",
                "1 object of 1.0 MiB becomes garbage, for a collection to delete.",
            ],
        ),
        (
            ExpirePlan((), since=5, since_after=5, freed=MANY),
            [
                "The since stays: others hold it as well.",
                "3 objects of 3.0 MiB become garbage, for a collection to delete.",
            ],
        ),
        (
            ExpirePlan((), since=5, since_after=None, freed=NONE),
            [
                "The since stays: no reader and no policy is left to move it.",
                "No object becomes garbage by that.",
            ],
        ),
    ],
)
def test_a_plan_is_said_in_sentences(plan: DescribedPlan, said: list[str]) -> None:
    """Numbers and verbs agree; what there is nothing of is said as well."""
    assert describe_plan(plan) == said
