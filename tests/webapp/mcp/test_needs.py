"""Needs of a tool are asked before its body starts, whatever modes the client supports."""

from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

import mcp_types as types
import pytest
from fastmcp import Context, FastMCP
from fastmcp.server.middleware import Middleware

from flows import Account, Receipt, elicit
from flows.elicitation.states import Status
from flows.errors import Declined
from tests.support.kind_tools import WAYS, bought, connected
from tests.support.mcp_sandbox import KEY, caller_at_sandbox, went_through
from tests.support.mcp_server import (
    BOTH,
    MODERN,
    Caller,
    ServerEnv,
    caller_of,
    eventually,
    server_env,
    soon,
    text_of,
)

TERMS = "https://example.com/terms"


def terms(**more: Any) -> Any:
    return elicit.url("Read the terms.", TERMS, **more)


async def finished(env: ServerEnv, caller: Caller, tool: str, *, times: int) -> str:
    """Call the tool, finish `times` numbered visits, and return the text of the call's result."""
    call, person = caller.call(tool), await env.person()
    for number in range(1, times + 1):
        link = await caller.link()
        await person.go_on(link)
        await env.complete(link, {"n": number})
    return text_of(await soon(call))


def passing_on(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    async def passed(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    return passed


@pytest.mark.every_way
@pytest.mark.parametrize("way", WAYS)
async def test_needs_are_asked_first_and_passed_to_the_tool(server, revision, way):
    # parity: L8
    # parity: L9
    got: list[Any] = []

    @server.tool()
    @elicit.needs(connected())
    @elicit.needs(bought())
    async def serve_tea() -> str:
        receipt = await bought()
        account = await connected()
        got.append((account, receipt))
        return f"{account.label} {receipt.price}"

    async with caller_at_sandbox(server, revision, declares=WAYS[way]) as (at, caller):
        acts = [at.guest.connect, at.guest.pay]
        result = await went_through(caller, "serve_tea", acts, by_url=way == "url")
        assert text_of(result) == "octocat 9.00 EUR"
        ((account, receipt),) = got  # the body ran once
        assert isinstance(account, Account)
        assert isinstance(receipt, Receipt)
        assert sorted(row.kind for row in await at.env.elicitations()) == ["oauth", "payment"]
        assert [payment.status for payment in await at.payments()] == ["spent"]


async def test_payment_need_is_asked_again_by_the_next_call(server, revision):
    @server.tool()
    @elicit.needs(bought(again=True))
    def print_page() -> str:
        return "printed"

    async with caller_at_sandbox(server, revision) as (at, caller):
        for paid in (1, 2):
            assert text_of(await went_through(caller, "print_page", [at.guest.pay])) == "printed"
            assert [p.status for p in await at.payments()] == ["spent"] * paid


ORDERS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "below": lambda tool, needs, body: tool(needs(body)),
    "above": lambda tool, needs, body: needs(tool(body)),
    "below one that wraps": lambda tool, needs, body: tool(passing_on(needs(body))),
    "above one that wraps": lambda tool, needs, body: tool(needs(passing_on(body))),
    "above all": lambda tool, needs, body: needs(passing_on(tool(body))),
}


@pytest.mark.diagonal
@pytest.mark.parametrize("order", ORDERS)
async def test_needs_work_in_any_order_of_decorators(server, revision, order):
    # parity: L7
    ran: list[str] = []

    async def enter() -> str:
        ran.append("body")
        return f"{await elicit.url('Read the terms.', TERMS)}"

    ORDERS[order](server.tool(), elicit.needs(terms()), enter)
    async with caller_of(server, revision) as (env, caller):
        call = caller.call("enter")
        link = await caller.link()
        person = await env.person()
        await person.go_on(link)
        assert not ran
        await env.complete(link, {"version": 3})
        assert text_of(await soon(call)) == "{'version': 3}"
        assert len(await env.elicitations()) == 1


@pytest.mark.every_way
async def test_decline_of_a_need_ends_the_call_before_the_tool_starts(server, revision):
    # parity: L7
    ran: list[str] = []

    @server.tool()
    @elicit.needs(terms())
    async def plain() -> None:
        ran.append("plain")

    @server.tool()
    @elicit.needs(terms(), decline_message="Without the terms there is no tea.")
    async def worded() -> None:
        ran.append("worded")

    @server.tool()
    @elicit.needs(elicit.confirm("Are you sure?"))
    async def sure() -> None:
        ran.append("sure")

    no = ["decline", "decline", "cancel"]
    fills = ["decline"]
    async with caller_of(server, revision, answers=no, declares=BOTH, fills=fills) as (_, caller):
        result = await caller.result("plain")
        assert result.is_error
        message = "The person declined: 'Read the terms.'. [ELICITATION_DECLINED]"
        assert text_of(result) == message
        result = await caller.result("worded")
        assert text_of(result) == "Without the terms there is no tea. [ELICITATION_DECLINED]"
        assert result.meta["elicitId"]
        result = await caller.result("worded")
        assert text_of(result) == "Without the terms there is no tea. [ELICITATION_CANCELLED]"
        result = await caller.result("sure")
        assert "[ELICITATION_DECLINED]" in text_of(result)
        assert not ran


async def test_dismissed_need_is_joined_by_the_same_call(server, revision):
    @server.tool()
    @elicit.needs(terms(), decline_message="No tea.")
    async def enter() -> str:
        return "in"

    async with caller_of(server, revision, answers=["cancel"]) as (env, caller):
        assert "[ELICITATION_CANCELLED]" in await caller.text("enter")
        link = await caller.link()
        call = caller.call("enter")
        assert env.id_of(await caller.link()) == env.id_of(link)
        person = await env.person()
        await person.go_on(link)
        await env.complete(link)
        assert text_of(await soon(call)) == "in"


async def test_each_need_answer_is_passed_on_once(server, revision):
    @server.tool()
    @elicit.needs(terms())
    async def twice() -> str:
        first = await terms()
        second = await elicit.url("Read the terms.", TERMS)
        return f"{first['n']} {second['n']}"

    async with caller_of(server, revision) as (env, caller):
        assert await finished(env, caller, "twice", times=2) == "1 2"
        assert len(await env.elicitations()) == 2


async def test_question_shared_by_two_needs_is_asked_once(server, revision):
    reported: list[Any] = []

    @server.tool()
    @elicit.needs(terms(), on_complete=lambda content: reported.append(content["n"]))
    @elicit.needs(terms(timeout=timedelta(minutes=1)), elicit.url("Sign it.", TERMS))
    async def enter() -> str:
        return str((await terms())["n"])

    async with caller_of(server, revision) as (env, caller):
        assert await finished(env, caller, "enter", times=2) == "1"
        assert reported == [1]
        assert len(await env.elicitations()) == 2


async def test_together_questions_get_the_needs_answers(server, revision):
    @server.tool()
    @elicit.needs(terms())
    async def enter() -> str:
        signed, read = await elicit.together(elicit.url("Sign it.", TERMS), terms())
        return f"{signed['n']} {read['n']}"

    async with caller_of(server, revision) as (env, caller):
        assert await finished(env, caller, "enter", times=2) == "2 1"
        assert len(await env.elicitations()) == 2


async def test_different_question_does_not_get_the_needs_answer(server, revision):
    @server.tool()
    @elicit.needs(terms())
    async def other() -> str:
        by_key = await terms(key="mine")
        other = await elicit.url("Read the terms!", TERMS)
        return f"{by_key['n']} {other['n']}"

    async with caller_of(server, revision) as (env, caller):
        assert await finished(env, caller, "other", times=3) == "2 3"


async def test_skip_if_receives_the_arguments(server, revision):
    # parity: L7
    async def is_free(arguments: Any) -> bool:
        return bool(arguments["cups"] < 2)

    @server.tool()
    @elicit.needs(terms(), skip_if=is_free)
    @elicit.needs(elicit.form("Your name?"), skip_if=lambda arguments: "name" in arguments)
    async def pour(cups: int, name: str = "") -> str:
        return f"{cups} for {name or await elicit.form('Your name?')}"

    fills = [{"response": "Ada"}, {"response": "Bob"}]
    async with caller_of(server, revision, declares=BOTH, fills=fills) as (env, caller):
        assert await caller.text("pour", cups=1, name="Eve") == "1 for Eve"
        assert await env.elicitations() == []
        assert await caller.text("pour", cups=1) == "1 for Ada"
        call = caller.call("pour", cups=2)
        link = await caller.link()
        await (await env.person()).go_on(link)
        await env.complete(link)
        assert text_of(await soon(call)) == "2 for Bob"
        result = await caller.result("pour")  # the author's code raises KeyError
        assert result.is_error
        assert text_of(result).startswith("The tool pour could not start")


async def test_asked_need_is_not_skipped_later_in_the_same_call(server, revision):
    went: list[str] = []

    @server.tool()
    @elicit.needs(terms(), skip_if=lambda _: bool(went))
    async def enter() -> str:
        went.append("in")
        name = await elicit.form("Your name?")
        return f"{name} {await elicit.form('And your oauth_env?')}"

    fills = [{"response": "Ada"}, {"response": "London"}]
    async with caller_of(server, revision, declares=BOTH, fills=fills) as (env, caller):
        call = caller.call("enter")
        link = await caller.link()
        await (await env.person()).go_on(link)
        await env.complete(link)
        assert text_of(await soon(call)) == "Ada London"
        assert len(await env.elicitations()) == 3
        assert len(went) == (3 if revision == MODERN else 1)


@pytest.mark.every_way
async def test_on_complete_runs_once_per_call_if_the_tool_runs_again(server, revision):
    # parity: L7
    reported: list[Any] = []
    ran: list[str] = []

    async def note(account: Account, receipt: Receipt) -> None:
        reported.append((account.label, str(receipt.price)))

    @server.tool()
    @elicit.needs(connected(), bought(again=True), on_complete=note)
    async def serve_tea() -> str:
        ran.append("body")
        return str(len(await elicit.secret("Your key")))

    async with caller_at_sandbox(server, revision) as (at, caller):
        acts = [at.guest.connect, at.guest.pay, at.guest.type]
        assert text_of(await went_through(caller, "serve_tea", acts)) == str(len(KEY))
        assert reported == [("octocat", "9.00 EUR")]
        assert len(ran) == (2 if revision == MODERN else 1)
        assert text_of(await went_through(caller, "serve_tea", acts[1:])) == str(len(KEY))
        assert reported == [("octocat", "9.00 EUR")] * 2


async def test_on_complete_is_not_called_for_stored_answers(server, revision):
    reported: list[str] = []

    @server.tool()
    @elicit.needs(connected(), on_complete=lambda account: reported.append(account.label))
    def show() -> str:
        return "shown"

    async with caller_at_sandbox(server, revision) as (at, caller):
        assert text_of(await went_through(caller, "show", [at.guest.connect])) == "shown"
        assert await caller.text("show") == "shown"
        assert reported == ["octocat"]


async def test_on_complete_can_decline(server, revision):
    def refuse(_: Any) -> None:
        raise Declined("These are last year's terms.")

    @server.tool()
    @elicit.needs(elicit.form("Your name?"), on_complete=refuse)
    def enter() -> str:
        return "in"

    fills = [{"response": "Ada"}]
    async with caller_of(server, revision, declares=BOTH, fills=fills) as (_, caller):
        result = await caller.result("enter")
        assert text_of(result) == "These are last year's terms. [ELICITATION_DECLINED]"


async def test_exception_in_on_complete_ends_the_call_without_its_message(server, revision):
    def fail(key: str) -> None:
        raise ValueError(f"{key} is wrong")

    @server.tool()
    @elicit.needs(elicit.secret("Your key"), on_complete=fail)
    def enter() -> str:
        return "in"

    async with caller_at_sandbox(server, revision) as (at, caller):
        result = await went_through(caller, "enter", [at.guest.type])
        assert result.is_error
        assert text_of(result).startswith("The tool enter could not start")


async def test_paid_need_is_preserved_after_a_later_decline(server, revision):
    # parity: L9
    @server.tool()
    @elicit.needs(bought(), elicit.oauth("github", scopes=["repo"]))
    def serve_tea() -> str:
        return "tea"

    async with caller_at_sandbox(server, revision) as (at, caller):
        result = await went_through(caller, "serve_tea", [at.guest.pay, at.guest.decline])
        assert "[ELICITATION_DECLINED]" in text_of(result)
        await eventually(lambda: not len(at.env.service.running_tools))
        assert [payment.status for payment in await at.payments()] == ["open"]
        assert text_of(await went_through(caller, "serve_tea", [at.guest.connect])) == "tea"
        assert [payment.status for payment in await at.payments()] == ["spent"]


async def test_rejected_credential_is_forgotten_and_asked_for_again(server, revision):
    # parity: L6
    def door() -> Any:
        return elicit.secret("The key of the door", name="door")

    @server.tool()
    @elicit.needs(door())
    async def enter() -> str:
        if await door() != KEY:
            await elicit.forget("door")
            return "It does not fit."
        return "in"

    async with caller_at_sandbox(server, revision) as (at, caller):

        async def mistype(link: str) -> None:
            await at.guest.type(link, value="some other letters")

        wrong = await went_through(caller, "enter", [mistype])
        assert text_of(wrong) == "It does not fit."
        assert text_of(await went_through(caller, "enter", [at.guest.type])) == "in"
        assert await caller.text("enter") == "in"
        assert not caller.has_links_left


async def test_restarted_call_finds_its_needs_answered(server, revision):
    @server.tool()
    @elicit.needs(terms())
    async def enter() -> str:
        key = await elicit.url("And the small print.", TERMS)
        return f"{(await terms())['n']} {key['n']}"

    async with caller_of(server, revision, declares=None) as (env, caller):
        person = await env.person()
        for number in (1, 2):
            link = await caller.link_in_result("enter")
            await person.go_on(link)
            await env.complete(link, {"n": number})
        assert await caller.text("enter") == "1 2"
        rows = await env.elicitations()
        assert [row.status for row in rows] == [Status.ACCEPTED] * 2


async def test_need_answered_before_a_restart_is_used_after_the_restart(server, revision, tmp_path):
    ran: list[str] = []

    @server.tool()
    @elicit.needs(terms(), on_complete=lambda content: ran.append(f"told {content['n']}"))
    async def enter() -> str:
        ran.append("body")
        return str((await terms())["n"])

    store = f"sqlite:///{tmp_path / 'elicit.db'}"
    async with server_env(server, store=store) as env:
        async with env.caller(revision, declares=None) as caller:
            link = await caller.link_in_result("enter")
        person = await env.person()
        await person.go_on(link)
        await env.complete(link, {"n": 7})
    assert not ran
    async with caller_of(server, revision, store=store, declares=None) as (env, caller):
        assert await caller.text("enter") == "7"
        assert len(await env.elicitations()) == 1
    assert ran == ["told 7", "body"]


@pytest.mark.parametrize("way", ["unlisted", "called by another"])
async def test_needs_apply_to_unlisted_and_nested_tools(revision, way):

    class Hides(Middleware):
        async def on_list_tools(self, context: Any, call_next: Any) -> Any:
            return [tool for tool in await call_next(context) if tool.name != "delete"]

    server = FastMCP("shop", middleware=[Hides()])
    ran: list[str] = []

    @server.tool
    @elicit.needs(elicit.confirm("Sure?"))
    async def delete(what: str) -> str:
        assert await elicit.confirm("Sure?")  # uses the answer that was already given
        ran.append(what)
        return "deleted"

    @server.tool
    async def tidy(what: str, ctx: Context) -> str:
        result = await ctx.fastmcp.call_tool("delete", {"what": what})
        return str(result.structured_content)

    tool = "delete" if way == "unlisted" else "tidy"
    form = types.ElicitationCapability(form=types.FormElicitationCapability())
    async with caller_of(server, revision, declares=form, fills=["decline", {}]) as (_, caller):
        refused = await caller.result(tool, what="a")
        assert refused.meta["code"] == "ELICITATION_DECLINED"
        assert not ran
        assert "deleted" in await caller.text(tool, what="b")
        assert ran == ["b"]
        assert [form.message for form in caller.forms] == ["Sure?"] * 2
