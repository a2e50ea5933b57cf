"""Writers that lose many races in a row: they wait a little, retry, and succeed."""

import asyncio

import pytest

from flows import elicit
from flows.elicitation.states import Completion, Status
from flows.question import asking
from tests.support.clock import Clock
from tests.support.service_env import Holding, asked, call_of, process
from webapp.calls.verbs import Verbs
from webapp.elicitations import service as tries
from webapp.stores import Conflict, Record
from webapp.stores.sqlite import MemoryStore

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


async def test_answer_is_stored_after_many_lost_races() -> None:
    store = Losing()
    async with process(store, Clock()) as service:
        question = await asked(service)
        store.losses = MANY
        done = await service.completing.complete(question.id, {})
        assert done is Completion.ACCEPTED
        assert store.lost == MANY


async def test_tool_asks_after_many_lost_races() -> None:
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


async def test_writer_which_never_wins_raises_contended() -> None:
    store = Losing()
    async with process(store, Clock()) as service:
        question = await asked(service)
        store.losses = 10 * tries.TRIES_AT_MOST
        with pytest.raises(tries.Contended):
            await service.completing.complete(question.id, {})
        assert store.lost == tries.TRIES_AT_MOST
