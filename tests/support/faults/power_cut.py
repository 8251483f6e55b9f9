"""Power cuts of the file store, made by thought: what may be on the disk at any moment.

A `Recorder` notes the system calls of `shardline.datasource.stores.file`, which happen for real as
well. Its
`images` are what a power cut could leave after each of them, by what POSIX promises and no more:

- what was written to a file and not synced since may be there, in part, as zeros, or not at all;
- a name that was given, taken or changed in a directory not synced since may be as before or as
  after, each by itself and in any order.

File systems lose less: ext4 writes names in order, and syncing one file often saves others. So a
program that passes here does not rely on the file system at hand; one that fails may never be
caught by pulling the plug.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Literal

import pytest

from shardline.datasource.stores import file

__all__ = ["Image", "Mutation", "Recorder", "materialise", "recording"]

Mutation = Literal["none", "no fdatasync", "no fsync"]
"""What the store forgets, to see that it is found."""

_ROOT: Final = 0
_LINKAT: Final = file._linkat


@dataclass(frozen=True, slots=True)
class _Data:
    """Bytes were appended to a file."""

    inode: int
    value: bytes


@dataclass(frozen=True, slots=True)
class _Names:
    """Names were given (to an inode) or taken (None), at once."""

    changes: tuple[tuple[int, str, int | None], ...]


@dataclass(frozen=True, slots=True)
class _Sync:
    """A file or a directory was synced."""

    inode: int


@dataclass(frozen=True, slots=True)
class _Note:
    """Something was acknowledged."""

    value: int


_Step = _Data | _Names | _Sync | _Note


@dataclass(frozen=True, slots=True)
class Image:
    """What a power cut leaves.

    Attributes:
        step: After how many steps.
        lost: In words, which of what was not synced is there.
        noted: The last number noted before.
        files: Contents by path; None is a directory.
    """

    step: int
    lost: str
    noted: int
    files: dict[str, bytes | None]


@dataclass
class Recorder:
    """Everything that was done below one directory, which is there and empty before."""

    root: str
    mutation: Mutation = "none"
    steps: list[_Step] = field(default_factory=list)
    before_fsync: Callable[[], None] | None = None
    """Runs in the middle of the next fsync: what others do while its caller stands still."""
    _inodes: dict[int, int] = field(default_factory=dict)
    _directories: dict[str, int] = field(default_factory=dict)
    _next: int = 1

    def note(self, value: int) -> None:
        """Something was acknowledged: it must not be lost from here on."""
        self.steps.append(_Note(value))

    # ----------------------------------------------------------------------------- system calls

    def fakes(self) -> dict[str, Any]:
        """Stand-ins for what the store's module imports."""
        recorder = self
        self._directories[self.root] = _ROOT

        class RecordedPath(type(Path())):  # type: ignore[misc]
            def replace(self, target: str) -> Any:
                moved = recorder._inode_at(str(self))
                done = super().replace(target)
                at, to = recorder._place(str(self)), recorder._place(target)
                recorder.steps.append(_Names(((*at, None), (*to, moved))))
                return done

            def unlink(self, missing_ok: bool = False) -> None:
                super().unlink(missing_ok)
                recorder.steps.append(_Names(((*recorder._place(str(self)), None),)))

        names = ("open", "write", "fdatasync", "fsync", "link", "unlink", "mkdir", "rmdir")
        real = {name: getattr(os, name) for name in dir(os) if not name.startswith("__")}
        calls = {name: getattr(self, f"_{name}") for name in names}
        return {
            "os": SimpleNamespace(**real | calls),
            "Path": RecordedPath,
            "_linkat": self._linkat,
        }

    def _open(self, path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        fd = os.open(path, flags, mode, dir_fd=dir_fd)
        if flags & (os.O_CREAT | os.O_TMPFILE) & ~os.O_DIRECTORY:
            # Numbers of deleted files are used again: this is another one.
            self._inodes[os.fstat(fd).st_ino] = self._fresh()
        if flags & os.O_CREAT:
            self.steps.append(_Names(((*self._place(path), self._of(fd)),)))
        return fd

    def _write(self, fd: int, value: bytes) -> int:
        written = os.write(fd, value)
        self.steps.append(_Data(self._of(fd), bytes(memoryview(value).cast("B")[:written])))
        return written

    def _fdatasync(self, fd: int) -> None:
        if self.mutation != "no fdatasync":
            self.steps.append(_Sync(self._of(fd)))

    def _fsync(self, fd: int) -> None:
        meanwhile, self.before_fsync = self.before_fsync, None
        if meanwhile is not None:
            meanwhile()
        if self.mutation != "no fsync":
            self.steps.append(_Sync(self._of(fd)))

    def _linkat(self, at: int, source: bytes, directory_fd: int, name: bytes, flags: int) -> int:
        outcome: int = _LINKAT(at, source, directory_fd, name, flags)
        if outcome == 0:
            inode = self._of(int(source.rpartition(b"/")[2]))
            self.steps.append(_Names(((self._of(directory_fd), os.fsdecode(name), inode),)))
        return outcome

    def _link(self, source: str, name: str, *, dst_dir_fd: int) -> None:
        inode = self._inode_at(source)
        os.link(source, name, dst_dir_fd=dst_dir_fd)
        self.steps.append(_Names(((self._of(dst_dir_fd), name, inode),)))

    def _unlink(self, path: str) -> None:
        os.unlink(path)  # noqa: PTH108 - the very call that the store makes
        self.steps.append(_Names(((*self._place(path), None),)))

    def _mkdir(self, path: str) -> None:
        os.mkdir(path)  # noqa: PTH102 - the same
        self._directories[path] = self._fresh()
        self.steps.append(_Names(((*self._place(path), self._directories[path]),)))

    def _rmdir(self, path: str) -> None:
        os.rmdir(path)  # noqa: PTH106 - the same
        self.steps.append(_Names(((*self._place(path), None),)))

    def _fresh(self) -> int:
        self._next += 1
        return self._next

    def _of(self, fd: int) -> int:
        """Our number of what is open as `fd`."""
        link = Path(f"/proc/self/fd/{fd}")
        if link.is_dir():
            return self._directories.get(str(link.readlink()), -1)  # -1: above the root
        return self._inodes[os.fstat(fd).st_ino]

    def _inode_at(self, path: str) -> int:
        return self._inodes[os.stat(path).st_ino]  # noqa: PTH116 - text in

    def _place(self, path: str) -> tuple[int, str]:
        parent, _, name = path.rpartition("/")
        return self._directories[parent], name

    # ------------------------------------------------------------------------------------ images

    def images(self, chance: random.Random, *, more: int = 2) -> Iterator[Image]:
        """What power cuts may leave after each step, each image once.

        Args:
            more: Drawn at random after each step, beside the four plain ones.
        """
        seen: set[frozenset[tuple[str, bytes | None]]] = set()
        for end in range(1, len(self.steps) + 1):
            noted = max((s.value for s in self.steps[:end] if isinstance(s, _Note)), default=0)
            for lost, names, data in _choices(chance, more):
                files = self._survivors(end, names, data)
                key = frozenset(files.items())
                if (key, noted) not in seen:  # type: ignore[comparison-overlap]
                    seen.add((key, noted))  # type: ignore[arg-type]
                    yield Image(end, lost, noted, files)

    def _survivors(
        self, end: int, names: Callable[[], bool], data: Callable[[bytes], bytes]
    ) -> dict[str, bytes | None]:
        synced: dict[int, int] = {}
        for at, step in enumerate(self.steps[:end]):
            if isinstance(step, _Sync):
                synced[step.inode] = at
        contents: dict[int, bytes] = {}
        entries: dict[int, dict[str, int]] = {_ROOT: {}}
        for at, step in enumerate(self.steps[:end]):
            if isinstance(step, _Data):
                kept = step.value if at < synced.get(step.inode, -1) else data(step.value)
                contents[step.inode] = contents.get(step.inode, b"") + kept
            if isinstance(step, _Names):
                durable = all(at < synced.get(where, -1) for where, _, _ in step.changes)
                if durable or names():
                    for where, name, inode in step.changes:
                        _set(entries.setdefault(where, {}), name, inode)
        directories = set(self._directories.values()) | set(entries)
        return dict(_walk(_ROOT, "", entries, contents, directories))


def _set(directory: dict[str, int], name: str, inode: int | None) -> None:
    if inode is None:
        directory.pop(name, None)
    else:
        directory[name] = inode


def _walk(
    at: int,
    path: str,
    entries: dict[int, dict[str, int]],
    contents: dict[int, bytes],
    directories: set[int],
) -> Iterator[tuple[str, bytes | None]]:
    for name, inode in sorted(entries.get(at, {}).items()):
        if inode in directories:
            yield f"{path}{name}", None
            yield from _walk(inode, f"{path}{name}/", entries, contents, directories)
        else:
            yield f"{path}{name}", contents.get(inode, b"")


_Choice = tuple[str, Callable[[], bool], Callable[[bytes], bytes]]


def _choices(chance: random.Random, more: int) -> Iterator[_Choice]:
    """Which of what was not synced is there: names one by one, and contents."""
    yield "nothing that was not synced", lambda: False, lambda _: b""
    yield "names, and no contents", lambda: True, lambda _: b""
    yield "names, and zeros for contents", lambda: True, lambda value: bytes(len(value))
    yield "names, and half of the contents", lambda: True, lambda value: value[: len(value) // 2]
    for number in range(more):
        drawn = random.Random(chance.random())
        yield (
            f"draw {number}",
            lambda drawn=drawn: drawn.random() < 0.5,  # type: ignore[misc]
            lambda value, drawn=drawn: value[: drawn.randrange(len(value) + 1)],  # type: ignore[misc]
        )


def materialise(image: Image, folder: Path) -> None:
    """Make `folder`, which is empty, what the image says."""
    for path, content in image.files.items():
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)


@contextmanager
def recording(root: str, mutation: Mutation = "none") -> Iterator[Recorder]:
    """Record what stores do below the directory `root` inside of the `with` block."""
    recorder = Recorder(root, mutation)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in recorder.fakes().items():
            patch.setattr(file, name, value)
        yield recorder
