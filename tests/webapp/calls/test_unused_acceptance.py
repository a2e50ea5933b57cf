"""An unused acceptance: how long a later identical call can claim it."""

import asyncio
import json

import pytest

from flows import elicit
from flows.elicitation.traits import OnPage
from flows.question import asking
from tests.support.clock import Clock
from tests.support.mcp_server import eventually
from tests.support.service_env import Holding, call_of, process
from webapp.calls.verbs import Verbs
from webapp.elicitations.complete import complete_elicitation
from webapp.service import Service
from webapp.stores.sqlite import MemoryStore


async def shown_to(service: Service, *, answers: bool) -> str | None:
    """Ask in a separate call, abandon the call, and return the id of the question it showed."""
    presenter = Holding()
    call = call_of(service, presenter=presenter, arguments={"answers": answers})

    async def body() -> bool:
        call.begin()
        with asking(Verbs(call)):
            return await elicit.confirm("Sure?", key="k")

    task = asyncio.create_task(body())
    await eventually(lambda: presenter.holds is not None or task.done())
    shown = presenter.shown
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await call.finish(None if shown is not None else lambda: json.dumps({}))
    if shown is not None and answers:
        await complete_elicitation(service.elicitations, shown.elicitation.id, {}, OnPage())
    return shown.elicitation.id if shown is not None else None


@pytest.mark.parametrize(("seconds", "is_joined"), [(119, True), (121, False), (599, False)])
async def test_unused_acceptance_can_be_claimed_for_two_minutes(
    clock: Clock, *, seconds: int, is_joined: bool
) -> None:
    # finding: T4
    async with process(MemoryStore(), clock) as service:
        assert await shown_to(service, answers=True)
        clock.tick(seconds=seconds)
        assert (await shown_to(service, answers=False) is None) == is_joined
