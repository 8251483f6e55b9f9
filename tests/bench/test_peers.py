"""The table of peers has each format's time against the Parquet of its own Spark."""

from __future__ import annotations

from bench.peers import table


def cost(wall: float, cpu: float) -> dict[str, float]:
    return {"wall": wall, "cpu": cpu}


def test_times_are_compared_within_one_spark() -> None:
    found = table(
        {
            "shard": {
                "read": {"parquet": cost(2.0, 4.0), "shard": cost(1.0, 4.0)},
                "write": {"parquet": cost(1, 1), "shard": cost(1.5, 2)},
            },
            "Delta": {
                "read": {"parquet": cost(1.0, 2.0), "delta": cost(3.0, 1.0)},
                "write": {"parquet": cost(4, 2), "delta": cost(1, 1)},
            },
        }
    )
    assert found.splitlines() == [
        "| | shard | Delta |",
        "|---|---|---|",
        "| read | 0.50 (1.00) | 3.00 (0.50) |",
        "| write | 1.50 (2.00) | 0.25 (0.50) |",
    ]
