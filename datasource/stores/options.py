"""Parses storage options: what a store needs beyond its URL, such as credentials and time-outs.

They are text to text, so that they can be options of `format("shard")`, lines of a settings file or
arguments of a command. Unknown names are refused for every scheme: a misspelt option would be
ignored otherwise, and the default used.

    s3.endpoint             URL of an S3-compatible server; AWS by default
    s3.region               region of the bucket
    s3.access-key-id        with s3.secret-access-key (and s3.session-token) instead of the
    s3.secret-access-key    credentials that the usual AWS environment, files or instance role
    s3.session-token        provide
    s3.path-style           true: https://host/bucket/key, as most servers other than AWS need
    s3.connect-timeout-ms   5,000 by default
    s3.read-timeout-ms      30,000 by default: longest silence of a server in one request
    s3.pool-size            64 by default: connections per process
    fsspec.<argument>       passed on to the file system of any other URL

Invariants: no representation or message shows a credential.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from shardline.datasource.arguments import store_options
from shardline.datasource.errors import InvalidUsage, unknown_name

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["S3Options", "StorageOptions", "parse_options"]

_FSSPEC: Final = "fsspec."
_TRUTH: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class S3Options:
    """Connection settings for S3; None leaves a value to the AWS environment."""

    endpoint: str | None = None
    region: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    path_style: bool = False
    connect_timeout_ms: int = 5_000
    read_timeout_ms: int = 30_000
    pool_size: int = 64


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """All options of one location, parsed."""

    s3: S3Options
    fsspec: tuple[tuple[str, str], ...] = field(default=(), repr=False)


_TEXT: Final = {
    "s3.endpoint",
    "s3.region",
    "s3.access-key-id",
    "s3.secret-access-key",
    "s3.session-token",
}
_FLAGS: Final = {"s3.path-style"}
_NUMBERS: Final = {"s3.connect-timeout-ms", "s3.read-timeout-ms", "s3.pool-size"}


def parse_options(options: Mapping[str, str]) -> StorageOptions:
    """Parse storage options; names are matched without regard to case, as Spark's are.

    Raises:
        InvalidUsage: They are no mapping of texts, a name is unknown, a value is no number or not
            true/false, or only one half of a key pair is given.
    """
    options = store_options("options", options)
    known = _TEXT | _FLAGS | _NUMBERS
    s3: dict[str, str | int | bool] = {}
    fsspec: list[tuple[str, str]] = []
    for written, value in options.items():
        name = written.lower()
        if name.startswith(_FSSPEC) and len(name) > len(_FSSPEC):
            fsspec.append((written[len(_FSSPEC) :], value))
            continue
        if name not in known:
            raise unknown_name("option", written, {*known, f"{_FSSPEC}<argument>"})
        s3[name.removeprefix("s3.").replace("-", "_")] = _parse(name, value)
    if ("access_key_id" in s3) != ("secret_access_key" in s3):
        raise InvalidUsage(
            "of 's3.access-key-id' and 's3.secret-access-key' only one is set",
            code="INVALID_OPTION",
            hint="set both, or neither to use the AWS environment",
        )
    return StorageOptions(S3Options(**s3), tuple(sorted(fsspec)))  # type: ignore[arg-type]


def _parse(name: str, value: str) -> str | int | bool:
    if name in _TEXT:
        return value
    if name in _FLAGS:
        if (flag := _TRUTH.get(value.lower())) is None:
            raise InvalidUsage(
                f"option '{name}' is '{value}'", code="INVALID_OPTION", hint="true or false"
            )
        return flag
    if not value.isascii() or not value.isdigit() or int(value) == 0:
        raise InvalidUsage(
            f"option '{name}' is '{value}'", code="INVALID_OPTION", hint="a whole number above 0"
        )
    return int(value)
