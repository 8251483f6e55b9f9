"""Transactions on S3 alone: conditional creates and nothing else."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from shardline.datasource.client import ShardClient
from shardline.datasource.transactions.transaction import Transaction
from support.models.shards import rows, schema_of, table
from support.processes.s3_server import s3_server

pytestmark = pytest.mark.s3


def transfer(t: Transaction, *, coin: int) -> None:
    t.delete("a", table((coin, "coin")).select(["id"]))
    t.append("b", table((coin, "coin")))


def test_processes_transfer_between_two_shards_of_a_bucket() -> None:
    """Each transaction moves a row from one shard to the other; the sum is there at every time."""
    with s3_server() as server:
        place = f"s3://{server.new_bucket()}/lake"

        def client() -> ShardClient:
            return ShardClient.open(place, server.options)

        first = client()
        for name in "ab":
            first.create(name, schema_of(), key=["id"])
        first.transactions().register("a", "b")
        with first.transaction() as t:
            t.append("a", table(*((n, "coin") for n in range(4))))

        def move(coins: range) -> None:
            own = client()
            for coin in coins:
                own.run_transaction(partial(transfer, coin=coin))

        threads = [threading.Thread(target=move, args=(range(n, 4, 2),)) for n in range(2)]
        for thread in threads:
            thread.start()
        seen = 0
        while any(thread.is_alive() for thread in threads) or not seen:
            seen += 1
            states = first.readable("a", "b")
            as_of = min(state.upper.time or 0 for state in states) - 1
            counts = []
            for name in "ab":
                with first.reader(name, since=as_of) as reader:
                    counts.append(reader.snapshot(as_of).num_rows)
            assert sum(counts) == 4
        for thread in threads:
            thread.join()
        with first.reader("b") as reader:
            assert sorted(row[0] for row in rows(reader.snapshot())) == list(range(4))
