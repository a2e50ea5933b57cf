"""Quotas: which question supersedes which, how many may be open, and how long each one lasts.

Processes on the same store share the quotas.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from flows import elicit
from flows.elicitation import flow as attempts
from flows.elicitation.states import Elicitation, Status
from flows.errors import Expired, Superseded, TooManyPending
from flows.question import Outcome, Question, asking
from tests.support.clock import Clock
from tests.support.mcp_server import eventually, soon, text_of
from tests.support.service_env import Holding, call_of, process
from tests.support.shop_env import buying, open_shop
from webapp.calls.call import Call
from webapp.calls.verbs import Verbs
from webapp.elicitations.watcher import listen
from webapp.kinds.quotas import BETWEEN_COUNTS
from webapp.records.values import Standing
from webapp.service import Service
from webapp.settings.quotas import PER_OWNER_AT_MOST, PolicySettings
from webapp.stores import open_store
from webapp.stores.sqlite import MemoryStore
from webapp.sweeper import fall_due

ADDRESS = "https://example.com/"
ONE = PolicySettings(one_per_session=True)
ROUNDS = 25


def going(message: str = "Please go there.", **more: Any) -> Question[Any]:
    return elicit.url(message, ADDRESS, **more)


@dataclass
class Asking:
    """A call that asks a question, with the future of the question's outcome."""

    call: Call
    presenter: Holding
    outcome: "asyncio.Future[Outcome[Any]]" = field(init=False)

    @property
    def id(self) -> str:
        assert self.presenter.shown is not None
        return self.presenter.shown.elicitation.id

    @property
    def is_reported(self) -> bool:
        return self.presenter.holds is not None or self.outcome.done()


def start(
    service: Service, name: object, question: Question[Any] | None = None, **who: Any
) -> Asking:
    """Start a separate call with `name` as its arguments."""
    presenter = Holding()
    one = Asking(call_of(service, presenter=presenter, arguments=name, **who), presenter)

    async def ask() -> Outcome[Any]:
        one.call.begin()
        with asking(Verbs(one.call)):
            return await (going() if question is None else question).outcome()

    one.outcome = asyncio.ensure_future(ask())
    return one


async def started(service: Service, name: object, **more: Any) -> Asking:
    one = start(service, name, **more)
    await eventually(lambda: one.is_reported)
    if one.outcome.done():
        one.outcome.result()
    return one


async def give_up(*all_of_them: Asking) -> None:
    for one in all_of_them:
        one.outcome.cancel()
    await asyncio.gather(*(one.outcome for one in all_of_them), return_exceptions=True)


async def rows(service: Service) -> list[Elicitation]:
    return await service.elicitations.all(Elicitation)


async def two_are_asked(service: Service) -> None:
    while len(await rows(service)) < 2:  # noqa: ASYNC110 - poll the store
        await asyncio.sleep(0)


async def statuses(service: Service) -> list[str]:
    return sorted(str(row.status) for row in await rows(service))


async def only_waiting(calls: list[Asking]) -> Asking:
    """Wait until all calls but one have ended, and return the one that still waits."""
    await eventually(lambda: sum(not one.outcome.done() for one in calls) == 1)
    (left,) = [one for one in calls if not one.outcome.done()]
    await eventually(lambda: left.presenter.holds is not None)
    return left


@asynccontextmanager
async def on_one_file(
    path: Path, clock: Clock, policies: PolicySettings, *, count: int = 2
) -> AsyncIterator[list[Service]]:
    """Open processes on one SQLite file, each listening to the others' changes."""
    async with AsyncExitStack() as stack:
        services = []
        for _ in range(count):
            store = await open_store(f"sqlite:///{path / 'one.db'}")
            stack.push_async_callback(store.aclose)
            service = await stack.enter_async_context(process(store, clock, policies=policies))
            listening = asyncio.create_task(listen(service.elicitations))
            stack.push_async_callback(asyncio.wait, {listening})
            stack.callback(listening.cancel)
            services.append(service)
        yield services


# One pending question for each session.


async def test_session_can_have_several_open_questions_by_default(here: Service) -> None:
    # parity: F8
    first, second = await started(here, "first"), await started(here, "second")
    assert await statuses(here) == ["pending", "pending"]
    await give_up(first, second)


