"""One value or more of every command and response of both protocols, with every field set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardline.app.protocol import compute as c
from shardline.app.protocol import storage as s
from shardline.app.protocol.objects import (
    IndexDescription,
    SinkDescription,
    SourceDescription,
    SubscribeDescription,
    ViewDescription,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["MESSAGES"]

VIEW = ViewDescription(
    name="delays",
    query="SELECT carrier, count(*) AS n FROM flights GROUP BY carrier",
    inputs=("flights",),
    schema="carrier STRING, n BIGINT",
    strategy="recompute",
    reason="an aggregate",
    retain_ms=60_000,
)
SOURCE = SourceDescription(
    name="planes",
    format="csv",
    options={"path": "data/planes", "header": "true"},
    schema="tailnum STRING, seats INT",
    envelope="upsert",
    key=("tailnum",),
    retain_ms=3_600_000,
)
SINK = SinkDescription(
    name="out",
    on="delays",
    format="parquet",
    options={"path": "out/delays"},
    envelope="upsert",
    key=("carrier",),
    snapshot=False,
)

MESSAGES: Mapping[str, Sequence[Any]] = {
    "compute command": [
        c.Hello("5f"),
        c.CreateInstance({"shuffle": "8"}),
        c.InitializationComplete(),
        c.AllowWrites(),
        c.UpdateConfiguration({"hydrationConcurrency": "2"}),
        c.CreateDataflow(dataflow=VIEW, as_of=1_700_000_000_000, creation=3),
        c.CreateDataflow(dataflow=IndexDescription(name="i", on="delays", key=("n",)), as_of=-1),
        c.CreateDataflow(
            dataflow=SubscribeDescription(
                name="t1", on="delays", snapshot=False, up_to=9, shard="s0f"
            ),
            as_of=5,
        ),
        c.Schedule("delays"),
        c.AllowCompaction("delays", 7),
        c.AllowCompaction("delays", None),
        c.Peek(uuid="p", query="SELECT 'ü'", inputs=("delays",), as_of=6, limit_bytes=1 << 20),
        c.Peek(
            uuid="q",
            query="SELECT * FROM introspection.verdicts",
            inputs=("introspection.verdicts",),
            as_of=0,
            limit_bytes=9,
            relations_as_of=1_700_000_000_000,
        ),
        c.CancelPeek("p"),
    ],
    "compute response": [
        c.Frontiers(id="delays", write=8, creation=3),
        c.Frontiers(id="delays", write=None, input=3, output=2**63 - 1),
        c.PeekResponse(uuid="p", rows=b"\x00\xffARROW"),
        c.PeekResponse(uuid="p", error="[SINCE_EXCEEDED] too early", kind="invalid_usage"),
        c.PeekResponse(uuid="p", cancelled=True),
        c.SubscribeResponse(id="t1", lower=5, upper=6, updates=b"", shard="s0f"),
        c.SubscribeResponse(id="t1", lower=6, upper=None, error="division by zero"),
        c.SubscribeDropped("t1", 6),
        c.Hydration("delays", hydrated=True, creation=3),
    ],
    "storage command": [
        c.Hello("5f"),
        c.InitializationComplete(),
        c.AllowWrites(),
        c.UpdateConfiguration({"statisticsInterval": "1s"}),
        s.RunIngestion(SOURCE),
        s.RunSink(sink=SINK, as_of=4),
        c.AllowCompaction("planes", None),
        s.RunOneshotIngestion(uuid="q", into="planes", format="csv", options={"path": "x"}),
        s.CancelOneshotIngestion("q"),
    ],
    "storage response": [
        s.FrontierUpper("planes", 9),
        s.FrontierUpper("planes", None),
        s.DroppedId("planes"),
        s.StagedBatches(uuid="q", rows=3),
        s.StagedBatches(uuid="q", error="no such file"),
        s.StatisticsUpdates({"planes": {"messages_received": 3.0}}, {"out": {"bytes": 0.5}}),
        s.StatusUpdate(
            id="planes",
            status="stalled",
            at_ms=1_700_000_000_000,
            error="decode: bad line",
            hints=("look at planes_errors",),
            namespaced={"decode": "bad line"},
        ),
    ],
}
