"""A sink of files writes one sub-folder per micro-batch, which appears at once.

Spark's own file sink keeps a log of its files beside them, that only Spark reads: other readers see
files of micro-batches that failed or ran twice. Here the folder itself says what is committed.

    <path>/_shardline.json          the owner: sink, location, definition, and the shard it reads
    <path>/_shardline-copy.json     the same, written before it: a crash leaves one of them whole
    <path>/.staging-<number>-…/     being written, by one write; hidden from every reader
    <path>/_upper=<number>/         files of a committed micro-batch, by its upper
    <path>/_newest-<number>         empty: the newest of these that there ever was

`spark.read.parquet(path)` reads the sub-folders `_upper=…` and nothing else: Spark hides names that
begin with a dot or an underscore, but for those with an equals sign, which are partitions. Column
`_upper` is the upper of the micro-batch that a row came with.

A sub-folder is renamed into place when all of its files are complete. Where the file system renames
folders in one step (a local disk, HDFS) a reader never sees a part of a micro-batch. An object
store copies file by file and deletes the originals after that, so a reader in that moment may, and
a crash may leave a part in place. What is left in the hidden folder tells: while there is anything
of `.staging-7-…`, and no `_newest-…` behind it, nobody has seen that `_upper=7` is whole.

    crash while the files are written     `.staging-7-…`                 it is deleted
    crash while they are copied           `.staging-7-…` and `_upper=7`  both are deleted
    crash while originals are deleted     the same                       the same
    crash after that                      `_upper=7`                     it counts, and is noted

What is deleted is written again, from the input's history, which the sink's hold keeps.

Each write has a hidden folder of its own. Tasks of a runtime that was replaced, and has not noticed
yet, go on for as long as they take: in a folder of both they would add their files to those of the
runtime that has taken over. They also bring their folder back after it was deleted.

Users take sub-folders away when they have used them up, and they also put an older copy of the
folder back, or start the application elsewhere, where a relative path means another folder. The
first must not disturb the sink, and the others must stall it, or rows would be missing for good.
`_newest-…` tells them apart: it stays behind, and is as old as the copy.

Invariants:
    A sub-folder counts if nothing is left of a hidden one of its number, or `_newest-…` or the
    sink's progress has its times: those are noted after the rename, and the input may have
    forgotten them since.
    One that counts is never written again, and never deleted: its interval is left alone.
    On a local disk a sub-folder is durable, with its name, before it counts: a power cut takes back
    nothing that progress has.
    Before progress has a micro-batch with rows, `_newest-…` is at that or at a later one. It stays
    when another definition takes the folder, until that one puts its own first rows in place: who
    goes back to the one before finds what that has had.
    One that does not count is deleted before what is left of its hidden folder. In the other order
    a crash in between would leave a part that counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from shardline.app.protocol.fingerprint import accepted_fingerprints, fingerprint
from shardline.app.protocol.objects import SinkDescription
from shardline.app.storage.formats import EXACT_BLANKS, EXACT_TIMES, TIMES_AS_TEXTS, UPPER
from shardline.app.storage.sinks.interval import Interval, frontier_of, number_of
from shardline.app.storage.sinks.target import Written, target_taken
from shardline.datasource.clock import IdGenerator
from shardline.datasource.errors import Determinate, Indeterminate, InvalidUsage
from shardline.datasource.frames import sync_names_above, sync_path, sync_tree
from shardline.datasource.frontier import Frontier
from shardline.datasource.java_names import java_class

__all__ = ["FileTarget", "parse_file_options", "spell_columns"]

_OWNER: Final = "_shardline.json"
_OWNER_COPY: Final = "_shardline-copy.json"
"""Written before the owner's file: nothing else of a folder with rows says whose it is."""
_STAGING: Final = ".staging-"
_DONE: Final = f"{UPPER}="
_NEWEST: Final = "_newest-"

_WAY_OUT: Final = "give the sink another path, or empty the folder"


def parse_file_options(
    sink: SinkDescription, options: Mapping[str, str]
) -> tuple[str, list[str], dict[str, str]]:
    """The folder, the columns that divide it, and the options of the writer.

    Args:
        sink: A sink of files.
        options: Of its target.
    """
    given = {name.lower(): (name, text) for name, text in options.items()}
    path = given.pop("path")[1].rstrip("/")
    columns = given.pop("partitionby", ("", ""))[1].split(",")
    exact = dict(EXACT_TIMES) if sink.format in TIMES_AS_TEXTS else {}
    exact |= EXACT_BLANKS if sink.format == "csv" else {}
    # Not beside what is given, in another spelling: Spark compares names without case.
    exact = {name: text for name, text in exact.items() if name.lower() not in given}
    return path, [one.strip() for one in columns if one.strip()], {**exact, **dict(given.values())}


