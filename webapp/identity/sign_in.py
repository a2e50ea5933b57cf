"""Signing in: the redirect to the issuer and back, and the resulting session.

Risks: a sign-in that somebody else began (login CSRF). The browser's state is therefore sealed in
its own cookie, which works once and for ten minutes. Another risk is a response to another sign-in
request. Such a response is ignored (flows.oauth.sign_in).

`Logouts` are the sign-outs at the issuer: those that it reports, and those that a person begins
here. Risks: a report ends the session of another person, or is sent twice. A report that names a
person and a session therefore ends that session only if the session is the person's. Each token
counts once: its id is stored in the same write as the sign-out. Another risk is a process that
continues to accept the session. Each process therefore reads the sign-outs in the store at each
request.
"""

import asyncio
import hmac
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlsplit

from msgspec.structs import replace

from flows.elicitation.flow import CallbackParams
from flows.errors import Failed, StoreUnavailable, Unreadable
from flows.oauth.access_token import BadBearer, issuer_in
from flows.oauth.authorization_code import Mixed
from flows.oauth.provider import Client
from flows.oauth.registered_client import RegisteredClient
from flows.oauth.sign_in import STATE_BYTES, LogoutToken, SignIn, logout_key_id, verified_logout
from webapp.deadline import Clock
from webapp.http.client import Outbound
from webapp.identity.issuer import Issuer
from webapp.identity.sessions import LIFE_AT_MOST, BrowserSession, Sessions, spent
from webapp.records.owners import SERVICE, Owners, Row
from webapp.stores import Conflict, Record
from webapp.stores.store import plain_record

LOGOUT = "logout"  # the kind of the rows that record sign-outs at the issuer
LOGOUT_TOKEN = "logout token"  # noqa: S105 - the kind of the rows that record used tokens
ID_TOKEN = "id token"  # noqa: S105 - the kind of the rows with the ID tokens of sessions
ID_TOKEN_CHARACTERS_AT_MOST = 16 * 1024
_TRIES = 5


class Logouts:
    """The sign-outs at the issuers, and the ID tokens with which sessions end there."""

    def __init__(self, owners: Owners, *, clock: Clock) -> None:
        self._owners = owners
        self._store = owners.store
        self._tag = owners.pepper.tag
        self._clock = clock

    def keys(self, issuer: str, *, sub: str, sid: str) -> tuple[str, ...]:
        """Return the ids of the rows that end a session with these claims, the person's row first.

        A session without `sid` also ends if a report names another session of its person.
        """
        of_session = [self._of_session(issuer, sid, named) for named in (sub, "") if sid or named]
        return (self._of_person(issuer, sub), *of_session)

    async def have_ended(self, session: BrowserSession) -> bool:
        """Return True if the issuer has reported that this session ended."""
        # Sessions of earlier versions have no keys.
        keys = session.logout_keys or self.keys(session.issuer, sub=session.subject, sid="")
        reads = [self._store.read(SERVICE, LOGOUT, key) for key in keys]
        found = [record for record in await asyncio.gather(*reads) if record is not None]
        return any([session.signed_in_at <= await self._ended_at(record) for record in found])

    async def record(self, token: LogoutToken) -> None:
        """End the sessions that the token names, in all processes.

        Raises:
            BadBearer: The token was used before.
            StoreUnavailable: Nothing was written.
        """
        issuer, sub, sid = token.issuer, token.sub, token.sid
        keys = [self._of_session(issuer, sid, sub)] if sid else [self._of_person(issuer, sub)]
        if sid and sub:
            keys.append(self._of_session(issuer, "", sub))
        used = self._tag("logout token", issuer, token.jti)
        for _ in range(_TRIES):
            if await self._store.read(SERVICE, LOGOUT_TOKEN, used) is not None:
                raise BadBearer("replay", expected="a jti that was not used before")
            rows = [await self._ended_now(key) for key in keys]
            with suppress(Conflict):
                await self._store.write(spent(LOGOUT_TOKEN, used, until=token.until), *rows)
                return
        raise StoreUnavailable("other requests keep changing the rows of this sign-out")

    async def store_id_token(self, session: BrowserSession, id_token: str) -> None:
        """Store the ID token, so that the issuer can end its session without asking the person."""
        if not 0 < len(id_token) <= ID_TOKEN_CHARACTERS_AT_MOST:
            return
        with suppress(Conflict, StoreUnavailable):  # the issuer then asks the person
            await self._store.write(await self._id_token_row(session, id_token.encode(), 0))

    async def take_id_token(self, session: BrowserSession) -> str | None:
        """Return the session's ID token and delete it, or return None if there is none."""
        owner, id = self._id_of(session)
        with suppress(Conflict, StoreUnavailable, Unreadable):
            record = await self._store.read(owner, ID_TOKEN, id)
            if record is None or record.status != "stored":
                return None
            text = (await self._owners.locker(owner)).open(_row(record), record.sealed).decode()
            now, empty = self._clock(), await self._id_token_row(session, b"", record.version)
            await self._store.write(replace(empty, status="used", erase_at=now))
            return text
        return None

    async def _id_token_row(self, session: BrowserSession, text: bytes, version: int) -> Record:
        owner, id = self._id_of(session)
        row = Row(owner=owner, kind=ID_TOKEN, id=id, version=version + 1)
        sealed = (await self._owners.locker(owner)).seal(row, text)
        return plain_record(
            owner,
            ID_TOKEN,
            id,
            status="stored",
            erase_at=session.ends_at,
            version=version,
            sealed=sealed,
        )

    def _id_of(self, session: BrowserSession) -> tuple[str, str]:
        owner = self._owners.tag(issuer=session.issuer, subject=session.subject)
        return owner, owner + self._tag("id token", session.id)

    async def _ended_now(self, key: str) -> Record:
        """Return the row that ends the sessions of this key, which replaces an earlier row."""
        now, before = self._clock(), await self._store.read(SERVICE, LOGOUT, key)
        version = 0 if before is None else before.version
        row = Row(owner=SERVICE, kind=LOGOUT, id=key, version=version + 1)
        sealed = (await self._owners.locker(SERVICE)).seal(row, now.isoformat().encode())
        record = spent(LOGOUT, key, until=now + LIFE_AT_MOST)
        return replace(record, version=version, sealed=sealed)

    async def _ended_at(self, record: Record) -> datetime:
        """Return when the sessions of this row ended. An unreadable row ends all of them."""
        try:
            locker = await self._owners.locker(SERVICE)
            return datetime.fromisoformat(locker.open(_row(record), record.sealed).decode())
        except (Unreadable, ValueError):
            return datetime.max.replace(tzinfo=UTC)

    def _of_person(self, issuer: str, sub: str) -> str:
        return self._tag("logout", "person", issuer, sub)

    def _of_session(self, issuer: str, sid: str, sub: str) -> str:
        return self._tag("logout", "session", issuer, sid, sub)


