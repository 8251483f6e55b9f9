"""Other file systems: those that can create atomically are served, the others refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem
from typing_extensions import override

from shardline.datasource.clock import SystemClock, SystemIds
from shardline.datasource.errors import Determinate, InvalidUsage
from shardline.datasource.stores.location import Committed, Location
from shardline.datasource.stores.objects import CREATED, EXISTS, Objects
from shardline.datasource.stores.open import open_location, open_objects


class Atomic(MemoryFileSystem):  # type: ignore[misc]
    """A file system in memory whose create is what it says."""

    protocol = "atomic"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    failure: ClassVar[type[Exception] | None] = None
    lost_answers: ClassVar[int] = 0
    cause: ClassVar[Exception | None] = None
    _lock: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    @override
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("atomic://").strip("/")

    @override
    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        if self.failure is not None:
            raise self.failure
        with self._lock:
            if mode == "create" and self.exists(path):
                raise FileExistsError(path)
            super().pipe_file(path, value)

    @override
    def cat_file(self, path: str, start: Any = None, end: Any = None, **kwargs: Any) -> bytes:
        self._lose_answer(path)
        found: bytes = super().cat_file(path, start, end, **kwargs)
        return found

    @override
    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        self._lose_answer(path)
        found: dict[str, Any] = super().info(path, **kwargs)
        return found

    @override
    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        self._lose_answer(path)
        return super().ls(path, detail=detail, **kwargs)

    @override
    def find(self, path: str, **kwargs: Any) -> Any:
        try:
            self._lose_answer(path)
        except FileNotFoundError:
            return {}  # as adlfs does
        return super().find(path, **kwargs)

    def _lose_answer(self, path: str) -> None:
        """Answer 404, `lost_answers` times, as an ingress without a backend does."""
        if Atomic.lost_answers:
            Atomic.lost_answers -= 1
            raise FileNotFoundError(path) from self.cause


class LooksFirst(AbstractFileSystem):  # type: ignore[misc]
    """One that inherits fsspec's own create: it looks, and then writes."""

    protocol = "looksfirst"


@pytest.fixture(autouse=True)
def registered() -> None:
    fsspec.register_implementation("atomic", Atomic, clobber=True)
    fsspec.register_implementation("looksfirst", LooksFirst, clobber=True)
    Atomic.store.clear()
    Atomic.pseudo_dirs[:] = [""]
    Atomic.lost_answers = 0


def _objects(url: str = "atomic://bucket/a b") -> Objects:
    return open_objects(url, {}, clock=SystemClock(), ids=SystemIds())


def _location() -> Location:
    return open_location(
        "atomic://bucket/a b", {}, clock=SystemClock(), ids=SystemIds(), if_missing="create"
    )


def test_objects_live_in_another_file_system() -> None:
    """The laws that the other backends obey, in short."""
    objects = _objects()
    assert objects.get("s/part/a") is None
    assert list(objects.entries("")) == []
    assert objects.directories() == []
    assert objects.delete("s/part/a") is False

    assert objects.create("s/part/a", b"0123456789") is CREATED
    assert objects.create("s/part/a", b"other") is EXISTS
    objects.put("s/part/ü", b"")
    objects.put("t/x", memoryview(b"t"))

    assert objects.get("s/part/a", 3, 5) == b"34"
    assert objects.get("s/part/a", 8, 50) == b"89"
    assert objects.get("s/part/a", 50) == b""
    assert objects.get("s") is None or objects.get("s") == b""
    assert objects.get_many(["t/x", "t/y"]) == [b"t", None]
    assert [(e.key, e.size_bytes) for e in objects.entries("s/")] == [
        ("s/part/a", 10),
        ("s/part/ü", 0),
    ]
    assert [e.key for e in objects.entries("", "s/part/a", 1)] == ["s/part/ü"]
    assert objects.directories() == ["s", "t"]
    opened = objects.open("s/part/a")
    assert opened is not None
    assert opened.read() == b"0123456789"
    assert objects.open("s/part/b") is None
    assert objects.delete("s/part/a") is True


