"""Writers that lose many races in a row: they wait a little, retry, and succeed."""

import asyncio

import pytest

from flows import elicit
from flows.elicitation.states import Completion, Status
from flows.question import asking
from tests.support.clock import Clock
from tests.support.service_env import Holding, asked, call_of, process
from webapp.calls.verbs import Verbs
from webapp.elicitations import retry as tries
from webapp.stores import Conflict, Record
from webapp.stores.memory import MemoryStore

MANY = 60


class Losing(MemoryStore):
    """A store whose next `losses` writes fail, as if another writer had been first."""

    losses = 0
    lost = 0

    async def write(self, *records: Record) -> tuple[Record, ...]:
        if self.losses:
            self.losses -= 1
            self.lost += 1
            raise Conflict(None)
        return await super().write(*records)


async def test_an_answer_that_was_overtaken_many_times_is_kept() -> None:
    store = Losing()
    async with process(store, Clock()) as service:
        question = await asked(service)
        store.losses = MANY
        done = await service.completing.complete(question.id, {})
        assert done is Completion.ACCEPTED
        assert store.lost == MANY


async def test_a_tool_asks_though_others_were_first_many_times() -> None:
    store, presenter = Losing(), Holding()
    async with process(store, Clock()) as service:
        store.losses = MANY
        question = elicit.url("Go there.", "https://example.com/")
        with asking(Verbs(call_of(service, presenter=presenter))):
            waiting = asyncio.ensure_future(question.outcome())
            while presenter.holds is None:  # noqa: ASYNC110 - it must not end before
                await asyncio.sleep(0)
            assert store.lost == MANY
            done = await service.completing.complete(presenter.holds, {})
            assert done is Completion.ACCEPTED
            assert (await waiting).status is Status.ACCEPTED


async def test_whoever_never_wins_is_told() -> None:
    store = Losing()
    async with process(store, Clock()) as service:
        question = await asked(service)
        store.losses = 10 * tries.TRIES_AT_MOST
        with pytest.raises(tries.Contended):
            await service.completing.complete(question.id, {})
        assert store.lost == tries.TRIES_AT_MOST
