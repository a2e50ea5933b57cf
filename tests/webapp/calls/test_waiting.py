"""Waiting for an answer: the notification can come early, from elsewhere, or never."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from msgspec.structs import replace

from flows import elicit
from flows.elicitation.states import LEASE, Completion, Json, Status
from flows.errors import CallOver, Cancelled, NotPossible, QuestionChanged
from flows.question import asking
from tests.support.call_requests import answer, call_request, id_of, settled_loop, soon
from tests.support.clock import Clock
from tests.support.service_env import Holding, asked, call_of, process
from webapp.calls.call import Interrupted
from webapp.calls.verbs import Verbs
from webapp.elicitations.watcher import listen
from webapp.records.ids import owner_of
from webapp.service import Service
from webapp.stores import Record
from webapp.stores.sqlite import MemoryStore
from webapp.sweeper import fall_due


@pytest.fixture
async def listening(here: Service, there: Service) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(listen(each.elicitations)) for each in (here, there)]
    await settled_loop()
    yield
    for task in tasks:
        assert not task.done(), "the listener must run until the test ends"
        task.cancel()
    await asyncio.wait(tasks)


async def test_await_returns_when_question_is_completed(here: Service) -> None:
    _, presenter, waiting = await call_request(here)
    assert await here.completing.complete(id_of(presenter), {"n": 1}) is Completion.ACCEPTED
    outcome = await soon(waiting)
    assert (outcome.status, outcome.content) == (Status.ACCEPTED, {"n": 1})
    assert len(here.elicitations.waiters) == 0


async def test_question_completed_before_wait_needs_no_wake(here: Service, there: Service) -> None:
    # defect: frontmcp subscribes after sending
    first, presenter, waiting = await call_request(here)
    waiting.cancel()
    await settled_loop()
    await first.finish()
    await there.completing.complete(id_of(presenter), {"n": 1})
    assert (await soon(answer(call_of(here)))).content == {"n": 1}


async def test_completion_claims_outcome_for_waiting_request_in_same_write(here: Service) -> None:
    call, presenter, waiting = await call_request(here)
    before = await here.elicitations.get(id_of(presenter))
    await here.completing.complete(id_of(presenter), {})
    after = await here.elicitations.get(id_of(presenter))
    assert before is not None
    assert after is not None
    assert after.version == before.version + 1
    assert after.take is not None
    assert after.take.leg == call.request_id
    assert call.used.has_claimed, "the waiting request claims the outcome before its body continues"
    with pytest.raises(NotPossible):
        await here.elicitations.claim(after.id, run="r", request_id="another")
    await soon(waiting)


async def test_decline_is_delivered_to_waiting_request(here: Service) -> None:
    _, presenter, waiting = await call_request(here)
    await here.elicitations.settle(id_of(presenter), Status.DECLINED)
    assert (await soon(waiting)).action == "decline"


async def test_completion_in_another_process_wakes_waiter(
    here: Service, there: Service, listening: None
) -> None:
    call, presenter, waiting = await call_request(here)
    await there.completing.complete(id_of(presenter), {"n": 1})
    assert (await soon(waiting)).content == {"n": 1}
    result = await there.elicitations.get(id_of(presenter))
    assert result is not None
    assert result.take is not None
    assert result.take.leg == call.request_id


async def test_open_list_of_a_person_sees_question_of_another_process(
    here: Service, there: Service, listening: None
) -> None:
    # finding: XP7
    _, presenter, waiting = await call_request(here)
    id = id_of(presenter)
    with there.elicitations.waiters.waiter(owner_of(id), sees_all=True) as page:
        await here.completing.complete(id, {"n": 1})
        now = there.clock()
        assert await soon(page.changes(until=now + timedelta(minutes=1), now=now))
    await soon(waiting)


async def test_wake_all_makes_every_waiter_check_again(here: Service, there: Service) -> None:
    _, presenter, waiting = await call_request(here)
    await there.completing.complete(id_of(presenter), {"n": 1})
    await settled_loop()
    assert not waiting.done(), "without a watcher, no change wakes the waiting call"
    here.elicitations.waiters.wake_all()
    assert (await soon(waiting)).content == {"n": 1}


async def test_opening_link_wakes_no_waiter(here: Service) -> None:
    _, presenter, waiting = await call_request(here)
    await here.elicitations.open_attempt(id_of(presenter), browser="b")
    await settled_loop()
    assert not waiting.done()
    waiting.cancel()


async def test_newer_identical_request_interrupts_older_wait(here: Service) -> None:
    older, presenter, first = await call_request(here)
    _, _, second = await call_request(here)
    with pytest.raises(Interrupted):
        await soon(first)
    assert older.answer == "busy"
    await here.completing.complete(id_of(presenter), {"n": 1})
    assert (await soon(second)).content == {"n": 1}


async def test_newer_request_in_another_process_interrupts_older_wait(
    here: Service, there: Service, listening: None
) -> None:
    older, presenter, first = await call_request(here)
    _, _, second = await call_request(there)
    with pytest.raises(Interrupted):
        await soon(first)
    assert older.answer == "busy"
    await here.completing.complete(id_of(presenter), {"n": 1})
    assert (await soon(second)).content == {"n": 1}


async def test_cancelled_wait_leaves_question_open_for_same_call(
    here: Service,
) -> None:
    call, presenter, waiting = await call_request(here)
    waiting.cancel()
    await settled_loop()
    await call.finish()
    assert len(here.elicitations.waiters) == 0
    _, second, again = await call_request(here)
    assert id_of(second) == id_of(presenter)
    await here.completing.complete(id_of(presenter), {"n": 1})
    assert (await soon(again)).content == {"n": 1}


class Slow(MemoryStore):
    """A store whose writes are answered when the gate opens."""

    gate: asyncio.Event | None = None

    async def write(self, *records: Record) -> tuple[Record, ...]:
        written = await super().write(*records)
        if self.gate is not None:
            await self.gate.wait()
        return written


async def test_claim_for_waiter_which_left_is_released(clock: Clock) -> None:
    store = Slow()
    async with process(store, clock) as here:
        call, presenter, waiting = await call_request(here)
        store.gate = asyncio.Event()
        completing = asyncio.ensure_future(here.completing.complete(id_of(presenter), {}))
        await settled_loop()
        waiting.cancel()
        await settled_loop()
        await call.finish()
        assert not call.used.has_claimed
        store.gate.set()
        assert await soon(completing) is Completion.ACCEPTED
        store.gate = None
        stored = await here.elicitations.get(id_of(presenter))
        assert stored is not None
        assert stored.take is None
        assert (await soon(answer(call_of(here)))).accepted


async def test_sweeper_ends_wait_after_timeout(here: Service, clock: Clock) -> None:
    _, _, waiting = await call_request(here)
    clock.tick(minutes=5)
    await fall_due(here)
    outcome = await soon(waiting)
    assert outcome.status is Status.EXPIRED
    assert "300 seconds" in str(outcome.error)


async def test_sweeper_of_another_process_ends_wait(
    here: Service, there: Service, listening: None, clock: Clock
) -> None:
    _, _, waiting = await call_request(here)
    clock.tick(minutes=5)
    await fall_due(there)
    assert (await soon(waiting)).status is Status.EXPIRED


async def test_expired_wait_ends_at_wake_without_sweeper(here: Service, clock: Clock) -> None:
    _, presenter, waiting = await call_request(here)
    clock.tick(minutes=5)
    here.elicitations.waiters.wake_all()
    assert (await soon(waiting)).status is Status.EXPIRED
    stored = await here.elicitations.get(id_of(presenter))
    assert stored is not None
    assert stored.status is Status.EXPIRED


async def test_damaged_row_does_not_end_listener(here: Service, store: MemoryStore) -> None:
    listening = asyncio.ensure_future(listen(here.elicitations))
    await settled_loop()
    _, presenter, waiting = await call_request(here)
    record = await store.read(id_of(presenter)[:20], "elicitation", id_of(presenter))
    assert record is not None
    await store.sibling().write(replace(record, sealed=b"damaged"))
    await settled_loop()
    waiting.cancel()
    has_ended = listening.done()
    listening.cancel()
    await asyncio.wait({listening})
    assert not has_ended


async def test_undelivered_result_is_returned_to_same_call(here: Service) -> None:
    call, presenter, waiting = await call_request(here)
    await here.completing.complete(id_of(presenter), {"n": 1})
    await soon(waiting)
    await call.finish(lambda: '"done"')
    again = call_of(here)
    with pytest.raises(Interrupted):
        await soon(answer(again))
    assert again.answer == "done"


async def test_same_call_after_delivery_asks_new_question(here: Service) -> None:
    call, presenter, waiting = await call_request(here)
    await here.completing.complete(id_of(presenter), {"n": 1})
    await soon(waiting)
    await call.finish(lambda: '"done"')
    await call.delivered()
    _, second, again = await call_request(here)
    assert id_of(second) != id_of(presenter)
    again.cancel()
    used = await here.elicitations.get(id_of(presenter))
    assert used is not None
    assert (used.content, used.holds_key) == (None, False)
    assert used.delivered_at is not None


async def test_undelivered_result_is_repeated_for_ten_minutes(here: Service, clock: Clock) -> None:
    call, presenter, waiting = await call_request(here)
    await here.completing.complete(id_of(presenter), {"n": 1})
    await soon(waiting)
    await call.finish(lambda: '"done"')
    clock.tick(minutes=10, seconds=-1)
    again = call_of(here)
    with pytest.raises(Interrupted):
        await soon(answer(again))
    assert again.answer == "done"
    clock.tick(seconds=1)
    later = call_of(here)
    outcome = asyncio.ensure_future(answer(later))
    await settled_loop()
    assert later.answer is None
    outcome.cancel()


async def test_second_body_does_not_start_while_first_runs(here: Service, clock: Clock) -> None:
    first, presenter, waiting = await call_request(here)
    await here.completing.complete(id_of(presenter), {"n": 1})
    await soon(waiting)
    second = asyncio.ensure_future(answer(call_of(here)))
    await settled_loop()
    assert not second.done()
    clock.tick(seconds=LEASE.total_seconds() - 1)
    await first.renew()
    clock.tick(seconds=2)
    here.elicitations.waiters.wake_all()
    await settled_loop()
    assert not second.done()
    await first.finish()
    here.elicitations.waiters.wake_all()
    assert (await soon(second)).content == {"n": 1}


async def test_call_after_crash_claims_outcome_when_lease_expires(
    here: Service, store: MemoryStore, clock: Clock
) -> None:
    _, presenter, waiting = await call_request(here)
    await here.completing.complete(id_of(presenter), {"n": 1})
    await soon(waiting)
    async with process(store.sibling(), clock) as restarted:
        clock.tick(seconds=LEASE.total_seconds())
        assert (await soon(answer(call_of(restarted)))).content == {"n": 1}


@pytest.mark.parametrize(("hours", "asked_in_all"), [(-2, 1), (2, 2), (8, 2)])
async def test_question_expires_by_clock_time_and_same_call_asks_again(
    here: Service, clock: Clock, hours: int, asked_in_all: int
) -> None:
    # finding: H2
    await call_request(here)
    clock.set(hours=hours)
    await call_request(here)
    assert len(await here.elicitations.store.list("elicitation")) == asked_in_all


async def test_lease_of_dead_call_expires_although_clock_was_set_back(
    here: Service, store: MemoryStore, clock: Clock
) -> None:
    # finding: H2
    _, presenter, waiting = await call_request(here)
    await here.completing.complete(id_of(presenter), {"n": 1})
    await soon(waiting)
    clock.set(hours=-2)
    async with process(store.sibling(), clock) as restarted:
        again = asyncio.ensure_future(answer(call_of(restarted)))
        await settled_loop()
        assert not again.done(), (
            "the body of the dead call may still be running until its lease expires"
        )
        for _ in range(6):
            clock.tick(seconds=LEASE.total_seconds() / 6)
            restarted.elicitations.waiters.wake_all()
            await settled_loop()
        assert (await soon(again)).content == {"n": 1}


async def test_lease_of_running_call_is_renewed_although_clock_was_set_back(
    here: Service, store: MemoryStore, clock: Clock
) -> None:
    # finding: H2
    call, presenter, waiting = await call_request(here)
    await here.completing.complete(id_of(presenter), {"n": 1})
    await soon(waiting)
    clock.set(hours=-2)
    async with process(store.sibling(), clock) as another:
        again = asyncio.ensure_future(answer(call_of(another)))
        await settled_loop()
        for _ in range(6):
            clock.tick(seconds=LEASE.total_seconds() / 3)
            await call.renew()
            another.elicitations.waiters.wake_all()
            await settled_loop()
        assert not again.done()
        again.cancel()
        await settled_loop()


async def test_second_body_does_not_start_after_machine_resumes_from_sleep(
    here: Service, store: MemoryStore, clock: Clock
) -> None:
    # finding: H2
    call, presenter, waiting = await call_request(here)
    await here.completing.complete(id_of(presenter), {"n": 1})
    await soon(waiting)
    async with process(store.sibling(), clock) as another:
        clock.set(seconds=45)
        again = [asyncio.ensure_future(answer(call_of(each))) for each in (here, another)]
        await settled_loop()
        assert not any(one.done() for one in again), (
            "no second body starts: the first one still runs after the sleep"
        )
        for _ in range(6):
            clock.tick(seconds=10)
            await call.renew()
            for each in (here, another):
                each.elicitations.waiters.wake_all()
            await settled_loop()
        assert not any(one.done() for one in again)
        for one in again:
            one.cancel()
        await settled_loop()


async def test_new_process_does_not_wait_for_request_after_reported_end(
    here: Service, store: MemoryStore, clock: Clock
) -> None:
    call, presenter, waiting = await call_request(here)
    await here.completing.complete(id_of(presenter), {"n": 1})
    await soon(waiting)
    await call.go_on()
    async with process(store.sibling(), clock) as begun:
        outcome = await soon(asyncio.ensure_future(answer(call_of(begun))))
        assert outcome.status is Status.ACCEPTED


async def test_new_process_waits_for_lease_of_unknown_request(
    here: Service, store: MemoryStore, clock: Clock
) -> None:
    # finding: H2
    call, presenter, waiting = await call_request(here)
    await here.completing.complete(id_of(presenter), {"n": 1})
    await soon(waiting)
    clock.set(seconds=45)
    async with process(store.sibling(), clock) as begun:
        again = asyncio.ensure_future(answer(call_of(begun)))
        await settled_loop()
        assert not again.done()
        await call.renew()
        clock.tick(seconds=20)
        begun.elicitations.waiters.wake_all()
        await settled_loop()
        assert not again.done()
        again.cancel()
        await settled_loop()


async def test_body_which_raised_releases_outcome_immediately(here: Service) -> None:
    call, presenter, waiting = await call_request(here)
    await here.completing.complete(id_of(presenter), {"n": 1})
    await soon(waiting)
    await call.finish()
    assert (await soon(answer(call_of(here)))).content == {"n": 1}


async def test_outcome_is_reused_only_for_same_owner_tool_and_arguments(here: Service) -> None:
    call, presenter, waiting = await call_request(here)
    waiting.cancel()
    await settled_loop()
    await call.finish()
    await here.completing.complete(id_of(presenter), {"n": 1})
    others = [
        call_of(here, subject="bob"),
        call_of(here, tool="another"),
        call_of(here, arguments={"x": 1}),
        call_of(here, subject="bob", run_id=call.run.value.id),
        call_of(here, tool="another", run_id=call.run.value.id),
    ]
    for other in others:
        wait = asyncio.ensure_future(answer(other))
        await settled_loop()
        assert not wait.done()
        wait.cancel()
        await settled_loop()
    assert (await soon(answer(call_of(here)))).content == {"n": 1}


async def test_answer_is_not_used_for_different_question_of_same_call(here: Service) -> None:
    call, presenter, waiting = await call_request(here)
    waiting.cancel()
    await settled_loop()
    await call.finish()
    await here.completing.complete(id_of(presenter), {"n": 1})
    other = elicit.url("Please go there!", "https://example.com/")
    wait = asyncio.ensure_future(answer(call_of(here), other))
    await settled_loop()
    assert not wait.done()
    wait.cancel()


async def test_key_joins_calls_across_arguments_but_not_across_owners(here: Service) -> None:
    keyed = elicit.url("Please go there.", "https://example.com/", key="k")
    presenter = Holding()
    first = call_of(here, presenter=presenter, arguments={"x": 1})
    waiting = asyncio.ensure_future(answer(first, keyed))
    await settled_loop()
    waiting.cancel()
    await settled_loop()
    await first.finish()
    await here.completing.complete(id_of(presenter), {"n": 1})
    bob = asyncio.ensure_future(answer(call_of(here, subject="bob"), keyed))
    await settled_loop()
    assert not bob.done()
    bob.cancel()
    outcome = await soon(answer(call_of(here, arguments={"x": 2}), keyed))
    assert outcome.content == {"n": 1}


async def test_concurrent_questions_do_not_swap_answers(here: Service) -> None:
    presenters: dict[str, str] = {}

    class Both(Holding):
        async def wait(self, call, shown, waiter):
            presenters[shown.elicitation.request.message] = shown.elicitation.id
            return await call.hold(shown.elicitation, waiter, until=shown.elicitation.expires_at)

    call = call_of(here, presenter=Both())
    call.begin()
    with asking(Verbs(call)):
        both = asyncio.gather(
            *(elicit.url(m, "https://example.com/").outcome() for m in ("one", "two"))
        )
        await settled_loop()
    await here.completing.complete(presenters["two"], {"n": 2})
    await here.completing.complete(presenters["one"], {"n": 1})
    one, two = await soon(both)
    assert (one.content, two.content) == ({"n": 1}, {"n": 2})
    assert len(here.elicitations.waiters) == 0


async def test_question_changed_between_two_requests_raises_question_changed(here: Service) -> None:
    call, _, waiting = await call_request(here)
    waiting.cancel()
    await settled_loop()
    await call.finish()
    again = Verbs(call_of(here, run_id=call.run.value.id))

    async def ask() -> None:
        again.call.begin()
        with asking(again):
            await elicit.url("Something else.", "https://example.com/")

    with pytest.raises(QuestionChanged) as changed:
        await soon(ask())
    assert changed.value.expected == "Please go there."
    assert again.raised[-1].error is changed.value


async def test_question_after_end_of_call_is_refused(here: Service) -> None:
    call, presenter, waiting = await call_request(here)
    await here.completing.complete(id_of(presenter), {"n": 1})
    await soon(waiting)
    await call.finish(lambda: '"done"')
    for _ in range(2):
        with pytest.raises(CallOver):
            await answer(call)


async def test_wait_cancelled_by_client_ends_and_says_when_link_expires(
    here: Service,
) -> None:
    class Dismissed(Holding):
        async def wait(self, call, shown, waiter):
            self.shown = shown

    presenter = Dismissed()
    outcome = await soon(answer(call_of(here, presenter=presenter)))
    assert isinstance(outcome.error, Cancelled)
    assert "12:05" in str(outcome.error)
    assert await here.completing.complete(id_of(presenter), {"n": 1}) is Completion.ACCEPTED
    assert (await soon(answer(call_of(here)))).content == {"n": 1}


async def test_ended_waits_leave_no_waiters_behind(here: Service) -> None:
    # parity: E10
    waiters = here.elicitations.waiters
    for end in ("complete", "cancel", "outrun", "expire"):
        _, presenter, waiting = await call_request(here)
        assert len(waiters) == 2, "the call waits for its question and for its run"
        match end:
            case "complete":
                await here.completing.complete(id_of(presenter), {})
            case "cancel":
                waiting.cancel()
            case "outrun":
                _, _, newer = await call_request(here)
                newer.cancel()
            case _:
                await here.elicitations.settle(id_of(presenter), Status.EXPIRED)
        await settled_loop()
        assert waiting.done()
        assert waiting.cancelled() or isinstance(waiting.exception(), Interrupted | None)
        assert (len(waiters), waiters._by_id) == (0, {})
        await here.elicitations.store.erase(owner=id_of(presenter)[:20])


async def test_once_returns_stored_result_when_the_same_call_is_repeated(
    here: Service,
) -> None:
    done: list[str] = []

    async def work(key: str) -> Json:
        done.append(key)
        return {"tuple": [1, 2], "n": len(done)}

    call, presenter, waiting = await call_request(here)
    await here.completing.complete(id_of(presenter), {})
    await soon(waiting)
    with asking(Verbs(call)):
        first = await elicit.once("book", work)
    with asking(Verbs(call)):
        assert await elicit.once("book", work) == first
    await call.finish()
    again = call_of(here)
    await soon(answer(again))
    with asking(Verbs(again)):
        assert await elicit.once("book", work) == first
        await elicit.once("another", work)
    assert len(done) == 2
    assert len(set(done)) == 2


async def test_timeout_limits_question_and_not_call(here: Service, clock: Clock) -> None:
    presenter = Holding()
    brief = elicit.url("Please go there.", "https://example.com/", timeout=timedelta(seconds=10))
    waiting = asyncio.ensure_future(answer(call_of(here, presenter=presenter), brief))
    await settled_loop()
    clock.tick(seconds=10)
    await fall_due(here)
    assert (await soon(waiting)).status is Status.EXPIRED


async def test_outcome_for_waiter_of_another_process_is_not_claimed_here(
    here: Service, there: Service
) -> None:
    elicitation = await asked(here, waiter="a request of another process")
    await there.completing.complete(elicitation.id, {})
    stored = await here.elicitations.get(elicitation.id)
    assert stored is not None
    assert stored.take is None
