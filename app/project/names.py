"""Checks names in a project, without Spark: duplicates, reserved ones, inputs, cycles.

These checks take milliseconds where a session takes seconds, and everything after them may rely on
an order of the objects.

    check_names(written, broken) -> problems

Invariants:
    Objects without a problem here have unique names, read only sources and views that exist, and
    form no cycle: they have an order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from shardline.app.project.statements import WrittenObject, kind_of
from shardline.app.protocol.graph import Graph
from shardline.app.protocol.objects import SinkDescription, is_runtime_shard, shards_of
from shardline.app.sql.problems import Problem, did_you_mean
from shardline.app.sql.references import INTROSPECTION

__all__ = ["check_names"]

_NAME: Final = re.compile(r"[^\W_][\w-]*")
_NAME_BYTES_MAX: Final = 60
"""Longest name in bytes: names of its shards and checkpoints may have each byte as `%XX`."""

_READABLE: Final = frozenset({"source", "view"})
"""Kinds of objects that have contents."""


def check_names(
    written: Sequence[WrittenObject], broken: AbstractSet[str] = frozenset()
) -> list[Problem]:
    """All problems with the names of these objects.

    Args:
        written: The objects.
        broken: Names of objects whose statements are not understood: they exist, too.
    """
    known: dict[str, WrittenObject] = {}
    problems: list[Problem] = []
    for one in written:
        problems += _invalid_names(one)
        if one.name in known:
            first = known[one.name]
            problems.append(
                one.problem(
                    "name",
                    "DUPLICATE_OBJECT",
                    f"'{one.name}' exists already: a {kind_of(first.description)} at "
                    f"{first.place()}",
                    "names are unique in a project, without case; rename one of them",
                )
            )
        else:
            known[one.name] = one
    readable = [n for n, w in known.items() if kind_of(w.description) in _READABLE]
    owners = _owners(known)
    for one in written:
        problems += _clashing_names(one, owners)
        problems += _clashing_target(one, owners)
        problems += _unknown_inputs(one, known, readable, broken)
    return problems + list(_cycles(known))


def _invalid_names(one: WrittenObject) -> Iterator[Problem]:
    """Names that no object can have."""
    name = one.name
    if is_runtime_shard(name) or name == INTROSPECTION:
        yield one.problem(
            "name",
            "RESERVED_NAME",
            f"the name '{name}' belongs to the runtime itself",
            f"names do not start with _ and are not '{INTROSPECTION}'",
        )
    elif "." in name:
        yield one.problem(
            "name",
            "INVALID_NAME",
            f"'{name}' cannot name an object: it has several parts",
            f"names have one part, such as {name.replace('.', '_')}: there are no schemas",
        )
    elif _NAME.fullmatch(name) is None:
        yield one.problem(
            "name",
            "INVALID_NAME",
            f"'{name}' cannot name an object",
            "names consist of letters, digits, _ and -, and start with a letter or digit",
        )
    elif len(name.encode()) > _NAME_BYTES_MAX:
        yield one.problem(
            "name",
            "INVALID_NAME",
            f"the name '{name}' has {len(name.encode())} bytes",
            f"a name has at most {_NAME_BYTES_MAX}",
        )


def _owners(known: Mapping[str, WrittenObject]) -> dict[str, list[str]]:
    """For each shard the objects that keep it, in the order of the text."""
    found: dict[str, list[str]] = {}
    for one in known.values():
        for shard in dict.fromkeys(shards_of(one.description)):
            found.setdefault(shard, []).append(one.name)
    return found


def _clashing_names(one: WrittenObject, owners: Mapping[str, Sequence[str]]) -> Iterator[Problem]:
    """Names that are those of shards which another object keeps beside its contents."""
    for other in owners.get(one.name, ()):
        # Without their own names, which are for the check of duplicates.
        if one.name != other:
            yield one.problem(
                "name",
                "RESERVED_NAME",
                f"the name '{one.name}' is that of a shard of '{other}'",
                "rename it: a source keeps its own _progress, _errors and _skipped, a view its "
                "_errors and _state_1, _state_2 …, a sink its _progress",
            )


def _clashing_target(one: WrittenObject, owners: Mapping[str, Sequence[str]]) -> Iterator[Problem]:
    """A sink that writes to a shard which the runtime, another object or the sink itself keeps."""
    target = _target_shard(one)
    if target is not None and is_runtime_shard(target):
        yield one.problem(
            "option shard",
            "RESERVED_NAME",
            f"sink '{one.name}' writes to '{target}', a shard of the runtime itself",
            "choose a shard whose name does not start with _",
        )
    for other in () if target is None else owners.get(target, ()):
        yield one.problem(
            "option shard",
            "RESERVED_NAME",
            f"sink '{one.name}' writes to '{target}', a shard of '{other}'",
            "nothing but the object itself may write it: choose another shard",
        )


def _target_shard(one: WrittenObject) -> str | None:
    """The shard that a sink writes beside those of the project; None if it is no such sink."""
    if not isinstance(one.description, SinkDescription) or one.description.format != "shard":
        return None
    options = {name.lower(): value for name, value in one.description.options.items()}
    # Where the project's own shards are is not known before it runs: another location is believed
    # to be another one.
    return None if options.keys() & {"path", "location"} else options.get("shard")


def _unknown_inputs(
    one: WrittenObject,
    known: Mapping[str, WrittenObject],
    readable: Sequence[str],
    broken: AbstractSet[str],
) -> Iterator[Problem]:
    """Inputs that do not exist, or that have no contents to read."""
    uses = [(name, "on", 0) for name in one.reads]
    if one.query is not None:
        uses = [(reference.name, "query", reference.start) for reference in one.query.references]
    for name, piece, shift in uses:
        if name in broken or (name in known and kind_of(known[name].description) in _READABLE):
            continue
        if name in known:
            kind = kind_of(known[name].description)
            message = f"'{name}' is {'an' if kind == 'index' else 'a'} {kind}: it has no contents"
            hint = f"name the source or view behind it, '{known[name].reads[0]}'"
        elif name.startswith(INTROSPECTION + "."):
            message = f"'{name}' cannot be read by what a project keeps"
            hint = "relations of the runtime are for `sql`: they have no history to be exact about"
        else:
            message = f"unknown source or view '{name}'"
            hint = did_you_mean(name, readable)
        yield one.problem(piece, "UNKNOWN_OBJECT", message, hint, shift)


def _cycles(known: dict[str, WrittenObject]) -> Iterator[Problem]:
    graph = Graph({name: one.reads for name, one in known.items()})
    for cycle in graph.cycles():
        way = " reads ".join(f"'{name}'" for name in (*cycle, cycle[0]))
        yield known[cycle[0]].problem(
            "name",
            "CYCLE",
            f"a view cannot be made from itself: {way}",
            "take one of these names out of one of these queries",
        )
