"""The tool `elicitation_result`: clients without elicitation wait or cancel, but never accept."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import mcp_types as types
import pytest
from pydantic import BaseModel

from flows import elicit
from flows.elicitation.run import Run
from flows.elicitation.states import Elicitation, Status
from flows.elicitation.traits import ByModel
from flows.payments.money import Money
from flows.providers import github
from tests.support.mcp_sandbox import caller_at_sandbox
from tests.support.mcp_server import (
    FORM,
    URL,
    Caller,
    ServerEnv,
    answered_in,
    caller_of,
    link_in,
    new_server,
    soon,
    text_of,
)
from webapp.calls.call import RESULT_BYTES_AT_MOST
from webapp.calls.run import ARGUMENTS_BYTES_AT_MOST
from webapp.limits import CallLimits
from webapp.mcp.results import RESULT_TOOL
from webapp.settings.identity import IdentitySettings

BY_CODE = IdentitySettings(binds_by_code=True)
MODEL_ANSWERS = IdentitySettings(lets_model_answer=True)
AT_ONCE = CallLimits(link=timedelta())


class Name(BaseModel):
    first: str
    years: int = 1


class Shop:
    """An author's tools, which count how often their bodies started."""

    def __init__(self, server: Any) -> None:
        self.began: list[str] = []

        @server.tool()
        async def visit(page: str = "terms", note: str = "") -> str:
            self.began.append(page)
            await elicit.url("Please read this", f"https://shop.example/{page}")
            return f"read {page}"

        @server.tool()
        async def greet() -> str:
            outcome = await elicit.form("Who are you?", Name).outcome()
            who = outcome.content.first if outcome.content else outcome.status
            return f"{who} {outcome.is_by_model}"

        @server.tool()
        async def two() -> str:
            first = await elicit.form("The first?")
            second = await elicit.form("The second?")
            return f"{first} {second}"

        @server.tool()
        async def delete() -> str:
            return "deleted" if await elicit.confirm("Delete it all?") else "kept"


@pytest.fixture
def shop(server: Any) -> Shop:
    return Shop(server)


@asynccontextmanager
async def silent(
    server: Any, revision: str, **options: Any
) -> AsyncGenerator[tuple[ServerEnv, Caller]]:
    """Start a server and a client that does not support elicitation."""
    async with caller_of(server, revision, declares=None, **options) as (env, caller):
        yield env, caller


async def gone_on(caller: Caller, shown: types.CallToolResult, **arguments: Any) -> Any:
    """Return the result of `elicitation_result`, called for the elicitation that was shown."""
    return await caller.result(RESULT_TOOL, elicitId=id_in(shown), **arguments)


def pending_in(result: types.CallToolResult) -> dict[str, Any]:
    assert result.meta is not None, text_of(result)
    pending: dict[str, Any] = result.meta["elicitationPending"]
    return pending


def id_in(result: types.CallToolResult) -> str:
    id = pending_in(result)["elicitId"]
    assert isinstance(id, str)
    return id


async def row_of(env: ServerEnv, id: str) -> Elicitation:
    row = await env.service.elicitations.get(id)
    assert row is not None
    return row


@pytest.mark.parametrize("declared", ["both", "form", "url", "nothing"])
async def test_result_tool_is_listed_only_for_clients_without_elicitation(
    server, shop: Shop, revision, declared
):
    # parity: F12
    declares: dict[str, Any] = {"both": "all", "form": FORM, "url": URL, "nothing": None}
    async with caller_of(server, revision, declares=declares[declared], fills=[{}]) as (_, caller):
        listed = {tool.name for tool in (await caller.client.list_tools()).tools}
        assert (RESULT_TOOL in listed) is (declared == "nothing")
        assert {"visit", "greet"} <= listed
        if declared != "nothing":
            refused = await caller.result(RESULT_TOOL, elicitId="x")
            assert refused.is_error
            assert "elicitId" not in text_of(refused)


async def test_authors_tool_with_the_result_tools_name_is_preserved(server, revision):
    @server.tool(name=RESULT_TOOL)
    async def mine(elicitId: str) -> str:  # noqa: N803 - the name in our own tool
        return f"mine {elicitId}"

    async with silent(server, revision) as (_, caller):
        listed = [tool.name for tool in (await caller.client.list_tools()).tools]
        assert listed == [RESULT_TOOL]
        assert await caller.text(RESULT_TOOL, elicitId="x") == "mine x"


