"""A kept plan is used once it is proved, and given up whenever it is in doubt."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from shardline.app.compute.view import kept_jobs
from shardline.app.compute.view.kept_jobs import FewRows, KeptJobs, is_too_much
from shardline.datasource.spark_native.kept_job import KindOfRun, NotKept


def rows(*numbers: float) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.float64())})


@dataclass
class Plan:
    """Stands for a plan of Spark."""

    results: list[pa.Table | Exception]
    fits: bool = True
    told: list[bool] = field(default_factory=list)

    @property
    def runs(self) -> int:
        return len(self.told)

    def takes(self, _tables: list[pa.Table]) -> bool:
        return self.fits

    def kind_of_run(self, tables: list[pa.Table]) -> KindOfRun:
        given: int = sum(table.num_rows for table in tables)
        return "interpreted" if given <= 2 else "generated"

    def run(self, _tables: list[pa.Table], *, is_told: bool) -> pa.Table:
        self.told.append(is_told)
        found = self.results[min(self.runs, len(self.results)) - 1]
        if isinstance(found, Exception):
            raise found
        return found


@dataclass
class Job:
    """A job whose ordinary way gives `result`."""

    result: pa.Table | Exception | None
    planned: Plan | Exception
    key: object = "job"
    few_rows: dict[Any, Any] = field(default_factory=dict)
    ordinary_runs: int = 0
    plans: int = 0

    def plan(self) -> Plan:
        self.plans += 1
        if isinstance(self.planned, Exception):
            raise self.planned
        return self.planned

    def ordinary(self) -> pa.Table | None:
        self.ordinary_runs += 1
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def steps(jobs: KeptJobs, job: Any, times: int) -> list[pa.Table | None]:
    return [jobs.rows(job) for _ in range(times)]


def test_a_plan_is_proved_before_it_is_used() -> None:
    """By the first step, which is computed both ways; no other one is."""
    job = Job(rows(1, 2, float("nan")), Plan([rows(float("nan"), 2, 1)]))
    jobs = KeptJobs("v")
    (first,) = steps(jobs, job, 1)
    assert first is job.result
    assert (job.plans, job.ordinary_runs) == (1, 1)
    found = steps(jobs, job, 3)
    assert (job.plans, job.ordinary_runs) == (1, 1)
    assert [table.column("n").to_pylist()[1:] for table in found if table] == [[2, 1]] * 3


def test_a_plan_is_proved_for_few_rows_and_for_many() -> None:
    """They run in another way: what is right in the one may be wrong in the other."""
    plan = Plan([rows(1), rows(1), rows(7), rows(1)])
    job, jobs = Job(rows(1), plan), KeptJobs("v")
    job.few_rows = {"t": FewRows(rows(1), StructType())}
    steps(jobs, job, 2)
    assert (plan.runs, job.ordinary_runs) == (2, 1)
    job.few_rows = {"t": FewRows(rows(1, 2, 3), StructType())}
    (found,) = steps(jobs, job, 1)
    assert found == rows(1), "the ordinary way's, not the plan's"
    assert job.ordinary_runs == 2
    job.few_rows = {"t": FewRows(rows(1), StructType())}
    steps(jobs, job, 1)
    assert job.ordinary_runs == 3, "given up for good"


def test_rows_of_a_step_are_counted_once() -> None:
    """By the ordinary way while a plan is proved beside it, and by the plan from then on."""
    plan = Plan([rows(1), rows(1)])
    steps(KeptJobs("v"), Job(rows(1), plan), 3)
    assert plan.told == [False, True, True]


@pytest.mark.parametrize(
    "planned",
    [
        NotKept("a subquery"),
        RuntimeError("a defect"),
        Plan([rows(1)]),
        Plan([rows(1, 2, 2)]),
        Plan([rows()]),
        Plan([RuntimeError("a defect")]),
    ],
)
def test_what_is_in_doubt_is_given_up_for_good(planned: Plan | Exception) -> None:
    """The rows are those of the ordinary way, in each step."""
    job, jobs = Job(rows(1, 2), planned), KeptJobs("v")
    assert [table.num_rows for table in steps(jobs, job, 5) if table] == [2] * 5
    assert (job.plans, job.ordinary_runs) == (1, 5)
    assert isinstance(planned, Exception) or planned.runs == 1


def test_what_is_too_large_to_compare_is_proved_by_a_later_step() -> None:
    """A large change says nothing against a plan, nor for it."""
    job, jobs = Job(None, Plan([rows(1, 2)])), KeptJobs("v")
    assert steps(jobs, job, 3) == [None] * 3
    job.result = rows(2, 1)
    assert [table.num_rows for table in steps(jobs, job, 3) if table] == [2] * 3
    assert (job.plans, job.ordinary_runs) == (1, 4)


def test_too_many_rows_are_not_computed_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asked takes another way, whatever the plan is worth."""
    monkeypatch.setattr(kept_jobs, "RESULT_ROWS_MAX", 2)
    many, few = rows(1, 2, 3), rows(1, 2)
    job, jobs = Job(few, Plan([many, many, few])), KeptJobs("v")
    assert [table.num_rows for table in steps(jobs, job, 4) if table] == [3, 3, 2, 2]
    assert job.ordinary_runs == 1


