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
from tests.support.clock import Clock
from tests.support.legs import answer, id_of, leg, settled_loop, soon
from tests.support.service_env import Holding, asked, call_of, process
from webapp.calls.presenter import Interrupted
from webapp.calls.verbs import Verbs
from webapp.elicitations.watcher import listen
from webapp.service import Service
from webapp.stores import Record
from webapp.stores.memory import MemoryStore
from webapp.sweeper import fall_due


@pytest.fixture
async def listening(here: Service, there: Service) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(listen(each.elicitations)) for each in (here, there)]
    await settled_loop()
    yield
    for task in tasks:
        assert not task.done(), "listening ended"
        task.cancel()
    await asyncio.wait(tasks)


async def test_the_line_returns_when_it_is_completed(here: Service) -> None:
    _, presenter, waiting = await leg(here)
    assert await here.completing.complete(id_of(presenter), {"n": 1}) is Completion.ACCEPTED
    outcome = await soon(waiting)
    assert (outcome.status, outcome.content) == (Status.ACCEPTED, {"n": 1})
    assert len(here.elicitations.waiters) == 0


async def test_what_was_completed_before_the_wait_needs_no_wake(
    here: Service, there: Service
) -> None:
    # defect: frontmcp subscribes after sending
    first, presenter, waiting = await leg(here)
    waiting.cancel()
    await settled_loop()
    await first.finish()
    await there.completing.complete(id_of(presenter), {"n": 1})
    assert (await soon(answer(call_of(here)))).content == {"n": 1}


async def test_completing_hands_the_outcome_over_in_the_same_write(here: Service) -> None:
    call, presenter, waiting = await leg(here)
    before = await here.elicitations.get(id_of(presenter))
    await here.completing.complete(id_of(presenter), {})
    after = await here.elicitations.get(id_of(presenter))
    assert before is not None
    assert after is not None
    assert after.version == before.version + 1
    assert after.take is not None
    assert after.take.leg == call.leg
    assert call.has_taken, "before the body goes on, a disconnect leaves it alone"
    with pytest.raises(NotPossible):
        await here.elicitations.claim(after.id, run="r", leg="another")
    await soon(waiting)


async def test_a_no_is_handed_over_too(here: Service) -> None:
    _, presenter, waiting = await leg(here)
    await here.elicitations.settle(id_of(presenter), Status.DECLINED)
    assert (await soon(waiting)).action == "decline"


async def test_a_completion_in_another_process_wakes(
    here: Service, there: Service, listening: None
) -> None:
    call, presenter, waiting = await leg(here)
    await there.completing.complete(id_of(presenter), {"n": 1})
    assert (await soon(waiting)).content == {"n": 1}
    taken = await there.elicitations.get(id_of(presenter))
    assert taken is not None
    assert taken.take is not None
    assert taken.take.leg == call.leg


async def test_a_wake_that_says_nothing_makes_everybody_look_again(
    here: Service, there: Service
) -> None:
    _, presenter, waiting = await leg(here)
    await there.completing.complete(id_of(presenter), {"n": 1})
    await settled_loop()
    assert not waiting.done(), "nobody listens, so nobody was told"
    here.elicitations.waiters.wake_all()
    assert (await soon(waiting)).content == {"n": 1}


async def test_opening_the_link_wakes_nobody(here: Service) -> None:
    _, presenter, waiting = await leg(here)
    await here.elicitations.open_attempt(id_of(presenter), browser="b")
    await settled_loop()
    assert not waiting.done()
    waiting.cancel()


async def test_of_two_legs_the_newer_waits_and_the_older_is_told(here: Service) -> None:
    older, presenter, first = await leg(here)
    _, _, second = await leg(here)
    with pytest.raises(Interrupted):
        await soon(first)
    assert older.answer == "busy"
    await here.completing.complete(id_of(presenter), {"n": 1})
    assert (await soon(second)).content == {"n": 1}


