"""Pages that update themselves: after the answer, between two steps, and before the press."""

import re
from collections.abc import AsyncIterator
from html import unescape
from typing import Any

import httpx

from flows import elicit
from tests.support.mcp_server import (
    MODERN,
    Page,
    Person,
    caller_of,
    links_asked,
    new_server,
    server_env,
    soon,
)


def status_of(page: Page) -> str:
    (status,) = re.findall(r'data-status="([^"]*)"', page.text)
    return unescape(status)


async def next_event(lines: AsyncIterator[str]) -> str:
    """Return the page's next status, "end" for an end event, or "closed" if no event follows."""
    async for line in lines:
        if line.startswith("event: end"):
            return "end"
        if line.startswith("data: "):
            return line.removeprefix("data: ")
    return "closed"


def listening(person: Person, link: str) -> Any:
    return person.browser.stream("GET", f"{link}/live", timeout=httpx.Timeout(30))


async def test_done_page_says_when_the_assistant_has_continued() -> None:
    # finding: XP7
    server = new_server("mcp")

    @server.tool()
    async def look() -> str:
        return str(len(await elicit.secret("Your key, please.")))

    async with server_env(server) as env, env.caller(MODERN) as caller:
        asked = await caller.asked("look")
        (link,) = links_asked(asked)
        person = await env.person()
        start = await person.visit(link)
        assert status_of(start) == "pending"
        async with listening(person, link) as live:
            lines = live.aiter_lines()
            assert await soon(next_event(lines)) == "pending"
            form = {"csrf": start.csrf or "", "answer.value": "ak_1"}
            assert (await person.browser.post(link, data=form)).status_code == 303
            assert await soon(next_event(lines)) == "accepted"
            done = await person.visit(link)
            assert status_of(done) == "accepted"
            assert "If it does not go on by itself, ask it to continue" in done.text
            assert await caller.last_text("look", after=asked) == "4"
            assert await soon(next_event(lines)) == "accepted continued"
        done = await person.visit(link)
        assert "Your assistant has continued." in done.text
        assert "ask it to continue" not in done.text


async def test_done_page_leads_to_next_question_of_the_call() -> None:
    # finding: XP6
    server = new_server("mcp")
    first, second = (elicit.secret(f"Key {number}, please.") for number in (1, 2))

    @server.tool()
    @elicit.needs(first, second)
    async def look() -> str:
        return str(len(await first) + len(await second))

    async with server_env(server) as env, env.caller(MODERN) as caller:
        asked = await caller.asked("look")
        (link,) = links_asked(asked)
        person = await env.person()
        await typed(person, link)
        async with listening(person, link) as live:
            lines = live.aiter_lines()
            assert await soon(next_event(lines)) == "accepted"
            again = await caller.asked("look", after=asked)
            (next_link,) = links_asked(again)
            event = ""
            while not event.endswith("next"):
                event = await soon(next_event(lines))
        done = await person.visit(link)
        assert "Step 1 of 2" in done.text
        (leads_to,) = re.findall(r'class="button primary" href="([^"]*)"', done.text)
        assert (await person.visit(unescape(leads_to))).status == 200
        await typed(person, unescape(leads_to))
        assert "Step 2 of 2" in (await person.visit(next_link)).text
        assert await caller.last_text("look", after=again) == "8"
        assert "has continued" in (await person.visit(next_link)).text
        assert "Go on to the next step" not in (await person.visit(link)).text


async def test_done_page_leads_to_the_other_question_that_was_asked_together() -> None:
    # finding: XP6
    server = new_server("mcp")

    @server.tool()
    async def look() -> str:
        keys = (elicit.secret(f"Key {number}, please.") for number in (1, 2))
        first, second = await elicit.together(*keys)
        return str(len(first) + len(second))

    async with server_env(server) as env, env.caller(MODERN) as caller:
        asked = await caller.asked("look")
        links = links_asked(asked)
        assert len(links) == 2
        person = await env.person()
        await typed(person, links[0])
        done = await person.visit(links[0])
        assert "Step 1 of 2" in done.text
        (leads_to,) = re.findall(r'class="button primary" href="([^"]*)"', done.text)
        await typed(person, unescape(leads_to))
        last = await person.visit(links[1])
        assert "Step 2 of 2" in last.text
        assert "Go on to the next step" not in last.text
        assert await caller.last_text("look", after=asked) == "8"


async def typed(person: Person, link: str) -> None:
    form = {"csrf": (await person.visit(link)).csrf or "", "answer.value": "ak_1"}
    assert (await person.browser.post(link, data=form)).status_code == 303


async def test_start_page_ends_with_the_question() -> None:
    # finding: XP7
    server = new_server("mcp")

    @server.tool()
    async def look() -> str:
        return str(await elicit.url("Look", "https://example.org/menu"))

    async with caller_of(server, MODERN, declares=None) as (env, caller):
        link = await caller.link_in_result("look")
        laptop = await env.person()
        assert status_of(await laptop.visit(link)) == "pending"
        async with listening(laptop, link) as live:
            lines = live.aiter_lines()
            assert await soon(next_event(lines)) == "pending"
            phone = await env.person()
            await phone.decline(link)
            assert await soon(next_event(lines)) == "declined"
            assert await soon(next_event(lines)) == "end"
        assert "data-live" not in (await laptop.visit(link)).text
