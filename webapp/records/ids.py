"""Row ids: they start with the owner's tag, and ids of the same time sort together.

Risks: somebody guesses an id. So ids contain random bytes or a keyed hash. Another risk: new rows
are spread over all pages of the store, and each commit rewrites many pages. So ids contain the
time, and new rows are stored next to each other.

`InboxItem` and `Notification` are the rows that lead people to a question that waits for them.
"""

import base64
import hashlib
from datetime import UTC, datetime
from typing import Final, Protocol

from msgspec import Struct

OWNER_TAG_CHARACTERS: Final = 20
RANDOM_BYTES: Final = 12
_TIME_BYTES = 6
_TIME_CHARACTERS = 8
_TIME_END = 1 << 47  # in milliseconds; until then, times have at most twelve hexadecimal digits


class Owned(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def owner(self) -> str: ...


def fresh_id(owner: str, *, now: datetime, random: bytes) -> str:
    """Return the owner's tag, the time in milliseconds, and random characters."""
    time = int(now.timestamp() * 1000).to_bytes(_TIME_BYTES, "big")
    return owner + base64.urlsafe_b64encode(time + random).decode()


def related_id(id: str, tag: str) -> str:
    """Return the id of a related row: of the same owner, and sorted next to `id`."""
    return id[: OWNER_TAG_CHARACTERS + _TIME_CHARACTERS] + tag


def owner_of(id: str) -> str:
    return id[:OWNER_TAG_CHARACTERS]


def tail_of(row: Owned) -> str:
    """Return the part of the row's id that may be shown, without the owner's tag."""
    return row.id.removeprefix(row.owner)


def made_at(id: str) -> datetime | None:
    """Return when `fresh_id` made this id, or None if it is not such an id."""
    rest = id[OWNER_TAG_CHARACTERS:]
    try:
        decoded = base64.b64decode(rest, altchars=b"-_", validate=True)
        if len(decoded) != _TIME_BYTES + RANDOM_BYTES:
            return None
        return datetime.fromtimestamp(int.from_bytes(decoded[:_TIME_BYTES]) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


class Pepper:
    """The installation's secret key, which makes owners and join keys impossible to enumerate."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        self._key = key

    def tag(self, purpose: str, *parts: str, size: int = 15) -> str:
        """Return a keyed hash (BLAKE2b, RFC 7693) of the parts, `size` bytes as base64url.

        A `size` that is a multiple of 3 gives a text without padding.
        """
        encoded = [part.encode("utf-8", "surrogatepass") for part in (purpose, *parts)]
        return base64.urlsafe_b64encode(self.hashing(*encoded, size=size).digest()).decode()

    def mac(self, *parts: bytes, size: int) -> bytes:
        """Return the raw keyed hash of the parts. The first part names the hash's purpose."""
        return self.hashing(*parts, size=size).digest()

    def hashing(self, *parts: bytes, size: int) -> "hashlib.blake2b":
        """Return a hash object that starts with these parts and can be updated."""
        message = bytearray()
        for part in parts:
            message += len(part).to_bytes(8, "big") + part
        return hashlib.blake2b(message, key=self._key, digest_size=size)


class RowIds:
    """Row ids that are derived from the subject of the row, such as a payment."""

    def __init__(self, pepper: Pepper) -> None:
        self._tag = pepper.tag

    def payment(self, reference: str, *, provider: str, session: str) -> str:
        return related_id(reference, self._tag("payment", provider, session, size=12))

    def unresolved(self, reference: str, *, owner: str, provider: str, session: str) -> str:
        if owner == owner_of(reference):
            return related_id(reference, self._tag("loose", provider, session, size=12))
        return related_id(owner, self._tag("loose", provider, reference, session, size=18))

    def webhook(self, reference: str, *, owner: str, provider: str, event: str) -> str:
        is_about = owner == owner_of(reference)
        tag = self._tag("hook", provider, event, size=12 if is_about else 18)
        return related_id(reference if is_about else owner, tag)

    def approver(self, name: str) -> str:
        """Return the owner tag of the requests to this approver. No person has this tag."""
        return self._tag("approver", name)

    def inbox(self, owner: str, *, now: datetime, random: bytes) -> str:
        """Return an id that sorts newest first, because lists are in the order of ids."""
        return self.inbox_moment(owner, now=now) + base64.urlsafe_b64encode(random).decode()

    def inbox_moment(self, owner: str, *, now: datetime) -> str:
        """Return the prefix of inbox ids made at this time."""
        remaining = _TIME_END - int(now.timestamp() * 1000)
        return f"{owner}{remaining:012x}"

    def notification(self, reference: str, *, table: str, is_escalation: bool, address: int) -> str:
        stage = "escalation" if is_escalation else "first"
        return related_id(
            reference, self._tag("notification", reference, table, stage, str(address), size=12)
        )

    def client(self, owner: str, *, name: str, release: str) -> str:
        return owner + self._tag("client", name, release, size=18)

    def early_event(self, owner: str, *, provider: str, payment: str) -> str:
        return owner + self._tag("early", provider, payment)


class StoredRow(Struct, frozen=True, kw_only=True):
    """A row of one owner, with the fields that all rows have."""

    id: str
    owner: str
    version: int = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, {getattr(self, 'status', None)!r})"


class QueuedRow(StoredRow, frozen=True, kw_only=True):
    """A row that is due at `next_at` until its status is no longer `waiting`.

    The last status is `done`, `sent`, `given up` or `ended`.
    """

    next_at: datetime
    status: str = "waiting"

    @property
    def due_at(self) -> datetime | None:
        return self.next_at if self.status == "waiting" else None


class LastingRow(StoredRow, frozen=True, kw_only=True):
    """A row that is never due."""

    due_at: None = None


class InboxItem(StoredRow, frozen=True, kw_only=True):
    """A link to a question that waits for an approver, without the question's content.

    The owner is the tag of the approver's name. The id of the newest item sorts first. The
    question's own status decides whether the question still waits. The item's status `decided` is
    a shortcut: the list of open requests skips the item without reading the question. `opens_at` is
    the time of the escalation, in an item for the people to whom the question will be escalated. It
    is None in other items, and after the escalation.
    """

    elicitation_id: str
    expires_at: datetime
    erase_at: datetime
    opens_at: datetime | None = None
    status: str = "waiting"  # or "decided"

    @property
    def due_at(self) -> datetime | None:
        return (self.opens_at or self.expires_at) if self.status == "waiting" else None


class Notification(QueuedRow, frozen=True, kw_only=True):
    """The messages about a question to one address of a table `[notify.NAME]`.

    `address` is the position in the table's list, because the address itself may contain a
    password. `messages` is the number of messages that were sent or given up, and `tries` counts
    the attempts of the next message. While a process sends a message, its claim ends at `next_at`.
    """

    elicitation_id: str
    table: str
    address: int
    erase_at: datetime
    is_escalation: bool = False
    messages: int = 0
    tries: int = 0
    sent_at: datetime | None = None  # the last message that was sent
    why: str | None = None  # the reason why the last attempt failed
