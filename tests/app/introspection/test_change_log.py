"""A change log against a model: what it hands out makes old rows into new ones."""

from __future__ import annotations

from collections import Counter
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from shardline.app.introspection import change_log
from shardline.app.introspection.change_log import ChangeLog, Difference
from support.profiles import examples

ROWS = st.lists(st.sampled_from([b"[1]", b"[2]", b"[3]", b'["' + b"x" * 40 + b'"]']), max_size=6)


def applied(rows: Counter[bytes], difference: Difference) -> Counter[bytes]:
    """The rows after a difference; a row that goes must be there."""
    made = rows.copy()
    made.subtract(difference.removed)
    assert all(count >= 0 for count in made.values()), difference
    made.update(difference.added)
    return +made


@examples(2)
@given(st.lists(ROWS, min_size=1, max_size=12), st.sampled_from([0, 200, 1 << 16]))
def test_from_each_moment_that_it_knows_a_log_leads_to_its_rows(
    history: list[list[bytes]], spare_bytes: int
) -> None:
    """Added up, with no row both coming and going; and it knows all moments from `since` on."""
    with patch.object(change_log, "_SPARE_BYTES", spare_bytes):
        log = ChangeLog.begin(10, history[0])
        for at, rows in enumerate(history[1:], 11):
            log = log.advance(at, rows)
        last = 10 + len(history) - 1
        assert (log.as_of, Counter(log.snapshot())) == (last, Counter(history[-1]))
        assert log.changes_bytes <= 2 * sum(map(len, history[-1])) + spare_bytes
        for at, rows in enumerate(history, 10):
            found = log.changes_after(at)
            assert (found is None) == (at < log.since)
            if found is not None:
                assert not set(found.added) & set(found.removed)
                assert applied(Counter(rows), found) == Counter(history[-1])
        if spare_bytes == 1 << 16:
            assert log.since == 10, "there was room for all"


def test_a_log_does_not_know_what_was_before_it_nor_what_comes() -> None:
    """Whoever claims to hold rows of such a moment gets all rows."""
    log = ChangeLog.begin(10, [b"[1]"]).advance(12, [b"[2]"])
    assert log.changes_after(9) is None
    assert log.changes_after(13) is None
    assert log.changes_after(11) == Difference((b"[2]",), (b"[1]",))
    assert log.changes_after(12) == Difference()


def test_changes_that_nobody_makes_cost_nothing() -> None:
    """A relation at rest holds no changes, however long it is followed."""
    log = ChangeLog.begin(0, [b"[1]", b"[1]"])
    for at in range(1, 2000):
        log = log.advance(at, [b"[1]", b"[1]"])
    assert (log.changes, log.since, log.as_of) == ((), 0, 1999)
