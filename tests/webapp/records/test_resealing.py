"""Recovery from a leak: the leaked keys decrypt no record, and the servers keep running."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from flows.crypto.tokens import Ring
from flows.errors import StoreUnavailable, Unreadable
from tests.support.chains import audited
from tests.support.clock import Clock
from tests.support.rotation import Interrupted, local
from tests.support.service_env import asked, process
from webapp.cli.audit import export_chain, verify_chains
from webapp.cli.keys import Keys, rotate
from webapp.cli.resealing import PROCESSES_NOTIFIED_AFTER, is_under_way
from webapp.elicitations.watcher import listen
from webapp.records.owners import DATA_KEY, SERVICE, Locker, Row, pages, unwrapped
from webapp.records.values import KINDS
from webapp.settings.key_file import KeyFile
from webapp.stores import Record, Store
from webapp.stores.sqlite import MemoryStore, SqliteStore

OLD, NEW = (f"{word} secret of thirty-two bytes or so".encode() for word in ("1", "2"))


@pytest.fixture
async def openings(tmp_path: Path) -> AsyncIterator[Sequence[Store]]:
    """Open one store three times: for two serving processes and the command."""
    stores = [await SqliteStore.open(tmp_path / "elicit.db") for _ in range(3)]
    yield stores
    for store in stores:
        await store.aclose()


async def after_leak(store: Store, file: KeyFile, clock: Clock) -> str:
    return "\n".join(await rotate(local(store, file), now=clock(), after_leak=True))


async def records(store: Store, *kinds: str) -> list[Record]:
    return [record async for page in pages(store, *kinds) for record in page]


async def opened_by(store: Store, known: Sequence[bytes]) -> list[str]:
    """Return the ids of people's records that one of these data keys can open."""
    found = list[str]()
    for record in await records(store, *KINDS.values()):
        row = Row(owner=record.owner, kind=record.kind, id=record.id, version=record.version)
        for key in known:
            try:
                Locker(key).open(row, record.sealed)
            except Unreadable:
                continue
            found.append(record.id)
    return found


async def data_keys(store: Store, *secrets: bytes) -> list[bytes]:
    """Return the data keys that these secrets can unwrap in the store."""
    found = list[bytes]()
    for record in await records(store, DATA_KEY):
        try:
            found += unwrapped(Ring(secrets), record).keys
        except Unreadable:
            continue
    return found


async def test_old_secret_and_old_copy_decrypt_nothing_after_recovery(file, clock, openings):
    # finding: S22
    here, _, command = openings
    async with process(here, clock, ring=file.ring()) as serving:
        before = await asked(serving)
        leaked = [secret.value for secret in file.read()]
        known = await data_keys(command, *leaked)
        assert await opened_by(command, known) == [before.id]
        await after_leak(command, file, clock)
        # The process has received the new keys.
        assert await serving.elicitations.get(before.id) is not None
        later = [await asked(serving, join="later"), await asked(serving, subject="bob")]
        assert await data_keys(command, *leaked) == []
        assert await opened_by(command, known) == []
        clock.tick(seconds=PROCESSES_NOTIFIED_AFTER.total_seconds())
        lines = await after_leak(command, file, clock)
        assert "Old data keys deleted: 1." in lines
        for each in (before, *later):
            assert await serving.elicitations.get(each.id) is not None
        everything = await data_keys(command, *[secret.value for secret in file.read()])
        assert set(everything) & set(known) == set()
        assert len(file.read()) == 2


async def test_running_processes_lose_nothing_during_recovery(file, clock, openings):
    here, there, command = openings
    async with (
        process(here, clock, ring=file.ring()) as one,
        process(there, clock, ring=file.ring()) as other,
    ):
        listening = [asyncio.create_task(listen(each.elicitations)) for each in (one, other)]

        async def serve(number: int) -> str:
            asking, reading = (one, other) if number % 2 else (other, one)
            fresh = await asked(asking, subject=f"n{number % 7}", join=f"question {number}")
            await reading.elicitations.open_attempt(fresh.id, browser="b")
            return fresh.id

        known = [await serve(number) for number in range(20)]
        *served, _ = await asyncio.gather(
            *(serve(number) for number in range(20, 120)), after_leak(command, file, clock)
        )
        clock.tick(seconds=PROCESSES_NOTIFIED_AFTER.total_seconds())
        *more, _ = await asyncio.gather(
            *(serve(number) for number in range(120, 160)), after_leak(command, file, clock)
        )
        assert not await is_under_way(command, file.ring())
        for id in (*known, *served, *more):
            for each in (one, other):
                found = await each.elicitations.get(str(id))
                assert found is not None
                assert found.attempt is not None
        for task in listening:
            task.cancel()
        await asyncio.gather(*listening, return_exceptions=True)