@pytest.mark.parametrize("policies", [ONE])
async def test_new_question_supersedes_question_of_another_call(
    clock: Clock, store: MemoryStore, policies: PolicySettings
) -> None:
    # parity: F8
    async with process(store, clock, policies=policies) as service:
        first = await started(service, "first")
        second = await started(service, "second")
        outcome = await soon(first.outcome)
        assert (outcome.status, outcome.action, bool(outcome)) == ("superseded", "cancel", False)
        assert isinstance(outcome.error, Superseded)
        assert outcome.error.elicitation_id == first.id
        assert await statuses(service) == ["pending", "superseded"]
        again = await started(service, "first")
        assert again.id != first.id
        assert (await soon(second.outcome)).status is Status.SUPERSEDED
        await give_up(again)


async def test_superseded_call_in_other_process_is_notified(tmp_path: Path, clock: Clock) -> None:
    # parity: F8
    async with on_one_file(tmp_path, clock, ONE) as (here, there):
        first = await started(here, "first")
        second = await started(there, "second")
        outcome = await soon(first.outcome)
        assert (outcome.status, outcome.action) == (Status.SUPERSEDED, "cancel")
        assert isinstance(outcome.error, Superseded)
        await give_up(second)


async def test_concurrent_questions_of_two_processes_leave_single_open_question(
    tmp_path: Path, clock: Clock
) -> None:
    # parity: F8
    async with on_one_file(tmp_path, clock, ONE) as services:
        for number in range(ROUNDS):
            clock.tick(seconds=1)
            calls = [start(service, [number, index]) for index, service in enumerate(services * 2)]
            left = await only_waiting(calls)
            for one in calls:
                if one is not left:
                    assert one.outcome.result().status is Status.SUPERSEDED
            pending = [row for row in await rows(services[0]) if not row.status.is_final]
            assert [row.id for row in pending] == [left.id]
            await give_up(left)
        assert await statuses(services[0]) == ["pending"] + ["superseded"] * (4 * ROUNDS - 1)


async def test_questions_of_same_run_do_not_supersede_each_other(
    clock: Clock, store: MemoryStore
) -> None:
    # parity: F8
    async with process(store, clock, policies=ONE) as service:
        call = call_of(service, presenter=Holding())
        call.begin()
        with asking(Verbs(call)):
            both = asyncio.gather(going("One.").outcome(), going("Two.").outcome())
        await two_are_asked(service)
        assert await statuses(service) == ["pending", "pending"]
        for row in await rows(service):
            await service.completing.complete(row.id, {})
        assert all(await soon(both))
        with asking(Verbs(call)):
            third = asyncio.ensure_future(going("Three.").outcome())
        other = await started(service, "other")
        assert (await soon(third)).status is Status.SUPERSEDED
        await give_up(other)


async def test_question_joined_by_same_run_is_not_superseded(
    clock: Clock, store: MemoryStore
) -> None:
    # parity: F8
    async with process(store, clock, policies=ONE) as service:
        named = going("The same.", key="named")
        first = await started(service, "first", question=named)
        call = call_of(service, presenter=Holding(), arguments="second")
        call.begin()
        with asking(Verbs(call)):
            both = asyncio.gather(named.outcome(), going("Another.").outcome())
        await two_are_asked(service)
        assert await statuses(service) == ["pending", "pending"]
        both.cancel()
        await asyncio.gather(both, return_exceptions=True)
        await give_up(first)


@pytest.mark.parametrize("other", [{"client": "another"}, {"subject": "bob"}], ids=str)
async def test_question_of_another_session_is_not_superseded(
    clock: Clock, store: MemoryStore, other: dict[str, str]
) -> None:
    # parity: F8
    async with process(store, clock, policies=ONE) as service:
        first = await started(service, "first")
        second = await started(service, "second", **other)
        assert await statuses(service) == ["pending", "pending"]
        await give_up(first, second)


