"""API keys: the credentials of programs that ask or answer over the HTTP API.

Risks: a key leaks. The store therefore has only a keyed hash of it, and the key is shown once. A
key expires, and a revoked key stops at once, because the store is read at each request. Scanners of
repositories find a key by its prefix. The checksum in a key lets scanners (and this server, without
a query to the store) recognize that a text is a key. Another risk is a key that answers its own
question: the scopes of a key allow only asking or answering. Scopes that move money or show an
account's access token are separate.
"""

import re
import secrets
import string
from collections.abc import Collection
from contextlib import suppress
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final
from zlib import crc32

from msgspec.structs import replace

from flows.errors import ElicitError
from webapp.elicitations.service import Elicitations
from webapp.identity.users import is_user_id
from webapp.records.ids import tail_of
from webapp.records.owners import SERVICE
from webapp.records.values import KINDS, ApiKey
from webapp.stores import Conflict, Record

PREFIX: Final = "elicit_key_"
KEY_RETENTION: Final = timedelta(days=30)  # lists show a key for this long after its end
USE_NOTED_EVERY: Final = timedelta(minutes=1)
_LISTED_EVERY: Final = timedelta(seconds=0.25)  # creating a key takes longer
_CHARACTERS: Final = string.ascii_letters + string.digits
_RANDOM_CHARACTERS: Final = 40  # 238 random bits
_CHECKSUM_CHARACTERS: Final = 6
_TEXT = re.compile(rf"{PREFIX}([A-Za-z0-9]{{{_RANDOM_CHARACTERS + _CHECKSUM_CHARACTERS}}})")
_PROGRAM = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")


class KeyScope(StrEnum):
    """The permission of a key. Each value is a word for `--scopes`."""

    ASK = "ask"  # ask questions, read and cancel the key's own questions, and use the results
    TOKENS = "tokens"  # read the access token of an account; needs `ask`
    REFUND = "refund"  # refund payments; needs `ask`
    IMPORT = "import"  # store accounts that users connected in another product
    APPROVE = "approve"  # answer forms and confirmations of the owners that the key names
    OPERATE = "operate"  # read webhooks and events, and process or send them again


_ALONE: Final = {
    KeyScope.APPROVE: (
        "a key with the scope approve can have no other scope, or its program could answer its own "
        "questions"
    ),
    KeyScope.OPERATE: (
        "a key with the scope operate can have no other scope, because it acts for no user"
    ),
}
_NEEDS_ASK: Final = frozenset({KeyScope.TOKENS, KeyScope.REFUND})


class ApiKeyRefused(ElicitError):
    """A request without a valid key. `why` is the reason, `key` the id of a known key."""

    name = "API_KEY_REFUSED"
    http_status = 401

    def __init__(self, message: str, *, why: str, key: str | None = None) -> None:
        self.why = why
        self.key = key
        super().__init__(message)


