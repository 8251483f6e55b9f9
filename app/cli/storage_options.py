"""Says where shards are: the location of a job, and storage options, `--option NAME=VALUE`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from shardline.app.protocol.redaction import HIDDEN, redact_option
from shardline.app.settings.config import FILE_ENCODING
from shardline.datasource.errors import InvalidUsage

__all__ = ["add_location_argument", "add_option_argument", "storage_options"]


def add_location_argument(parser: argparse.ArgumentParser) -> None:
    """Add the location to a parser; its word is in attribute `location`."""
    parser.add_argument(
        "location", metavar="LOCATION", help="file:///path, a plain path, s3://bucket/prefix, …"
    )


def add_option_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--option` to a parser; its words are in attribute `option`."""
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="storage option such as s3.endpoint=http://127.0.0.1:9000, or NAME=@FILE for a secret "
        "in a file; may be repeated",
    )


def storage_options(given: Sequence[str]) -> dict[str, str]:
    """Parse words `name=value` into options of the store.

    `NAME=@FILE` stands for the text of a file: what stands on a command line is seen by every user
    of the machine, so a secret there is worth a warning.

    Raises:
        InvalidUsage: A word has no `=`, or a file cannot be read.
    """
    options = {}
    for word in given:
        name, separator, value = word.partition("=")
        if not separator or not name:
            raise InvalidUsage(
                f"'{name}' is not a storage option",
                code="INVALID_OPTION",
                hint="write --option NAME=VALUE, such as --option s3.region=eu-central-1",
            )
        if value.startswith("@"):
            value = _text_of(name, Path(value[1:]))
        elif redact_option(name, value) == HIDDEN:
            sys.stderr.write(
                f"warning: '{name}' on the command line is seen by every user of this machine: use "
                f"--option {name}=@FILE, or section [storage] of the settings file\n"
            )
        options[name] = value
    return options


def _text_of(name: str, file: Path) -> str:
    try:
        return file.read_text(encoding=FILE_ENCODING).strip()
    except OSError as error:
        raise InvalidUsage(
            f"the file of option '{name}' cannot be read: {error}",
            code="INVALID_OPTION",
            hint="name a file that this user may read",
        ) from None
