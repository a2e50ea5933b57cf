"""Results that are too long to be stored: a run ends only when its result has been delivered."""

import asyncio
import json

import pytest

from flows.elicitation.run import Run
from flows.elicitation.states import LEASE
from tests.support.call_requests import answer, call_request, id_of, settled_loop, soon
from tests.support.clock import Clock
from tests.support.service_env import Holding, call_of
from webapp.calls.call import RESULT_BYTES_AT_MOST, Call
from webapp.http.exchange import StreamConnection
from webapp.service import Service

LONG = json.dumps("x" * RESULT_BYTES_AT_MOST)


async def worked(service: Service) -> Call:
    """Return a call whose body used an answer and finished."""
    call, presenter, waiting = await call_request(service)
    await service.completing.complete(id_of(presenter), {"n": 1})
    await soon(waiting)
    await call.finish(lambda: LONG)
    return call


async def test_undelivered_long_result_is_computed_again_with_same_answer(
    here: Service, clock: Clock
) -> None:
    await worked(here)
    clock.tick(seconds=LEASE.total_seconds())
    assert (await soon(answer(call_of(here)))).content == {"n": 1}


@pytest.mark.parametrize("brings_its_run", [False, True])
async def test_delivered_long_result_ends_run_and_same_call_asks_again(
    here: Service, clock: Clock, *, brings_its_run: bool
) -> None:
    first = await worked(here)
    await first.delivered()
    (run,) = await here.elicitations.all(Run)
    assert (run.status, run.result, run.called) == ("delivered", None, None)
    assert (run.finished_at, run.due_at) == (clock(), None)
    _, presenter, waiting = await call_request(here, run_id=run.id if brings_its_run else None)
    assert presenter.shown is not None
    assert presenter.shown.elicitation.run != run.id
    waiting.cancel()
    await settled_loop()


async def test_same_call_does_not_join_run_whose_long_result_is_being_sent(here: Service) -> None:
    first, connection = await worked(here), StreamConnection()
    here.running_tools.deliver(first, connection)
    presenter = Holding()
    waiting = asyncio.ensure_future(answer(call_of(here, presenter=presenter)))
    await settled_loop()
    connection.end(is_delivered=True)
    await settled_loop()
    assert presenter.shown is not None
    assert presenter.shown.elicitation.run != first.run.value.id
    waiting.cancel()
    await settled_loop()