async def test_link_result_includes_machine_readable_details(server, shop: Shop, revision):
    # parity: F12
    # parity: T9
    async with silent(server, revision) as (_, caller):
        result = await caller.result("greet")
        assert text_of(result).startswith("This tool requires user input to continue")
        pending = pending_in(result)
        assert pending["message"] == "Who are you?"
        assert pending["schema"]["required"] == ["first"]
        assert RESULT_TOOL in pending["instructions"]
        assert pending["elicitId"]
        assert RESULT_TOOL in text_of(result)
        assert (pending["tool"], pending["arguments"]) == ("greet", {})
        visit = pending_in(await caller.result("visit", page="price", note="x" * 500))
        assert visit["schema"] is None
        assert visit["tool"] == "visit"
        # Arguments are shown as a gate shows them: long values are cut, with a note.
        note = f"{'x' * 400}... (500 characters in all)"
        assert visit["arguments"] == {"page": "price", "note": note}
        delete = pending_in(await caller.result("delete"))
        assert delete["schema"] == {"type": "object", "properties": {}}


async def test_nested_call_arguments_are_not_in_the_pending_details(revision):
    # parity: T9
    server = new_server("fastmcp")

    @server.tool()
    @elicit.gate
    async def delete(key: str) -> str:
        return f"deleted with {key}"

    @server.tool()
    async def tidy(where: str) -> str:
        return str(await server.call_tool("delete", {"key": "the server's own"}))

    async with silent(server, revision) as (_, caller):
        pending = pending_in(await caller.result("tidy", where="here"))
        assert pending["message"] == "Run delete?"
        assert (pending["tool"], pending["arguments"]) == ("tidy", {"where": "here"})


@pytest.mark.every_way
async def test_result_tool_waits_and_returns_the_tools_own_result(server, revision):
    # parity: F12
    # parity: T9
    shop = Shop(server)
    async with silent(server, revision) as (env, caller):
        shown = await caller.result("visit", page="price")
        waiting = caller.call(RESULT_TOOL, elicitId=id_in(shown))
        await env.pending()
        await env.complete(link_in(shown))
        result = await soon(waiting)
        assert text_of(result) == "read price"
        assert not result.is_error
        assert shop.began == ["price"] * 2
        assert len(await env.elicitations()) == 1
        runs = await env.service.elicitations.all(Run)
        assert len(runs) == 1


async def test_result_tool_supersedes_the_waiting_call(server, shop: Shop, revision):
    async with silent(server, revision) as (env, caller):
        shown = await caller.result("visit")
        older = caller.call("visit")
        (row,) = await env.pending()
        newer = caller.call(RESULT_TOOL, elicitId=id_in(shown))
        await env.waited_for_by_another(link_in(shown), row.waiter)
        assert "Another call is waiting" in text_of(await soon(older))
        await env.complete(link_in(shown))
        assert text_of(await soon(newer)) == "read terms"


async def test_result_tool_can_wait_repeatedly_for_a_slow_person(server, shop: Shop, revision):
    async with silent(server, revision, limits=AT_ONCE) as (env, caller):
        shown = await caller.result("visit")
        for _ in range(2):
            still = await gone_on(caller, shown, action="wait")
            assert text_of(still).startswith("Still waiting")
            assert id_in(still) == id_in(shown)
        await env.complete(link_in(shown))
        assert text_of(await gone_on(caller, shown)) == "read terms"


async def test_decline_by_the_result_tool_ends_the_tool_and_the_link(server, shop: Shop, revision):
    # parity: F12
    # parity: T9
    async with silent(server, revision) as (env, caller):
        shown = await caller.result("visit")
        result = await gone_on(caller, shown, action="decline")
        assert result.is_error
        assert "[ELICITATION_DECLINED]" in text_of(result)
        assert await env.status(link_in(shown)) is Status.DECLINED
        again = await caller.result("visit")
        assert id_in(again) != id_in(shown)


async def test_cancel_by_the_result_tool_ends_the_tool_but_not_the_link(
    server, shop: Shop, revision
):
    # parity: F12
    async with silent(server, revision) as (env, caller):
        shown = await caller.result("visit")
        result = await gone_on(caller, shown, action="cancel")
        assert result.is_error
        assert "was dismissed" in text_of(result)
        assert await env.status(link_in(shown)) is Status.PENDING
        await env.complete(link_in(shown))
        assert await caller.text("visit") == "read terms"


