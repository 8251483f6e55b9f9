"""Runs Delta and Iceberg beside a shard, on the same rows, and prints the table of the README.

    PYTHONPATH=tests ./spark-submit.sh python -m bench.peers [--scale 0.25] [--rounds 3]

Each format runs under the newest Spark that it supports, in an environment of its own, which is
made once below the folder: PySpark from PyPI, the format's jars from Maven Central, both by their
ordinary clients. A cell has two ratios to that same Spark's own Parquet, in one run and in turns,
so that Sparks of different versions and machines with other work can be compared: the time, and in
brackets the CPU seconds of all processes ("–" if some ended in each round); above 1 is slower.
What cannot be had is said and left out. The seconds themselves are in `peers.json` in the folder.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from bench.copies import lineitem

__all__ = ["main", "table"]

_JOB = Path(__file__).with_name("peer_job.py")

_OURS = ("SPARK_", "PYSPARK_", "PYTHON")
"""Beginnings of the names of what `spark-submit.sh` sets for this project's own Spark."""


@dataclass(frozen=True, slots=True)
class _Peer:
    """A format that is compared.

    Attributes:
        title: In the table.
        kind: Its name in `peer_job`.
        python: What its environment installs.
        jars: Coordinates of its jars, for `spark.jars.packages`.
    """

    title: str
    kind: str
    python: tuple[str, ...]
    jars: str


_PEERS = (
    _Peer("Delta 4.4", "delta", ("pyspark==4.2.*",), "io.delta:delta-spark_{spark}_2.13:4.4.0"),
    _Peer(
        "Iceberg 1.12",
        "iceberg",
        ("pyspark==4.1.*",),
        "org.apache.iceberg:iceberg-spark-runtime-{spark}_2.13:1.12.0",
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with `arguments`; the exit status is 1 if a peer is missing."""
    parser = argparse.ArgumentParser("bench.peers", description=__doc__)
    parser.add_argument("--scale", type=float, default=0.25, help="of TPC-H; 1 is 6 M rows")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default="data/bench")
    given = parser.parse_args(arguments)
    folder = Path(given.folder).resolve()
    data = lineitem(folder, given.scale)
    common: Any = {"data": data, "folder": folder, "rounds": given.rounds}
    found: dict[str, Mapping[str, Any]] = {}
    found["shard"] = _run(Path(sys.executable), "shard", "", **common)
    missing = {}
    for peer in _PEERS:
        try:
            python = _environment(folder / "peers" / peer.kind, peer)
            jars = peer.jars.format(spark=_spark_of(python))
            ran = _run(python, peer.kind, jars, **common)
            found[f"{peer.title}, Spark {ran['spark']}"] = ran
        except subprocess.CalledProcessError as error:
            missing[peer.title] = (error.stderr or str(error)).strip()[-2000:]
    (folder / "peers.json").write_text(json.dumps(found, indent=1))
    print(table({title: one["found"] for title, one in found.items()}))
    for what in found["shard"]["bytes"]:
        cells = [f"{one['bytes'][what]:.1f}" for one in found.values()]
        print(f"| {what} | {' | '.join(cells)} |")
    for title, reason in missing.items():
        print(f"{title} could not be had: {reason}")
    return 1 if missing else 0


def table(found: Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]]) -> str:
    """A table in Markdown: each format's cost against Parquet of the same Spark.

    Args:
        found: By format, then by question: the costs of `parquet` and of the format, each as
            seconds `wall` and `cpu`.
    """
    lines = [f"| | {' | '.join(found)} |", "|---|" + "---|" * len(found)]
    for question in next(iter(found.values())):
        cells = []
        for sides in found.values():
            [own] = [cost for side, cost in sides[question].items() if side != "parquet"]
            wall, cpu = (own[what] / sides[question]["parquet"][what] for what in ("wall", "cpu"))
            cells.append(f"{wall:.2f} ({cpu:.2f})" if 0 < cpu < inf else f"{wall:.2f} (–)")
        lines.append(f"| {question} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _environment(place: Path, peer: _Peer) -> Path:
    """The Python of the peer's environment, which is made if it is not whole."""
    python = place / "bin" / "python"
    if not (place / "whole").exists():
        shutil.rmtree(place, ignore_errors=True)
        venv.create(place, with_pip=True)
        _call([str(python), "-m", "pip", "install", "-q", "pyarrow", "pandas", *peer.python])
        (place / "whole").touch()
    return python


def _spark_of(python: Path) -> str:
    """The minor version of an environment's Spark, as names of artefacts have it."""
    code = "import pyspark; print('.'.join(pyspark.__version__.split('.')[:2]))"
    return _call([str(python), "-c", code]).strip()


def _run(
    python: Path, kind: str, jars: str, *, data: Path, folder: Path, rounds: int
) -> Mapping[str, Any]:
    """What the job has printed; its tables are removed."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        said = _call([str(python), str(_JOB), kind, str(data), place, str(rounds), jars])
    ran: Mapping[str, Any] = json.loads(said.strip().splitlines()[-1])
    return ran


def _call(command: Sequence[str]) -> str:
    own = command[0] == sys.executable
    environment = {k: v for k, v in os.environ.items() if own or not k.startswith(_OURS)}
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        environment[name] = command[0]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
