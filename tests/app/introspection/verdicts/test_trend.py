"""A trend: its direction, and the time at which it ends."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from shardline.app.introspection.verdicts.trend import Direction, Trend
from shardline.app.introspection.verdicts.wording import amount, names_of, span
from support.profiles import one_of


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
        # What was before it fell does not count.
        ([float(n) for n in range(100)] + [100.0 - n for n in range(61)], "shrinking", 40_000),
    ],
)
def test_the_last_falls_decide(
    values: list[float], direction: Direction, remaining_ms: int | None
) -> None:
    """From the peak before them on."""
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


def saw_tooth(steps_s: list[int], before_s: int) -> list[float]:
    """The lag of a view whose steps take so long, one after the other, noted once a second.

    A step brings the upper to when it began: the lag falls to the time that the step has taken.
    """
    found: list[float] = []
    for step_s in steps_s:
        found += [(before_s + passed_s) * 1000.0 for passed_s in range(step_s)]
        before_s = step_s
    return found


def directions_of(values: list[float]) -> list[Direction]:
    """The direction after each value."""
    found, directions = Trend(), list[Direction]()
    for number, value in enumerate(values):
        found.note(number * 1000, value)
        directions.append(found.direction())
    return directions


@pytest.mark.parametrize("step_s", [2, 6, 9, 10, 12, 20, 30, 60, 90, 150, 600])
def test_steps_of_one_length_never_shrink(step_s: int) -> None:
    """The lag falls with each of them, and is as large as before when the next one is done."""
    values = saw_tooth([step_s] * max(10, 200 // step_s), step_s)
    assert "shrinking" not in directions_of(values)
    assert trend_of(values).remaining_ms() is None


@pytest.mark.parametrize("step_s", [6, 20, 60, 150])
def test_steps_of_changing_length_hardly_shrink(step_s: int) -> None:
    """By a tenth more or less. By chance some are shorter than those before, but not for long."""
    draw = Random(step_s)
    steps_s = [round(step_s * (0.9 + 0.2 * draw.random())) for _ in range(7200 // step_s)]
    found = directions_of(saw_tooth(steps_s, step_s))
    assert found.count("shrinking") < 0.05 * len(found)


@pytest.mark.parametrize("step_s", [6, 60, 150])
def test_steps_that_get_shorter_shrink(step_s: int) -> None:
    """Each takes four fifths of the one before: what there is to read is what came meanwhile."""
    steps_s = [round(3 * step_s * 0.8**number) for number in range(7)]
    values = saw_tooth(steps_s, 3 * step_s)
    found = directions_of(values)
    assert found[-1] == "shrinking"
    first = found.index("shrinking")
    assert first <= sum(steps_s[:3])
    assert set(found[first:]) == {"shrinking"}
    (left, before) = (trend_of(values[:-number]).remaining_ms() for number in (1, 11))
    assert left is not None
    assert before is not None
    assert 0 < left < before


def test_what_hangs_does_not_shrink_any_more() -> None:
    """A lag says so when it is above the last peaks, a backlog when the next fall is overdue."""
    falling = saw_tooth([100, 80, 64, 51], 100)
    found = directions_of(falling + [51_000.0 + 1000 * n for n in range(200)])
    assert found[len(falling)] == "shrinking"
    assert set(found[len(falling) + 150 :]) == {"growing"}
    files = [400.0 - 10 * (n // 30) for n in range(300)]
    found = directions_of(files + [files[-1]] * 200)
    assert set(found[61 : len(files)]) == {"shrinking"}
    assert set(found[len(files) + 61 :]) == {"steady"}


def test_long_steps_that_make_a_backlog_smaller_are_no_standstill() -> None:
    """Ten files in each micro-batch of five minutes get fewer, if not from second to second."""
    found = directions_of([100.0 - 10 * (n // 300) for n in range(2400)])
    assert set(found[601:]) == {"shrinking"}
    # As many come meanwhile, nine at once: only the first fall is to fewer than were known before.
    found = directions_of([100.0 + 9 * (n % 300 // 33) for n in range(3000)])
    assert "shrinking" not in found[334:]


def test_a_catch_up_that_is_over_does_not_count_for_long() -> None:
    """An hour behind at the start, a minute from then on."""
    found = directions_of(saw_tooth([60] * 20, 3600))
    assert "shrinking" not in found[300:]
    # Neither does its peak hide that it shrinks again.
    steps_s = [*[60] * 20, *(round(60 * 0.8**number) for number in range(1, 6))]
    assert directions_of(saw_tooth(steps_s, 3600))[-1] == "shrinking"


def looked_at(noted: list[tuple[int, float]]) -> tuple[Direction, int | None]:
    """Direction and end by going through all notes since the value was zero."""
    zeros = [number for number, note in enumerate(noted) if note[1] <= 0]
    since = noted[zeros[-1] + 1 :] if zeros else noted
    if not since or since[-1][0] - since[0][0] < 8_000:
        return "unknown", None
    falls = [n for n in range(1, len(since)) if since[n][1] < since[n - 1][1]]
    cuts = [0]
    for fall in falls:
        if since[fall][0] - since[cuts[-1]][0] >= 8_000:
            cuts.append(fall)
    spans = [since[a:b] for a, b in pairwise([*cuts, len(since)])]
    over, known = list(pairwise(cuts))[-8:], spans[-9:]
    peaks = [max(value for _, value in span) for span in known]
    still = 0.02 * max(peaks)
    now_ms, last = since[-1]
    # Where it rose again after a fall, in the spans that are known.
    rises = [n for n in range(1, len(since)) if since[n][1] > since[n - 1][1]]
    bottoms = [
        since[n - 1][1]
        for n in rises
        if n >= cuts[-len(known)] and n - 1 in range_of_falls(since, falls)
    ]
    top_at = max([0, *rises])
    top = since[top_at][1]
    top_ms = max(at_ms for at_ms, value in since[top_at:] if value == top)
    fell_ms, fallen_to = since[max([0, *falls])]
    half = len(over) // 2
    patience_ms = max([60_000, *(2 * (since[b][0] - since[a][0]) for a, b in over[max(1, half) :])])
    if now_ms - fell_ms <= patience_ms:
        if len(over) >= 2 and max(peaks[half:]) < min(peaks[:half]):
            end_ms, end = since[over[0][1]]
            varies = 0.2 * max(
                peak - since[b][1] for peak, (_, b) in zip(peaks, over, strict=False)
            )
            if min(peaks[0] - peaks[-2], end - fallen_to) > max(still, varies):
                zero_ms = fell_ms + round(fallen_to / ((end - fallen_to) / (fell_ms - end_ms)))
                return "shrinking", max(0, zero_ms - now_ms)
        if now_ms - top_ms >= 8_000 and min([top, *bottoms]) - last > still:
            return "shrinking", round(last * (now_ms - top_ms) / (top - last))
    if now_ms - top_ms < 8_000 and min([top, *bottoms]) - last > still:
        return "unknown", None
    base = since[over[0][1]][1] if len(over) >= 2 else since[0][1]
    if last - base <= still:
        return "steady", None
    return ("growing" if now_ms - since[0][0] >= 16_000 else "unknown"), None


def range_of_falls(noted: list[tuple[int, float]], falls: list[int]) -> set[int]:
    """The notes that have fallen, and those that stand as low as the one before them fell to."""
    found = set(falls)
    for number in range(1, len(noted)):
        if number - 1 in found and noted[number][1] == noted[number - 1][1]:
            found.add(number)
    return found


@pytest.mark.parametrize("seed", one_of(3, range(20)))
def test_each_note_counts_as_if_all_were_looked_at(seed: int) -> None:
    """What is kept from note to note is what all notes since the value was zero would say."""
    draw = Random(seed)
    found, now_ms, noted = Trend(), 100_000, list[tuple[int, float]]()
    level, kinds = 60.0, set[Direction]()
    for _ in range(400):
        now_ms += draw.choice(
            [500, *[1_000] * 80, 3_000, 20_000, *[-5_000] * (draw.random() < 0.1)]
        )
        level *= draw.choice([0.9, 0.97, 1.0, 1.0, 1.0, 1.01])
        value = None if draw.random() < 0.004 else level + draw.choice([0, 0, 1, 5])
        if level < 2:
            value, level = 0.0, 60.0
        found.note(now_ms, value)
        if value is None or (noted and now_ms < noted[-1][0]):
            noted.clear()
        if value is not None:
            noted.append((now_ms, value))
        assert found.value == value
        assert (found.direction(), found.remaining_ms()) == looked_at(noted)
        kinds.add(found.direction())
    assert {"unknown", "shrinking", "steady"} <= kinds
