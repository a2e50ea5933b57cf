"""Answers to forms and confirmations, from clients with each combination of modes."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import mcp_types as types
import pytest
from pydantic import BaseModel, EmailStr, Field, field_validator

from flows import Money, elicit
from flows.elicitation.states import Json, Status
from tests.support.mcp_sandbox import caller_at_sandbox
from tests.support.mcp_server import (
    BOTH,
    FORM,
    MODERN,
    OLD_FORM,
    answered_in,
    caller_of,
    link_in,
    new_server,
    soon,
    text_of,
)

Fills: TypeAlias = Sequence[Mapping[str, Json] | str]
IN_CLIENT = {"both": BOTH, "form": FORM, "{}": OLD_FORM}


class Expense(BaseModel):
    amount: float = Field(ge=0, le=5000)
    category: Literal["travel", "meals"]
    note: str = ""


@pytest.fixture
def server(server: Any) -> Any:
    @server.tool()
    async def file_expense() -> str:
        expense = await elicit.form("What did you spend?", Expense)
        return f"{type(expense).__name__} {expense.amount:.2f} {expense.category}"

    @server.tool()
    async def delete(count: int) -> str:
        is_sure = await elicit.confirm(f"Delete {count} to-dos?", arguments={"count": count})
        return "deleted" if is_sure else "kept"

    @server.tool()
    async def ask_name() -> str:
        name = await elicit.form("Who are you?").or_none()
        return f"hello {name}"

    return server


@pytest.mark.parametrize("declared", IN_CLIENT)
async def test_client_with_form_mode_shows_the_form(server, revision, declared):
    # parity: T3
    # parity: E7
    # parity: E11
    # parity: L1
    fills: Fills = [{"amount": 12.5, "category": "meals"}]
    declares = IN_CLIENT[declared]
    async with caller_of(server, revision, declares=declares, fills=fills) as (env, caller):
        assert await caller.text("file_expense") == "Expense 12.50 meals"
        (form,) = caller.forms
        assert form.message == "What did you spend?"
        assert form.requested_schema["required"] == ["amount", "category"]
        (row,) = await env.elicitations()
        assert row.status is Status.ACCEPTED
        assert row.delivered_at is not None
        assert not caller.completed


async def test_form_without_form_mode_is_answered_on_a_page(server, revision):
    only_url = types.ElicitationCapability(url=types.UrlElicitationCapability())
    async with caller_of(server, revision, declares=only_url) as (env, caller):
        call = caller.call("file_expense")
        link = await caller.link()
        person = await env.person()
        page = await person.visit(link)
        assert page.heading == "What did you spend?"
        fields = {"csrf": page.csrf, "answer.amount": "12.5", "answer.category": "1"}
        wrong = await person.browser.post(link, data={**fields, "answer.amount": "9000"})
        assert wrong.status_code == 422
        assert not call.done()
        done = await person.browser.post(link, data=fields)
        assert done.status_code == 303
        assert text_of(await soon(call)) == "Expense 12.50 meals"
        assert (await person.visit(link)).heading == "Sent"


async def test_client_without_elicitation_gets_a_link_to_the_page(server, revision):
    async with caller_of(server, revision, declares=None) as (env, caller):
        first = await caller.result("delete", count=5)
        link = link_in(first)
        person = await env.person()
        page = await person.visit(link)
        assert page.heading == "Delete 5 to-dos?"
        assert "Delete 5 to-dos?" in page.text
        await person.press(link)
        assert (await person.visit(link)).heading == "Approved"
        assert await caller.text("delete", count=5) == "deleted"


@pytest.mark.parametrize("no", ["decline", "cancel"])
async def test_declined_or_cancelled_confirmation_is_false(server, revision, no):
    # parity: T3
    # parity: E2
    async with caller_of(server, revision, declares=BOTH, fills=[no, {}]) as (_, caller):
        assert await caller.text("delete", count=5) == "kept"
        (form,) = caller.forms
        assert form.message == "Delete 5 to-dos?\ncount: 5"
        assert form.requested_schema == {"type": "object", "properties": {}}
        assert await caller.text("delete", count=5) == "deleted"


async def test_invalid_answer_fails_the_question_and_names_the_fields(server, revision):
    # parity: F6
    # defect: frontmcp unvalidated content
    fills: Fills = [{"amount": 9000, "category": "fun"}]
    async with caller_of(server, revision, declares=BOTH, fills=fills) as (env, caller):
        result = await caller.result("file_expense")
        assert result.is_error
        meta = result.meta
        assert meta["errorId"] == meta["code"] == "INVALID_INPUT"
        assert meta["status"] == 422
        assert [fault["path"] for fault in meta["details"]] == ["amount", "category"]
        assert 'Details: [{"path": "amount"' in text_of(result)
        assert [row.status for row in await env.elicitations()] == [Status.FAILED]


async def test_form_without_schema_asks_for_a_single_text(server, revision):
    # parity: E3
    # parity: E5
    async with caller_of(
        server, revision, declares=BOTH, fills=[{"response": "Ada"}, "decline"]
    ) as (_, caller):
        assert await caller.text("ask_name") == "hello Ada"
        assert await caller.text("ask_name") == "hello None"
        assert list(caller.forms[0].requested_schema["properties"]) == ["response"]


async def test_answer_is_reused_when_the_tool_runs_again(server):
    fills = [{"response": "Ada"}]
    async with caller_of(server, MODERN, declares=FORM, fills=fills) as (env, caller):
        assert await caller.text("ask_name") == "hello Ada"
        assert len(caller.forms) == len(await env.elicitations()) == 1


async def test_dismissed_form_is_not_shown_again_in_the_same_call(server, revision):
    @server.tool()
    async def ask_twice() -> str:
        name = await elicit.form("Who are you?").or_none()
        await elicit.url("Go there", "https://shop.example/")
        return f"hello {name}"

    async with caller_of(server, revision, declares=BOTH, fills=["cancel"]) as (env, caller):
        assert await env.text_after_visit(caller, "ask_twice") == "hello None"
        assert len(caller.forms) == 1


async def test_answers_stay_valid_while_the_call_asks_a_longer_question():
    server = new_server("mcp")

    @server.tool()
    async def buy() -> str:
        name = await elicit.form("Who are you?")
        is_sure = await elicit.confirm("Sure?")
        await elicit.payment(Money("9.00", "EUR"), "Tea")
        return f"{name} {is_sure}"

    fills = [{"response": "Ada"}, {}]
    async with caller_at_sandbox(server, MODERN, fills=fills) as (at, caller):
        call = caller.call("buy")
        link = await caller.link()
        at.clock.tick(minutes=5)
        await at.guest.pay(link)
        assert text_of(await soon(call)) == "Ada True"
        assert len(caller.forms) == 2


async def test_later_call_reuses_answers_for_two_minutes_only():
    server = new_server("mcp")

    @server.tool()
    async def ask(number: int) -> str:
        name = await elicit.form("Who are you?", key="name")
        if number == 0:
            raise ValueError("the answer is not used")
        return name

    fills = [{"response": "Ada"}, {"response": "Bob"}]
    async with caller_at_sandbox(server, MODERN, fills=fills) as (at, caller):
        assert (await caller.result("ask", number=0)).is_error
        at.clock.tick(minutes=3)
        assert await caller.text("ask", number=1) == "Bob"


@pytest.mark.parametrize("tool", ["ask_name", "delete"])
async def test_answer_after_the_timeout_is_ignored(server, tool):
    fills: Fills = [{"response": "Ada"}] if tool == "ask_name" else [{}]
    arguments: dict[str, Any] = {} if tool == "ask_name" else {"count": 5}
    async with caller_at_sandbox(server, MODERN, declares=FORM, fills=fills) as (at, caller):
        asked = await caller.asked(tool, **arguments)
        at.clock.tick(minutes=6)
        late = await caller.send_call(tool, after=asked, **arguments)
        assert text_of(answered_in(late)) == ("hello None" if tool == "ask_name" else "kept")
        assert [row.status for row in await at.env.elicitations()] == [Status.EXPIRED]


async def test_argument_value_cannot_imitate_another_argument(server):
    @server.tool()
    async def pay(to: str) -> str:
        about: dict[str, Json] = {"amount": 1_000_000, "to": to}
        return str(await elicit.confirm("Run pay?", arguments=about))

    async with caller_of(server, MODERN, declares=FORM, fills=["decline"]) as (_, caller):
        response = caller.call("pay", to="ann\namount: 1\u2028\u202e")
        assert text_of(await soon(response)) == "False"
        (form,) = caller.forms
        assert form.message == 'Run pay?\namount: 1000000\nto: "ann\\namount: 1\\u2028\\u202e"'


async def test_gathered_questions_are_asked_separately(server, revision):
    @server.tool()
    async def meet() -> str:
        names = await asyncio.gather(
            elicit.form("Who comes?"), elicit.form("Who comes?"), elicit.confirm("Sure?")
        )
        return f"{sorted(map(str, names))}"

    fills: Fills = [{"response": "Ada"}] * 3
    async with caller_of(server, revision, declares=FORM, fills=fills) as (env, caller):
        assert await caller.text("meet") == "['Ada', 'Ada', 'True']"
        assert len(await env.elicitations()) == 3


async def test_authors_validation_error_names_the_field(server, revision):
    # parity: F6
    class Even(BaseModel):
        number: int

        @field_validator("number")
        @classmethod
        def must_be_even(cls, number: int) -> int:
            if number % 2:
                raise ValueError("It must be even.")
            return number

    @server.tool()
    async def ask_even() -> str:
        return str((await elicit.form("Which?", Even)).number)

    async with caller_of(server, revision, declares=FORM, fills=[{"number": 3}]) as (_, caller):
        result = await caller.result("ask_even")
        assert result.is_error
        assert result.meta["code"] == "INVALID_INPUT"
        assert result.meta["details"] == [{"path": "number", "message": "It must be even."}]


async def test_blank_optional_field_is_valid(server, revision):
    class Visit(BaseModel):
        name: str
        nights: int = 1
        mail: EmailStr | None = None

    @server.tool()
    async def book() -> str:
        visit = await elicit.form("Who comes?", Visit)
        return f"{visit.name} {visit.nights} {visit.mail}"

    fills: Fills = [{"name": "Ann", "nights": None, "mail": ""}]
    async with caller_of(server, revision, declares=BOTH, fills=fills) as (_, caller):
        assert await caller.text("book") == "Ann 1 None"


async def test_old_acceptance_does_not_answer_a_new_question(server):
    ran: list[str] = []

    @server.tool(annotations=types.ToolAnnotations(destructive_hint=True))
    async def wipe() -> str:
        ran.append("wipe")
        await elicit.url("Then go there", "https://service.example/")
        return "wiped"

    async with caller_of(server, MODERN, declares=BOTH) as (env, caller):
        first = await caller.asked("wipe")
        second = await caller.asked("wipe", after=first)
        assert ran == ["wipe"]
        await env.service.kinds.gates.approvals.clear()
        again = await caller.asked("wipe", after=second)
        old = await caller.asked("wipe", after=first)  # exactly the same request as before
        for asked in (again, old):
            (request,) = (asked.input_requests or {}).values()
            assert "wipe" in str(request.params)
        assert ran == ["wipe"]
