"""The main path: a tool asks, a person acts in a browser, the `await` returns."""

import asyncio
from collections.abc import Mapping
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from flows import Completion, NotAllowed, complete_elicitation, elicit
from flows.elicitation.states import Json
from flows.errors import StoreUnavailable
from flows.question import Link
from tests.support.mcp_server import (
    LEGACY,
    ServerEnv,
    caller_of,
    eventually,
    new_browser,
    new_server,
    soon,
    text_of,
)
from webapp.connecting import connect
from webapp.stores import Record
from webapp.stores.sqlite import MemoryStore

LOGIN = "https://example.org/login"
ORIGIN = "https://example.org"


def returning(link: Link) -> str:
    return f"{ORIGIN}/pay?id={link.id}&back={link.return_url}"


def back_in(location: str) -> str:
    return parse_qs(urlsplit(location).query)["back"][0]


def add_sign_in(server: Any) -> None:
    @server.tool()
    async def sign_in() -> str:
        who = await elicit.url("Sign in", LOGIN)
        return f"signed in: {who.get('name', 'somebody')}"


@pytest.mark.every_way
async def test_await_returns_the_content_completed_by_trusted_code(server, revision):
    # parity: L5
    # defect: frontmcp no URL is sent
    add_sign_in(server)
    async with caller_of(server, revision) as (env, caller):
        call = caller.call("sign_in")
        link = await caller.link()
        assert await (await env.person()).go_on(link) == LOGIN
        assert await complete_elicitation(env.id_of(link), {"name": "ann"}) == "accepted"
        assert text_of(await soon(call)) == "signed in: ann"
        assert not call.result().is_error
        if revision == LEGACY:
            assert caller.completed == [env.id_of(link)]


@pytest.mark.every_way
async def test_two_questions_are_asked_in_sequence(server, revision):
    @server.tool()
    async def buy(item: str) -> str:
        who = await elicit.url("Sign in", LOGIN)
        paid = await elicit.url(f"Pay for {item}", returning, origins=[ORIGIN])
        return f"{item}: {dict(who)} {dict(paid)}"

    async with caller_of(server, revision) as (env, caller):
        call = caller.call("buy", item="tea")
        person = await env.person()
        first = await caller.link()
        await person.go_on(first)
        await env.complete(first, {"name": "ann"})
        second = await caller.link()
        page = await person.visit(back_in(await person.go_on(second)))
        assert (page.status, page.heading) == (200, "Done")
        assert text_of(await soon(call)) == "tea: {'name': 'ann'} {}"
        assert first != second


async def test_address_function_receives_a_return_address(server, revision):
    # parity: L2
    made: list[Link] = []

    def build(link: Link) -> str:
        made.append(link)
        return returning(link)

    @server.tool()
    async def pay() -> str:
        return f"paid {dict(await elicit.url('Pay', build, origins=[ORIGIN]))}"

    async with caller_of(server, revision) as (env, caller):
        call = caller.call("pay")
        link = await caller.link()
        person = await env.person()
        location = await person.go_on(link)
        assert (await person.visit(back_in(location))).heading == "Done"
        assert text_of(await soon(call)) == "paid {}"
        assert made[0].id == env.id_of(link)
        assert link.rsplit("/", 1)[1] not in location


async def test_accept_is_enough_without_wait_for_completion(server, revision):
    # parity: L2
    @server.tool()
    async def show() -> str:
        return f"shown {dict(await elicit.url('Look', LOGIN, wait_for_completion=False))}"

    async with caller_of(server, revision) as (_, caller):
        assert await caller.text("show") == "shown {}"


async def test_continue_button_is_enough_without_wait_for_completion(revision):
    server = new_server("mcp")

    @server.tool(structured_output=False)
    async def show() -> str:
        return f"shown {dict(await elicit.url('Look', LOGIN, wait_for_completion=False))}"

    async with caller_of(server, revision, declares=None) as (env, caller):
        link = await caller.link_in_result("show")
        again = caller.call("show")
        await env.pending()
        assert await (await env.person()).go_on(link) == LOGIN
        assert text_of(await soon(again)) == "shown {}"


async def test_trusted_code_completes_by_a_custom_elicitation_id(server, revision):
    @server.tool()
    async def order() -> str:
        done = await elicit.url("Approve", LOGIN, elicitation_id="order-17")
        return f"approved by {done['by']}"

    async with caller_of(server, revision) as (_, caller):
        assert await complete_elicitation("order-17") == "unknown"
        call = caller.call("order")
        await caller.link()
        assert await complete_elicitation("order-17", {"by": "bob"}) == "accepted"
        assert text_of(await soon(call)) == "approved by bob"
        assert await complete_elicitation("order-17", {"by": "eve"}) == "already_settled"


async def test_custom_elicitation_id_of_an_open_question_is_refused(server):
    @server.tool()
    async def order(number: int) -> str:
        return str(dict(await elicit.url(f"Approve {number}", LOGIN, elicitation_id="order")))

    async with caller_of(server, LEGACY) as (env, caller):
        first = caller.call("order", number=1)
        link = await caller.link()
        second = await caller.result("order", number=2)
        assert second.is_error
        assert "[ELICITATION_INVALID_USE]" in text_of(second)
        await env.complete(link)
        await soon(first)


