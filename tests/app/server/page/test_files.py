"""The page's files: vendored ones unchanged and listed, our own free of what would run data."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

from shardline.app.protocol.object_state import SHOWN_PHASES, VERDICTS
from shardline.app.server.page_routes import _read_files
from support.tree import ROOT

PAGE: Final = ROOT / "app" / "server" / "page"
VENDOR: Final = PAGE / "vendor"
AXE: Final = ROOT / "tests" / "support" / "page" / "vendor"

LICENCES: Final = {"BSD-3-Clause", "MIT", "MPL-2.0"}
FIRST_SCREEN_MAX: Final = 300_000
LINES_MAX: Final = 400


def listed(folder: Path) -> list[dict[str, Any]]:
    """The list of what is vendored in a folder."""
    found: list[dict[str, Any]] = json.loads((folder / "vendor.json").read_text())
    return found


def own_files(*suffixes: str) -> list[Path]:
    """Files of the page that are ours."""
    every = sorted(p for p in PAGE.rglob("*") if p.suffix in suffixes)
    return [p for p in every if not p.is_relative_to(VENDOR)]


@pytest.mark.parametrize("folder", [VENDOR, AXE], ids=["page", "tests"])
def test_vendored_files_are_unchanged_and_listed(folder: Path) -> None:
    """Each with its hash, each library with its licence, and no other file in the folder."""
    hashes = {
        f"{library['name']}/{name}": digest
        for library in listed(folder)
        for name, digest in library["files"].items()
    }
    there = {
        p.relative_to(folder).as_posix(): f"sha256-{hashlib.sha256(p.read_bytes()).hexdigest()}"
        for p in folder.rglob("*")
        if p.is_file() and p.name != "vendor.json"
    }
    assert there == hashes
    for library in listed(folder):
        assert set(library) == {"name", "version", "license", "source", "for", "files"}
        assert library["license"] in LICENCES, library["name"]
        assert "LICENSE" in library["files"], library["name"]
        assert re.fullmatch(r"\d+\.\d+\.\d+", library["version"])


def test_the_vendored_list_is_that_of_the_document() -> None:
    """What docs/page.md says of a library's version and licence is true."""
    told = (ROOT / "docs" / "page.md").read_text()
    for library in listed(VENDOR):
        licence = library["license"].removesuffix("-Clause")
        assert f"{library['name']}" in told.lower()
        assert f"{library['version']}, {licence}" in told, library["name"]


def test_own_files_run_nothing_that_comes_from_data() -> None:
    """No string becomes markup or code, and no style stands in an attribute."""
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|unsafeHTML|unsafe-html|\beval\(|"
        r"new Function|\sstyle=|\son[a-z]+=[\"']|javascript:"
    )
    found = {
        f"{p.relative_to(PAGE)}:{number}": line.strip()
        for p in own_files(".js", ".html")
        for number, line in enumerate(p.read_text().splitlines(), 1)
        if forbidden.search(line)
    }
    assert found == {}


def test_the_page_judges_nothing() -> None:
    """No verdict stands in its own files: shapes and colours follow the tone that a row has."""
    others = {*VERDICTS.values(), *SHOWN_PHASES}  # tones, and what a button depends on
    named = re.compile("[\"'`](" + "|".join(VERDICTS.keys() - others) + ")[\"'`]")
    found = {p.name: named.findall(p.read_text()) for p in own_files(".js")}
    assert {name: words for name, words in found.items() if words} == {}


def test_only_one_module_talks_to_the_application() -> None:
    """All others ask it: the token, refusals and losses are handled once."""
    talks = re.compile(r"\bfetch\(|new WebSocket|XMLHttpRequest|EventSource")
    found = {p.name for p in own_files(".js") if talks.search(p.read_text())}
    assert found == {"server.js"}


def test_own_modules_are_short_and_say_what_they_are() -> None:
    """A reader keeps one in mind; its head says what it does."""
    long = {p.name: n for p in own_files(".js") if (n := p.read_text().count("\n")) > LINES_MAX}
    assert long == {}
    silent = [p.name for p in own_files(".js") if not p.read_text().startswith("/**")]
    assert silent == []


PLACES: Final = {
    "graph/keys.js": "in the graph",
    "parts/search.js": "in the search",
    "parts/timeline.js": "on the time line",
    "parts/shard_chart.js": "on the axis of a shard",
    "parts/editor.js": "in SQL",
}
"""Modules that take keys, and how the list at `?` names the place."""

KEYS: Final = {"ArrowLeft": "←", "ArrowRight": "→", "ArrowUp": "↑", "ArrowDown": "↓"}
"""Names of the browser for what the list has a sign for."""


@pytest.mark.parametrize("module", PLACES)
def test_keys_that_are_taken_are_listed(module: str) -> None:
    """But for Esc, which closes or takes back anywhere."""
    named = r"\b(Arrow[A-Z][a-z]+|Page(?:Up|Down)|Home|End|Enter|Space)(?:: |\")"
    taken = {KEYS.get(key, key) for key in re.findall(named, (PAGE / module).read_text())}
    entry = r"\[\[((?:\"[^\"]+\",? ?)+)\], \"([^\"]+)\"\]"
    entries = re.findall(entry, (PAGE / "parts" / "keys.js").read_text())
    here = {key for keys, what in entries if PLACES[module] in what for key in keys.split('"')}
    assert taken
    assert taken <= here


def imported(file: str, known: dict[str, str], seen: set[str]) -> None:
    """Collect the modules that one loads before it runs."""
    if file in seen:
        return
    seen.add(file)
    folder = Path(file).parent
    loads = r"(?:^|[;}])\s*(?:import|export)[^;\"'(]*?[\"'](\.[^\"']+)[\"']"
    for path in re.findall(loads, known[file], re.MULTILINE):
        parts: list[str] = []
        for part in (folder / path).parts:
            parts = parts[:-1] if part == ".." else [*parts, part]
        imported("/".join(parts), known, seen)


def test_the_first_screen_is_small() -> None:
    """All that it loads, compressed as it is sent: document, styles, modules, the worker."""
    files = _read_files()
    modules = {name: file.content.decode() for name, file in files.items() if name.endswith(".js")}
    first = {"page.html", "icon.svg"}
    first |= set(re.findall(r'href="/page/([^"]+\.css)"', files["page.html"].content.decode()))
    for start in ("main.js", "screens/overview.js", "layout.worker.js"):
        imported(start, modules, first)
    assert {"vendor/lit-html/lit-html.js", "vendor/dagre/dagre.esm.js", "parts/graph.js"} <= first
    assert not any("codemirror" in name for name in first)
    size = sum(len(gzip.compress(files[name].content, 9)) for name in first)
    assert size < FIRST_SCREEN_MAX
