"""Stores objects in any other fsspec file system that can create a file only if it is absent.

Google Cloud Storage (`gs://`) and Azure (`abfs://`) can, by `pipe_file(mode="create")`. fsspec's
default implementation of that method checks first and writes then, so two writers can both succeed.
A file system that does not override it is refused, and so are fsspec's local and memory ones (our
own backends serve `file://` and `memory://`) and those that wrap another. The rest is probed when a
location is created.

For most of these file systems every 404 is a `FileNotFoundError`: also that of a bucket which is
gone, and of an ingress that has no backend for a moment, and a listing that fails so is an empty
one. So once an instance has seen the location's marker, nothing is taken for absent unless the
marker is found after that and the object, looked at once more, is still not there. Only where
Azure's own code of the error is passed on does one look tell.

Invariants: an instance belongs to one process; listings are never cached.
"""

from __future__ import annotations

import os
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.spec import AbstractFileSystem
from typing_extensions import override

from shardline.datasource.errors import Determinate, Indeterminate, InvalidUsage, ShardError
from shardline.datasource.stores.location import MARKER, BlobEntry
from shardline.datasource.stores.objects import CREATED, EXISTS, CreateOutcome, Objects, Unresolved
from shardline.datasource.stores.ranged import open_ranged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

__all__ = ["FsspecObjects", "check_file_system"]

T = TypeVar("T")

_NOT_ATOMIC: Final = {"file", "local", "memory"}
_ABSENT: Final = (FileNotFoundError, IsADirectoryError)
_MODIFIED: Final = ("mtime", "LastModified", "last_modified", "updated", "created")


