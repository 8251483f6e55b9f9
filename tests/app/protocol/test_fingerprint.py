"""Fingerprints: when two descriptions are the same definition, and what earlier versions said."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from shardline.app.protocol.fingerprint import accepted_fingerprints, fingerprint
from shardline.app.protocol.objects import SinkDescription

SINK = SinkDescription(name="out", on="delays", format="parquet", options={"path": "/out"})
COPY = SinkDescription(
    name="out",
    on="delays",
    format="shard",
    options={
        "path": "s3://b/copy",
        "s3.access-key-id": "a",
        "s3.secret-access-key": "b",
        "leaseMs": "5",
    },
)

ELSEWHERE = replace(COPY, options={"path": "oss://b/copy", "fsspec.key": "a", "fsspec.secret": "b"})

STORED = {
    "e3103ccb11ce8c40": SINK,
    "677178c4ee6bb868": COPY,
    "36021d69f2526453": ELSEWHERE,
    "29a9db22d013ea44": ELSEWHERE,
}
"""Fingerprints as versions have stored them: the last one by a version that did not know that
`fsspec.key` is a credential, the others by one that left out the interval alone."""


def test_how_often_a_sink_writes_is_not_what_it_is() -> None:
    """A sink whose interval is changed goes on with the target that it has; another path is not."""
    often = replace(SINK, options={**SINK.options, "interval": "1s"})
    assert fingerprint(often) == fingerprint(SINK)
    assert fingerprint(replace(SINK, options={"path": "/other"})) != fingerprint(SINK)
    assert fingerprint(replace(SINK, envelope="none")) != fingerprint(SINK)


@pytest.mark.parametrize(
    ("format_", "harmless"),
    [
        ("parquet", ["Interval", "compression", "fs.s3a.secret.key", "parquet.block.size"]),
        ("csv", ["codec", "maxRecordsPerFile", "fs.s3a.access.key", "fs.s3a.session.token"]),
        ("shard", ["s3.access-key-id", "s3.secret-access-key", "s3.session-token", "mergeSchema"]),
        ("shard", ["partBufferBytes", "LEASEMS", "s3.pool-size", "comment", "fsspec.token"]),
        ("shard", ["fsspec.key", "fsspec.secret", "fsspec.account_key", "fsspec.client_id"]),
        ("delta", ["mergeSchema", "fs.azure.account.key.me.dfs.core.windows.net"]),
        ("orc", ["fs.azure.sas.box.me.blob.core.windows.net", "fs.azure.account.oauth2.client.id"]),
        ("json", ["fs.azure.account.oauth2.client.id.me.dfs.core.windows.net"]),
        ("kafka", ["kafka.sasl.jaas.config", "kafka.ssl.keystore.location", "kafka.linger.ms"]),
        ("jdbc", ["password"]),
    ],
)
def test_a_credential_or_a_size_is_not_what_a_sink_is(format_: str, harmless: list[str]) -> None:
    """What decides neither rows nor target may be set, changed and taken away again."""
    sink = replace(SINK, format=format_)
    for name in harmless:
        for value in ("1", "2"):
            tuned = replace(sink, options={**SINK.options, name: value})
            assert fingerprint(tuned) == fingerprint(sink), name


@pytest.mark.parametrize(
    ("format_", "deciding"),
    [
        ("parquet", ["partitionBy", "fs.s3a.endpoint"]),
        ("csv", ["sep", "header"]),
        ("shard", ["location", "shard", "s3.endpoint", "fsspec.endpoint_url", "key"]),
        ("shard", ["fsspec.connection_string", "fsspec.account_name", "fsspec.keyspace"]),
        ("mqtt", ["clientId", "client_id", "key", "account.oauth2.client.id"]),
        ("kafka", ["topic", "kafka.bootstrap.servers"]),
        ("jdbc", ["url", "dbtable", "user"]),
    ],
)
def test_where_and_in_which_form_rows_go_is_what_a_sink_is(
    format_: str, deciding: list[str]
) -> None:
    """Options that decide rows or target tell definitions apart, and so do those not known."""
    sink = replace(SINK, format=format_)
    for name in [*deciding, "unknown"]:
        other = replace(sink, options={**SINK.options, name: "1"})
        assert fingerprint(other) != fingerprint(sink), name


@pytest.mark.parametrize("stored", STORED)
def test_what_an_earlier_version_has_stored_is_accepted(stored: str) -> None:
    """A definition that has not changed since is the same one."""
    assert stored in accepted_fingerprints(STORED[stored])


def test_a_definition_without_such_options_has_one_fingerprint() -> None:
    """Of most sinks nothing changes with the version."""
    assert accepted_fingerprints(SINK) == (fingerprint(SINK),) == ("e3103ccb11ce8c40",)
