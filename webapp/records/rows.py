"""Rows: write values as encrypted records, and read them back.

A call acts on the values that are in the store. The cache of elicitations is only the basis of
writes, which check the version.

The encrypted content also contains the status and the key of the value. So if someone changes one
of these columns in the store, reading the record fails.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from flows.elicitation.run import Run
from flows.elicitation.states import RECORD_RETENTION, Elicitation, Status
from flows.elicitation.traits import traits_of
from flows.errors import ElicitError, Unreadable
from webapp.records.entries import AUDITED, Entry, StateChange, Words
from webapp.records.ids import RANDOM_BYTES, RowIds, fresh_id, owner_of
from webapp.records.owners import Locker, Owners, Row
from webapp.records.values import KINDS, Value, ValueT
from webapp.stores import Record
from webapp.telemetry.work import note

if TYPE_CHECKING:
    from webapp.records.chain import AuditChain
    from webapp.records.high_water import HighWater


class Outbox(Protocol):
    """The outbox: makes outgoing events from changes."""

    def events(self, changes: Sequence[StateChange[Value]], *, at_most: int) -> Sequence[Value]:
        """Return at most `at_most` events of the same owner, to write together with the changes."""
        ...

    def after_write(self, values: Sequence[Value]) -> None:
        """Receive the written values, with their new versions."""
        ...


ROWS_AT_ONCE = 100
REMEMBERED_AT_MOST = 10_000
_SEALED_AT_ONCE = 2000
_AT_MOST = 400  # records per write with events; a store allows 500, including chain blocks
_log = logging.getLogger(__name__)


_encode = msgspec.json.Encoder().encode
_decoders: Mapping[type[Struct], msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in KINDS
}


class Erased(ElicitError, KeyError):
    """The record of a call, a run or a question is no longer in the store.

    The record was purged, or the store has stepped back.
    """

    name = "ELICITATION_ERASED"
    jsonrpc_code = -32000
    http_status = 410

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(
            "This server no longer has the record of this call: the record was erased, or the "
            "store lost it. So the call could not be finished. Call the tool again: the same call "
            "can still use a payment that was not used."
        )

    def __str__(self) -> str:
        return Exception.__str__(self)


class Cache:
    """The elicitations that this process wrote last and whose answer a call can still use.

    A change may start from a cached copy, because the write checks the version. Code that needs the
    current value reads the store.
    """

    def __init__(self) -> None:
        self._by_id: OrderedDict[str, Elicitation] = OrderedDict()
        self._ended: OrderedDict[str, None] = OrderedDict()

    def get(self, id: str) -> Elicitation | None:
        return self._by_id.get(id)

    def has_ended(self, id: str) -> bool:
        """Return True if the elicitation is known to have ended. Ended elicitations stay ended."""
        return id in self._ended

    def store(self, value: Elicitation) -> bool:
        """Store the value. Return False if the cache has a newer version."""
        if value.status.is_final:
            self._ended[value.id] = None
            if len(self._ended) > REMEMBERED_AT_MOST:
                self._ended.popitem(last=False)
        known = self._by_id.get(value.id)
        if known is not None and known.version > value.version:
            return False
        is_for_somebody = not value.status.is_final or value.holds_key or value.take is not None
        if is_for_somebody and value.delivered_at is None:
            self._by_id[value.id] = value
            if len(self._by_id) > REMEMBERED_AT_MOST:
                self._by_id.popitem(last=False)
        else:
            self._by_id.pop(value.id, None)
        return True

    def forget(self, id: str) -> None:
        self._by_id.pop(id, None)

    def clear(self) -> None:
        """Remove all elicitations, and the ids of those that have ended.

        If the store went back to an older state, an elicitation that had ended can be open again.
        """
        self._by_id.clear()
        self._ended.clear()


class Rows:
    """Reading and writing of values. Data keys, seals and records are hidden in this class."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners
        self._store = owners.store
        self.chain: AuditChain | None = None  # the audit log, if there is one
        self.high_water: HighWater | None = None  # remembers the newest records
        self.outbox: Outbox | None = None  # makes outgoing events, if any are configured
        # Returns more rows for the same write, such as the notifications about a new question.
        self.add_rows: Callable[[Sequence[Value]], Sequence[Value]] | None = None
        self._words = Words[Value](KINDS, stored=self._stored)
        self.ids = RowIds(owners.pepper)
        self.recent = Cache()
        # Added to the default retention of these kinds.
        self.retention_overrides: Mapping[type[Struct], timedelta] = {}
        self.unreadable: list[Record] | None = None  # `all` adds unreadable records to this list

    def new_id(self, owner: str, *, now: datetime) -> str:
        """Return a new id that cannot be guessed."""
        return fresh_id(owner, now=now, random=self._owners.random(RANDOM_BYTES))

    async def write(self, *values: Value) -> Sequence[Value]:
        """Write values of one owner, all or none. Return the values with their new versions.

        The `version` of each value must be the version that was read from the store, or 0 for a
        new value. The store must not contain the id or the key of a new value.

        Raises Conflict if the store has another version, or already has the id or key.
        """
        if not values:
            return ()
        records_changes, asked = self.chain is not None or self.outbox is not None, len(values)
        if self.add_rows is not None:
            values = (*values, *self.add_rows(values))
        changes = await self._words.state_changes(values) if records_changes else ()
        if self.outbox is not None and changes:
            values = (*values, *self.outbox.events(changes, at_most=_AT_MOST - len(values)))
        owner = values[0].owner
        locker = self._owners.lockers.get(owner) or await self._owners.locker(owner)
        records = tuple([self._record(value, locker) for value in values])
        entries = [each.entry for each in changes if each.entry.kind in AUDITED]
        if self.chain is not None and entries:
            await self.chain.write(owner, records, *entries)
        else:
            await self._store.write(*records)
        if self.high_water is not None:
            self.high_water.remember(*records, are_new=True)
        written = [replace(value, version=value.version + 1) for value in values]
        if records_changes:
            for value in values:
                self._words.remember(value, version=value.version + 1)
        if self.outbox is not None:
            self.outbox.after_write(written)
        return written[:asked]

    def _record(self, value: Value, locker: Locker) -> Record:
        kind = KINDS[type(value)]
        row = Row(owner=value.owner, kind=kind, id=value.id, version=value.version + 1)
        erase_at = value.erase_at
        longer = self.retention_overrides.get(type(value))
        if longer is not None and erase_at is not None:
            if isinstance(value, Elicitation):
                # A late answer needs its question, so some kinds are stored longer than configured.
                longer = max(longer, traits_of(value.kind).stored_for - RECORD_RETENTION)
            erase_at += longer
        return Record(
            owner=value.owner,
            kind=kind,
            id=value.id,
            status=value.status,
            key=getattr(value, "row_key", None),  # most rows are found only by id
            due_at=value.due_at,
            erase_at=erase_at,
            version=value.version,
            sealed=locker.seal(row, _encode(value)),
        )

    async def read(self, kind: type[ValueT], *, owner: str, id: str) -> ValueT | None:
        found = await self._store.read(owner, KINDS[kind], id)
        return None if found is None else await self.open(found, kind)

    async def get(self, id: str) -> Elicitation | None:
        found = await self.read(Elicitation, owner=owner_of(id), id=id)
        if found is not None:
            note(found)
        return found

    async def as_remembered(self, id: str) -> Elicitation | None:
        """Return an open elicitation from this process's cache, or else read it from the store.

        The cached copy may be stale. Use it only as the basis of a write, which checks the version.
        """
        known = self.recent.get(id)
        if known is None or known.status.is_final:
            return await self.get(id)
        note(known)
        return known

    async def newest(
        self, current: Elicitation, changes: Sequence[Elicitation | Run | None]
    ) -> Elicitation:
        """Return the newest version of the elicitation.

        If `changes` contains None, a change may have been missed: read the store. Raises Erased.
        """
        if None in changes:
            if (found := await self.get(current.id)) is None:
                raise Erased(current.id)
            return found
        for changed in changes:  # changes may arrive out of order
            if (
                isinstance(changed, Elicitation)
                and changed.id == current.id
                and changed.version > current.version
            ):
                current = changed
        return current

    async def holder(self, kind: type[ValueT], *, owner: str, key: str) -> ValueT | None:
        """Return the row of this kind that has the key, or None."""
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
        """Return all rows of this kind, of one owner or of all, in the order of their ids.

        If the attribute `unreadable` is a list, add unreadable rows to it. Otherwise log and skip
        them if `skips_unreadable` is True, or else raise Unreadable.
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
                    if self.unreadable is not None:
                        self.unreadable.append(record)
                        continue
                    if not skips_unreadable:
                        raise
                    _log.exception("record.unreadable", extra={"kind": record.kind})
            if len(page) < ROWS_AT_ONCE:
                return found
            after = page[-1].id

    async def open_of(self, owner: str | None = None, *, now: datetime) -> list[Elicitation]:
        """Return the unanswered questions of this owner, or of everyone, newest first."""
        found = {  # by id: a question that is opened between the two reads is found twice
            one.id: one
            for status in (Status.PENDING, Status.OPENED)
            for one in await self.all(
                Elicitation, owner=owner, status=status, skips_unreadable=True
            )
        }
        open_now = [one for one in found.values() if now < one.expires_at]
        return sorted(open_now, key=lambda one: one.created_at, reverse=True)

    async def sealed(self, kind: type[Value], *, owner: str) -> list[Record]:
        """Return one owner's records of this kind without decrypting them, ordered by id.

        A page that lists records can then open only the records that it shows. `open` verifies the
        columns of a record. Until then, they are not verified.
        """
        found, after = list[Record](), None
        while True:
            page = await self._store.list(
                KINDS[kind], owner=owner, after=after, limit=_SEALED_AT_ONCE
            )
            found += page
            if len(page) < _SEALED_AT_ONCE:
                return found
            after = page[-1].id

    async def open(self, record: Record, kind: type[ValueT]) -> ValueT:
        """Open a record. Raises Unreadable if it was altered or cannot be decrypted."""
        if self.high_water is not None:
            self.high_water.remember(record)
        locker = self._owners.lockers.get(record.owner) or await self._owners.locker(record.owner)
        row = Row(owner=record.owner, kind=record.kind, id=record.id, version=record.version)
        try:
            plain = locker.open(row, record.sealed)
        except Unreadable:  # the record may be sealed under a data key that was just made
            self._owners.forget(record.owner)
            plain = (await self._owners.locker(record.owner)).open(row, record.sealed)
        value = cast("ValueT", _decoders[kind].decode(plain))
        if (value.status, getattr(value, "row_key", None)) != (record.status, record.key):
            raise Unreadable
        if self.chain is not None or self.outbox is not None:
            self._words.remember(value, version=record.version)
        return replace(value, version=record.version)

    def forget(self) -> None:
        """Clear all caches, because writes may have been missed, or the store has stepped back."""
        self.recent.clear()
        self._words.forget()
        if self.chain is not None:
            self.chain.forget()

    async def record_action(self, owner: str, what: str) -> None:
        """Add an entry to the owner's chain about an action on all of the owner's data."""
        if self.chain is not None:
            await self.chain.write(owner, (), Entry(kind="owner", what=what, about=""))

    async def _stored(self, value: Value) -> Value | None:
        return await self.read(type(value), owner=value.owner, id=value.id)
