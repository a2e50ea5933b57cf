"""Questions of one call, each asked by its own asyncio task: no answer is lost.

The first task with something to show ends the call or the request. At that moment, the other tasks
can be at any point.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

import mcp_types as types
import pytest

from flows import elicit
from flows.elicitation.states import Status
from tests.support.client_by_hand import Here, here, is_link
from tests.support.mcp_server import FORM, LEGACY, MODERN, answered_in, eventually, soon, text_of

ANN = types.ElicitResult(action="accept", content={"response": "Ann"})
NO = types.ElicitResult(action="decline")
TOGETHER = pytest.mark.parametrize("is_group", [True, False], ids=["task group", "gather"])


async def _both(
    one: Coroutine[Any, Any, str], other: Coroutine[Any, Any, str], *, is_group: bool
) -> list[str]:
    if not is_group:
        return list(await asyncio.gather(one, other))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in (one, other)]
    return [task.result() for task in tasks]


class Desk:
    """The tool `both`, which asks for a name, and for a place as soon as `may_ask` is set."""

    def __init__(self, server: Any, *, is_group: bool, turns: int = 0) -> None:
        self.may_ask = asyncio.Event()

        async def name() -> str:
            return f"{await elicit.form('Name?').or_none()}"

        async def place() -> str:
            await self.may_ask.wait()
            for _ in range(turns):
                await asyncio.sleep(0)
            return f"{await elicit.form('Place?').or_none()}"

        @server.tool()
        async def both() -> str:
            return ", ".join(await _both(place(), name(), is_group=is_group))


async def next_request(
    it: Here, asked: types.InputRequiredResult, *answers: types.ElicitResult
) -> types.CallToolResult | types.InputRequiredResult:
    keys = asked.input_requests or {}
    return await it.caller.client.session.call_tool(
        "both",
        {},
        input_responses=dict(zip(keys, answers, strict=True)),
        request_state=asked.request_state,
        allow_input_required=True,
    )


@TOGETHER
@pytest.mark.parametrize("turns", [0, 1, 2, 9])
async def test_answer_arriving_while_another_question_is_asked_is_used(server, is_group, turns):
    desk = Desk(server, is_group=is_group, turns=turns)
    async with here(server, MODERN) as it:
        first = await it.caller.asked("both")
        desk.may_ask.set()
        it.clock.tick(seconds=70)
        second = await next_request(it, first, ANN)
        assert isinstance(second, types.InputRequiredResult)
        assert len(second.input_requests or {}) == 1
        assert await it.statuses() == [Status.ACCEPTED, Status.PENDING]
        it.clock.tick(seconds=5)
        assert text_of(answered_in(await next_request(it, second, ANN))) == "Ann, Ann"


@TOGETHER
async def test_decline_arriving_while_another_question_is_asked_is_final(server, is_group):
    desk = Desk(server, is_group=is_group)
    async with here(server, MODERN) as it:
        first = await it.caller.asked("both")
        desk.may_ask.set()
        it.clock.tick(seconds=5)
        second = await next_request(it, first, NO)
        assert isinstance(second, types.InputRequiredResult)
        assert await it.statuses() == [Status.DECLINED, Status.PENDING]
        it.clock.tick(seconds=5)
        assert text_of(answered_in(await next_request(it, second, ANN))) == "Ann, None"


@TOGETHER
async def test_automatic_decline_while_another_question_is_asked_is_ignored(server, is_group):
    desk = Desk(server, is_group=is_group)
    async with here(server, MODERN) as it:
        first = await it.caller.asked("both")
        desk.may_ask.set()
        await next_request(it, first, NO)
        assert Status.DECLINED not in await it.statuses()


@TOGETHER
async def test_form_stays_open_when_the_link_of_another_question_ends_the_call(server, is_group):
    desk = Desk(server, is_group=is_group)
    async with here(server, LEGACY, declares=FORM) as it:
        call = await it.asks("both")
        await it.pass_time(seconds=10)
        desk.may_ask.set()
        await eventually(lambda: it.shows.asked == 2)
        await it.pass_time(seconds=10)
        assert is_link(await soon(call))
        await it.shows.says("accept", {"response": "Ann"})
        await it.shows.says("accept", {"response": "Rome"})
        assert await it.statuses() == [Status.ACCEPTED, Status.ACCEPTED]
        assert await it.caller.text("both") == "Rome, Ann"
