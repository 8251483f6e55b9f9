"""The rest of a path is any text: names have slashes, spaces and line ends.

    Route(f"/api/v1/objects/{{name:{ANY_TEXT}}}", handler)

Starlette's own convertor `path` ends at the end of a line, and its route is not found then.
"""

from __future__ import annotations

from typing import Final

from starlette.convertors import PathConvertor, register_url_convertor

__all__ = ["ANY_TEXT"]

ANY_TEXT: Final = "any_text"
"""Name of the convertor."""


class _AnyText(PathConvertor):
    regex = "(?s:.*)"


register_url_convertor(ANY_TEXT, _AnyText())