@pytest.mark.parametrize("no", ["decline", "cancel"])
async def test_tool_handling_a_refusal_returns_its_own_result(server, shop: Shop, revision, no):
    async with silent(server, revision) as (_, caller):
        shown = await caller.result("delete")
        assert text_of(await gone_on(caller, shown, action=no)) == "kept"


async def test_each_question_of_a_tool_gets_its_own_answer(server, shop: Shop, revision):
    # defect: frontmcp second question gets the first answer
    # parity: F12
    async with silent(server, revision, limits=AT_ONCE, who=MODEL_ANSWERS) as (env, caller):
        first = await caller.result("two")
        second = await gone_on(caller, first, content={"response": "one"})
        assert pending_in(second)["message"] == "The second?"
        assert id_in(second) != id_in(first)
        late = await gone_on(caller, first, content={"response": "no"})
        assert late.is_error
        assert (await row_of(env, id_in(second))).status is Status.PENDING
        still = await gone_on(caller, first)
        assert id_in(still) == id_in(second)
        result = await gone_on(caller, second, content={"response": "two"})
        assert text_of(result) == "one two"


async def test_models_answer_to_a_form_is_marked_as_the_models(
    server, shop: Shop, revision, caplog
):
    # parity: F12
    caplog.set_level("INFO", logger="webapp.mcp.result_tool")
    async with silent(server, revision, who=MODEL_ANSWERS) as (env, caller):
        shown = await caller.result("greet")
        id, link = id_in(shown), link_in(shown)
        result = await caller.result(
            RESULT_TOOL, elicitId=id, content={"first": "Ada", "years": 36}
        )
        assert text_of(result) == "Ada True"
        row = await row_of(env, id)
        assert (row.status, row.why) == (Status.ACCEPTED, ByModel.why)
        logged = [r for r in caplog.records if r.message == "elicitation.answered_by_model"]
        assert [vars(record)["id"] for record in logged] == [id]
        page = await (await env.person()).visit(link)
        assert page.heading == "Answered for you"


async def test_persons_answer_is_not_marked_as_the_models(server, shop: Shop, revision):
    async with silent(server, revision, who=MODEL_ANSWERS) as (env, caller):
        shown = await caller.result("greet")
        person = await env.person()
        page = await person.visit(link_in(shown))
        fields = {"csrf": page.csrf, "answer.first": "Eve", "answer.years": "3"}
        await person.browser.post(link_in(shown), data=fields)
        assert text_of(await gone_on(caller, shown)) == "Eve False"


@pytest.mark.diagonal
@pytest.mark.parametrize("content", [{}, {"first": 3}, {"years": 4}, {"first": "A", "x": 1}, "Ada"])
async def test_invalid_answer_of_the_model_leaves_the_question_open(
    server, shop: Shop, revision, content
):
    async with silent(server, revision, who=MODEL_ANSWERS) as (env, caller):
        shown = await caller.result("greet")
        result = await gone_on(caller, shown, content=content)
        assert result.is_error
        assert result.meta["errorId"] == "INVALID_INPUT"
        assert result.meta["details"]
        assert (await row_of(env, id_in(shown))).status is Status.PENDING
        fits = await gone_on(caller, shown, content={"first": "Ada"})
        assert text_of(fits) == "Ada True"


async def test_model_cannot_answer_forms_by_default(server, shop: Shop, revision):
    async with silent(server, revision) as (env, caller):
        (tool,) = [t for t in (await caller.client.list_tools()).tools if t.name == RESULT_TOOL]
        assert "content" not in tool.input_schema["properties"]
        shown = await caller.result("greet")
        result = await gone_on(caller, shown, content={"first": "Ada"})
        assert result.is_error
        assert "cannot answer for the person" in text_of(result)
        assert (await row_of(env, id_in(shown))).status is Status.PENDING


YES: tuple[dict[str, Any], ...] = (
    {"action": "accept"},
    {"action": "accept", "content": {}},
    {"action": ["wait"]},
    {"action": None, "content": None, "code": None},
    {"action": "wait", "content": {}},
    {"action": "wait", "content": {"confirm": True}},
    {"action": "wait", "content": {"value": "a secret of mine"}},
    {"action": "wait", "content": {"access_token": "t", "id": "1"}},
    {"code": "BCDF-GHJK"},
    {"code": True},
)


