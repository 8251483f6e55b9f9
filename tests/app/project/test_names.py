"""Names of a project: who may be called what, who reads whom, and in which order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.app.project.project import Project
from shardline.app.protocol.graph import Graph

SOURCES = "CREATE SOURCE flights USING rate; CREATE SOURCE planes USING rate;\n"


def said(text: str) -> list[str]:
    return [f"{p.place}: {p.message} ({p.hint})" for p in Project.parse({"a": text}).problems]


def view(name: str, *inputs: str) -> str:
    return f"CREATE MATERIALIZED VIEW {name} AS SELECT 1 AS x FROM {', '.join(inputs)};\n"  # noqa: S608 - parsed, never run


def test_names_in_order_are_no_problem() -> None:
    """Views may stand before their inputs, and names are compared without case."""
    assert said(view("v", "W", "`Flights`") + view("w", "planes") + SOURCES) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            view("v", "flihgts"),
            "a:2:50: unknown source or view 'flihgts' (did you mean 'flights'?)",
        ),
        (view("Flights", "planes"), "a:2:26: 'flights' exists already: a source at a:1:15"),
        (view("_v", "planes"), "the name '_v' belongs to the runtime itself"),
        (view("introspection", "planes"), "the name 'introspection' belongs"),
        (view("`a b`", "planes"), "'a b' cannot name an object"),
        (view("`a:b`", "planes"), "'a:b' cannot name an object"),
        (view("`a.b`", "planes"), "it has several parts (names have one part, such as a_b"),
        (view("x" * 61, "planes"), "has 61 bytes"),
        (view("flights_progress", "planes"), "is that of a shard of 'flights'"),
        (view("flights_errors", "planes"), "is that of a shard of 'flights'"),
        (view("v", "introspection.objects"), "'introspection.objects' cannot be read"),
        ("CREATE SINK s FROM flights USING x; CREATE INDEX ON s", "'s' is a sink: it has no"),
        ("CREATE INDEX i ON flights; " + view("v", "i"), "'i' is an index: it has no contents (na"),
        (view("v", "v"), "made from itself: 'v' reads 'v'"),
    ],
)
def test_names_that_cannot_be(text: str, expected: str) -> None:
    """Each is refused with its place and a hint."""
    (problem,) = said(SOURCES + text)
    assert expected in problem


@pytest.mark.parametrize("other", ["view", "source", "sink"])
def test_a_sink_keeps_its_progress_for_itself(other: str) -> None:
    """What is called like the progress of a sink would be dropped with it, in either order."""
    made = {
        "view": view("out_progress", "planes"),
        "source": "CREATE SOURCE out_progress USING rate;\n",
        "sink": "CREATE SINK out_progress FROM flights USING x;\n",
    }[other]
    sink = "CREATE SINK out FROM flights USING x;\n"
    for text in (sink + made, made + sink):
        (problem,) = said(SOURCES + text)
        assert "the name 'out_progress' is that of a shard of 'out'" in problem
    assert said(SOURCES + sink + view("out_errors", "planes")) == []


@pytest.mark.parametrize(
    ("shard", "owner"),
    [
        ("flights", "flights"),
        ("planes", "planes"),
        ("planes_errors", "planes"),
        ("v", "v"),
        ("v_state_1", "v"),
        ("out_progress", "out"),
    ],
)
def test_a_sink_writes_to_no_shard_of_an_object(shard: str, owner: str) -> None:
    """The object takes the time that such an append takes for its own."""
    rest = SOURCES + view("v", "flights")
    text = f"CREATE SINK out FROM flights USING shard OPTIONS ({{place}}shard '{shard}')"
    (problem,) = said(rest + text.format(place=""))
    assert f"sink 'out' writes to '{shard}', a shard of '{owner}'" in problem
    assert said(rest + text.format(place="location 's3://b/elsewhere', ")) == []


@pytest.mark.parametrize("shard", ["_lane", "_transactions", "_introspection", "_mine"])
def test_a_sink_writes_to_no_shard_of_the_runtime(shard: str) -> None:
    """Where nothing came, the sink would move an upper that counts positions, and not times."""
    (problem,) = said(SOURCES + f"CREATE SINK o FROM flights USING shard OPTIONS (shard '{shard}')")
    assert f"sink 'o' writes to '{shard}', a shard of the runtime itself" in problem


def test_a_sink_may_write_to_a_shard_that_is_called_like_another_sink() -> None:
    """Neither sinks nor indexes have contents."""
    other = "CREATE SINK other FROM flights USING x; CREATE INDEX i ON flights;\n"
    for shard in ("other", "i", "copy"):
        made = f"CREATE SINK out FROM flights USING shard OPTIONS (shard '{shard}');\n"
        assert said(SOURCES + other + made) == []


def test_a_view_may_be_called_like_what_no_view_has() -> None:
    """Only sources have a progress shard: the name is free for one beside a view."""
    assert said(SOURCES + view("v", "flights") + view("v_progress", "flights")) == []
    assert len(said(SOURCES + view("v", "flights") + view("v_errors", "flights"))) == 1


def test_a_cycle_is_shown_whole_and_once() -> None:
    """What only hangs below a cycle is no part of it."""
    text = view("below", "a") + view("a", "b", "flights") + view("b", "c") + view("c", "a")
    assert [problem.split(" (")[0] for problem in said(SOURCES + text)] == [
        "a:3:26: a view cannot be made from itself: 'a' reads 'b' reads 'c' reads 'a'"
    ]


def test_readers_of_a_broken_view_have_no_problem_of_their_own() -> None:
    """One mistake is one problem."""
    broken = "CREATE MATERIALIZED VIEW w AS SELECT 1 1;\n"
    assert len(said(SOURCES + broken + view("v", "w"))) == 1


NAMES = st.integers(0, 7).map(lambda number: f"n{number}")
GRAPHS = st.dictionaries(NAMES, st.lists(NAMES, max_size=3), max_size=8)


@given(GRAPHS)
def test_the_order_puts_inputs_first_and_leaves_out_what_has_none(
    inputs: dict[str, list[str]],
) -> None:
    """Whatever is in the order comes behind its inputs; the rest is on or below a cycle."""
    graph = Graph(inputs)
    order = graph.order()
    for name in order:
        known = [other for other in inputs[name] if other in inputs]
        assert all(order.index(other) < order.index(name) for other in known)
    on_cycles = {name for name in inputs if name in graph.upstream(name)}
    below = {other for name in on_cycles for other in graph.downstream(name)}
    assert set(inputs) - set(order) == on_cycles | below


@given(GRAPHS)
def test_every_cycle_can_be_walked(inputs: dict[str, list[str]]) -> None:
    """Each step of a cycle is an input of the one before, and each group has one."""
    graph = Graph(inputs)
    cycles = graph.cycles()
    for cycle in cycles:
        for name, other in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            assert other in inputs[name]
    shown = {name for cycle in cycles for name in cycle}
    for name in inputs:
        if name in graph.upstream(name):
            assert len(shown & graph.upstream(name) & graph.downstream(name)) >= 1


def test_the_order_moves_nothing_that_need_not_move() -> None:
    """What can stand where it was written does, also behind something that had to wait."""
    assert Graph({"a": (), "b": ("a",), "c": ()}).order() == ["a", "b", "c"]
    assert Graph({"b": ("a",), "c": (), "a": (), "d": ()}).order() == ["c", "a", "b", "d"]
