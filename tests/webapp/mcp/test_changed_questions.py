"""Questions whose text changes each time the body starts: the second start is an error."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import InputRequiredResult

from flows import Declined, elicit
from flows.elicitation.states import Json
from tests.support.mcp_server import MODERN, caller_of, links_asked, new_server, text_of
from webapp.limits import CallLimits

Ask: TypeAlias = Callable[[str], Awaitable[Any]]
LOGIN = "https://example.org/login"
# Requests do not wait, so a question that the body no longer asks cannot be asked later.
AT_ONCE = CallLimits(retry=timedelta(), request_at_least=timedelta(), link=timedelta())


async def visit(message: str) -> Json:
    return await elicit.url(message, LOGIN)


async def in_main_task(text: str) -> None:
    await visit(text)


async def in_gather(text: str) -> None:
    await asyncio.gather(visit(text))


async def next_to_another(text: str) -> None:
    await asyncio.gather(visit(text), visit("Sign in"))


async def after_another(text: str) -> None:
    await asyncio.gather(visit("Sign in"), visit(text))


async def in_nested_gather(text: str) -> None:
    await asyncio.gather(in_gather(text), asyncio.sleep(0))


async def in_task_group(text: str) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(visit(text))


async def in_anyio_group(text: str) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(visit, text)


async def in_task(text: str) -> None:
    await asyncio.create_task(visit(text))


async def together(text: str) -> None:
    await elicit.together(elicit.url(text, LOGIN), elicit.url(f"{text}!", LOGIN))


async def together_in_task(text: str) -> None:
    await asyncio.create_task(together(text))


async def after_gather(text: str) -> None:
    await in_gather(text)
    await visit("Sign in")


WAYS = {
    way.__name__: way
    for way in (
        *(in_main_task, in_gather, next_to_another, after_another, in_nested_gather),
        *(in_task_group, in_anyio_group, in_task, together, together_in_task, after_gather),
    )
}


def add_counting(server: Any, ask: Ask) -> None:
    numbers: Iterator[int] = count(1)

    @server.tool()
    async def counts() -> str:
        await ask(f"Number {next(numbers)}")
        return "done"


def is_refused(result: Any) -> bool:
    if isinstance(result, InputRequiredResult):
        return False
    is_named = f"The code is at {Path(__file__).name}:" in text_of(result)
    return is_named and (result.meta or {}).get("code") == "ELICITATION_QUESTION_CHANGED"


@pytest.mark.parametrize("way", WAYS)
async def test_changed_question_is_an_error_once_the_first_is_answered(library, way):
    server = new_server(library)
    add_counting(server, WAYS[way])
    async with caller_of(server, MODERN, limits=AT_ONCE) as (env, caller):
        result: Any = await caller.send_call("counts")
        while not is_refused(result):
            asked = await env.elicitations()
            numbers = {one.request.message.rstrip("!") for one in asked} - {"Sign in"}
            assert len(numbers) <= 1, result
            for one in asked:
                await env.service.completing.complete(one.id, {})
            result = await caller.send_call("counts", after=result)


async def test_answered_question_that_is_asked_later_than_before_is_no_change(library):
    server, starts, seen = new_server(library), count(1), list[int]()

    async def slow(start: int) -> None:
        for _ in range(50 if start > 1 else 0):
            await asyncio.sleep(0)
        await visit("Slow")
        seen.append(start)

    async def quick(start: int) -> None:
        if start > 1:
            await visit("Quick")

    @server.tool()
    async def race() -> str:
        start = next(starts)
        await asyncio.gather(slow(start), quick(start))
        return "done"

    async with caller_of(server, MODERN) as (env, caller):
        first = await caller.asked("race")
        await env.complete(links_asked(first)[0])
        second = await caller.asked("race", after=first)
        assert seen == [2]
        await env.complete(links_asked(second)[0])
        assert await caller.last_text("race", after=second) == "done"


async def test_call_after_a_changed_question_asks_again(library):
    server = new_server(library)
    add_counting(server, in_gather)
    async with caller_of(server, MODERN, limits=AT_ONCE) as (env, caller):
        first = await caller.asked("counts")
        await env.complete(links_asked(first)[0])
        assert is_refused(await caller.send_call("counts", after=first))
        second = await caller.asked("counts")
        assert links_asked(second) != links_asked(first)


@pytest.mark.parametrize("kind", ["declined", "misused"])
@pytest.mark.parametrize("way", ["in_gather", "in_task_group", "in_anyio_group"])
async def test_error_in_a_task_group_is_the_result_of_the_tool(server, revision, way, kind):
    @server.tool()
    async def ask() -> str:
        await WAYS[way]("Sign in" if kind == "declined" else "")
        return "done"

    async with caller_of(server, revision, answers=["decline"]) as (_, caller):
        result = await caller.result("ask")
        code = "DECLINED" if kind == "declined" else "INVALID_USE"
        assert (result.meta or {}).get("code") == f"ELICITATION_{code}", result


async def test_error_of_the_tool_is_reported_after_it_caught_an_error_of_a_task(server, revision):
    @server.tool()
    async def ask() -> str:
        try:
            await in_task_group("Sign in")
        except* Declined:
            pass
        raise ToolError("Nothing was booked.")

    async with caller_of(server, revision, answers=["decline"]) as (_, caller):
        assert "Nothing was booked." in await caller.text("ask")
