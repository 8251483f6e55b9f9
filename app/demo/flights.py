"""Starts the demo's project, `conf/demo` over the folders of a run, and starts it over.

resolved = project(place).check(spark)
check_ours(application, resolved)                       refuses a location of another project
start_over(application, client, place, resolved)        drops what earlier runs have made
make_run(application, place, resolved)                  creates, changes and drops as needed
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from shardline.app.project.project import CheckedProject, Project
from shardline.app.protocol.objects import SourceDescription, progress_shard
from shardline.datasource.errors import InvalidUsage
from shardline.installation import CONF

if TYPE_CHECKING:
    from shardline.app.coordinator.application import Application
    from shardline.app.demo.place import Place
    from shardline.app.project.plan import Plan
    from shardline.datasource.client import ShardClient

__all__ = ["FOLDER", "apply_project", "load_project", "refuse_other_project", "start_over"]

_log = logging.getLogger(__name__)

FOLDER: Final = CONF / "demo"
"""The project's SQL files."""


def load_project(place: Place) -> Project:
    """Load the project over the folders of this run."""
    folders = {"landing": place.landing, "source": place.source, "out": place.out}
    return Project.load(FOLDER, {name: str(folder) for name, folder in folders.items()})


def refuse_other_project(application: Application, resolved: CheckedProject) -> None:
    """Refuse a location with objects of another project.

    Raises:
        InvalidUsage: There are some: to apply the demo's project would drop them.
    """
    others = [name for name in application.running() if name not in resolved.descriptions]
    if others:
        raise InvalidUsage(
            f"the location runs another project, with {', '.join(others)}",
            code="OTHER_PROJECT",
            hint="choose another --location for the main job",
        )


def apply_project(application: Application, place: Place, resolved: CheckedProject) -> Plan:
    """Apply the project to the application; returns the steps that this took.

    Raises:
        InvalidUsage: Its sources were filled from another folder: every flight of this one would
            be added a second time.
    """
    running = application.running()
    for name, wanted in resolved.descriptions.items():
        found = running.get(name)
        if not isinstance(found, SourceDescription) or not isinstance(wanted, SourceDescription):
            continue
        if found.options.get("path") != wanted.options.get("path"):
            raise InvalidUsage(
                f"source '{name}' was filled from other files than those in '{place.data}'",
                code="FOREIGN_SHARDS",
                hint="go on with that run's --data, choose another --location, or drop its shards "
                "with --fresh",
            )
    return application.apply(resolved)


def start_over(
    application: Application, client: ShardClient, place: Place, resolved: CheckedProject
) -> None:
    """Drop the project's objects with their shards, and their files on this machine.

    A marker file is there from before the first step until after the last: what a killed run has
    left undone is done by the next one, so that old and new files are never mixed.
    """
    place.work.mkdir(parents=True, exist_ok=True)
    place.dropping.touch()
    there = {*application.running(), *client.shards()}
    application.apply(CheckedProject({}))
    names = [n for n in resolved.descriptions if {n, progress_shard(n)} & there]
    application.drop(names)
    place.clear()
    place.dropping.unlink()
    _log.info("started over", extra={"context": {"folder": str(place.work)}})
