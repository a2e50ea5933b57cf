"""Rows: values as sealed records, written and read back: the one door to a store.

The whole value is inside the seal, its status too, so that a changed column is noticed.
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from flows.elicitation.calling_client import SeenClient
from flows.elicitation.run import Run
from flows.elicitation.states import RECORD_KEPT, Elicitation, Json
from flows.elicitation.traits import traits_of
from flows.errors import Unreadable
from flows.oauth.connection import Connection
from flows.payments.gateway import Notice
from flows.payments.receipt import Payment
from flows.payments.unresolved import UnresolvedPayment
from webapp.records.entries import Entry, Words
from webapp.records.ids import RANDOM_BYTES, RowIds, fresh_id
from webapp.records.owners import Owners
from webapp.records.seal import Row
from webapp.stores import Record

if TYPE_CHECKING:
    from webapp.records.chain import AuditChain

ROWS_AT_ONCE = 100
_log = logging.getLogger(__name__)


class DoneOnce(Struct, frozen=True, kw_only=True):
    """What `once` did, as JSON text; a result is never shown.

    One that does not fit into a row goes on in `pieces` others. `fault` says why it cannot be
    handed on: the work is done all the same. While somebody is `doing` it, `claimed_until` is when
    that is not believed any more.
    """

    id: str
    owner: str
    result: str
    erase_at: datetime
    pieces: tuple[str, ...] = ()  # their ids
    fault: str | None = None
    claimed_until: datetime | None = None
    version: int = 0
    status: str = "done"
    due_at: None = None

    def __repr__(self) -> str:
        return f"Done({self.id!r})"


class Alias(Struct, frozen=True, kw_only=True):
    """An author's own id for an elicitation."""

    id: str
    owner: str
    elicitation_id: str
    erase_at: datetime
    version: int = 0
    status: str = "alias"
    due_at: None = None


class KeptSecret(Struct, frozen=True, kw_only=True):
    """What a person typed for a name, until it is forgotten."""

    id: str
    owner: str
    content: Json
    version: int = 0
    status: str = "kept"
    due_at: None = None
    erase_at: datetime | None = None

    def __repr__(self) -> str:
        return f"KeptSecret({self.id!r})"


class Check(Struct, frozen=True, kw_only=True):
    """What was typed on a page, for the process that can validate it; `faults` is its answer."""

    id: str
    owner: str
    elicitation_id: str
    content: Json
    erase_at: datetime
    faults: tuple[tuple[str, str], ...] | None = None  # path and message
    version: int = 0
    status: str = "check"
    due_at: None = None

    def __repr__(self) -> str:
        return f"Check({self.id!r})"

    def answered(self, faults: tuple[tuple[str, str], ...]) -> "Check":
        """Without the content."""
        return replace(self, content=None, faults=faults)


class Approval(Struct, frozen=True, kw_only=True):
    """What a person allowed a tool to do without being asked again, until then.

    `covers` is the digest of the arguments; None: whatever they are. `about` tells a person.
    `client` is whose calls it opens for, unless it `is_for_all` clients of its owner; one that has
    neither was kept before clients were told apart, and opens for none.
    """

    id: str
    owner: str
    server: str
    tool: str
    covers: str | None
    about: str
    given_at: datetime
    until: datetime
    erase_at: datetime
    client: SeenClient | None = None
    is_for_all: bool = False
    version: int = 0
    status: str = "given"  # or revoked
    due_at: None = None

    def __repr__(self) -> str:
        return f"Approval({self.id!r}, {self.status!r})"


class StoredWebhook(Struct, frozen=True, kw_only=True):
    """A verified webhook, as it came.

    It is `applied`, `waiting` to be reconciled, `repeated` (what it says was known), `refused`
    for `why`, `unknown` (about nothing of ours) or `ignored` (a kind that nothing follows from).
    `transition` is what no second one of this owner is applied for. `said` is what the whole body
    said, where only the beginning of it is kept.
    """

    id: str
    owner: str
    seller: str
    elicitation_id: str
    session: str
    body: str
    received_at: datetime
    erase_at: datetime
    event: str = ""
    type: str = ""
    transition: str | None = None
    is_whole: bool = True  # else the end of the body is missing
    status: str = "applied"
    why: str | None = None
    replayed_at: datetime | None = None
    said: Notice | None = None
    again_at: datetime | None = None  # when it is looked into again, if it waits on
    version: int = 0

    @property
    def due_at(self) -> datetime | None:
        return (self.again_at or self.received_at) if self.status == "waiting" else None

    @property
    def row_key(self) -> str | None:
        return self.transition if self.status == "applied" else None

    def __repr__(self) -> str:
        return f"Hook({self.id!r}, {self.status!r})"


