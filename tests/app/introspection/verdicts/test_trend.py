"""A trend: its direction, and the time at which it ends."""

from __future__ import annotations

from random import Random

import pytest

from shardline.app.introspection.verdicts.trend import Direction, Trend
from shardline.app.introspection.verdicts.wording import amount, names_of, span


def trend_of(values: list[float], every_ms: int = 1000) -> Trend:
    """A trend with these values, one after the other."""
    found = Trend()
    for number, value in enumerate(values):
        found.note(number * every_ms, value)
    return found


@pytest.mark.parametrize(
    ("values", "direction", "remaining_ms"),
    [
        ([], "unknown", None),
        ([5.0], "unknown", None),
        ([100.0, 0.0], "unknown", None),
        ([100.0 - n for n in range(11)], "shrinking", 90_000),
        ([100.0 + n for n in range(11)], "unknown", None),
        ([100.0 + n for n in range(17)], "growing", None),
        ([100.0] * 11, "steady", None),
        ([100.0 - n / 10 for n in range(11)], "steady", None),
        ([0.0] * 11, "unknown", None),
        # Files that arrive at once: from their number on, not from the quiet minute before.
        ([0.0] * 30 + [40.0 - n for n in range(11)], "shrinking", 30_000),
        ([0.0] * 30 + [40.0], "unknown", None),
        ([0.0] * 30 + [40.0] * 11, "steady", None),
        # A peak a moment ago: nobody knows yet.
        ([10.0] * 20 + [50.0, 49.0], "growing", None),
        ([50.0] * 20 + [40.0], "unknown", None),
        # What was before the last minute does not count: 60 values of the second half.
        ([float(n) for n in range(100)] + [100.0 - n for n in range(61)], "shrinking", 40_000),
    ],
)
def test_the_last_minute_decides(
    values: list[float], direction: Direction, remaining_ms: int | None
) -> None:
    """From the peak of the last minute on."""
    found = trend_of(values)
    assert found.direction() == direction
    assert found.remaining_ms() == remaining_ms


def test_what_is_not_known_ends_a_trend() -> None:
    """A gap, or a clock that was set back, begins it anew."""
    found = trend_of([100.0 - n for n in range(20)])
    assert found.direction() == "shrinking"
    found.note(20_000, None)
    assert (found.direction(), found.value) == ("unknown", None)
    found = trend_of([100.0 - n for n in range(20)])
    found.note(5_000, 3.0)
    assert (found.direction(), found.value) == ("unknown", 3.0)


@pytest.mark.parametrize(
    ("milliseconds", "words"),
    [(0, "0.0 s"), (400, "0.4 s"), (12_345, "12 s"), (200_000, "3 min 20 s"), (7_200_000, "2 h"),
     (187_200_000, "2 d 4 h"), (-5, "0.0 s")],
)  # fmt: skip
def test_spans_have_two_units_at_most(milliseconds: int, words: str) -> None:
    """The two largest."""
    assert span(milliseconds) == words


def test_amounts_and_names() -> None:
    """As in a sentence."""
    assert [amount(n) for n in (12, 2048, 3 << 30)] == ["12 bytes", "2.0 KiB", "3.0 GiB"]
    assert names_of(["a"]) == "`a`"
    assert names_of(["a", "b", "c"]) == "`a`, `b` and `c`"
    assert names_of(list("abcde")) == "`a`, `b`, `c` and 2 more"


def looked_at(noted: list[tuple[int, float]]) -> tuple[Direction, int | None]:
    """Direction and end by going through all notes of the last minute."""
    zeros = [number for number, note in enumerate(noted) if note[1] <= 0]
    since = noted[zeros[-1] + 1 :] if zeros else noted
    if not since or since[-1][0] - since[0][0] < 8_000:
        return "unknown", None
    (began_ms, first), (now_ms, last) = since[0], since[-1]
    peak_ms, peak = max(since, key=lambda note: (note[1], note[0]))
    if now_ms - peak_ms >= 8_000:
        if peak - last > 0.02 * peak:
            return "shrinking", round(last * (now_ms - peak_ms) / (peak - last))
        return "steady", None
    if last - first <= 0.02 * peak:
        return ("steady" if peak - last <= 0.02 * peak else "unknown"), None
    return ("growing" if now_ms - began_ms >= 16_000 else "unknown"), None


@pytest.mark.parametrize("seed", range(20))
def test_each_note_counts_as_if_all_were_looked_at(seed: int) -> None:
    """The peak that is kept from note to note is that of all notes since the value was zero."""
    draw = Random(seed)
    found, now_ms, noted = Trend(), 100_000, list[tuple[int, float]]()
    for _ in range(400):
        now_ms += draw.choice([500, *[1_000] * 40, 3_000, 20_000, -5_000])
        value = draw.choice(
            [None, 0.0, 7.0, *[50.0] * 20, *(draw.random() * 60 for _ in range(40))]
        )
        found.note(now_ms, value)
        if value is None or (noted and now_ms < noted[-1][0]):
            noted.clear()
        if value is not None:
            noted.append((now_ms, value))
        noted = [note for note in noted if note[0] >= now_ms - 60_000][-64:]
        assert found.value == value
        assert (found.direction(), found.remaining_ms()) == looked_at(noted)
