"""The official TypeScript clients call our tools, and a person answers over HTTP.

Each test runs with `@modelcontextprotocol/sdk`, and with `@modelcontextprotocol/client` on both
revisions.
"""

import re
from collections.abc import Mapping
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import httpx
import mcp_types as types
import pytest
from pydantic import BaseModel, Field

from flows import elicit
from flows.elicitation.states import Json, Status
from tests.support.cli import serving
from tests.support.mcp_server import new_server, server_env
from tests.typescript.env import BOTH, CLIENTS, FORM, OLDER, URL, Caller, Official, calling, text_of
from webapp.demo.client import ANSWERS, EXPECTED
from webapp.demo.walker import walk
from webapp.limits import CallLimits


class Expense(BaseModel):
    amount: float = Field(ge=0, le=5000)
    category: Literal["travel", "meals"]


# For each library, the error that an application catches when its session is gone.
GONE: Mapping[str, Mapping[str, Json]] = {
    "sdk": {"code": 404},
    "client": {"name": "SdkHttpError", "code": "CLIENT_HTTP_NOT_IMPLEMENTED"},
}
GOOD: Mapping[str, Json] = {"amount": 12.5, "category": "meals"}


@pytest.fixture
def server() -> Any:
    server = new_server("mcp")

    @server.tool()
    async def file_expense() -> str:
        expense = await elicit.form("What did you spend?", Expense)
        return f"{expense.amount:.2f} for {expense.category}"

    @server.tool()
    async def delete(count: int) -> str:
        is_sure = await elicit.confirm(f"Delete {count} to-dos?", arguments={"count": count})
        return "deleted" if is_sure else "kept"

    @server.tool()
    async def visit() -> str:
        done = await elicit.url("Please read our terms.", "https://shop.example/terms")
        return f"done as {done['who']}"

    @server.tool()
    async def book() -> str:
        expense = await elicit.form("What did you spend?", Expense)
        await elicit.url("Please sign.", "https://shop.example/sign")
        is_sure = await elicit.confirm("Book it?")
        return f"{expense.amount:.2f} signed, booked: {is_sure}"

    @server.tool()
    async def plan() -> str:
        expense, done = await elicit.together(
            elicit.form("What may it cost?", Expense),
            elicit.url("Please read our terms.", "https://shop.example/terms"),
        )
        return f"up to {expense.amount:.2f}, read by {done['who']}"

    @server.tool(annotations=types.ToolAnnotations(destructive_hint=True))
    async def erase(count: int) -> str:
        return f"erased {count}"

    @server.tool()
    @elicit.needs(elicit.url("Please sign.", "https://shop.example/sign"))
    async def ship() -> str:
        return "shipped"

    return server


async def test_every_demo_tool_succeeds(node: str, official: Official, tmp_path) -> None:
    async with (
        serving(home=tmp_path) as here,
        httpx.AsyncClient() as browser,
        calling(node, official, f"{here.url}/mcp", declares=URL) as caller,
    ):
        assert caller.speaks == official.revision
        assert set(EXPECTED) <= set(caller.tools)
        sandbox = (await browser.get(f"{here.url}/health")).json()["sandbox"]
        for count, (tool, expected) in enumerate(EXPECTED.items(), start=1):
            caller.begin(tool)
            link = await caller.link()
            assert link.startswith(f"{here.url}/e/")
            await walk(browser, link, answers=ANSWERS, also=[sandbox], say=lambda _: None)
            result = await caller.result()
            assert not result.get("isError"), result
            assert re.fullmatch(expected, text_of(result))
            # The notification comes before the result, and the newer revision has none.
            assert len(caller.completed) == (count if official.revision == OLDER else 0)


async def test_client_shows_form_and_confirmation(
    node: str, official: Official, server: Any
) -> None:
    async with (
        server_env(server) as env,
        calling(
            node, official, env.mcp_url, declares=FORM, answers=[GOOD, {}, "decline", "cancel"]
        ) as caller,
    ):
        caller.begin("file_expense")
        asked = await caller.asked()
        assert asked["message"] == "What did you spend?"
        assert asked["requestedSchema"]["required"] == ["amount", "category"]
        assert text_of(await caller.result()) == "12.50 for meals"
        for expected in ("deleted", "kept", "kept"):
            caller.begin("delete", count=5)
            asked = await caller.asked()
            assert asked["message"] == "Delete 5 to-dos?\ncount: 5"
            assert asked["requestedSchema"] == {"type": "object", "properties": {}}
            assert text_of(await caller.result()) == expected
        assert not caller.completed