class EarlyEvent(Struct, frozen=True, kw_only=True):
    """The webhooks, by their ids, that told of a payment before it was in the ledger."""

    id: str
    owner: str
    hooks: tuple[str, ...]
    erase_at: datetime
    version: int = 0
    status: str = "kept"
    due_at: None = None


class TurnedAway(Struct, frozen=True, kw_only=True):
    """How many deliveries of one day were turned away, for one reason.

    They could not be verified, or hinted at nothing of ours, or at what is not as it was asked.
    """

    id: str
    owner: str
    day: str
    seller: str
    reason: str
    erase_at: datetime
    count: int = 0
    last_at: datetime | None = None
    version: int = 0
    status: str = "counted"
    due_at: None = None


class KeptCertificate(Struct, frozen=True, kw_only=True):
    """What a sender of webhooks signs with, as it was fetched; nobody is believed for it."""

    id: str
    owner: str
    pem: bytes
    erase_at: datetime
    version: int = 0
    status: str = "kept"
    due_at: None = None


class KnownServer(Struct, frozen=True, kw_only=True):
    """A served server: what it calls itself, and the one place that it is served from."""

    id: str
    owner: str
    name: str
    place: str
    since: datetime
    version: int = 0
    status: str = "known"
    due_at: None = None
    erase_at: datetime | None = None


class ApiKey(Struct, frozen=True, kw_only=True):
    """What is kept of an API key: its id is a keyed hash of its text, which is nowhere.

    `owners` are the users that it is for; none: all of its program's.
    """

    id: str
    owner: str
    program: str
    scopes: tuple[str, ...]
    owners: tuple[str, ...]
    made_at: datetime
    expires_at: datetime
    erase_at: datetime
    used_at: datetime | None = None
    version: int = 0
    status: str = "made"  # or revoked
    due_at: None = None


class ClientDeed(Struct, frozen=True, kw_only=True):
    """What a client did last with what it was sent in one mode, and how long that counts."""

    what: str
    at: datetime
    until: datetime


class ClientRecord(Struct, frozen=True, kw_only=True):
    """What a person's client did with forms and with links; `release` is its own version."""

    id: str
    owner: str
    name: str
    release: str
    erase_at: datetime
    forms: ClientDeed | None = None
    links: ClientDeed | None = None
    version: int = 0
    status: str = "kept"
    due_at: None = None


class Open(Struct, frozen=True, kw_only=True):
    """A question that was open when its owner's row was written."""

    id: str
    session: str
    expires_at: datetime


class Standing(Struct, frozen=True, kw_only=True):
    """What an owner is asked: one row, written with each new question. Its status is a count."""

    id: str
    owner: str
    open: tuple[Open, ...] = ()
    version: int = 0
    due_at: None = None
    erase_at: datetime | None = None

    @property
    def status(self) -> str:
        return str(len(self.open))


Value: TypeAlias = (
    Elicitation
    | Run
    | DoneOnce
    | Alias
    | Connection
    | Payment
    | UnresolvedPayment
    | KeptSecret
    | Approval
    | StoredWebhook
    | EarlyEvent
    | TurnedAway
    | KeptCertificate
    | KnownServer
    | Standing
    | Check
    | ClientRecord
    | ApiKey
)
ValueT = TypeVar("ValueT", bound=Value)

KINDS: Mapping[type[Struct], str] = {
    Elicitation: "elicitation",
    Run: "run",
    DoneOnce: "once",
    Alias: "alias",
    Connection: "account",
    Payment: "payment",
    UnresolvedPayment: "loose end",
    KeptSecret: "secret",
    Approval: "approval",
    StoredWebhook: "hook",
    EarlyEvent: "early news",
    TurnedAway: "unverified",
    KeptCertificate: "certificate",
    KnownServer: "server",
    Standing: "standing",
    Check: "check",
    ClientRecord: "client",
    ApiKey: "api key",
}
_encode = msgspec.json.Encoder().encode
_decoders: Mapping[type[Struct], msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in KINDS
}


