"""Servers that their library serves, also without sessions or streams, and in two processes."""

import asyncio
from typing import Any
from urllib.parse import urlsplit

import pytest
from mcp import MCPError

from flows import elicit
from tests.support.mcp_server import (
    LEGACY,
    MODERN,
    answered_in,
    attached,
    cut,
    eventually,
    links_asked,
    new_server,
    server_env,
    soon,
    text_of,
)
from tests.support.records import held_in
from webapp.stores import Record
from webapp.stores.sqlite import MemoryStore

LOGIN = "https://example.org/login"


def add_sign_in(server: Any) -> None:
    @server.tool()
    async def sign_in() -> str:
        return f"signed in: {(await elicit.url('Sign in', LOGIN))['name']}"


async def test_client_without_a_stream_gets_the_link_in_an_error(server):
    add_sign_in(server)
    async with attached(server, json_response=True) as env, env.caller(LEGACY) as caller:
        with pytest.raises(MCPError) as required:
            await caller.result("sign_in")
        assert required.value.error.code == -32042
        (asked,) = required.value.error.data["elicitations"]
        assert (asked["mode"], asked["message"]) == ("url", "Sign in")
        assert asked["elicitationId"] == env.id_of(asked["url"])
        assert await env.complete(asked["url"], {"name": "ann"}) == "accepted"
        assert await caller.text("sign_in") == "signed in: ann"
        assert not caller.has_links_left


async def test_client_without_a_session_gets_the_link_in_the_result(server):
    """Requests are separate: capabilities that a client declared at its start are not stored."""
    add_sign_in(server)
    async with attached(server, stateless_http=True) as env, env.caller(LEGACY) as caller:
        link = await caller.link_in_result("sign_in")
        assert await env.complete(link, {"name": "ann"}) == "accepted"
        assert await caller.text("sign_in") == "signed in: ann"
        assert not caller.has_links_left


@pytest.mark.parametrize(
    "options",
    [{}, {"stateless_http": True}, {"json_response": True}],
    ids=["default options", "without sessions", "without streams"],
)
async def test_newer_revision_works_with_any_server_options(server, options):
    add_sign_in(server)
    async with (
        attached(server, **options) as env,
        env.caller(MODERN) as caller,
    ):
        call = caller.call("sign_in")
        link = await caller.link()
        await env.waited_for_by_another(link, None)
        await env.complete(link, {"name": "ann"})
        assert text_of(await soon(call)) == "signed in: ann"


async def test_call_in_an_attached_session_waits_for_the_answer(server):
    add_sign_in(server)
    async with attached(server) as env, env.caller(LEGACY) as caller:
        call = caller.call("sign_in")
        link = await caller.link()
        await env.complete(link, {"name": "ann"})
        assert text_of(await soon(call)) == "signed in: ann"
        assert caller.completed == [env.id_of(link)]


async def test_next_request_can_reach_another_process(library, tmp_path):
    store = f"sqlite:///{tmp_path / 'elicit.db'}"
    servers = [new_server(library) for _ in range(2)]
    for server in servers:
        add_sign_in(server)
    async with (
        server_env(servers[0], store=store) as one,
        server_env(servers[1], store=store, public_url=one.url) as two,
        one.caller(MODERN) as here,
        two.caller(MODERN, headers={"host": urlsplit(one.url).netloc}) as there,
    ):
        asked = await here.asked("sign_in")
        (link,) = links_asked(asked)
        person = await one.person()
        waiting = asyncio.create_task(there.send_call("sign_in", after=asked))
        await two.pending()
        await person.go_on(link)
        assert await one.complete(link, {"name": "ann"}) == "accepted"
        assert text_of(answered_in(await waiting)) == "signed in: ann"


class LateNews(MemoryStore):
    """A second connection to a store that receives others' changes only after `deliver()`."""

    def __init__(self, others: MemoryStore) -> None:
        super().__init__(shares_with=others)
        self._held_back: list[Record] = []
        self._is_late = True

    def notify(self, records: tuple[Record, ...]) -> None:
        if self._is_late:
            self._held_back.extend(records)
        else:
            super().notify(records)

    def deliver(self) -> None:
        self._is_late = False
        super().notify(tuple(self._held_back))


async def test_request_with_a_delayed_notification_gets_its_runs_result():
    gate, bodies = asyncio.Event(), list[int]()
    servers = [new_server("mcp") for _ in range(2)]
    for server in servers:

        @server.tool()
        async def buy() -> str:
            await elicit.url("Pay", LOGIN)
            bodies.append(1)
            await gate.wait()
            return f"bought {len(bodies)}"

    store = MemoryStore()
    late = LateNews(store)
    async with (
        server_env(servers[0], store=store) as one,
        server_env(servers[1], store=late, public_url=one.url) as two,
        one.caller(MODERN) as here,
        two.caller(MODERN, headers={"host": urlsplit(one.url).netloc}) as there,
    ):
        asked = await here.asked("buy")
        await one.complete(links_asked(asked)[0])
        first = asyncio.create_task(here.send_call("buy", after=asked))
        await eventually(lambda: bodies)
        second = asyncio.create_task(there.send_call("buy", after=asked))
        await eventually(lambda: len(two.service.elicitations.waiters) >= 2)
        gate.set()
        assert text_of(answered_in(await first)) == "bought 1"
        await eventually(lambda: any(each.status == "delivered" for each in held_in(store)))
        records = {each.id for each in held_in(store)}
        late.deliver()
        try:
            # Wait until the second call is answered, or has wrongly created a new question.
            await eventually(
                lambda: second.done() or {each.id for each in held_in(store)} - records
            )
            assert second.done()
            assert text_of(answered_in(second.result())) == "bought 1"
        finally:
            await cut(second)