class FsspecObjects(Objects):
    """Objects below `url`.

    Args:
        url: `protocol://…`, without a trailing slash.
        arguments: Passed to the file system.

    Raises:
        InvalidUsage: There is no such file system, or it cannot create atomically.
    """

    def __init__(self, url: str, arguments: Mapping[str, str]) -> None:
        self.url = url
        self._arguments = dict(arguments)
        self._session: tuple[int, Any] | None = None
        self._has_marker = False
        fs = self._fs()
        self._root = str(fs._strip_protocol(url)).rstrip("/")  # noqa: SLF001 - it has no other name
        if hasattr(fs, "fs"):
            raise _not_atomic(url)

    def _fs(self) -> Any:
        process = os.getpid()
        if self._session is None or self._session[0] != process:
            self._session = (process, self._connect())
        return self._session[1]

    def _connect(self) -> Any:
        kind = _file_system_class(self.url)
        try:
            from_url = kind._get_kwargs_from_urls(self.url)  # noqa: SLF001 - as fsspec itself does
            return kind(
                **{**from_url, **self._arguments},
                skip_instance_cache=True,
                use_listings_cache=False,
            )
        except Exception as error:
            raise _not_opened(self.url, error) from error

    # ----------------------------------------------------------------------------------- write

    @override
    def create(self, key: str, value: bytes) -> CreateOutcome:
        try:
            self._write(key, value, "create")
        except FileExistsError:
            return EXISTS
        except Exception as error:  # noqa: BLE001 - file systems raise what they like
            # Never raised, however clear a refusal it is: these clients repeat requests inside.
            return Unresolved(type(error).__name__, self._refusal(f"create '{key}'", error))
        self._note_marker(key)
        return CREATED

    @override
    def put(self, key: str, value: bytes | memoryview) -> None:
        try:
            self._write(key, bytes(value), "overwrite")
        except Exception as error:  # noqa: BLE001 - file systems raise what they like
            self._raise(f"write '{key}'", error, Indeterminate)

    def _write(self, key: str, value: bytes, mode: str) -> None:
        path = self._path(key)
        try:
            self._fs().pipe_file(path, value, mode=mode)
        except FileNotFoundError:
            # Some file systems need the directory first.
            self._fs().makedirs(path.rpartition("/")[0], exist_ok=True)
            self._fs().pipe_file(path, value, mode=mode)

    @override
    def delete(self, key: str) -> bool:
        if self._look(f"delete '{key}'", lambda: self._info(key)) is None:
            return False
        try:
            self._fs().rm_file(self._path(key))
        except FileNotFoundError:
            return False
        except Exception as error:  # noqa: BLE001 - file systems raise what they like
            self._raise(f"delete '{key}'", error, Indeterminate)
        return True

    @override
    def delete_many(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.delete(key)

    @override
    def settle(self, directory: str) -> None:
        pass

    # ------------------------------------------------------------------------------------ read

    @override
    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes | None:
        # The marker is what all other absences are judged by.
        value = self._look(
            f"read '{key}'", lambda: self._fetch(key, start, end), is_sure=key == MARKER
        )
        if value is not None:
            self._note_marker(key)
        return value

    def _fetch(self, key: str, start: int, end: int | None) -> bytes:
        whole = start == 0 and end is None
        if not whole:
            # Not all file systems cut a range at the end of the file, as our contract says.
            size = self._info(key)["size"]
            end = size if end is None else min(end, size)
            if end <= start:
                return b""
        value = self._fs().cat_file(self._path(key), start=None if whole else start, end=end)
        if end is not None and len(value) != end - start:
            # A short value would look like a shorter object, and be reported as a missing part.
            raise Determinate(
                f"cannot read '{key}' at '{self.url}': {len(value)} of {end - start} bytes arrived",
                code="STORE_UNAVAILABLE",
                hint="retry later",
            )
        return bytes(value)

    @override
    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        return [self.get(key) for key in keys]

    @override
    def open(
        self, key: str, size_bytes: int | None = None, via: Objects | None = None
    ) -> pa.NativeFile | None:
        if size_bytes is None:
            info = self._look(f"look at '{key}'", lambda: self._info(key))
            if info is None:
                return None
            size_bytes = int(info["size"])
        return open_ranged(via or self, key, size_bytes)

    @override
    def entries(
        self, prefix: str, start_after: str = "", limit: int | None = None
    ) -> Iterator[BlobEntry]:
        base = f"{self._root}/{prefix.rpartition('/')[0]}".rstrip("/")
        infos = self._look(f"list '{prefix}'", lambda: self._list("find", base)) or {}
        strip = len(self._root) + 1
        found = sorted(
            (key, info)
            for path, info in infos.items()
            if (key := path[strip:]) > start_after and key.startswith(prefix)
        )
        return (BlobEntry(key, info["size"], _modified_ms(info)) for key, info in found[:limit])

    @override
    def directories(self) -> list[str]:
        entries = self._look("list", lambda: self._list("ls", self._root)) or []
        strip = len(self._root) + 1
        return sorted(e["name"].rstrip("/")[strip:] for e in entries if e["type"] == "directory")

    def _list(self, method: str, path: str) -> Any:
        """What is below `path`; an error if that is nothing."""
        self._fs().invalidate_cache()
        found = getattr(self._fs(), method)(path, detail=True)
        if not found:
            raise FileNotFoundError(path)
        return found

    def _info(self, key: str) -> dict[str, Any]:
        self._fs().invalidate_cache()
        info: dict[str, Any] = self._fs().info(self._path(key))
        if info["type"] != "file":
            raise FileNotFoundError(key)
        return info

    def _look(self, what: str, look: Callable[[], T], *, is_sure: bool = False) -> T | None:
        """What `look` finds; None if that is absent, and it was the location's store that said so.

        Args:
            what: What is done, for the message of an error.
            look: Asks the file system.
            is_sure: True to believe that without a second look.
        """
        for is_last in (is_sure or not self._has_marker, True):
            try:
                return look()
            except ShardError:
                raise
            except _ABSENT as error:
                if is_last or _names_blob(error):
                    return None
            except Exception as error:  # noqa: BLE001 - file systems raise what they like
                self._raise(what, error)
            self._check_marker(what)
        return None

    def _check_marker(self, what: str) -> None:
        try:
            self._fs().cat_file(self._path(MARKER))
        except FileNotFoundError as error:
            raise Determinate(
                f"cannot {what} at '{self.url}': '{MARKER}' is not found there either",
                code="STORE_UNAVAILABLE",
                hint="retry later; if it lasts, the location or its bucket was deleted, or what "
                "answers there is not its store",
            ) from error
        except Exception as error:  # noqa: BLE001 - file systems raise what they like
            self._raise(what, error)

    def _note_marker(self, key: str) -> None:
        self._has_marker = self._has_marker or key == MARKER

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    # ---------------------------------------------------------------------------------- errors

    def _raise(
        self, what: str, error: Exception, otherwise: type[ShardError] = Determinate
    ) -> NoReturn:
        refusal = self._refusal(what, error)
        if refusal is not None:
            raise refusal from error
        raise otherwise(
            f"cannot {what} at '{self.url}': {type(error).__name__}",
            code="STORE_UNAVAILABLE",
            hint="retry later",
        ) from error

    def _refusal(self, what: str, error: Exception) -> InvalidUsage | None:
        """The error for the user if `error` has a permanent cause; None if a retry may help."""
        if isinstance(error, PermissionError):
            return InvalidUsage(
                f"cannot {what} at '{self.url}'",
                code="ACCESS_DENIED",
                hint="check the credentials and what they permit",
            )
        if isinstance(error, NotImplementedError | TypeError):
            return InvalidUsage(
                f"cannot {what} at '{self.url}': its file system does not support it",
                code="STORE_NOT_ATOMIC",
                hint="use a local directory, s3://, gs:// or abfs://",
            )
        return None


def check_file_system(url: str) -> None:
    """Refuse a URL without a file system that could hold a location; nothing is opened.

    Raises:
        InvalidUsage: As `FsspecObjects`.
    """
    _file_system_class(url)


def _file_system_class(url: str) -> type[AbstractFileSystem]:
    """The class of the file system of `url`; errors as `FsspecObjects`."""
    try:
        kind: type[AbstractFileSystem] = fsspec.get_filesystem_class(url.partition("://")[0])
    except Exception as error:
        raise _not_opened(url, error) from error
    protocols = {kind.protocol} if isinstance(kind.protocol, str) else set(kind.protocol)
    if protocols & _NOT_ATOMIC or not _can_create(kind):
        raise _not_atomic(url)
    return kind


def _not_opened(url: str, error: Exception) -> InvalidUsage:
    return InvalidUsage(
        f"cannot open '{url}': {type(error).__name__}",
        code="INVALID_LOCATION",
        hint=f"is the fsspec file system for '{url.partition('://')[0]}' installed, and are its "
        "fsspec.<argument> options complete?",
    )


def _not_atomic(url: str) -> InvalidUsage:
    return InvalidUsage(
        f"the file system of '{url}' cannot create a file only if it is absent",
        code="STORE_NOT_ATOMIC",
        hint="use a local directory, s3://, gs:// or abfs://",
    )


def _can_create(kind: type[AbstractFileSystem]) -> bool:
    """True if `kind` overrides fsspec's `pipe_file`, which checks first and writes then."""
    if issubclass(kind, AsyncFileSystem):
        return kind._pipe_file is not AsyncFileSystem._pipe_file  # noqa: SLF001 - what is overridden
    return kind.pipe_file is not AbstractFileSystem.pipe_file


def _names_blob(error: OSError) -> bool:
    """True if Azure itself has answered that there is no such blob, and adlfs has passed it on."""
    return bool(getattr(error.__cause__, "error_code", None) == "BlobNotFound")


def _modified_ms(info: Mapping[str, Any]) -> int:
    for name in _MODIFIED:
        moment = info.get(name)
        if isinstance(moment, int | float):
            return int(moment * 1000)
        if isinstance(moment, datetime):
            return int(moment.timestamp() * 1000)
    return 0
