"""Checks one shard: its log, its state, its parts, and all other objects in its directory.

A shard may be written, merged and collected during the check, so an object that seems missing may
have become garbage since the state was read. A check with findings is therefore repeated if the
shard has moved on, and only findings that come up each time are reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from shardline.datasource.errors import STORE_REFUSALS, Corrupt, InvalidUsage, MissingBlob
from shardline.datasource.inspect.fsck.findings import Findings, ShardCheck
from shardline.datasource.inspect.fsck.listing import Listing, list_shard
from shardline.datasource.inspect.fsck.log import ReplayedLog, ShardObjects, replay_log
from shardline.datasource.inspect.fsck.parts import (
    PartFacts,
    check_bounds,
    check_exists,
    examine_parts,
    stored_sizes,
)
from shardline.datasource.inspect.fsck.states import schemas_of
from shardline.datasource.parts.contents import Contents
from shardline.datasource.parts.fetch import Fetcher
from shardline.datasource.read import first_sort_column, latest_readable
from shardline.datasource.rows.sorting import compare_rows
from shardline.datasource.shard.batch import Part, Run
from shardline.datasource.shard.plan import plan_snapshot
from shardline.datasource.shard.state import ShardState, is_tombstone
from shardline.datasource.stores.blob import ObjectBlob
from shardline.datasource.stores.entry import entry_seqno, newest_entry
from shardline.datasource.stores.shard_names import shard_name
from shardline.datasource.types.schema import ShardSchema

__all__ = ["CheckedShard", "check_shard"]

_LOOKS_MAX: Final = 3
"""Most attempts at checking a shard that changes during the check."""


@dataclass(frozen=True, slots=True)
class CheckedShard:
    """The check of a shard, with what the checks between shards need.

    Attributes:
        check: The check to report.
        state: The newest state; None if it cannot be made.
        head: Seqno of the newest record that was listed.
    """

    check: ShardCheck
    state: ShardState | None
    head: int


def check_shard(place: ShardObjects, *, deep: bool) -> CheckedShard:
    """Check the shard in `place`; repeated while there are findings and the shard changes.

    Of a shard that changes, only findings that come up each time are reported.

    Args:
        place: Its store and directory.
        deep: Decode the parts and compare their rows with their descriptions.

    Raises:
        Determinate: The store did not answer.
    """
    looked = _check_once(place, deep=deep)
    for _ in range(_LOOKS_MAX - 1):
        if not looked.check.findings or _head(place) == looked.head:
            break
        before = {(f.code, f.subject) for f in looked.check.findings}
        looked = _check_once(place, deep=deep)
        # Of two rounds only what both report: anything else was a matter of the moment.
        again = tuple(f for f in looked.check.findings if (f.code, f.subject) in before)
        looked = replace(looked, check=msgspec.structs.replace(looked.check, findings=again))
    return looked


def _head(place: ShardObjects) -> int:
    newest = newest_entry(place.objects, f"{place.directory}/log/")
    return 0 if newest is None else entry_seqno(newest.key)


def _check_once(place: ShardObjects, *, deep: bool) -> CheckedShard:
    found = Findings()
    listing = list_shard(place.objects, place.directory)
    if listing.records:
        walked = replay_log(place, listing, found)
    else:
        walked = ReplayedLog()
        objects = len(listing.parts) + len(listing.rollups) + len(listing.floors)
        detail = f"'{place.directory}' has {objects} objects of a shard and no record of its log"
        found.add("SHARD_WITHOUT_LOG", place.directory, detail)
    rows = _check_parts(place, listing, walked, found, deep=deep)
    for key in listing.foreign:
        if key not in listing.foreign_entries:
            found.add("FOREIGN_OBJECT", key, f"'{key}' is nothing that Shardline writes")
    for key in sorted(walked.dropped & listing.parts.keys() - walked.needed.keys()):
        found.add("LEFT_BEHIND", key, f"part '{key}' was collected and is still there")
    spare = _unreferenced(listing, walked)
    state = walked.newest or walked.last
    check = ShardCheck(
        shard=_name(place.directory, state),
        seqno=None if state is None else state.seqno,
        records=walked.records,
        rollups=walked.rollups,
        parts=len(walked.needed),
        rows=rows,
        size_bytes=sum(part.size_bytes for part in walked.needed.values()),
        unreferenced=len(spare),
        unreferenced_bytes=sum(spare.values()),
        findings=found.sorted(),
    )
    return CheckedShard(check, walked.newest, listing.head)


def _name(directory: str, state: ShardState | None) -> str:
    if state is not None:
        return state.name
    try:
        return shard_name(directory)
    except InvalidUsage:
        return directory


def _unreferenced(listing: Listing, walked: ReplayedLog) -> dict[str, int]:
    """Sizes by key of the blobs that no replayed state names."""
    state = walked.newest
    if state is None:
        return {}
    rollups = {ref.key for ref in state.rollups.values()}
    spare = {key: size for key, size in listing.parts.items() if key not in walked.named}
    return spare | {key: size for key, size in listing.rollups.items() if key not in rollups}


# --- parts -------------------------------------------------------------------------------------


def _check_parts(
    place: ShardObjects, listing: Listing, walked: ReplayedLog, found: Findings, *, deep: bool
) -> int:
    """Check the parts that a reader may need; the number of updates decoded."""
    state = walked.newest or walked.last
    if state is None:
        return 0
    runs = [run for batch in state.trace.batches for run in batch.runs]
    live = {part.key for run in runs for part in run.parts}
    old = [part for key, part in walked.needed.items() if key not in live]
    # Parts that only held states name are checked one by one: merges have replaced their runs.
    runs += [Run((part,), "none") for part in old]
    schemas = schemas_of(state, found)
    there: list[tuple[Run, Part]] = []
    for run in runs:
        for part in run.parts:
            with found.note_with("" if part.key in live else _OLD):
                if ("PART_UNDESCRIBED", part.key) in found:
                    continue  # there is nothing to compare its rows with
                check_bounds(part, schemas, found)
                if check_exists(part, listing.parts, found):
                    there.append((run, part))
    if not deep:
        place.advance(len(there))
        return 0
    return _Examiner(place, state, schemas, live, found).examine(there)


_UNMERGED: Final = {
    "NEGATIVE_MULTIPLICITY": "NEGATIVE_ROWS",
    "RUN_NOT_SORTED": "RUN_NOT_SORTED",
    "DIFF_OVERFLOW": "DIFF_OVERFLOW",
}
"""Finding by the code of the error with which a merge of rows failed."""

_OLD: Final = "only older states name it, and a reader holds one of them"


@dataclass(frozen=True, slots=True)
class _Examiner:
    """Decodes parts and collects the findings."""

    place: ShardObjects
    state: ShardState
    schemas: Mapping[int, ShardSchema]
    live: set[str]
    found: Findings

    def examine(self, there: list[tuple[Run, Part]]) -> int:
        """Check the rows of parts, run by run; the number of updates decoded."""
        blob = ObjectBlob(self.place.objects)
        parts = [part for _, part in there]
        rows = 0
        readable: set[str] = set()
        before: tuple[Run, PartFacts] | None = None
        examined = examine_parts(blob, parts, self.schemas, self.state.key)
        for (run, part), facts in zip(there, examined, strict=True):
            with self.found.note_with("" if part.key in self.live else _OLD):
                self.found.take(facts.found)
            if facts.readable:
                rows += part.rows
                readable.add(part.key)
                self._order(before[1] if before and before[0] is run else None, run, facts)
            before = (run, facts) if facts.readable else None
            self.place.advance(1)
        self._contents(blob, readable)
        return rows

    def _order(self, before: PartFacts | None, run: Run, facts: PartFacts) -> None:
        """Report rows of a sorted run that are out of order."""
        if run.order != "sorted" or facts.first is None:
            return
        key = facts.part.key
        if not facts.ordered:
            self.found.add("RUN_NOT_SORTED", key, f"the rows of part '{key}' are not in order")
        elif (
            before is not None
            and before.last is not None
            and before.last.column_names == facts.first.column_names
            and compare_rows(before.last, 0, facts.first, 0, facts.first.column_names) > 0
        ):
            detail = f"part '{key}' begins before the end of '{before.part.key}' of the same run"
            self.found.add("RUN_NOT_SORTED", key, detail)

    def _contents(self, blob: ObjectBlob, readable: set[str]) -> None:
        """Report rows that were retracted more often than they were added, or cannot be read."""
        state = self.state
        if is_tombstone(state) or len(self.schemas) < len(state.schemas):
            return
        schema = self.schemas[state.schema_id]
        contents = Contents(Fetcher(blob, self.schemas, schema), state.key, schema.names)
        try:
            at = latest_readable(state)
        except InvalidUsage:
            return  # nothing was ever appended
        for group in plan_snapshot(state, at, first_sort_column(state)).groups:
            if not all(planned.part.key in readable for planned in group):
                continue
            subject = f"contents at {at}"
            try:
                _read_to_end(contents.group(group, at))
            except MissingBlob as error:
                # It was there when it was examined: merged and collected since, or lost. A check of
                # a shard that has moved is repeated, so that only a lost one remains a finding.
                parts = [planned.part for planned in group]
                sizes = stored_sizes(self.place.objects, parts)
                whole = [check_exists(part, sizes, self.found) for part in parts]
                if all(whole):
                    self.found.add("PART_UNREADABLE", subject, f"{subject}: {error.detail}")
            except (Corrupt, InvalidUsage) as error:
                if error.code in STORE_REFUSALS:
                    raise  # nothing is known of its contents
                code = _UNMERGED.get(error.code, "PART_UNREADABLE")
                self.found.add(code, subject, f"{subject}: {error.detail}")


def _read_to_end(batches: Iterator[object]) -> None:
    for _ in batches:
        pass
