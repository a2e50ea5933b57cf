"""Results of tools, of any size and script, and errors that the model can read."""

from typing import Any

import pytest

from flows import elicit
from flows.elicitation.states import Json
from tests.support.mcp_server import LEGACY, caller_of, new_server, soon, text_of
from tests.support.ways import protocol
from webapp.testing import elicit_person

LOGIN = "https://example.org/login"
KANA = "\u3042"


@pytest.mark.parametrize("length", [3_000, 7_000, 12_000, 30_000])
@pytest.mark.parametrize("character", ['"', KANA, "a"], ids=["quotes", "kana", "latin"])
async def test_result_of_any_size_is_returned_from_a_single_run(character: str, length: int):
    server = new_server("mcp")
    ran: list[str] = []

    @server.tool()
    async def export() -> str:
        await elicit.url("Sign in", LOGIN)
        ran.append("export")
        return character * length

    async with caller_of(server, LEGACY) as (env, caller):
        call = caller.call("export")
        await env.complete(await caller.link())
        result = await soon(call)
        assert not result.is_error
        assert text_of(result) == character * length
        assert len(ran) == 1


async def test_oversized_result_is_delivered_and_its_answer_is_consumed(server, revision):
    ran: list[str] = []

    @server.tool()
    async def export() -> str:
        await elicit.url("Sign in", LOGIN)
        ran.append("export")
        return '"' * 12_000

    async with caller_of(server, revision) as (env, caller):
        for times in (1, 2):  # the same call asks again
            assert await env.text_after_visit(caller, "export") == '"' * 12_000
            assert len(ran) == times
        assert len(await env.elicitations()) == 2


@pytest.mark.every_way
async def test_invalid_address_error_reaches_the_model(server, revision):
    @server.tool()
    async def open_page(address: str) -> str:
        await elicit.url("Look at this", address)
        return "looked"

    async with caller_of(server, revision) as (env, caller):
        result = await caller.result("open_page", address="http://example.org/")
        assert_is_invalid_use(result)
        assert "http" in text_of(result)
        assert not await env.elicitations()


@pytest.mark.every_way
async def test_too_long_message_error_reaches_the_model(server, revision):
    @server.tool()
    async def ask(length: int) -> str:
        await elicit.url("m" * length, LOGIN)
        return "asked"

    async with caller_of(server, revision) as (env, caller):
        result = await caller.result("ask", length=3_000)
        assert_is_invalid_use(result)
        assert "2000 characters" in text_of(result)
        assert not await env.elicitations()


async def test_once_result_that_is_not_json_is_an_error_for_the_model(server, revision):
    @server.tool()
    async def order() -> str:
        async def work(_: str) -> Json:
            return float("nan")

        return str(await elicit.once("order", work))

    async with caller_of(server, revision) as (_, caller):
        result = await caller.result("order")
        assert "[ELICITATION_RESULT_NOT_KEPT]" in text_of(result)
        assert "once('order')" in text_of(result)


@pytest.mark.parametrize("order", ["wrong type first", "right type first"])
async def test_work_that_returns_the_wrong_type_runs_once_and_is_stored(server, revision, order):
    done: list[int] = []
    is_printed = order == "wrong type first"
    types: list[Any] = [int, str] if order == "wrong type first" else [str, int]

    def buy(key: str) -> Json:
        done.append(1)
        return "ticket"

    @server.tool()
    async def buy_ticket() -> str:
        ticket = await elicit.once("buy", buy, returns=types[0])
        if not is_printed:
            await elicit.confirm("Print it?")
        return f"bought {ticket}"

    async with elicit_person(server, revision=protocol(revision), declares=()) as person:
        if types[0] is str:
            person.leaves_open()
            await person.call("buy_ticket")
            types.reverse()
        is_printed = True
        for _ in range(2):
            result = await person.call("buy_ticket")
            assert "once('buy') is done and its result is stored" in result.text
            assert "not int, the type that work should return" in result.text
            assert "The code is at test_results.py:" in result.text
            assert result.code == "ELICITATION_RESULT_NOT_KEPT"
        types.reverse()
        assert (await person.call("buy_ticket")).text == "bought ticket"
        assert len(done) == 1


async def test_work_whose_result_cannot_be_converted_is_done_once(server, revision):
    done: list[int] = []

    def fetch() -> bytes:
        done.append(1)
        return b"\xff"

    @server.tool()
    async def report() -> str:
        return str(await elicit.once("fetch", fetch))

    async with caller_of(server, revision) as (_, caller):
        for _ in range(2):
            assert "[ELICITATION_RESULT_NOT_KEPT]" in await caller.text("report")
        assert len(done) == 1


async def test_once_without_a_name_is_an_error_for_the_model(server, revision):
    @server.tool()
    async def order(name: str) -> str:
        async def work(_: str) -> Json:
            return 1

        return str(await elicit.once(name, work))

    async with caller_of(server, revision) as (_, caller):
        assert_is_invalid_use(await caller.result("order", name=""))


async def test_oversized_completion_content_is_an_error_for_the_completing_tool(server, revision):
    @server.tool()
    async def sign_in() -> str:
        return str(dict(await elicit.url("Sign in", LOGIN, elicitation_id="order")))

    @server.tool()
    async def complete(size: int) -> str:
        return await elicit.complete_elicitation("order", {"text": "x" * size})

    async with caller_of(server, revision) as (env, caller):
        call = caller.call("sign_in")
        link = await caller.link()
        assert_is_invalid_use(await caller.result("complete", size=40_000))
        await env.complete(link)
        await soon(call)


def assert_is_invalid_use(result: Any) -> None:
    assert result.is_error
    assert text_of(result).endswith(" [ELICITATION_INVALID_USE]")
    assert "This is a bug in the code at test_results.py:" in text_of(result)
    assert not text_of(result).startswith("Error executing tool")
    assert result.meta is not None
    assert result.meta["code"] == "ELICITATION_INVALID_USE"
