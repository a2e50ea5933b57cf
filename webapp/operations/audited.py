"""The audit entries of one owner, as operators see them."""

from collections.abc import AsyncIterator
from datetime import datetime

import msgspec
from msgspec import Struct

from flows.errors import Unreadable
from webapp.records.chain import AUDIT, begins_after, block_of, opened
from webapp.records.owners import Locker
from webapp.service import Service

_PAGE = 100


class AuditRow(Struct, frozen=True, kw_only=True):
    """An audit entry. An entry that can no longer be opened has only its number.

    `about` is the record's id as lists show it, `proof` is why an answer was accepted, and `digest`
    is the hash of everything that the person saw.
    """

    number: int
    at: datetime | None = None
    kind: str | None = None
    what: str | None = None
    about: str | None = None
    by: str | None = None
    proof: str | None = None
    why: str | None = None
    server: str | None = None
    tool: str | None = None
    client: str | None = None
    asks: str | None = None
    digest: str | None = None
    amount: str | None = None


async def audit_entries_of(service: Service, owner: str) -> AsyncIterator[AuditRow]:
    """Yield the entries of an owner's chain, the oldest first. `owner` is the owner's tag."""
    owners = service.elicitations.owners
    locker, after = await owners.reader(owner), None
    while page := await owners.store.list(AUDIT, owner=owner, after=after, limit=_PAGE):
        for record in page:
            try:
                block = block_of(record)
            except Unreadable:
                yield AuditRow(number=begins_after(record) + 1, kind=AUDIT, what="damaged")
                continue
            for number, stored in enumerate(block.entries, start=block.before.count + 1):
                yield _row(locker, owner, number, stored.sealed)
        after = page[-1].id


def _row(locker: Locker | None, owner: str, number: int, sealed: bytes) -> AuditRow:
    try:
        entry = None if locker is None else opened(locker, owner, number, sealed)
    except Unreadable:  # the entry is older than the erasure of the owner
        entry = None
    fields = {} if entry is None else msgspec.structs.asdict(entry)
    return AuditRow(number=number, **fields)
