"""Damage: bytes that are flipped, cut and spliced, and JSON whose values are swapped for others."""

from __future__ import annotations

import copy
import json
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

__all__ = ["damaged_bytes", "damaged_json", "damaged_text", "within"]

_STRANGE: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1, 2**31, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30, 0.5, 1e308,
    "", "0", "s" + "0" * 32, "ü\u2028\U0001f600", "\x00", "../..", "a" * 5000, [], {}, [[]],
    {"": None}, [None], ["x"], {"v": 1},
)  # fmt: skip
"""Values that nobody expects."""


def damaged_bytes(chance: random.Random, value: bytes, others: Sequence[bytes]) -> bytes:
    """`value` with some damage of the kinds that disks, wires and people do."""
    found = bytearray(value)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        at = chance.randrange(len(found) + 1)
        end = min(len(found), at + chance.choice((1, 2, 8, 100)))
        match chance.randrange(8):
            case 0 | 1 if at < len(found):
                found[at] ^= 1 << chance.randrange(8)
            case 2:
                del found[at:]
            case 3:
                del found[at:end]
            case 4:
                found[at:end] = bytes(end - at)
            case 5:
                found[at:at] = chance.randbytes(chance.choice((1, 4, 64)))
            case 6:
                other = chance.choice(others)
                start = chance.randrange(len(other) + 1)
                found[at:end] = other[start : start + max(end - at, 8)]
            case _:
                found[at:end] = chance.randbytes(end - at)
    return bytes(found)


def damaged_json(chance: random.Random, text: bytes) -> bytes:
    """Well-formed JSON (nearly always) like `text`, with other values in some places."""
    value = json.loads(text)
    for _ in range(chance.choice((1, 1, 2, 4))):
        if places := list(_places(value)):
            _change(chance, places)
    found = json.dumps(value).encode()
    if chance.random() < 0.02:
        depth = chance.choice((500, 100_000))
        return b"[" * depth + found + b"]" * depth
    if chance.random() < 0.05 and found.endswith(b"}") and len(value):
        # The last name once more, with another value.
        again = json.dumps({list(value)[-1]: _strange(chance)}).encode()
        found = found[:-1] + b"," + again[1:]
    return found


def _strange(chance: random.Random) -> Any:
    return copy.deepcopy(chance.choice(_STRANGE))


def _change(chance: random.Random, places: Sequence[tuple[Any, Any]]) -> None:
    """Put something else in one place."""
    box, key = chance.choice(places)
    match chance.randrange(9):
        case 0:
            del box[key]
        case 1:
            other_box, other_key = chance.choice(places)
            box[key] = json.loads(json.dumps(other_box[other_key]))
        case 2 if isinstance(box[key], int):
            box[key] += chance.choice((-1, 1, 2**31, -(2**62)))
        case 3 if isinstance(box[key], str):
            box[key] = damaged_text(chance, box[key])
        case 4 if isinstance(box, dict):
            box[damaged_text(chance, str(key))] = _strange(chance)
        case 5:
            box[key] = _nested(chance.choice((3, 40)))
        case _:
            box[key] = _strange(chance)


def _nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = [value]
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys: Sequence[Any] = ()
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = range(len(value))
    for key in keys:
        yield value, key
        yield from _places(value[key])


def damaged_text(chance: random.Random, text: str) -> str:
    """Text like `text`, with characters that nobody expects."""
    found = list(text)
    for _ in range(chance.choice((1, 1, 2, 6))):
        at = chance.randrange(len(found) + 1)
        match chance.randrange(5):
            case 0:
                del found[at : at + 1]
            case 1:
                found[at:at] = chance.choice(
                    ("\x00", "é", "'", '"', "%", "`", ";", "\\", "\ud800", "٣", " ", "-", "9" * 40)
                )
            case 2:
                found[at:at] = found[: chance.randrange(len(found) + 1)]
            case 3:
                del found[at:]
            case _:
                found[at:at] = chr(chance.randrange(1, 0x250))
    return "".join(found)


@contextmanager
def within(seconds: int, what: Callable[[], str]) -> Iterator[None]:
    """Fail, saying `what`, if the block takes longer: a hang is a finding too."""

    def late(_: int, __: FrameType | None) -> None:
        raise AssertionError(f"longer than {seconds} s: {what()}")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