def add_kinds(server: Any) -> tuple[str, ...]:
    @server.tool()
    async def confirm() -> str:
        return f"{await elicit.confirm('Sure?')}"

    @server.tool()
    async def url() -> str:
        return f"{await elicit.url('Go', 'https://shop.example/')}"

    @server.tool()
    async def oauth() -> str:
        return (await elicit.oauth(github)).label

    @server.tool()
    async def payment() -> str:
        return (await elicit.payment(Money("9.00", "EUR"), "a pot of tea")).id

    @server.tool()
    async def secret() -> str:
        return await elicit.secret("Your key")

    @server.tool()
    @elicit.gate
    async def gate() -> str:
        return "opened"

    return "confirm", "url", "oauth", "payment", "secret", "gate"


async def test_model_cannot_accept_a_question_of_any_kind(server, revision):
    # parity: F12
    # parity: T9
    kinds = add_kinds(server)
    async with caller_at_sandbox(
        server, revision, limits=AT_ONCE, who=MODEL_ANSWERS, declares=None
    ) as (at, caller):
        for kind in kinds:
            shown = await caller.result(kind)
            for attempt in YES:
                result = await gone_on(caller, shown, **attempt)
                is_waiting = "elicitationPending" in (result.meta or {})
                assert result.is_error or is_waiting, (kind, attempt)
                assert (await row_of(at.env, id_in(shown))).status is Status.PENDING
            row = await row_of(at.env, id_in(shown))
            assert row.kind == kind
            assert row.content is None


ODD_ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"elicitId": None},
    {"elicitId": ""},
    {"elicitId": 3},
    {"elicitId": "x"},
    {"elicitId": "x" * 5000},
    {"elicitId": ["x"], "action": "decline"},
    {"elicitId": "x", "code": 3},
    {"elicitId": "\ud800".encode("utf-8", "replace").decode(), "action": "cancel"},
]


async def test_result_tool_handles_any_input(shop: Shop, server, revision):
    async with silent(server, revision) as (_, caller):
        for arguments in ODD_ARGUMENTS:
            assert (await caller.result(RESULT_TOOL, **arguments)).is_error, arguments


async def test_extra_arguments_of_the_result_tool_are_ignored(server, shop: Shop, revision):
    async with silent(server, revision, limits=AT_ONCE) as (_, caller):
        shown = await caller.result("visit", page="price")
        more = {"name": "delete", "tool": "delete", "arguments": {"page": "x"}, "page": "y"}
        await soon(caller.client.call_tool(RESULT_TOOL, {"elicitId": id_in(shown), **more}))
        assert shop.began == ["price", "price"]


async def test_invalid_question_ids_are_refused(server, shop: Shop, revision):
    async with silent(server, revision) as (env, caller):
        shown = await caller.result("visit")
        (run,) = await env.service.elicitations.all(Run)
        id = id_in(shown)
        for other in (run.id, id[:-1], f"{id}A", id[:20], link_in(shown)):
            result = await caller.result(RESULT_TOOL, elicitId=other, action="decline")
            assert "no question with this id" in text_of(result)
        assert (await row_of(env, id)).status is Status.PENDING
        assert shop.began == ["terms"]


async def test_ended_question_does_not_run_the_tool_again(server, shop: Shop, revision):
    # parity: F12
    async with silent(server, revision) as (env, caller):
        shown = await caller.result("visit")
        await env.complete(link_in(shown))
        assert await caller.text("visit") == "read terms"
        began = len(shop.began)
        again = await gone_on(caller, shown)
        assert text_of(again) == "read terms"
        for no in ("decline", "cancel"):
            result = await gone_on(caller, shown, action=no)
            assert "The question has ended: accepted" in text_of(result)
        # A body starts before the server knows which run the call belongs to.
        assert len(shop.began) == began + 1
        assert len(await env.elicitations()) == 1


async def test_expired_result_does_not_run_the_tool_again(server, revision):
    shop = Shop(server)
    async with caller_at_sandbox(server, revision, declares=None) as (at, caller):
        shown = await caller.result("visit")
        await at.env.complete(link_in(shown))
        assert await caller.text("visit") == "read terms"
        began = len(shop.began)
        at.clock.tick(minutes=11)
        result = await gone_on(caller, shown)
        assert "or the question has ended" in text_of(result)
        assert len(shop.began) == began


@pytest.mark.every_way
async def test_oversized_result_is_returned_once_and_the_tool_is_not_run_again(library, revision):
    server, ran = new_server(library), list[str]()

    @server.tool()
    @elicit.gate
    async def wipe() -> str:
        ran.append("wiped")
        return "x" * RESULT_BYTES_AT_MOST

    async with silent(server, revision) as (env, caller):
        shown = await caller.result("wipe")
        await (await env.person()).press(link_in(shown))
        result = await gone_on(caller, shown)
        assert len(text_of(result)) == RESULT_BYTES_AT_MOST
        for _ in range(2):
            result = await gone_on(caller, shown)
            assert result.is_error
            assert "or the question has ended" in text_of(result)
        assert ran == ["wiped"]
        assert len(await env.elicitations()) == 1


