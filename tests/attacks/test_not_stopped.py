"""Attacks that are not stopped: each is documented, and shown by a test where possible."""

import base64
import logging
import sqlite3
from contextlib import closing
from datetime import timedelta
from typing import Any

import httpx
import mcp_types as types
import pytest
from fastmcp import FastMCP
from fastmcp.server import create_proxy
from mcp.server.mcpserver import MCPServer

from flows import elicit
from flows.elicitation import user_code as bindings
from flows.elicitation.flow import Redirect, Talk
from flows.elicitation.states import Status
from flows.elicitation.user_code import UserCodeGenerator
from flows.kinds.form import FormTerms
from tests.support.chains import put
from tests.support.client_by_hand import here as here_by_hand
from tests.support.clock import NOON, Clock
from tests.support.mcp_server import FORM, MODERN, caller_of, soon, text_of
from tests.support.oauth_env import approve, ends, oauth_env
from tests.support.postgres_server import fresh_database
from tests.support.service_env import asked, process
from tests.support.serving import serving
from tests.support.sessions import sessions_of, signed_in
from webapp.api import proxy
from webapp.http.client import Outbound
from webapp.http.exchange import Receive, Scope, Send
from webapp.identity.api_keys import ApiKeyRefused, KeyScope
from webapp.logs.events import Events
from webapp.records.values import KINDS, ApiKey
from webapp.stores.postgres import open_store
from webapp.stores.sqlite import SqliteStore
from webapp.sweeper import fall_due


def test_re_encoded_token_from_provider_is_not_redacted():
    # finding: XS10
    reply = httpx.Response(200, content=base64.b64encode(b"a-token") + b" a-token nekot-a")
    reported = proxy._response(reply, {}, tokens={"a-token"}, is_head=False)
    assert reported.content == b"YS10b2tlbg== *** nekot-a"


