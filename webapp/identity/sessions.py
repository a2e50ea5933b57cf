"""Browser sessions in sealed cookies, and the state of a browser during a sign-in.

Risks: a session that an attacker prepared, a stolen cookie, or a cookie of another server or
issuer. Each sign-in creates a new session and ends the previous one. A stolen cookie works until
its session expires, or until the sign-out, which stores a row with the session's id. On loopback,
any port can read and overwrite cookies of 127.0.0.1, so a session is as private as the machine.

If the machine cannot say whose program connects, a one-time address pairs the browser, and a key
identifies the client. Others could read the key, which stands for the user who runs the server. The
key is therefore printed only in that user's terminal, and works only if the server's address is on
this machine. The address works once, for ten minutes, and needs a click, because link scanners open
links.
"""

import hmac
import re
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from flows.crypto.tokens import Claims, Purpose, Ring, Tokens
from flows.elicitation.states import Json
from flows.errors import InvalidToken
from flows.oauth.sign_in import SignedIn
from flows.origin import is_loopback
from webapp.deadline import Clock
from webapp.http.browser import cookie_name
from webapp.http.exchange import facts_of
from webapp.records.owners import SERVICE
from webapp.stores import Conflict, Record, Store
from webapp.stores.store import plain_record

IDLE_AT_MOST = timedelta(hours=8)
LIFE_AT_MOST = timedelta(days=7)
RENEWED_AFTER = timedelta(minutes=5)
SIGN_IN_AT_MOST = timedelta(minutes=10)
LOCAL_ISSUER = "local"  # for a browser that was paired with this machine's own user
ENDED = "ended session"  # the kind of the rows that record sign-outs
BACK_AT_MOST = 1000

StructT = TypeVar("StructT", bound=msgspec.Struct)
_ID_BYTES = 18
_SIGN_IN_ID = "signin"
_PATH = re.compile(r"/(?!/)[\x21\x23-\x5b\x5d-\x7e]*")


class BrowserSession(msgspec.Struct, frozen=True, kw_only=True):
    """The person who signed in in this browser. The session's `id` is random and gives no access.

    `claims` are the issuer's claims at the sign-in that are compared with the approvers' claims.
    `logout_keys` are the ids of the rows with which the issuer can end this session.
    """

    id: str
    issuer: str
    subject: str
    label: str
    signed_in_at: datetime
    seen_at: datetime
    claims: tuple[str, ...] = ()
    logout_keys: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return "BrowserSession(***)"

    @property
    def ends_at(self) -> datetime:
        return self.signed_in_at + LIFE_AT_MOST

    @property
    def expires_at(self) -> datetime:
        """The time when the session ends unless it is used."""
        return min(self.seen_at + IDLE_AT_MOST, self.ends_at)


