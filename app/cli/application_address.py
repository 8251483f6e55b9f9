"""Finds the running application's address from the arguments that all commands share.

    add_address_arguments(parser)          --data, --config, --url, --token-file, --token
    where = application_address(given)

The token is a secret: what stands on a command line is seen by every user of the machine, in lists
of processes and in a shell's history. So it comes from the application's folder, from a file, or
from the environment; on the command line it still works, with a warning.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from shardline.app.cli.terminal import sentence
from shardline.app.server.client import check_running
from shardline.app.server.discovery import ApplicationAddress, find
from shardline.app.settings.config import FILE_ENCODING, load, local_folder
from shardline.datasource.errors import InvalidUsage
from shardline.installation import DATA_FOLDER

__all__ = ["TOKEN_VARIABLE", "add_address_arguments", "add_command", "application_address"]

TOKEN_VARIABLE: Final = "SHARDLINE_TOKEN"  # noqa: S105 - the name of a variable
"""Environment variable with the token, for `--url`."""


def add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, what: str
) -> argparse.ArgumentParser:
    """Add a command that asks an application.

    Args:
        commands: Those that there are.
        name: Its name.
        what: What it does, for the list of commands, and as a sentence for its own help.
    """
    parser = commands.add_parser(name, help=what, description=sentence(what))
    add_address_arguments(parser)
    return parser


def add_address_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say which application is meant."""
    parser.add_argument("--data", help=f"folder of the application; default: {DATA_FOLDER}")
    parser.add_argument("--config", type=Path, help="settings file; default: conf/app.toml")
    parser.add_argument("--url", help="where it answers, instead of looking into the folder")
    parser.add_argument(
        "--token-file",
        type=Path,
        help=f"with --url: a file with its token; default: the variable {TOKEN_VARIABLE}",
    )
    parser.add_argument("--token", help="with --url: its token, which others then see")


def application_address(
    given: argparse.Namespace, environment: Mapping[str, str] = os.environ
) -> ApplicationAddress:
    """Find the application that the arguments mean; one of a folder answers there itself.

    Args:
        given: The parsed arguments.
        environment: Variables of the process.

    Raises:
        InvalidUsage: No application runs there, the folder is a URL, or the file with the token
            cannot be read.
        Determinate: It does not answer in time, or fails to.
    """
    if given.url:
        return ApplicationAddress(
            url=given.url.rstrip("/"), token=_token(given, environment), pid=0
        )
    chosen = None if given.data is None else local_folder(given.data)
    found = find(chosen or load(given.config).demo.data)
    check_running(found)
    return found


def _token(given: argparse.Namespace, environment: Mapping[str, str]) -> str:
    if given.token:
        sys.stderr.write(
            "warning: a token on the command line is seen by every user of this machine: use "
            f"--token-file or the variable {TOKEN_VARIABLE}\n"
        )
        token: str = given.token
        return token
    if given.token_file is None:
        return environment.get(TOKEN_VARIABLE, "")
    try:
        text: str = given.token_file.read_text(encoding=FILE_ENCODING)
    except OSError as error:
        raise InvalidUsage(
            f"the file with the token cannot be read: {error}",
            code="TOKEN_FILE",
            hint="name a file that this user may read",
        ) from None
    return text.strip()