@pytest.mark.every_way
async def test_completion_before_the_call_waits_is_not_lost(server, revision):
    # finding: R3
    completions: list[asyncio.Task[Completion]] = []

    def quick(link: Link) -> str:
        work = complete_elicitation(link.id, {"fast": True})
        completions.append(asyncio.create_task(work))
        return LOGIN

    @server.tool()
    async def race() -> str:
        return f"fast: {(await elicit.url('Race', quick, origins=[ORIGIN]))['fast']}"

    async with caller_of(server, revision) as (_, caller):
        assert await caller.text("race") == "fast: True"
        assert [await completion for completion in completions] == ["accepted"]


async def test_completion_while_the_address_is_built_is_not_lost(server, revision, tmp_path):
    # parity: L3
    # defect: lynq early completion
    # finding: R3
    # Another thread completes the elicitation in its own loop before the function returns.
    store = f"sqlite:///{tmp_path / 'elicit.db'}"
    completions: list[Completion] = []
    envs: list[ServerEnv] = []

    async def complete(id: str) -> Completion:
        async with connect(envs[0].settings):
            return await complete_elicitation(id, {"fast": True})

    def quick(link: Link) -> str:
        thread = Thread(target=lambda: completions.append(asyncio.run(complete(link.id))))
        thread.start()
        thread.join()
        return LOGIN

    @server.tool()
    async def race() -> str:
        return f"fast: {(await elicit.url('Race', quick, origins=[ORIGIN]))['fast']}"

    async with caller_of(server, revision, store=store) as (env, caller):
        envs.append(env)
        assert await caller.text("race") == "fast: True"
        assert completions == ["accepted"]


async def test_exception_in_the_address_function_leaves_no_question(server, revision):
    # finding: R3
    made: list[Link] = []

    def breaks_once(link: Link) -> str:
        made.append(link)
        if len(made) == 1:
            raise RuntimeError("the shop is closed")
        return LOGIN

    @server.tool()
    async def pay() -> str:
        return f"paid {dict(await elicit.url('Pay', breaks_once, origins=[ORIGIN]))}"

    async with caller_of(server, revision) as (env, caller):
        assert (await caller.result("pay")).is_error
        call = caller.call("pay")
        link = await caller.link()
        assert env.id_of(link) == made[1].id != made[0].id
        await env.complete(link, {"by": "ann"})
        assert text_of(await soon(call)) == "paid {'by': 'ann'}"


async def test_completion_after_the_address_function_failed_is_used_by_the_next_call(server):
    # finding: R3
    made: list[Link] = []

    def breaks(link: Link) -> str:
        made.append(link)
        raise RuntimeError("the shop is closed")

    @server.tool()
    async def pay() -> str:
        return f"paid {dict(await elicit.url('Pay', breaks, origins=[ORIGIN]))}"

    async with caller_of(server, LEGACY) as (_, caller):
        assert (await caller.result("pay")).is_error
        assert await complete_elicitation(made[0].id, {"by": "ann"}) == "late"
        assert await caller.text("pay") == "paid {'by': 'ann'}"
        assert len(made) == 1


class LosingStore(MemoryStore):
    """A store that loses one write, as if the process had died."""

    loses_next = False

    async def write(self, *records: Record) -> tuple[Record, ...]:
        if self.loses_next:
            self.loses_next = False
            raise StoreUnavailable("gone")
        return await super().write(*records)


async def test_crash_before_the_address_is_stored_calls_the_function_again(server):
    # finding: R3
    made, store = list[Link](), LosingStore()

    def address(link: Link) -> str:
        made.append(link)
        store.loses_next = len(made) == 1
        return LOGIN

    @server.tool()
    async def pay() -> str:
        return f"paid {dict(await elicit.url('Pay', address, origins=[ORIGIN]))}"

    async with caller_of(server, LEGACY, store=store) as (env, caller):
        assert (await caller.result("pay")).is_error
        assert not store.loses_next
        call = caller.call("pay")
        link = await caller.link()
        assert env.id_of(link) == made[1].id == made[0].id
        assert await (await env.person()).go_on(link) == LOGIN
        await env.complete(link, {"by": "ann"})
        assert text_of(await soon(call)) == "paid {'by': 'ann'}"


@pytest.mark.every_way
async def test_another_process_on_the_same_store_can_complete(server, revision, tmp_path):
    # parity: L4
    add_sign_in(server)
    store = f"sqlite:///{tmp_path / 'elicit.db'}"
    async with caller_of(server, revision, store=store) as (env, caller):
        call = caller.call("sign_in")
        link = await caller.link()
        async with connect(env.settings):
            assert await complete_elicitation(env.id_of(link), {"name": "ann"}) == "accepted"
        assert text_of(await soon(call)) == "signed in: ann"


