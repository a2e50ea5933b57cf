"""Pairing: a key and a one-time address for machines that cannot say whose program connects.

Risks: others read the key, which stands for the user who runs the server. The key is therefore
printed only in that user's terminal, and works only if the server's address is on this machine. The
address works once, for ten minutes, and needs a click, because link scanners open links.
"""

import hmac
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from flows.crypto.tokens import Claims, Purpose, Ring, Tokens
from flows.errors import InvalidToken
from flows.oauth.sign_in import SignedIn
from flows.origin import is_loopback
from webapp.deadline import Clock
from webapp.http.exchange import facts_of
from webapp.identity.sessions import LOCAL_ISSUER, spent
from webapp.records.owners import SERVICE
from webapp.stores import Conflict, Store

ADDRESS_LIVES = timedelta(minutes=10)
USED = "used pairing"  # the kind of the rows that record used addresses
KEY_PREFIX = "elicit_local_"
_ID_BYTES = 18


def key_of(ring: Ring) -> str:
    """Return the bearer token for an MCP client of the user who runs the server."""
    return _key(ring, ring.newest)


def address_of(tokens: Tokens, *, url: str, now: datetime) -> str:
    """Return the address that pairs a browser, once, with the user who runs the server."""
    id = secrets.token_urlsafe(_ID_BYTES)
    claims = Claims(purpose=Purpose.PAIR, id=id, expires_at=now + ADDRESS_LIVES)
    return f"{url}/pair/{tokens.mint(claims, now=now)}"


class Pairing:
    """The pairing of one public URL. `uid` is the user who runs the server.

    If people sign in at an issuer, no pairing is possible.
    """

    def __init__(
        self,
        *,
        ring: Ring,
        tokens: Tokens,
        store: Store,
        public_url: str,
        uid: int,
        clock: Clock,
        people_sign_in: bool = False,
    ) -> None:
        self._ring = ring
        self._tokens = tokens
        self._store = store
        self._uid = uid
        self._clock = clock
        self.is_possible = not people_sign_in and is_loopback(urlsplit(public_url).hostname or "")

    def has_key(self, scope: Mapping[str, Any]) -> bool:
        headers = facts_of(scope).headers.get(b"authorization", [])
        scheme, _, given = headers[0].partition(" ") if len(headers) == 1 else ("", "", "")
        if scheme.lower() != "bearer":
            return False
        sent = given.strip().encode("utf-8", "replace")
        expected = [_key(self._ring, each).encode() for each in self._ring.fingerprints]
        return any(hmac.compare_digest(sent, each) for each in expected)

    async def can_use(self, token: str) -> bool:
        """Return True if the address still works."""
        try:
            id = self._read(token)
        except InvalidToken:
            return False
        return await self._store.read(SERVICE, USED, id) is None

    async def use(self, token: str) -> SignedIn:
        """Use the address, and return the person of the browser.

        Raises InvalidToken if it was used.
        """
        id = self._read(token)
        try:
            await self._store.write(spent(USED, id, until=self._clock() + ADDRESS_LIVES))
        except Conflict:
            raise InvalidToken("used") from None
        return SignedIn(
            issuer=LOCAL_ISSUER, subject=f"uid:{self._uid}", label="the operator of this server"
        )

    def _read(self, token: str) -> str:
        if not self.is_possible:
            raise InvalidToken("not on this machine")
        return self._tokens.read(token, purpose=Purpose.PAIR, now=self._clock()).id


def _key(ring: Ring, fingerprint: bytes) -> str:
    derived = ring.derive(fingerprint, "local key")
    return KEY_PREFIX + urlsafe_b64encode(derived).decode().rstrip("=")
