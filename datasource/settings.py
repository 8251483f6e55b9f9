"""Settings tune a shard client; they are one frozen value.

Each setting's text names its unit, the direction of its effect, and the reason for its default.
Settings are passed down by the code that opens the client. Nothing reads the environment: two
clients of one process may differ, and a test sees all that a run depends on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shardline.datasource.arguments import wrong_kind
from shardline.datasource.errors import InvalidUsage, unknown_name

__all__ = ["LONGEST_MS", "ShardSettings", "checked_settings"]

_MIB = 1 << 20

LONGEST_MS: Final = 100 * 365 * 86_400_000
"""The longest duration, 100 years: threads can wait for three times as long, and not for longer."""

_LEAST: Final[Mapping[str, int]] = {
    **dict.fromkeys(
        ("inline_part_bytes", "inline_state_bytes", "stats_bytes", "compact_inline_bytes"), 0
    ),
    "compact_factor": 2,
}
"""The least value of settings for which it is not 1."""

_LARGEST: Final = (1 << 63) - 1
"""The largest number that Arrow, and the files of a shard, take for a size or a count."""


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """Settings of a shard client. All sizes are bytes, all times milliseconds.

    Attributes:
        part_buffer_bytes: Arrow memory a writer sorts at once, and then writes as one part; bounds
            its memory to about three times this. Larger means fewer objects and requests, smaller
            means finer pruning. 256 MiB give parts of 40 to 130 MiB, near persist's 128.
        row_group_rows: Rows per Parquet row group: the unit of pruning and of reading. Fewer prune
            better, more compress better. 131,072, near DuckDB's 122,880.
        inline_part_bytes: A batch of at most this encoded size is kept inside the state: one
            request instead of two per append. 4 KiB, as persist.
        inline_state_bytes: Inline parts of a whole shard; beyond it they become blobs. Every
            reader of the state pays for them. 1 MiB, as persist.
        stats_bytes: Budget of column statistics per part in state. More prune better, less makes
            state smaller. 1 KiB, as persist.
        lease_ms: How long a reader's lease lasts after its last heartbeat. Longer survives longer
            pauses, shorter frees garbage sooner after a crash. 15 min, as persist.
        writer_lease_ms: How long an anonymous writer is remembered. 60 min, as persist.
        compact_factor: How many neighbouring batches of like size make a merge due. More merges
            less often and leaves more batches: fewer than this for each tier of sizes, and each
            update is rewritten once per tier. 16: three rewrites on the way to 10,000 times the
            size of an append. At least 2.
        compact_memory_bytes: About how much Arrow memory a merge's inputs take at once; larger
            merges are made in several passes. 256 MiB, with the writer's buffer on top. Rows that
            agree in the shard's key are merged at once, however many they are: give shards a key
            that few rows share, or none.
        compact_inline_bytes: The most that a writer merges after one of its commits: the encoded
            bytes that it reads, a row counting as 16 at least and a part as 4096 more. More delays
            its next append for longer; larger merges wait for maintenance. 8 MiB: less than a
            second on one core, and enough for a million rows to arrive by hundreds. 0 turns it off.
        rollup_every: A whole state is stored after this many records: the most that opening a shard
            reads. 128, as persist.
        sweep_every_ms: How often maintenance looks for blobs that nothing refers to. A sweep lists
            the shard's blobs; more often deletes the orphans of crashed writers sooner, but never
            before they are 25 h old. 6 h: adds a quarter to that, for four lists a day.
        commit_timeout_ms: A commit that cannot be decided by then raises `Indeterminate`, one that
            certainly did not happen `Determinate`. Longer outlasts longer failures of the store,
            shorter tells the caller sooner. 1 min: most failures of stores are shorter, and nobody
            waits for longer without asking why.
        conflict_pause_ms: Longest pause after a lost race. Pauses are a few commits long, with
            jitter, and start with the second loss in a row; this bounds them when a store is slow.
            Longer means fewer attempts that lose, shorter a sooner next one. 1 s.
        wait_poll_ms: Longest pause between two reads of the state while waiting for the upper.
            Shorter sees new data sooner, and asks the store more often. 100 ms: people notice
            hardly less, and it is ten requests a second at most.
        validate: Check every invariant of the state at each transition: O(state) per commit. On in
            all tests.
    """

    part_buffer_bytes: int = 256 * _MIB
    row_group_rows: int = 1 << 17
    inline_part_bytes: int = 4096
    inline_state_bytes: int = _MIB
    stats_bytes: int = 1024
    lease_ms: int = 15 * 60 * 1000
    writer_lease_ms: int = 60 * 60 * 1000
    compact_factor: int = 16
    compact_memory_bytes: int = 256 * _MIB
    compact_inline_bytes: int = 8 * _MIB
    rollup_every: int = 128
    sweep_every_ms: int = 6 * 3600 * 1000
    commit_timeout_ms: int = 60 * 1000
    conflict_pause_ms: int = 1000
    wait_poll_ms: int = 100
    validate: bool = False

    def __post_init__(self) -> None:
        """Refuse values that cannot work.

        Raises:
            InvalidUsage: Something is no whole number, or no flag; a number is less than works, or
                greater than anything that it could count.
        """
        for field in dataclasses.fields(self):
            name, value = field.name, getattr(self, field.name)
            if field.type == "bool":
                if not isinstance(value, bool):
                    raise _invalid(name, value, "use true or false")
                continue
            least = _LEAST.get(name, 1)
            # A text is compared with no number, and a float or True would be written as such.
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise _invalid(name, value, f"use a whole number of at least {least}")
            if name.endswith("_ms") and value > LONGEST_MS:
                raise _invalid(name, value, f"use at most {LONGEST_MS} milliseconds")
            if value > _LARGEST:
                raise _invalid(name, value, f"use at most {_LARGEST}")

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> ShardSettings:
        """Parse settings from text, as they come from Spark options or a file.

        Raises:
            InvalidUsage: A name is unknown, or a value is not a whole number (or true/false).
        """
        fields = {field.name: field for field in dataclasses.fields(cls)}
        parsed: dict[str, int | bool] = {}
        for name, text in values.items():
            if name not in fields:
                raise unknown_name("setting", name, fields)
            parsed[name] = _number(name, text, flag=fields[name].type == "bool")
        return cls(**parsed)  # type: ignore[arg-type]  # each is of its field's type


def checked_settings(settings: object) -> ShardSettings:
    """Settings as they are; the defaults for None.

    Raises:
        InvalidUsage: It is something else, such as a mapping.
    """
    if settings is None:
        return ShardSettings()
    if not isinstance(settings, ShardSettings):
        hint = "give ShardSettings(lease_ms=60_000), of shardline.datasource.settings"
        raise wrong_kind("settings", settings, hint)
    return settings


def _number(name: str, text: str, *, flag: bool) -> int | bool:
    folded = text.strip().lower()
    if flag and folded in {"true", "false"}:
        return folded == "true"
    try:
        if not flag:
            return int(folded.replace("_", ""))
    except ValueError:
        pass
    raise _invalid(name, text, "use true or false" if flag else "use a whole number")


def _invalid(name: str, value: object, hint: str) -> InvalidUsage:
    shown = f"'{value}'" if isinstance(value, str) else value
    return InvalidUsage(f"setting '{name}' is {shown}", code="INVALID_SETTING", hint=hint)
