"""Each owner's chain: every change is told of in the write that makes it, whoever else writes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from flows.elicitation import states
from flows.elicitation.proof import TrustedCode
from flows.elicitation.states import Elicitation, Lease, Status
from tests.support.chains import told_of
from tests.support.clock import Clock
from tests.support.service_env import asked, process, question_in_store
from tests.support.shared_stores import STORES
from webapp.elicitations.complete import complete_elicitation
from webapp.records.chain import AUDIT, HEAD
from webapp.service import Service
from webapp.settings.quotas import PolicySettings
from webapp.stores import Conflict, Store, open_store
from webapp.stores.memory import MemoryStore

AT_ONCE = 100


@pytest.fixture
async def here() -> AsyncIterator[Service]:
    async with process(MemoryStore(), Clock()) as service:
        yield service


def done(question: Elicitation, service: Service) -> Elicitation:
    lease = Lease(run="r", leg="l", until=service.clock())
    return states.deliver(replace(question, take=lease), run="r", now=service.clock())


async def test_a_question_tells_four_times_by_what_it_was_believed_and_what_was_shown(
    here: Service,
) -> None:
    question = await asked(here)
    await here.elicitations.open_attempt(question.id, browser="b" * 64)
    await complete_elicitation(here.elicitations, question.id, {"paid": True}, TrustedCode())
    await here.elicitations.change(question.id, lambda e: done(e, here))
    told = await told_of(here, question.owner)
    assert [each.what for each in told] == ["asked", "opened", "accepted", "delivered"]
    assert (told[0].tool, told[0].client, told[0].digest) == ("t", "c", "d")
    assert told[2].proof == "TrustedCode"
    assert question.owner + told[3].about == question.id
    assert len(await here.elicitations.store.list(AUDIT)) == 1


async def test_what_is_only_a_lease_tells_nothing(here: Service) -> None:
    question = await asked(here)
    await here.elicitations.change(question.id, lambda e: states.join(e, leg="2", run="r"))
    assert len(await told_of(here, question.owner)) == 1


async def test_a_write_that_lost_its_race_tells_nothing_and_spoils_no_other(here: Service) -> None:
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
    told = await told_of(here, first.owner)
    assert sorted(each.what for each in told) == ["asked"] * 3 + ["cancelled", "declined"]


async def test_a_row_that_another_process_read_is_read_again_before_it_is_told_of() -> None:
    store, clock = MemoryStore(), Clock()
    async with process(store, clock) as first, process(store.sibling(), clock) as second:
        question = await asked(first)
        await second.elicitations.rows.write(replace(question, waiter="leg"))
        assert len(await told_of(first, question.owner)) == 1


async def test_the_chain_is_off_where_it_is_set_so() -> None:
    store = MemoryStore()
    async with process(store, Clock(), policies=PolicySettings(audit=False)) as service:
        await asked(service)
    assert list(await store.list(AUDIT)) == []


async def test_a_chain_goes_on_where_its_newest_block_was_taken_away_and_says_so(
    here: Service,
) -> None:
    questions = [await asked(here, join=str(number)) for number in range(20)]
    store, owner = here.elicitations.store, questions[0].owner
    newest = await store.find(owner, AUDIT, HEAD)
    assert newest is not None
    await store.write(replace(newest, erase_at=here.clock()))
    await store.erase(before=here.clock())
    async with process(store.sibling(), Clock()) as again:  # type: ignore[attr-defined]
        await asked(again, join="after")
        told = await told_of(again, owner)
    assert [each.what for each in told[-2:]] == ["mended", "asked"]


async def test_the_chain_is_erased_when_its_time_is_over() -> None:
    store, clock = MemoryStore(), Clock()
    kept = PolicySettings(keep_audit=timedelta(days=30))
    async with process(store, clock, policies=kept) as service:
        await asked(service)
        (block,) = await store.list(AUDIT)
        assert block.erase_at == clock() + timedelta(days=30)


@pytest.mark.parametrize("kind", ["memory", *STORES])
async def test_a_hundred_settles_of_one_owner_by_two_processes_are_all_told_of(
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
            await stack.enter_async_context(process(each, clock)) for each in (store, other)
        ]
        questions = [await asked(services[0], join=str(n)) for n in range(AT_ONCE)]
        await asyncio.gather(
            *(
                services[number % 2].elicitations.settle(question.id, Status.DECLINED)
                for number, question in enumerate(questions)
            )
        )
        owner = questions[0].owner
        told = await told_of(services[0], owner)
        declined = {owner + each.about for each in told if each.what == "declined"}
        assert declined == {each.id for each in questions}
        assert len(told) == 2 * AT_ONCE
