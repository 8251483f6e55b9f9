"""The runtime reports its lane in rows that everybody on the machine may read."""

from __future__ import annotations

from shardline.app.introspection.feeds import RuntimeFeeds
from shardline.app.lane.commands import CreateDataflow, LaneCommand, Record, UpdateConfiguration
from shardline.app.lane.state import LaneState
from shardline.app.protocol.objects import SourceDescription
from support.models.shards import World

JAAS = "org.x.PlainLoginModule required username='me' password='hunter2';"


def test_no_secret_is_in_the_history_of_commands() -> None:
    """The row of a command that makes a source has its options, and none of its secrets."""
    world = World()
    observing = RuntimeFeeds(world.client(), world.clock)
    source = SourceDescription(
        name="k",
        format="kafka",
        options={
            "kafka.sasl.jaas.config": JAAS,
            "s3.secret.key": "topsecret",
            "kafka.bootstrap.servers": "host:9092",
        },
    )
    commands: list[LaneCommand] = [
        CreateDataflow(description=source),
        UpdateConfiguration({"x.password": "hunter3"}),
    ]
    for index, command in enumerate(commands):
        record = Record(
            index=index, producer="storage", sequence=index, epoch=1, at_ms=0, command=command
        )
        observing.on_record(record, LaneState())
    observing.sink.step()
    created, configured = (str(r["command"]) for r in observing.relations.rows("command_history"))
    observing.stop()
    assert "host:9092" in created
    assert "username='me'" in created
    assert "x.password" in configured
    for secret in ("hunter2", "topsecret", "hunter3"):
        assert secret not in created + configured
