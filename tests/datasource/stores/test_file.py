"""Files of a local disk are right where only a local disk can be wrong."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shardline.datasource.clock import SystemClock, SystemIds
from shardline.datasource.errors import (
    Determinate,
    Indeterminate,
    InvalidUsage,
    ShardError,
)
from shardline.datasource.stores import file as file_store
from shardline.datasource.stores.file import FileObjects
from shardline.datasource.stores.location import Committed, VersionedData
from shardline.datasource.stores.log import NumberedLog
from shardline.datasource.stores.objects import CREATED, EXISTS, Unresolved
from shardline.datasource.stores.open import open_location

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardline.datasource.stores.location import Location


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "röot dir"


@pytest.fixture
def objects(root: Path) -> FileObjects:
    return FileObjects(str(root), SystemIds())


def _files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def _fail(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> Callable[[], None]:
    """Make `os.<name>` fail with errno `number` until the returned function is called."""
    genuine = getattr(os, name)

    def failing(*args: Any, **kwargs: Any) -> Any:
        del args, kwargs
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, name, failing)
    return lambda: monkeypatch.setattr(os, name, genuine)


def _close(monkeypatch: pytest.MonkeyPatch, folder: Path, number: int) -> None:
    """Make listings of `folder`, and below it, fail with errno `number`."""
    genuine = os.scandir

    def scandir(path: str) -> Any:
        if Path(path).is_relative_to(folder):
            raise OSError(number, os.strerror(number))
        return genuine(path)

    monkeypatch.setattr(os, "scandir", scandir)


def _open(root: Path) -> Location:
    return open_location(str(root), {}, clock=SystemClock(), ids=SystemIds(), if_missing="create")


def test_reading_makes_no_directory(objects: FileObjects, root: Path) -> None:
    """A reader leaves no trace."""
    objects.get("a/b")
    list(objects.entries(""))
    objects.settle("a")

    assert not root.exists()


def test_a_create_is_synced_before_it_is_acknowledged(
    objects: FileObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The value first, then its name: a power cut leaves a whole object or none."""
    objects.create("s/log/warm", b"x")
    calls: list[str] = []
    for name in ("fdatasync", "fsync"):
        genuine = getattr(os, name)

        def spy(fd: int, name: str = name, genuine: Callable[[int], None] = genuine) -> None:
            visible = objects.get("s/log/k") is not None
            calls.append(f"{name}{' of the visible' if visible else ''}")
            genuine(fd)

        monkeypatch.setattr(os, name, spy)

    assert objects.create("s/log/k", b"value") is CREATED
    assert calls == ["fdatasync", "fsync of the visible"]


def watch_syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of all files and directories that are synced from now on."""
    synced: list[str] = []
    genuine = os.fsync

    def spy(fd: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        genuine(fd)

    monkeypatch.setattr(os, "fsync", spy)
    return synced


def test_new_directories_are_synced_in_their_parents(
    objects: FileObjects, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All the way up to the first that existed, and once per directory."""
    synced = watch_syncs(monkeypatch)
    objects.create("s/log/k", b"value")
    first, synced[:] = list(synced), []
    objects.create("s/log/l", b"value")

    top = root.parent.parent
    expected = [top, top / "deep", root, root / "s", root / "s" / "log"]
    assert first == [str(path) for path in expected]
    assert synced == [str(root / "s" / "log")]


