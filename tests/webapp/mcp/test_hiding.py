"""Tools that are hidden until their needs are met, and the list changes that clients receive."""

from contextlib import AsyncExitStack
from typing import Any

import pytest
from fastmcp import FastMCP
from fastmcp.server.dependencies import get_http_request
from fastmcp.server.middleware import Middleware
from fastmcp.tools import Tool

from flows import elicit
from flows.providers import github
from tests.support.issuer import issuing, sign_in
from tests.support.kind_tools import PRICE, connected
from tests.support.mcp_sandbox import KEY, SandboxEnv, caller_at_sandbox, sandbox_env, went_through
from tests.support.mcp_server import (
    LEGACY,
    MODERN,
    Caller,
    Person,
    ServerEnv,
    caller_of,
    eventually,
    new_server,
    server_env,
    soon,
    text_of,
)
from webapp.connecting import utc_now
from webapp.service import ServiceOptions, open_service
from webapp.stores import open_store


def door() -> Any:
    return elicit.secret("The key of the door", name="door")


@pytest.fixture
def server(server: Any) -> Any:
    return with_tools(server)


def with_tools(server: Any) -> Any:
    """Add hidden tools, and tools that connect the account and store or delete the key."""

    @server.tool()
    async def link_account() -> str:
        return str((await connected()).label)

    @server.tool()
    @elicit.needs(elicit.oauth(github, scopes=["repo"]), hide=True)
    async def list_repositories() -> str:
        return f"those of {(await connected()).label}"

    @elicit.needs(elicit.payment(PRICE, "For good", once=True), hide=True)
    @server.tool()
    def print_pages(fails: bool = False) -> str:
        if fails:
            raise RuntimeError("the press is jammed")
        return "printed"

    @server.tool()
    async def take_key() -> str:
        return str(len(await door()))

    @server.tool()
    async def lose_key() -> str:
        return str(await elicit.forget("door"))

    @server.tool()
    @elicit.needs(door(), hide=True)
    @elicit.needs(elicit.confirm("Are you sure?"))
    def enter() -> str:
        return "in"

    return server


HIDDEN = {"list_repositories", "print_pages", "enter"}
PLAIN = {"link_account", "take_key", "lose_key"}


def promises_changes(caller: Caller) -> bool:
    tools = caller.client.server_capabilities.tools
    return tools is not None and bool(tools.list_changed)


async def take_key(env: ServerEnv, caller: Caller, *, of: str | None = None) -> Person:
    """Type the key on the page, and return the person who typed it."""
    call = caller.call("take_key")
    link, person = await caller.link(), await env.person()
    page = await person.visit(link)
    if of is not None:
        await sign_in(person, page, of)
        page = await person.visit(link)
    await person.browser.post(link, data={"csrf": page.csrf, "answer.value": KEY})
    assert text_of(await soon(call)) == str(len(KEY))
    return person


async def seen(caller: Caller) -> set[str]:
    """Return the names of the listed tools, without the tools that are never hidden."""
    names = {tool.name for tool in (await soon(caller.client.list_tools())).tools}
    assert names >= PLAIN
    return names - PLAIN


@pytest.mark.every_way
async def test_tool_is_hidden_until_another_tool_connects_the_account(server, revision):
    # parity: L10
    async with caller_at_sandbox(server, revision) as (at, caller):
        assert await seen(caller) == set()
        assert text_of(await went_through(caller, "link_account", [at.guest.connect])) == "octocat"
        assert await seen(caller) == {"list_repositories"}
        # The tool is listed now. Its first call asks the person for permission to use the account.
        result = await went_through(caller, "list_repositories", [at.guest.allow])
        assert text_of(result) == "those of octocat"
        assert await caller.text("list_repositories") == "those of octocat"
        await disconnect(at)
        assert await seen(caller) == set()


async def test_account_with_too_few_scopes_does_not_show_the_tool(server, revision):
    @server.tool()
    async def link_little() -> str:
        return str((await elicit.oauth(github, scopes=["gist"])).label)

    async with caller_at_sandbox(server, revision) as (at, caller):
        assert text_of(await went_through(caller, "link_little", [at.guest.connect])) == "octocat"
        assert await seen(caller) == {"link_little"}


