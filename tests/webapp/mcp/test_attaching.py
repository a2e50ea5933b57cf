"""`attach()`: the author's configuration is unchanged, and attaching twice adds nothing."""

from typing import Any

import pytest
from mcp import Client
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity

from flows import elicit
from tests.support.mcp_server import (
    MODERN,
    answered_in,
    asked_in,
    caller_of,
    new_server,
    server_env,
    text_of,
)
from tests.support.own_requests import size_form
from webapp.mcp.attach import Middleware, attach

LOGIN = "https://example.org/login"
AUTHORS_KEY = b"a key of the author's, 32 bytes!"


def add_own_state(server: Any, library: str) -> None:
    if library == "fastmcp":
        from fastmcp import Context
    else:
        from mcp.server.mcpserver import Context  # type: ignore[assignment]

    @server.tool()
    async def size(context: Context) -> Any:
        if context.request_state is not None:
            return f"came back: {context.request_state}"
        return size_form("mine")


def parts_of(server: Any) -> list[object]:
    parts: list[object] = getattr(server, "_mcp_server", server).middleware
    return parts


def boundary_of(server: Any) -> RequestStateBoundary:
    (found,) = [part for part in parts_of(server) if isinstance(part, RequestStateBoundary)]
    return found


@pytest.mark.parametrize("audience", [None, "shop"])
async def test_request_state_sealed_with_the_authors_keys_still_opens(audience):
    def new() -> Any:
        security = RequestStateSecurity(keys=[AUTHORS_KEY], audience=audience)
        server = new_server("mcp", request_state_security=security)
        add_own_state(server, "mcp")
        return server

    async with Client(new(), mode=MODERN) as client:
        before = asked_in(await client.session.call_tool("size", {}, allow_input_required=True))
    async with caller_of(new(), MODERN) as (_, caller):
        result = await caller.send_call("size", after=before)
        assert text_of(answered_in(result)) == "came back: mine"


async def test_request_state_sealed_with_the_authors_keys_opens_when_served_again():
    server = new_server("mcp", request_state_security=RequestStateSecurity(keys=[AUTHORS_KEY]))
    add_own_state(server, "mcp")
    async with Client(server, mode=MODERN) as client:
        before = asked_in(await client.session.call_tool("size", {}, allow_input_required=True))
    for _ in range(2):
        async with caller_of(server, MODERN) as (_, caller):
            result = await caller.send_call("size", after=before)
            assert text_of(answered_in(result)) == "came back: mine"


@pytest.mark.parametrize("audience", [None, "shop"])
async def test_request_state_security_given_to_fastmcp_is_unchanged(audience):
    security = RequestStateSecurity(keys=[AUTHORS_KEY], audience=audience)
    server = new_server("fastmcp", request_state_security=security)
    before = boundary_of(server)
    async with server_env(server):
        assert boundary_of(server) is before


async def test_attaching_twice_adds_a_single_middleware(server):
    @server.tool()
    async def sign_in() -> str:
        return str(dict(await elicit.url("Sign in", LOGIN)))

    async with caller_of(server, MODERN) as (env, caller):
        count = len(parts_of(server))
        attach(server, env.service)
        assert sum(isinstance(part, Middleware) for part in parts_of(server)) == 1
        assert len(parts_of(server)) == count
        assert await env.text_after_visit(caller, "sign_in", {"name": "ann"}) == "{'name': 'ann'}"
        assert not caller.has_links_left
