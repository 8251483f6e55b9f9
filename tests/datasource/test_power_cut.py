"""Power cuts on disk: no append that was acknowledged is lost, and none is torn.

Two ways. By thought (`support.faults.power_cut`): everything that POSIX lets a power cut leave
after any system call of the store; runs everywhere, and finds a missing sync for certain. By deed:
ext4 on a loop device that is shut down under writing processes, which drops what has not reached
the device; needs root. Neither has a disk that lies about its own cache.

    ./spark-submit.sh test tests/datasource/test_power_cut.py --power-cuts 50
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from shardline.datasource.client import ShardClient
from shardline.datasource.clock import SystemClock, SystemIds
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.shard.commands.append import AlreadyCommitted, UpperMismatch
from shardline.datasource.stores.file import FileObjects
from shardline.datasource.stores.open import open_location
from soak import keeper, writer
from soak.child import Child, Place, Task, said
from soak.known import KEY, SHARDS, SOURCE, contents_of, known_schema
from support.faults.power_cut import Image, Mutation, Recorder, materialise, recording
from support.models.shards import TINY, World, dangling, rows, schema_of, table

APPENDS = 12
GRACE_MS = 60_000


@contextmanager
def memory_folder() -> Iterator[Path]:
    """A folder in memory where there is one: real syncs are not what is tested here."""
    memory = Path("/dev/shm")  # noqa: S108 - a fresh folder of our own below it
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def rows_of(number: int) -> list[tuple[int, str]]:
    """The rows of append `number`, some of them few enough to stay in the state."""
    return [(100 * number + i, f"row {i}") for i in range(1 if number % 3 else 30)]


def expected(last: int) -> Counter[tuple[int, str]]:
    return Counter(row for number in range(1, last + 1) for row in rows_of(number))


def world_at(folder: Path) -> World:
    return World(7, lambda world: FileObjects(str(folder), world.ids))


def live(world: World, recorder: Recorder) -> None:
    """A shard's life: appends, merges, collections, rollups, and a log that is truncated."""
    client = world.client(TINY)
    client.create("s", schema_of())
    handle = client.writer("s", "w")
    for number in range(1, APPENDS + 1):
        handle.append_now(table(*rows_of(number)), sequence=number)
        recorder.note(number)
        if number % 3 == 0:
            client.compact("s", force=number % 2 == 0)
            client.collect_garbage("s")
            world.clock.advance(GRACE_MS + 1)


def recorded(folder: Path, mutation: Mutation = "none") -> Recorder:
    with recording(str(folder), mutation) as recorder:
        world = world_at(folder)
        live(world, recorder)
    return recorder


def wrong(image: Image) -> str:
    """What is wrong with a shard that is opened after a power cut; empty if nothing is."""
    with memory_folder() as folder:
        materialise(image, folder)
        try:
            return _wrong(image, folder)
        except Exception as error:  # noqa: BLE001 - whatever it is, the image shows it
            return f"{type(error).__name__}: {error}"


def _wrong(image: Image, folder: Path) -> str:
    try:
        client = ShardClient.open(str(folder), create=False, settings=TINY)
        client.state("s")
    except InvalidUsage as error:
        # Not made yet, or not durably: allowed as long as nothing was acknowledged.
        if error.code in {"LOCATION_NOT_FOUND", "SHARD_NOT_FOUND"}:
            return f"{image.noted} appends are gone" if image.noted else ""
        raise
    number = image.noted
    if client.state("s").upper.time:
        with client.reader("s") as reader:
            found = rows(reader.snapshot())
        if found not in (expected(number), expected(number + 1)):
            return f"{found.total()} rows, of {expected(number).total()} acknowledged"
    elif number:
        return f"{number} appends are gone"
    # Whoever comes next repeats what was not acknowledged, and goes on.
    client.writer("s", "w").append_now(table(*rows_of(number + 1)), sequence=number + 1)
    client.writer("s", "w").append_now(table(*rows_of(number + 2)), sequence=number + 2)
    client.compact("s", force=True)
    client.collect_garbage("s")
    with client.reader("s") as reader:
        if rows(reader.snapshot()) != expected(number + 2):
            return "wrong rows after going on"
    return f"{dangling(client.machine('s'))} dangle" if dangling(client.machine("s")) else ""


def images(folder: Path, mutation: Mutation, keep: float) -> Iterator[Image]:
    """Crash images of one life; a share `keep` of them, drawn."""
    recorder = recorded(folder, mutation)
    chance = random.Random(20261121)
    drawn = random.Random(7)
    yield from (one for one in recorder.images(chance) if drawn.random() < keep)


@pytest.mark.exhaustive
def test_what_a_power_cut_may_leave_is_a_whole_shard(request: pytest.FixtureRequest) -> None:
    """After any system call, whatever was not synced: all that was acknowledged, and goes on."""
    every = request.config.getoption("--power-cuts", default=None) is not None
    with memory_folder() as folder:
        count = 0
        for image in images(folder, "none", 1.0 if every else 0.25):
            count += 1
            assert not (found := wrong(image)), f"step {image.step}, {image.lost}: {found}"
    assert count > 50