def test_a_log_lives_in_another_file_system() -> None:
    """A location can be made there, and found again."""
    first, second = _location(), _location()

    assert first.id == second.id
    assert first.consensus.compare_and_set("s", None, b"x") == Committed(1)
    assert second.consensus.compare_and_set("s", 1, b"y") == Committed(2)
    assert second.consensus.list_shards() == ["s"]


@pytest.mark.parametrize("url", ["looksfirst://a/b", "dir://a/b", "local://a/b"])
def test_a_file_system_that_cannot_create_atomically_is_refused(url: str) -> None:
    """Before anything is written, and before any race has to be lost."""
    with pytest.raises(InvalidUsage, match=r"\[(STORE_NOT_ATOMIC|INVALID_LOCATION)\]"):
        _objects(url)


@pytest.mark.parametrize(
    ("failure", "expected"), [(PermissionError, InvalidUsage), (OSError, Determinate)]
)
def test_its_errors_become_ours(
    failure: type[Exception], expected: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no retry can cure is the user's; the rest is an outage, after a bounded patience."""
    monkeypatch.setattr(Atomic, "failure", failure)
    with pytest.raises(expected, match="atomic://bucket/a b"):
        _location()


def test_a_range_that_is_cut_short_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The object is whole; it was the way: nobody may take it for a part that is gone."""
    objects = _objects()
    objects.put("s/part/a", b"0123456789")
    opened = objects.open("s/part/a")
    whole = Atomic.cat_file

    def cut(self: Atomic, path: str, **bounds: Any) -> bytes:
        found: bytes = whole(self, path, **bounds)
        return found[:-1]

    monkeypatch.setattr(Atomic, "cat_file", cut)
    assert opened is not None
    for read in (lambda: objects.get("s/part/a", 3, 50), lambda: opened.read(5)):
        with pytest.raises(Determinate, match="bytes arrived"):
            read()


def _requests(objects: Objects) -> list[Callable[[], object]]:
    """One request of each sort, about an object that is there."""
    return [
        lambda: objects.get("s/part/x"),
        lambda: objects.get("s/part/x", 0, 1),
        lambda: objects.get_many(["s/part/x"]),
        lambda: _bytes(objects.open("s/part/x")),
        lambda: [entry.key for entry in objects.entries("s/")],
        objects.directories,
        lambda: objects.delete("s/part/x"),
    ]


def _bytes(opened: Any) -> bytes | None:
    return None if opened is None else opened.read()


def test_a_404_is_no_absence_while_the_marker_is_not_found_either() -> None:
    """A bucket that is gone, or an ingress without a backend, says it of everything."""
    objects = _objects()
    objects.create("_shardline", b"{}")
    objects.put("s/part/x", b"x")

    for request in _requests(objects):
        Atomic.lost_answers = 1000
        with pytest.raises(Determinate, match=r"STORE_UNAVAILABLE.*_shardline"):
            request()
    Atomic.lost_answers = 1000
    # By this one the caller learns that the location is gone.
    assert objects.get("_shardline") is None


def test_a_404_from_the_end_of_an_outage_is_no_absence() -> None:
    """The marker is found right after it: what was looked for is looked for again."""
    _objects().create("_shardline", b"{}")
    objects = _objects()
    objects.get("_shardline")
    objects.put("s/part/x", b"x")

    found = []
    for request in _requests(objects):
        Atomic.lost_answers = 1
        found.append(request())

    assert found == [b"x", b"x", [b"x"], b"x", ["s/part/x"], ["s"], True]
    assert objects.get("s/part/x") is None


def test_what_azure_says_itself_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what is absent: one request tells, and a container is no blob."""
    objects = _objects()
    objects.create("_shardline", b"{}")
    cause = Exception()
    monkeypatch.setattr(Atomic, "cause", cause)

    cause.error_code = "BlobNotFound"  # type: ignore[attr-defined]
    Atomic.lost_answers = 1000
    assert objects.get("s/part/x") is None
    assert Atomic.lost_answers == 999

    cause.error_code = "ContainerNotFound"  # type: ignore[attr-defined]
    with pytest.raises(Determinate, match="STORE_UNAVAILABLE"):
        objects.get("s/part/x")
