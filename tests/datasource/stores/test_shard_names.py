"""Names of shards and their directories."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.stores.shard_names import (
    NAME_BYTES_MAX,
    check_segments,
    names_hint,
    shard_directory,
    shard_name,
)

_NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=15).filter(
    lambda name: name.strip() and name.strip("./") and ".." not in name.split("/")
)


@pytest.mark.parametrize(
    ("name", "directory"),
    [
        ("orders", "orders"),
        ("orders-2024_v1.0", "orders-2024_v1.0"),
        ("_hidden", "%5Fhidden"),
        (".hidden", "%2Ehidden"),
        ("a b", "a%20b"),
        ("größe", "gr%C3%B6%C3%9Fe"),
        ("db/orders", "db%2Forders"),
        ("100%", "100%25"),
        ("~", "%7E"),
        ("日本", "%E6%97%A5%E6%9C%AC"),
    ],
)
def test_a_directory_is_the_name_percent_encoded(name: str, directory: str) -> None:
    """Plain names stay readable; everything else is escaped, leading `_` and `.` included."""
    assert shard_directory(name) == directory
    assert shard_name(directory) == name


@given(_NAMES, _NAMES)
def test_names_come_back_and_never_collide(name: str, other: str) -> None:
    """A name survives the round trip, its directory is plain ASCII, and no other name has it."""
    directory = shard_directory(name)

    assert shard_name(directory) == name
    assert re.fullmatch(r"[A-Za-z0-9%-][A-Za-z0-9_.%-]*", directory)
    assert (shard_directory(other) == directory) == (other == name)


@pytest.mark.parametrize(
    "name",
    ["", " ", ".", "..", "/", "//", "./.", "a/../b", "../a", "a\n", "\x00", "\x7f", "\ud800",
     "x" * (NAME_BYTES_MAX + 1), "ü" * 41],
)  # fmt: skip
def test_what_cannot_name_a_shard_is_refused(name: str) -> None:
    """Empty, dots and slashes only, control characters, too long once encoded."""
    with pytest.raises(InvalidUsage, match=r"\[INVALID_NAME\].*cannot name a shard"):
        shard_directory(name)


@pytest.mark.parametrize(
    "directory",
    ["", "_probe", ".git", "a b", "ü", "a%2fb", "%41", "%FF", "%", "%2", "a/b", "%0A"],
)
def test_what_no_name_encodes_to_is_refused(directory: str) -> None:
    """A directory has one spelling; others are not ours."""
    with pytest.raises(InvalidUsage, match=r"\[INVALID_NAME\].*no directory of a shard"):
        shard_name(directory)


def test_segments_of_a_plain_path() -> None:
    """Unicode and spaces are fine."""
    assert check_segments("key", "a/ü b/c.d") == ("a", "ü b", "c.d")


@pytest.mark.parametrize(
    ("name", "shards", "hint"),
    [
        ("orders_total", ["_lane", "orders", "orders_errors", "sales"], "did you mean 'orders'?"),
        ("order_errors", ["orders", "orders_errors"], "did you mean 'orders_errors'?"),
        ("my_error", ["my_errors", "other"], "did you mean 'my_errors'?"),
        (
            "zz",
            ["_lane", "orders", "orders_state_1"],
            "the location has 'orders'",
        ),
        ("zz", ["_lane"], "the location has '_lane'"),
        ("zz", [], "the location has no shards yet"),
    ],
)
def test_a_wrong_name_is_led_to_what_was_meant(name: str, shards: list[str], hint: str) -> None:
    """What the runtime keeps beside an object is proposed to who asks for such a shard."""
    assert names_hint(name, shards) == hint
