"""Resuming makes Spark's checkpoint of a source agree with the source's bindings.

    reconcile_checkpoint(folder, bound, …)   makes a checkpoint that continues behind the bindings
    Checkpoint(folder).planned(7)            offset and files of micro-batch 7, for `foreachBatch`
    forget_unbound_plan(folder, bound)       for a plan whose files are gone: it is made again

Spark resumes a query from a folder on the driver's disk. Were that folder believed, one that is
lost, or older than the shards, would read offsets twice or leave some out. So the bindings decide
(`reclock`). A checkpoint that says the same is kept; any other one, be it lost, damaged, behind,
ahead or of somebody else, is deleted and written anew:

    metadata             the query's id
    offsets/<n>, <n-1>   where the last two bindings end
    commits/<n>          if the rows of the last binding are committed; else <n-1>: Spark runs the
                         micro-batch again, from the same offset to the same offset
    sources/0/…          what the source has written there itself

Spark's file source logs each file that it has seen there, one line of JSON in a file of the log's
next number, every tenth one with all lines so far (`9.compact`). Other sources write little or
nothing: `rate` its time zero, Kafka where it began.

Invariants:
    Nothing in a checkpoint is believed that the bindings do not say.
    One is kept only if Spark can read it: a power cut leaves files that are empty or cut.
    A checkpoint is complete or not there: it is written beside its place and renamed.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

from shardline.app.execution.checkpoint_log import (
    VERSION,
    can_be_resumed,
    logged_numbers,
    read_planned_offset,
    remove_unfinished_plan,
)
from shardline.app.storage.reclock import EMPTY_SNAPSHOT, Binding, BoundOffsets, SourceFile
from shardline.datasource.errors import Corrupt

__all__ = [
    "Checkpoint",
    "PlannedMicroBatch",
    "Resumed",
    "forget_unbound_plan",
    "reconcile_checkpoint",
]

_log = logging.getLogger(__name__)

Resumed = Literal["kept", "rebuilt", "new"]
"""Outcome of `reconcile_checkpoint`: the checkpoint agreed; it was made from the bindings; there is
none yet."""

_COMPACT: Final = ".compact"
_COMPACT_EVERY: Final = 10
"""Default of `spark.sql.streaming.fileSource.log.compactInterval`. Spark derives the interval from
the names of the files that are there, so another setting does no harm."""

_COMMIT: Final = f'{VERSION}\n{{"nextBatchWatermarkMs":0}}'


class _LogOffset(msgspec.Struct):
    """The offset of a file source: the last number of its log that is read."""

    number: int = msgspec.field(name="logOffset")


class _Entry(msgspec.Struct):
    """A line of a file source's log; only these two fields are read."""

    path: str
    batch: int = msgspec.field(name="batchId")


@dataclass(frozen=True, slots=True)
class PlannedMicroBatch:
    """A micro-batch as Spark has planned it.

    Attributes:
        offset: Where it ends: the line in Spark's offset log.
        files: Lines that the source has written into the checkpoint so far.
        begin: Where it begins: the offset of the micro-batch before it; None if it is the first.
    """

    offset: str
    files: frozenset[SourceFile]
    begin: str | None = None

    def paths(self) -> list[str]:
        """The files of this micro-batch, as the log of the source has them; none without a log."""
        end, begin = _log_end(self.offset), _log_end(self.begin)
        if end is None:
            return []
        numbers = {str(number) for number in range(0 if begin is None else begin + 1, end + 1)}
        entries = [_entry(file.text) for file in self.files if file.name in numbers]
        return sorted(entry.path for entry in entries if entry is not None)