class SignInState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a sign-in that this browser has begun, and the path to return to.

    `at` is the name of the issuer's table in the settings, "" for ELICIT_ISSUER.
    """

    kept: Json
    back: str
    at: str = ""

    def __repr__(self) -> str:
        return "SignInState(***)"


class Reports(Protocol):
    """The sign-outs that issuers have reported."""

    def keys(self, issuer: str, *, sub: str, sid: str) -> tuple[str, ...]: ...
    async def have_ended(self, session: BrowserSession) -> bool: ...


class Sessions:
    """The sessions of one public URL with its issuers.

    Without issuers, the sessions are those of paired browsers.
    """

    def __init__(
        self,
        *,
        tokens: Tokens,
        store: Store,
        public_url: str,
        issuers: Collection[str],
        clock: Clock,
        reports: Reports | None = None,
    ) -> None:
        self._is_https = urlsplit(public_url).scheme == "https"
        self.cookie_name = cookie_name(public_url, of="session")
        self.sign_in_cookie_name = cookie_name(public_url, of="signin")
        self._tokens = tokens
        self._store = store
        self._issuers = frozenset(issuers) or {LOCAL_ISSUER}
        self._clock = clock
        self._reports = reports if issuers else None

    async def of(self, cookies: Mapping[str, str]) -> BrowserSession | None:
        """Return the valid session of the browser with these cookies, or None."""
        session = self._read(cookies, self.cookie_name, Purpose.SESSION, BrowserSession)
        if session is None or session.issuer not in self._issuers:
            return None
        # The operator may have changed the limits since the expiry in the token was computed.
        if self._clock() >= session.expires_at:
            return None
        if await self._store.read(SERVICE, ENDED, session.id):
            return None
        reports = self._reports
        return None if reports is not None and await reports.have_ended(session) else session

    def named(self, cookies: Mapping[str, str]) -> str | None:
        """Return a name that identifies the browser's session, without reading the store.

        A session keeps its name after it has ended. A browser without a session has a name while
        its person signs in at the issuer.
        """
        session = self._read(cookies, self.cookie_name, Purpose.SESSION, BrowserSession)
        if session is not None:
            return f"session {session.id}"
        return (
            None
            if self.sign_in_state(cookies) is None
            else f"sign-in {cookies[self.sign_in_cookie_name][-32:]}"
        )

    async def start(
        self, signed_in: SignedIn, *, cookies: Mapping[str, str], at: datetime | None = None
    ) -> BrowserSession:
        """Return a new session that began `at`, by default now. End the browser's previous one."""
        previous = await self.of(cookies)
        if previous is not None:
            await self._end(previous)
        now, keys = at or self._clock(), tuple[str, ...]()
        if self._reports is not None:
            sub = signed_in.sub or signed_in.subject
            keys = self._reports.keys(signed_in.issuer, sub=sub, sid=signed_in.sid)
        return BrowserSession(
            id=secrets.token_urlsafe(_ID_BYTES),
            issuer=signed_in.issuer,
            subject=signed_in.subject,
            label=signed_in.label,
            signed_in_at=now,
            seen_at=now,
            claims=signed_in.claims,
            logout_keys=keys,
        )

    def set_cookie(self, session: BrowserSession) -> str:
        """Return the Set-Cookie header for the session, with the current time as its last use."""
        seen = replace(session, seen_at=self._clock())
        text = self._seal(Purpose.SESSION, seen.id, seen, expires_at=seen.expires_at)
        return self._cookie(self.cookie_name, text, life=seen.expires_at - seen.seen_at)

    def renewed(self, session: BrowserSession) -> str | None:
        """Return the Set-Cookie header that extends a session, or None if it is too early."""
        if self._clock() - session.seen_at < RENEWED_AFTER:
            return None
        return self.set_cookie(session)

    async def end(self, session: BrowserSession | None) -> str:
        """End the session, also for copies of its cookie.

        Return the Set-Cookie header that clears the cookie.
        """
        if session is not None:
            await self._end(session)
        return self._cookie(self.cookie_name, "", life=timedelta())

    def sign_in_cookie(self, attempt_data: Json, *, back: str, at: str = "") -> str:
        """Return the Set-Cookie header with the sign-in's state, before the redirect to the issuer.

        `back` is a path of this server; any other value becomes the home page.
        """
        is_path = len(back) <= BACK_AT_MOST and _PATH.fullmatch(back) is not None
        pending = SignInState(kept=attempt_data, back=back if is_path else "/", at=at)
        until = self._clock() + SIGN_IN_AT_MOST
        text = self._seal(Purpose.SIGNIN, _SIGN_IN_ID, pending, expires_at=until)
        return self._cookie(self.sign_in_cookie_name, text, life=SIGN_IN_AT_MOST)

    def sign_in_state(self, cookies: Mapping[str, str]) -> SignInState | None:
        """Return the state of the sign-in that this browser began, or None if it has expired."""
        return self._read(cookies, self.sign_in_cookie_name, Purpose.SIGNIN, SignInState)

    def clear_sign_in_cookie(self) -> str:
        """Return the Set-Cookie header that clears the state, so that it works only once."""
        return self._cookie(self.sign_in_cookie_name, "", life=timedelta())

    async def _end(self, session: BrowserSession) -> None:
        with suppress(Conflict):  # another tab has signed out too
            await self._store.write(spent(ENDED, session.id, until=session.ends_at))

    def _seal(
        self,
        purpose: Purpose,
        id: str,
        value: BrowserSession | SignInState,
        *,
        expires_at: datetime,
    ) -> str:
        rest = msgspec.json.encode(value).decode()
        claims = Claims(purpose=purpose, id=id, expires_at=expires_at, rest=rest)
        return self._tokens.mint(claims, now=self._clock())

    def _read(
        self, cookies: Mapping[str, str], name: str, purpose: Purpose, kind: type[StructT]
    ) -> StructT | None:
        if name not in cookies:
            return None
        try:
            claims = self._tokens.read(cookies[name], purpose=purpose, now=self._clock())
            return msgspec.json.decode(claims.rest, type=kind)
        # the cookie may be from another version, with other fields
        except (InvalidToken, msgspec.DecodeError):
            return None

    def _cookie(self, name: str, value: str, *, life: timedelta) -> str:
        return set_cookie(name, value, life=life, is_secure=self._is_https)


