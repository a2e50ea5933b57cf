"""A low-level server: its single handler behaves like the tools of the other two libraries."""

from collections.abc import Callable
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server

from flows import elicit
from flows.kinds.gate import GatePolicy
from tests.support.mcp_server import MODERN, caller_of, text_of

LISTED = types.Tool(name="visit", input_schema={"type": "object"})
DESTRUCTIVE = types.Tool(
    name="drop",
    input_schema={"type": "object"},
    annotations=types.ToolAnnotations(destructive_hint=True),
)


def low_level(
    *pages: types.Tool, handler: Callable[..., Any] | None = None, **options: Any
) -> Server[Any]:
    """Return a server that lists each tool on a page of its own."""

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        at = int(params.cursor) if params is not None and params.cursor else 0
        after = str(at + 1) if at + 1 < len(pages) else None
        return types.ListToolsResult(tools=[pages[at]], next_cursor=after)

    async def visit(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        content = await elicit.url("Look", "https://shop.example/terms")
        text = f"{params.name}: {content.get('card')}"
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)])

    handlers: dict[str, Any] = {"on_list_tools": list_tools, "on_call_tool": handler or visit}
    return Server("shop", **handlers, **options)


async def test_low_level_tool_awaits_a_person(revision):
    async with caller_of(low_level(LISTED), revision) as (env, caller):
        assert await env.text_after_visit(caller, "visit", {"card": "gold"}) == "visit: gold"
        person = await env.person()
        assert (await person.visit(env.url)).status == 200


async def test_low_level_decline_returns_a_sentence(revision):
    async with caller_of(low_level(LISTED), revision, answers=["decline"]) as (_, caller):
        result = await caller.result("visit")
    assert result.is_error
    assert "declined" in text_of(result)


async def test_low_level_client_without_elicitation_gets_a_link_and_the_result_tool(revision):
    async with caller_of(low_level(LISTED, DESTRUCTIVE), revision, declares=None) as (env, caller):
        names = [tool.name for tool in (await caller.client.list_tools(cursor="1")).tools]
        assert names == ["drop", "elicitation_result"]
        await env.complete(await caller.link_in_result("visit"), {"card": "gold"})
        assert await caller.text("visit") == "visit: gold"


async def test_low_level_destructive_or_named_tools_are_gated_on_any_list_page(revision):
    gate = GatePolicy(patterns=("hidden",))
    server = low_level(LISTED, DESTRUCTIVE)
    async with caller_of(server, revision, gate=gate, answers=["decline"] * 9) as (_, caller):
        for name in ("drop", "hidden"):
            assert "declined" in await caller.text(name)


async def test_gate_mark_on_the_low_level_handler_covers_every_tool(revision):
    async def act(context: Any, params: Any) -> types.CallToolResult:
        return types.CallToolResult(content=[types.TextContent(type="text", text="done")])

    server = low_level(LISTED, handler=elicit.gate(act))
    async with caller_of(server, revision, answers=["decline"] * 9) as (_, caller):
        for name in ("visit", "one that is not listed"):
            assert "declined" in await caller.text(name)


async def test_low_level_request_state_is_sealed_and_bound_to_its_call():
    async with caller_of(low_level(LISTED), MODERN) as (_, caller):
        first = await caller.asked("visit")
        assert first.request_state
        changed = first.model_copy(update={"request_state": f"{first.request_state}x"})
        answer = await _error_of(caller.send_call("visit", after=changed))
        assert "state" in answer.lower()
        assert "state" in (await _error_of(caller.send_call("other", after=first))).lower()


async def _error_of(request: Any) -> str:
    from mcp import MCPError

    try:
        return str(await request)
    except MCPError as error:
        return str(error)