async def test_the_newer_leg_may_be_in_another_process(
    here: Service, there: Service, listening: None
) -> None:
    older, presenter, first = await leg(here)
    _, _, second = await leg(there)
    with pytest.raises(Interrupted):
        await soon(first)
    assert older.answer == "busy"
    await here.completing.complete(id_of(presenter), {"n": 1})
    assert (await soon(second)).content == {"n": 1}


async def test_a_wait_that_was_cancelled_leaves_the_question_open_for_the_same_call(
    here: Service,
) -> None:
    call, presenter, waiting = await leg(here)
    waiting.cancel()
    await settled_loop()
    await call.finish()
    assert len(here.elicitations.waiters) == 0
    _, second, again = await leg(here)
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


async def test_a_waiter_that_left_meanwhile_is_released(clock: Clock) -> None:
    store = Slow()
    async with process(store, clock) as here:
        call, presenter, waiting = await leg(here)
        store.gate = asyncio.Event()
        completing = asyncio.ensure_future(here.completing.complete(id_of(presenter), {}))
        await settled_loop()
        waiting.cancel()
        await settled_loop()
        await call.finish()
        assert not call.has_taken
        store.gate.set()
        assert await soon(completing) is Completion.ACCEPTED
        store.gate = None
        stored = await here.elicitations.get(id_of(presenter))
        assert stored is not None
        assert stored.take is None
        assert (await soon(answer(call_of(here)))).accepted


async def test_time_alone_ends_a_wait_by_the_sweeper(here: Service, clock: Clock) -> None:
    _, _, waiting = await leg(here)
    clock.tick(minutes=5)
    await fall_due(here)
    outcome = await soon(waiting)
    assert outcome.status is Status.EXPIRED
    assert "300 seconds" in str(outcome.error)


async def test_the_sweeper_of_another_process_ends_it_too(
    here: Service, there: Service, listening: None, clock: Clock
) -> None:
    _, _, waiting = await leg(here)
    clock.tick(minutes=5)
    await fall_due(there)
    assert (await soon(waiting)).status is Status.EXPIRED


async def test_a_wait_whose_time_is_up_ends_by_itself_at_a_wake(
    here: Service, clock: Clock
) -> None:
    _, presenter, waiting = await leg(here)
    clock.tick(minutes=5)
    here.elicitations.waiters.wake_all()
    assert (await soon(waiting)).status is Status.EXPIRED
    stored = await here.elicitations.get(id_of(presenter))
    assert stored is not None
    assert stored.status is Status.EXPIRED


async def test_a_row_that_does_not_open_does_not_end_the_listening(
    here: Service, store: MemoryStore
) -> None:
    listening = asyncio.ensure_future(listen(here.elicitations))
    await settled_loop()
    _, presenter, waiting = await leg(here)
    record = await store.read(id_of(presenter)[:20], "elicitation", id_of(presenter))
    assert record is not None
    await store.sibling().write(replace(record, sealed=b"damaged"))
    await settled_loop()
    waiting.cancel()
    has_ended = listening.done()
    listening.cancel()
    await asyncio.wait({listening})
    assert not has_ended


async def test_a_result_that_did_not_arrive_is_given_to_the_same_call(here: Service) -> None:
    call, presenter, waiting = await leg(here)
    await here.completing.complete(id_of(presenter), {"n": 1})
    await soon(waiting)
    await call.finish(lambda: '"done"')
    again = call_of(here)
    with pytest.raises(Interrupted):
        await soon(answer(again))
    assert again.answer == "done"


async def test_after_delivery_the_same_call_is_a_new_wish(here: Service) -> None:
    call, presenter, waiting = await leg(here)
    await here.completing.complete(id_of(presenter), {"n": 1})
    await soon(waiting)
    await call.finish(lambda: '"done"')
    await call.delivered()
    _, second, again = await leg(here)
    assert id_of(second) != id_of(presenter)
    again.cancel()
    used = await here.elicitations.get(id_of(presenter))
    assert used is not None
    assert (used.content, used.holds_key) == (None, False)
    assert used.delivered_at is not None