class Author:
    """An author's own routes for the returning browser and for the service's callback."""

    def __init__(self, server: Any) -> None:
        self.links: list[Link] = []

        def build(link: Link) -> str:
            self.links.append(link)
            return f"{ORIGIN}/shop"

        @server.tool()
        async def pay() -> str:
            return f"paid {dict(await elicit.url('Pay', build, origins=[ORIGIN]))}"

        @server.custom_route("/paid", methods=["GET"])
        async def paid(request: Request) -> PlainTextResponse:
            try:
                return PlainTextResponse(await complete_elicitation(request, {"by": "route"}))
            except NotAllowed as error:
                return PlainTextResponse(str(error), status_code=403)

    def back(self, env: ServerEnv) -> str:
        return f"{env.url}/paid?elicitation={self.links[0].return_token}"


@pytest.mark.every_way
async def test_authors_route_completes_for_the_browser_from_the_link(server, revision):
    # parity: L4
    author = Author(server)
    async with caller_of(server, revision) as (env, caller):
        call = caller.call("pay")
        link = await caller.link()
        person = await env.person()
        await person.go_on(link)
        assert (await person.visit(author.back(env))).text == "accepted"
        assert text_of(await soon(call)) == "paid {'by': 'route'}"


async def test_authors_route_does_not_complete_for_another_browser(server):
    author = Author(server)
    async with caller_of(server, LEGACY) as (env, caller):
        call = caller.call("pay")
        link = await caller.link()
        person, other, bare = [await env.person() for _ in range(3)]
        assert (await person.visit(author.back(env))).status == 403
        await person.go_on(link)
        await other.visit(link)
        assert (await other.visit(author.back(env))).status == 403
        assert (await bare.visit(author.back(env))).status == 403
        forged = await person.visit(f"{env.url}/paid?elicitation={'x' * 100}")
        assert forged.text == "unknown"
        assert await env.status(link) == "opened"
        assert (await person.visit(author.back(env))).text == "accepted"
        await soon(call)


async def test_authors_webhook_completes_by_id(server):
    add_sign_in(server)

    @server.custom_route("/webhook/{id}", methods=["POST"])
    async def webhook(request: Request) -> PlainTextResponse:
        return PlainTextResponse(
            await complete_elicitation(request.path_params["id"], await request.json())
        )

    async with caller_of(server, LEGACY) as (env, caller):
        call = caller.call("sign_in")
        link = await caller.link()
        async with new_browser() as service:
            to = f"{env.url}/webhook/{env.id_of(link)}"
            assert (await service.post(to, json={"name": "ann"})).text == "accepted"
            assert (await service.post(to, json={"name": "eve"})).text == "already_settled"
        assert text_of(await soon(call)) == "signed in: ann"


async def test_external_service_completes_through_the_callback_url(server, revision):
    author = Author(server)

    async def post(content: Mapping[str, Json]) -> httpx.Response:
        async with new_browser() as service:
            return await service.post(author.links[0].callback_url, json=content)

    async with caller_of(server, revision) as (env, caller):
        call = caller.call("pay")
        link = await caller.link()
        early = await post({"order": 0})
        assert (early.status_code, early.headers["content-type"]) == (
            409,
            "application/problem+json",
        )
        await (await env.person()).go_on(link)
        assert (await post({"order": 7})).json() == {"completion": "accepted"}
        assert (await post({"order": 8})).json() == {"completion": "already_settled"}
        assert text_of(await soon(call)) == "paid {'order': 7}"


async def test_late_completion_is_stored_for_the_same_question(server, revision):
    # defect: lynq late completion
    add_sign_in(server)
    async with caller_of(server, revision, answers=["decline"]) as (env, caller):
        assert (await caller.result("sign_in")).is_error
        link = await caller.link()
        assert await env.complete(link, {"name": "ann"}) == "late"
        assert await caller.text("sign_in") == "signed in: ann"


async def test_answer_is_used_once_and_the_next_call_asks_again(server, revision):
    add_sign_in(server)
    async with caller_of(server, revision) as (env, caller):
        links = []
        for name in ("ann", "bob"):
            call = caller.call("sign_in")
            links.append(await caller.link())
            await env.complete(links[-1], {"name": name})
            assert text_of(await soon(call)) == f"signed in: {name}"
        assert env.id_of(links[0]) != env.id_of(links[1])


async def test_tool_without_questions_creates_no_elicitation(server, revision):
    runs: list[int] = []

    @server.tool()
    async def plain() -> str:
        runs.append(1)
        return "plain"

    async with caller_of(server, revision) as (env, caller):
        for _ in range(2):
            assert await caller.text("plain") == "plain"
        assert len(runs) == 2
        assert not await env.elicitations()


@pytest.mark.parametrize("question", ["open", "settled"])
async def test_completion_with_an_unknown_id_does_nothing(server, question):
    add_sign_in(server)
    async with caller_of(server, LEGACY) as (env, caller):
        call = caller.call("sign_in")
        link = await caller.link()
        if question == "settled":
            await env.complete(link)
            await soon(call)
        id = env.id_of(link)
        for foreign in ("", "x", id[:-1] + ("A" if id[-1] != "A" else "B"), id[:20], "x" * 5000):
            assert await complete_elicitation(foreign) == "unknown"
        await env.complete(link)
        await soon(call)
        await eventually(lambda: not len(env.service.elicitations.waiters))
