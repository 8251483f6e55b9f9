"""`EXPLAIN` names the strategy of a query, and the reason, without Spark."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from shardline.app.compute.peek.explain import explain_peek
from shardline.app.protocol.objects import IndexDescription
from shardline.datasource.errors import InvalidUsage
from support.fakes.reads import Place

SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string())])
BY_K = IndexDescription(name="t_k", on="t", key=("k",))
OTHER = IndexDescription(name="u_k", on="u", key=("k",))


@pytest.fixture
def place() -> Iterator[Place]:
    found = Place()
    found.put("t", [((n, "x" * 50), 5, 1) for n in range(100)], 10, SCHEMA)
    yield found
    found.close()


@pytest.mark.parametrize(
    ("query", "inputs", "indexes", "strategy", "reason"),
    [
        ("SELECT 1", (), (), "constant", "no object"),
        ("SELECT * FROM t, u", ("t", "u"), (), "standard", "several objects"),
        ("SELECT 1", ("introspection.x", "t"), (), "standard", "relations"),
        ("SELECT count(*) FROM t", ("t",), (BY_K,), "standard", "more than columns"),
        ("SELECT s FROM t WHERE k = 3", ("t",), (OTHER, BY_K), "index", "looked up by k in 't_k'"),
        ("SELECT s FROM t WHERE s = 'a'", ("t",), (BY_K,), "index", "scanned in 't_k'"),
        ("SELECT s FROM t WHERE k = 3", ("t",), (OTHER,), "shard", "bytes of 1 parts"),
        ("SELECT s FROM t WHERE k = 300", ("t",), (), "shard", "0 bytes of 0 parts"),
    ],
)
def test_each_strategy_is_told_with_its_reason(  # noqa: PLR0917 - drawn by name
    place: Place,
    query: str,
    inputs: tuple[str, ...],
    indexes: tuple[IndexDescription, ...],
    strategy: str,
    reason: str,
) -> None:
    """In the order in which they are tried."""
    found = explain_peek(
        place.client, query, inputs, None, indexes=indexes, zone="UTC", shard_bytes=1 << 20
    )
    assert found.strategy == strategy
    assert reason in found.reason


def test_too_much_to_read_is_for_spark_and_names_the_setting(place: Place) -> None:
    """And a time before the since cannot be explained, as it cannot be read."""
    found = explain_peek(
        place.client, "SELECT * FROM t", ("t",), 7, indexes=(), zone="UTC", shard_bytes=1
    )
    assert found.strategy == "standard"
    assert "direct_read_limit" in found.reason
    with pytest.raises(InvalidUsage, match="SHARD_NOT_FOUND"):
        explain_peek(place.client, "q", ("u",), 7, indexes=(), zone="UTC", shard_bytes=1)
