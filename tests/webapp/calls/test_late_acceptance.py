"""An answer that arrives after the question was asked again: only one call uses it, once."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from flows import elicit
from flows.elicitation.states import Completion, Elicitation, Status
from flows.question import Question, asking
from tests.support.clock import Clock
from tests.support.mcp_server import eventually
from tests.support.service_env import Holding, call_of, process
from tests.support.shop_env import Shop
from webapp.calls.call import Call
from webapp.calls.verbs import Verbs
from webapp.service import Service
from webapp.stores.sqlite import MemoryStore

SHORT = timedelta(seconds=5)


class Asking:
    """Requests of one call, all with the same question."""

    def __init__(self, service: Service, question: Question[Any]) -> None:
        self.service = service
        self.question = question

    def new_call(self, presenter: Holding | None = None) -> Call:
        owner = self.service.identity.local_owner
        call = call_of(self.service, presenter=presenter or Holding(), owner=owner)
        call.begin()
        return call

    async def left(self) -> Elicitation:
        """Make a request that shows the question and disconnects, and return this question."""
        presenter = Holding()
        call = self.new_call(presenter)
        body = asyncio.create_task(self.answered(call))
        await eventually(lambda: presenter.holds is not None or body.done())
        body.cancel()
        await asyncio.wait({body})
        await call.finish()
        assert presenter.shown is not None, "the call must show a question"
        return presenter.shown.elicitation

    async def answered(self, call: Call) -> bool:
        with asking(Verbs(call)):
            return (await self.question.outcome()).accepted

    async def now(self, asked: Elicitation) -> Elicitation:
        found = await self.service.elicitations.get(asked.id)
        assert found is not None
        return found


async def use_answer_in_slow_request(ask: Asking, slow: Call) -> None:
    assert await ask.answered(slow)
    await slow.finish(lambda: '"done"')
    await slow.delivered()


async def test_late_acceptance_used_by_slow_request_is_used_up_after_newer_request_asked(
    clock: Clock,
) -> None:
    question = elicit.url("Please go there.", "https://example.com/", timeout=SHORT)
    async with process(MemoryStore(), clock) as service:
        ask = Asking(service, question)
        first = await ask.left()
        clock.tick(seconds=SHORT.total_seconds())
        slow = ask.new_call()
        await slow.current_run()
        newer = await ask.left()
        assert await service.completing.complete(first.id, {}) is Completion.LATE
        await use_answer_in_slow_request(ask, slow)
        assert (await ask.now(first)).delivered_at == clock()
        assert (await ask.left()).id not in {first.id, newer.id}


@pytest.mark.parametrize("is_error", [True, False])
async def test_late_payment_stays_with_newer_request_when_older_request_was_cancelled(
    shop: Shop, *, is_error: bool
) -> None:
    ask = Asking(shop.service, elicit.payment(shop.price, "Report", timeout=SHORT))
    first = await ask.left()
    person = await shop.person()
    await person.pay(shop.service.links.of(first, now=shop.clock()))
    reported, newer = ask.new_call(), ask.new_call()
    await newer.current_run()
    reported.run.is_continued = (await reported.current_run()).id == newer.run.value.id
    await shop.service.elicitations.end(await ask.now(first), Status.CANCELLED)
    assert not await ask.answered(reported)
    await reported.finish(lambda: '"nothing"', is_error=is_error)
    await shop.send_all()
    assert await ask.answered(newer)
    await reported.delivered()
    current = await ask.now(first)
    assert current.delivered_at is None
    assert current.take is not None
    assert current.take.leg == newer.request_id
    await newer.finish(lambda: '"done"')
    await newer.delivered()
    assert await shop.ledger() == ["spent"]


async def test_late_payment_is_spent_after_another_request_asked_again(
    shop: Shop,
) -> None:
    ask = Asking(shop.service, elicit.payment(shop.price, "Report", timeout=SHORT))
    first = await ask.left()
    person = await shop.person()
    await person.pay(shop.service.links.of(first, now=shop.clock()))
    shop.clock.tick(seconds=SHORT.total_seconds())
    slow = ask.new_call()
    await slow.current_run()
    newer = await ask.left()
    await shop.send_all()
    await use_answer_in_slow_request(ask, slow)
    assert await shop.ledger() == ["spent"]
    shop.clock.tick(minutes=2)  # until then, a repeated call could still need the lost result
    assert (await ask.left()).id not in {first.id, newer.id}
