"""Errors of a query: those that are data, told from all others."""

from __future__ import annotations

import pytest

from shardline.app.compute.errors import data_error_text

ZERO = (
    '[DIVIDE_BY_ZERO] Division by zero. Use `try_divide`.\nSet "x". SQLSTATE: 22012\n'
    "== SQL (line 1, position 8) ==\nselect 1/x y from t\n"
)
BYPASS = ' If necessary set "spark.sql.ansi.enabled" to "false" to bypass this error.'


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (ZERO, '[DIVIDE_BY_ZERO] Division by zero. Use `try_divide`. Set "x".'),
        (
            f"[DIVIDE_BY_ZERO] Division by zero. Use `try_divide`.{BYPASS} SQLSTATE: 22012",
            "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide`.",
        ),
        (f"Job aborted.\n\tat x.y(z.java:1)\nCaused by: S: {ZERO}", None),
        ("[SCALAR_SUBQUERY_TOO_MANY_ROWS] More than one row. SQLSTATE: 21000", None),
        ("[USER_RAISED_EXCEPTION] no such city SQLSTATE: P0001", None),
        ("[DUPLICATED_MAP_KEY] Duplicate map key 1. SQLSTATE: 23505", None),
        ("[COLLECTION_SIZE_LIMIT_EXCEEDED.PARAMETER] too many. SQLSTATE: 54000", None),
        ("[FAILED_EXECUTE_UDF] failed due to: a.Unlucky: 13. SQLSTATE: 39000", None),
        ("[CAST_INVALID_INPUT] " + "x" * 5000 + " SQLSTATE: 22018", None),
    ],
)
def test_errors_about_rows_are_kept(text: str, kept: str | None) -> None:
    """The condition and its sentence are kept, without place and stack, and not for ever long."""
    found = data_error_text(RuntimeError(text))
    assert found is not None
    assert kept is None or found == kept
    assert "SQLSTATE" not in found
    assert "\n" not in found
    assert len(found) <= 1000


@pytest.mark.parametrize(
    "text",
    [
        "[UNRESOLVED_COLUMN] no column x. SQLSTATE: 42703",
        "[FAILED_READ_FILE.NO_HINT] a file is gone. SQLSTATE: KD001",
        "[USER_RAISED_EXCEPTION] [NEGATIVE_MULTIPLICITY] a row was removed SQLSTATE: P0001",
        "[FAILED_EXECUTE_UDF] failed due to: java.io.IOException: no disk. SQLSTATE: 39000",
        "[DUPLICATE_KEY] a clause is there twice. SQLSTATE: 23505",
        "no condition at all",
        "[STORE_UNAVAILABLE] the store did not answer — hint: try again",
    ],
)
def test_other_errors_are_not_data(text: str) -> None:
    """What is wrong with the query, the store or a shard says nothing about rows."""
    assert data_error_text(RuntimeError(text)) is None
