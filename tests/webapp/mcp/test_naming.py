"""Server names: a server must not find what is stored under another server's name."""

from typing import Any

import pytest

from tests.support.mcp_server import caller_of, new_server, server_env, text_of
from webapp.app import create_app
from webapp.mcp.attach import attach
from webapp.mcp.naming import must_be_named
from webapp.settings.settings import read_settings


def nameless(library: str, name: str | None = None) -> Any:
    """Return a server as an author creates it who sets no name."""
    if library == "fastmcp":
        from fastmcp import FastMCP

        return FastMCP(name)
    from mcp.server.mcpserver import MCPServer

    return MCPServer(name)


@pytest.mark.parametrize("name", [None, ""])
def test_a_server_without_a_name_is_refused_and_told_to_have_one(library, name):
    server = nameless(library, name)
    with pytest.raises(ValueError, match=r'(MCPServer|FastMCP)\(name="\.\.\."\)') as refused:
        must_be_named(server)
    assert server.name in str(refused.value)


def test_one_of_a_class_of_the_authors_is_refused_too():
    from fastmcp import FastMCP

    class Shop(FastMCP):
        pass

    with pytest.raises(ValueError, match=r'Shop\(name="\.\.\."\)'):
        must_be_named(Shop())
    must_be_named(Shop("shop"))


@pytest.mark.parametrize("name", ["shop", "FastMCP", "FastMCP-2024x", "my FastMCP-1a2b", "mcp"])
def test_a_name_that_an_author_gives_is_any_other(library, name):
    must_be_named(nameless(library, name))


async def test_it_is_refused_wherever_it_would_be_served(library):
    async with server_env(new_server(library)) as env:
        with pytest.raises(ValueError, match="has no name of its own"):
            attach(nameless(library), env.service)
    settings = read_settings({"ELICIT_STORE": "memory:"}, host="127.0.0.1", port=8765)
    with pytest.raises(ValueError, match="has no name of its own"):
        create_app(settings, nameless(library))


@pytest.mark.every_way
@pytest.mark.parametrize("name", ["shop (API)", "shop  (api) ", "(API)", "The application"])
async def test_tool_with_the_name_of_a_program_or_block_does_not_run(server, revision, name):
    # finding: XS1
    @server.tool(name=name)
    async def pay() -> str:
        raise AssertionError

    async with caller_of(server, revision) as (_, caller):
        result = await caller.result(name)
        assert result.is_error
        assert "Rename the tool" in text_of(result)