async def test_empty_elicitation_capability_means_form_mode(
    node: str, official: Official, server: Any
) -> None:
    async with (
        server_env(server) as env,
        calling(node, official, env.mcp_url, declares={}, answers=[GOOD]) as caller,
    ):
        # parity: F11
        caller.begin("file_expense")
        assert "url" not in await caller.asked()
        assert text_of(await caller.result()) == "12.50 for meals"


@pytest.mark.parametrize(
    ("no", "name"), [("decline", "ELICITATION_DECLINED"), ("cancel", "ELICITATION_CANCELLED")]
)
async def test_declined_question_ends_tool_with_its_error_code(
    node: str, official: Official, server: Any, no: str, name: str
) -> None:
    async with (
        server_env(server) as env,
        calling(node, official, env.mcp_url, declares=BOTH, answers=[no, no]) as caller,
    ):
        for tool in ("file_expense", "visit"):
            caller.begin(tool)
            await caller.asked()
            result = await caller.result()
            assert result["isError"]
            assert result["_meta"]["code"] == name


async def test_invalid_content_is_reported_with_its_path(
    node: str, official: Official, server: Any
) -> None:
    wrong: Mapping[str, Json] = {"amount": 9000, "category": "fun"}
    async with (
        server_env(server) as env,
        calling(node, official, env.mcp_url, declares=FORM, answers=[wrong]) as caller,
    ):
        caller.begin("file_expense")
        await caller.asked()
        result = await caller.result()
        assert result["isError"]
        assert result["_meta"]["code"] == "INVALID_INPUT"
        assert [fault["path"] for fault in result["_meta"]["details"]] == ["amount", "category"]
        assert [row.status for row in await env.elicitations()] == [Status.FAILED]


async def test_client_waits_while_person_visits_url_of_author(
    node: str, official: Official, server: Any
) -> None:
    async with (
        server_env(server) as env,
        calling(node, official, env.mcp_url, declares=URL) as caller,
    ):
        caller.begin("visit")
        link = await caller.link()
        person = await env.person()
        assert await person.go_on(link) == "https://shop.example/terms"
        await env.complete(link, {"who": "Ada"})
        assert text_of(await caller.result()) == "done as Ada"


async def test_form_question_without_form_mode_opens_our_page(
    node: str, official: Official, server: Any
) -> None:
    async with (
        server_env(server) as env,
        calling(node, official, env.mcp_url, declares=URL) as caller,
    ):
        caller.begin("file_expense")
        link = await caller.link()
        person = await env.person()
        page = await person.visit(link)
        fields = {"csrf": page.csrf, "answer.amount": "12.5", "answer.category": "1"}
        assert (await person.browser.post(link, data=fields)).status_code == 303
        assert text_of(await caller.result()) == "12.50 for meals"


async def test_client_without_elicitation_gets_link_and_calls_again(
    node: str, official: Official, server: Any
) -> None:
    async with (
        server_env(server) as env,
        calling(node, official, env.mcp_url, declares=None) as caller,
    ):
        person = await env.person()
        link = _link_in(await caller.call("delete", count=5))
        await person.press(link)
        assert text_of(await caller.call("delete", count=5)) == "deleted"
        link = _link_in(await caller.call("visit"))
        await person.go_on(link)
        await env.complete(link, {"who": "Ada"})
        assert text_of(await caller.call("visit")) == "done as Ada"


async def test_form_visit_and_confirmation_follow_each_other_in_one_call(
    node: str, official: Official, server: Any
) -> None:
    async with (
        server_env(server) as env,
        calling(node, official, env.mcp_url, declares=BOTH, answers=[GOOD]) as caller,
    ):
        caller.begin("book")
        assert "requestedSchema" in await caller.asked()
        link = await caller.link()
        person = await env.person()
        await person.go_on(link)
        await env.complete(link)
        assert (await caller.asked())["message"] == "Book it?"
        assert text_of(await caller.result()) == "12.50 signed, booked: True"