async def test_hidden_tool_asks_when_called_and_is_then_listed(server, revision):
    # parity: L10
    async with caller_at_sandbox(server, revision) as (at, caller):
        assert await seen(caller) == set()
        assert text_of(await went_through(caller, "print_pages", [at.guest.pay])) == "printed"
        assert await seen(caller) == {"print_pages"}
        assert await caller.text("print_pages") == "printed"


async def test_listing_tools_does_not_spend_the_payment(server, revision):
    async with caller_at_sandbox(server, revision) as (at, caller):
        result = await went_through(caller, "print_pages", [at.guest.pay], fails=True)
        assert result.is_error
        await eventually(lambda: not len(at.env.service.running_tools))
        assert await seen(caller) == {"print_pages"}
        (payment,) = await at.payments()
        assert payment.status == "open"
        assert payment.refund_at is not None
        refunds = at.env.service.kinds.payments
        await refunds.refund(payment.owner, payment.id, reason=None, run="r")
        assert await seen(caller) == set()


async def test_stored_secret_shows_the_tool_and_forgetting_hides_the_tool(server, revision):
    # parity: L6
    async with caller_at_sandbox(server, revision) as (at, caller):
        assert text_of(await went_through(caller, "take_key", [at.guest.type])) == str(len(KEY))
        assert await seen(caller) == {"enter"}
        assert await caller.text("lose_key") == "True"
        assert await seen(caller) == set()


async def test_session_is_notified_of_tool_list_changes(library):
    # parity: L10
    server = with_tools(new_server(library))
    async with (
        sandbox_env(server) as at,
        at.env.caller(LEGACY) as caller,
        at.env.caller(LEGACY) as another,  # a session of the same person
    ):
        assert promises_changes(caller)
        assert await seen(caller) == await seen(another) == set()
        await went_through(caller, "link_account", [at.guest.connect])
        await eventually(lambda: caller.list_changes == another.list_changes == 1)
        assert await seen(caller) == {"list_repositories"}
        assert await caller.text("link_account") == "octocat"  # the list stays the same
        await disconnect(at)
        await eventually(lambda: caller.list_changes == another.list_changes == 2)
        assert await seen(another) == set()


async def disconnect(at: SandboxEnv) -> None:
    """Disconnect the account as the page of connected accounts does."""
    (account,) = await at.connections()
    await at.env.service.kinds.accounts.keys.disconnect(account.owner, account.id)


async def test_listen_stream_is_notified_of_tool_list_changes():
    # parity: L10
    server = with_tools(new_server("mcp"))
    async with (
        caller_at_sandbox(server, MODERN) as (at, caller),
        caller.client.listen(tools_list_changed=True) as changes,
    ):
        assert await seen(caller) == set()
        await went_through(caller, "link_account", [at.guest.connect])
        assert type(await soon(anext(changes))).__name__ == "ToolsListChanged"
        assert await seen(caller) == {"list_repositories"}
        await disconnect(at)
        assert type(await soon(anext(changes))).__name__ == "ToolsListChanged"


async def test_changes_by_another_process_notify_the_session(library, tmp_path):
    address = f"sqlite:///{tmp_path / 'elicit.db'}"
    server = with_tools(new_server(library))
    async with (
        caller_of(server, LEGACY, store=address) as (env, caller),
        AsyncExitStack() as elsewhere,
    ):
        assert await seen(caller) == set()
        await take_key(env, caller)
        await eventually(lambda: caller.list_changes == 1)
        assert await seen(caller) == {"enter"}
        store = await open_store(address)
        elsewhere.push_async_callback(store.aclose)
        other = await elsewhere.enter_async_context(
            open_service(env.settings, ServiceOptions(clock=utc_now), store=store)
        )
        owner = other.identity.local_owner
        assert await other.kinds.secrets.forget(owner=owner, server="shop", name="door")
        await eventually(lambda: caller.list_changes == 2)
        assert await seen(caller) == set()


