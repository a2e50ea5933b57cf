"""Requests of one call in one process, and helpers that run the loop until nothing is ready."""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from flows import elicit
from flows.question import Outcome, Question, asking
from tests.support.service_env import Holding, call_of
from webapp.calls.call import Call
from webapp.calls.verbs import Verbs
from webapp.service import Service

T = TypeVar("T")
QUESTION = elicit.url("Please go there.", "https://example.com/")


async def settled_loop() -> None:
    """Run everything that is ready."""
    for _ in range(50):
        await asyncio.sleep(0)


async def answer(call: Call, question: Question[Any] = QUESTION) -> Outcome[Any]:
    call.begin()
    with asking(Verbs(call)):
        return await question.outcome()


async def call_request(
    service: Service, *, run_id: str | None = None
) -> tuple[Call, Holding, "Waiting"]:
    """Start a request of a call, and return it once it waits."""
    presenter = Holding()
    call = call_of(service, presenter=presenter, run_id=run_id)
    waiting = asyncio.ensure_future(answer(call))
    await settled_loop()
    assert presenter.holds is not None
    return call, presenter, waiting


Waiting = asyncio.Future[Outcome[Any]]


def id_of(presenter: Holding) -> str:
    assert presenter.shown is not None
    return presenter.shown.elicitation.id


async def soon(awaited: Awaitable[T]) -> T:
    """Return the result, which must be ready without any timer."""
    future = asyncio.ensure_future(awaited)
    await settled_loop()
    assert future.done(), "the awaitable must finish without a timer"
    return future.result()