async def test_questions_asked_together_are_answered_together(
    node: str, official: Official, server: Any
) -> None:
    async with (
        server_env(server) as env,
        calling(node, official, env.mcp_url, declares=BOTH, answers=[GOOD]) as caller,
    ):
        caller.begin("plan")
        form, visit = await caller.asked(), await caller.asked()
        assert form["message"] == "What may it cost?"
        person = await env.person()
        await person.go_on(visit["url"])
        await env.complete(visit["url"], {"who": "Ada"})
        assert text_of(await caller.result()) == "up to 12.50, read by Ada"


async def test_destructive_tool_waits_for_approval(
    node: str, official: Official, server: Any
) -> None:
    async with (
        server_env(server) as env,
        calling(node, official, env.mcp_url, declares=FORM, answers=["decline", {}]) as caller,
    ):
        caller.begin("erase", count=5)
        assert "erase" in (await caller.asked())["message"]
        refused = await caller.result()
        assert refused["isError"]
        assert refused["_meta"]["code"] == "ELICITATION_DECLINED"
        caller.begin("erase", count=5)
        await caller.asked()
        assert text_of(await caller.result()) == "erased 5"


async def test_needs_questions_are_asked_before_tool_starts(
    node: str, official: Official, server: Any
) -> None:
    async with (
        server_env(server) as env,
        calling(node, official, env.mcp_url, declares=URL) as caller,
    ):
        caller.begin("ship")
        link = await caller.link()
        person = await env.person()
        await person.go_on(link)
        await env.complete(link)
        assert text_of(await caller.result()) == "shipped"


async def test_client_without_elicitation_can_wait_with_result_tool(
    node: str, official: Official, server: Any
) -> None:
    async with (
        server_env(server) as env,
        calling(node, official, env.mcp_url, declares=None) as caller,
    ):
        assert "elicitation_result" in caller.tools
        asked = await caller.call("delete", count=5)
        pending = asked["_meta"]["elicitationPending"]
        person = await env.person()
        await person.press(_link_in(asked))
        result = await caller.call("elicitation_result", elicitId=pending["elicitId"])
        assert text_of(result) == "deleted"


def _link_in(result: dict[str, Any]) -> str:
    link = re.search(r"http://\S+/e/\S+", text_of(result))
    assert link is not None, result
    return link[0]


async def test_continued_call_shows_its_link_once_per_session(
    node: str, official: Official, server: Any
) -> None:
    """Test in a short time what slow_person.py shows in real time."""
    # finding: R4
    limits = CallLimits(
        call=timedelta(seconds=1),
        retry=timedelta(seconds=0.2),
        request_at_least=timedelta(),
        rounds=3,
    )
    async with (
        server_env(server, limits=limits) as env,
        calling(node, official, env.mcp_url, declares=URL) as caller,
    ):
        caller.begin("visit")
        link = await caller.link()
        assert text_of(await caller.result()).startswith("Still waiting")
        caller.begin("visit")
        if official.revision == OLDER:
            assert text_of(await caller.result()).startswith("Still waiting")
            await env.complete(link, {"who": "Ann"})
            caller.begin("visit")
        else:
            assert env.id_of(await caller.link()) == env.id_of(link)
            await env.complete(link, {"who": "Ann"})
        assert text_of(await caller.result()) == "done as Ann"


@pytest.mark.parametrize("older", [each for each in CLIENTS if each.revision == OLDER], ids=str)
async def test_client_reports_404_and_new_session_joins_question(
    node: str, older: Official, tmp_path: Path, free_port: int
) -> None:
    tool = "sign_guest_book"
    async with httpx.AsyncClient() as browser, AsyncExitStack() as clients:

        async def connected(url: str) -> Caller:
            return await clients.enter_async_context(
                calling(node, older, f"{url}/mcp", declares=URL)
            )

        async with serving(home=tmp_path, port=free_port) as here:
            first = await connected(here.url)
            first.begin(tool)
            link = await first.link()
        assert "call this tool again" in text_of(await first.result())
        async with serving(home=tmp_path, port=free_port) as here:
            for _ in range(2):  # the client starts no new session by itself, now or later
                first.begin(tool)
                error = (await first.next_message())["error"]
                assert GONE[older.library].items() <= error.items()
                assert "Session not found" in error["message"]
                assert older.library == "sdk" or error["data"]["status"] == 404
            second = await connected(here.url)
            second.begin(tool)
            await second.link()
            await walk(browser, link, answers=ANSWERS, say=lambda _: None)
            assert re.fullmatch(EXPECTED[tool], text_of(await second.result()))