def _row(record: Record) -> Row:
    return Row(owner=record.owner, kind=record.kind, id=record.id, version=record.version)


# Sign-ins.

CALLBACK_PATH = "/signin/callback"
LOGOUT_PATH = "/signin/logout"
SIGNED_OUT_PATH = "/signout/done"
_SIGNED_OUT = "signed out"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInRedirect:
    """The address to which the browser is redirected, and the cookie with the sign-in's state."""

    url: str
    cookie: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInResult:
    """The path where the browser continues, the cookies to set, and the new session."""

    path: str
    cookies: tuple[str, ...]
    session: BrowserSession


@dataclass(frozen=True, slots=True, kw_only=True)
class EndSession:
    """The form with which the browser ends the session at its issuer, and the cookie to set."""

    url: str
    issuer: str
    fields: Sequence[tuple[str, str]]
    cookie: str


class SignInPlace:
    """An issuer where people can sign in. `name` is its table in the settings, "" for the first.

    Each issuer has a redirect address of its own, so that no other issuer can answer for it.
    """

    def __init__(
        self,
        *,
        name: str = "",
        issuer: Issuer,
        client: Client,
        claim: tuple[str, ...],
        scopes: tuple[str, ...] = (),
        wanted: frozenset[tuple[str, str]] = frozenset(),
        public_url: str,
    ) -> None:
        self.name = name
        self.label = client.provider.label
        self.site = urlsplit(issuer.url).netloc
        self.issuer = issuer
        self.client = client
        redirect_uri = public_url.rstrip("/") + named_path(CALLBACK_PATH, name)
        self.registration = RegisteredClient(
            client=client, redirect_uri=redirect_uri, claim=claim, table=name
        )
        self.flow = SignIn(
            client=client,
            redirect_uri=redirect_uri,
            claim=claim,
            scopes=scopes,
            wanted=wanted,
        )


