"""Forms that no browser sends: the page shows an error, and nothing changes."""

from html import unescape
from typing import Any

import pytest

from flows import elicit
from tests.support.mcp_server import MODERN, Page, links_asked, new_server, server_env

LOGIN = "https://example.org/login"
FORMS = {
    "eleven fields": "&".join(f"field{n}=1" for n in range(11)),
    "a thousand fields": "&".join(f"field{n}=1" for n in range(1_000)),
    "eleven tokens": "&".join("csrf=x" for _ in range(11)),
    "separators": "&" * 5_000,
    "bytes that are not UTF-8": "csrf=%ff%fe&\u00ff=1",
    "nothing": "",
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("button", ["", "/decline"])
async def test_malformed_form_is_refused_with_page(button: str, form: str) -> None:
    server = new_server("mcp")

    @server.tool()
    async def sign_in() -> str:
        return str(dict(await elicit.url("Sign in", LOGIN)))

    async with server_env(server) as env, env.caller(MODERN) as caller:
        (link,) = links_asked(await caller.send_call("sign_in"))
        person = await env.person()
        assert (await person.visit(link)).csrf is not None
        answer = await person.browser.post(
            link + button,
            content=form.encode("latin-1"),
            headers={"content-type": "application/x-www-form-urlencoded"},
        )
        page = Page.of(answer)
        assert page.status == 403
        assert answer.headers["content-type"].startswith("text/html")
        assert page.heading
        assert await env.status(link) == "pending"
        assert await person.go_on(link) == LOGIN


async def test_page_of_a_refused_request_says_what_happened_in_plain_words() -> None:
    server, html = new_server("mcp"), {"accept": "text/html"}

    @server.tool()
    async def sign_in() -> str:
        return str(dict(await elicit.url("Sign in", LOGIN)))

    async with server_env(server) as env, env.caller(MODERN) as caller:
        (link,) = links_asked(await caller.send_call("sign_in"))
        other, person = await env.person(), await env.person()
        csrf = (await other.visit(link)).csrf or ""
        without_cookie = await person.browser.post(link, data={"csrf": csrf}, headers=html)
        await person.visit(link)
        of_other_cookie = await person.browser.post(link, data={"csrf": csrf}, headers=html)
        too_long = await person.browser.post(link, data={"csrf": "x" * 3_000_000}, headers=html)
        not_a_page = await person.browser.get(f"{link}/decline", headers=html)
        for answer, status, says in (
            (without_cookie, 403, "Your browser didn't save our cookie"),
            (of_other_cookie, 403, "This page is out of date"),
            (too_long, 413, "Your browser sent more data than this server accepts."),
            (not_a_page, 405, "This address is only for a button on one of our pages."),
        ):
            assert (answer.status_code, says in unescape(answer.text)) == (status, True), says
        assert await env.status(link) == "pending"


@pytest.mark.parametrize(("zone", "status"), [("Asia/Kathmandu", 303), ("", 422)])
async def test_time_typed_on_page_reaches_tool_with_chosen_time_zone(
    zone: str, status: int
) -> None:
    # finding: XP10
    server = new_server("mcp")
    fields: dict[str, Any] = {
        "key": {"type": "string", "format": "password"},
        "at": {"type": "string", "format": "date-time"},
    }
    schema: dict[str, Any] = {"type": "object", "properties": fields, "required": list(fields)}

    @server.tool()
    async def alarm() -> str:
        return str((await elicit.secret("Your key, and when?", schema))["at"])

    async with server_env(server) as env, env.caller(MODERN) as caller:
        asked = await caller.asked("alarm")
        (link,) = links_asked(asked)
        person = await env.person()
        form = {
            "csrf": (await person.visit(link)).csrf or "",
            "answer.key": "ak_1",
            "answer.at": "2031-05-28T14:30",
            "zone.at": zone,
        }
        answer = await person.browser.post(link, data=form)
        assert answer.status_code == status
        if status == 303:
            assert await caller.last_text("alarm", after=asked) == "2031-05-28T14:30:00+05:45"
        else:
            assert "Choose the time zone." in answer.text
            assert 'value="2031-05-28T14:30"' in answer.text
            assert "ak_1" not in answer.text
