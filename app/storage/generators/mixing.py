"""Mixing makes random numbers and words out of (seed, event), a whole column at a time.

    draws       64 random bits for each event
    high, low   two numbers below `n` out of one draw
    prices      spread evenly over the orders of magnitude from 1 to 1,000,000 (in cents)
    words       a pool of strings to take from

They are the same on every machine. Everything is arithmetic on whole numbers: a logarithm may
differ in its last bit between two processors, and a row that is made again must be the same row.

Invariants:
    A value depends on the seed, the stream and the event only.
    Draws of two streams are independent of each other, as far as SplitMix64 mixes.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["Draws", "Events", "draws", "high", "low", "prices", "words"]

Events: TypeAlias = npt.NDArray[np.int64]
"""Numbers of events, or numbers made of them."""

Draws: TypeAlias = npt.NDArray[np.uint64]
"""64 random bits each."""

_MASK: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15
_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB

_STEPS: Final = 9
"""Price is linear in each of 2**9 equal steps of its logarithm: 0.01 % off the true curve."""

_REST: Final = 32 - _STEPS
_SPECIAL: Final = 13
"""Every 13th letter is the special one."""


def draws(seed: int, stream: int, events: Events) -> Draws:
    """64 random bits for each of `events`: SplitMix64, as `java.util.SplittableRandom` has it.

    Args:
        seed: Of the generator, at least 0.
        stream: Number of the random column.
        events: Numbers of at least 0.
    """
    key = _mixed(_mixed(seed & _MASK) ^ (stream * _GOLDEN & _MASK))
    mixed = events.astype(np.uint64)
    mixed *= np.uint64(_GOLDEN)
    mixed += np.uint64(key)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(_FIRST)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(_SECOND)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def _mixed(value: int) -> int:
    value = (value + _GOLDEN) & _MASK
    value = (value ^ (value >> 30)) * _FIRST & _MASK
    value = (value ^ (value >> 27)) * _SECOND & _MASK
    return value ^ (value >> 31)


def high(bits: Draws, below: int | Events) -> Events:
    """Numbers from 0 to `below` - 1 out of the upper half of `bits`; `below` is under 2**31."""
    return _scaled(bits >> np.uint64(32), below)


def low(bits: Draws, below: int | Events) -> Events:
    """The same, out of the lower half, which is independent of the upper one."""
    return _scaled(bits & np.uint64(0xFFFFFFFF), below)


def _scaled(half: Draws, below: int | Events) -> Events:
    scaled: Draws = half * np.asarray(below).astype(np.uint64)
    return (scaled >> np.uint64(32)).astype(np.int64)


def prices(bits: Draws) -> Events:
    """Prices in cents, from 100 to 100,000,000: each order of magnitude is as likely as another."""
    curve = _curve()
    upper = (bits >> np.uint64(32)).astype(np.int64)
    step, rest = upper >> _REST, upper & ((1 << _REST) - 1)
    base: Events = curve[step]
    more: Events = ((curve[step + 1] - base) * rest) >> _REST
    return base + more


@lru_cache(maxsize=1)
def _curve() -> Events:
    steps = 1 << _STEPS
    exact = (100 * Decimal(10) ** (Decimal(6 * step) / steps) for step in range(steps + 1))
    rounded = [int(price.to_integral_value(ROUND_HALF_UP)) for price in exact]
    return np.array(rounded, dtype=np.int64)


@lru_cache(maxsize=64)
def words(
    seed: int, stream: int, count: int, *, shortest: int, longest: int, special: str
) -> pa.StringArray:
    """A pool of `count` strings of `shortest` to `longest` letters, cached.

    Args:
        seed: Of the generator.
        stream: Number of the random column; it and the next one are used.
        count: Number of strings.
        shortest: Letters of the shortest.
        longest: Letters of the longest.
        special: One ASCII character that stands among the letters, every 13th; "" for none.
    """
    spread = longest - shortest + 1
    lengths = high(draws(seed, stream, np.arange(count, dtype=np.int64)), spread) + shortest
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    bits = draws(seed, stream + 1, np.arange(ends[-1], dtype=np.int64))
    letters = (high(bits, 26) + ord("a")).astype(np.uint8)
    if special:
        letters[low(bits, _SPECIAL) == 0] = ord(special)
    offsets = pa.py_buffer(ends.astype(np.int32).tobytes())
    return pa.StringArray.from_buffers(count, offsets, pa.py_buffer(letters.tobytes()))
