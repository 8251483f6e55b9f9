"""Descriptions: when two of them are the same definition."""

from __future__ import annotations

from msgspec.structs import replace

from shardline.app.protocol.objects import SinkDescription, fingerprint

SINK = SinkDescription(name="out", on="delays", format="parquet", options={"path": "/out"})


def test_how_often_a_sink_writes_is_not_what_it_is() -> None:
    """A sink whose interval is changed goes on with the target that it has; another path is not."""
    often = replace(SINK, options={**SINK.options, "interval": "1s"})
    assert fingerprint(often) == fingerprint(SINK)
    assert fingerprint(replace(SINK, options={"path": "/other"})) != fingerprint(SINK)
    assert fingerprint(replace(SINK, envelope="none")) != fingerprint(SINK)
