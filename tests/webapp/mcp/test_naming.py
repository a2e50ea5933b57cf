"""Servers need a name of their own, because their data is stored under their name."""

from typing import Any

import pytest

from tests.support.mcp_server import caller_of, new_server, server_env, text_of
from webapp.app import create_app
from webapp.mcp.attach import attach
from webapp.mcp.callers import must_be_named
from webapp.settings.settings import read_settings


def nameless(library: str, name: str | None = None) -> Any:
    """Return a server that is created with `name`, or without a name if `name` is None."""
    if library == "fastmcp":
        from fastmcp import FastMCP

        return FastMCP(name)
    from mcp.server.mcpserver import MCPServer

    return MCPServer(name)


@pytest.mark.parametrize("name", [None, ""])
def test_unnamed_server_is_refused_with_a_hint(library, name):
    server = nameless(library, name)
    with pytest.raises(ValueError, match=r'(MCPServer|FastMCP)\(name="\.\.\."\)') as refused:
        must_be_named(server)
    assert server.name in str(refused.value)


def test_unnamed_server_subclass_is_refused():
    from fastmcp import FastMCP

    class Shop(FastMCP):
        pass

    with pytest.raises(ValueError, match=r'Shop\(name="\.\.\."\)'):
        must_be_named(Shop())
    must_be_named(Shop("shop"))


@pytest.mark.parametrize("name", ["shop", "FastMCP", "FastMCP-2024x", "my FastMCP-1a2b", "mcp"])
def test_explicit_server_name_is_accepted(library, name):
    must_be_named(nameless(library, name))


async def test_unnamed_server_is_refused_by_attach_and_create_app(library):
    async with server_env(new_server(library)) as env:
        with pytest.raises(ValueError, match="has no name of its own"):
            attach(nameless(library), env.service)
    settings = read_settings({"ELICIT_STORE": "memory:"}, host="127.0.0.1", port=8765)
    with pytest.raises(ValueError, match="has no name of its own"):
        create_app(settings, nameless(library))


@pytest.mark.every_way
async def test_tool_with_a_reserved_name_does_not_run(server, revision):
    # finding: XS1
    async def pay() -> str:
        raise AssertionError

    names = ["shop (API)", "shop  (api) ", "(API)", "The application"]
    for name in names:
        server.tool(name=name)(pay)
    async with caller_of(server, revision) as (_, caller):
        for name in names:
            result = await caller.result(name)
            assert result.is_error, name
            assert "Rename the tool" in text_of(result), name
