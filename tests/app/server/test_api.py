"""The JSON interface over a real socket: what it answers, and whom it refuses."""

from __future__ import annotations

import dataclasses
import json
import threading
from dataclasses import replace
from http.client import HTTPConnection
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest.mock import Mock
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.routing import Route, WebSocketRoute

from shardline.app.cli.status import fetch_status, filter_status
from shardline.app.coordinator.project_comparison import (
    ComparedObject,
    ComparedProject,
    ProjectProblem,
)
from shardline.app.execution.observations import Hydrated
from shardline.app.introspection.events import (
    Harvested,
    Maintenance,
    PeekDecided,
    PeekEnded,
    PeekStarted,
    Polled,
)
from shardline.app.protocol.storage import StatisticsUpdates
from shardline.app.server import api
from shardline.app.server.access import BODY_MAX, Access
from shardline.app.server.api import ARROW, Services, create_app
from shardline.app.server.application_server import application_routes
from shardline.app.server.discovery import ApplicationAddress
from shardline.app.server.http_server import serve
from shardline.app.server.page_routes import page_routes
from shardline.app.server.session_codes import SessionCodes, session_route
from shardline.datasource.clock import SystemIds
from shardline.datasource.errors import Determinate, InvalidUsage
from support.fakes.introspection import DELAYS, FLIGHTS, World, progress
from support.fakes.json_interface import JSON, TOKEN, Site
from support.waiting import wait_until

pytestmark = pytest.mark.server


def test_relations_are_rows_of_json(site: Site) -> None:
    """The catalogue, one relation, and only the rows about one object."""
    site.world.run(FLIGHTS)
    site.world.run(DELAYS)
    status, catalog = site.ask("GET", "/api/v1/relations")
    assert status == 200
    assert {r["name"] for r in catalog["relations"]} == set(site.world.relations.declared)
    _, answer = site.ask("GET", "/api/v1/relations/objects?object=delays")
    assert answer["rows"] == site.world.rows("objects", "delays")


def test_relations_are_read_as_of_an_earlier_moment(site: Site) -> None:
    """And by values of their columns; what is wrong with either parameter is said."""
    site.world.run(FLIGHTS)
    at = site.world.clock.now_ms()
    site.world.clock.advance(5_000)
    site.world.run(DELAYS)
    path = "/api/v1/relations/objects?as_of="
    _, now = site.ask("GET", f"{path}{site.world.clock.now_ms()}")
    assert [row["id"] for row in now["rows"]] == ["flights", "delays"]
    _, then = site.ask("GET", f"{path}{at}")
    assert [row["id"] for row in then["rows"]] == ["flights"]
    where = quote(json.dumps({"type": "view", "error": None}))
    _, views = site.ask("GET", f"/api/v1/relations/objects?where={where}")
    assert [row["id"] for row in views["rows"]] == ["delays"]
    for query, code in (
        ("objects?as_of=-1", "INVALID_TIME"),
        ("objects?as_of=now", "INVALID_TIME"),
        ("objects?as_of=99999999999999999", "INVALID_TIME"),
        (f"objects?as_of={at - 1}", "BEFORE_HISTORY"),
        (f"frontiers?as_of={at}", "NO_HISTORY"),
        ("objects?object=a&object=b", "DUPLICATE_PARAMETER"),
        ("objects?where=%7B", "INVALID_FILTER"),
        ("objects?where=[1]", "INVALID_FILTER"),
        ('objects?where={"epoch":true}', "INVALID_FILTER"),
        ('objects?where={"type":5}', "INVALID_FILTER"),
        ('dataflow_addresses?where={"address":1}', "INVALID_FILTER"),
        (f"objects?where={quote(json.dumps({'a': 1}))}", "UNKNOWN_COLUMN"),
    ):
        status, answer = site.ask("GET", f"/api/v1/relations/{query}")
        assert (status, answer["error"]["code"]) == (400, code), query
    _, described = site.ask("GET", "/api/v1/openapi.json")
    for name, parameters in (("objects", {"where", "object", "as_of"}), ("dataflows", {"where"})):
        found = described["paths"][f"/api/v1/relations/{name}"]["get"]["parameters"]
        assert {one["name"] for one in found} == parameters


