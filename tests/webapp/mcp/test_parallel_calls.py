"""Identical calls that a model makes in one turn: one question, one answer, one booking."""

from typing import Any

import pytest

from flows import elicit
from tests.support.client_by_hand import here, is_link
from tests.support.mcp_server import BOTH, FORM, LEGACY, eventually, new_server, soon, text_of

BUSY = "Another call is waiting for this"
ANSWERS = {"book": {"response": "Ann"}, "sure": {}, "wipe": {}}


@pytest.fixture
def booked() -> list[str]:
    return []


@pytest.fixture
def server(library: str, booked: list[str]) -> Any:
    server = new_server(library)

    @server.tool()
    async def book() -> str:
        booked.append(await elicit.form("Who?"))
        return "booked"

    @server.tool()
    async def sure() -> str:
        booked.append(str(await elicit.confirm("Sure?")))
        return "booked"

    @server.tool()
    @elicit.gate
    async def wipe() -> str:
        booked.append("wiped")
        return "booked"

    @server.tool()
    async def visit() -> str:
        await elicit.url("Go there", "https://shop.example/")
        booked.append("went")
        return "booked"

    return server


@pytest.mark.parametrize("tool", ANSWERS)
async def test_parallel_identical_calls_ask_and_book_once(
    server: Any, revision: str, booked: list[str], tool: str
) -> None:
    # finding: XC8
    async with here(server, revision, declares=FORM) as it:
        calls = [await it.asks(tool)]
        for _ in range(2):
            calls.append(it.caller.call(tool))
            if revision == LEGACY:  # the newer call ends the previous call
                assert text_of(await soon(calls[-2])).startswith(BUSY)
            else:
                await eventually(lambda: it.shows.asked == len(calls))
        assert not calls[-1].done()
        it.clock.tick(seconds=2)
        for _ in range(it.shows.asked):
            await it.shows.says("accept", ANSWERS[tool])
        await eventually(lambda: all(call.done() for call in calls))
        outcome = [call.result() for call in calls]
        assert not [result for result in outcome if "/e/" in str(result.content)]
        assert text_of(outcome[-1]) == "booked"
        assert len(booked) == 1
        assert len(await it.statuses()) == 1


async def test_parallel_calls_show_a_single_link_in_the_client(
    server: Any, booked: list[str]
) -> None:
    # finding: XC8
    async with here(server, LEGACY, declares=BOTH) as it:
        calls = [await it.asks("visit")]
        for _ in range(2):
            calls.append(it.caller.call("visit"))
            assert text_of(await soon(calls[-2])).startswith(BUSY)
        assert not calls[-1].done()
        assert it.shows.asked == 1
        (asked,) = await it.env.elicitations()
        await it.env.service.completing.complete(asked.id, {})
        assert text_of(await soon(calls[-1])) == "booked"
        assert booked == ["went"]


async def test_later_call_gets_the_link_of_an_unanswered_form(server: Any) -> None:
    # finding: XC8
    async with here(server, LEGACY, declares=FORM) as it:
        first = await it.asks("book")
        it.clock.tick(seconds=2)
        assert is_link(await it.caller.result("book"))
        assert text_of(await soon(first)).startswith(BUSY)


async def test_call_after_an_abandoned_newer_call_gets_the_link_at_once(
    server: Any, booked: list[str]
) -> None:
    # finding: XC8
    async with here(server, LEGACY, declares=FORM) as it:
        first = await it.asks("book")
        second = it.caller.call("book")
        assert text_of(await soon(first)).startswith(BUSY)
        second.cancel()
        await eventually(lambda: not len(it.env.service.running_tools))
        assert is_link(await it.caller.result("book"))
        it.clock.tick(seconds=2)
        await it.shows.says("accept", ANSWERS["book"])
        assert await it.caller.text("book") == "booked"
        assert booked == ["Ann"]