class Rows:
    """Values in, values out: data keys, seals and records stay in here."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners
        self._store = owners.store
        self.chain: AuditChain | None = None  # where changes are told of, if they are
        self._words = Words[Value](KINDS, stored=self._stored)
        self.ids = RowIds(owners.pepper)
        self.longer: Mapping[type[Struct], timedelta] = {}  # than by itself is kept, or less
        self.left_out: list[Record] | None = None  # a list, where whoever asks is told of them

    def new_id(self, owner: str, *, now: datetime) -> str:
        """An id that nobody can guess."""
        return fresh_id(owner, now=now, random=self._owners.random(RANDOM_BYTES))

    async def write(self, *values: Value) -> Sequence[Value]:
        """Write values of one owner, all or none; returns them with their new versions.

        Each is written at its version, which is the one that was read; 0: neither its id nor its
        key is taken. Raises Conflict.
        """
        sealed = [await self._sealed(value) for value in values]
        records = tuple(
            Record(
                owner=value.owner,
                kind=KINDS[type(value)],
                id=value.id,
                status=value.status,
                key=getattr(value, "row_key", None),  # most are found by their id alone
                due_at=value.due_at,
                erase_at=self._erase_at(value),
                version=value.version,
                sealed=its_bytes,
            )
            for value, its_bytes in zip(values, sealed, strict=True)
        )
        moved = await self._words.moved(values) if self.chain is not None else ()
        if self.chain is not None and moved:
            await self.chain.write(values[0].owner, records, *moved)
        else:
            await self._store.write(*records)
        for value in values:
            self._words.remember(value, version=value.version + 1)
        return [replace(value, version=value.version + 1) for value in values]

    def _erase_at(self, value: Value) -> datetime | None:
        longer = self.longer.get(type(value))
        if longer is None or value.erase_at is None:
            return value.erase_at
        if isinstance(value, Elicitation):  # a late answer finds it, where one counts
            longer = max(longer, traits_of(value.kind).kept - RECORD_KEPT)
        return value.erase_at + longer

    async def read(self, kind: type[ValueT], *, owner: str, id: str) -> ValueT | None:
        found = await self._store.read(owner, KINDS[kind], id)
        return None if found is None else await self.open(found, kind)

    async def holder(self, kind: type[ValueT], *, owner: str, key: str) -> ValueT | None:
        """The row of this kind that holds the key."""
        found = await self._store.find(owner, KINDS[kind], key)
        return None if found is None else await self.open(found, kind)

    async def all(
        self,
        kind: type[ValueT],
        *,
        owner: str | None = None,
        status: str | None = None,
        skips_unreadable: bool = False,
    ) -> list[ValueT]:
        """Every row of this kind, of one owner or of all, in the order of their ids.

        Raises Unreadable, unless such a row is only left out: and logged, or noted in `left_out`.
        """
        found, after = list[ValueT](), None
        while True:
            page = await self._store.list(
                KINDS[kind], owner=owner, status=status, after=after, limit=ROWS_AT_ONCE
            )
            for record in page:
                try:
                    found.append(await self.open(record, kind))
                except Unreadable:
                    if self.left_out is not None:
                        self.left_out.append(record)
                        continue
                    if not skips_unreadable:
                        raise
                    _log.exception("record.unreadable", extra={"kind": record.kind})
            if len(page) < ROWS_AT_ONCE:
                return found
            after = page[-1].id

    async def open(self, record: Record, kind: type[ValueT]) -> ValueT:
        """Raises Unreadable if the row is not what was sealed, or cannot be opened."""
        locker = self._owners.cached(record.owner) or await self._owners.locker(record.owner)
        row = Row(owner=record.owner, kind=record.kind, id=record.id, version=record.version)
        try:
            plain = locker.open(row, record.sealed)
        except Unreadable:  # it may be sealed under a data key that was made a moment ago
            self._owners.forget(record.owner)
            plain = (await self._owners.locker(record.owner)).open(row, record.sealed)
        value = cast("ValueT", _decoders[kind].decode(plain))
        if (value.status, getattr(value, "row_key", None)) != (record.status, record.key):
            raise Unreadable
        self._words.remember(value, version=record.version)
        return replace(value, version=record.version)

    async def tell(self, owner: str, what: str) -> None:
        """Let the owner's chain say what was done with all of it."""
        if self.chain is not None:
            await self.chain.write(owner, (), Entry(kind="owner", what=what, about=""))

    async def _stored(self, value: Value) -> Value | None:
        return await self.read(type(value), owner=value.owner, id=value.id)

    async def _sealed(self, value: Value) -> bytes:
        locker = self._owners.cached(value.owner) or await self._owners.locker(value.owner)
        kind = KINDS[type(value)]
        row = Row(owner=value.owner, kind=kind, id=value.id, version=value.version + 1)
        return locker.seal(row, _encode(value))
