"""The table of peers has each format's time against the Parquet of its own Spark."""

from __future__ import annotations

from bench.peers import table


def test_times_are_compared_within_one_spark() -> None:
    found = table(
        {
            "shard": {
                "read": {"parquet": 2.0, "shard": 1.0},
                "write": {"parquet": 1, "shard": 1.5},
            },
            "Delta": {"read": {"parquet": 1.0, "delta": 3.0}, "write": {"parquet": 4, "delta": 1}},
        }
    )
    assert found.splitlines() == [
        "| | shard | Delta |",
        "|---|---|---|",
        "| read | 0.50 | 3.00 |",
        "| write | 1.50 | 0.25 |",
    ]