def test_directories_that_are_opened_again_are_synced_no_more(
    objects: FileObjects, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many shards each has its turn; only a directory that is another one is made durable."""
    monkeypatch.setattr(file_store, "_DIRECTORIES_MAX", 128)
    many = [f"shard{number}/log" for number in range(300)]
    for parent in many:
        objects.create(f"{parent}/k", b"value")
    synced = watch_syncs(monkeypatch)
    for parent in many:
        objects.create(f"{parent}/l", b"value")
    assert synced == [str(root / parent) for parent in many]

    # Moved and not removed: the number of its inode stays taken.
    (root / "shard0" / "log").rename(root / "elsewhere")
    (root / "shard0" / "log").mkdir()
    synced.clear()
    objects.create("shard0/log/m", b"value")
    assert str(root / "shard0") in synced
    assert objects.get("shard0/log/m") == b"value"


def test_an_overwrite_leaves_nothing_behind(objects: FileObjects, root: Path) -> None:
    """The temporary file that a replacement needs becomes the object."""
    objects.put("a/b", b"first")
    objects.put("a/b", b"second")
    objects.create("a/b", b"third")

    assert _files(root) == ["a/b"]
    assert (root / "a/b").read_bytes() == b"second"


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EISDIR])
def test_a_disk_without_nameless_files_works_too(
    objects: FileObjects, root: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A named temporary file and link(2) take the place of O_TMPFILE, and are cleaned up."""
    genuine = os.open

    def without_tmpfile(path: str, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(number, os.strerror(number))
        return genuine(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", without_tmpfile)

    assert objects.create("a/b", b"first") is CREATED
    assert objects.create("a/b", b"second") is EXISTS
    assert objects.get("a/b") == b"first"
    assert _files(root) == ["a/b"]
    assert [entry.key for entry in objects.entries("")] == ["a/b"]
    assert objects.directories() == ["a"]


def test_without_proc_the_named_way_is_taken(
    objects: FileObjects, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A nameless file can only be named through /proc."""
    objects.create("a/first", b"x")

    def failing(*args: Any) -> int:
        del args
        ctypes.set_errno(errno.ENOENT)
        return -1

    monkeypatch.setattr(file_store, "_linkat", failing)

    assert objects.create("a/b", b"value") is CREATED
    assert objects.create("a/b", b"other") is EXISTS
    assert _files(root) == ["a/b", "a/first"]


def test_a_disk_without_links_is_refused(
    objects: FileObjects, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No atomic create is possible there, and nothing is left behind."""
    objects._tmpfile = False
    _fail(monkeypatch, "link", errno.EOPNOTSUPP)

    with pytest.raises(InvalidUsage, match=r"\[STORE_NOT_ATOMIC\].*no hard links"):
        objects.create("a/b", b"value")
    assert _files(root) == []


def test_temporary_files_of_crashed_writers_are_swept(objects: FileObjects, root: Path) -> None:
    """Those of a day ago are removed, fresh ones may be in use."""
    objects._tmpfile = False
    (root / "_tmp").mkdir(parents=True)
    for name, age_s in (("old", 90_000), ("fresh", 100)):
        path = root / "_tmp" / name
        path.write_bytes(b"x")
        modified = path.stat().st_mtime - age_s
        os.utime(path, (modified, modified))

    objects.create("a/b", b"value")

    assert _files(root) == ["_tmp/fresh", "a/b"]


def test_temporary_files_that_go_while_they_are_looked_at_stop_no_write(
    objects: FileObjects, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other processes make them and remove them all the time."""
    objects._tmpfile = False
    (root / "_tmp").mkdir(parents=True)
    for name in ("gone", "old"):
        path = root / "_tmp" / name
        path.write_bytes(b"x")
        os.utime(path, (1, 1))
    look = os.scandir

    @contextmanager
    def look_and_lose(path: str) -> Iterator[list[os.DirEntry[str]]]:
        with look(path) as found:
            entries = [*found]
        (root / "_tmp" / "gone").unlink()
        yield entries

    monkeypatch.setattr(os, "scandir", look_and_lose)
    objects.create("a/b", b"value")
    monkeypatch.undo()
    assert _files(root) == ["a/b"]


@pytest.mark.parametrize("step", ["fdatasync", "write"])
def test_a_full_disk_certainly_did_nothing(
    objects: FileObjects, root: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The failure comes before the name, so the append can simply be tried again."""
    objects.create("a/warm", b"x")
    repair = _fail(monkeypatch, step, errno.ENOSPC)

    with pytest.raises(Determinate, match="No space left"):
        objects.create("a/b", b"value")
    repair()
    assert _files(root) == ["a/warm"]
    assert objects.create("a/b", b"value") is CREATED


def test_a_name_that_could_not_be_synced_is_unresolved(
    objects: FileObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object is visible and may vanish in a power cut: neither done nor not done."""
    objects.create("a/warm", b"x")
    _fail(monkeypatch, "fsync", errno.EIO)

    assert isinstance(objects.create("a/b", b"value"), Unresolved)
    with pytest.raises(Indeterminate):
        objects.put("a/c", b"value")


def test_a_name_that_could_not_be_synced_is_settled_before_it_counts(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading our own token back shows that the name is visible, not that it is durable."""
    ids = SystemIds()
    log = NumberedLog(FileObjects(str(root), ids), clock=SystemClock(), ids=ids)
    log.compare_and_set("s", None, b"1")
    synced: list[int] = []
    fails = 1
    genuine = os.fsync

    def fsync(fd: int) -> None:
        nonlocal fails
        synced.append(fd)
        if fails:
            fails -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        genuine(fd)

    monkeypatch.setattr(os, "fsync", fsync)

    assert log.compare_and_set("s", 1, b"2") == Committed(2)
    assert len(synced) == 2, "once in vain, and once before it was acknowledged"
    fails = 2
    with pytest.raises(Indeterminate):
        log.compare_and_set("s", 2, b"3")


@pytest.mark.parametrize("tmpfile", [True, False])
@pytest.mark.parametrize("step", ["close", "unlink"])
def test_what_fails_after_the_link_has_happened(
    objects: FileObjects, root: Path, monkeypatch: pytest.MonkeyPatch, step: str, tmpfile: bool
) -> None:
    """Tidying up a temporary file that cannot be tidied up undoes nothing."""
    objects._tmpfile = tmpfile
    objects.create("a/warm", b"x")
    undo = _fail(monkeypatch, step, errno.EIO)
    if step == "unlink":
        monkeypatch.setattr(Path, "unlink", os.unlink)

    assert objects.create("a/b", b"value") is CREATED
    undo()
    assert (root / "a/b").read_bytes() == b"value"


@pytest.mark.parametrize("tmpfile", [True, False])
def test_a_link_that_fails_in_an_unknown_way_is_unresolved(
    objects: FileObjects, monkeypatch: pytest.MonkeyPatch, tmpfile: bool
) -> None:
    """After an I/O error the name may be there."""
    objects._tmpfile = tmpfile
    objects.create("a/warm", b"x")
    _fail(monkeypatch, "link", errno.EIO)

    def linkat(*args: Any) -> int:
        del args
        ctypes.set_errno(errno.EIO)
        return -1

    monkeypatch.setattr(file_store, "_linkat", linkat)

    assert isinstance(objects.create("a/b", b"value"), Unresolved)


def test_a_directory_that_was_removed_is_made_again(objects: FileObjects, root: Path) -> None:
    """A directory held open is no reason to write into nowhere."""
    objects.create("a/b", b"first")
    (root / "a" / "b").unlink()
    (root / "a").rmdir()

    assert objects.create("a/b", b"second") is CREATED
    assert (root / "a/b").read_bytes() == b"second"
    (root / "a" / "b").unlink()
    (root / "a").rmdir()
    objects.put("a/b", b"third")
    assert (root / "a/b").read_bytes() == b"third"


@pytest.mark.parametrize(
    ("open_files", "most"), [(1024, 256), (256, 128), (20_000, 4096), (-1, 4096)]
)
def test_most_descriptors_are_left_to_others(open_files: int, most: int) -> None:
    assert file_store._most_directories(open_files) == most


def restore(root: Path) -> None:
    """Put a copy of a shard's directory in its place, as who restores a backup does."""
    shutil.copytree(root / "s", root / "copy")
    (root / "s").rename(root / "away")
    (root / "copy").rename(root / "s")


def test_a_directory_that_was_moved_away_is_not_written_to(
    objects: FileObjects, root: Path
) -> None:
    """It stays open, and nobody would find there what was acknowledged."""
    assert objects.create("s/log/1", b"first") is CREATED
    objects.put("s/blob/1", b"first")
    restore(root)
    assert objects.create("s/log/2", b"second") is CREATED
    objects.put("s/blob/2", b"second")
    assert objects.get("s/log/2") == objects.get("s/blob/2") == b"second"
    assert not (root / "away" / "log" / "2").exists()


def test_a_directory_that_is_moved_away_in_the_middle_leaves_a_write_unknown(
    objects: FileObjects, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has its name already, in the directory that is gone; the log reads it back."""
    assert objects.create("s/log/1", b"first") is CREATED
    objects.put("s/blob/1", b"first")
    link = FileObjects._link_new
    moves: list[str] = []

    def moved_after(self: FileObjects, directory: Any, name: str, value: bytes) -> bool:
        linked = link(self, directory, name, value)
        (root / "s").rename(root / f"away{len(moves)}")
        moves.append(name)
        return linked

    monkeypatch.setattr(FileObjects, "_link_new", moved_after)
    assert isinstance(objects.create("s/log/2", b"second"), Unresolved)
    with pytest.raises(Indeterminate, match="moved away"):
        objects.put("s/blob/2", b"second")
    assert moves == ["2", "2"]


def test_many_directories_do_not_exhaust_descriptors(
    objects: FileObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Directories are kept open up to a bound."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft < 0 or max(soft // 4, 128) >= file_store._DIRECTORIES_MAX
    monkeypatch.setattr(file_store, "_DIRECTORIES_MAX", 128)
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    for number in range(300):
        objects.create(f"shard{number}/log/k", b"x")

    assert len(list(descriptors.iterdir())) - before <= 130


def test_a_location_that_is_not_writable_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what to check; root may write anywhere, so the system call is made to refuse."""
    _fail(monkeypatch, "mkdir", errno.EACCES)

    with pytest.raises(InvalidUsage, match=r"\[LOCATION_NOT_WRITABLE\].*Permission denied.*lease"):
        open_location(
            str(tmp_path / "x"), {}, clock=SystemClock(), ids=SystemIds(), if_missing="create"
        )


@pytest.mark.parametrize("name", ["open", "scandir"])
def test_what_may_not_be_read_is_told_apart_from_what_may_not_be_written(
    objects: FileObjects, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A list and a look are reads."""
    objects.create("a/b", b"x")
    _fail(monkeypatch, name, errno.EACCES)
    with pytest.raises(InvalidUsage, match=r"\[ACCESS_DENIED\].*Permission denied.*permissions"):
        objects.get("a/b") if name == "open" else list(objects.entries("a"))


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.EACCES, "ACCESS_DENIED"),
        (errno.EIO, "CORRUPT"),
        (errno.ESTALE, "STORE_UNAVAILABLE"),
    ],
)
@pytest.mark.parametrize("name", ["scandir", "stat"])
def test_a_listing_that_fails_is_an_error_of_the_store(
    objects: FileObjects, monkeypatch: pytest.MonkeyPatch, name: str, number: int, code: str
) -> None:
    """Nobody who goes through shards expects one of the operating system."""
    objects.create("a/part/t1/b", b"x")
    _fail(monkeypatch, name, number)
    with pytest.raises(ShardError) as caught:
        list(objects.entries("a/part/"))
    assert caught.value.code == code


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_a_shard_that_cannot_be_looked_at_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Its own operations say why; root may read everything, so the system call is made to fail."""
    location = _open(tmp_path)
    for name in ("a", "b"):
        location.consensus.compare_and_set(name, None, b"x")
    _close(monkeypatch, tmp_path / "a" / "log", number)
    log = _open(tmp_path).consensus

    assert log.list_shards() == ["a", "b"]
    assert log.head("b") == VersionedData(1, b"x")
    with pytest.raises(ShardError, match=r"ACCESS_DENIED|CORRUPT"):
        log.head("a")


def test_a_location_is_made_beside_what_may_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's directory is none of its shards."""
    (tmp_path / "private").mkdir()
    _close(monkeypatch, tmp_path / "private", errno.EACCES)

    assert _open(tmp_path).consensus.list_shards() == ["private"]


def test_a_location_below_a_file_is_refused(tmp_path: Path) -> None:
    """A file stands where a directory is needed: refused, and the file is untouched."""
    (tmp_path / "file").write_bytes(b"mine")
    for url in (f"{tmp_path}/file", f"{tmp_path}/file/below"):
        with pytest.raises(InvalidUsage, match="LOCATION_NOT_FOUND"):
            open_location(url, {}, clock=SystemClock(), ids=SystemIds())
        with pytest.raises(InvalidUsage, match="INVALID_LOCATION"):
            open_location(url, {}, clock=SystemClock(), ids=SystemIds(), if_missing="create")
    assert (tmp_path / "file").read_bytes() == b"mine"


def test_a_name_too_long_for_the_disk_is_refused(objects: FileObjects) -> None:
    """As the caller's mistake that it is."""
    with pytest.raises(InvalidUsage, match="255 bytes"):
        objects.put("a/" + "x" * 300, b"value")
