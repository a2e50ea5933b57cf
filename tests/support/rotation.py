"""Secrets that change: a key file, with a store that can stop accepting writes."""

from flows.errors import StoreUnavailable
from webapp.cli.keys import Keys
from webapp.settings.key_file import KeyFile
from webapp.stores import Record, Store
from webapp.stores.sqlite import MemoryStore


class Interrupted(MemoryStore):
    """A store that accepts `left` more writes and then fails."""

    left = 1000

    async def write(self, *records: Record) -> tuple[Record, ...]:
        if self.left == 0:
            raise StoreUnavailable("the disk is full")
        self.left -= 1
        return await super().write(*records)


def local(store: Store, file: KeyFile) -> Keys:
    return Keys(ring=file.ring(), store=store, place="the store", file=file)