async def test_a_result_is_repeated_for_ten_minutes_only(here: Service, clock: Clock) -> None:
    call, presenter, waiting = await leg(here)
    await here.completing.complete(id_of(presenter), {"n": 1})
    await soon(waiting)
    await call.finish(lambda: '"done"')
    clock.tick(minutes=10)
    again = call_of(here)
    outcome = asyncio.ensure_future(answer(again))
    await settled_loop()
    assert again.answer is None
    outcome.cancel()


async def test_while_a_body_runs_no_second_one_starts(here: Service, clock: Clock) -> None:
    first, presenter, waiting = await leg(here)
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


async def test_after_a_crash_the_next_call_takes_it_when_the_lease_is_out(
    here: Service, store: MemoryStore, clock: Clock
) -> None:
    _, presenter, waiting = await leg(here)
    await here.completing.complete(id_of(presenter), {"n": 1})
    await soon(waiting)
    async with process(store.sibling(), clock) as restarted:
        clock.tick(seconds=LEASE.total_seconds())
        assert (await soon(answer(call_of(restarted)))).content == {"n": 1}


@pytest.mark.parametrize(("hours", "asked_in_all"), [(-2, 1), (2, 2), (8, 2)])
async def test_a_question_ends_at_its_time_of_day_and_the_same_call_asks_anew(
    here: Service, clock: Clock, hours: int, asked_in_all: int
) -> None:
    # finding: H2
    await leg(here)
    clock.set(hours=hours)
    await leg(here)
    assert len(await here.elicitations.store.list("elicitation")) == asked_in_all


async def test_a_dead_calls_lease_outlives_no_clock_that_is_set_back(
    here: Service, store: MemoryStore, clock: Clock
) -> None:
    # finding: H2
    _, presenter, waiting = await leg(here)
    await here.completing.complete(id_of(presenter), {"n": 1})
    await soon(waiting)
    clock.set(hours=-2)
    async with process(store.sibling(), clock) as restarted:
        again = asyncio.ensure_future(answer(call_of(restarted)))
        await settled_loop()
        assert not again.done(), "its body may be running"
        for _ in range(6):
            clock.tick(seconds=LEASE.total_seconds() / 6)
            restarted.elicitations.waiters.wake_all()
            await settled_loop()
        assert (await soon(again)).content == {"n": 1}


async def test_a_living_calls_lease_is_renewed_though_the_clock_is_set_back(
    here: Service, store: MemoryStore, clock: Clock
) -> None:
    # finding: H2
    call, presenter, waiting = await leg(here)
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


async def test_no_second_body_starts_when_the_machine_wakes_up(
    here: Service, store: MemoryStore, clock: Clock
) -> None:
    # finding: H2
    call, presenter, waiting = await leg(here)
    await here.completing.complete(id_of(presenter), {"n": 1})
    await soon(waiting)
    async with process(store.sibling(), clock) as another:
        clock.set(seconds=45)
        again = [asyncio.ensure_future(answer(call_of(each))) for each in (here, another)]
        await settled_loop()
        assert not any(one.done() for one in again), "its body runs, and has seen no time pass"
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


async def test_a_process_that_has_just_begun_does_not_wait_for_a_leg_that_said_it_is_over(
    here: Service, store: MemoryStore, clock: Clock
) -> None:
    call, presenter, waiting = await leg(here)
    await here.completing.complete(id_of(presenter), {"n": 1})
    await soon(waiting)
    await call.go_on()
    async with process(store.sibling(), clock) as begun:
        outcome = await soon(asyncio.ensure_future(answer(call_of(begun))))
        assert outcome.status is Status.ACCEPTED


async def test_a_process_that_has_just_begun_does_not_know_and_waits(
    here: Service, store: MemoryStore, clock: Clock
) -> None:
    # finding: H2
    call, presenter, waiting = await leg(here)
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


