"""Results of tools, of any size and script, and errors that the model can read."""

from typing import Any

import pytest

from flows import elicit
from flows.elicitation.states import Json
from tests.support.mcp_server import LEGACY, caller_of, new_server, soon, text_of

LOGIN = "https://example.org/login"
KANA = "\u3042"


@pytest.mark.parametrize("length", [3_000, 7_000, 12_000, 30_000])
@pytest.mark.parametrize("letter", ['"', KANA, "a"], ids=["quotes", "kana", "latin"])
async def test_result_of_any_size_is_returned_from_a_single_run(letter: str, length: int):
    server = new_server("mcp")
    ran: list[str] = []

    @server.tool()
    async def export() -> str:
        await elicit.url("Sign in", LOGIN)
        ran.append("export")
        return letter * length

    async with caller_of(server, LEGACY) as (env, caller):
        call = caller.call("export")
        await env.complete(await caller.link())
        result = await soon(call)
        assert not result.is_error
        assert text_of(result) == letter * length
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
