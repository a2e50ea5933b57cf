"""An owner's audit chain, its verification, and processes with the audit on."""

from functools import partial

from tests.support.service_env import process
from webapp.records.chain import AUDIT, block_of, opened
from webapp.records.entries import Entry
from webapp.records.heads import HeadDocument, OwnersHead
from webapp.records.verification import verify
from webapp.service import Service
from webapp.settings.quotas import PolicySettings
from webapp.stores import Record, Store
from webapp.stores.store import RECORDS_AT_MOST

AUDITED = PolicySettings(audit=True)
audited = partial(process, policies=AUDITED)


async def audit_entries_of(service: Service, owner: str) -> list[Entry]:
    """Return every entry of the owner's audit chain, decrypted."""
    locker = await service.elicitations.owners.locker(owner)
    reported = list[Entry]()
    for record in await service.elicitations.store.list(AUDIT, owner=owner, limit=1000):
        block = block_of(record)
        for number, stored in enumerate(block.entries, start=block.before.count + 1):
            reported.append(opened(locker, owner, number, stored.sealed))
    return reported


async def put(store: Store, *records: Record) -> None:
    """Write records directly to the store, past every rule, as an attacker could."""
    await store.fence("being changed")
    for start in range(0, len(records), RECORDS_AT_MOST):
        await store.load(*records[start : start + RECORDS_AT_MOST], behind="being changed")
    await store.fence(None)


async def faults_of(service: Service, document: HeadDocument | None = None) -> list[str]:
    against: tuple[OwnersHead, ...] = () if document is None else document.chains
    verified = await verify(service.elicitations.owners, now=service.clock(), against=against)
    return [each.says for each in verified.faults]