async def test_a_body_that_raised_lets_go_of_the_outcome_at_once(here: Service) -> None:
    call, presenter, waiting = await leg(here)
    await here.completing.complete(id_of(presenter), {"n": 1})
    await soon(waiting)
    await call.finish()
    assert (await soon(answer(call_of(here)))).content == {"n": 1}


async def test_an_outcome_is_used_by_its_owner_tool_and_arguments_only(here: Service) -> None:
    call, presenter, waiting = await leg(here)
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


async def test_another_question_of_the_same_call_is_not_answered_by_it(here: Service) -> None:
    call, presenter, waiting = await leg(here)
    waiting.cancel()
    await settled_loop()
    await call.finish()
    await here.completing.complete(id_of(presenter), {"n": 1})
    other = elicit.url("Please go there!", "https://example.com/")
    wait = asyncio.ensure_future(answer(call_of(here), other))
    await settled_loop()
    assert not wait.done()
    wait.cancel()


async def test_a_key_joins_across_arguments_but_not_across_owners(here: Service) -> None:
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


async def test_two_questions_at_once_do_not_swap_their_answers(here: Service) -> None:
    presenters: dict[str, str] = {}

    class Both(Holding):
        async def wait(self, call, shown, waiter):
            presenters[shown.elicitation.asked.message] = shown.elicitation.id
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


async def test_a_question_that_changed_between_two_legs_is_noticed(here: Service) -> None:
    call, _, waiting = await leg(here)
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
    assert again.last_error is changed.value


async def test_a_verb_after_the_call_is_refused(here: Service) -> None:
    call, presenter, waiting = await leg(here)
    await here.completing.complete(id_of(presenter), {"n": 1})
    await soon(waiting)
    await call.finish(lambda: '"done"')
    for _ in range(2):
        with pytest.raises(CallOver):
            await answer(call)


async def test_a_wait_cancelled_in_the_client_ends_and_says_until_when_it_stays_open(
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


async def test_waits_that_ended_in_any_way_leave_nothing_behind(here: Service) -> None:
    # parity: E10
    waiters = here.elicitations.waiters
    for end in ("complete", "cancel", "outrun", "expire"):
        _, presenter, waiting = await leg(here)
        assert len(waiters) == 2, "its question and its run"
        match end:
            case "complete":
                await here.completing.complete(id_of(presenter), {})
            case "cancel":
                waiting.cancel()
            case "outrun":
                _, _, newer = await leg(here)
                newer.cancel()
            case _:
                await here.elicitations.settle(id_of(presenter), Status.EXPIRED)
        await settled_loop()
        assert waiting.done()
        assert waiting.cancelled() or isinstance(waiting.exception(), Interrupted | None)
        assert (len(waiters), waiters._by_id) == (0, {})
        await here.elicitations.store.erase(owner=id_of(presenter)[:20])


async def test_what_is_done_once_stays_done_for_the_answer_it_was_bought_with(
    here: Service,
) -> None:
    done: list[str] = []

    async def work(key: str) -> Json:
        done.append(key)
        return {"tuple": [1, 2], "n": len(done)}

    call, presenter, waiting = await leg(here)
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


async def test_a_timeout_is_the_life_of_the_question_and_not_of_the_call(
    here: Service, clock: Clock
) -> None:
    presenter = Holding()
    brief = elicit.url("Please go there.", "https://example.com/", timeout=timedelta(seconds=10))
    waiting = asyncio.ensure_future(answer(call_of(here, presenter=presenter), brief))
    await settled_loop()
    clock.tick(seconds=10)
    await fall_due(here)
    assert (await soon(waiting)).status is Status.EXPIRED


async def test_an_elicitation_with_a_waiter_of_another_process_is_not_handed_over_here(
    here: Service, there: Service
) -> None:
    elicitation = await asked(here, waiter="a leg of nobody here")
    await there.completing.complete(elicitation.id, {})
    stored = await here.elicitations.get(elicitation.id)
    assert stored is not None
    assert stored.take is None
