"""Moving a store: complete, checked, safe when interrupted, and never into a store in use."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from flows.errors import StoreUnavailable
from tests.support.records import HOLD, NOW, record, scanned
from webapp.stores import Record, Store, open_store
from webapp.stores.moving import NotMoved, move, unfence
from webapp.stores.sqlite import SqliteStore
from webapp.stores.store import Fences

Places = tuple[Store, Store]


class Killed(BaseException):
    """The simulated death of the process."""


class Dying(SqliteStore):
    """A store that raises `Killed` when `left`, the count of remaining changes, reaches 0.

    The source and the target share the count.
    """

    left = [0]  # noqa: RUF012 - shared by all instances

    async def load(self, *records: Record, behind: str) -> None:
        self._count()
        await super().load(*records, behind=behind)

    async def fence(self, why: str | None, *, instead_of: Fences | None = None) -> None:
        self._count()
        await super().fence(why, instead_of=instead_of)
        self._count()  # die after the change, before the caller knows of it

    def _count(self) -> None:
        self.left[0] -= 1
        if self.left[0] == 0:
            raise Killed


@pytest.fixture
async def places(tmp_path: Path) -> AsyncIterator[Places]:
    source = await open_store(f"sqlite:///{tmp_path / 'old.db'}")
    target = await open_store(f"sqlite:///{tmp_path / 'new.db'}")
    yield source, target
    await source.aclose()
    await target.aclose()


async def filled(store: Store) -> list[Record]:
    for owner in ("a", "b", "c"):
        rows = [record(f"{owner}-{number}", owner=owner, due_at=NOW) for number in range(400)]
        written = await store.write(*rows)
        await store.write(record(f"{owner}-key", owner=owner, key="k", erase_at=NOW))
        await store.write(replace(written[0], status="opened", sealed=bytes(60_000)))
    await store.due(NOW, hold=HOLD, limit=3)
    return await scanned(store)


def in_order(records: list[Record]) -> list[Record]:
    return sorted(records, key=lambda each: (each.owner, each.kind, each.id))


async def test_move_copies_all_records_and_fences_source(places: Places) -> None:
    source, target = places
    rows = await filled(source)
    assert (await move(source, target)).records == 1203
    assert in_order(await scanned(target)) == in_order(rows)
    await target.write(record("a-new"))
    with pytest.raises(StoreUnavailable) as refusal:
        await source.write(record("a-new"))
    assert refusal.value.why == (
        f"this store has moved to {target.address}: set ELICIT_STORE to that"
    )


async def test_repeated_move_changes_nothing_even_if_target_is_in_use(places: Places) -> None:
    source, target = places
    await filled(source)
    await move(source, target)
    await target.write(record("a-new"))
    again = await move(source, target)
    assert (again.was_before, again.records) == (True, 1204)
    await target.check()


async def test_interrupted_move_is_completed_by_repeating_command(tmp_path: Path) -> None:
    deaths, has_died = 0, True
    while has_died:
        deaths += 1
        folder = tmp_path / str(deaths)
        source, target = [await Dying.open(folder / name) for name in ("old.db", "new.db")]
        for number in range(3):
            await source.write(*(record(f"a-{number}{each:03}") for each in range(400)))
        rows = in_order(await scanned(source))
        Dying.left[0] = deaths
        try:
            await move(source, target)
            has_died = False
        except Killed:
            # If both stores accept writes, the target is empty. If only the target accepts
            # writes, the target is complete.
            is_open = [await each.fenced() is None for each in (source, target)]
            assert is_open in ([True, True], [True, False], [False, False], [False, True])
            if is_open == [True, True]:
                assert await scanned(target) == []
            if is_open == [False, True]:
                assert in_order(await scanned(target)) == rows
            Dying.left[0] = 0
            assert (await move(source, target)).records == 1200
        assert in_order(await scanned(target)) == rows
        assert [await each.fenced() is None for each in (source, target)] == [False, True]
        await source.aclose()
        await target.aclose()
    assert deaths > 10


class Paused(SqliteStore):
    """A store that waits before its next change until `go_on` is set."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()
        self.left = 0

    async def load(self, *records: Record, behind: str) -> None:
        await self._turn()
        await super().load(*records, behind=behind)

    async def fence(self, why: str | None, *, instead_of: Fences | None = None) -> None:
        await self._turn()
        await super().fence(why, instead_of=instead_of)

    async def _turn(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.reached.set()
            await self.go_on.wait()


@pytest.mark.parametrize(("side", "change"), [(0, 1), (0, 2), (1, 1), (1, 2), (1, 3)])
async def test_resumed_first_move_changes_nothing_after_second_move_completed(
    tmp_path: Path, side: int, change: int
) -> None:
    late = [await Paused.open(tmp_path / name) for name in ("old.db", "new.db")]
    source, target = [await SqliteStore.open(tmp_path / name) for name in ("old.db", "new.db")]
    (receipt,) = await source.write(record(kind="receipt", status="open"))
    late[side].left = change
    first = asyncio.create_task(move(*late))
    await late[side].reached.wait()
    await move(source, target)
    (spent,) = await target.write(replace(receipt, status="spent"))
    late[side].go_on.set()
    with suppress(NotMoved):
        await first
    assert await scanned(target) == [spent]
    assert str(await source.fenced()).startswith("this store has moved to")
    await target.check()
    for store in (*late, source, target):
        await store.aclose()


async def test_move_fails_if_another_command_fenced_target_during_move(tmp_path: Path) -> None:
    source, late = await SqliteStore.open(tmp_path / "old.db"), await Paused.open(tmp_path / "new")
    await source.write(record())
    late.left = 2
    moving = asyncio.create_task(move(source, late))
    await late.reached.wait()
    other = await SqliteStore.open(tmp_path / "new")
    await other.fence("somebody is at work")
    late.go_on.set()
    with pytest.raises(
        NotMoved, match=r"is now fenced: somebody is at work\. This command has stopped"
    ):
        await moving
    assert await scanned(other) == []
    for store in (source, late, other):
        await store.aclose()


async def test_write_during_start_of_move_is_moved_or_refused(places: Places) -> None:
    source, target = places
    written, has_begun = list[str](), asyncio.Event()

    async def write_on(task: int) -> None:
        for number in range(10_000):
            try:
                (row,) = await source.write(record(f"a-{task}-{number}"))
            except StoreUnavailable:
                return
            written.append(row.id)
            has_begun.set()

    async with asyncio.TaskGroup() as group:
        for task in range(5):
            group.create_task(write_on(task))
        await has_begun.wait()
        await move(source, target)
    assert sorted(each.id for each in await scanned(target)) == sorted(written)


async def test_move_to_non_empty_target_is_refused_and_changes_nothing(places: Places) -> None:
    source, target = places
    await filled(source)
    await target.write(record("a-own"))
    with pytest.raises(NotMoved, match=r"already has records\. Name an empty target"):
        await move(source, target)
    await source.check()
    await target.check()


class ServedMeanwhile(SqliteStore):
    """A store that another process starts to use just before the fence is set."""

    async def fence(self, why: str | None, *, instead_of: Fences | None = None) -> None:
        if why is not None:
            await self.write(record("a-own"))
        await super().fence(why, instead_of=instead_of)


async def test_target_written_by_other_process_during_move_stays_usable(tmp_path: Path) -> None:
    source = await SqliteStore.open(tmp_path / "old.db")
    target = await ServedMeanwhile.open(tmp_path / "new.db")
    await source.write(record("a-1"))
    with pytest.raises(NotMoved, match="already has records"):
        await move(source, target)
    for store in (source, target):
        await store.check()
        await store.aclose()


async def test_move_is_refused_if_target_or_source_has_other_fence(places: Places) -> None:
    source, target = places
    await filled(source)
    await target.fence("somebody is at work")
    with pytest.raises(NotMoved, match=r"is fenced: somebody is at work\. Name another target"):
        await move(source, target)
    await source.fence("somebody is at work")
    with pytest.raises(NotMoved, match="is fenced for another reason: somebody is at work"):
        await move(source, target)
    with pytest.raises(NotMoved, match="Name another target"):
        await move(source, source)


async def test_unfence_of_incomplete_copy_is_refused_and_unfence_of_source_works(
    tmp_path: Path,
) -> None:
    source, target = [await Dying.open(tmp_path / name) for name in ("old.db", "new.db")]
    await source.write(record("a-1"))
    Dying.left[0] = 6
    with pytest.raises(Killed):
        await move(source, target)
    Dying.left[0] = 0
    with pytest.raises(NotMoved, match="is an incomplete copy"):
        await unfence(target)
    assert "being moved" in str(await unfence(source))
    await source.write(record("a-2"))
    assert (await move(source, target)).records == 2
    await source.aclose()
    await target.aclose()


async def test_move_fails_if_target_has_records_missing_in_source(tmp_path: Path) -> None:
    source, target = [await Dying.open(tmp_path / name) for name in ("old.db", "new.db")]
    await source.write(record("a-1"), record("a-2"))
    Dying.left[0] = 6
    with pytest.raises(Killed):
        await move(source, target)
    Dying.left[0] = 0
    await source.fence(None)
    why = await target.fenced()
    assert why is not None
    await target.load(record("a-3", version=1), record("a-1", version=9), behind=why)
    with pytest.raises(NotMoved, match="1 other record"):
        await move(source, target)
    assert await target.fenced() is not None
    await source.aclose()
    await target.aclose()


async def test_memory_store_cannot_be_moved(places: Places) -> None:
    with pytest.raises(NotMoved, match="is lost when its process ends"):
        await move(await open_store("memory:"), places[1])
