"""Stores objects as files below a directory of a local disk: `file:///data/shards`.

Writing a file in place is neither atomic nor durable: a reader sees half of it, and a crash leaves
a torn one. Here a file appears whole or not at all, and an acknowledged one survives a power cut:

    O_TMPFILE -> write -> fdatasync -> linkat -> fsync(directory)

`linkat` makes a create atomic: of any number of callers, in any processes, one gets the name.
O_CREAT|O_EXCL in place would leave a torn file that blocks its name for ever after a crash. Where
O_TMPFILE or /proc is missing, a named temporary file under `_tmp/` takes its place; a file system
without hard links is refused. Network file systems are not supported: they may report a name as
taken to the very call that took it (which the log can resolve) and hide a new name from other
machines for seconds (which nothing can).

Invariants:
    a visible file is complete and is never written to again, only replaced or unlinked;
    a directory is fsynced in its parent before a file in it is acknowledged;
    nothing is created, the root included, before something is written.
"""

from __future__ import annotations

import ctypes
import errno
import heapq
import os
import resource
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from shardline.datasource.errors import (
    Corrupt,
    Determinate,
    Indeterminate,
    InvalidUsage,
    ShardError,
)
from shardline.datasource.stores.location import BlobEntry
from shardline.datasource.stores.objects import CREATED, EXISTS, CreateOutcome, Objects, Unresolved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from shardline.datasource.clock import IdGenerator

__all__ = ["FileObjects"]