def test_an_object_may_have_any_name(site: Site) -> None:
    """With a slash, a space or the end of a line in it."""
    for name in ("a/b", "a b", "a\nb", "\n", "a\n", "?#%"):
        site.world.run(msgspec.structs.replace(DELAYS, name=name))
        status, answer = site.ask("GET", f"/api/v1/objects/{quote(name, safe='')}")
        assert status == 200, name
        assert [row["id"] for row in answer["objects"]] == [name]


def test_an_object_is_all_its_rows(site: Site) -> None:
    """By relation; one that is not there is refused with the nearest name."""
    site.world.run(DELAYS)
    _, objects = site.ask("GET", "/api/v1/objects")
    assert [o["id"] for o in objects["objects"]] == ["delays"]
    _, answer = site.ask("GET", "/api/v1/objects/delays")
    assert answer["object_dependencies"] == [
        {"object_id": "delays", "referenced_object_id": "flights"}
    ]
    status, answer = site.ask("GET", "/api/v1/objects/delay")
    assert (status, answer["error"]["code"]) == (404, "UNKNOWN_OBJECT")
    assert answer["error"]["hint"] == "did you mean 'delays'?"


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/api/v1/relations/nothing", 404, "UNKNOWN_RELATION"),
        ("/api/v1/relations/dataflows?object=x", 400, "NO_OBJECT_COLUMN"),
        ("/api/v1/objects?name=delays", 400, "UNKNOWN_PARAMETER"),
        ("/nowhere", 404, "NOT_FOUND"),
        ("/api/v1/sql", 405, "METHOD"),
    ],
)
def test_errors_are_json_with_a_code(site: Site, path: str, status: int, code: str) -> None:
    """Whatever is wrong, a program can tell."""
    found, answer = site.ask("GET", path)
    assert (found, answer["error"]["code"]) == (status, code)
    assert set(answer["error"]) == {"kind", "code", "message", "hint"}
    assert answer["error"]["kind"] == "invalid_usage"


def test_sql_gives_columns_and_rows(site: Site) -> None:
    """Also when two columns have one name; errors keep their code and hint."""
    status, answer = site.ask("POST", "/api/v1/sql", {"query": "SELECT 1"}, JSON)
    assert (status, site.asked) == (200, ["SELECT 1"])
    assert answer == {
        "columns": [{"name": "n", "type": "int64"}, {"name": "n", "type": "string"}],
        "rows": [[1, "a"]],
    }
    status, answer = site.ask("POST", "/api/v1/sql", {"query": "wrong"}, JSON)
    assert (status, answer["error"]["code"]) == (400, "UNKNOWN_COLUMN")
    assert answer["error"]["hint"] == "did you mean 'y'?"


def test_sql_tells_each_value_from_null(site: Site) -> None:
    """Numbers that JSON has not are text in a column of numbers; any year is a date."""
    status, answer = site.ask("POST", "/api/v1/sql", {"query": "odd"}, JSON)
    assert (status, [column["type"] for column in answer["columns"]]) == (
        200,
        ["double", "date32[day]"],
    )
    assert answer["rows"] == [["NaN", "10183-09-21"], ["Infinity", None], [None, "1970-01-01"]]


@pytest.mark.parametrize(
    ("query", "status", "kind"),
    [
        ("wrong", 400, "invalid_usage"),
        ("store is away", 503, "determinate"),
        ("outcome is unknown", 504, "indeterminate"),
        ("part is damaged", 503, "corrupt"),
        ("another has taken over", 503, "fenced"),
        ("slow", 504, "determinate"),
        ("broken", 500, "indeterminate"),
    ],
)
def test_an_error_says_what_to_do_next(site: Site, query: str, status: int, kind: str) -> None:
    """To ask again, to look first, or to stop: the status alone does not tell."""
    found, answer = site.ask("POST", "/api/v1/sql", {"query": query}, JSON)
    assert (found, answer["error"]["kind"]) == (status, kind)


