"""A store that lost its last writes: one process handles the loss, and all clear their caches."""

from datetime import datetime
from typing import ClassVar

import pytest

from flows.elicitation.states import Status
from flows.errors import Failed
from tests.support.clock import Clock
from tests.support.records import go_back, scanned
from tests.support.service_env import asked, process, question_in_store
from webapp.elicitations.watcher import _apply
from webapp.records.high_water import STEP_BACK, StepBack, step_back_of
from webapp.records.owners import SERVICE
from webapp.service import Service
from webapp.stores.sqlite import MemoryStore
from webapp.sweeper import fall_due

CLAIM_OVER_SECONDS = 31


class RecordingService(Service):
    """A service that records the calls of `store_stepped_back`. The first `failures` calls fail.

    `survived_times` has the argument `back.survived` of each call.
    """

    survived_times: ClassVar[list[datetime]]
    failures: ClassVar[int]

    async def store_stepped_back(self, back: StepBack) -> None:
        self.survived_times.append(back.survived)
        if len(self.survived_times) <= self.failures:
            raise Failed("the provider does not answer")


def recording(service: Service) -> RecordingService:
    double = object.__new__(RecordingService)
    vars(double).update(vars(service))
    return double


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store():
    return MemoryStore()


# finding: XB4
async def test_sweeper_handles_step_back_until_done_and_only_once(store, clock):
    async with process(store, clock) as here, process(store.sibling(), clock) as there:
        RecordingService.survived_times, RecordingService.failures = [], 2
        both = [recording(each) for each in (here, there)]
        await asked(here)
        await here.elicitations.high_water.make_mark()
        survived = clock()
        copies = await scanned(store)
        clock.tick(seconds=6)
        await asked(here, join="another question")
        await here.elicitations.high_water.make_mark()
        await go_back(store, copies)
        await _apply(here.elicitations, None)
        for _ in range(6):
            for each in both:
                await fall_due(each)
            clock.tick(seconds=CLAIM_OVER_SECONDS)
        assert RecordingService.survived_times == [survived] * 3, (
            "the sweeper repeats the failed handling until the third try succeeds"
        )
        record = await store.read(SERVICE, STEP_BACK, SERVICE)
        back = step_back_of(record)
        assert back is not None
        assert back.is_handled
        assert record.due_at is None


# finding: XB4
async def test_question_ended_in_lost_writes_is_read_again_after_reconnect(store, clock):
    async with process(store, clock) as service:
        question = await asked(service)
        copies = await scanned(store)
        await service.elicitations.settle(question.id, Status.DECLINED)
        assert service.elicitations.rows.recent.has_ended(question.id)
        await go_back(store, copies)
        await _apply(service.elicitations, None)
        assert not service.elicitations.rows.recent.has_ended(question.id)
        assert await service.elicitations.high_water.step_back() is not None


# finding: XB3
async def test_applied_webhooks_are_forgotten_if_writes_were_lost(store, clock):
    async with process(store, clock) as service:
        service.webhooks.applied["~1"] = None
        await _apply(service.elicitations, None)
        assert not service.webhooks.applied


# finding: XB4
async def test_owner_with_lost_key_gets_new_key_from_store(store, clock):
    async with process(store, clock) as service:
        copies = await scanned(store)
        question = await asked(service)
        await go_back(store, copies, newer=[question.owner])
        await _apply(service.elicitations, None)
        again = question_in_store(service)
        await service.elicitations.write(again)
        async with process(store.sibling(), clock) as other:
            found = await other.elicitations.get(again.id)
            assert found is not None
            assert found.request == again.request