def _most_directories(open_files: int) -> int:
    """A share of the files that a process may open; negative is without a limit."""
    return 4096 if open_files < 0 else max(128, min(open_files // 4, 4096))


_DIRECTORIES_MAX: Final = _most_directories(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""Directories kept open: up to two for each shard that is written. To open one again takes a tenth
of an append; the rest of what this process may open is for sockets and for what its user does."""

_PERMANENT_LEVELS: Final = 2
"""Path segments of the directories that are never removed: `<shard>/` and `<shard>/<kind>/`."""

_DURABLE_MAX: Final = 10_000
"""Directories that are known to be durable; each shard has two, of a few hundred bytes each."""

_TMP: Final = "_tmp"
_AT_FDCWD: Final = -100
_AT_SYMLINK_FOLLOW: Final = 0x400
_TMPFILE_FLAGS: Final = os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC
_TMP_AGE_MS: Final = 24 * 60 * 60 * 1000
_READING: Final = frozenset({"list", "open", "read"})

_NOT_WRITABLE: Final = {errno.EACCES, errno.EPERM, errno.EROFS}
_NO_TMPFILE: Final = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL}
_NO_LINKS: Final = {errno.EOPNOTSUPP, errno.EPERM, errno.EMLINK, errno.ENOSYS, errno.EXDEV}

_NOT_LINKED: Final = {
    *_NOT_WRITABLE,
    *_NO_LINKS,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ENAMETOOLONG,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.ELOOP,
}
"""Errors with which the kernel refuses a link(2) before it writes a name. After any other, such as
EIO, the name may be there."""


class _LinkUnknownError(OSError):
    """A link(2) failed in a way that leaves open if the name was written."""


# os.link(follow_symlinks=True) is plain link(2) in CPython 3.11, which cannot name a file that has
# no name yet (EXDEV); linkat(2) with AT_SYMLINK_FOLLOW through /proc can.
_linkat = ctypes.CDLL(None, use_errno=True).linkat


class _Directory:
    """An open directory; closed with its last reference, so never during a call that uses it."""

    __slots__ = ("fd", "identity", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.identity = _identity(os.fstat(self.fd))
        """Which directory of the machine this is."""

    def is_there(self) -> bool:
        """True if it is still what its path names: it may have been moved away, and stays open."""
        try:
            return _identity(os.stat(self.path)) == self.identity  # noqa: PTH116 - at each commit
        except OSError:
            return False

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # Bound as a default: at the interpreter's exit the module may be gone before this object.
        fd = getattr(self, "fd", None)
        if fd is not None:
            close(fd)


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


class FileObjects(Objects):
    """Objects below the absolute path `root`.

    Args:
        root: The directory; made by the first write.
        ids: Names temporary files.
    """

    def __init__(self, root: str, ids: IdGenerator) -> None:
        self.url = f"file://{root}"
        self._root = root.rstrip("/") or "/"
        self._ids = ids
        self._directories: dict[str, _Directory] = {}
        # Those below which are never removed, with what they were when they were made durable.
        self._durable: dict[str, tuple[int, int]] = {}
        self._tmpfile = True
        self._swept = False

    # ------------------------------------------------------------------------------------ write

    @override
    def create(self, key: str, value: bytes) -> CreateOutcome:
        try:
            directory, linked = self._link_key(key, value)
        except _LinkUnknownError as error:
            return Unresolved(f"giving the file its name failed: {error.strerror}")
        except OSError as error:
            raise self._error_for("create", key, error) from error
        if not linked:
            # Possibly not durable yet: the log settles what it reads there before it relies on it.
            return EXISTS
        # After the link: until the directory is durable, so is no name in it. A failure here leaves
        # a file that readers see already, so the outcome is unknown and not a failure.
        try:
            os.fsync(directory.fd)
        except OSError as error:
            return Unresolved(f"fsync of directory '{directory.path}' failed: {error.strerror}")
        # A shard is restored by moving its directory away. Readers go by the path, and would never
        # see what was put into the one that is gone.
        if not directory.is_there():
            return Unresolved(f"directory '{directory.path}' was moved away meanwhile")
        return CREATED

    @override
    def put(self, key: str, value: bytes | memoryview) -> None:
        try:
            # A key is nearly always new; only one that exists needs a temporary name and a rename.
            directory, linked = self._link_key(key, value)
            if not linked:
                Path(self._write_named(value)).replace(self._path(key))
        except OSError as error:
            raise self._error_for("write", key, error) from error
        try:
            os.fsync(directory.fd)
        except OSError as error:
            raise Indeterminate(
                f"cannot tell whether '{key}' in '{self.url}' is durable: {error.strerror}",
                hint="write it again",
            ) from error
        if not directory.is_there():
            raise Indeterminate(
                f"directory '{directory.path}' was moved away while '{key}' was written",
                hint="write it again",
            )

    @override
    def delete(self, key: str) -> bool:
        path = self._path(key)
        try:
            os.unlink(path)  # noqa: PTH108 - the log deletes hundreds at a time
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise self._error_for("delete", key, error) from error
        # Not fsynced: an object that a power cut brings back is garbage, and is deleted again.
        self._remove_empty(key.rpartition("/")[0])
        return True

    @override
    def delete_many(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.delete(key)

    def _remove_empty(self, directory: str) -> None:
        """Remove `directory` and those above it that are empty, down to `<shard>/<kind>/`."""
        # Each write of Spark has a directory of its own, which nobody writes to any more when its
        # files are deleted. The directories above are in use all the time.
        while directory.count("/") >= _PERMANENT_LEVELS and self._remove(directory):
            directory = directory.rpartition("/")[0]

    def _remove(self, directory: str) -> bool:
        try:
            os.rmdir(self._path(directory))  # noqa: PTH106 - text in, text out
        except OSError:
            return False
        self._directories.pop(directory, None)
        return True

    @override
    def prune(self, prefix: str, before_ms: int) -> None:
        directory = prefix.rstrip("/")
        for name in self._names(directory):
            if name.endswith("/"):
                self._prune(f"{directory}/{name[:-1]}", before_ms)

    def _prune(self, directory: str, before_ms: int) -> None:
        # The age is read before anything below is removed, which makes this directory young.
        try:
            changed_ms = os.stat(self._path(directory)).st_mtime_ns // 1_000_000  # noqa: PTH116
        except OSError:
            return
        self.prune(directory, before_ms)
        if changed_ms < before_ms and directory.count("/") >= _PERMANENT_LEVELS:
            self._remove(directory)

    def _link_key(self, key: str, value: bytes | memoryview) -> tuple[_Directory, bool]:
        parent, _, name = key.rpartition("/")
        directory = self._opened(parent) or self._open_directory(parent)
        try:
            return directory, self._link_new(directory, name, value)
        except OSError:
            if os.fstat(directory.fd).st_nlink > 0:
                raise
            # Somebody removed the directory that we hold open: try again, in a new one.
            directory = self._open_directory(parent)
            return directory, self._link_new(directory, name, value)

    def _link_new(self, directory: _Directory, name: str, value: bytes | memoryview) -> bool:
        """Write a file without a name and link it as `name`; False if the name is taken.

        Its contents are durable then; its name is after an fsync of the directory.
        """
        if self._tmpfile:
            try:
                fd = os.open(".", _TMPFILE_FLAGS, 0o666, dir_fd=directory.fd)
            except OSError as error:
                if error.errno not in _NO_TMPFILE:
                    raise
                self._tmpfile = False
            else:
                try:
                    _write(fd, value)
                    linked = _link_fd(fd, directory.fd, name)
                finally:
                    # The data are synced already. An error of `close` after the link would look
                    # like one before it, and a create that happened like one that did not.
                    with suppress(OSError):
                        os.close(fd)
                if linked is not None:
                    return linked
                self._tmpfile = False
        return self._link_named(directory, name, value)

    def _link_named(self, directory: _Directory, name: str, value: bytes | memoryview) -> bool:
        temporary = self._write_named(value)
        try:
            os.link(temporary, name, dst_dir_fd=directory.fd)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise _link_error(error.errno, name) from error
            raise InvalidUsage(
                f"the file system of '{self._root}' has no hard links ({error.strerror})",
                code="STORE_NOT_ATOMIC",
                hint="commits need link(2): use a local disk such as ext4 or xfs, or s3://",
            ) from error
        finally:
            # A temporary file that stays is removed a day later; an error here would look like
            # one of the link, which may have happened.
            with suppress(OSError):
                Path(temporary).unlink()
        return True

    def _write_named(self, value: bytes | memoryview) -> str:
        directory = self._path(_TMP)
        path = f"{directory}/{self._ids.token().hex()}"
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
        try:
            fd = os.open(path, flags, 0o666)
        except FileNotFoundError:
            _make_durable(directory, self._root)
            fd = os.open(path, flags, 0o666)
        try:
            if not self._swept:
                self._swept = True
                _sweep(directory, os.fstat(fd).st_mtime_ns // 1_000_000 - _TMP_AGE_MS)
            _write(fd, value)
        except OSError:
            with suppress(OSError):
                Path(path).unlink()
            raise
        finally:
            with suppress(OSError):
                os.close(fd)
        return path

    def _opened(self, relative: str) -> _Directory | None:
        """A directory that is open already; None if it is not, or another one is in its place."""
        directory = self._directories.get(relative)
        return directory if directory is not None and directory.is_there() else None

    def _open_directory(self, relative: str) -> _Directory:
        directory = self._reopen(relative)
        if directory is None:
            path = self._path(relative) if relative else self._root
            _make_durable(path, self._root)
            directory = _Directory(path)
            if relative.count("/") < _PERMANENT_LEVELS:
                if len(self._durable) >= _DURABLE_MAX:
                    self._durable.clear()  # they are synced again when needed
                self._durable[relative] = directory.identity
        if len(self._directories) >= _DIRECTORIES_MAX:
            self._directories.clear()  # they are opened again when needed
        self._directories[relative] = directory
        return directory

    def _reopen(self, relative: str) -> _Directory | None:
        """Open a directory that is durable already; None if it has to be made so.

        With more shards than directories are kept open, nearly each commit opens one again. To sync
        all levels each time costs three times as much as the commit itself.
        """
        known = self._durable.get(relative)
        if known is None:
            return None
        try:
            directory = _Directory(self._path(relative))
        except OSError:
            return None  # it was removed; or what is wrong is said by who makes it
        # Another one in its place may be of a process that has not synced it yet.
        return directory if directory.identity == known else None

    @override
    def settle(self, directory: str) -> None:
        try:
            known = self._opened(directory) or _Directory(self._path(directory))
            os.fsync(known.fd)
        except (FileNotFoundError, PermissionError):
            pass  # nothing was read there; or a reader may use the directory but not open it
        except OSError as error:
            raise self._error_for("settle", directory, error) from error

    # ------------------------------------------------------------------------------------- read

    @override
    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes | None:
        try:
            fd = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._error_for("read", key, error) from error
        try:
            return _read(fd, start, end)
        except IsADirectoryError:
            return None
        except OSError as error:
            raise self._error_for("read", key, error) from error
        finally:
            os.close(fd)

    @override
    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        return [self.get(key) for key in keys]

    @override
    def open(
        self, key: str, size_bytes: int | None = None, via: Objects | None = None
    ) -> pa.NativeFile | None:
        del size_bytes, via
        import pyarrow as pa  # noqa: PLC0415 - a log needs no Arrow; loading it takes 100 ms

        try:
            # Not a memory map: an I/O error under one kills the process with SIGBUS.
            return pa.OSFile(self._path(key), "r")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._error_for("open", key, error) from error

    @override
    def entries(
        self, prefix: str, start_after: str = "", limit: int | None = None
    ) -> Iterator[BlobEntry]:
        directory = prefix.rpartition("/")[0]
        count = 0
        for key in self._walk(directory, prefix, start_after):
            if count == limit:
                return
            try:
                status = os.stat(self._path(key))  # noqa: PTH116 - one per listed object
            except FileNotFoundError:
                continue
            except OSError as error:
                raise self._error_for("list", key, error) from error
            count += 1
            yield BlobEntry(key, status.st_size, status.st_mtime_ns // 1_000_000)

    @override
    def directories(self) -> list[str]:
        return [name[:-1] for name in sorted(self._names("")) if name.endswith("/")]

    def _walk(self, directory: str, prefix: str, start_after: str) -> Iterator[str]:
        """Keys below `directory` that match, in order; a directory sorts as its name with `/`."""
        base = f"{directory}/" if directory else ""
        found = [
            key
            for name in self._names(directory)
            if (key := base + name).startswith(prefix)
            or (key[-1] == "/" and prefix.startswith(key))
            if key > start_after or (key[-1] == "/" and start_after.startswith(key))
        ]
        # A heap: to find the newest record among thousands of names, they need not all be sorted.
        heapq.heapify(found)
        while found:
            key = heapq.heappop(found)
            if key[-1] == "/":
                yield from self._walk(key[:-1], prefix, start_after)
            else:
                yield key

    def _names(self, directory: str) -> list[str]:
        """Names in a directory, unsorted; those of directories end in `/`."""
        path = self._path(directory) if directory else self._root
        try:
            with os.scandir(path) as found:
                names = [f"{e.name}/" if e.is_dir() else e.name for e in found]
        except FileNotFoundError:
            return []
        except OSError as error:
            if directory and error.errno == errno.ENOTDIR:
                return []
            raise self._error_for("list", directory or ".", error) from error
        return names if directory else [name for name in names if name != f"{_TMP}/"]

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _error_for(self, verb: str, key: str, error: OSError) -> ShardError:
        what = f"cannot {verb} '{key}' in '{self.url}': {error.strerror or error}"
        if error.errno in _NOT_WRITABLE:
            reads = verb in _READING
            hint = "check owner and permissions, of the directories above it, too"
            return InvalidUsage(
                what,
                code="ACCESS_DENIED" if reads else "LOCATION_NOT_WRITABLE",
                hint=hint if reads else f"{hint}; reads write as well: a lease keeps their files",
            )
        if error.errno in {errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.EISDIR}:
            return InvalidUsage(
                what,
                code="INVALID_LOCATION",
                hint="a file stands where a directory is needed, "
                "or a directory where a file is, or a name is longer than 255 bytes",
            )
        if verb in {"read", "list"} and error.errno == errno.EIO:
            return Corrupt(what, hint="the disk cannot read it back")
        return Determinate(what, hint="free space or check the disk, then retry")


def _write(fd: int, value: bytes | memoryview) -> None:
    written = os.write(fd, value)
    if written < len(value):
        # One call writes at most 2 GiB and may stop early when the disk is nearly full.
        rest = memoryview(value).cast("B")[written:]
        while rest:
            rest = rest[os.write(fd, rest) :]
    os.fdatasync(fd)


def _link_fd(fd: int, directory_fd: int, name: str) -> bool | None:
    """Link the unnamed file `fd` as `name`; False if taken, None if this is not supported here."""
    source = f"/proc/self/fd/{fd}".encode()
    if _linkat(_AT_FDCWD, source, directory_fd, os.fsencode(name), _AT_SYMLINK_FOLLOW) == 0:
        return True
    number = ctypes.get_errno()
    if number == errno.EEXIST:
        return False
    if os.fstat(directory_fd).st_nlink > 0 and number in {errno.ENOENT, errno.EXDEV, *_NO_LINKS}:
        return None
    raise _link_error(number, name)


def _link_error(number: int | None, name: str) -> OSError:
    """The error of a failed link(2); a `_LinkUnknownError` if the name may have been written."""
    kind = OSError if number in _NOT_LINKED else _LinkUnknownError
    return kind(number, os.strerror(number or 0), name)


def _read(fd: int, start: int, end: int | None) -> bytes:
    status = os.fstat(fd)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    stop = status.st_size if end is None else min(end, status.st_size)
    if stop <= start:
        return b""
    chunks = []
    while start < stop:
        # One call reads at most 2 GiB.
        chunk = os.pread(fd, stop - start, start)
        if not chunk:
            break
        chunks.append(chunk)
        start += len(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _make_durable(path: str, root: str) -> None:
    """Create `path` with its missing parents; fsync each level in its parent, from the root down.

    Existing levels are fsynced, too: the process that made them may have crashed before its fsync.
    """
    levels = []
    while path != "/" and (path.startswith(root) or not Path(path).exists()):
        levels.append(path)
        path = os.path.dirname(path)  # noqa: PTH120 - text in, text out
    for level in reversed(levels):
        try:
            os.mkdir(level)  # noqa: PTH102 - text in, text out
        except FileExistsError:
            if not Path(level).is_dir():
                raise
        _fsync_directory(os.path.dirname(level))  # noqa: PTH120 - text in, text out


def _fsync_directory(path: str) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return  # one may be allowed to use a directory without being allowed to list its parent
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _sweep(directory: str, before_ms: int) -> None:
    """Remove temporary files of crashed writers; ages are by the file system's own clock."""
    with os.scandir(directory) as found:
        for entry in found:
            # Those of other processes come and go meanwhile; another user's may not be for us.
            with suppress(OSError):
                if entry.stat().st_mtime_ns // 1_000_000 < before_ms:
                    Path(entry.path).unlink()