def set_cookie(name: str, value: str, *, life: timedelta, is_secure: bool) -> str:
    """Return a Set-Cookie header for the whole site, which no script can read."""
    secure = "; Secure" if is_secure else ""
    seconds = int(life.total_seconds())
    return f"{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}"


def spent(kind: str, id: str, *, until: datetime) -> Record:
    """Return a record that marks an id as ended, until the id would have expired anyway."""
    # Owned by the service: erasing a person must not make a stolen cookie valid again.
    return plain_record(SERVICE, kind, id, status="ended", erase_at=until)


# Pairing: a key and a one-time address for machines that cannot say whose program connects.

ADDRESS_LIVES = timedelta(minutes=10)
USED = "used pairing"  # the kind of the rows that record used addresses
KEY_PREFIX = "elicit_local_"


def key_of(ring: Ring) -> str:
    """Return the bearer token for an MCP client of the user who runs the server."""
    return _key(ring, ring.newest)


def address_of(tokens: Tokens, *, url: str, now: datetime) -> str:
    """Return the address that pairs a browser, once, with the user who runs the server."""
    return f"{url}/pair/{one_time_token(tokens, Purpose.PAIR, now=now)}"


def one_time_token(tokens: Tokens, purpose: Purpose, *, now: datetime) -> str:
    """Return the token of an address that `OneTimeAddresses` accepts."""
    id = secrets.token_urlsafe(_ID_BYTES)
    return tokens.mint(Claims(purpose=purpose, id=id, expires_at=now + ADDRESS_LIVES), now=now)


class OneTimeAddresses:
    """Addresses that work once, in one browser. `used` is the kind of the rows of used ones."""

    def __init__(
        self, *, tokens: Tokens, store: Store, purpose: Purpose, used: str, clock: Clock
    ) -> None:
        self._tokens = tokens
        self._store = store
        self._purpose = purpose
        self._used = used
        self._clock = clock

    async def can_use(self, token: str) -> bool:
        """Return True if the address with this token still works."""
        try:
            id = self._id_in(token)
        except InvalidToken:
            return False
        return await self._store.read(SERVICE, self._used, id) is None

    async def use(self, token: str) -> str:
        """Use the address, and return its id. Raises InvalidToken if it was used."""
        id, until = self._id_in(token), self._clock() + ADDRESS_LIVES
        try:
            await self._store.write(spent(self._used, id, until=until))
        except Conflict:
            raise InvalidToken("used") from None
        return id

    def _id_in(self, token: str) -> str:
        return self._tokens.read(token, purpose=self._purpose, now=self._clock()).id


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
        self._uid = uid
        self._addresses = OneTimeAddresses(
            tokens=tokens, store=store, purpose=Purpose.PAIR, used=USED, clock=clock
        )
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
        return self.is_possible and await self._addresses.can_use(token)

    async def use(self, token: str) -> SignedIn:
        """Use the address, and return the person of the browser.

        Raises InvalidToken if it was used.
        """
        if not self.is_possible:
            raise InvalidToken("not on this machine")
        await self._addresses.use(token)
        return SignedIn(
            issuer=LOCAL_ISSUER, subject=f"uid:{self._uid}", label="the operator of this server"
        )


def _key(ring: Ring, fingerprint: bytes) -> str:
    derived = ring.derive(fingerprint, "local key")
    return KEY_PREFIX + urlsafe_b64encode(derived).decode().rstrip("=")
