"""Folders of sinks without Spark: which owner gives way to another definition."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from msgspec.structs import replace

from shardline.app.protocol.objects import SinkDescription
from shardline.app.storage.sinks import files
from shardline.app.storage.sinks.files import FileTarget
from shardline.app.storage.sinks.interval import Interval
from shardline.datasource.clock import SystemIds
from shardline.datasource.errors import Fenced, InvalidUsage
from shardline.datasource.frontier import Frontier


class Place:
    """A path of Hadoop's, on a disk whose file system is asked in Java's names."""

    def __init__(self, *parts: str) -> None:
        self.path = Path(*parts)

    def getFileSystem(self, _: object) -> Disk:  # noqa: N802 - Hadoop's name
        return Disk()

    def toString(self) -> str:  # noqa: N802
        return str(self.path)


class Disk:
    """A file system of Hadoop's, as far as an opened folder asks it."""

    def getUri(self) -> Any:  # noqa: N802
        return SimpleNamespace(getScheme=lambda: "hdfs")

    def exists(self, place: Place) -> bool:
        return place.path.exists()

    def isFile(self, place: Place) -> bool:  # noqa: N802
        return place.path.is_file()

    def listStatus(self, place: Place) -> list[Any]:  # noqa: N802
        names = [SimpleNamespace(getName=lambda name=p.name: name) for p in place.path.iterdir()]
        return [SimpleNamespace(getPath=lambda name=name: name) for name in names]

    def open(self, place: Place) -> Any:
        return SimpleNamespace(readAllBytes=place.path.read_bytes, close=lambda: None)

    def create(self, place: Place, _: bool) -> Any:
        place.path.parent.mkdir(exist_ok=True)
        place.path.write_bytes(b"")
        return SimpleNamespace(write=place.path.write_bytes, close=lambda: None)

    def delete(self, place: Place, _: bool) -> bool:
        if not place.path.exists():
            return False
        shutil.rmtree(place.path) if place.path.is_dir() else place.path.unlink()
        return True

    def getContentSummary(self, _: Place) -> Any:  # noqa: N802
        return SimpleNamespace(getLength=lambda: 1)

    def rename(self, place: Place, to: Place) -> bool:
        place.path.rename(to.path)
        return True


@pytest.fixture
def sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SinkDescription:
    monkeypatch.setattr(files, "java_class", lambda *_: Place)
    # Spark counts in the JVM: each micro-batch of these tests has one row.
    monkeypatch.setattr(files, "Observation", lambda: SimpleNamespace(get={"rows": 1}))
    monkeypatch.setattr(files, "F", MagicMock())
    options = {"path": str(tmp_path / "out")}
    return SinkDescription(name="out", on="in", format="parquet", options=options)


def opened(
    sink: SinkDescription,
    shard: str,
    recorded: Frontier | None = None,
    location: str = "here",
    check_fence: Callable[[], None] = lambda: None,
) -> FileTarget:
    spark = SimpleNamespace(_jsc=SimpleNamespace(hadoopConfiguration=lambda: None))
    return FileTarget(
        cast("Any", spark),
        sink,
        sink.options,
        shard,
        recorded,
        location=location,
        ids=SystemIds(),
        check_fence=check_fence,
    )


def owner_of(folder: Path) -> Any:
    return json.loads((folder / "_shardline.json").read_text())


@pytest.mark.parametrize("envelope", ["diff", "none"])
def test_a_folder_of_the_same_name_elsewhere_is_left_alone(
    sink: SinkDescription, envelope: Any
) -> None:
    """Two locations of a project have sinks of the same names, and mostly of the same text."""
    folder = Path(sink.options["path"])
    opened(sink, "shard-1")
    staged = folder / ".staging-11"
    staged.mkdir()
    other = replace(sink, envelope=envelope)
    with pytest.raises(InvalidUsage, match=r"TARGET_TAKEN.*what sink 'out'"):
        opened(other, "shard-2", location="elsewhere")
    assert owner_of(folder)["input"] == "shard-1"
    assert staged.exists()

    opened(other, "shard-1")
    assert not staged.exists()
    staged.mkdir()
    with pytest.raises(InvalidUsage, match="TARGET_TAKEN"):
        opened(replace(other, name="another"), "shard-1")
    assert staged.exists()
    (folder / "_upper=11").mkdir()
    with pytest.raises(InvalidUsage, match="TARGET_TAKEN"):
        opened(other, "shard-2", location="elsewhere")


def test_a_folder_without_rows_takes_a_source_that_was_made_again(sink: SinkDescription) -> None:
    """Also together with a correction of the sink: nothing of the former input is in it."""
    folder = Path(sink.options["path"])
    opened(sink, "shard-1")
    target = opened(replace(sink, envelope="none"), "shard-2")
    assert (target.input, owner_of(folder)["input"]) == ("", "shard-2")


