"""A run of the small project in which all that an application says of itself is collected."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from shardline.app.coordinator.application import Application
from shardline.app.coordinator.project_comparison import ComparedProject
from shardline.app.lane.state import LaneObject
from shardline.app.project.project import Project
from shardline.app.server.action_log import recorded_action
from shardline.datasource.client import ShardClient
from shardline.datasource.clock import SystemClock
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.maintainer import Maintainer
from shardline.datasource.settings import ShardSettings
from shardline.datasource.shard.state import ShardState
from support.models.merging import filled
from support.processes.prometheus import Judged
from support.spark.projects import QUERIES, SQL, Place
from support.waiting import wait_until

__all__ = [
    "KINDS",
    "PATIENCE_S",
    "Seen",
    "act",
    "check_explained",
    "check_explained_steps",
    "compare",
    "holds_of",
    "hydrated",
    "load",
    "maintain",
    "read_layout",
    "said",
    "settled",
]

PATIENCE_S = 120

KINDS = {
    "orders": ("source", "storage"),
    "customers": ("source", "storage"),
    "spent": ("view", "compute"),
    "large": ("view", "compute"),
    "best": ("view", "compute"),
    "spent_by_name": ("index", "compute"),
    "large_out": ("sink", "storage"),
}

_LAYOUT = ("shards", "shard_levels", "shard_batches")
"""Relations that are made of one look into each shard."""


@dataclass
class Seen:
    """What was asked while everything ran.

    Attributes:
        rows: Of each relation, by SQL: each as of a moment of its own.
        layout: Of some relations about shards, all as of one moment.
        objects: As the lane has them.
        before: States of the shards just before the relations were asked.
        after: And just after.
        subscription: Name of the subscription that was open.
        address: Of its server.
        metrics: Names of all samples of `/metrics`.
        judged: What a Prometheus has made of them; None where there is none.
        refused: Holds that may not be expired, with the error.
        actions: What actions have said, by name.
        projects: The project's files against what runs: unchanged, changed and broken.
        explained: Rows of EXPLAIN VIEW, by view.
        moment: When the relations were asked, in ms since the epoch.
        past: Rows as of that moment, from another application at the location, by relation.
    """

    place: Place
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    layout: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    objects: dict[str, LaneObject] = field(default_factory=dict)
    before: dict[str, ShardState] = field(default_factory=dict)
    after: dict[str, ShardState] = field(default_factory=dict)
    subscription: str = ""
    address: str = ""
    metrics: set[str] = field(default_factory=set)
    judged: Judged | None = None
    refused: dict[str, str] = field(default_factory=dict)
    actions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    projects: list[ComparedProject] = field(default_factory=list)
    explained: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    moment: int = 0
    past: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def one(self, relation: str, **values: object) -> dict[str, Any]:
        """The one row of a relation that has `values`."""
        (row,) = self.of(relation, **values)
        return row

    def of(self, relation: str, **values: object) -> list[dict[str, Any]]:
        """All rows of a relation that have `values`."""
        return [
            row
            for row in self.rows[relation]
            if all(row[name] == value for name, value in values.items())
        ]

    def operator(self, of: str, name: str, place: int = 0) -> int:
        """The number of an operator of an object, by the lane's numbers."""
        found = self.of("dataflow_operator_dataflows", dataflow_id=self.objects[of].dataflow)
        return int(sorted(row["id"] for row in found if row["name"] == name)[place])

    def sent(self, of: str, sender: str, receiver: str) -> int:
        """Rows that went from one operator of an object to another."""
        ends = {
            "from_operator_id": self.operator(of, sender),
            "to_operator_id": self.operator(of, receiver),
        }
        channel = self.one("dataflow_channel_operators", **ends)["id"]
        messages = self.one("message_counts", channel_id=channel)
        assert messages["received"] == messages["sent"]
        return int(messages["sent"])


def load(place: Place, text: str) -> Project:
    """The project over a folder, which is read again later."""
    folder = place.folder / "project"
    folder.mkdir(exist_ok=True)
    (folder / "all.sql").write_text(text, encoding="utf-8")
    return Project.load(folder, {"in": str(place.folder)})


def settled(application: Application, place: Place) -> None:
    wait_until(
        "all views hold what the files say",
        lambda: application.running().keys() >= QUERIES.keys() and place.agrees(),
        PATIENCE_S,
    )


def said(application: Application, relation: str, **values: object) -> bool:
    """Whether a relation has a row with these values."""
    assert application.feeds is not None
    return any(
        all(row[name] == value for name, value in values.items())
        for row in application.feeds.relations.rows(relation)
    )


def holds_of(application: Application, shard: str) -> set[str]:
    """Names of the holds of a shard, as introspection has them."""
    assert application.feeds is not None
    rows = application.feeds.relations.rows("shard_holds", object=shard)
    return {str(row["name"]) for row in rows}