def test_large_rows_are_neither_given_nor_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """By bytes, where rows are more than a few: whoever asked takes another way."""
    monkeypatch.setattr(kept_jobs, "_ALWAYS_FEW", 1)
    monkeypatch.setattr(kept_jobs, "RESULT_BYTES_MAX", 20)
    many, few = rows(1, 2, 3), rows(1, 2)
    assert [is_too_much(one) for one in (many, few, rows(1))] == [True, False, False]
    job, jobs = Job(few, Plan([many, few])), KeptJobs("v")
    assert [table.num_rows for table in steps(jobs, job, 3) if table] == [3, 2, 2]
    assert job.ordinary_runs == 1
    monkeypatch.setattr(kept_jobs, "_GIVEN_BYTES_MAX", 20)
    job.few_rows = {"leaf": FewRows(many, StructType())}
    assert [table.num_rows for table in steps(jobs, job, 3) if table] == [2] * 3
    assert job.ordinary_runs == 4


def beyond_python() -> pa.Table:
    """Values of Spark's that Python has none for, beside some that only look equal."""
    text = pa.array([b"\xff", b"a", None], pa.binary())
    return pa.table(
        {
            "day": pa.array([-719_529, 2_932_897, None], pa.int32()).cast(pa.date32()),
            "at": pa.array([253_402_300_800_000_000, -(2**62), 0], pa.timestamp("us", "UTC")),
            "text": pa.Array.from_buffers(pa.string(), 3, text.buffers()),
            "days": pa.array(
                [{"day": 2_932_897}, None, {"day": None}], pa.struct([("day", pa.int32())])
            ).cast(pa.struct([("day", pa.date32())])),
            "zero": pa.array([0.0, -0.0, float("nan")]),
        }
    )


def test_rows_that_are_no_values_of_python_prove_a_plan() -> None:
    """Spark has years beyond 9999, and before 1, and text that is no UTF-8."""
    result = beyond_python()
    plan = Plan([result.take([2, 0, 1])])
    job, jobs = Job(result, plan), KeptJobs("v")
    steps(jobs, job, 3)
    assert (plan.runs, job.ordinary_runs) == (3, 1)


def test_rows_that_only_look_the_same_prove_nothing() -> None:
    """Another zero, another text that is no UTF-8, or another type is another row."""
    result = beyond_python()
    other = pa.Array.from_buffers(
        pa.string(), 3, pa.array([b"\xfe", b"a", None], pa.binary()).buffers()
    )
    others = [
        result.set_column(4, "zero", pa.array([0.0, 0.0, float("nan")])),
        result.set_column(2, "text", other),
        result.set_column(0, "day", result["day"].cast(pa.int32()).cast(pa.int64())),
        pa.concat_tables([result, result.slice(0, 1)]),
    ]
    for rows_of_plan in others:
        plan = Plan([rows_of_plan])
        job, jobs = Job(result, plan), KeptJobs("v")
        steps(jobs, job, 4)
        assert (plan.runs, job.ordinary_runs) == (1, 4)


def test_rows_that_cannot_be_compared_prove_nothing() -> None:
    """The step has the rows of the ordinary way."""
    result = pa.table({"a": pa.array([(1, 2, 3)], pa.month_day_nano_interval())})
    plan = Plan([result])
    job, jobs = Job(result, plan), KeptJobs("v")
    assert [table == result for table in steps(jobs, job, 4) if table] == [True] * 4
    assert (plan.runs, job.ordinary_runs) == (1, 4)


def test_a_proved_plan_that_fails_alone_is_given_up() -> None:
    """The step has its rows all the same."""
    plan = Plan([rows(1), rows(1), RuntimeError("a defect"), rows(9)])
    job, jobs = Job(rows(1), plan), KeptJobs("v")
    assert [table.num_rows for table in steps(jobs, job, 6) if table] == [1] * 6
    assert (plan.runs, job.ordinary_runs) == (3, 5)


def test_an_error_of_the_rows_is_told_and_the_plan_stays() -> None:
    """A division by zero is nothing that a plan could do better."""
    error = ArithmeticError("DIVIDE_BY_ZERO")
    plan = Plan([rows(1), error, rows(3)])
    job, jobs = Job(rows(1), plan), KeptJobs("v")
    steps(jobs, job, 1)
    job.result = error
    with pytest.raises(ArithmeticError):
        jobs.rows(job)  # type: ignore[arg-type]
    job.result = rows(2)
    assert [table.to_pylist() for table in steps(jobs, job, 1) if table] == [[{"n": 3.0}]]


def test_rows_of_other_types_go_the_ordinary_way() -> None:
    """And the plan stays for those that fit."""
    plan = Plan([rows(1)])
    job, jobs = Job(rows(1), plan), KeptJobs("v")
    steps(jobs, job, 3)
    plan.fits = False
    steps(jobs, job, 2)
    assert job.ordinary_runs == 3
    plan.fits = True
    steps(jobs, job, 1)
    assert job.ordinary_runs == 3


def test_too_many_rows_prove_nothing() -> None:
    """The ordinary way has none; the plan is given up."""
    job, jobs = Job(None, Plan([rows(1)])), KeptJobs("v")
    assert steps(jobs, job, 4) == [None] * 4
    assert job.plans == 1


def test_plans_that_are_not_used_are_given_up() -> None:
    """A view has no more than it can use: they hold memory in the JVM."""
    jobs, first = KeptJobs("v"), Job(rows(1), Plan([rows(1)]), key="first")
    steps(jobs, first, 3)
    for key in range(64):
        steps(jobs, Job(rows(1), Plan([rows(1)]), key=key), 1)
    steps(jobs, first, 1)
    assert first.ordinary_runs == 2
