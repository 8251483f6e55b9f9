"""Runs other engines for incremental views beside ours, on the same rows, and prints a table.

    PYTHONPATH=tests ./spark-submit.sh python -m bench.engines [--rows 1000000] [--changed 1000]

The view is a join of orders with their customers and a GROUP BY. In each round some orders get
another price, their rows go and others come, and the view must be up to that. Each engine runs in
a process of its own, and its clock starts when all rows and changes are read: dbsp and differential
dataflow by the programs in `engine_jobs`, which cargo builds once below the folder (dbsp has four
hundred crates, and takes a quarter of an hour on one core), Pathway in an environment of its own,
DuckDB by running the query anew, and this project with all that it makes durable.

The contents of each view in the end are compared with DuckDB's; an engine with others is not in the
table. What cannot be had is said and left out. All milliseconds are in `engines.json` in the
folder.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
from pyarrow import csv

from bench.environments import Unavailable, call, environment
from bench.orders import Orders

__all__ = ["Measured", "WrongContents", "check_contents", "main", "outcome", "table"]

_JOBS = Path(__file__).with_name("engine_jobs")
_TESTS = Path(__file__).parents[1]

_WARM = 40
"""Rounds before those that are measured: the JVM compiles code, and kept plans are proved."""

_WORKERS = (1, 2)

_PATHWAY = "0.33"


class WrongContents(Exception):
    """A view has other rows than it must have; the message says which."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What an engine has reported.

    Attributes:
        first_ms: From rows in the process's memory to the first contents of the view.
        rounds_ms: Each round, those that warm up apart.
        memory_mib: Resident after the last round, in all of the engine's processes.
        parts: Of the rounds: by name, each one's share in milliseconds.
    """

    first_ms: float
    rounds_ms: Sequence[float]
    memory_mib: float
    parts: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Work:
    """What is measured, and where.

    Attributes:
        rows: Orders.
        changed: Of them in each round.
        rounds: Those that are measured.
        folder: Of environments and builds.
        place: Of the rows, and of what engines leave; removed afterwards.
    """

    rows: int
    changed: int
    rounds: int
    folder: Path
    place: Path


@dataclass(frozen=True, slots=True)
class _Engine:
    """An engine that is compared.

    Attributes:
        title: In the table.
        run: Lets it do the work, and leave the contents of its view in a file; the text that it
            prints ends with a line of JSON.
    """

    title: str
    run: Callable[[_Work, Path], str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with `arguments`; the exit status is 1 if an engine is missing or wrong."""
    parser = argparse.ArgumentParser("bench.engines", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="orders")
    parser.add_argument("--changed", type=int, default=1_000, help="orders, in each round")
    parser.add_argument("--rounds", type=int, default=20, help="that are measured")
    parser.add_argument("--folder", default="data/bench", help="of builds and environments")
    given = parser.parse_args(arguments)
    folder = Path(given.folder).resolve() / "engines"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        work = _Work(given.rows, given.changed, given.rounds, folder, Path(place))
        _write(work)
        expected: list[str] = []
        found: dict[str, Measured] = {}
        failed: dict[str, Exception] = {}
        for engine in _engines():
            print(f"{engine.title} …", file=sys.stderr)
            try:
                measured, contents = _run(engine, work)
                # DuckDB is the first one, and without it nothing is known to be right.
                expected = expected or contents
                check_contents(expected, contents)
                found[engine.title] = measured
            except (Unavailable, WrongContents) as error:
                failed[engine.title] = error
                if not expected:
                    break
    reported = {title: one.rounds_ms for title, one in found.items()}
    (folder.parent / "engines.json").write_text(json.dumps(reported, indent=1))
    print(outcome(found, failed))
    return 1 if failed else 0


def outcome(found: Mapping[str, Measured], failed: Mapping[str, Exception]) -> str:
    """The table, and a line for each engine that is not in it."""
    lines = [table(found)]
    for title, error in failed.items():
        what = "is wrong" if isinstance(error, WrongContents) else "could not be had"
        lines.append(f"{title} {what}: {error}")
    return "\n".join(lines)


def table(found: Mapping[str, Measured]) -> str:
    """A table in Markdown: a line for each engine, and for each part of its rounds."""
    lines = [
        "| | first contents, s | a round, median, ms | best, ms | memory, MiB |",
        "|---|---|---|---|---|",
    ]
    for title, one in found.items():
        first, memory = f"{one.first_ms / 1000.0:.2f}", f"{one.memory_mib:,.0f}"
        lines.append(f"| {title} | {first} | {_milliseconds(one.rounds_ms)} | {memory} |")
        lines += [f"| of it {part} | | {_milliseconds(ms)} | |" for part, ms in one.parts.items()]
    return "\n".join(lines)


