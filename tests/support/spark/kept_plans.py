"""Kept plans are compared with the ordinary way in each step, over all rows and in pieces.

A view proves a plan once, and runs one in pieces over many rows only: most tests have few of both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from shardline.app.compute.view.kept_jobs import KeptJobs, StepJob
from shardline.datasource.spark_native import kept_job
from shardline.datasource.spark_native.kept_job import KeptJob, NotKept

if TYPE_CHECKING:
    from collections.abc import Hashable

    import pyarrow as pa

__all__ = ["Compared", "compare_kept_plans", "counted"]


@dataclass(slots=True)
class Compared:
    """What became of the plans of a test.

    Attributes:
        runs: How many results were compared.
        in_pieces: How many of them were computed in pieces, too.
        refused: How many plans were not kept, by the reason.
    """

    runs: int = 0
    in_pieces: int = 0
    refused: Counter[str] = field(default_factory=Counter)


@contextmanager
def compare_kept_plans() -> Iterator[Compared]:
    """Plan each job at once, in the block, and compare its rows in each step."""
    compared, plans = Compared(), dict[tuple[int, "Hashable"], KeptJob | None]()

    def plan(job: StepJob) -> KeptJob | None:
        try:
            return job.plan()
        except NotKept as refused:
            compared.refused[str(refused)] += 1
            return None

    def rows(jobs: KeptJobs, job: StepJob) -> pa.Table | None:
        key = (id(jobs), job.key)
        if key not in plans:
            plans[key] = plan(job)
        kept, tables = plans[key], [one.table for one in job.few_rows.values()]
        if kept is None or not kept.takes(tables):
            return job.ordinary()
        found, error = _both(kept, tables)
        if isinstance(error, NotKept):
            compared.refused[str(error)] += 1
            plans[key] = None
            return job.ordinary()
        wanted = job.ordinary()
        if wanted is None:
            return None
        assert error is None, f"only the kept plan fails: {error}"
        for one in found:
            assert counted(one) == counted(wanted), kept
        compared.runs += 1
        compared.in_pieces += len(found) > 1
        return found[0]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(KeptJobs, "rows", rows)
        yield compared


def _both(kept: KeptJob, tables: Sequence[pa.Table]) -> tuple[list[pa.Table], Exception | None]:
    """The result over all rows, and in pieces if they can be split; or what fails."""
    found: list[pa.Table] = []
    for least in (kept_job._PIECES_MIN, 0):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(kept_job, "_PIECES_MIN", least)
            try:
                if not found or kept.kind_of_run(tables) == "in pieces":
                    found.append(kept.run(tables, is_told=False))
            except Exception as raised:  # noqa: BLE001 - the ordinary way must fail, too
                return found, raised
    return found, None


def counted(rows: pa.Table | None) -> Counter[str]:
    """How often each row is there; NaN is equal to itself."""
    return Counter() if rows is None else Counter(map(repr, rows.to_pylist()))
