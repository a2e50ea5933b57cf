"""Verification of audit chains: every manipulation is found, in the chain or by a stored head."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace as replaced
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from flows.crypto.tokens import Ring
from flows.elicitation.states import Status
from tests.support.chains import AUDITED, audited, faults_of, put
from tests.support.clock import Clock
from tests.support.service_env import RING, asked, process
from webapp.cli.audit import export_chain, make_head, show_keys, verify_chains
from webapp.cli.export import export_owner
from webapp.command import CommandRefused
from webapp.operations.rows import OWNER_CHARACTERS
from webapp.records.chain import AUDIT, HEAD, block_of
from webapp.records.heads import (
    HEAD_KIND,
    BadHead,
    SignedHead,
    read_document,
    written_document,
)
from webapp.records.owners import DATA_KEY, rewrap
from webapp.records.verification import verify
from webapp.service import Service
from webapp.stores import Record
from webapp.stores.sqlite import MemoryStore
from webapp.sweeper import fall_due

QUESTIONS, PEOPLE = 1000, 4
PER_BLOCK = 16
SHORTER = replaced(AUDITED, keep_audit=timedelta(days=5))


@pytest.fixture(scope="module")
def thousand() -> list[Record]:
    """Return the records of a thousand questions of four people, asked one after another."""

    async def build() -> list[Record]:
        store = MemoryStore()
        async with audited(store, Clock()) as service:
            for number in range(QUESTIONS):
                await asked(service, subject=f"p{number % PEOPLE}", join=str(number))
        return [each async for page in store.scan() for each in page]

    return asyncio.run(build())


@pytest.fixture
async def here(thousand: list[Record]) -> AsyncIterator[Service]:
    store = MemoryStore()
    await put(store, *thousand)
    async with audited(store, Clock()) as service:
        yield service


async def blocks_of(service: Service) -> list[Record]:
    owner = service.elicitations.owners.tag(issuer="tests", subject="p1")
    return list(await service.elicitations.store.list(AUDIT, owner=owner, limit=1000))


async def remove(service: Service, *records: Record) -> None:
    store, now = service.elicitations.store, service.clock()
    for record in records:
        found = await store.read(record.owner, record.kind, record.id)
        assert found is not None
        await store.write(replace(found, key=None, erase_at=now))
        await store.erase(owner=record.owner, before=now)


async def flip_a_bit(service: Service) -> None:
    record = (await blocks_of(service))[-1]
    sealed = bytearray(record.sealed)
    place = record.sealed.index(block_of(record).entries[-1].sealed) + 40
    sealed[place] ^= 1
    await put(service.elicitations.store, replace(record, sealed=bytes(sealed)))


async def remove_a_row(service: Service) -> None:
    await remove(service, (await blocks_of(service))[3])


async def remove_the_first_row(service: Service) -> None:
    await remove(service, (await blocks_of(service))[0])


async def swap_two_rows(service: Service) -> None:
    blocks = await blocks_of(service)
    one, other = blocks[2], blocks[5]
    await put(
        service.elicitations.store,
        replace(one, sealed=other.sealed),
        replace(other, sealed=one.sealed),
    )


async def swap_two_entries(service: Service) -> None:
    record = (await blocks_of(service))[2]
    first, second, *rest = (block := block_of(record)).entries
    swapped = replace(block, entries=(second, first, *rest))
    await put(service.elicitations.store, replace(record, sealed=msgspec.msgpack.encode(swapped)))


async def take_the_last_row_away(service: Service) -> None:
    await remove(service, (await blocks_of(service))[-1])


async def take_the_last_row_away_and_hide_it(service: Service) -> None:
    *_, former, last = await blocks_of(service)
    await remove(service, last)
    await put(service.elicitations.store, replace(former, key=HEAD, status=HEAD))


async def take_the_last_hundred_away_and_hide_it(service: Service) -> None:
    blocks = await blocks_of(service)
    await remove(service, *blocks[-7:])
    await put(service.elicitations.store, replace(blocks[-8], key=HEAD, status=HEAD))


async def take_a_whole_owner_away(service: Service) -> None:
    await remove(service, *await blocks_of(service))


async def test_chains_of_thousand_questions_are_valid(here: Service) -> None:
    verified = await verify(here.elicitations.owners, now=here.clock())
    assert (verified.entries, verified.owners, verified.faults) == (QUESTIONS, PEOPLE, ())
    assert await faults_of(here, await here.heads.make()) == []


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (flip_a_bit, "was changed"),
        (remove_a_row, "16 entries are missing after entry 48"),
        (remove_the_first_row, "its first 16 entries are missing"),
        (swap_two_rows, "is in the wrong place"),
        (swap_two_entries, "was changed"),
        (take_the_last_row_away, "its newest block is missing"),
    ],
)
async def test_manipulated_audit_chain_is_reported_as_fault(
    here: Service, harm: Callable[[Service], Awaitable[None]], says: str
) -> None:
    await harm(here)
    found = await faults_of(here)
    assert any(says in each for each in found), found


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (take_the_last_row_away_and_hide_it, "its last 10 entries are missing"),
        (take_the_last_hundred_away_and_hide_it, "its last 106 entries are missing"),
        (take_a_whole_owner_away, "the whole chain of 250 entries is missing"),
    ],
)
async def test_manipulation_that_chain_check_misses_is_reported_with_signed_head(
    here: Service, harm: Callable[[Service], Awaitable[None]], says: str
) -> None:
    head = await here.heads.make()
    await harm(here)
    assert await faults_of(here) == []
    assert await faults_of(here, head) == [says]


async def test_restored_older_backup_is_detected_with_external_head(
    tmp_path: Path,
) -> None:
    store, clock = MemoryStore(), Clock()
    async with audited(store, clock) as service:
        question = await asked(service)
        yesterday = [each async for page in store.scan() for each in page]
        clock.tick(days=1)
        await service.elicitations.settle(question.id, Status.CANCELLED)
        file = tmp_path / "head.json"
        file.write_text("\n".join(await make_head(service)))
        assert "Nothing is missing" in (await verify_chains(service, against=file))[-1]
    back = MemoryStore()
    await put(back, *yesterday)
    async with audited(back, clock) as service:
        with pytest.raises(CommandRefused, match="The store has no head"):
            await verify_chains(service)
        with pytest.raises(CommandRefused, match="its last 1 entry is missing"):
            await verify_chains(service, against=file)


async def remove_all_heads(service: Service) -> None:
    await remove(service, *await service.elicitations.store.list(HEAD_KIND, limit=1000))


async def remove_newest_head(service: Service) -> None:
    await remove(service, (await service.elicitations.store.list(HEAD_KIND, limit=1000))[-1])


async def remove_middle_head(service: Service) -> None:
    await remove(service, (await service.elicitations.store.list(HEAD_KIND, limit=1000))[1])


async def change_an_older_head(service: Service) -> None:
    head = (await service.elicitations.store.list(HEAD_KIND, limit=1000))[1]
    signed = msgspec.msgpack.decode(head.sealed, type=SignedHead)
    sealed = msgspec.msgpack.encode(replace(signed, entries=signed.entries - 1))
    await put(service.elicitations.store, replace(head, sealed=sealed))


async def remove_every_chain_and_head(service: Service) -> None:
    await remove_all_heads(service)
    await remove(service, *await service.elicitations.store.list(AUDIT, limit=1000))


# finding: XD5
@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (remove_all_heads, "The store has no head"),
        (remove_every_chain_and_head, "The store has no head"),
        (remove_newest_head, "The newest head of the store is missing"),
        (remove_middle_head, "Heads between 1 and 3 of the store are missing"),
        (
            change_an_older_head,
            "Head 2 of the store is not the original: head 3 follows a different head",
        ),
        (take_the_last_hundred_away_and_hide_it, "its last 106 entries are missing"),
        (take_a_whole_owner_away, "the whole chain of 250 entries is missing"),
    ],
)
async def test_missing_or_changed_heads_of_store_are_named(
    here: Service, harm: Callable[[Service], Awaitable[None]], says: str
) -> None:
    for _ in range(3):
        await here.heads.make()
    lines = await verify_chains(here)
    assert lines[1].startswith("Compared with 3 heads, 1 to 3 of ")
    await harm(here)
    with pytest.raises(CommandRefused, match=says):
        await verify_chains(here)


async def test_end_removed_between_two_heads_is_detected_by_earlier_head(here: Service) -> None:
    # finding: XD5
    await here.heads.make()
    await take_the_last_hundred_away_and_hide_it(here)
    await here.heads.make()
    with pytest.raises(CommandRefused, match="its last 106 entries are missing"):
        await verify_chains(here)


async def test_head_whose_list_has_expired_verifies_nothing() -> None:
    # finding: XD5
    clock = Clock()
    async with audited(MemoryStore(), clock) as service:
        await asked(service)
        await service.heads.make()
        clock.tick(days=3)
        with pytest.raises(CommandRefused, match="The list of the newest head"):
            await verify_chains(service)


async def test_heads_that_expired_under_shorter_retention_are_not_reported_as_missing() -> None:
    # finding: XD5
    store, clock = MemoryStore(), Clock()
    async with audited(store, clock) as service:
        await service.heads.make()
    async with process(store.sibling(), clock, policies=SHORTER) as service:
        for _ in range(2):
            clock.tick(days=10)
            await service.heads.make()
            await store.erase(before=clock())
        assert [record.id[-1] for record in await store.list(HEAD_KIND)] == ["1", "3"]
        assert "Nothing is missing" in (await verify_chains(service))[-1]


async def test_configured_folder_reveals_heads_removed_and_recreated(
    tmp_path: Path,
) -> None:
    # finding: XD5
    policies = replaced(AUDITED, audit_heads=(tmp_path,))
    store, clock = MemoryStore(), Clock()
    async with process(store, clock, policies=policies) as service:
        with pytest.raises(
            CommandRefused, match="The folder has no head, although ELICIT_AUDIT_HEADS"
        ):
            await verify_chains(service)
        await asked(service)
        await fall_due(service)
        lines = await verify_chains(service)
        assert lines[2].startswith("Compared with head 1 of ")
        assert lines[2].endswith(f"({tmp_path}).")
        await remove_every_chain_and_head(service)
        clock.tick(days=1)
        await fall_due(service)
        with pytest.raises(CommandRefused) as refused:
            await verify_chains(service)
    text = "\n".join(refused.value.sentences)
    assert "differs from the one in the store" in text
    assert "entry 1 or an earlier one differs from the head" in text
    (tmp_path / "head-0.json").write_text("{}")
    async with process(store.sibling(), clock, policies=policies) as service:
        with pytest.raises(CommandRefused, match=r"head-0\.json: The file is not a head"):
            await verify_chains(service)


async def test_changed_or_forged_head_is_refused(here: Service) -> None:
    document = await here.heads.make()
    here.heads.must_be_signed(document)
    shorter = replace(document, chains=document.chains[1:])
    later = replace(document, elicit_audit_head=replace(document.elicit_audit_head, entries=1))
    for forged in (shorter, later):
        with pytest.raises(BadHead):
            here.heads.must_be_signed(forged)
    with pytest.raises(BadHead, match="--key"):
        here.heads.must_be_signed(document, key=b"k" * 32)


async def test_head_with_added_members_is_refused(here: Service) -> None:
    # finding: XD6
    text = written_document(await here.heads.make())
    assert read_document(text.encode()).elicit_audit_head.number == 1
    added = text.replace('{"elicit_audit_head":{', '{"elicit_audit_head":{"more":1,')
    for more in (added, text.replace('{"elicit', '{"more":1,"elicit', 1)):
        assert more != text
        with pytest.raises(BadHead):
            read_document(more.encode())


async def test_head_is_made_once_per_day_by_first_process() -> None:
    store, clock = MemoryStore(), Clock()
    async with audited(store, clock) as one, audited(store.sibling(), clock) as other:
        await asked(one)
        for _ in range(3):
            await one.heads.make_in_time()
            await other.heads.make_in_time()
            clock.tick(days=1)
        newest = await other.heads.newest()
        assert newest is not None
        assert (newest.number, newest.entries) == (3, 1)


def in_folder(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def identity_of(file: Path) -> int:
    return file.stat().st_ino


async def test_daily_head_is_exported_once_and_reveals_restored_backup(
    tmp_path: Path,
) -> None:
    policies = replaced(AUDITED, audit_heads=(tmp_path,))
    store, clock = MemoryStore(), Clock()
    async with (
        process(store, clock, policies=policies) as one,
        process(store.sibling(), clock, policies=policies) as other,
    ):
        question = await asked(one)
        await fall_due(one)
        (first,) = in_folder(tmp_path)
        written = identity_of(first)
        await fall_due(other)
        assert identity_of(first) == written
        yesterday = [each async for page in store.scan() for each in page]
        await one.elicitations.settle(question.id, Status.CANCELLED)
        for _ in range(2):
            clock.tick(days=1)
            await asyncio.gather(fall_due(one), fall_due(other))
        _, _, last = files = in_folder(tmp_path)
        heads = [read_document(file.read_bytes()).elicit_audit_head for file in files]
        assert [head.number for head in heads] == [1, 2, 3]
        assert "Nothing is missing" in (await verify_chains(other, against=last))[-1]
    back = MemoryStore()
    await put(back, *yesterday)
    async with audited(back, clock) as service:
        assert "Nothing is missing" in (await verify_chains(service, against=first))[-1]
        with pytest.raises(CommandRefused, match="its last 1 entry is missing"):
            await verify_chains(service, against=last)
        for number in range(3):  # until the chain is longer than before
            await asked(service, join=f"after {number}")
        with pytest.raises(CommandRefused, match="entry 2 or an earlier one differs from the head"):
            await verify_chains(service, against=last)


async def test_failed_export_of_head_stops_nothing_and_is_retried_after_an_hour(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "mounted later"
    clock = Clock()
    policies = replaced(AUDITED, audit_heads=(folder,))
    async with process(MemoryStore(), clock, policies=policies) as service:
        await fall_due(service)
        await fall_due(service)
        reported = [each for each in caplog.records if each.message == "audit.head_not_exported"]
        assert len(reported) == 1
        assert "ELICIT_AUDIT_HEADS" in reported[0].__dict__["why"]
        folder.mkdir()
        clock.tick(hours=1)
        await fall_due(service)
        assert len(in_folder(folder)) == 1


async def test_head_is_verifiable_with_saved_key_after_secret_was_removed(
    tmp_path: Path,
) -> None:
    store, clock = MemoryStore(), Clock()
    former, newer = b"a secret that is to go, 32 bytes", b"a secret that comes after it, 32"
    file = tmp_path / "head.json"
    async with audited(store, clock, ring=Ring([former])) as service:
        await asked(service)
        file.write_text("\n".join(await make_head(service)))
        (key,) = await show_keys(service)
    both = Ring([newer, former])
    async with audited(store.sibling(), clock, ring=both) as service:
        await rewrap(store=store, ring=both)
        assert "Nothing is missing" in (await verify_chains(service, against=file))[-1]
    async with audited(store.sibling(), clock, ring=Ring([newer])) as service:
        with pytest.raises(CommandRefused, match="--key"):
            await verify_chains(service, against=file)
        lines = await verify_chains(service, against=file, key=key)
        assert "Nothing is missing" in lines[-1]
        await asked(service, join="under the new one")
        assert await faults_of(service) == []


async def test_expired_entries_are_not_reported_as_missing() -> None:
    store, clock = MemoryStore(), Clock()
    async with audited(store, clock) as service:
        for number in range(PER_BLOCK + 1):
            clock.tick(days=30)
            await asked(service, join=str(number))
        head = await service.heads.make()
        assert await faults_of(service, head) == []
        for days, left in ((340, 1), (30, 0)):
            clock.tick(days=days)
            await store.erase(before=clock())
            assert len(await store.list(AUDIT)) == left
            assert await faults_of(service, head) == []
        await asked(service, join="after all of it")
        assert await faults_of(service, head) == []


async def test_chain_of_erased_owner_verifies_and_reveals_nothing() -> None:
    store, clock = MemoryStore(), Clock()
    async with audited(store, clock) as service:
        question = await asked(service)
        head = await service.heads.make()
        stored = await store.read(question.owner, DATA_KEY, question.owner)
        assert stored is not None
        await remove(service, stored)
    async with audited(store, clock, ring=RING) as service:
        assert await faults_of(service, head) == []
        (row,) = (await export_chain(service, question.owner[:OWNER_CHARACTERS])).rows
        assert (row.number, row.what, row.about) == (1, None, None)


async def test_chain_of_owner_is_exported_in_order() -> None:
    async with audited(MemoryStore(), Clock()) as service:
        question = await asked(service)
        await service.elicitations.settle(question.id, Status.CANCELLED, why="by the asker")
        rows = (await export_chain(service, "tests#alice")).rows
        also = (await export_owner(service, "tests#alice")).audit
    assert [(row.what, row.why) for row in rows] == [
        ("asked", None),
        ("cancelled", "by the asker"),
    ]
    assert [entry["what"] for entry in also] == ["asked", "cancelled"]