async def test_same_call_after_an_oversized_result_asks_again(server, revision):
    @server.tool()
    async def export() -> str:
        return "x" * RESULT_BYTES_AT_MOST if await elicit.confirm("Export it?") else "kept"

    async with silent(server, revision) as (env, caller):
        first = await caller.result("export")
        await (await env.person()).press(link_in(first))
        assert len(await caller.text("export")) == RESULT_BYTES_AT_MOST
        second = await caller.result("export")
        assert id_in(second) != id_in(first)
        over = await gone_on(caller, first)
        assert "or the question has ended" in text_of(over)
        assert (await row_of(env, id_in(second))).status is Status.PENDING
        result = await gone_on(caller, second, action="decline")
        assert text_of(result) == "kept"


async def test_another_client_of_the_same_person_cannot_use_the_question_id(
    server, shop: Shop, revision
):
    # parity: F12
    async with (
        silent(server, revision, who=MODEL_ANSWERS) as (env, caller),
        env.caller(revision, declares=None, name="another") as other,
    ):
        shown = await caller.result("greet")
        for attack in ({}, {"action": "decline"}, {"content": {"first": "Eve"}}):
            result = await other.result(RESULT_TOOL, elicitId=id_in(shown), **attack)
            assert "no question with this id" in text_of(result)
            assert "Who are you" not in text_of(result)
        assert (await row_of(env, id_in(shown))).status is Status.PENDING


async def test_another_person_cannot_use_the_question_id(revision):
    # parity: F12
    # defect: frontmcp another session answers
    from fastmcp.server.auth.providers.jwt import StaticTokenVerifier

    tokens: dict[str, Any] = {
        who: {"client_id": "client", "scopes": [], "sub": who} for who in ("ann", "eve")
    }
    server = new_server("fastmcp", auth=StaticTokenVerifier(tokens))
    shop = Shop(server)
    async with (
        caller_of(
            server, revision, who=BY_CODE, declares=None, headers={"authorization": "Bearer ann"}
        ) as (env, ann),
        env.caller(revision, declares=None, headers={"authorization": "Bearer eve"}) as eve,
    ):
        shown = await ann.result("visit")
        for attack in ({}, {"action": "decline"}, {"action": "cancel"}, {"code": "BCDF-GHJK"}):
            result = await eve.result(RESULT_TOOL, elicitId=id_in(shown), **attack)
            assert "no question with this id" in text_of(result)
        assert await env.status(link_in(shown)) is Status.PENDING
        assert shop.began == ["terms"]


async def test_oversized_arguments_must_be_sent_again(server, shop: Shop, revision):
    note = "x" * ARGUMENTS_BYTES_AT_MOST
    async with silent(server, revision) as (env, caller):
        shown = await caller.result("visit", note=note)
        result = await gone_on(caller, shown)
        assert "with the same arguments" in text_of(result)
        await env.complete(link_in(shown))
        assert await caller.text("visit", note=note) == "read terms"


async def test_client_with_forms_and_user_code_tool_answers_in_its_next_request():
    """A form that `elicitation_result` shows is answered in the client's next request."""
    from tests.support.guarded_server import TOKEN, new_guarded_server

    server = new_guarded_server("mcp", subject="ann")

    @server.tool()
    async def both() -> str:
        await elicit.url("Go", "https://shop.example/")
        return f"hello {await elicit.form('Who are you?')}"

    async with caller_of(
        server, "2026-07-28", who=BY_CODE, headers=TOKEN, declares=FORM, fills=[{}]
    ) as (env, caller):
        shown = await caller.answered("both")
        await env.complete(link_in(shown))
        first = await caller.asked(RESULT_TOOL, elicitId=id_in(shown))
        (key,) = first.input_requests or {}
        done = await soon(
            caller.client.session.call_tool(
                RESULT_TOOL,
                {"elicitId": id_in(shown)},
                input_responses={
                    key: types.ElicitResult(action="accept", content={"response": "Ann"})
                },
                request_state=first.request_state,
                allow_input_required=True,
            )
        )
        assert text_of(answered_in(done)) == "hello Ann"