def test_a_folder_that_an_earlier_version_has_taken(sink: SinkDescription) -> None:
    """It notes no location: another definition needs the same input, which no other one has."""
    folder = Path(sink.options["path"])
    opened(sink, "shard-1")
    former = owner_of(folder)
    del former["location"]
    other = replace(sink, envelope="none")
    (folder / "_shardline.json").write_text(json.dumps(former))
    with pytest.raises(InvalidUsage, match="TARGET_TAKEN"):
        opened(other, "shard-2")
    opened(other, "shard-1")
    assert owner_of(folder)["location"] == "here"


def of_an_earlier_version(sink: SinkDescription) -> Path:
    """A folder with rows of times up to 11, whose owner notes no location."""
    folder = Path(sink.options["path"])
    opened(sink, "shard-1")
    put(folder, 11)
    former = owner_of(folder)
    del former["location"]
    (folder / "_shardline-copy.json").unlink(missing_ok=True)
    (folder / "_shardline.json").write_text(json.dumps(former))
    return folder


def test_a_folder_with_rows_of_an_earlier_version_is_told_apart_by_its_input(
    sink: SinkDescription,
) -> None:
    """The same definition elsewhere must not be told to empty it, nor take it when it is empty."""
    folder = of_an_earlier_version(sink)
    with pytest.raises(InvalidUsage, match="TARGET_TAKEN"):
        opened(sink, "shard-2", location="elsewhere")
    shutil.rmtree(folder / "_upper=11")
    with pytest.raises(InvalidUsage, match="TARGET_TAKEN"):
        opened(sink, "shard-2", location="elsewhere")


def test_a_folder_with_rows_of_an_earlier_version_gets_its_location(sink: SinkDescription) -> None:
    """A copy of the location has the same input, and accounts that say the same."""
    folder = of_an_earlier_version(sink)
    former = owner_of(folder)
    assert opened(sink, "shard-1", Frontier(11)).input == "shard-1"
    assert owner_of(folder) == former | {"location": "here"}
    for kept in (True, False):
        with pytest.raises(InvalidUsage, match="TARGET_TAKEN"):
            opened(sink, "shard-1", Frontier(11), location="copy")
        if kept:
            shutil.rmtree(folder / "_upper=11")