async def test_another_persons_secret_shows_no_tool_and_sends_no_notification(library):
    server = with_tools(new_server(library))
    async with issuing() as issuer, server_env(server, who=issuer.who()) as env:

        def bearer(subject: str) -> Any:
            return issuer.bearer(subject, audience=env.mcp_url)

        async with (
            env.caller(LEGACY, headers=bearer("alice")) as alice,
            env.caller(LEGACY, headers=bearer("mallory")) as mallory,
        ):
            assert await seen(alice) == await seen(mallory) == set()
            person = await take_key(env, alice, of="alice")
            await eventually(lambda: alice.list_changes == 1)
            assert await seen(alice) == {"enter"}
            assert await seen(mallory) == set()
            assert mallory.list_changes == 0
            mallory.begin("enter")  # called by name, the tool asks Mallory for the key
            link = await mallory.link()
            assert (await person.visit(link)).heading == "This link belongs to someone else"


async def test_tool_with_unconfigured_need_stays_hidden(server, revision):
    async with caller_of(server, revision) as (_, caller):
        assert await seen(caller) == set()


async def test_server_without_hidden_tools_is_listed_unchanged(library, revision):
    server = new_server(library)

    @server.tool()
    @elicit.needs(door())
    def enter() -> str:
        return "in"

    before = [tool.name for tool in await server.list_tools()]
    async with caller_of(server, revision) as (_, caller):
        listed = await soon(caller.client.list_tools())
        assert [tool.name for tool in listed.tools] == before == ["enter"]
        if revision == LEGACY:
            is_declared = library == "fastmcp"  # FastMCP declares this for every server
            assert promises_changes(caller) == is_declared


def watched(name: str, seen_in: list[str], server: Any) -> Any:
    """Return the server with a middleware that records each listing made during a request."""

    class Watching(Middleware):
        async def on_list_tools(self, context: Any, call_next: Any) -> Any:
            seen_in.append(name)
            get_http_request()  # raises RuntimeError outside a request
            return await call_next(context)

    server.add_middleware(Watching())
    return server


@pytest.mark.parametrize("is_mounted", [False, True])
async def test_authors_list_middleware_runs_only_within_a_request(
    is_mounted,
):
    seen_in: list[str] = []
    server = watched("shop", seen_in, with_tools(new_server("fastmcp")))
    if is_mounted:
        outer = new_server("fastmcp")
        outer.mount(server)
        server = outer
    async with caller_of(server, LEGACY) as (env, caller):
        assert not seen_in, "the middleware does not run at initialize"
        assert await seen(caller) == set()
        listed = len(seen_in)
        # The server reads all tools once more, to find the hidden ones. That read skips the
        # server's own middleware, but FastMCP still runs the middleware of a mounted server.
        assert listed == (2 if is_mounted else 1)
        await take_key(env, caller)
        await eventually(lambda: caller.list_changes == 1)
        assert await caller.text("lose_key") == "True"
        await eventually(lambda: caller.list_changes == 2)
        assert len(seen_in) == listed, "the middleware does not run outside a request"


async def test_hide_marks_of_every_layer_hide_a_transformed_tool(revision):

    def enter() -> str:
        return "in"

    def free() -> str:
        return "free"

    async def again() -> str:
        return "in again"

    async def above() -> str:
        return "in again"

    hides = elicit.needs(door(), hide=True)
    server = with_tools(FastMCP("shop"))
    marked = Tool.from_function(hides(enter), name="below")
    server.add_tool(Tool.from_tool(marked, name="below_both", transform_fn=again))
    plain = Tool.from_function(free)
    server.add_tool(Tool.from_tool(plain, name="above", transform_fn=hides(above)))
    async with caller_at_sandbox(server, revision) as (at, caller):
        assert await seen(caller) == set()
        assert text_of(await went_through(caller, "take_key", [at.guest.type])) == str(len(KEY))
        assert await seen(caller) == {"enter", "below_both", "above"}


async def test_listed_version_decides_if_the_tool_is_hidden(revision):

    hides = elicit.needs(door(), hide=True)
    server: FastMCP[Any] = with_tools(FastMCP("shop"))

    def enter() -> str:
        return "in"

    def leave() -> str:
        return "out"

    server.tool(hides(enter), version="1.0", name="in_the_old_one")
    server.tool(leave, version="2.0", name="in_the_old_one")
    server.tool(leave, version="1.0", name="in_the_new_one")
    server.tool(hides(enter), version="2.0", name="in_the_new_one")
    async with caller_at_sandbox(server, revision) as (_, caller):
        assert await seen(caller) == {"in_the_old_one"}
