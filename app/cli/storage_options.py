"""Storage options are parsed from the words `--option NAME=VALUE` of every job."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from shardline.datasource.errors import InvalidUsage

__all__ = ["add_option_argument", "storage_options"]


def add_option_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--option` to a parser; its words are in attribute `option`."""
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="storage option such as s3.endpoint=http://127.0.0.1:9000; may be repeated",
    )


def storage_options(given: Sequence[str]) -> dict[str, str]:
    """Parse words `name=value` into options of the store.

    Raises:
        InvalidUsage: A word has no `=`.
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
        options[name] = value
    return options
