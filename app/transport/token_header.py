"""The token header carries an application's token, which may have any letters, in bytes of UTF-8.

Libraries write each character of a header as one byte, and read each byte as one character
(Latin-1). As it is, a token outside of ASCII would arrive as another one, or could not be sent.
"""

from __future__ import annotations

import hmac

__all__ = ["is_token", "token_header"]


def token_header(token: str) -> dict[str, str]:
    """The header of a request that brings `token`, as a library takes it; none without a token."""
    return {"Authorization": f"Bearer {token.encode().decode('latin-1')}"} if token else {}


def is_token(given: str, token: str) -> bool:
    """True if a header's token, as a library gives it, is this one."""
    return hmac.compare_digest(given.encode("latin-1"), token.encode())