def test_a_defect_is_not_shown_to_the_client(site: Site) -> None:
    """The log has it; the answer says that there is something in the log."""
    status, answer = site.ask("POST", "/api/v1/sql", {"query": "broken"}, JSON)
    assert (status, answer["error"]["code"]) == (500, "INTERNAL")
    assert "defect" not in json.dumps(answer)


def test_a_slow_query_is_given_up_and_told_so(site: Site) -> None:
    """The answer comes in time, the query can end, and relations were readable meanwhile."""
    status, answer = site.ask("POST", "/api/v1/sql", {"query": "slow"}, JSON)
    assert (status, answer["error"]["code"]) == (504, "TIMEOUT")
    assert site.release.wait(30)
    assert site.given_up[0].is_set()
    assert site.ask("GET", "/api/v1/objects")[0] == 200


@pytest.mark.parametrize(("accept", "encoder"), [("text/json", "json_rows"), (ARROW, "to_ipc")])
def test_others_are_answered_while_a_result_is_encoded(
    site: Site, monkeypatch: pytest.MonkeyPatch, accept: str, encoder: str
) -> None:
    """It may be millions of rows, and take many seconds."""
    began, asked = threading.Event(), threading.Event()
    encode = getattr(api, encoder)

    def slow(table: pa.Table) -> Any:
        began.set()
        assert asked.wait(10), "nobody else was answered"
        return encode(table)

    monkeypatch.setattr(api, encoder, slow)
    connection = HTTPConnection("127.0.0.1", site.served.port, timeout=30)
    body = json.dumps({"query": "SELECT 1"})
    connection.request("POST", "/api/v1/sql", body, {**JSON, "Accept": accept})
    assert began.wait(30)
    assert site.ask("GET", "/healthz")[0] == 200
    asked.set()
    assert connection.getresponse().status == 200
    connection.close()


def test_a_query_whose_client_has_gone_is_given_up(site: Site) -> None:
    """At once, and not when its time is over."""
    patient = replace(site.services, timeout_s=60.0)
    with serve(create_app(patient, Access(TOKEN))) as served:
        connection = HTTPConnection("127.0.0.1", served.port, timeout=30)
        connection.request("POST", "/api/v1/sql", json.dumps({"query": "slow"}), JSON)
        wait_until("it has begun", lambda: bool(site.given_up), 30)
        connection.close()
        assert site.given_up[-1].wait(25), "its query waits for 30 s by itself"
        assert site.release.wait(25)


def test_actions_are_by_name(site: Site) -> None:
    """One that is unknown is refused."""
    assert site.ask("POST", "/api/v1/actions/compact", {"target": "abc"}, JSON) == (
        200,
        {"result": {"merges": 3}},
    )
    status, answer = site.ask("POST", "/api/v1/actions/compac", {"target": "abc"}, JSON)
    assert (status, answer["error"]["code"]) == (404, "UNKNOWN_ACTION")


@pytest.mark.parametrize(
    ("said", "done"), [({}, False), ({"commit": False}, False), ({"commit": True}, True)]
)
def test_an_action_that_loses_something_is_confirmed(
    site: Site, said: dict[str, bool], done: bool
) -> None:
    """Without `commit` it only says what it would do."""
    body = {"target": "abc", **said}
    assert site.ask("POST", "/api/v1/actions/drop", body, JSON) == (
        200,
        {"result": ["abc", "dropped" if done else "planned"]},
    )


@pytest.mark.parametrize("commit", [True, False])
def test_an_action_that_takes_too_long_may_have_been_done(site: Site, commit: bool) -> None:
    """Unless it only was to say what it would do; the thread goes on either way."""
    ended = threading.Event()
    slow = replace(site.services, confirmed={"sweep": lambda _name, _commit: ended.wait(30)})
    with serve(create_app(slow, Access(TOKEN))) as served:
        connection = HTTPConnection("127.0.0.1", served.port, timeout=30)
        body = json.dumps({"target": "t", "commit": commit})
        connection.request("POST", "/api/v1/actions/sweep", body, JSON)
        answer = connection.getresponse()
        error = json.loads(answer.read())["error"]
        connection.close()
        ended.set()
    assert (answer.status, error["code"]) == (504, "TIMEOUT")
    assert ("may have been done" in error["message"]) == commit


