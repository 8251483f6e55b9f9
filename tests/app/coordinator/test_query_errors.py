"""The error of a query has one code and one hint, those of what has gone wrong."""

from __future__ import annotations

import pytest

from shardline.app.coordinator.reads import _query_error


@pytest.mark.parametrize(
    ("text", "code", "detail", "hint"),
    [
        (
            "[HISTORY_GONE] its since\nis 9 — hint: AS OF 9",
            "HISTORY_GONE",
            "its since\nis 9",
            "AS OF 9",
        ),
        ("[A.B_2] no hint", "A.B_2", "no hint", ""),
        ("the query was cancelled", "QUERY_FAILED", "the query was cancelled", ""),
    ],
)
def test_an_error_is_told_once(text: str, code: str, detail: str, hint: str) -> None:
    """Not wrapped in another one that says to look above."""
    error = _query_error(text)
    assert (error.code, error.detail, error.hint) == (code, detail, hint)
