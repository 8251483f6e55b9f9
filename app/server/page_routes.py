"""The page routes serve the page: its document under the address of each screen, and its files.

    routes = page_routes()
    page_not_found(request)    the document, which says so, if a person has asked

All files are read once in a process: what is served is what the package has, whatever a request
asks for. They say nothing about the data, so everybody may have them; what the page then asks for
is protected as for any other client.

Invariants:
    The document's policy lets a browser run our files and nothing else: no inline script or style,
        no other site, no text as markup.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from shardline.app.server.access import PAGE_FILES, SCREENS, error_response
from shardline.app.server.any_text import ANY_TEXT

__all__ = ["page_not_found", "page_routes"]

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types lit-html layout"
)

_DOCUMENT: Final = "page.html"
_SMALL_BYTES: Final = 1 << 10
"""Files below are sent as they are: compressed they would still take one packet."""


@dataclass(frozen=True)
class _File:
    """A file of the page.

    Attributes:
        content: As it is.
        media_type: Of the content.
        tag: Changes with the content.
    """

    content: bytes
    media_type: str
    tag: str

    @cached_property
    def packed(self) -> bytes:
        """The content compressed by gzip; empty if that is not worth it."""
        # When it is first asked for: all files take a third of a second, which no start waits for.
        if len(self.content) <= _SMALL_BYTES:
            return b""
        return gzip.compress(self.content, 9, mtime=0)


def page_routes() -> list[BaseRoute]:
    """Make the routes of the page."""
    files = _read_files()

    async def document(request: Request) -> Response:
        return _document(request)

    async def file(request: Request) -> Response:
        found = files.get(request.path_params["file"])
        if found is None:
            return error_response(404, "NOT_FOUND", "the page has no such file", "")
        return _answer(found, request)

    screens = [
        Route(f"/{kind}{rest}", document)
        for kind in sorted(SCREENS)
        for rest in ("", f"/{{name:{ANY_TEXT}}}")
    ]
    return [Route("/", document), *screens, Route(f"/{PAGE_FILES}/{{file:path}}", file)]


def page_not_found(request: Request) -> Response | None:
    """The answer to a browser's request for an address that is none; None if a program has asked.

    What is below `/api` is for programs, whoever asks.
    """
    wants_page = "text/html" in request.headers.get("accept", "")
    is_page = request.method in {"GET", "HEAD"} and not request.url.path.startswith("/api/")
    return _document(request, 404) if wants_page and is_page else None


def _document(request: Request, status: int = 200) -> Response:
    answer = _answer(_read_files()[_DOCUMENT], request, status)
    answer.headers["content-security-policy"] = _POLICY
    answer.headers["referrer-policy"] = "no-referrer"
    return answer


@cache
def _read_files() -> dict[str, _File]:
    found: dict[str, _File] = {}

    def read(folder: Traversable, before: str) -> None:
        for entry in folder.iterdir():
            if entry.is_dir():
                read(entry, f"{before}{entry.name}/")
            elif not entry.name.startswith("."):
                found[before + entry.name] = _file(entry.name, entry.read_bytes())

    read(resources.files("shardline.app.server") / "page", "")
    return found


def _file(name: str, content: bytes) -> _File:
    kind, _ = mimetypes.guess_type(name)
    kind = {"js": "text/javascript"}.get(name.rpartition(".")[2], kind or "text/plain")
    return _File(content, kind, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def _answer(file: _File, request: Request, status: int = 200) -> Response:
    # Asked for at each visit, and sent only if it has changed: no file of an older version stays.
    headers = {"cache-control": "no-cache", "etag": file.tag, "vary": "accept-encoding"}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", "") and file.packed:
        headers["content-encoding"] = "gzip"
        return Response(file.packed, status, headers, file.media_type)
    return Response(file.content, status, headers, file.media_type)