async def test_question_in_token_exchange_is_not_superseded(
    clock: Clock, store: MemoryStore
) -> None:
    # parity: F8
    async with process(store, clock, policies=ONE) as service:
        first = await started(service, "first")
        change = service.elicitations.change
        await change(
            first.id,
            lambda e: attempts.open_attempt(e, browser="b", now=clock(), state="s"),
        )
        await change(first.id, lambda e: attempts.come_back(e, state="s", now=clock()))
        second = await started(service, "second")
        await service.completing.complete(first.id, {})
        assert (await soon(first.outcome)).accepted
        assert await statuses(service) == ["accepted", "pending"]
        await give_up(second)


async def test_checkout_of_superseded_question_is_expired_at_provider() -> None:
    # parity: F8
    async with open_shop() as shop:
        await shop.restart(policies=ONE)
        async with buying(shop) as buy:
            session = (await buy.person.go_on(buy.link)).rsplit("/", 1)[1]
            assert (await shop.session(session))["status"] == "open"
            newer = buy.caller.call("report", topic="coffee")
            result = await soon(buy.call)
            assert result.is_error
            assert result.meta["code"] == "ELICITATION_SUPERSEDED"
            link = await buy.caller.link()
            await shop.sweep()
            assert (await shop.session(session))["status"] == "expired"
            assert sorted(await shop.statuses()) == ["pending", "superseded"]
            await buy.person.pay(link)
            await shop.send_all()
            assert text_of(await soon(newer)) == "paid 9.00 EUR"


# The number of open questions.


async def test_open_questions_per_owner_are_limited_and_refusal_leaves_no_rows(
    clock: Clock, store: MemoryStore
) -> None:
    policies = PolicySettings(pending_per_owner=3)
    made: list[object] = []

    def address(link: object) -> str:
        made.append(link)
        return ADDRESS

    async with process(store, clock, policies=policies) as service:
        there = [await started(service, number) for number in range(3)]
        before = {kind: len(await store.list(kind)) for kind in ("elicitation", "run", "alias")}
        with pytest.raises(TooManyPending) as refused:
            await started(
                service,
                "more",
                question=elicit.url(
                    "More?", address, origins=[ADDRESS[:-1]], elicitation_id="more"
                ),
            )
        assert (refused.value.limit, refused.value.http_status) == (3, 429)
        assert "for this person" in str(refused.value)
        assert before == {kind: len(await store.list(kind)) for kind in before}
        assert made == []
        bobs = await started(service, "more", subject="bob")
        joined = await started(service, 0)
        assert joined.id == there[0].id, "an identical question joins the open question"
        await service.elicitations.settle(there[1].id, Status.DECLINED)
        fourth = await started(service, "more")
        await give_up(*there, bobs, fourth, joined)


async def test_expired_question_does_not_count_against_limit(
    clock: Clock, store: MemoryStore
) -> None:
    async with process(store, clock, policies=PolicySettings(pending_per_owner=1)) as service:
        first = await started(service, "first")
        await give_up(first)
        clock.tick(minutes=5)
        second = await started(service, "second")
        await give_up(second)


async def test_two_processes_together_respect_limit_of_owner(tmp_path: Path, clock: Clock) -> None:
    policies = PolicySettings(pending_per_owner=4)
    async with on_one_file(tmp_path, clock, policies) as services:
        calls = [start(service, index) for index, service in enumerate(services * 6)]
        await eventually(lambda: all(one.is_reported for one in calls))
        refused = [one.outcome.exception() for one in calls if one.outcome.done()]
        assert len(refused) == 8
        assert {type(error) for error in refused} == {TooManyPending}
        assert await statuses(services[0]) == ["pending"] * 4
        await give_up(*calls)


async def test_highest_limit_per_owner_fits_in_its_row(clock: Clock, store: MemoryStore) -> None:
    policies = PolicySettings(pending_per_owner=PER_OWNER_AT_MOST)
    async with process(store, clock, policies=policies) as service:
        calls = [start(service, number) for number in range(PER_OWNER_AT_MOST + 1)]
        await eventually(lambda: all(one.is_reported for one in calls))
        assert sum(one.outcome.done() for one in calls) == 1
        (row,) = await store.list("standing")
        assert row.status == str(PER_OWNER_AT_MOST)
        await give_up(*calls)