@pytest.mark.parametrize("said", [True, False])
def test_an_action_without_a_dry_run_says_so(site: Site, said: bool) -> None:
    """Somebody who says commit=false must not find it done."""
    body = {"target": "abc", "commit": said}
    status, answer = site.ask("POST", "/api/v1/actions/compact", body, JSON)
    assert (status, answer["error"]["code"]) == (400, "BODY_UNREADABLE")


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        ({"query": "q"}, {"Content-Type": "application/json"}, 401, "TOKEN_NEEDED"),
        ({"query": "q"}, JSON | {"Authorization": "Bearer other"}, 401, "TOKEN_NEEDED"),
        ({"query": "q"}, JSON | {"Content-Type": "text/plain"}, 415, "JSON_NEEDED"),
        ({"query": "q"}, JSON | {"Origin": "https://evil.example"}, 403, "FOREIGN_ORIGIN"),
        ({"query": "q"}, JSON | {"Origin": "null"}, 403, "FOREIGN_ORIGIN"),
        ({"query": "q"}, JSON | {"Host": "evil.example"}, 403, "FOREIGN_HOST"),
        ({"query": "q"}, JSON | {"Host": "["}, 403, "FOREIGN_HOST"),
        ({"query": "q"}, JSON | {"Origin": "http://["}, 403, "FOREIGN_ORIGIN"),
        ({"question": "q"}, JSON, 400, "BODY_UNREADABLE"),
        ({"query": "q", "more": 1}, JSON, 400, "BODY_UNREADABLE"),
        (b"not json", JSON, 400, "BODY_UNREADABLE"),
        (b" " * (BODY_MAX + 1), JSON, 413, "TOO_LARGE"),
    ],
)
def test_what_may_not_be_asked_is_not_run(
    site: Site, body: object, headers: dict[str, str], status: int, code: str
) -> None:
    """No token, a form, another site, another name, nonsense, too much: nothing happens."""
    found, answer = site.ask("POST", "/api/v1/sql", body, headers)
    assert (found, answer["error"]["code"]) == (status, code)
    assert site.asked == []


def test_a_token_may_have_any_letters() -> None:
    """A header has bytes: those of the token in UTF-8."""
    site = Site(Access("s3cret/+ш"))
    try:
        sent = {**JSON, "Authorization": "Bearer s3cret/+ш".encode().decode("latin-1")}
        assert site.ask("POST", "/api/v1/sql", {"query": "SELECT 1"}, sent)[0] == 200
        other = {**JSON, "Authorization": "Bearer s3cret/+щ".encode().decode("latin-1")}
        assert site.ask("POST", "/api/v1/sql", {"query": "SELECT 1"}, other)[0] == 401
    finally:
        site.served.close()


def test_a_page_of_our_own_may_ask(site: Site) -> None:
    """Its Origin is the address that it asks."""
    headers = JSON | {"Origin": site.served.url}
    assert site.ask("POST", "/api/v1/sql", {"query": "q"}, headers)[0] == 200


def test_another_name_may_not_even_read(site: Site) -> None:
    """A name that its owner points at this machine would let his page read everything."""
    status, answer = site.ask("GET", "/api/v1/objects", headers={"Host": "evil.example:80"})
    assert (status, answer["error"]["code"]) == (403, "FOREIGN_HOST")


