"""Who is signed in on our pages, by a sealed cookie; and what a browser keeps while it signs in.

What could go wrong: a session that somebody else fixed beforehand (each sign-in makes a new one
and ends the one before), a cookie that was stolen (it dies at sign-out, by a row in the store, and
after its limits), one of another server or issuer. On loopback any port can read and overwrite
the cookies of 127.0.0.1: a session there is as private as the machine.
"""

import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from flows.crypto.tokens import Claims, Purpose, Tokens
from flows.elicitation.states import Json
from flows.errors import InvalidToken
from flows.oauth.sign_in import SignedIn
from webapp.deadline import Clock
from webapp.http.browser import cookie_name
from webapp.records.owners import SERVICE
from webapp.stores import Conflict, Record, Store

IDLE_AT_MOST = timedelta(hours=8)
LIFE_AT_MOST = timedelta(days=7)
RENEWED_AFTER = timedelta(minutes=5)
SIGN_IN_AT_MOST = timedelta(minutes=10)
LOCAL_ISSUER = "local"  # of a browser that was paired with whoever runs the server
ENDED = "ended session"  # the kind of the rows that outlive a sign-out
BACK_AT_MOST = 1000

StructT = TypeVar("StructT", bound=msgspec.Struct)
_ID_BYTES = 18
_SIGN_IN_ID = "signin"
_PATH = re.compile(r"/(?!/)[\x21\x23-\x5b\x5d-\x7e]*")


class BrowserSession(msgspec.Struct, frozen=True, kw_only=True):
    """Who signed in in this browser; the id says nothing and opens nothing.

    `claims` are what the issuer said of them then, as far as approvers go by it.
    """

    id: str
    issuer: str
    subject: str
    label: str
    signed_in_at: datetime
    seen_at: datetime
    claims: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return "Session(***)"

    @property
    def ends_at(self) -> datetime:
        return self.signed_in_at + LIFE_AT_MOST

    @property
    def expires_at(self) -> datetime:
        """When it ends unless it is used before that."""
        return min(self.seen_at + IDLE_AT_MOST, self.ends_at)


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """With what this browser left to sign in, and the path where it goes on afterwards."""

    kept: Json
    back: str

    def __repr__(self) -> str:
        return "Left(***)"


class Sessions:
    """The sessions of one public URL with the one issuer where its people sign in.

    Without an issuer they are of browsers that were paired.
    """

    def __init__(
        self, *, tokens: Tokens, store: Store, public_url: str, issuer: str | None, clock: Clock
    ) -> None:
        self._is_https = urlsplit(public_url).scheme == "https"
        self.cookie_name = cookie_name(public_url, of="session")
        self.leaving_name = cookie_name(public_url, of="signin")
        self._tokens = tokens
        self._store = store
        self._issuer = issuer or LOCAL_ISSUER
        self._clock = clock

    async def of(self, cookies: Mapping[str, str]) -> BrowserSession | None:
        """The session of the browser with these cookies, if it has one that still holds."""
        session = self._read(cookies, self.cookie_name, Purpose.SESSION, BrowserSession)
        if session is None or session.issuer != self._issuer:
            return None
        # What the token says of its own end was reckoned by the limits of that day.
        if self._clock() >= session.expires_at:
            return None
        return None if await self._store.read(SERVICE, ENDED, session.id) else session

    def named(self, cookies: Mapping[str, str]) -> str | None:
        """Return what tells the browser's session from others, without a look into the store.

        A session that was ended still has its name. So has a browser that is on its way back from
        a sign-in, until it is back.
        """
        session = self._read(cookies, self.cookie_name, Purpose.SESSION, BrowserSession)
        if session is not None:
            return f"session {session.id}"
        return None if self.left(cookies) is None else f"sign-in {cookies[self.leaving_name][-32:]}"

    async def start(self, signed_in: SignedIn, *, cookies: Mapping[str, str]) -> BrowserSession:
        """A new session; whatever session the browser had before ends."""
        former = await self.of(cookies)
        if former is not None:
            await self._end(former)
        now = self._clock()
        return BrowserSession(
            id=secrets.token_urlsafe(_ID_BYTES),
            issuer=signed_in.issuer,
            subject=signed_in.subject,
            label=signed_in.label,
            signed_in_at=now,
            seen_at=now,
            claims=signed_in.claims,
        )

    def set_cookie(self, session: BrowserSession) -> str:
        """The whole Set-Cookie header, as seen now."""
        seen = replace(session, seen_at=self._clock())
        text = self._seal(Purpose.SESSION, seen.id, seen, expires_at=seen.expires_at)
        return self._cookie(self.cookie_name, text, life=seen.expires_at - seen.seen_at)

    def renewed(self, session: BrowserSession) -> str | None:
        """The Set-Cookie header that keeps a session in use from going idle; None if too early."""
        if self._clock() - session.seen_at < RENEWED_AFTER:
            return None
        return self.set_cookie(session)

    async def end(self, session: BrowserSession | None) -> str:
        """Sign out: the Set-Cookie header that clears it; every copy of the cookie is dead too."""
        if session is not None:
            await self._end(session)
        return self._cookie(self.cookie_name, "", life=timedelta())

    def leave(self, kept: Json, *, back: str) -> str:
        """The Set-Cookie header for the way to the issuer; `back` is a path of ours, else home."""
        is_ours = len(back) <= BACK_AT_MOST and _PATH.fullmatch(back) is not None
        left = Left(kept=kept, back=back if is_ours else "/")
        until = self._clock() + SIGN_IN_AT_MOST
        text = self._seal(Purpose.SIGNIN, _SIGN_IN_ID, left, expires_at=until)
        return self._cookie(self.leaving_name, text, life=SIGN_IN_AT_MOST)

    def left(self, cookies: Mapping[str, str]) -> Left | None:
        """With what this browser left; None if it did not, or too long ago."""
        return self._read(cookies, self.leaving_name, Purpose.SIGNIN, Left)

    def forget_leaving(self) -> str:
        """The Set-Cookie header for a browser that is back: it may come back once."""
        return self._cookie(self.leaving_name, "", life=timedelta())

    async def _end(self, session: BrowserSession) -> None:
        with suppress(Conflict):  # signed out in two tabs
            await self._store.write(spent(ENDED, session.id, until=session.ends_at))

    def _seal(
        self, purpose: Purpose, id: str, value: BrowserSession | Left, *, expires_at: datetime
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
        except (InvalidToken, msgspec.DecodeError):  # another version's has other fields
            return None

    def _cookie(self, name: str, value: str, *, life: timedelta) -> str:
        secure = "; Secure" if self._is_https else ""
        return (
            f"{name}={value}; Path=/; Max-Age={int(life.total_seconds())}; "
            f"HttpOnly; SameSite=Lax{secure}"
        )


def spent(kind: str, id: str, *, until: datetime) -> Record:
    """That something is over, noted until it would be over by itself."""
    return Record(
        # Nobody's in particular: erasing a person must not bring a stolen cookie back to life.
        owner=SERVICE,
        kind=kind,
        id=id,
        status="ended",
        key=None,
        due_at=None,
        erase_at=until,
        version=0,
        sealed=b"",
    )
