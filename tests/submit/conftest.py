"""A copy of the repository in a folder with spaces and unicode, set up once by its own script.

Setting up takes about a minute with warm caches, so the one set-up is also the experiment: it is
killed half-way, then started twice at the same time, and `setup_story` keeps what was seen.
"""

from __future__ import annotations

import os
import shutil

import pytest

from support.processes.checkout import (
    FOREIGN,
    SETUP_TIMEOUT_S,
    Checkout,
    SetupStory,
    finish,
    kill_all_of,
    plant_environments,
)
from support.tree import ROOT
from support.waiting import wait_until


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """The copy, not set up yet."""
    root = tmp_path_factory.mktemp("a folder") / "with ünicode" / "shardline"
    shutil.copytree(
        ROOT,
        root,
        symlinks=True,
        ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", "data", "dist"),
    )
    return Checkout(root, {k: v for k, v in os.environ.items() if k not in FOREIGN})


@pytest.fixture(scope="session")
def setup_story(checkout: Checkout) -> SetupStory:
    """Kill a set-up once it installs packages, then start two at the same time."""
    venvs = checkout.root / ".venv"
    others = plant_environments(venvs, checkout.root)
    killed = checkout.start("setup")
    try:
        wait_until(
            "the set-up installs its first package",
            lambda: killed.poll() is not None or any(venvs.glob("*/lib/python3*/*/hatchling")),
            SETUP_TIMEOUT_S,
        )
        assert killed.poll() is None, killed.communicate()
    finally:
        kill_all_of(killed)
        killed.communicate()
    (ruin,) = (p.parent for p in venvs.glob("*/pyvenv.cfg"))
    complete = (ruin / "complete").exists()
    first, second = checkout.start("setup"), checkout.start("setup")
    twins = (finish(first, SETUP_TIMEOUT_S), finish(second, SETUP_TIMEOUT_S))
    return SetupStory(ruin, complete, twins, others)


@pytest.fixture(scope="session")
def ready(checkout: Checkout, setup_story: SetupStory) -> Checkout:
    """The copy with its environment made, and no way to download anything more."""
    assert [t.returncode for t in setup_story.twins] == [0, 0], setup_story.twins
    offline = {"PIP_NO_INDEX": "1", "PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_FIND_LINKS": ""}
    return Checkout(checkout.root, {**checkout.env, **offline})
