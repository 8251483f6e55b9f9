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
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from bench.copies import lineitem
from bench.environments import Unavailable, call, environment

__all__ = ["main", "table"]

_JOB = Path(__file__).with_name("peer_job.py")


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
            packages = ("pyarrow", "pandas", *peer.python)
            python = environment(folder / "peers" / peer.kind, packages)
            jars = peer.jars.format(spark=_spark_of(python))
            ran = _run(python, peer.kind, jars, **common)
            found[f"{peer.title}, Spark {ran['spark']}"] = ran
        except Unavailable as error:
            missing[peer.title] = str(error)
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


def _spark_of(python: Path) -> str:
    """The minor version of an environment's Spark, as names of artefacts have it."""
    code = "import pyspark; print('.'.join(pyspark.__version__.split('.')[:2]))"
    return call([str(python), "-c", code]).strip()


def _run(
    python: Path, kind: str, jars: str, *, data: Path, folder: Path, rounds: int
) -> Mapping[str, Any]:
    """What the job has printed; its tables are removed."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        said = call([str(python), str(_JOB), kind, str(data), place, str(rounds), jars])
    ran: Mapping[str, Any] = json.loads(said.strip().splitlines()[-1])
    return ran


if __name__ == "__main__":
    sys.exit(main())