class Checkpoint:
    """Reads a checkpoint while its query runs; remembers files that it has read.

    A checkpoint that is lost costs time only: the next start makes it again from the bindings.
    """

    def __init__(self, folder: Path) -> None:
        """Read nothing yet."""
        self._folder = folder
        self._names: set[str] = set()
        self._files: frozenset[SourceFile] = frozenset()

    def planned(self, number: int) -> PlannedMicroBatch:
        """Read the plan of micro-batch `number`, which is under way.

        Raises:
            Corrupt: The checkpoint has no such micro-batch, or is not as Spark writes it.
        """
        offset = read_planned_offset(self._folder, number)
        if offset is None:
            raise Corrupt(
                f"the checkpoint has no offset for micro-batch {number}, which is under way",
                code="CHECKPOINT_DAMAGED",
                hint="the source starts again from its bindings by itself",
            )
        begin = read_planned_offset(self._folder, number - 1)
        return PlannedMicroBatch(offset, self._source_files(), begin)

    def planned_files(self) -> PlannedMicroBatch:
        """The plan after a run that found nothing to read: no offset, only the source's files."""
        return PlannedMicroBatch("", self._source_files())

    def _source_files(self) -> frozenset[SourceFile]:
        """Lines of the source's files; reads new files only, as a log may have 100,000 lines."""
        new = [path for path in _source_paths(self._folder) if path.name not in self._names]
        if new:
            self._names.update(path.name for path in new)
            self._files |= {line for path in new for line in _lines(path)}
        return self._files


def reconcile_checkpoint(
    folder: Path, bound: BoundOffsets, *, committed: bool, query: str
) -> Resumed:
    """Make the checkpoint in `folder` one that continues right behind `bound`.

    Args:
        folder: Of the checkpoint; need not be there. Nothing else may be writing it.
        bound: The bindings.
        committed: True if the rows of the last binding are in the source's shard.
        query: Id of the query, a UUID, for a checkpoint that is made anew.
    """
    remove_unfinished_plan(folder)
    if bound.last is not None and _agrees(folder, bound, committed=committed):
        return "kept"
    # Written beside its place and renamed: a crash in the middle must not leave a checkpoint that
    # Spark takes for a query without committed micro-batches.
    beside = folder.with_name(f"{folder.name}.new")
    for old in (beside, folder):
        if old.exists():
            shutil.rmtree(old)
    # Nothing is bound, so nothing was ever visible: Spark begins with the snapshot, again if need
    # be. What an interrupted one has left in the folder was deleted above.
    if bound.last is None:
        return "new"
    _log.info(
        "checkpoint made again from the bindings",
        extra={"context": {"micro_batch": bound.last.number, "committed": committed}},
    )
    _write(beside, bound, bound.last, committed=committed, query=query)
    beside.rename(folder)
    return "rebuilt"


def forget_unbound_plan(folder: Path, bound: BoundOffsets) -> None:
    """Remove a checkpoint that has planned more than is bound: the next start plans it again.

    Args:
        folder: Of the checkpoint. Nothing else may be writing it.
        bound: The bindings.
    """
    last = EMPTY_SNAPSHOT if bound.last is None else bound.last.number
    if max(logged_numbers(folder / "offsets"), default=EMPTY_SNAPSHOT) > last:
        shutil.rmtree(folder, ignore_errors=True)  # what is left is looked at, as any checkpoint


# --- judging -----------------------------------------------------------------------------------


def _agrees(folder: Path, bound: BoundOffsets, *, committed: bool) -> bool:
    """True if Spark, resuming from `folder`, would go on exactly behind `bound`."""
    assert bound.last is not None
    offsets, commits = logged_numbers(folder / "offsets"), logged_numbers(folder / "commits")
    last = bound.last.number
    if not can_be_resumed(folder):
        return False
    # One micro-batch may have been planned and not bound: it is run again, or bound then.
    if not (folder / "metadata").is_file() or max(offsets, default=EMPTY_SNAPSHOT) not in {
        last,
        last + 1,
    }:
        return False
    known = [b for b in (bound.before, bound.last) if b is not None and b.number != EMPTY_SNAPSHOT]
    if any(read_planned_offset(folder, binding.number) != binding.offset for binding in known):
        return False
    # If the rows of the last binding are not appended, Spark has to run that micro-batch again. If
    # they are, it may: the micro-batch is found to be committed.
    if max(commits, default=EMPTY_SNAPSHOT) not in ({last, last - 1} if committed else {last - 1}):
        return False
    if max(commits, default=EMPTY_SNAPSHOT) < max(offsets, default=EMPTY_SNAPSHOT) - 1:
        return False
    # A file that is missing in Spark's log would be read a second time.
    written = Checkpoint(folder).planned_files().files
    return bound.files <= written and not any(
        _may_be_cut(file, bound) or _is_foreign(file, bound) for file in written
    )


