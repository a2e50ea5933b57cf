"""The audit chain of an owner: every change is recorded in the write that makes the change."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from flows.elicitation import states
from flows.elicitation.states import Elicitation, Lease, Status
from flows.elicitation.traits import TrustedCode
from tests.support.chains import audit_entries_of, audited, faults_of, put
from tests.support.clock import Clock
from tests.support.service_env import asked, process, question_in_store
from tests.support.shared_stores import STORES
from webapp.cli.audit import export_chain
from webapp.elicitations.complete import complete_elicitation
from webapp.records.chain import AUDIT, HEAD, AuditChain, block_of
from webapp.records.entries import Entry
from webapp.service import Service
from webapp.settings.quotas import PolicySettings
from webapp.stores import Conflict, Record, Store, open_store
from webapp.stores.sqlite import MemoryStore

AT_ONCE = 100


@pytest.fixture
async def here() -> AsyncIterator[Service]:
    async with audited(MemoryStore(), Clock()) as service:
        yield service


def done(question: Elicitation, service: Service) -> Elicitation:
    lease = Lease(run="r", leg="l", until=service.clock())
    return states.deliver(replace(question, take=lease), run="r", now=service.clock())


async def test_audit_of_question_records_four_changes_with_proof_and_digest(
    here: Service,
) -> None:
    question = await asked(here)
    await here.elicitations.open_attempt(question.id, browser="b" * 64)
    await complete_elicitation(here.elicitations, question.id, {"paid": True}, TrustedCode())
    await here.elicitations.change(question.id, lambda e: done(e, here))
    entries = await audit_entries_of(here, question.owner)
    assert [each.what for each in entries] == ["asked", "opened", "accepted", "delivered"]
    assert (entries[0].tool, entries[0].client, entries[0].digest) == ("t", "c", "d")
    assert entries[2].proof == "TrustedCode"
    assert question.owner + entries[3].about == question.id
    assert len(await here.elicitations.store.list(AUDIT)) == 1


async def test_lease_is_not_recorded_in_audit(here: Service) -> None:
    question = await asked(here)
    await here.elicitations.change(
        question.id, lambda e: states.register_waiter(e, request_id="2", run="r")
    )
    assert len(await audit_entries_of(here, question.owner)) == 1


async def test_write_which_lost_race_is_not_recorded_and_others_are(here: Service) -> None:
    first, second = await asked(here, join="1"), await asked(here, join="2")
    stale = replace(first, status=Status.DECLINED)
    await here.elicitations.settle(first.id, Status.CANCELLED)
    outcomes = await asyncio.gather(
        here.elicitations.settle(second.id, Status.DECLINED),
        here.elicitations.write(stale),
        here.elicitations.write(question_in_store(here, join="3")),
        return_exceptions=True,
    )
    assert [isinstance(each, Conflict) for each in outcomes] == [False, True, False]
    entries = await audit_entries_of(here, first.owner)
    assert sorted(each.what for each in entries) == ["asked"] * 3 + ["cancelled", "declined"]


async def test_row_changed_by_other_process_is_read_again_before_audit_entry() -> None:
    store, clock = MemoryStore(), Clock()
    async with audited(store, clock) as first, audited(store.sibling(), clock) as second:
        question = await asked(first)
        await second.elicitations.rows.write(replace(question, waiter="leg"))
        assert len(await audit_entries_of(first, question.owner)) == 1


async def test_chain_is_off_without_setting() -> None:
    store = MemoryStore()
    async with process(store, Clock()) as service:
        await asked(service)
    assert list(await store.list(AUDIT)) == []


async def test_chain_continues_after_removed_block_and_records_repair(
    here: Service,
) -> None:
    questions = [await asked(here, join=str(number)) for number in range(20)]
    store, owner = here.elicitations.store, questions[0].owner
    newest = await store.find(owner, AUDIT, HEAD)
    assert newest is not None
    await store.write(replace(newest, erase_at=here.clock()))
    await store.erase(before=here.clock())
    async with audited(store.sibling(), Clock()) as again:  # type: ignore[attr-defined]
        await asked(again, join="after")
        entries = await audit_entries_of(again, owner)
    assert [each.what for each in entries[-2:]] == ["mended", "asked"]


async def test_chain_is_erased_after_retention_time() -> None:
    store, clock = MemoryStore(), Clock()
    stored = PolicySettings(audit=True, keep_audit=timedelta(days=30))
    async with process(store, clock, policies=stored) as service:
        await asked(service)
        (block,) = await store.list(AUDIT)
        assert block.erase_at is not None
        # Blocks are erased at the end of a day, so that most writes do not change `erase_at`.
        assert timedelta(days=30) <= block.erase_at - clock() < timedelta(days=31)
        clock.tick(days=31)
        await store.erase(before=clock())
        assert list(await store.list(AUDIT)) == []
        await asked(service, join="after its time")
        assert await faults_of(service) == []


async def rubbish(service: Service, newest: Record) -> None:
    await put(service.elicitations.store, replace(newest, sealed=b"\xc1" + newest.sealed[1:]))


async def another_bit(service: Service, newest: Record) -> None:
    sealed = bytearray(newest.sealed)
    sealed[newest.sealed.index(block_of(newest).entries[-1].sealed) + 40] ^= 1
    await put(service.elicitations.store, replace(newest, sealed=bytes(sealed)))


async def a_count_past_all_bounds(service: Service, newest: Record) -> None:
    block = block_of(newest)
    far = replace(block, before=replace(block.before, count=10**12 - 1))
    await put(service.elicitations.store, replace(newest, sealed=msgspec.msgpack.encode(far)))


async def another_block_as_the_newest(service: Service, newest: Record) -> None:
    store = service.elicitations.store
    former = (await store.list(AUDIT, owner=newest.owner))[-2]
    await put(
        store,
        replace(newest, key=None, status="full"),
        replace(former, key=HEAD, status=HEAD),
    )


@pytest.mark.parametrize(
    "harm", [rubbish, another_bit, a_count_past_all_bounds, another_block_as_the_newest]
)
async def test_damaged_newest_block_stops_no_question_and_stays_detectable(
    here: Service,
    harm: Callable[[Service, Record], Awaitable[None]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    questions = [await asked(here, join=str(number)) for number in range(20)]
    owner = questions[0].owner
    head = await here.heads.make()
    newest = await here.elicitations.store.find(owner, AUDIT, HEAD)
    assert newest is not None
    await harm(here, newest)
    store = here.elicitations.store
    async with audited(store.sibling(), Clock()) as again:  # type: ignore[attr-defined]
        for number in range(20):  # more than one block
            await asked(again, join=f"after {number}")
        found = await store.find(owner, AUDIT, HEAD)
        assert found is not None
        rows = (await export_chain(again, "tests#alice")).rows
        mended = [row.why for row in rows if row.what == "mended"]
        assert mended == ["its newest block was damaged"]
        assert [row.what for row in rows[-20:]] == ["asked"] * 20
        assert await faults_of(again)
        assert await faults_of(again, head)
        assert [record.message for record in caplog.records].count("audit.repaired") == 1


async def test_block_of_long_texts_stays_below_size_limit_of_store(here: Service) -> None:
    words = "\N{PILE OF POO}" * 300
    fresh = [question_in_store(here, join=str(number)) for number in range(100)]
    long = [
        replace(each, request=replace(each.request, server=words, tool=words, client=words))
        for each in fresh
    ]
    await asyncio.gather(*map(here.elicitations.write, long))
    blocks = await here.elicitations.store.list(AUDIT)
    assert sum(len(block_of(each).entries) for each in blocks) == 100
    assert max(len(each.sealed) for each in blocks) < 40_000
    assert await faults_of(here) == []


async def test_block_of_long_entries_ends_before_the_size_limit_of_the_store(
    here: Service,
) -> None:
    # finding: XH3
    chain = here.elicitations.rows.chain
    assert chain is not None
    long = Entry(kind="elicitation", what="declined", about="q", why="w" * 3_000)
    await chain.write("owner", (), *[long] * 9)  # more than half of a block's bytes
    await chain.write("owner", (), *[long] * 40)
    blocks = await here.elicitations.store.list(AUDIT, owner="owner")
    assert [len(block_of(each).entries) for each in blocks] == [11, 11, 11, 11, 5]
    assert max(len(each.sealed) for each in blocks) < 36 * 1024  # 32 kB and one more entry


class SlowStore(MemoryStore):
    """A store whose writes let other tasks run first, as writes over a network do."""

    async def write(self, *records: Record) -> tuple[Record, ...]:
        await asyncio.sleep(0)
        return await super().write(*records)


async def test_large_writes_of_one_row_do_not_delay_writes_of_other_rows() -> None:
    finished = list[str]()

    async def write(chain: AuditChain, about: str, *, version: int = 0) -> None:
        versions = {about: version} | {f"{about} {version} {n}": 0 for n in range(149)}
        row = partial(
            Record,
            owner="owner",
            kind="account",
            status="",
            key=None,
            due_at=None,
            erase_at=None,
            sealed=b"",
        )
        rows = tuple(row(id=id, version=version) for id, version in versions.items())
        await chain.write("owner", rows, Entry(kind="account", what="used", about=about))
        finished.append(f"{about} {version}")

    async with audited(SlowStore(), Clock()) as service:
        chain = service.elicitations.rows.chain
        assert chain is not None
        same = [write(chain, "same", version=version) for version in range(4)]
        await asyncio.gather(*same, write(chain, "other"))
    assert finished == ["same 0", "same 1", "other 0", "same 2", "same 3"]


async def test_entry_is_stored_as_long_as_the_entry_before_if_retention_was_shortened() -> None:
    # finding: XH3
    store, clock = MemoryStore(), Clock()
    year = PolicySettings(audit=True, keep_audit=timedelta(days=365))
    month = PolicySettings(audit=True, keep_audit=timedelta(days=30))
    async with process(store, clock, policies=year) as service:
        await asked(service, join="1")
    async with process(store.sibling(), clock, policies=month) as service:
        await asked(service, join="2")
        (block,) = await store.list(AUDIT)
        first, second = block_of(block).entries
        assert second.until == first.until
        clock.tick(days=364)
        await store.erase(before=clock())
        assert len(await store.list(AUDIT)) == 1


async def test_cancelled_write_leaves_chain_usable_for_others(here: Service) -> None:
    await asked(here, join="1")
    fresh = [question_in_store(here, join=name) for name in ("given up", "2", "3")]
    first, *others = [asyncio.create_task(here.elicitations.write(each)) for each in fresh]
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(*others)
    entries = await audit_entries_of(here, fresh[0].owner)
    assert fresh[1].owner + entries[-2].about == fresh[1].id
    assert await faults_of(here) == []


@pytest.mark.parametrize("kind", ["memory", *STORES])
async def test_hundred_concurrent_changes_of_same_owner_by_two_processes_are_recorded(
    kind: str, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        store: Store
        other: Store
        if kind == "memory":
            store = first = MemoryStore()
            other = first.sibling()
        else:
            address = await stack.enter_async_context(STORES[kind](tmp_path))
            store, other = [await open_store(address) for _ in range(2)]
            stack.push_async_callback(store.aclose)
            stack.push_async_callback(other.aclose)
        clock = Clock()
        services = [
            await stack.enter_async_context(audited(each, clock)) for each in (store, other)
        ]
        questions = [await asked(services[0], join=str(n)) for n in range(AT_ONCE)]
        await asyncio.gather(
            *(
                services[number % 2].elicitations.settle(question.id, Status.DECLINED)
                for number, question in enumerate(questions)
            )
        )
        owner = questions[0].owner
        entries = await audit_entries_of(services[0], owner)
        declined = {owner + each.about for each in entries if each.what == "declined"}
        assert declined == {each.id for each in questions}
        assert len(entries) == 2 * AT_ONCE
        assert await faults_of(services[1]) == []
