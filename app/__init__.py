"""The application: the unified runtime, projects of SQL or Python, and the server over both.

    from shardline.app import Project          a project from SQL files or from Python

Owns all that runs beside the shards: the objects of a project, their starts, steps and ends, and
what people and programs see and ask of them. From top to bottom:

    demo/           a project over a year of flights, checked against plain Spark
    cli/            tables, statuses and plans on a terminal; the command `admin`
    server/         the application over HTTP: relations, metrics, queries, the page
    coordinator/    a project's objects become commands; queries get their times
    testing         tests of views without files, streams or waiting
    project/        SQL files become descriptions of objects, checked by Spark
    runtime/        the loop around one Spark session, one lane and all objects
    admin/          verbs that change the shards of a location, planned before they are carried out
    compute/        views, indexes, subscriptions and peeks
    storage/        sources and sinks
    introspection/  what runs, how far it is and what is wrong with it, as relations
    controller/     keeps the runtime in agreement with the objects that should be there
    lane/           one durable order of all that starts, changes or ends
    sql/            the query language, without objects
    transport/      connections between controllers and the runtime
    execution/      what every running object is given: a host, reports, a schedule
    protocol/       descriptions, commands and responses: values without I/O
    settings/       the settings of an application, and units of their values
    spark_session   opens the Spark session of a driver
    logs            the log as JSON lines
    printable       texts of data without commands to a terminal

May use: `datasource`, but not its stores, parts, rows and filters, of which only `testing` and
`cli.admin` know. Start at `coordinator.application` for the whole, at `runtime` and `lane` for how
objects run.

Never: a room imports from one above it (the linter holds that).

`Application` and `Project` are imported at their first use: a command that only asks a running
application over HTTP does not load Spark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from shardline.app.coordinator.application import Application
    from shardline.app.project.project import Project

if __name__ != "shardline.app":
    # A second name would make a second copy of every class, which no `except` and no `isinstance`
    # of the first would know.
    raise ImportError(f"'{__name__}' is part of Shardline: import it as 'shardline.app'")

__all__ = ["Application", "Project"]

_MODULES: Final = {
    "Application": "shardline.app.coordinator.application",
    "Project": "shardline.app.project.project",
}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'shardline.app' has no attribute '{name}'")