class SigningIn:
    """The sign-in at the issuers of this server, by the names of their tables."""

    def __init__(
        self,
        places: Sequence[SignInPlace],
        *,
        outbound: Outbound,
        sessions: Sessions,
        logouts: Logouts,
        public_url: str,
        clock: Clock,
    ) -> None:
        self.places: Mapping[str, SignInPlace] = {place.name: place for place in places}
        # Browsers apply `form-action` to every redirect that follows a form.
        is_https = all(place.issuer.url.startswith("https:") for place in places)
        self.form_targets = ("https:",) if is_https else ("http:", "https:")
        self._outbound = outbound
        self._sessions = sessions
        self._logouts = logouts
        self._signed_out_url = public_url.rstrip("/") + SIGNED_OUT_PATH
        self._clock = clock

    async def begin(self, *, at: str, back: str, switches: bool) -> SignInRedirect:
        """Start a sign-in. Raises Failed if the issuer refuses or does not answer."""
        place = self.places[at]
        metadata = await place.issuer.metadata()
        talk = place.flow.begin(metadata, now=self._clock(), switches=switches)
        departure = await self._outbound.run(talk)
        cookie = self._sessions.sign_in_cookie(departure.attempt_data, back=back, at=at)
        return SignInRedirect(url=departure.url, cookie=cookie)

    def back_of(self, cookies: Mapping[str, str]) -> str:
        """Return the path to which this browser wanted to go, or "/"."""
        pending = self._sessions.sign_in_state(cookies)
        return "/" if pending is None else pending.back

    def label_of(self, issuer: str) -> str | None:
        """Return the label of the place to sign in with this issuer, or None if there is none."""
        place = self._place_of(issuer)
        return None if place is None else place.label

    def _place_of(self, issuer: str) -> SignInPlace | None:
        places = self.places.values()
        return next((each for each in places if issuer in each.issuer.provider.issuers), None)

    async def finish(
        self, arrival: CallbackParams, cookies: Mapping[str, str], *, at: str
    ) -> SignInResult:
        """Complete a sign-in. `at` is the issuer whose redirect address was called.

        Raises Mixed if the response belongs to another sign-in request, Denied, or Failed.
        """
        pending = self._sessions.sign_in_state(cookies)
        if pending is None:
            raise Mixed("this browser has no pending sign-in")
        if pending.at != at:
            raise Mixed("another issuer answers")
        place, began = self.places[at], self._clock()
        metadata = await place.issuer.metadata()
        talk = place.flow.finish(
            arrival, attempt_data=pending.kept, metadata=metadata, now=self._clock()
        )
        signed_in = await self._outbound.run(talk)
        # A sign-out that the issuer reports during the exchange ends this session too.
        session = await self._sessions.start(signed_in, cookies=cookies, at=began)
        if metadata.end_session is not None:
            await self._logouts.store_id_token(session, signed_in.id_token)
        cookies_set = (self._sessions.set_cookie(session), self._sessions.clear_sign_in_cookie())
        return SignInResult(path=pending.back, cookies=cookies_set, session=session)

    async def end_session(self, session: BrowserSession) -> EndSession | None:
        """Return the form that ends this session at its issuer, or None if the issuer has none."""
        place = self._place_of(session.issuer)
        if place is None:
            return None
        try:
            url = (await place.issuer.metadata()).end_session
        except Failed:
            return None
        if url is None:
            return None
        state = secrets.token_urlsafe(STATE_BYTES)
        return EndSession(
            url=url,
            issuer=place.label,
            fields=place.flow.end_session(
                await self._logouts.take_id_token(session),
                state=state,
                redirect_uri=self._signed_out_url,
            ),
            cookie=self._sessions.sign_in_cookie({_SIGNED_OUT: state}, back="/", at=place.name),
        )

    def has_ended(self, arrival: CallbackParams, cookies: Mapping[str, str]) -> bool:
        """Return True if the browser returns from the issuer where it ended its session."""
        pending = self._sessions.sign_in_state(cookies)
        stored = None if pending is None else pending.kept
        sent = [value for name, value in arrival.parameters if name == "state"]
        if not isinstance(stored, dict) or _SIGNED_OUT not in stored or len(sent) != 1:
            return False
        return hmac.compare_digest(
            sent[0].encode("utf-8", "replace"), str(stored[_SIGNED_OUT]).encode()
        )

    async def receive_logout(self, token: str, *, at: str) -> None:
        """End the sessions that a logout token names. `at` is the issuer whose address was called.

        Raises:
            BadBearer: The token is not a valid logout token of this issuer.
            Failed: The issuer's keys are not available.
            StoreUnavailable: The sign-out could not be stored.
        """
        place = self.places[at]
        provider = place.issuer.provider
        key_id, issuer = logout_key_id(token, provider), issuer_in(token)
        if issuer is None or issuer not in provider.issuers:
            raise BadBearer("issuer", expected=[*provider.issuers])
        keys = provider.keys_from(await place.issuer.keys(key_id), issuer=issuer)
        now = self._clock()
        await self._logouts.record(
            verified_logout(token, client=place.client, issuer=issuer, keys=keys, now=now)
        )


def named_path(path: str, name: str) -> str:
    """Return the path for the issuer of this name, which is "" for the first one."""
    return f"{path}/{name}" if name else path
