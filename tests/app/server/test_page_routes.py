"""The page's document over a real socket: who is told by it that there is nothing."""

from __future__ import annotations

import pytest

from support.fakes.json_interface import JSON, Site

pytestmark = pytest.mark.server


@pytest.mark.parametrize(
    ("method", "path", "accept", "is_page"),
    [
        ("GET", "/nowhere", "text/html,application/xhtml+xml,*/*;q=0.8", True),
        ("GET", "/nowhere/at/all", "text/html", True),
        ("GET", "/nowhere", "*/*", False),
        ("GET", "/api/v1/nowhere", "text/html", False),
        ("POST", "/nowhere", "text/html", False),
    ],
)
def test_what_is_not_there_is_told_to_people_by_the_page(
    site: Site, method: str, path: str, accept: str, is_page: bool
) -> None:
    """To programs as any other error."""
    body: dict[str, str] | None = {} if method == "POST" else None
    status, answer = site.ask(method, path, body, {**JSON, "accept": accept})
    assert status == 404
    if is_page:
        assert answer.startswith("<!doctype html>")
    else:
        assert answer["error"]["code"] == "NOT_FOUND"
