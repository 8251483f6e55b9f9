"""`run` as a real process: asked, killed at random, started again, and still right."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from shardline.app.lane.log import read_lane
from shardline.app.server.discovery import find
from shardline.jobs.ask import main as ask
from shardline.jobs.run import main as run
from support.processes.job import running_job
from support.profiles import one_of
from support.spark.projects import SQL, Place

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.usefixtures("kept_session"),
]

SEED = 7


@pytest.mark.parametrize("kills", one_of(2, [1, 2]))
def test_a_project_survives_kills_and_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kills: int
) -> None:
    """SIGKILL of the JVM or of Python, while it creates and, at night, while it catches up.

    Each start takes over from what was killed, at once; contents are DuckDB's, ids stay. A kill of
    both, once all objects run, is what the main job survives (test_main_job.py).
    """
    place = Place(tmp_path)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "all.sql").write_text(SQL)
    data = ["--data", str(tmp_path / "data")]
    arguments = [
        str(tmp_path / "project"), *data, "--set", f"in={tmp_path}",
        "--location", str(tmp_path / "shards"),
    ]  # fmt: skip
    chance = random.Random(SEED)
    whom = ["jvm", "python"]
    chance.shuffle(whom)
    known: dict[str, str] = {}
    moments: list[Callable[[], bool]] = [
        lambda: place.client().exists("spent"),
        lambda: place.contents("large") is not None,
    ]
    for number, moment in enumerate(moments[:kills]):
        with running_job(tmp_path, *arguments) as job:
            job.wait_for(f"moment {number}", moment)
            job.kill(whom[number])
        now = {n: o.global_id for n, o in read_lane(place.client())[0].objects.items()}
        assert known.items() <= now.items(), "ids stay"
        known = now
        place.put("orders", f"k{number}", f"id,customer,price\n{10 + number},1,{51 + number}\n")

    with running_job(tmp_path, *arguments) as job:
        job.wait_for("contents are right", place.agrees)
        capsys.readouterr()
        assert (
            ask(["sql", "SELECT id, price FROM large ORDER BY id", "--format", "json", *data]) == 0
        )
        lines = capsys.readouterr().out.splitlines()
        assert [tuple(json.loads(line).values()) for line in lines] == place.expected("large")
        assert ask(["status", *data]) in (0, 1), "1: something needs a person, on a busy machine"
        assert "spent" in capsys.readouterr().out
        assert ask(["sql", "SELECT * FROM spend", *data]) == 2
        assert "did you mean 'spent'" in capsys.readouterr().err

        where = find(tmp_path / "data")
        request = Request(  # noqa: S310 - on loopback
            f"{where.url}/api/v1/subscribe",
            json.dumps({"query": "SUBSCRIBE large"}).encode(),
            {"Authorization": f"Bearer {where.token}", "Content-Type": "application/json"},
        )
        with urlopen(request, timeout=60) as response:  # noqa: S310 - the same
            first = json.loads(response.readline())
        found = sorted((row["id"], row["price"]) for row in first["updates"])
        assert found == place.expected("large"), "the snapshot comes first"

        # Another definition of the project is the running application's to plan and to apply.
        more = "CREATE MATERIALIZED VIEW small AS SELECT id FROM orders WHERE price <= 50;"
        (tmp_path / "project" / "more.sql").write_text(more)
        assert run(["--plan", *arguments]) == 0
        assert "1 to create, 7 unchanged" in capsys.readouterr().out
        assert "small" not in place.client().shards()
        assert run(arguments) == 0
        job.wait_for("the new view is there", lambda: "small" in place.client().shards())
        assert job.interrupt() == 130
        # Views look more often than steps can be done: Spark's warnings of that are no news.
        log = (tmp_path / "data" / "log.jsonl").read_text(encoding="utf-8")
        assert re.search(r"falling behind\. The trigger interval is \d{1,3} mill", log) is None
        assert "Current batch is falling behind" not in job.said, "warnings are for the log"
    assert ask(["status", *data]) == 2, "it says that it has gone"
