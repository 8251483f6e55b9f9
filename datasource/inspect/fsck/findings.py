"""Defines the findings of a check: each has a stable code, a severity and a hint.

    Finding                     one thing that is not as it must be
    FsckReport, ShardCheck      what was checked, and the findings
    KINDS                       every code with its severity and hint

Programs act on codes, and people on hints, so both are in one table and not spread over the checks.

`damage` means that something was lost or is wrong: some read or write fails or, if nothing detects
it, could return wrong rows. `warning` means that reads are right all the same. Codes and field
names are stable; new ones may be added.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import msgspec

from shardline.installation import PROGRAM

__all__ = ["KINDS", "Finding", "Findings", "FsckReport", "Kind", "Severity", "ShardCheck"]

Severity = Literal["damage", "warning"]


class Kind(NamedTuple):
    """Severity and hint of all findings with one code."""

    severity: Severity
    hint: str


class Finding(msgspec.Struct, frozen=True):
    """One thing that is not as it must be.

    Attributes:
        code: Stable name of the condition.
        severity: "damage" if something is lost or wrong, "warning" if reads are right all the same.
        subject: The key of an object, `record 17`, the name of a hold …
        detail: A description of the error, with the values.
        hint: How to repair it.
    """

    code: str
    severity: Severity
    subject: str
    detail: str
    hint: str


class ShardCheck(msgspec.Struct, frozen=True):
    """The check of one shard.

    Attributes:
        shard: Its name; its directory if that encodes no name.
        seqno: The newest state that was checked; null if none could be made.
        records: Log records decoded and applied.
        rollups: Whole states compared with those that the log gives.
        parts: Parts checked, including those that only older states name.
        rows: Updates decoded; 0 unless the check was deep.
        size_bytes: Encoded size of the parts.
        unreferenced: Blobs that no state names: staged and not appended yet, or left by a crash.
        unreferenced_bytes: Their size.
        findings: Empty if nothing is wrong.
    """

    shard: str
    seqno: int | None
    records: int
    rollups: int
    parts: int
    rows: int
    size_bytes: int
    unreferenced: int
    unreferenced_bytes: int
    findings: tuple[Finding, ...]


class FsckReport(msgspec.Struct, frozen=True):
    """A check of a location, or of one shard.

    Attributes:
        location: Canonical URL.
        at_ms: When it began, by the clock of the process that checked.
        deep: True if parts were decoded and compared with their descriptions.
        findings: Findings about the location itself.
        shards: In order of their names.
    """

    location: str
    at_ms: int
    deep: bool
    findings: tuple[Finding, ...]
    shards: tuple[ShardCheck, ...]

    @property
    def is_clean(self) -> bool:
        """True if there is no finding at all."""
        return not self.findings and not any(shard.findings for shard in self.shards)


@dataclass(slots=True)
class Findings:
    """A collection of findings; the first for each code and subject counts."""

    found: dict[tuple[str, str], Finding] = field(default_factory=dict)
    _about: str = ""

    def add(self, code: str, subject: str, detail: str) -> None:
        """Add a finding about `subject`; `code` is one of `KINDS`."""
        kind = KINDS[code]
        finding = Finding(code, kind.severity, subject, detail + self._about, kind.hint)
        self.found.setdefault((code, subject), finding)

    def take(self, others: Findings) -> None:
        """Add all findings of another collection."""
        for finding in others.found.values():
            self.add(finding.code, finding.subject, finding.detail)

    def without(self, codes: Collection[str]) -> Findings:
        """The findings with other codes than these."""
        return Findings({at: one for at, one in self.found.items() if one.code not in codes})

    @contextmanager
    def note_with(self, what: str) -> Iterator[None]:
        """Append `what` in parentheses to the detail of each finding added inside of the block."""
        before, self._about = self._about, f" ({what})" if what else ""
        try:
            yield
        finally:
            self._about = before

    def __contains__(self, key: tuple[str, str]) -> bool:
        return key in self.found

    def sorted(self) -> tuple[Finding, ...]:
        """Damage first, then by code and subject."""
        return tuple(sorted(self.found.values(), key=lambda f: (f.severity, f.code, f.subject)))


_UPGRADE = "check with a newer Shardline; nothing else of the shard was looked at"
_FOREIGN = "something else wrote there; look what it is and move it away"
_REBUILD = (
    "the state is wrong, and no tool can know what it was: restore the shard's directory from a "
    "backup, and report this if only Shardline wrote to it"
)
_LAST_GOOD = (
    "restore the record from a backup; the states before it can be read as long as a rollup is "
    "older, those after it from the next rollup on"
)
_PART = (
    "restore the part from a backup; without one its rows are lost: write the shard anew from its "
    "source, under another name"
)
_DESCRIPTION = (
    "reads that trust the description are wrong: find out which program wrote the part, and write "
    "the shard anew from its source, under another name"
)
_ROLLUP = (
    "restore it from a backup; while an older rollup and the records after it are there, readers "
    "that know a newer one are not affected"
)
_FLOOR = "restore the floor log from a backup; until then let nobody truncate (no gc, no drop)"
_TXNS_LOST = (
    "nobody can read the shard or write to it: restore the transactions shard from a backup, "
    "together with the shards that are registered with it; or, without one, give up what it has "
    "not applied by client.transactions().forget(NAME, despite_loss=True)"
)

KINDS: Final[Mapping[str, Kind]] = {
    # --- the location
    "MARKER_MISSING": Kind("damage", "restore _shardline from a backup; nothing opens without it"),
    "MARKER_DAMAGED": Kind("damage", "restore _shardline from a backup; nothing opens without it"),
    "FOREIGN_DIRECTORY": Kind("warning", _FOREIGN),
    "SHARD_NOT_CHECKED": Kind(
        "damage",
        "check again as a user who may list and read all of its directory: of the rest of it "
        "nothing is known",
    ),
    "SHARD_WITHOUT_LOG": Kind("damage", "restore its log/ and floor/, or delete the directory"),
    # --- the log
    "FOREIGN_LOG_OBJECT": Kind("warning", _FOREIGN),
    "RECORD_MISSING": Kind("damage", _LAST_GOOD),
    "HEAD_MISSING": Kind(
        "warning",
        "either this is a copy that was made while the shard was written, and all is well, or the "
        "newest records were lost: then restore log/ before anybody writes",
    ),
    "RECORD_DAMAGED": Kind("damage", _LAST_GOOD),
    "RECORD_MISPLACED": Kind("damage", _LAST_GOOD),
    "RECORD_UNFIT": Kind(
        "damage",
        f"{_LAST_GOOD}; where records of two histories are in one log, restore the shard's "
        "directory to one moment of one of them",
    ),
    "NEWER_VERSION": Kind("damage", _UPGRADE),
    "STATE_UNREADABLE": Kind(
        "damage",
        "nobody can open the shard: restore what the other findings name, or the directory",
    ),
    "FLOOR_DAMAGED": Kind("damage", _FLOOR),
    "FLOOR_GAP": Kind("damage", _FLOOR),
    "FLOOR_BACKWARDS": Kind("damage", _FLOOR),
    "FLOOR_BEYOND_HEAD": Kind(
        "damage", "records after the head were lost, or the floor is another shard's: restore log/"
    ),
    "FLOOR_PAST_NEEDED": Kind("damage", _FLOOR),
    # --- rollups
    "ROLLUP_MISSING": Kind("damage", _ROLLUP),
    "ROLLUP_DAMAGED": Kind("damage", _ROLLUP),
    "ROLLUP_MISPLACED": Kind("damage", _ROLLUP),
    "ROLLUP_DIFFERS": Kind("damage", _ROLLUP),
    # --- the state
    "NAME_MISMATCH": Kind(
        "damage",
        "the directory was renamed or copied, and nothing else was checked: give it the name of "
        "its shard again, or move it out of the location",
    ),
    "BATCH_GAP": Kind("damage", _REBUILD),
    "BATCH_INTERVAL": Kind("damage", _REBUILD),
    "BATCH_SINCE": Kind("damage", _REBUILD),
    "EMPTY_NEIGHBOURS": Kind("warning", "harmless but never made by Shardline: compact --force"),
    "INLINE_BYTES": Kind("damage", _REBUILD),
    "PART_UNDESCRIBED": Kind("damage", _REBUILD),
    "PART_INTERVAL": Kind("damage", _REBUILD),
    "FOREIGN_PART": Kind(
        "damage", "the state refers to another shard's blob, which may go away at any moment"
    ),
    "SCHEMA_UNKNOWN": Kind("damage", _REBUILD),
    "SCHEMA_IDS": Kind("damage", _REBUILD),
    "SCHEMA_UNREADABLE": Kind("damage", _REBUILD),
    "ROLLUP_AHEAD": Kind("damage", _REBUILD),
    "READER_INCONSISTENT": Kind("damage", "expire the reader and start it again"),
    "SINCE_PAST_HOLDER": Kind(
        "damage", "history that the holder counts on is gone: start it again from a new snapshot"
    ),
    "GC_PAST_HOLD": Kind(
        "damage", "blobs that the holder counts on may be gone: start it from a new snapshot"
    ),
    "GC_MARKS": Kind("damage", _REBUILD),
    "WRITER_INCONSISTENT": Kind(
        "damage", "appends of this writer may be repeated or lost: compare them with their source"
    ),
    "STATE_INVARIANT": Kind("damage", _REBUILD),
    "HOLD_UNREADABLE": Kind(
        "damage",
        "a query that is in the middle of its snapshot cannot go on: restore what is missing, or "
        "start it with a new checkpoint",
    ),
    "TXNS_MISSING": Kind("damage", _TXNS_LOST),
    "TXNS_OTHER": Kind("damage", _TXNS_LOST),
    "TXNS_NEWER_VERSION": Kind(
        "damage",
        "check with a newer Shardline; what was committed for the shard and is not applied yet was "
        "not looked at",
    ),
    "TXNS_UNREADABLE": Kind(
        "damage",
        "nobody can open the shard: restore the objects that a check of the transactions shard "
        "names from a backup, and nothing else of it",
    ),
    "REGISTERED_SHARD_MISSING": Kind(
        "damage",
        "restore it from a backup, together with the transactions shard; or, without one, give it "
        "up by client.transactions().forget(NAME, despite_loss=True)",
    ),
    "SHARD_BEHIND_TXNS": Kind(
        "damage",
        "an older copy of the shard was restored, or its newest records were lost: what was "
        "applied to it since is gone. Restore a newer copy, or all shards of the location to one "
        "moment",
    ),
    "TXNS_BEHIND": Kind(
        "damage",
        "an older copy of the transactions shard was restored, or its newest records were lost: "
        "transactions since are in some of their shards only, and would be made again if they were "
        "repeated. Restore all shards of the location to one moment",
    ),
    "TXNS_ROW_DAMAGED": Kind("damage", "restore the parts of the transactions shard from a backup"),
    "TXNS_PART_MISSING": Kind(
        "damage", "restore it from a backup; readers of the shard wait for it"
    ),
    # --- parts
    "PART_MISSING": Kind("damage", _PART),
    "PART_SIZE": Kind("damage", _PART),
    "PART_CHECKSUM": Kind("damage", _PART),
    "PART_UNREADABLE": Kind("damage", _PART),
    "PART_COLUMNS": Kind("damage", _PART),
    "PART_ROWS": Kind("damage", _PART),
    "PART_DIFFS": Kind("damage", _DESCRIPTION),
    "PART_TIMES": Kind("damage", _DESCRIPTION),
    "PART_STATISTICS": Kind("damage", _DESCRIPTION),
    "PART_NAN_BOUNDS": Kind(
        "warning",
        f"reads are right and take longer: rewrite the shard's parts, by {PROGRAM} compact --force",
    ),
    "RUN_NOT_SORTED": Kind("damage", _DESCRIPTION),
    "NEGATIVE_ROWS": Kind(
        "warning",
        "a writer retracted rows that were never there, and reads fail: find them in the change "
        "feed by their negative diffs, and append them again",
    ),
    "DIFF_OVERFLOW": Kind("warning", "write smaller diffs: one row is there more than 2^63 times"),
    # --- what else is there
    "FOREIGN_OBJECT": Kind("warning", _FOREIGN),
    "LEFT_BEHIND": Kind("warning", "nothing needs it: run sweep"),
}
"""All codes that a check can report."""