def read_layout(application: Application, found: Seen) -> None:
    """Read the shards and what they are made of, as of one moment.

    Each query of SQL is of a moment of its own, and shards are looked into between two of them.
    Each of them was written to: what is told of one without a batch is of before that, and they are
    told by turns.
    """
    assert application.feeds is not None
    relations = application.feeds.relations
    wait_until(
        "no shard is told as it was made",
        lambda: not said(application, "shards", batches=0),
        PATIENCE_S,
    )
    for name, rows in relations.read_together(_LAYOUT).rows.items():
        columns = relations.declared[name].schema.names
        found.layout[name] = [dict(zip(columns, row, strict=True)) for row in rows]


def act(application: Application, found: Seen) -> None:
    """Have the upkeep of shards done while everything runs."""
    assert application.feeds is not None
    acts, client = application.shard_actions, found.place.client()
    wait_until("all are hydrated", lambda: hydrated(application), PATIENCE_S)
    client.hold("large", "reports", purpose="a report")
    for shard in ("orders", "large"):
        for hold in client.state(shard).critical:
            try:
                acts.expire_hold(f"{shard}/{hold}", commit=False)
            except InvalidUsage as error:
                found.refused[f"{shard}/{hold}"] = error.code
    found.actions["expire_hold"] = acts.expire_hold("large/reports", commit=True).says
    for name in ("compact", "collect", "sweep"):
        for shard in ("orders", "large"):
            with recorded_action(application.feeds.put, SystemClock(), name, shard):
                found.actions[f"{name} {shard}"] = getattr(acts, name)(shard, commit=True).says


def compare(application: Application, found: Seen) -> None:
    """Compare the project with what runs: as it is, changed, and broken."""
    changed = SQL.replace("price > 50", "price > 60").replace(
        "CREATE INDEX spent_by_name ON spent (name);", "CREATE INDEX ON large (id);"
    )
    broken = SQL.replace("c.name, count(*)", "c.nmae, count(*)")
    for text in (SQL, changed, broken):
        load(found.place, text)
        found.projects.append(application.comparison.compare())


def hydrated(application: Application) -> bool:
    return all(said(application, "hydration_times", object_id=name) for name in KINDS)


def check_explained(seen: Seen) -> None:
    """EXPLAIN VIEW tells rules, and sizes as shards' own states have them."""
    large = _parts(seen.explained["large"], "operator")
    assert large == {"Filter (orders.price > 50)": "row by row", "orders": "its changes"}
    spent = seen.explained["spent"]
    assert spent[0]["item"] == "incremental"
    assert _parts(spent, "operator")["orders"] == "its changes"
    (state,) = _parts(spent, "state").items()
    size = f"{_updates(seen, state[0]):,} updates" if state[0] in seen.before else "not made yet"
    assert state[1].startswith(f"a row for each c.name; {size}")
    assert _parts(spent, "input")["orders"].startswith(f"{_updates(seen, 'orders')} updates, ")
    assert _parts(spent, "look-up")["customers"].startswith("by customer, where orders changes; ")


def check_explained_steps(seen: Seen, name: str) -> None:
    """The last steps of a view: way, reason and rows of each, as the relation has them."""
    shown = [row["detail"] for row in seen.explained[name] if row["part"] == "step"]
    steps = seen.of("view_steps", object_id=name)
    assert shown
    assert [text.split(" ")[0] for text in shown] == [step["way"] for step in steps[-5:]]
    for text, step in zip(shown, steps[-5:], strict=True):
        assert f" {step['updates_out']:,} out" in text
        assert (step["reason"] or "") in text
        assert step["took_ms"] > 0
    evaluations = seen.one("measurements", object_id=name, name="evaluations")
    assert len(steps) == evaluations["value"]


def _parts(explained: list[dict[str, str]], part: str) -> dict[str, str]:
    """The details of one part, by what they are of."""
    return {row["item"].strip(): row["detail"] for row in explained if row["part"] == part}


def _updates(seen: Seen, name: str) -> int:
    batches = seen.before[name].trace.batches
    return sum(part.rows for batch in batches for part in batch.parts)


def maintain(application: Application, place: Place) -> None:
    """Let a writer merge a shard, and a round of maintenance one that its writer has not merged.

    The application's own rounds are a minute apart, and may find nothing to do in a short run.
    """
    assert application.feeds is not None
    filled(place.client(), 80, "scratch")
    merged = partial(said, application, "shard_maintenance", shard="scratch")
    wait_until("a writer has merged", merged, PATIENCE_S)
    lazy = ShardSettings(compact_inline_bytes=0)
    client = ShardClient.open(str(place.folder / "shards"), settings=lazy)
    Maintainer(filled(client, 80, "left"), observer=application.feeds.on_maintenance).round()
    done = partial(said, application, "maintenance", shard="left")
    wait_until("a round has merged", done, PATIENCE_S)