async def test_record_written_by_uninformed_process_is_encrypted_again_by_second_run(
    file, clock, openings
):
    uninformed, _, command = openings
    async with process(uninformed, clock, ring=file.ring()) as serving:
        await asked(serving)
        known = await data_keys(command, *[secret.value for secret in file.read()])
        await after_leak(command, file, clock)
        written = await asked(serving, join="another")
        assert await opened_by(command, known) == [written.id]
        clock.tick(seconds=PROCESSES_NOTIFIED_AFTER.total_seconds())
        lines = await after_leak(command, file, clock)
        assert "New data keys: 0. Records encrypted again: 1." in lines
        assert await opened_by(command, known) == []
        assert await serving.elicitations.get(written.id) is not None


async def test_old_data_keys_stay_until_every_process_received_new_keys(file, clock):
    store = MemoryStore()
    async with process(store, clock, ring=file.ring()) as serving:
        await asked(serving)
        lines = await after_leak(store, file, clock)
        assert "New data keys: 1. Records encrypted again: 1." in lines
        assert "Run this command again after 2026-03-01 12:10:00 UTC" in lines
        old = file.ring().fingerprints[1].hex()
        assert f"elicit keys retire {old} --anyway" in lines
        clock.tick(minutes=9)
        assert "New data keys: 0. Records encrypted again: 0." in await after_leak(
            store, file, clock
        )
        assert await is_under_way(store, file.ring())
        assert len(file.read()) == 2
        clock.tick(minutes=1)
        await after_leak(store, file, clock)
        assert not await is_under_way(store, file.ring())
        # This recovery has ended, so the next run is for another leak and adds a third secret.
        await after_leak(store, file, clock)
        assert len(file.read()) == 3


@pytest.mark.parametrize("written", range(1, 14))
async def test_interrupted_recovery_can_be_run_again(file, clock, written):
    store = Interrupted()
    async with process(store, clock, ring=file.ring()) as serving:
        questions = [await asked(serving, subject=f"n{number}") for number in range(4)]
        known = await data_keys(store, *[secret.value for secret in file.read()])
        store.left = written
        for minutes in (0, 10, 10, 10):
            clock.tick(minutes=minutes)
            try:
                await after_leak(store, file, clock)
            except StoreUnavailable:
                store.left = 1000
                for each in questions:
                    assert await serving.elicitations.get(each.id) is not None
        assert await opened_by(store, known) == []
        for each in questions:
            assert await serving.elicitations.get(each.id) is not None


async def test_recovery_with_secrets_of_environment_uses_first_secret(clock):
    store = MemoryStore()
    ring = Ring([NEW, OLD])
    async with process(store, clock, ring=Ring([OLD])) as before:
        question = await asked(before)
    keys = Keys(ring=ring, store=store, place="the store", variable="ELICIT_SECRET")
    async with process(store, clock, ring=ring) as after:
        known = await data_keys(store, OLD)
        lines = await rotate(keys, now=clock(), after_leak=True)
        assert "remove those secrets everywhere now" in lines[-1]
        assert await opened_by(store, known) == []
        assert await after.elicitations.get(question.id) is not None
        clock.tick(seconds=PROCESSES_NOTIFIED_AFTER.total_seconds())
        await rotate(keys, now=clock(), after_leak=True)
        assert await rotate(keys, now=clock(), after_leak=True) == [
            f"0 keys of the store encrypted again with {ring.newest.hex()}.",
            "New data keys: 0. Records encrypted again: 0.",
            lines[-1],
        ]


async def test_owner_erased_during_recovery_is_not_restored(file, clock):
    class Erasing(MemoryStore):
        erases = False

        async def write(self, *records: Record) -> tuple[Record, ...]:
            if self.erases and records[0].owner != SERVICE:
                await self.erase(owner=records[0].owner)
            return await super().write(*records)

    store = Erasing()
    async with process(store, clock, ring=file.ring()) as serving:
        await asked(serving)
        store.erases = True
        assert "New data keys: 0. Records encrypted again: 0." in await after_leak(
            store, file, clock
        )
        assert await records(store, *KINDS.values()) == []


async def test_audit_from_before_leak_is_exported_unchanged(
    openings: Sequence[Store], file: KeyFile
) -> None:
    clock = Clock()
    async with audited(openings[0], clock, ring=file.ring()) as service:
        question = await asked(service)
    for _ in range(2):
        await after_leak(openings[2], file, clock)
        clock.now += PROCESSES_NOTIFIED_AFTER
    async with audited(openings[1], clock, ring=file.ring()) as service:
        await asked(service, join="after")
        rows = (await export_chain(service, question.owner)).rows
        assert [row.what for row in rows] == ["asked", "asked"]
        await service.heads.make()
        assert "Nothing is missing" in (await verify_chains(service))[-1]
    assert not await is_under_way(openings[2], file.ring())