def test_bound_elsewhere_everything_needs_the_token(public: Site) -> None:
    """Apart from health, which says nothing."""
    for path in ("/api/v1/objects", "/metrics", "/api/v1/openapi.json"):
        assert public.ask("GET", path)[0] == 401, path
        assert public.ask("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})[0] == 200
    assert public.ask("GET", "/healthz") == (200, {"status": "ok"})


def test_readiness_says_why_not(site: Site) -> None:
    """It is no error of the process."""
    assert site.ask("GET", "/readyz")[0] == 200
    site.unready = "no controller has connected"
    status, answer = site.ask("GET", "/readyz")
    assert (status, answer["error"]["message"]) == (503, "no controller has connected")
    assert site.ask("GET", "/healthz")[0] == 200


def test_the_description_has_every_column(site: Site) -> None:
    """OpenAPI is made of the declared relations."""
    _, described = site.ask("GET", "/api/v1/openapi.json")
    assert described["openapi"].startswith("3.1")
    for name, relation in site.world.relations.declared.items():
        assert f"/api/v1/relations/{name}" in described["paths"]
        properties = described["components"]["schemas"][name]["properties"]
        assert list(properties) == relation.schema.names
    assert described["paths"]["/api/v1/sql"]["post"]["security"] == [{"token": []}]
    assert "/api/v1/project" not in described["paths"]  # this one does not answer it


def test_the_description_has_every_route() -> None:
    """What the server of an application routes is described with its methods, and nothing else."""
    runtime = SimpleNamespace(compute=Mock(), storage=Mock())
    application: Any = SimpleNamespace(runtime=runtime, repairs=Mock())
    world = World()
    codes = SessionCodes(TOKEN, world.clock, SystemIds())
    routes = [session_route(codes), *application_routes(application, TOKEN)]
    services = Services(world.relations, Mock(), routes=routes)
    app = create_app(services, Access(TOKEN))
    routed: dict[str, set[str]] = {}
    documents = {route.path for route in page_routes() if isinstance(route, Route)}
    for route in app.routes:
        assert isinstance(route, Route | WebSocketRoute)
        methods = (route.methods or set()) - {"HEAD"} if isinstance(route, Route) else {"GET"}
        if route.path in documents:  # of the page, which is no part of this interface
            continue
        routed[route.path_format] = {method.lower() for method in methods}
    assert {"/api/v1/subscribe", "/api/v1/project", "/v1/compute"} <= routed.keys()
    each = routed.pop("/api/v1/relations/{name}")
    routed |= {f"/api/v1/relations/{name}": each for name in world.relations.declared}
    served = serve(app)
    try:
        connection = HTTPConnection("127.0.0.1", served.port, timeout=30)
        connection.request("GET", "/api/v1/openapi.json")
        described = json.loads(connection.getresponse().read())
        connection.close()
    finally:
        served.close()
    assert {path: set(item) for path, item in described["paths"].items()} == routed
    answers = [
        (path, content["schema"])
        for path, item in described["paths"].items()
        for call in item.values()
        for content in call["responses"].get("200", {}).get("content", {}).values()
    ]
    assert [path for path, schema in answers if not schema.keys() & {"type", "$ref"}] == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("drop", {"names": ["a", "b"], "commit": True}),
        ("project", {"files": {"a.sql": "--"}}),
    ],
)
def test_a_change_of_several_steps_may_have_been_done_in_part(
    site: Site, path: str, body: dict[str, object]
) -> None:
    """The store that was away for the second step has not undone the first; a look is certain."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise Determinate("the store is away", code="STORE_SILENT", hint="see to it")

    runtime = SimpleNamespace(compute=Mock(), storage=Mock())
    application: Any = SimpleNamespace(
        runtime=runtime, repairs=Mock(), drop=fail, plan_drop=Mock(), change=fail
    )
    services = replace(site.services, routes=application_routes(application, TOKEN))
    site.served.close()
    site.served = serve(create_app(services, Access(TOKEN)))
    status, answer = site.ask("POST", f"/api/v1/{path}", body, JSON)
    error = answer["error"]
    assert (status, error["kind"], error["code"]) == (504, "indeterminate", "STORE_SILENT")
    assert (error["hint"], "not known" in error["message"]) == ("see to it", True)
    application.plan_drop = fail
    looks = body | ({"commit": False} if path == "drop" else {"dry_run": True})
    status, answer = site.ask("POST", f"/api/v1/{path}", looks, JSON)
    assert (status, answer["error"]["kind"]) == (503, "determinate")


def test_a_project_is_compared_or_there_is_none(site: Site) -> None:
    """`GET`, without the token; another one's answer is shared."""

    def compare() -> ComparedProject:
        if not site.asked:
            raise InvalidUsage("none was applied", code="NO_PROJECT", hint="run one")
        return ComparedProject("flights", "", (ComparedObject("a", "none", "x", "x"),))

    runtime = SimpleNamespace(compute=Mock(), storage=Mock())
    comparison = SimpleNamespace(compare=compare)
    application: Any = SimpleNamespace(runtime=runtime, repairs=Mock(), comparison=comparison)
    services = replace(site.services, routes=application_routes(application, TOKEN))
    site.served.close()
    site.served = serve(create_app(services, Access(TOKEN)))
    status, answer = site.ask("GET", "/api/v1/project")
    assert (status, answer["error"]["code"]) == (404, "NO_PROJECT")
    site.asked.append("now there is one")
    assert site.ask("GET", "/api/v1/project") == (
        200,
        {
            "name": "flights",
            "folder": "",
            "changes": [
                {
                    "object": "a",
                    "change": "none",
                    "now": "x",
                    "wanted": "x",
                    "why": [],
                    "file": "",
                    "line": 0,
                }
            ],
            "problems": [],
            "refused": "",
        },
    )
    _, described = site.ask("GET", "/api/v1/openapi.json")
    schema = described["paths"]["/api/v1/project"]["get"]["responses"]["200"]["content"]
    fields = schema["application/json"]["schema"]["properties"]
    assert set(fields) == {field.name for field in dataclasses.fields(ComparedProject)}
    one = {field.name for field in dataclasses.fields(ComparedObject)}
    assert set(fields["changes"]["items"]["properties"]) == one
    problem = {field.name for field in dataclasses.fields(ProjectProblem)}
    assert set(fields["problems"]["items"]["properties"]) == problem


