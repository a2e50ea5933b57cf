"""The home page of servers whose middleware changes which tools are listed."""

from typing import Any

from fastmcp import FastMCP
from fastmcp.server.dependencies import get_http_request
from fastmcp.server.middleware import Middleware

from tests.support.mcp_server import server_env


class ForRequests(Middleware):
    async def on_list_tools(self, context: Any, call_next: Any) -> Any:
        assert get_http_request().url.path == "/mcp"
        return await call_next(context)


class WithoutAdmin(Middleware):
    async def on_list_tools(self, context: Any, call_next: Any) -> Any:
        return [tool for tool in await call_next(context) if tool.name != "admin"]


async def home_of(middleware: Middleware) -> str:
    server: FastMCP[Any] = FastMCP("shop", middleware=[middleware])

    @server.tool
    def admin() -> str:
        return ""

    @server.tool
    def buy() -> str:
        return ""

    async with server_env(server) as env:
        person = await env.person()
        answer = await person.browser.get(f"{env.url}/")
        assert answer.status_code == 200
        return answer.text


async def test_home_page_renders_if_tools_are_listed_for_mcp_requests_only():
    reported = await home_of(ForRequests())
    assert "Tools for your assistant, by" in reported
    assert "<dt>" not in reported


async def test_tool_never_listed_by_the_author_is_not_on_the_home_page():
    reported = await home_of(WithoutAdmin())
    assert "buy" in reported
    assert "admin" not in reported
