"""Identification of callers: a local program, a relayed request, a bearer token, another site."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from flows import elicit
from tests.support.guarded_server import TOKEN, new_guarded_server
from tests.support.mcp_server import (
    LEGACY,
    ServerEnv,
    caller_of,
    new_browser,
    server_env,
    soon,
    text_of,
)
from tests.support.users import AS_ROOT, NOBODY, answered, calling, opened_session

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "sign-in.md"
LOGIN = "https://example.org/login"
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


def add_tools(server: Any) -> list[str]:
    ran: list[str] = []

    @server.tool()
    async def sign_in() -> str:
        await elicit.url("Sign in", LOGIN)
        return "signed in"

    @server.tool()
    async def sure() -> str:
        return f"sure: {await elicit.confirm('Sure?')}"

    @server.tool()
    async def plain() -> str:
        ran.append("plain")
        return "plain"

    return ran


@pytest.mark.parametrize(
    "header", [{"x-forwarded-for": "203.0.113.9"}, {"via": "1.1 relay"}, {"forwarded": "for=x"}]
)
async def test_relayed_caller_cannot_have_a_person_asked(server, revision, header, caplog):
    add_tools(server)
    caplog.set_level("INFO", "webapp.calls.verbs")
    async with caller_of(server, revision, headers=header) as (env, caller):
        result = await caller.result("sign_in")
        assert result.is_error
        assert "[ELICITATION_NOT_ALLOWED]" in text_of(result)
        assert "Nobody can be asked" in text_of(result)
        assert not caller.has_links_left
        caplog.clear()
        assert await caller.text("sure") == "sure: False"  # parity: E1
        (reported,) = [each for each in caplog.records if each.msg == "question.not_asked"]
        assert (reported.kind, reported.tool) == ("confirm", "sure")
        assert "Nobody can be asked" in reported.why
        assert not await env.elicitations()
        assert await caller.text("plain") == "plain"


@pytest.mark.every_way
async def test_caller_with_token_but_no_sign_in_sees_the_missing_setting(library, revision):
    server = new_guarded_server(library, subject="ann")
    add_tools(server)
    async with caller_of(server, revision, headers=TOKEN) as (env, caller):
        result = await caller.result("sign_in")
        assert result.is_error
        assert "ELICIT_ISSUER" in text_of(result)
        assert "[ELICITATION_NOT_ALLOWED]" in text_of(result)
        assert not await env.elicitations()


async def test_token_without_subject_cannot_have_a_person_asked(library, revision):
    server = new_guarded_server(library, subject=None)
    add_tools(server)
    async with caller_of(server, revision, headers=TOKEN) as (env, caller):
        result = await caller.result("sign_in")
        assert "identifies no person" in text_of(result)
        assert "[ELICITATION_NOT_ALLOWED]" in text_of(result)
        assert not await env.elicitations()


async def send(env: ServerEnv, headers: dict[str, str]) -> httpx.Response:
    async with new_browser() as browser:
        accept = {"accept": "application/json, text/event-stream"}
        return await browser.post(env.mcp_url, json=PING, headers={**accept, **headers})


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost.evil.example"])
async def test_request_with_foreign_host_header_is_refused(server, host):
    # parity: L12
    ran = add_tools(server)
    async with server_env(server) as env:
        refused = await send(env, {"host": host})
        assert refused.status_code == 421
        assert refused.headers["content-type"] == "application/problem+json"
        assert not ran


async def test_request_with_foreign_origin_is_refused(server):
    ran = add_tools(server)
    async with server_env(server) as env:
        refused = await send(env, {"origin": "https://evil.example"})
        assert refused.status_code == 403
        assert not ran


async def test_relayed_browser_cannot_open_a_link(server):
    add_tools(server)
    async with caller_of(server, LEGACY) as (env, caller):
        call = caller.call("sign_in")
        link = await caller.link()
        person = await env.person()
        person.browser.headers["x-forwarded-for"] = "203.0.113.9"
        page = await person.visit(link)
        assert page.status == 403
        assert "Sign in" not in page.text
        assert page.csrf is None
        await env.complete(link)
        await soon(call)


@AS_ROOT
async def test_other_user_of_the_machine_can_run_only_tools_without_questions(server):
    # finding: S7
    ran = add_tools(server)
    async with server_env(server) as env:
        session = await opened_session(env.mcp_url, uid=NOBODY)
        received = {
            tool: (
                await answered(env.mcp_url, message=calling(tool), uid=NOBODY, headers=session)
            ).body
            for tool in ("plain", "sure", "sign_in")
        }
        assert ran == ["plain"]
        assert "sure: False" in received["sure"]
        assert "[ELICITATION_NOT_ALLOWED]" in received["sign_in"]
        assert not await env.elicitations()
    assert "a program of another user of the same machine" in PAGE.read_text("utf-8")