@pytest.mark.parametrize("torn", ["_shardline-copy.json", "_shardline.json"])
def test_a_crash_while_the_owner_is_written_loses_it_not(
    sink: SinkDescription, torn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one a folder with rows is refused, and only emptying it would help."""
    of_an_earlier_version(sink)
    create = Disk.create

    def crash(disk: Disk, place: Place, overwrite: bool) -> Any:
        stream = create(disk, place, overwrite)
        if place.path.name == torn:
            raise KeyboardInterrupt
        return stream

    with monkeypatch.context() as crashing:
        crashing.setattr(Disk, "create", crash)
        with pytest.raises(KeyboardInterrupt):
            opened(sink, "shard-1", Frontier(11))
    target = opened(sink, "shard-1", Frontier(11))
    assert (target.input, target.committed()) == ("shard-1", Frontier(11))
    with pytest.raises(InvalidUsage, match="TARGET_TAKEN"):
        opened(sink, "shard-1", Frontier(11), location="copy")


def test_a_folder_with_rows_keeps_its_definition(sink: SinkDescription) -> None:
    """Also for the same input; its own definition finds what it has, and of which input."""
    folder = Path(sink.options["path"])
    opened(sink, "shard-1")
    (folder / "_upper=11").mkdir()
    with pytest.raises(InvalidUsage, match="TARGET_TAKEN"):
        opened(replace(sink, envelope="none"), "shard-1")
    target = opened(sink, "shard-2")
    assert (target.input, target.committed()) == ("shard-1", Frontier(11))


def put(folder: Path, number: int) -> None:
    """What a crash right behind a rename leaves; the next start notes it."""
    (folder / f"_upper={number}").mkdir()


def test_what_a_folder_has_had_is_known_though_it_was_used_up(sink: SinkDescription) -> None:
    """Users move sub-folders away, and even all of them: that loses nothing."""
    folder = Path(sink.options["path"])
    assert not opened(sink, "shard-1").has_taken(Frontier(11))
    put(folder, 11)
    assert opened(sink, "shard-1").has_taken(Frontier(11))
    put(folder, 21)
    assert opened(sink, "shard-1", Frontier(21)).has_taken(Frontier(21))
    assert [path.name for path in folder.glob("_newest*")] == ["_newest-21"]
    for done in folder.glob("_upper=*"):
        done.rmdir()
    target = opened(sink, "shard-1", Frontier(31))
    assert (target.has_taken(Frontier(21)), target.committed()) == (True, Frontier(21))


def test_an_older_copy_of_a_folder_is_known(sink: SinkDescription, tmp_path: Path) -> None:
    """So is one that was emptied, and another one where the application was started elsewhere."""
    folder, copy = Path(sink.options["path"]), tmp_path / "copy"
    opened(sink, "shard-1")
    put(folder, 11)
    opened(sink, "shard-1", Frontier(11))
    shutil.copytree(folder, copy)
    put(folder, 21)
    opened(sink, "shard-1", Frontier(21))
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    target = opened(sink, "shard-1", Frontier(31))
    assert (target.has_taken(Frontier(11)), target.has_taken(Frontier(21))) == (True, False)
    shutil.rmtree(folder)
    assert not opened(sink, "shard-1", Frontier(31)).has_taken(Frontier(11))


class Frame:
    """Rows of a micro-batch, which are stored as an empty folder, or as `save` says."""

    def __init__(self, save: Callable[[Path], None] = Path.mkdir) -> None:
        self.save = save

    def observe(self, *_: object) -> Any:
        return self

    @property
    def write(self) -> Any:
        writer = MagicMock(save=lambda path: self.save(Path(path)))
        for step in ("format", "options", "mode"):
            getattr(writer, step).return_value = writer
        return writer


def used_up(sink: SinkDescription) -> Path:
    """The folder of a sink that has had rows of times up to 21, of which it has none any more."""
    folder = Path(sink.options["path"])
    opened(sink, "shard-1")
    put(folder, 21)
    opened(sink, "shard-1")
    (folder / "_upper=21").rmdir()
    return folder


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("later", ["diff", "none"])
def test_a_folder_that_is_filled_anew_has_had_what_it_is_given(
    sink: SinkDescription, later: Any, crashes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sub-folders were deleted and the sink was dropped; or its next definition is another."""
    folder, next_one = used_up(sink), replace(sink, envelope=later)
    target = opened(next_one, "shard-1")
    if crashes:
        monkeypatch.setattr(target, "_note_newest", lambda _: None)
    target.write(cast("Any", Frame()), Interval(0, Frontier(11)))
    assert opened(next_one, "shard-1").has_taken(Frontier(11))
    assert [path.name for path in folder.glob("_newest*")] == ["_newest-11"]


def test_tasks_of_a_runtime_that_was_replaced_add_nothing(sink: SinkDescription) -> None:
    """They go on when it is over, and bring back the folder that was deleted before them."""
    folder = Path(sink.options["path"])
    places: list[Path] = []

    def task(place: Path, name: str) -> None:
        place.mkdir(parents=True, exist_ok=True)
        (place / name).touch()

    def of_the_second(place: Path) -> None:
        task(place, "second")
        task(places[0], "late")

    def of_the_first(place: Path) -> None:
        task(place, "first")
        places.append(place)
        second = opened(sink, "shard-1")
        assert not place.exists()
        second.write(cast("Any", Frame(of_the_second)), Interval(0, Frontier(11)))

    def fenced() -> None:
        raise Fenced("another runtime")

    first = opened(sink, "shard-1", check_fence=fenced)
    with pytest.raises(Fenced):
        first.write(cast("Any", Frame(of_the_first)), Interval(0, Frontier(11)))
    assert [path.name for path in (folder / "_upper=11").iterdir()] == ["second"]
    # Progress does not have it yet, but it was put in place: readers may have used it.
    third = opened(sink, "shard-1")
    assert third.committed() == Frontier(11)
    assert [path.name for path in (folder / "_upper=11").iterdir()] == ["second"]
    assert not list(folder.glob(".staging*"))


def test_what_may_be_another_runtimes_is_not_deleted_behind_a_fence(sink: SinkDescription) -> None:
    """It is just being put in place; this one has not noticed yet that it was replaced."""
    folder = Path(sink.options["path"])

    def fenced() -> None:
        raise Fenced("another runtime")

    first = opened(sink, "shard-1", check_fence=fenced)
    for name in (".staging-11-0a", "_upper=11"):
        (folder / name).mkdir()
    with pytest.raises(Fenced):
        first.write(cast("Any", Frame()), Interval(0, Frontier(11)))
    assert (folder / "_upper=11").exists()


def test_a_definition_that_has_written_nothing_leaves_what_the_one_before_has_had(
    sink: SinkDescription,
) -> None:
    """Its first micro-batch may have failed: who goes back has lost nothing."""
    used_up(sink)
    opened(replace(sink, envelope="none"), "shard-1")
    assert opened(sink, "shard-1", Frontier(21)).has_taken(Frontier(21))