async def test_another_port_on_same_machine_receives_our_cookie():
    received: list[str] = []

    async def listening(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            received.append(dict(scope["headers"]).get(b"cookie", b"").decode())
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    async with oauth_env() as here, serving(listening) as other:
        asked, person = here.ask("repo"), await here.person()
        await person.visit(await asked.link())
        await person.visit(other)
        held = [f"{name}={value}" for name, value in person.browser.cookies.items() if value]
        assert received == ["; ".join(held)]
        assert here.service.browser.cookie_name in received[0]


def test_typed_code_confirms_the_browser_showing_the_code():
    codes = UserCodeGenerator(lambda: [b"k" * 32])
    strangers = bindings.bind(None, browser="a stranger's")
    (code,) = strangers.codes
    read_out = codes.user_code("e", code)
    confirmed = codes.confirm("e", strangers, typed=read_out, now=NOON)
    assert bindings.is_confirmed(confirmed, browser="a stranger's")


async def test_account_signed_in_at_provider_is_connected_and_named(here):
    asked, person = here.ask("repo"), await here.person()
    callback = await approve(person, await person.go_on(await asked.link()), person="hubot")
    page = await ends(person, await person.visit(callback))
    assert (await asked.account()).label == "hubot"
    assert "hubot" in page.text


async def test_program_waiting_a_second_counts_as_person(server, revision):
    @server.tool()
    @elicit.gate
    async def wipe() -> str:
        return "wiped"

    async with here_by_hand(server, revision) as it:
        call = await it.asks("wipe")
        it.clock.tick(seconds=1)
        await it.shows.says("accept", {})
        assert text_of(await soon(call)) == "wiped"


async def test_decline_at_client_timeout_counts_as_decline_of_person(server, revision):
    @server.tool()
    @elicit.gate
    async def wipe() -> str:
        return "wiped"

    async with here_by_hand(server, revision) as it:
        call = await it.asks("wipe")
        it.clock.tick(seconds=60)
        await it.shows.says("decline", None)
        answer = await soon(call)
    assert "declined" in text_of(answer)


async def test_tool_calling_gated_function_directly_does_not_ask(server):
    @elicit.gate
    def wipe() -> str:
        return "wiped"

    @server.tool()
    def tidy() -> str:
        return wipe()

    server.tool()(wipe)
    async with caller_of(server, MODERN, declares=FORM, fills=["decline"]) as (_, caller):
        assert await caller.text("tidy") == "wiped"
        assert not caller.forms
        assert (await caller.result("wipe")).is_error


async def test_gate_mark_behind_proxy_is_not_seen_but_annotation_is():

    behind: Any = FastMCP("behind")

    @behind.tool
    @elicit.gate
    def marked() -> str:
        return "done"

    @behind.tool(annotations=types.ToolAnnotations(destructive_hint=True))
    def annotated() -> str:
        return "done"

    async with caller_of(
        create_proxy(behind, name="shop"), MODERN, declares=FORM, fills=["decline"]
    ) as (_, caller):
        assert await caller.text("marked") == "done"
        assert not caller.forms
        assert (await caller.result("annotated")).is_error
        assert len(caller.forms) == 1


def test_exception_text_of_author_is_logged_unchanged():
    error = RuntimeError("no luck with the-key")
    about = (RuntimeError, error, None)
    record = logging.LogRecord("webapp", logging.ERROR, "", 0, "route.failed", (), about)
    assert "no luck with the-key" in Events().format(record)


async def test_checked_host_name_is_resolved_again_when_request_is_sent():
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        return httpx.Response(200)

    async def looked_up(host: str, port: int) -> list[str]:
        return ["93.184.215.14"]

    def talk() -> Talk[Redirect]:
        yield httpx.Request("GET", "https://login.example/")
        return Redirect(url="https://login.example/")

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        outbound = Outbound(client, allow_loopback=False, resolve=looked_up)
        await outbound.run(talk())
    assert asked == ["login.example"]  # the request uses the name, not the address that was checked


async def test_anonymous_visitor_can_read_tool_names():
    server: Any = MCPServer("shop")

    @server.tool()
    async def sell_the_house() -> None:
        """Sell it."""

    async with oauth_env(server=server) as here:
        stranger = await here.person(**{"x-forwarded-for": "203.0.113.9"})
        page = await stranger.visit(here.url)
        assert page.status == 200
        assert "sell_the_house" in page.text


async def test_row_with_moved_erase_time_stays_readable_until_erased_early(tmp_path):
    # finding: S26
    clock, place = Clock(), tmp_path / "elicit.db"
    store = await SqliteStore.open(place)
    async with process(store, clock) as here:
        elicitation = await asked(here)
        with closing(sqlite3.connect(place)) as connection, connection:
            connection.execute("UPDATE records SET erase_at = 1 WHERE kind = 'elicitation'")
        assert await here.elicitations.get(elicitation.id) == elicitation
        await fall_due(here)
        assert await here.elicitations.get(elicitation.id) is None
    await store.aclose()


async def test_restored_database_row_restores_revoked_approval(tmp_path):
    # finding: S25
    place = tmp_path / "elicit.db"
    store = await SqliteStore.open(place)
    columns = "SELECT status, version, sealed FROM records WHERE kind = 'approval'"
    back = "UPDATE records SET status = ?, version = ?, sealed = ? WHERE kind = 'approval'"
    async with process(store, Clock()) as here:
        gate = await asked(here, kind="gate")
        terms = FormTerms(schema={}, covers="these arguments", arguments={}, can_be_kept=True)
        approvals = here.kinds.gates.approvals
        await here.elicitations.write(
            await approvals.given(gate, terms, is_wide=False, is_for_all=False)
        )
        with closing(sqlite3.connect(place)) as connection, connection:
            row = connection.execute(columns).fetchone()
        assert await approvals.clear() == 1
        assert await approvals.all() == []
        with closing(sqlite3.connect(place)) as connection, connection:
            connection.execute(back, row)
        assert len(await approvals.all()) == 1
    await store.aclose()


async def test_restored_database_rows_restore_key_session_and_open_question():
    # finding: XS9
    clock = Clock()
    async with fresh_database() as url:
        store = await open_store(url)
        async with process(store, clock) as here:
            keys, sessions = here.identity.api_keys, sessions_of(store, clock)
            text, key = await keys.new(
                program="shop", scopes=[KeyScope.ASK], expires_at=clock.now + timedelta(days=1)
            )
            cookies = await signed_in(sessions)
            question = await asked(here)
            before = [record async for page in store.scan() for record in page]

            await keys.revoke(key.id)
            with pytest.raises(ApiKeyRefused):
                await keys.of(text)
            await sessions.end(await sessions.of(cookies))
            assert await sessions.of(cookies) is None
            await here.elicitations.settle(question.id, Status.DECLINED)

            kinds = {KINDS[ApiKey], KINDS[type(question)]}
            await put(store, *(record for record in before if record.kind in kinds))
            async with store._server.connection() as connection:
                await connection.execute("DELETE FROM elicit_records WHERE kind = 'ended session'")

            assert (await keys.of(text)).id == key.id
            assert await sessions.of(cookies) is not None
            found = await here.elicitations.get(question.id)
            assert found is not None
            assert found.status is Status.PENDING
        await store.aclose()