def _is_foreign(file: SourceFile, bound: BoundOffsets) -> bool:
    """True if a line of a log of files is not bound, though its number is.

    Another runtime has bound that number with other files meanwhile. The line stays in the log, so
    every micro-batch of this checkpoint would be refused (`BOUND_OTHERWISE`).
    """
    assert bound.last is not None
    if file in bound.files or _entry(file.text) is None:
        return False
    end = _log_end(bound.last.offset)
    # Without a position in a log the source is none of files, whatever it has written.
    return end is not None and int(file.name) <= end


def _may_be_cut(file: SourceFile, bound: BoundOffsets) -> bool:
    """True if what the source has written is empty, or not known to be whole lines of files."""
    assert bound.last is not None
    # Behind an empty snapshot, with which all is bound that a source writes once, only a source of
    # files has written more: the log of a plan that is not bound, and planning it again loses
    # nothing. No line that is bound says yet how a whole one looks.
    if not bound.files and bound.last.number == EMPTY_SNAPSHOT:
        return True
    logs_files = any(_entry(known.text) is not None for known in bound.files)
    return not file.text or (logs_files and _entry(file.text) is None)


def _source_paths(folder: Path) -> list[Path]:
    """Files that the query's one source keeps in the checkpoint."""
    place = folder / "sources" / "0"
    if not place.is_dir():
        return []
    return [path for path in place.iterdir() if path.is_file() and not path.name.startswith(".")]


def _lines(path: Path) -> Iterable[SourceFile]:
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = [line for line in text.split("\n")[1:] if line]
    entries = [_entry(line) for line in lines]
    if text.startswith(VERSION) and entries and all(entries):
        return [
            SourceFile(str(entry.batch), line)
            for entry, line in zip(entries, lines, strict=True)
            if entry is not None
        ]
    return [SourceFile(path.name, text)]


def _entry(line: str) -> _Entry | None:
    try:
        return msgspec.json.decode(line, type=_Entry)
    except msgspec.MsgspecError:
        return None


def _log_end(offset: str | None) -> int | None:
    """The position in a log of files at which an offset ends; None if it is no such position."""
    try:
        return None if offset is None else msgspec.json.decode(offset, type=_LogOffset).number
    except msgspec.MsgspecError:
        return None


# --- writing -----------------------------------------------------------------------------------


def _write(
    folder: Path, bound: BoundOffsets, last: Binding, *, committed: bool, query: str
) -> None:
    _put(folder / "metadata", msgspec.json.encode({"id": query}).decode())
    for name in ("offsets", "commits", "sources"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for binding in (bound.before, last):
        if binding is not None and binding.number != EMPTY_SNAPSHOT:
            _put(folder / "offsets" / str(binding.number), _offset_text(binding))
    done = last.number if committed else last.number - 1
    if done > EMPTY_SNAPSHOT:
        _put(folder / "commits" / str(done), _COMMIT)
    _write_files(folder / "sources" / "0", bound.files)


def _offset_text(binding: Binding) -> str:
    metadata = {"batchWatermarkMs": 0, "batchTimestampMs": binding.time, "conf": {}}
    return f"{VERSION}\n{msgspec.json.encode(metadata).decode()}\n{binding.offset}"


def _write_files(folder: Path, files: Iterable[SourceFile]) -> None:
    """Write the source's own files; the log of a file source as Spark's compaction leaves it."""
    logged: dict[int, list[str]] = {}
    for file in sorted(files):
        if _entry(file.text) is None:
            _put(folder / file.name, file.text)
        else:
            logged.setdefault(int(file.name), []).append(file.text)
    newest = max(logged, default=EMPTY_SNAPSHOT)
    compact = (newest + 1) // _COMPACT_EVERY * _COMPACT_EVERY - 1
    early = [line for number in sorted(logged) if number <= compact for line in logged[number]]
    if early:
        _put(folder / f"{compact}{_COMPACT}", "\n".join([VERSION, *early]))
    for number, lines in logged.items():
        if number > compact:
            _put(folder / str(number), "\n".join([VERSION, *lines]))


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
