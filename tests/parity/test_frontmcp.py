"""FrontMCP's features for asking from a tool, tested with the `elicit` of this project."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from flows import InvalidAnswer, InvalidQuestion, elicit
from flows.question import DEFAULT_TIMEOUT, Outcome
from tests.support.mcp_server import FORM, URL, new_server, server_env, soon, text_of

if TYPE_CHECKING:
    from flows.elicitation.states import Json

PAGE = "https://shop.example/sign"


@dataclass(frozen=True)
class Size:
    number: int


def test_question_lasts_five_minutes_by_default() -> None:
    # parity: F1
    # parity: F3
    assert timedelta(minutes=5) == DEFAULT_TIMEOUT
    assert elicit.form("Which size?", Size).timeout == DEFAULT_TIMEOUT
    assert elicit.url("Sign.", PAGE).timeout == DEFAULT_TIMEOUT
    two = timedelta(minutes=2)
    assert elicit.form("Which size?", Size, timeout=two).timeout == two
    assert elicit.url("Sign.", PAGE, elicitation_id="order-7", timeout=two).timeout == two


async def test_author_can_ask_with_custom_elicitation_id(revision: str) -> None:
    # parity: F1
    server = new_server("mcp")

    @server.tool()
    async def sign() -> str:
        return str(dict(await elicit.url("Sign.", PAGE, elicitation_id="order-7")))

    async with server_env(server) as env, env.caller(revision) as caller:
        call = caller.call("sign")
        await caller.link()
        assert await elicit.complete_elicitation("order-7", {"by": "Ada"}) == "accepted"
        assert text_of(await soon(call)) == "{'by': 'Ada'}"


async def test_trusted_code_can_complete_form_by_id_with_valid_content(
    revision: str,
) -> None:
    # parity: F1
    server = new_server("mcp")

    @server.tool()
    async def order() -> str:
        size = await elicit.form("Which size?", Size, elicitation_id="order-8")
        return f"size {size.number}"

    async with server_env(server) as env, env.caller(revision, declares=URL) as caller:
        call = caller.call("order")
        await caller.link()
        with pytest.raises(InvalidAnswer) as refused:
            await elicit.complete_elicitation("order-8", {"number": "large"})
        assert [fault["path"] for fault in refused.value.details] == ["number"]
        assert await elicit.complete_elicitation("order-8", {"number": 42}) == "accepted"
        assert text_of(await soon(call)) == "size 42"


async def test_only_accepted_outcome_has_content_of_requested_type(
    revision: str,
) -> None:
    # parity: F4
    server = new_server("mcp")
    outcomes: list[Outcome[Size]] = []

    @server.tool()
    async def ask() -> str:
        outcome = await elicit.form("Which size?", Size).outcome()
        outcomes.append(outcome)
        return outcome.action

    fills: list[dict[str, Json] | str] = [{"number": 42}, "decline", "cancel"]
    async with server_env(server) as env, env.caller(revision, declares=FORM, fills=fills) as one:
        actions = [text_of(await soon(one.call("ask"))) for _ in fills]
    assert actions == ["accept", "decline", "cancel"]
    assert [outcome.content for outcome in outcomes] == [Size(number=42), None, None]


async def test_tool_reports_progress(revision: str) -> None:
    # parity: F2
    server = new_server("mcp")

    @server.tool()
    async def approve() -> str:
        await elicit.notify("Reading the expense")
        await elicit.url("Sign.", PAGE)
        await elicit.notify("The expense is approved")
        return "approved"

    reported = list[tuple[float, str | None]]()

    async def note(progress: float, total: float | None, message: str | None) -> None:
        reported.append((progress, message))

    async with server_env(server) as env, env.caller(revision) as caller:
        call = asyncio.create_task(caller.client.call_tool("approve", {}, progress_callback=note))
        await env.complete(await caller.link())
        assert text_of(await soon(call)) == "approved"
    words = [message for _, message in reported if message and "expense" in message.lower()]
    assert words[0] == "Reading the expense"
    assert words[-1] == "The expense is approved"
    if revision == "legacy":  # on the newer revision, each request starts at 0
        assert [step for step, _ in reported] == sorted({step for step, _ in reported})


async def test_notify_refuses_blank_text_and_does_nothing_without_progress_token(
    revision: str,
) -> None:
    # parity: F2
    server = new_server("mcp")

    @server.tool()
    async def approve() -> str:
        with pytest.raises(InvalidQuestion):
            await elicit.notify(" ")
        await elicit.notify("Nobody asked for progress")
        return "approved"

    async with server_env(server) as env, env.caller(revision) as caller:
        assert text_of(await soon(caller.call("approve"))) == "approved"