def test_metrics_are_the_same_numbers(site: Site) -> None:
    """In seconds and bytes, labelled with object and kind; what is not known has no sample."""
    world = site.world
    world.run(FLIGHTS)
    world.run(DELAYS)
    now = world.clock.now_ms()
    world.tell(
        Polled(id="delays", since=0, upper=now - 1500),
        StatisticsUpdates(sources={"flights": {"bytes_received": 7.0}}, sinks={}),
        progress("delays:u2:1", "r-delays-1", triggerExecution=250),
    )
    status, text = site.ask("GET", "/metrics")
    assert status == 200
    families = {family.name: family for family in text_string_to_metric_families(text)}
    (lag,) = families["shardline_object_lag_seconds"].samples
    assert (lag.labels, lag.value) == ({"object": "delays", "kind": "view"}, 1.5)
    (size,) = families["shardline_source_bytes_received"].samples
    assert (size.labels, size.value) == ({"object": "flights", "kind": "source"}, 7.0)
    (busy,) = families["shardline_micro_batch_seconds"].samples
    assert busy.labels == {"object": "delays", "kind": "view", "phase": "Dataflow"}
    assert busy.value == 0.25
    running = {
        s.labels["object"]: s.value
        for s in families["shardline_object_status"].samples
        if s.labels["status"] == "running"
    }
    assert running == {"flights": 1.0, "delays": 1.0}
    assert "shardline_object_errors" not in families
    assert [name for name, family in families.items() if not family.samples] == []


