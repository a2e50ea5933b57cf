"""Sign-outs at the issuer: those that it reports, and those that a person begins here.

Risks: a report ends the session of another person, or is sent twice. A report that names a person
and a session therefore ends that session only if it is the person's, and each token counts once:
its id is stored in the same write as the sign-out. Or another process continues to accept the
session. Each process therefore reads the sign-outs in the store at each request.
"""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime

from msgspec.structs import replace

from flows.errors import StoreUnavailable, Unreadable
from flows.oauth.access_token import BadBearer
from flows.oauth.sign_in import LogoutToken
from webapp.deadline import Clock
from webapp.identity.sessions import LIFE_AT_MOST, BrowserSession, spent
from webapp.records.owners import SERVICE, Owners, Row
from webapp.stores import Conflict, Record

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
        """Return the ids of the rows that end a session with these claims, its person's first.

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
        """Store the session's ID token, with which the issuer ends its session without asking."""
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
        return Record(
            owner=owner,
            kind=ID_TOKEN,
            id=id,
            status="stored",
            key=None,
            due_at=None,
            erase_at=session.ends_at,
            version=version,
            sealed=(await self._owners.locker(owner)).seal(row, text),
        )

    def _id_of(self, session: BrowserSession) -> tuple[str, str]:
        owner = self._owners.tag(issuer=session.issuer, subject=session.subject)
        return owner, owner + self._tag("id token", session.id)

    async def _ended_now(self, key: str) -> Record:
        """Return the row that ends the sessions of this key, in place of an earlier one."""
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
