"""What an owner's chain tells."""

from webapp.records.chain import AUDIT, block_of, opened
from webapp.records.entries import Entry
from webapp.service import Service


async def told_of(service: Service, owner: str) -> list[Entry]:
    """All of it, from the first entry on."""
    locker = await service.elicitations.owners.locker(owner)
    told = list[Entry]()
    for record in await service.elicitations.store.list(AUDIT, owner=owner, limit=1000):
        block = block_of(record)
        for number, stored in enumerate(block.entries, start=block.before.count + 1):
            told.append(opened(locker, owner, number, stored.sealed))
    return told
