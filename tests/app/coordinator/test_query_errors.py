"""The error of a query has one code and one hint, those of what has gone wrong."""

from __future__ import annotations

import pytest

from shardline.app.coordinator.reads import _query_error
from shardline.datasource.errors import (
    Corrupt,
    Determinate,
    InvalidUsage,
    MissingBlob,
    ShardError,
)


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
    error = _query_error(text, "")
    assert (error.code, error.detail, error.hint) == (code, detail, hint)


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        ("invalid_usage", InvalidUsage),
        ("determinate", Determinate),
        ("missing_blob", MissingBlob),
        ("corrupt", Corrupt),
        # It changes nothing, so there is nothing that may have been done.
        ("indeterminate", Determinate),
        # A runtime of a former version says no kind, one of a later version perhaps another.
        ("", Determinate),
        ("fatal", Determinate),
    ],
)
def test_an_error_is_of_the_class_that_it_had_where_it_arose(
    kind: str, made: type[ShardError]
) -> None:
    """By it a program decides whether it asks again."""
    assert type(_query_error("[A_CODE] a sentence", kind)) is made
