"""Helpers that sign browsers in and return their cookies."""

from collections.abc import Mapping
from http.cookies import SimpleCookie
from typing import Any

from flows.crypto.tokens import Ring, Tokens
from flows.oauth.sign_in import SignedIn
from tests.support.clock import Clock
from webapp.identity.sessions import Sessions

RING = Ring([b"a secret of the tests, 32 bytes!"])
ISSUER = "https://login.example"
ALICE = SignedIn(issuer=ISSUER, subject="alice", label="Alice")
URL = "https://tools.example"
LOCAL = "http://127.0.0.1:8765"
ATTEMPT_DATA = {"state": "s" * 22, "nonce": "n" * 32, "verifier": "v" * 86}


def sessions_of(store: Any, clock: Clock, **changes: Any) -> Sessions:
    url = changes.get("public_url", URL)
    parts: dict[str, Any] = {
        "tokens": Tokens(changes.pop("ring", RING), origin=url),
        "store": store,
        "public_url": url,
        "issuers": (ISSUER,),
        "clock": clock,
        **changes,
    }
    return Sessions(**parts)


def jar(*set_cookies: str) -> dict[str, str]:
    """Return the cookies that a browser sends after these Set-Cookie headers."""
    stored: dict[str, str] = {}
    for header in set_cookies:
        for name, morsel in SimpleCookie(header).items():
            if morsel["max-age"] == "0":
                stored.pop(name, None)
            else:
                stored[name] = morsel.value
    return stored


async def signed_in(
    sessions: Sessions, who: SignedIn = ALICE, *, cookies: Mapping[str, str] | None = None
) -> dict[str, str]:
    session = await sessions.start(who, cookies=cookies or {})
    return jar(sessions.set_cookie(session))