def _milliseconds(taken: Sequence[float]) -> str:
    return f"{median(taken):.1f} | {min(taken):.1f}"


def check_contents(expected: Iterable[str], found: Iterable[str]) -> None:
    """Compare the rows of a view with those that it must have, in any order.

    Raises:
        WrongContents: They differ.
    """
    wanted, have = Counter(expected), Counter(found)
    lines = []
    for what, rows in (("missing", wanted - have), ("too many", have - wanted)):
        if rows:
            lines.append(f"{rows.total():,} rows are {what}, such as {min(rows)!r}")
    if lines:
        raise WrongContents(" and ".join(lines))


def _write(work: _Work) -> None:
    """Write the rows and changes that engines read."""
    orders = Orders(work.rows)
    _write_csv(orders.customers(), work.place / "customers.csv")
    _write_csv(pa.concat_tables(orders.orders()), work.place / "orders.csv")
    changes = []
    for number in range(_WARM + work.rounds):
        for rows, diff in zip(orders.change_prices(work.changed), (-1, 1), strict=True):
            round_ = pa.repeat(pa.scalar(number, pa.int64()), rows.num_rows)
            diffs = pa.repeat(pa.scalar(diff, pa.int64()), rows.num_rows)
            changes.append(rows.add_column(0, "round", round_).append_column("diff", diffs))
    _write_csv(pa.concat_tables(changes), work.place / "changes.csv")


def _write_csv(rows: pa.Table, place: Path) -> None:
    csv.write_csv(rows, place, csv.WriteOptions(quoting_style="none"))


def _run(engine: _Engine, work: _Work) -> tuple[Measured, list[str]]:
    contents = work.place / "contents.csv"
    told = engine.run(work, contents)
    rows = contents.read_text().splitlines()
    contents.unlink()
    return Measured(**json.loads(told.strip().splitlines()[-1])), rows


def _engines() -> list[_Engine]:
    """All that are compared; DuckDB, whose contents are taken for right, is the first."""
    engines = [_Engine(f"DuckDB {version('duckdb')}, the query anew", _run_duckdb)]
    for name, crate in (("differential", "differential-dataflow"), ("dbsp", "dbsp")):
        title = f"{crate} {_locked(name, crate)}"
        engines += _by_workers(title, lambda *given, name=name: _run_crate(name, *given))
    engines += _by_workers(f"Pathway {_PATHWAY}", _run_pathway)
    ours = f"Shardline {version('shardline')}, Spark {version('pyspark')}, durable"
    return [*engines, _Engine(ours, _run_shardline)]


def _by_workers(title: str, run: Callable[[_Work, Path, int], str]) -> list[_Engine]:
    def with_workers(workers: int) -> _Engine:
        named = f"{title}, {workers} worker{'s' if workers > 1 else ''}"
        return _Engine(named, lambda work, contents: run(work, contents, workers))

    return [with_workers(workers) for workers in _WORKERS]


def _run_duckdb(work: _Work, contents: Path) -> str:
    return call([sys.executable, *_job("duckdb_job", work, contents)])


def _run_pathway(work: _Work, contents: Path, workers: int) -> str:
    python = environment(work.folder / "pathway", [f"pathway=={_PATHWAY}.*"])
    job = _job("pathway_job", work, contents)
    return call([str(python), *job], PYTHONPATH=str(_TESTS), PATHWAY_THREADS=str(workers))


def _job(name: str, work: _Work, contents: Path) -> list[str]:
    return ["-m", f"bench.engine_jobs.{name}", str(work.place), str(_WARM), str(contents)]


def _run_crate(name: str, work: _Work, contents: Path, workers: int) -> str:
    cargo = shutil.which("cargo")
    if cargo is None:
        raise Unavailable("there is no cargo on PATH")
    target, manifest = work.folder / name, _JOBS / name / "Cargo.toml"
    build = [cargo, "build", "-q", "--release", "--locked", "--target-dir", str(target)]
    call([*build, "--manifest-path", str(manifest)])
    program = target / "release" / f"{name}_job"
    return call([str(program), str(work.place), str(_WARM), str(contents), str(workers)])


def _run_shardline(work: _Work, contents: Path) -> str:
    return call([sys.executable, *_job("shardline_job", work, contents)])


def _locked(name: str, crate: str) -> str:
    """The version of a crate that a program is built with."""
    lock: Any = tomllib.loads((_JOBS / name / "Cargo.lock").read_text())
    [found] = (each["version"] for each in lock["package"] if each["name"] == crate)
    return str(found)


if __name__ == "__main__":
    sys.exit(main())
