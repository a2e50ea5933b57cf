"""Two tabs with one question: the second press changes nothing, and the page says so."""

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import mcp_types as types
import pytest

from flows import elicit
from flows.elicitation.states import Json
from flows.payments.money import Money
from tests.support.approving import approving, press, shop
from tests.support.mcp_sandbox import SandboxEnv, caller_at_sandbox
from tests.support.mcp_server import (
    MODERN,
    URL,
    Caller,
    Page,
    Person,
    links_asked,
    new_server,
    soon,
)

SOUP: dict[str, Json] = {
    "type": "object",
    "properties": {"dish": {"type": "string", "maxLength": 40}},
    "required": ["dish"],
}
LATE = "Nothing was changed"
Act = Callable[[SandboxEnv, str], Awaitable[object]]


def kitchen() -> Any:
    server = new_server("mcp")

    @server.tool()
    async def confirm() -> str:
        return str(await elicit.confirm("Cook now?"))

    @server.tool(annotations=types.ToolAnnotations(destructive_hint=True))
    async def gate() -> str:
        return "gone"

    @server.tool()
    async def form() -> str:
        return str(await elicit.form("What is for lunch?", SOUP))

    @server.tool()
    async def secret() -> str:
        return str(len(await elicit.secret("The key of the pantry", SOUP)))

    @server.tool()
    async def payment() -> str:
        return str((await elicit.payment(Money("9.00", "EUR"), "Lunch")).price)

    @server.tool()
    async def url() -> str:
        return str(dict(await elicit.url("Look", "https://example.org/menu")))

    return server


async def asked(caller: Caller, tool: str) -> str:
    (link,) = links_asked(await caller.send_call(tool))
    return link


async def pressed(person: Person, tab: Page, url: str, **typed: str) -> Page:
    data = {"csrf": tab.csrf or "", **{f"answer.{name}": text for name, text in typed.items()}}
    return Page.of(await person.browser.post(url, data=data))


async def approve(at: SandboxEnv, link: str) -> object:
    return await at.guest.person.press(link)


async def order(at: SandboxEnv, link: str) -> object:
    return await at.guest.type(link, dish="soup")


async def pay(at: SandboxEnv, link: str) -> object:
    return await at.guest.pay(link)


@pytest.mark.parametrize(
    ("tool", "act", "heading"),
    [
        ("confirm", approve, "Approved"),
        ("gate", approve, "Approved"),
        ("form", order, "Sent"),
        ("secret", order, "Saved"),
        ("payment", pay, "Paid 9.00 €"),
    ],
)
async def test_decline_after_answer_reports_no_change(tool: str, act: Act, heading: str) -> None:
    # finding: XP8
    async with caller_at_sandbox(kitchen(), MODERN, declares=URL) as (at, caller):
        link = await asked(caller, tool)
        tab = await at.guest.person.visit(link)
        await act(at, link)
        late = await pressed(at.guest.person, tab, f"{link}/decline")
        assert (late.status, late.heading) == (409, heading)
        assert LATE in late.text
        assert LATE not in (await at.guest.person.visit(link)).text
        # The late page updates itself as the page of the question does.
        assert f'data-live="{urlsplit(link).path}/live"' in late.text


async def test_late_page_says_that_the_assistant_has_continued() -> None:
    async with caller_at_sandbox(kitchen(), MODERN, declares=URL) as (at, caller):
        call = caller.call("form")
        link = await caller.link()
        tab = await at.guest.person.visit(link)
        await order(at, link)
        await soon(call)
        late = await pressed(at.guest.person, tab, f"{link}/decline")
        assert LATE in late.text
        assert "has continued" in late.text


@pytest.mark.parametrize("tool", ["confirm", "gate", "form", "secret", "payment", "url"])
async def test_answer_after_decline_reports_no_change(tool: str) -> None:
    # finding: XP8
    async with caller_at_sandbox(kitchen(), MODERN, declares=URL) as (at, caller):
        link = await asked(caller, tool)
        tab = await at.guest.person.visit(link)
        first = await pressed(at.guest.person, tab, f"{link}/decline")
        assert first.status == 303
        late = await pressed(at.guest.person, tab, link, dish="soup")
        assert (late.status, late.heading) == (409, "You declined")
        assert LATE in late.text


@pytest.mark.parametrize("tool", ["form", "secret"])
async def test_different_second_answer_reports_no_change(tool: str) -> None:
    # finding: XP8
    async with caller_at_sandbox(kitchen(), MODERN, declares=URL) as (at, caller):
        link = await asked(caller, tool)
        tab = await at.guest.person.visit(link)
        for dish, is_late in (("soup", False), ("soup", False), ("salad", True)):
            page = await pressed(at.guest.person, tab, link, dish=dish)
            assert page.status == (409 if is_late else 303)
            assert (LATE in page.text) == is_late


@pytest.mark.parametrize("tool", ["confirm", "gate", "form", "secret", "payment", "url"])
async def test_repeated_decline_is_not_called_late(tool: str) -> None:
    async with caller_at_sandbox(kitchen(), MODERN, declares=URL) as (at, caller):
        link = await asked(caller, tool)
        tab = await at.guest.person.visit(link)
        for _ in range(2):
            assert (await pressed(at.guest.person, tab, f"{link}/decline")).status == 303


async def test_answer_after_expiry_reports_no_change() -> None:
    # finding: XP8
    async with caller_at_sandbox(kitchen(), MODERN, declares=URL) as (at, caller):
        link = await asked(caller, "confirm")
        tab = await at.guest.person.visit(link)
        at.clock.tick(minutes=6)
        late = await pressed(at.guest.person, tab, link)
        assert (late.status, late.heading) == (409, "This link has expired")
        assert LATE in late.text


async def test_withdrawal_after_decision_of_approver_reports_no_change() -> None:
    # finding: XP8
    async with approving(shop()) as here, here.asking() as caller:
        link = await caller.link_in_result("refund", order="o8")
        asker, frank = await here.signed_in("alice"), await here.signed_in("frank")
        tab = await asker.visit(link)
        await press(frank, (await here.waiting(frank))[0], "approve")
        late = await pressed(asker, tab, f"{link}/decline")
        assert (late.status, late.heading) == (409, "Approved")
        assert LATE in late.text