class ApiKeys:
    """The API keys of one store."""

    def __init__(self, elicitations: Elicitations) -> None:
        self._elicitations = elicitations
        self._ids = set[str]()  # ids of the keys in the last list, and of keys created since
        self._listed_at = float("-inf")
        elicitations.subscribers.append(self._on_change)
        elicitations.on_gap.append(self._forget)

    async def new(
        self,
        *,
        program: str,
        scopes: Collection[KeyScope],
        owners: Collection[str] = (),
        expires_at: datetime,
    ) -> tuple[str, ApiKey]:
        """Create a key; return its text, which is not stored, and its record.

        Raises ValueError for invalid properties.
        """
        _must_make_a_key(program, scopes=scopes, owners=owners)
        text = new_text()
        key = ApiKey(
            id=self._id(text),
            owner=SERVICE,
            program=program,
            scopes=tuple(sorted(scopes)),
            owners=tuple(dict.fromkeys(owners)),
            made_at=self._elicitations.clock(),
            expires_at=expires_at,
            erase_at=expires_at + KEY_RETENTION,
        )
        await self._elicitations.write(key)
        self._ids.add(key.id)
        return text, key

    async def all(self) -> list[ApiKey]:
        """Return all stored keys, including revoked and expired ones."""
        return await self._elicitations.all(ApiKey, owner=SERVICE, skips_unreadable=True)

    async def revoke(self, id: str) -> None:
        """Revoke a key, which is refused from the next request on."""
        now = self._elicitations.clock()

        async def revoked() -> list[ApiKey]:
            found = await self._elicitations.read(ApiKey, owner=SERVICE, id=id)
            if found is None or found.status == "revoked":
                return []
            return [replace(found, status="revoked", erase_at=now + KEY_RETENTION)]

        await self._elicitations.write_rebuilt(revoked)

    async def is_known(self, text: str) -> bool:
        """Return True if a key with this text exists, even if it has expired.

        Even if a client tries many texts, the store lists all keys at most four times a second.
        """
        if not is_key(text):
            return False
        id, now = self._id(text), self._elicitations.ticks()
        if id not in self._ids and now - self._listed_at >= _LISTED_EVERY.total_seconds():
            self._listed_at = now
            self._ids = {key.id for key in await self.all()}
        return id in self._ids

    async def of(self, text: str) -> ApiKey:
        """Return the key with this text and record its use. Raises ApiKeyRefused."""
        found, why = None, "unknown"
        if is_key(text):
            found = await self._elicitations.read(ApiKey, owner=SERVICE, id=self._id(text))
        now = self._elicitations.clock()
        if found is not None and (found.status == "revoked" or now >= found.expires_at):
            why = "revoked" if found.status == "revoked" else "expired"
        if found is None or why != "unknown":
            raise ApiKeyRefused(
                "This API key is not valid here: it is unknown, revoked or expired. List the keys "
                "with `elicit api-keys list`, or create one with `elicit api-keys new`.",
                why=why,
                key=None if found is None else tail_of(found),
            )
        if found.used_at is None or now >= found.used_at + USE_NOTED_EVERY:
            with suppress(Conflict):  # another request recorded it, or the key was just revoked
                await self._elicitations.write(replace(found, used_at=now))
        return found

    async def _on_change(self, record: Record) -> None:
        if record.kind == KINDS[ApiKey]:
            self._ids.add(record.id)

    def _forget(self) -> None:
        self._listed_at = float("-inf")

    def _id(self, text: str) -> str:
        return SERVICE + self._elicitations.owners.pepper.tag("api key", text, size=18)


def new_text() -> str:
    """Return the text of a new key."""
    chance = "".join(secrets.choice(_CHARACTERS) for _ in range(_RANDOM_CHARACTERS))
    return f"{PREFIX}{chance}{_checksum(chance)}"


def is_key(text: str) -> bool:
    """Return True if the text has the form of a key and its checksum is right (no typos)."""
    found = _TEXT.fullmatch(text)
    if found is None:
        return False
    chance, given = found[1][:_RANDOM_CHARACTERS], found[1][_RANDOM_CHARACTERS:]
    return _checksum(chance) == given


def _checksum(chance: str) -> str:
    """Return the CRC-32 in base 62, with the highest digit first."""
    number, digits = crc32(chance.encode()), ""
    for _ in range(_CHECKSUM_CHARACTERS):
        number, digit = divmod(number, len(_CHARACTERS))
        digits = _CHARACTERS[digit] + digits
    return digits


def _must_make_a_key(
    program: str, *, scopes: Collection[KeyScope], owners: Collection[str]
) -> None:
    """Raise ValueError for invalid properties of a new key."""
    if not _PROGRAM.fullmatch(program):
        raise ValueError(
            "the program's name has 1 to 64 letters, digits, spaces or . _ - and begins with a "
            "letter or digit"
        )
    if not scopes:
        raise ValueError("a key needs a scope, such as --scopes ask")
    for scope, why in _ALONE.items():
        if scope in scopes and len(set(scopes)) > 1:
            raise ValueError(f"{why}: create two keys")
    if _NEEDS_ASK & set(scopes) and KeyScope.ASK not in scopes:
        raise ValueError("the scopes tokens and refund also need ask: --scopes ask,tokens")
    if KeyScope.APPROVE in scopes and not owners:
        raise ValueError(
            "a key with the scope approve needs the user whose questions it can answer: --owner "
            "USER"
        )
    if KeyScope.OPERATE in scopes and owners:
        raise ValueError("a key with the scope operate acts for no user: remove --owner")
    if not all(map(is_user_id, owners)):
        raise ValueError("an owner is the id of one of your users, of 1 to 256 characters")
