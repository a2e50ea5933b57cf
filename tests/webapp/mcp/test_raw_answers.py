"""Client answers that no library sends, over the open stream of 2025-11-25."""

import json
from typing import Any

import httpx
import mcp_types as types
import pytest

from flows import elicit
from flows.elicitation.states import Json, Status
from tests.support.mcp_server import LEGACY, CutOffCaller, ServerEnv, server_env, soon

LINK = "https://service.example/"


@pytest.fixture
def ran() -> list[str]:
    return []


@pytest.fixture
def server(server: Any, ran: list[str]) -> Any:
    @server.tool()
    async def name() -> str:
        return f"hello {await elicit.form('Who are you?')}"

    @server.tool()
    async def ask() -> str:
        return f"sure: {await elicit.confirm('Sure?')}"

    @server.tool(annotations=types.ToolAnnotations(destructive_hint=True))
    async def wipe() -> str:
        ran.append("wipe")
        return "wiped"

    @server.tool()
    async def go() -> str:
        outcome = await elicit.url("Go there", LINK, wait_for_completion=False).outcome()
        return f"went: {outcome.accepted} {outcome.status}"

    return server


async def result_of(env: ServerEnv, tool: str, answer: object) -> dict[str, Any]:
    """Return the result of a call whose only question is answered with `answer`."""
    async with httpx.AsyncClient(timeout=300) as http:
        caller = CutOffCaller(http, env.mcp_url, LEGACY)
        await caller.connect()
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        params = {"name": tool, "arguments": {}}
        async with http.stream(
            "POST", env.mcp_url, json={**call, "params": params}, headers=caller.headers
        ) as response:
            async for line in response.aiter_lines():
                message = json.loads(line.removeprefix("data: ")) if line[:7] == "data: {" else {}
                if message.get("method") == "elicitation/create":
                    reply = {"jsonrpc": "2.0", "id": message["id"], "result": answer}
                    found = await http.post(env.mcp_url, json=reply, headers=caller.headers)
                    assert found.status_code == 202
                elif message.get("id") == 1:
                    result: dict[str, Any] = message["result"]
                    return result
    raise AssertionError("the call has no result")


def text_in(result: dict[str, Any]) -> str:
    return str(result["content"][0]["text"])


@pytest.mark.parametrize("value", [[1], {"first": "Ann"}, None, [["Ann"]], 7])
async def test_content_of_an_invalid_type_fails_the_question_and_names_the_field(
    server, value: Json
):
    async with server_env(server) as env:
        answer = {"action": "accept", "content": {"response": value}}
        result = await soon(result_of(env, "name", answer))
        assert result["isError"]
        assert result["_meta"]["code"] == "INVALID_INPUT"
        assert '"path":"response"' in text_in(result).replace(" ", "")
        assert [row.status for row in await env.elicitations()] == [Status.FAILED]


async def test_decline_with_content_is_a_decline(server):
    async with server_env(server) as env:
        answer = {"action": "decline", "content": {"x": {"y": [1]}}}
        assert text_in(await soon(result_of(env, "ask", answer))) == "sure: False"
        assert [row.status for row in await env.elicitations()] == [Status.DECLINED]


@pytest.mark.parametrize("answer", [{}, {"action": "approve"}, {"action": 1}, {"action": None}])
async def test_unknown_action_is_not_an_acceptance(server, ran, answer):
    async with server_env(server) as env:
        assert text_in(await soon(result_of(env, "ask", answer))) == "sure: False"
        refused = await soon(result_of(env, "wipe", answer))
        assert refused["isError"]
        assert refused["_meta"]["code"] == "ELICITATION_CANCELLED"
        assert not ran
        assert text_in(await soon(result_of(env, "go", answer))) == "went: False cancelled"
