"""Checks that no sink gets in the way of another object by where it writes.

Two sinks in one folder, or with the times of two inputs in one shard: the one that begins first has
it, by chance, and the other is refused for ever. A sink whose folder is that of a source which it
is made of feeds itself: each micro-batch brings the next one, until the disk is full. Of a folder
within another one Spark takes the files for those of the other, and reads rows that are none of it,
or neither, as their sub-folders do not fit together.

    check_places(written) -> problems

Invariants:
    Paths of this machine are compared as the folders that they lead to: relative ones count from
    the working directory, links are followed. Others are compared as they are written.
    Nothing but names on this machine's disk is looked at.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import product
from typing import Final, TypeAlias

from shardline.app.project.statements import WrittenObject, kind_of
from shardline.app.protocol.graph import Graph
from shardline.app.protocol.objects import SinkDescription, SourceDescription
from shardline.app.sql.problems import Problem
from shardline.app.storage.formats import FILES, READ_FILES, UPPER, path_option

__all__ = ["check_places"]

_Place: TypeAlias = tuple[str, str]
"""The kind of a target, and its name for a sentence."""

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)

_SUB_FOLDER: Final = f"{UPPER}=1"
"""A name as a sink gives it to the folder of a micro-batch."""

_MICRO_BATCH: Final = ("", f"/{_SUB_FOLDER}", f"/{_SUB_FOLDER}/part.file")
"""Below the folder of a sink: names that a source reads its files by."""

_CHOOSING: Final = frozenset({"pathglobfilter", "ignoredpathsegmentregex"})
"""Options of sources, in lower case, that choose among the files of a folder by their names."""


def check_places(written: Sequence[WrittenObject]) -> list[Problem]:
    """All problems with the places that the sinks among these objects write to."""
    first: dict[_Place, WrittenObject] = {}
    problems: list[Problem] = []
    for one in written:
        place = _place(one)
        if place is None:
            continue
        other = first.setdefault(place, one)
        if other is not one and other.name != one.name and _are_rivals(one, other):
            problems.append(_taken(one, other, place))
    return [*problems, *_loops(written), *_nested(written)]


def _place(one: WrittenObject) -> _Place | None:
    """The place of a sink that has one to itself; None of other objects."""
    sink = one.description
    if not isinstance(sink, SinkDescription):
        return None
    if sink.format in FILES:
        folder = _folder(one)
        return None if folder is None else ("folder", folder)
    if sink.format == "shard":
        options = {name.lower(): text for name, text in sink.options.items()}
        # Nobody knows before it runs where the project's own location is.
        steps = [options.get(name, "").rstrip("/") for name in ("location", "path", "shard")]
        whole = "/".join(step for step in steps if step)
        return ("shard", _resolved(whole) if "/" in whole else whole) if whole else None
    return None


def _folder(one: WrittenObject) -> str | None:
    """The folder that a sink of files writes to; None of other objects."""
    sink = one.description
    if not isinstance(sink, SinkDescription) or sink.format not in FILES:
        return None
    path = path_option(sink.options)
    return _resolved(path) if path else None


def _are_rivals(one: WrittenObject, other: WrittenObject) -> bool:
    """True of sinks of files; of shards, where one gives it the times of its input."""
    sinks = [each.description for each in (one, other)]
    return any(
        isinstance(sink, SinkDescription) and (sink.format in FILES or sink.envelope == "diff")
        for sink in sinks
    )


def _taken(one: WrittenObject, other: WrittenObject, place: _Place) -> Problem:
    kind, name = place
    return one.problem(
        "option path" if "option path" in one.spots else "option shard",
        "TARGET_TAKEN",
        f"sink '{one.name}' writes to {kind} '{name}', as sink '{other.name}' at {other.place()} "
        "does",
        f"give each sink a {kind} of its own",
    )


def _loops(written: Sequence[WrittenObject]) -> Iterator[Problem]:
    """Sinks of files that would feed a source which they are made of."""
    known = {one.name: one for one in written}
    graph = Graph({one.name: one.reads for one in written})
    for one in written:
        folder = _folder(one)
        if folder is None:
            continue
        for name in sorted(graph.upstream(one.name)):
            if _reads(known[name], folder):
                yield one.problem(
                    "option path",
                    "RESERVED_NAME",
                    f"sink '{one.name}' writes where source '{name}' reads, which it is made of: "
                    "it would feed itself",
                    "give the sink another path",
                )


def _nested(written: Sequence[WrittenObject]) -> Iterator[Problem]:
    """Sinks within the folder of another sink or of a source, and sources within that of a sink."""
    sinks = [(folder, one) for one in written if (folder := _folder(one)) is not None]
    sources = [(files, one) for one in written if (files := _files_of(one)) is not None]
    targets = [(place[1], one) for one in written if (place := _place(one)) is not None]
    for (target, one), (folder, other) in product(targets, sinks):
        if other.name != one.name and _names_below(target, folder):
            yield _within(one, f"writes to '{target}'", folder, other)
    for (target, one), (files, source) in product(targets, sources):
        if not _chooses_files(source) and _names_below(target, files):
            yield _within(one, f"writes to '{target}'", files, source)
    for (files, source), (folder, sink) in product(sources, sinks):
        below = _names_below(files, folder)
        # A source that takes in what the sink writes names the sink's own sub-folders.
        if below and not fnmatchcase(_SUB_FOLDER, below[0]):
            yield _within(source, f"reads '{files}'", folder, sink)


def _within(inner: WrittenObject, does: str, folder: str, outer: WrittenObject) -> Problem:
    inner_kind, outer_kind = kind_of(inner.description), kind_of(outer.description)
    return inner.problem(
        "option path" if "option path" in inner.spots else "option shard",
        "TARGET_TAKEN",
        f"{inner_kind} '{inner.name}' {does}, within '{folder}', where {outer_kind} "
        f"'{outer.name}' at {outer.place()} {'reads' if outer_kind == 'source' else 'writes'}: "
        "what reads that folder would find the files of both",
        "give each a folder of its own, beside the other",
    )


def _names_below(path: str, folder: str) -> list[str]:
    """The names from a folder, or one that a glob leads to, down to a path.

    None of them if it is elsewhere, or if Spark does not see it when it reads the folder.
    """
    steps, above = path.split("/"), folder.rstrip("/").split("/")
    below = steps[len(above) :]
    hidden = any(name.startswith((".", "_")) and "=" not in name for name in below)
    return below if not hidden and all(map(fnmatchcase, steps, above)) else []


def _files_of(one: WrittenObject) -> str | None:
    """The path, or glob, by which a source of files reads; None of other objects."""
    source = one.description
    if not isinstance(source, SourceDescription) or source.format.lower() not in READ_FILES:
        return None
    path = path_option(source.options)
    return _resolved(path) if path else None


def _chooses_files(source: WrittenObject) -> bool:
    """True of a source that leaves out files by their names, and may leave out those of a sink."""
    assert isinstance(source.description, SourceDescription), source
    return not _CHOOSING.isdisjoint(name.lower() for name in source.description.options)


def _reads(one: WrittenObject, folder: str) -> bool:
    """True of a source that would read files of a sink in `folder`."""
    wanted = _files_of(one)
    return wanted is not None and any(
        _matches(f"{folder}{below}", wanted) for below in _MICRO_BATCH
    )


def _matches(path: str, pattern: str) -> bool:
    """True if a path fits a glob, whose stars do not reach over a slash."""
    parts, wanted = path.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def _resolved(path: str) -> str:
    """A path by which two that lead to one folder are equal."""
    url = _URL.fullmatch(path)
    if url is not None and url[1].lower() != "file":
        return path.rstrip("/")
    local = path if url is None else re.sub(r"^//[^/]*(?=/)", "", url[2])
    return os.path.realpath(local)