def test_metrics_have_the_work_of_operators_and_reads(site: Site) -> None:
    """Each sample of its own labels; histograms add up, as Prometheus wants them."""
    world = site.world
    world.run(FLIGHTS)
    installed = world.run(DELAYS)
    name = "delays:u2:1"
    world.tell(
        progress(name, "r-delays-1", triggerExecution=250, addBatch=200),
        progress(name, "r-delays-1", micro_batch=1, triggerExecution=2),
        Harvested(
            query="q",
            run="r-delays-1",
            name=name,
            micro_batch=0,
            rows=((8, 0, 50), (9, 0, 3)),
            took_ms=((7, 40.0), (8, 1500.0)),
        ),
        StatisticsUpdates(sources={"flights": {"messages_received": 7.0}}, sinks={}),
        PeekStarted(uuid="a", inputs=("delays",), time=1, at_ms=0),
        PeekDecided(uuid="a", path="index"),
        PeekEnded(uuid="a", took_ms=3.0),
        PeekStarted(uuid="b", inputs=("delays",), time=1, at_ms=0),
        Maintenance(shard="delays", at_ms=1, took_ms=12.0, merges=1, failed=("sweep",)),
    )
    _, text = site.ask("GET", "/metrics")
    samples = [
        (sample.name, frozenset(sample.labels.items()), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    assert len({sample[:2] for sample in samples}) == len(samples), "no sample twice"

    def value(name: str, **labels: str) -> float:
        (found,) = [v for n, at, v in samples if n == name and labels.items() <= dict(at).items()]
        return found

    first, _ = installed.operators
    assert value("shardline_operator_seconds_total", operator="Aggregate") == 1.5
    assert value("shardline_operator_rows_total", operator="Aggregate", id=str(first + 8)) == 50
    assert value("shardline_source_messages_received_total", object="flights") == 7
    buckets = [v for n, _, v in samples if n == "shardline_micro_batch_duration_seconds_bucket"]
    assert sorted(buckets) == [1, 2, 2]
    assert value("shardline_peek_duration_seconds_bucket", path="index", le="+Inf") == 1
    assert value("shardline_peeks_active") == 1
    assert value("shardline_maintenance_failed_steps", shard="delays") == 1


def address(site: Site, token: str = "") -> ApplicationAddress:
    return ApplicationAddress(url=site.served.url, token=token, pid=0)


def test_the_status_of_objects_is_read_from_there(site: Site) -> None:
    """`status` needs nothing but the address; one that does not answer is said so."""
    world = site.world
    world.run(FLIGHTS)
    world.tell(
        Hydrated(id="flights", epoch=1, took_ms=1),
        Polled(id="flights", since=1, upper=world.clock.now_ms() - 90_000),
    )
    seen = fetch_status(address(site), world.clock.now_ms())
    (shown,) = seen.objects
    assert (shown.name, shown.verdict, shown.lag_ms) == ("flights", "falling behind", 90_000)
    assert (shown.read_frontier, shown.restarts, shown.errors) == (1, 0, 0)
    assert shown.because == "1 min 30 s behind the clock"
    assert seen.summary.startswith("0 of 1 objects are fresh. `flights` is falling behind")
    world.run(DELAYS)
    world.tell(
        Hydrated(id="delays", epoch=1, took_ms=1),
        Polled(id="delays", since=1, upper=world.clock.now_ms() - 90_000),
    )
    waiting = filter_status(fetch_status(address(site), world.clock.now_ms()), ["delays"])
    assert [(one.verdict, one.blame) for one in waiting.objects] == [("waiting", "flights")]
    assert waiting.needs_a_person
    site.served.close()
    with pytest.raises(InvalidUsage, match="NOT_RUNNING"):
        fetch_status(address(site), 0)


def test_status_passes_on_what_the_application_refuses(public: Site) -> None:
    """With its code, and works with the token."""
    with pytest.raises(InvalidUsage, match="TOKEN_NEEDED"):
        fetch_status(address(public), 0)
    assert fetch_status(address(public, TOKEN), 0).objects == ()


def test_an_address_that_is_taken_is_the_callers_error(site: Site) -> None:
    """Said before any thread starts."""
    services = Services(site.world.relations, site.run_sql)
    with pytest.raises(InvalidUsage, match="ADDRESS_TAKEN"):
        serve(create_app(services, Access(TOKEN)), "127.0.0.1", site.served.port)
