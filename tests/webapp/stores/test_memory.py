"""The memory store's cost: due and erasable rows are found without reading all other rows."""

from datetime import datetime, timedelta
from typing import Any

from tests.support.records import HOLD, NOW, record
from webapp.stores.memory import MemoryStore


class Compared(datetime):
    """A time that counts its comparisons with other times."""

    times = 0

    def __gt__(self, other: Any) -> bool:
        Compared.times += 1
        return super().__gt__(other)

    def __le__(self, other: Any) -> bool:
        Compared.times += 1
        return super().__le__(other)


async def test_due_and_erasable_records_are_found_without_reading_other_records():
    store = MemoryStore()
    later = NOW + timedelta(days=1)
    time = Compared.fromtimestamp(later.timestamp(), later.tzinfo)
    for number in range(500):
        await store.write(record(f"a-{number:03}", due_at=time, erase_at=time))
    await store.write(record("b-1", owner="b", due_at=NOW, erase_at=NOW))
    Compared.times = 0
    (due,) = await store.due(NOW, hold=HOLD)
    assert due.id == "b-1"
    assert await store.erase(before=NOW) == 1
    assert Compared.times < 10, "of a thousand that a look at each would take"
    await store.aclose()