@pytest.mark.exhaustive
@pytest.mark.parametrize("mutation", ["no fdatasync", "no fsync"])
def test_a_sync_that_is_forgotten_is_found(mutation: Mutation) -> None:
    """A store that does not sync contents, or names, loses appends: the images show it."""
    with memory_folder() as folder:
        found = [wrong(image) for image in images(folder, mutation, 0.25)]
    assert any(found), mutation


@pytest.mark.parametrize("is_repetition", [True, False], ids=["already committed", "mismatch"])
def test_what_a_loser_is_told_survives_a_power_cut(*, is_repetition: bool) -> None:
    """Its winner stands still between naming a record and making the name durable.

    Whoever then loses to that record, and is told that its append is in or that the upper has
    moved, relies on a name that only it can have made durable.
    """
    with memory_folder() as folder, recording(str(folder)) as recorder:
        world = world_at(folder)
        winner, loser = world.client(TINY), world.client(TINY)
        winner.create("s", schema_of())
        winning = winner.writer("s", "w")
        losing = loser.writer("s", "w" if is_repetition else "v")
        lower = losing.upper()

        def lose() -> None:
            upper = Frontier(world.clock.now_ms() + 1)
            outcome = losing.compare_and_append(table(*rows_of(1)), lower, upper, sequence=1)
            assert isinstance(outcome, AlreadyCommitted if is_repetition else UpperMismatch)
            recorder.note(1)

        recorder.before_fsync = lose
        winning.append_now(table(*rows_of(1)), sequence=1)
        assert recorder.before_fsync is None
        found = list(recorder.images(random.Random(20261121)))
    assert any(image.noted for image in found)
    for image in found:
        assert not (what := wrong(image)), f"step {image.step}, {image.lost}: {what}"


# --- a real file system --------------------------------------------------------------------------

_SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN, and XFS's: the file system stops as if the machine had."""
_NO_LOG_FLUSH = 2
_SIZE = 64 << 20
_CUTS = 2


def _run(*command: str, allowed: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode not in allowed:
        raise OSError(f"{command}: {done.returncode} {done.stdout}{done.stderr}")
    return done.stdout


class Disk:
    """ext4 in a file, on a loop device, mounted."""

    def __init__(self, folder: Path) -> None:
        self._image = folder / "disk.img"
        self.mount = folder / "mount"
        self.mount.mkdir()
        with self._image.open("wb") as image:
            image.truncate(_SIZE)
        _run("mkfs.ext4", "-q", "-F", str(self._image))
        self.up()

    def up(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.mount))

    def down(self) -> None:
        gc.collect()  # clients of this process keep directories open
        _run("umount", str(self.mount))

    def cut(self) -> None:
        """Lose what has not reached the device: no flush, not even of the journal."""
        fd = os.open(self.mount, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, ctypes.c_uint32(_NO_LOG_FLUSH))
        finally:
            os.close(fd)

    def recover(self) -> None:
        """As at boot: replay the journal, look whether anything else is wrong, mount."""
        self.down()
        _run("e2fsck", "-p", str(self._image), allowed=(0, 1))
        _run("e2fsck", "-f", "-n", str(self._image))
        self.up()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if os.geteuid() or not shutil.which("mkfs.ext4"):
        pytest.skip("needs root and ext4's tools")
    try:
        made = Disk(tmp_path)
    except OSError as error:
        pytest.skip(f"no loop devices here: {error}")
    yield made
    made.down()


@pytest.mark.process
def test_an_acknowledged_append_survives_a_cut_of_the_power(
    disk: Disk, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """ext4 stops under two writers and a keeper; after recovery nothing is lost or torn."""
    cuts: int = request.config.getoption("--power-cuts", default=None) or _CUTS
    place = Place(f"{disk.mount}/lake", {}, str(tmp_path), 10_000, 16)
    open_location(
        place.url, {}, clock=SystemClock(), ids=SystemIds(), if_missing="create", grace_ms=300
    )
    for name in SHARDS:
        place.client().create(name, known_schema(), key=KEY)
    known = {"w0": 0, "w1": 0}
    chance = random.Random(5)
    for cut in range(cuts):
        known = _cut_under(disk, place, known, chance.randrange(1, 25))
        disk.recover()
        found = _contents(place)
        for name, last in known.items():
            mine = Counter({row: n for row, n in found.items() if row[0] == name})
            assert mine in (contents_of(name, last), contents_of(name, last + 1)), (cut, name)
    assert min(known.values()) > cuts


def _cut_under(disk: Disk, place: Place, known: dict[str, int], after: int) -> dict[str, int]:
    """Let writers go on from what is known until so many appends, and cut; what is known then."""
    children = {
        name: Child.start(writer, Task(place, name, first=last + 1), os.environ)
        for name, last in known.items()
    }
    caring = Child.start(keeper, Task(place), os.environ)
    try:
        for child in children.values():
            for _ in range(after):
                assert isinstance(child.events.get(timeout=60), int)
        disk.cut()
    finally:
        for child in (*children.values(), caring):
            child.kill()
    # Whatever was said before the kill was acknowledged before the cut, or could not have been.
    last = {name: [n for n in said(one) if isinstance(n, int)] for name, one in children.items()}
    return {name: max([known[name] + after, *last[name]]) for name in known}


def _contents(place: Place) -> Counter[tuple[str, int, int, str]]:
    client = place.client()
    assert dangling(client.machine(SOURCE)) == []
    with client.reader(SOURCE) as reader:
        return rows(reader.snapshot())