def spell_columns(names: Iterable[str], columns: Iterable[str]) -> list[str]:
    """Names as the columns are spelt, of which Spark may not take another spelling.

    Args:
        names: Names without case; one that is no column stays as it is.
        columns: All columns.
    """
    known = {column.lower(): column for column in columns}
    return [known.get(name.lower(), name) for name in names]


class FileTarget:
    """A folder that belongs to one sink, and from its first rows on to one definition of it.

    Without the owner's file a folder with rows is refused. A sub-folder that is deleted by hand is
    not written again, since the sink's progress has its times.
    """

    def __init__(
        self,
        spark: SparkSession,
        sink: SinkDescription,
        options: Mapping[str, str],
        shard: str,
        recorded: Frontier | None,
        *,
        location: str,
        ids: IdGenerator,
        check_fence: Callable[[], None],
    ) -> None:
        """Take the folder, and delete what an earlier incarnation has left unfinished in it.

        Args:
            spark: The session that writes.
            sink: The owner of the folder.
            options: Of the target.
            shard: Id of the shard that the sink reads.
            recorded: How far the folder is by the sink's progress; None if that has nothing.
            location: Id of the location.
            ids: Tells the hidden folders of writes apart.
            check_fence: Raises if another runtime has taken over.

        Raises:
            InvalidUsage: It belongs to another sink, or has rows of another definition of this one.
            Determinate: It is a file.
        """
        self._path, self._partition_by, self._options = parse_file_options(sink, options)
        self._format = sink.format
        self._spark = spark
        self._ids = ids
        self._check_fence = check_fence
        self._path_class = java_class(spark, "org.apache.hadoop.fs.Path")
        # PySpark has no other door to file systems.
        conf = spark._jsc.hadoopConfiguration()  # noqa: SLF001
        self._fs = self._path_class(self._path).getFileSystem(conf)
        self._is_local = self._fs.getUri().getScheme() == "file"
        self._refuse_file()
        self._noted = set(_numbers(self._names(), _NEWEST))
        self._begins_anew = False
        self.input = self._take(sink, shard, recorded, location)
        # Of another input nothing could be written again: the sink is going to be refused.
        if self.input in ("", shard):
            self._delete_unfinished(recorded)
            done = self.committed()
            # An earlier incarnation may have been killed before it had noted it.
            if done is not None and not self.has_taken(done):
                self._note_newest(number_of(done))
        # What an earlier incarnation has renamed counts from now on: it may have been killed before
        # the name was durable.
        self._sync_names()

    def committed(self) -> Frontier | None:
        """The greatest upper of the sub-folders that there ever were; None if there were none."""
        names = self._names()
        numbers = _numbers(names, _DONE)
        if not self._begins_anew:
            # Its user may have taken it away before progress had it.
            numbers += _numbers(names, _NEWEST)
        return frontier_of(max(numbers)) if numbers else None

    def has_taken(self, upper: Frontier) -> bool:
        """False if `_newest-…` is before `upper`, or is not there."""
        # Looked at each time: the folder may have been emptied since the sink has opened it. By its
        # name first: a folder may have many of micro-batches, which are asked for one by one.
        noted = [number for number in self._noted if frontier_of(number) >= upper]
        if any(self._fs.exists(self._place(f"{_NEWEST}{number}")) for number in noted):
            return True
        return any(frontier_of(number) >= upper for number in _numbers(self._names(), _NEWEST))

    def write(self, rows: DataFrame, interval: Interval) -> Written:
        """Write the rows into a hidden folder, then rename it into place."""
        done = self._place(f"{_DONE}{interval.number}")
        staged = self._place(f"{_STAGING}{interval.number}-{self._ids.token().hex()}")
        if self._fs.exists(done):
            if self._counts(interval.number):
                return Written(0, 0)
            # What is there and does not count may be what another runtime is putting in place.
            self._check_fence()
            self._delete(done)
        counter = Observation()
        counted = rows.observe(counter, F.count(F.lit(1)).alias("rows"))
        writer = counted.write.format(self._format).options(**self._options)
        if self._partition_by:
            writer = writer.partitionBy(*spell_columns(self._partition_by, rows.columns))
        writer.mode("errorifexists").save(staged.toString())
        if self._is_local:
            # A rename flushes no file, and progress, which is durable, keeps them from being
            # written again.
            sync_tree(self._disk_path(staged))
        size = self._fs.getContentSummary(staged).getLength()
        # Again: the job may have taken an hour. A runtime that has taken over meanwhile puts the
        # same times in place up to an upper of its own, and readers would see them twice. What is
        # staged stays then, and the next start deletes it.
        self._check_fence()
        # Spark counts nothing where its optimiser found out that there are no rows.
        count = int(counter.get.get("rows", 0))
        if count == 0:
            self._fs.delete(staged, True)
            return Written(0, size)
        if not self._noted and not self._owner():
            # Emptied since it was taken. Nothing is lost; but a folder with rows needs an owner.
            self._write_owner(self._mine)
        if self._begins_anew:
            # No earlier: until there are rows of this definition a user may go back to the one
            # before. No later: a crash right behind the rename would leave its number to this one.
            self._forget_newest()
        if not self._fs.rename(staged, done):
            # Some of the files may be there: the next start finds out, and deletes them.
            raise Indeterminate(
                f"the files of times up to {interval.upper} could not be put in place in "
                f"'{self._path}'",
                code="NOT_RENAMED",
                hint="look at the permissions of the folder",
            )
        self._note_newest(interval.number)
        return Written(count, size)

    def skip(self, interval: Interval) -> None:  # noqa: ARG002 - of the contract
        """Write nothing: an interval without rows has no folder. Raises if none could be there."""
        # Else nothing would tell before the next rows, which may come in days.
        self._refuse_file()

    def _refuse_file(self) -> None:
        """Refuse a file in the place of the folder.

        Raises:
            Determinate: `NO_FOLDER`.
        """
        if self._fs.isFile(self._path_class(self._path)):
            raise Determinate(
                f"'{self._path}' is a file, and the sink needs a folder",
                code="NO_FOLDER",
                hint="move the file away, and the sink goes on; or give it another path",
            )

    def _delete_unfinished(self, recorded: Frontier | None) -> None:
        """Delete what crashes have left: sub-folders that do not count, and all hidden ones."""
        for name in self._names():
            if not name.startswith(_STAGING):
                continue
            number = _staged_number(name)
            if number is not None and not self._has(number, recorded):
                self._delete(self._place(f"{_DONE}{number}"))
            self._delete(self._place(name))

    def _counts(self, number: int) -> bool:
        """True if the sub-folder of `number`, which is there, is whole; see the module."""
        is_staged = any(_staged_number(name) == number for name in self._names())
        return not is_staged or self._has(number, None)

    def _has(self, number: int, recorded: Frontier | None) -> bool:
        """True if the sub-folder of `number` was put in place, by progress or `_newest-…`."""
        if recorded is not None and frontier_of(number) <= recorded:
            return True
        # Until it has rows of this definition it speaks of those of the one before.
        return not self._begins_anew and any(noted >= number for noted in self._noted)

    def _note_newest(self, number: int) -> None:
        """Let `_newest-…` say that sub-folder `number`, the newest one, has been there."""
        self._fs.create(self._place(f"{_NEWEST}{number}"), True).close()
        self._sync_names()
        # Behind what is durable: of a crash in between both are left.
        for former in self._noted - {number}:
            self._delete(self._place(f"{_NEWEST}{former}"))
        self._noted = {number}

    def _forget_newest(self) -> None:
        """Delete the `_newest-…` of the definition before, or of a folder that was emptied."""
        for number in self._noted:
            self._delete(self._place(f"{_NEWEST}{number}"))
        self._noted, self._begins_anew = set(), False

    def _delete(self, place: Any) -> None:
        """Delete a folder or a file, if it is there.

        Raises:
            Determinate: It is still there.
        """
        # False of a folder that is not there, too. What could not be deleted must not be passed
        # over: the order of two of them decides what counts.
        if not self._fs.delete(place, True) and self._fs.exists(place):
            raise Determinate(
                f"'{place.toString()}' could not be deleted",
                code="NOT_DELETED",
                hint="look at the permissions of the folder",
            )

    def _take(
        self, sink: SinkDescription, shard: str, recorded: Frontier | None, location: str
    ) -> str:
        """Take the folder for the sink, and return the shard whose changes it has; "" if none.

        Raises:
            InvalidUsage: It holds what somebody else has written.
        """
        mine = self._mine = {"sink": sink.name, "location": location}
        mine |= {"definition": fingerprint(sink), "input": shard}
        full = any(name.startswith(_DONE) for name in self._names())
        found = self._owner()
        # Two locations of one project have sinks of the same names and definitions: each would
        # delete what the other one is staging. Earlier versions did not note the location; ids of
        # shards are unique, so that the same input tells it, too.
        known = "location" in found
        elsewhere = known and found["location"] != location
        same = not elsewhere if known else found.get("input") == shard
        # Accounts of this definition are of this folder: its path is part of the definition. An
        # earlier version has noted another fingerprint in it, which includes credentials.
        same_definition = found.get("definition") in accepted_fingerprints(sink)
        ours = (
            found.get("sink") == sink.name
            and not elsewhere
            and ((same_definition and same) or recorded is not None)
        )
        if ours and full:
            if same and not known:
                # Copies of this location have the same input: from now on they are told apart.
                self._write_owner({**found, "location": location})
            return str(found.get("input", ""))
        # One of this sink that has written nothing gives way to the definition that corrects it,
        # whatever has become of its input; another sink may be about to write.
        gives_way = not full and same and found.get("sink") == sink.name
        if found and not ours and not gives_way:
            way_out = _WAY_OUT if full else f"{_WAY_OUT}, its file {_OWNER} included"
            raise target_taken(self._name, found.get("sink", ""), way_out)
        if full:
            raise InvalidUsage(
                f"{self._name} has rows, and nothing in it says whose they are: {_OWNER} is not "
                "there, or is damaged, and so is its copy",
                code="TARGET_TAKEN",
                hint=f"put that file back, if they are of this sink; or {_WAY_OUT}",
            )
        self._begins_anew = not ours or recorded is None
        if self._read(self._place(_OWNER)) != mine:
            self._write_owner(mine)
        else:
            # The incarnation that has written it may have been killed before it was durable.
            self._sync_file(self._place(_OWNER))
        return ""

    def _write_owner(self, owner: Mapping[str, str]) -> None:
        """Note the owner of the folder."""
        # The copy is durable first: without any owner a folder with rows is refused for good, and
        # no file system replaces the content of a file in one step.
        for name in (_OWNER_COPY, _OWNER):
            place = self._place(name)
            out = self._fs.create(place, True)
            out.write(bytearray(json.dumps(owner).encode()))
            out.close()
            self._sync_file(place)

    def _owner(self) -> dict[str, str]:
        """The owner of the folder; empty if there is none."""
        return self._read(self._place(_OWNER)) or self._read(self._place(_OWNER_COPY))

    def _read(self, place: Any) -> dict[str, str]:
        """What a file says of the owner; nothing if it is damaged, as by a crash."""
        if not self._fs.exists(place):
            return {}
        stream = self._fs.open(place)
        text = bytes(stream.readAllBytes())
        stream.close()
        try:
            found = json.loads(text)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def _name(self) -> str:
        return f"folder '{self._path}'"

    def _names(self) -> list[str]:
        path = self._path_class(self._path)
        if not self._fs.exists(path):
            return []
        return [status.getPath().getName() for status in self._fs.listStatus(path)]

    def _sync_names(self) -> None:
        """Make the names in the folder survive a power cut, where it is on a local disk."""
        if self._is_local:
            sync_path(self._disk_path(self._path_class(self._path)))

    def _sync_file(self, place: Any) -> None:
        """Make a file survive a power cut, with its name, where it is on a local disk."""
        if self._is_local:
            sync_path(self._disk_path(place))
            sync_names_above(self._disk_path(place))

    def _disk_path(self, place: Any) -> str:
        return str(self._fs.makeQualified(place).toUri().getPath())

    def _place(self, name: str) -> Any:
        return self._path_class(self._path, name)


def _staged_number(name: str) -> int | None:
    """The number of a hidden folder, maybe of an earlier version; None if it is none."""
    number = name.removeprefix(_STAGING).partition("-")[0]
    return int(number) if name.startswith(_STAGING) and number.isdigit() else None


def _numbers(names: list[str], prefix: str) -> list[int]:
    """The numbers behind a prefix, of those names that have it."""
    found = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    return [int(text) for text in found if text.isdigit()]