async def test_open_questions_of_server_are_limited(clock: Clock, store: MemoryStore) -> None:
    policies = PolicySettings(pending_at_most=3)
    async with process(store, clock, policies=policies) as service:
        there = [await started(service, 0, subject=name) for name in ("a", "b", "c")]
        with pytest.raises(TooManyPending) as refused:
            await started(service, 0, subject="d")
        assert refused.value.is_in_all
        assert "on this server" in str(refused.value)
        await service.elicitations.settle(there[0].id, Status.DECLINED)
        clock.tick(seconds=1)
        fourth = await started(service, 0, subject="d")
        await give_up(*there, fourth)


async def test_answered_questions_do_not_count_toward_the_limit_of_the_server(
    clock: Clock, store: MemoryStore
) -> None:
    policies = PolicySettings(pending_at_most=2)
    async with process(store, clock, policies=policies) as service:
        for number in range(10):
            clock.tick(seconds=1)
            one = await started(service, 0, subject=f"person {number}")
            await service.completing.complete(one.id, {})
            assert (await soon(one.outcome)).accepted


async def test_questions_of_other_processes_are_included_in_next_count(
    clock: Clock, store: MemoryStore
) -> None:
    policies = PolicySettings(pending_at_most=2)
    async with (
        process(store, clock, policies=policies) as here,
        process(store.sibling(), clock, policies=policies) as there,
    ):
        first = await started(here, 0, subject="a")
        second = await started(there, 0, subject="b")
        clock.tick(seconds=BETWEEN_COUNTS.total_seconds() + 1)
        with pytest.raises(TooManyPending):
            await started(here, 0, subject="c")
        await give_up(first, second)


async def test_person_without_open_questions_leaves_no_row(
    clock: Clock, store: MemoryStore
) -> None:
    async with process(store, clock) as service:
        first = await started(service, "first")
        (row,) = await service.elicitations.all(Standing)
        assert [one.id for one in row.open] == [first.id]
        await give_up(first)
        clock.tick(minutes=6)
        await fall_due(service)
        assert await service.elicitations.all(Standing) == []
        second = await started(service, "second")
        await give_up(second)


# The duration of questions.


async def test_checkout_of_expired_question_is_expired_at_provider_and_tool_ends() -> None:
    # parity: F7
    async with open_shop() as shop, buying(shop) as buy:
        session = (await buy.person.go_on(buy.link)).rsplit("/", 1)[1]
        await shop.expire()
        result = await soon(buy.call)
        assert (result.meta["code"], result.meta["status"]) == ("ELICITATION_TIMEOUT", 408)
        assert result.meta["elicitId"] == shop.env.id_of(buy.link)
        assert result.meta["ttl"] == 30 * 60 * 1000
        assert (await shop.session(session))["status"] == "expired"
        assert shop.given == []
        await eventually(lambda: not len(shop.service.elicitations.waiters))
        await eventually(lambda: not len(shop.service.running_tools))


async def test_timeout_is_cut_to_maximum_and_logged_once(
    clock: Clock, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    # parity: F7
    policies = PolicySettings(timeout_at_most=timedelta(minutes=2))
    with caplog.at_level(logging.WARNING, "webapp.kinds.quotas"):
        async with process(store, clock, policies=policies) as service:
            first = await started(service, "first", question=going(timeout=timedelta(minutes=9)))
            second = await started(service, "second")
            short = await started(service, "short", question=going(timeout=timedelta(minutes=1)))
            lives = [row.expires_at - row.created_at for row in await rows(service)]
            assert sorted(lives) == [timedelta(minutes=1), *[timedelta(minutes=2)] * 2]
            clock.tick(minutes=2)
            await fall_due(service)
            error = (await soon(first.outcome)).error
            assert isinstance(error, Expired)
            assert error.ttl == timedelta(minutes=2)
            assert "within 120 seconds" in str(error)
            await give_up(second, short)
    cut = [record for record in caplog.records if record.message == "elicitation.timeout_cut"]
    assert len(cut) == 1
    assert vars(cut[0])["seconds"] == 120


async def test_question_ended_in_same_process_is_removed_from_the_open_questions(
    clock: Clock, store: MemoryStore
) -> None:
    async with process(store, clock) as service:
        first = await started(service, "first")
        await service.elicitations.settle(first.id, Status.DECLINED)
        second = await started(service, "second")
        (row,) = await service.elicitations.all(Standing)
        assert [one.id for one in row.open] == [second.id]
        await give_up(first, second)
