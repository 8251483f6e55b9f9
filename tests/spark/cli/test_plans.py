"""`plan`, `run` and `drop` as a user has them: what would be lost is said, refused, then done."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pyarrow as pa
import pytest

from shardline.app.lane.log import read_lane
from shardline.app.server.discovery import find
from shardline.app.storage.sinks.progress import read_progress
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.types.schema import ShardSchema
from shardline.jobs.ask import main as ask
from shardline.jobs.run import main as run
from support.processes.job import RunningJob, running_job
from support.profiles import one_of
from support.spark.projects import Place, rows

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SQL = """
CREATE SOURCE orders USING csv OPTIONS (path '${in}/orders', header 'true')
  SCHEMA (id INT, customer INT, price DECIMAL(10, 2));
CREATE SOURCE customers USING csv OPTIONS (path '${in}/customers', header 'true')
  SCHEMA (customer INT, name STRING) ENVELOPE UPSERT KEY (customer);
CREATE MATERIALIZED VIEW large AS SELECT id, price FROM orders WHERE price > 50;
CREATE MATERIALIZED VIEW spent AS SELECT customer, sum(price) AS total FROM orders GROUP BY ALL;
CREATE SINK large_out FROM large USING parquet OPTIONS (path '${in}/out');
"""
WITHOUT_CENTS = SQL.replace("DECIMAL(10, 2)", "INT")
MORE = """
CREATE SOURCE more USING csv OPTIONS (path '${in}/more', maxFilesPerTrigger '%s') SCHEMA (a INT);
"""
OBJECTS = {"orders", "customers", "large", "spent", "large_out"}


@dataclass
class User:
    """Somebody with two projects, one data folder, and a terminal."""

    folder: Path
    capsys: pytest.CaptureFixture[str]
    replaced: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.place = Place(self.folder)
        for name in ("project", "other"):
            (self.folder / name).mkdir()
        (self.folder / "other" / "all.sql").write_text("CREATE SOURCE ticks USING rate;")
        self.data = ["--data", str(self.folder / "data")]
        self.rest = [*self.data, "--location", str(self.folder / "shards")]
        self.mine = [str(self.folder / "project"), *self.rest, "--set", f"in={self.folder}"]
        self.other = [str(self.folder / "other"), *self.rest]

    @cached_property
    def client(self) -> ShardClient:
        return self.place.client()

    def writes(self, text: str) -> None:
        (self.folder / "project" / "all.sql").write_text(text)

    def runs(self, status: int, *arguments: str) -> str:
        """What `run` says, without line breaks."""
        self.capsys.readouterr()
        assert run(list(arguments)) == status
        said = self.capsys.readouterr()
        return " ".join((said.out + said.err).split())

    def asks(self, status: int, *arguments: str) -> str:
        """What another command says."""
        self.capsys.readouterr()
        assert ask([*arguments, *self.data]) == status
        return self.capsys.readouterr().out

    def posts(self, route: str, **body: object) -> Any:
        """What the application answers to a program."""
        where = find(self.folder / "data")
        request = Request(  # noqa: S310 - its own address
            f"{where.url}/api/v1/{route}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {where.token}"},
        )
        with urlopen(request, timeout=60) as answer:  # noqa: S310 - the same
            return json.load(answer)

    def holds(self, name: str, *wanted: tuple[object, ...]) -> bool:
        client = self.client
        if not client.exists(name) or not client.state(name).upper.time:
            return False
        try:
            with client.reader(name) as reader:
                found = [tuple(map(str, row)) for row in rows(reader.snapshot())]
        except InvalidUsage as error:
            # It is being made anew: between the look above and the read it was dropped, or made.
            if error.code not in ("SHARD_DROPPED", "NOTHING_APPENDED"):
                raise
            return False
        return found == [tuple(map(str, row)) for row in wanted]

    def has_written(self, sink: str) -> bool:
        """True once a sink has committed; before that it only notes its input."""
        row = read_progress(self.client, sink)
        return row is not None and row.definition != ""

    def objects(self) -> set[str]:
        return set(read_lane(self.client)[0].objects)

    def shards(self) -> dict[str, str]:
        return {name: self.client.state(name).shard for name in ("orders", "large", "spent")}

    def shards_of_orders(self) -> dict[str, str]:
        names = ("orders", "orders_errors", "orders_progress")
        client = self.client
        return {name: client.state(name).shard for name in names if client.exists(name)}


@pytest.fixture
def user(kept_session: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> User:
    del kept_session
    return User(tmp_path, capsys)


@pytest.mark.parametrize("stalled", one_of(2, [False, True]))
def test_a_project_loses_nothing_that_was_not_agreed_to(user: User, stalled: bool) -> None:
    """A type that cannot be kept, another project, options that cannot work, and a drop.

    Against the running application, and with none; what is agreed to then works. So does it, at
    night, for a source that is stalled already (test_replacement.py has it without Spark).
    """
    user.writes(SQL)
    with running_job(user.folder, *user.mine) as job:
        job.wait_for("the view is right", lambda: user.holds("large", (2, "60.00"), (3, "70.00")))
        job.wait_for("the sink has written", lambda: user.has_written("large_out"))
        options_that_cannot_work_are_refused(user)
        a_lossy_change_is_shown_and_refused(user)
        another_project_is_shown_and_refused(user)
        what_is_allowed_is_done(user, job)
        a_drop_is_shown_and_done(user, job)
        a_view_takes_the_name_of_a_source(user, job)
        assert job.interrupt() == 130
    # With nothing that runs, a process of its own says the same, and starts nothing.
    with running_job(user.folder, *user.other) as job:
        assert job.finish() == 2
        assert "error: [OTHER_PROJECT]" in job.said
        assert user.objects() == {"raw", "orders", "customers", "large", "spent"}
    if stalled:
        a_source_that_is_stalled_already_is_replaced(user)


def options_that_cannot_work_are_refused(user: User) -> None:
    """By the value, and then by the folder that is not there."""
    user.writes(SQL + MORE % "many")
    assert "option 'maxFilesPerTrigger' cannot be 'many'" in user.runs(2, "--plan", *user.mine)
    user.writes(SQL + MORE % "1")
    said = user.runs(2, "--plan", *user.mine)
    assert f"source 'more' reads '{user.folder}/more', which is not there" in said
    assert "create the folder" in said


def a_lossy_change_is_shown_and_refused(user: User) -> None:
    """By `plan` and by `run`: what is replaced, what is lost, which sink stops, what to do."""
    before = user.shards()
    user.writes(WITHOUT_CENTS)
    for arguments in (["--plan", *user.mine], user.mine):
        said = user.runs(2, *arguments)
        assert "3 to change, 3 of them to replace, 2 unchanged" in said
        for name, column in (("orders", "price"), ("large", "price"), ("spent", "total")):
            assert f"{name}: column '{column}' cannot change from decimal(" in said
        assert "lost: 3 rows, and their history from" in said
        assert "large_out, of large: give it another path; or take it out" in said
        assert "error: [REPLACEMENT_REFUSED]" in said
    assert user.shards() == before


def another_project_is_shown_and_refused(user: User) -> None:
    """Its objects are not taken for removed."""
    for arguments in (["--plan", *user.other], user.other):
        said = user.runs(2, *arguments)
        assert f"the project of {user.folder}/project runs here" in said
        assert "error: [OTHER_PROJECT]" in said
    assert user.objects() == OBJECTS


def what_is_allowed_is_done(user: User, job: RunningJob) -> None:
    """Shards are others, contents are right and go on, and the sink has stopped as announced."""
    before = user.shards()
    assert "3 of them to replace" in user.runs(0, "--plan", "--allow-replace", *user.mine)
    assert user.shards() == before, "a plan does nothing"
    user.runs(0, "--allow-replace", *user.mine)
    job.wait_for("the view is right again", lambda: user.holds("large", (2, 60), (3, 70)))
    job.wait_for("and so is the other", lambda: user.holds("spent", (1, 80), (2, 60)))
    assert before.items().isdisjoint(user.shards().items())
    user.place.put("orders", "b", "id,customer,price\n4,2,55\n")
    job.wait_for("it goes on", lambda: user.holds("large", (2, 60), (3, 70), (4, 55)))
    query = "SELECT details, error FROM introspection.sink_statuses WHERE name = 'large_out'"
    stopped = "was dropped and made again"
    job.wait_for(
        "the sink says why", lambda: stopped in user.asks(0, "sql", query, "--format", "json")
    )
    assert "5 unchanged" in user.runs(0, "--plan", *user.mine)


def a_drop_is_shown_and_done(user: User, job: RunningJob) -> None:
    """Of what the project has left, and nothing before `--commit`."""
    user.writes(WITHOUT_CENTS.replace(SQL[SQL.index("CREATE SINK") :], ""))
    user.runs(0, *user.mine)
    job.wait_for("the sink is gone", lambda: "large_out" not in user.objects())
    assert "nothing was dropped" in user.asks(1, "drop", "large")
    plan = user.posts("actions/drop", target="large")["result"]
    assert ([one["name"] for one in plan["plan"]["objects"]], plan["dropped"]) == (["large"], [])
    assert user.client.exists("large")
    user.asks(0, "drop", "large", "--commit")
    assert not user.client.exists("large")


def a_view_takes_the_name_of_a_source(user: User, job: RunningJob) -> None:
    """The source gets another name, what reads the view is right, and nothing of it is left."""
    renamed = WITHOUT_CENTS[: WITHOUT_CENTS.index("CREATE SINK")].replace(
        "CREATE SOURCE orders USING", "CREATE SOURCE raw USING"
    )
    view = "CREATE MATERIALIZED VIEW orders AS SELECT * FROM raw WHERE id > 1;"
    user.writes(renamed + view)
    assert "orders: a source has filled the shard that is there" in user.runs(2, *user.mine)
    before = user.shards_of_orders()
    user.runs(0, "--allow-replace", *user.mine)
    job.wait_for("it is right", lambda: user.holds("large", (2, 60), (3, 70), (4, 55)))
    job.wait_for("so is a view that had read it", lambda: user.holds("spent", (1, 70), (2, 115)))
    after = user.shards_of_orders()
    assert before.keys() == {"orders", "orders_errors", "orders_progress"}
    assert after.keys() == {"orders", "orders_errors"}
    assert before.items().isdisjoint(after.items())
    assert "unchanged" in user.runs(0, "--plan", *user.mine)


def a_source_that_is_stalled_already_is_replaced(user: User) -> None:
    """Its shard is one that its definition, which stays, cannot fill: an older version left it."""
    client = user.client
    for shard in ("customers", "customers_errors", "customers_progress"):
        state = client.state(shard)
        client.drop(shard, despite_holders=[*state.critical, *state.leased])
    there = pa.table({"customer": pa.array(["1"]), "name": pa.array(["ann"])})
    client.create("customers", ShardSchema.from_arrow(there.schema), key=("customer",))
    client.writer("customers").append_now(there)
    said = user.runs(0, "--plan", *user.mine)
    assert "1 to change, 1 of them to replace, 4 unchanged" in said
    assert "customers: column 'customer' cannot change from string to integer" in said
    assert "it is stalled already, and stays so without --allow-replace" in said
    with running_job(user.folder, "--allow-replace", *user.mine) as job:
        job.wait_for("it is right", lambda: user.holds("customers", (1, "ann"), (2, "bob")))
        assert job.interrupt() == 130
