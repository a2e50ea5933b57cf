"""Input that no library sends: lone surrogates, very long texts, values of the wrong type."""

import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import mcp_types as types
import pytest

from flows import elicit
from flows.kinds.gate import GatePolicy
from flows.providers import github
from tests.support.mcp_server import LEGACY, MODERN, ServerEnv, server_env

HALF = "\ud800"
BOTH: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}}


class OddClient:
    """A client that sends any value it is given."""

    def __init__(self, http: httpx.AsyncClient, env: ServerEnv, revision: str) -> None:
        self._http = http
        self._url = env.mcp_url
        self._is_modern = revision == MODERN
        self._name: object = "odd"
        self.headers = {
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
            "mcp-protocol-version": revision if self._is_modern else "2025-11-25",
        }

    async def connect(self, name: object = "odd") -> dict[str, Any]:
        """Connect under this client name and return the server's reply."""
        self._name = name
        if self._is_modern:
            return {}
        opening = {
            "protocolVersion": "2025-11-25",
            "capabilities": BOTH,
            "clientInfo": {"name": name, "version": "1"},
        }
        answer = await self._post({"id": 0, "method": "initialize", "params": opening})
        if (session := answer.headers.get("mcp-session-id")) is not None:
            self.headers["mcp-session-id"] = session
            await self._post({"method": "notifications/initialized"})
        return reply_in(answer)

    async def call(self, tool: str, **params: Any) -> dict[str, Any]:
        """Call the tool and return the result, or the JSON-RPC error."""
        params = {"name": tool, "arguments": {}, **params}
        if self._is_modern:
            self.headers |= {"mcp-method": "tools/call", "mcp-name": tool}
            params["_meta"] = {
                types.PROTOCOL_VERSION_META_KEY: MODERN,
                types.CLIENT_INFO_META_KEY: {"name": self._name, "version": "1"},
                types.CLIENT_CAPABILITIES_META_KEY: BOTH,
            }
        return reply_in(await self._post({"id": 1, "method": "tools/call", "params": params}))

    async def _post(self, message: dict[str, Any]) -> httpx.Response:
        body = json.dumps({"jsonrpc": "2.0", **message})
        return await self._http.post(self._url, content=body, headers=self.headers)


@asynccontextmanager
async def odd_client(
    server: Any, revision: str = MODERN, **options: Any
) -> AsyncIterator[tuple[ServerEnv, OddClient]]:
    async with server_env(server, **options) as env, httpx.AsyncClient(timeout=300) as http:
        client = OddClient(http, env, revision)
        await client.connect()
        yield env, client


def reply_in(response: httpx.Response) -> dict[str, Any]:
    for line in response.text.splitlines():
        text = line.removeprefix("data: ")
        if text.startswith("{") and (message := json.loads(text)).get("id") is not None:
            answer: dict[str, Any] = message
            return answer
    return {}


@pytest.fixture
def server(server: Any) -> Any:
    @server.tool()
    async def go() -> str:
        await elicit.url("Go there", "https://service.example/")
        return "went"

    @server.tool(annotations=types.ToolAnnotations(destructive_hint=True))
    async def wipe(about: dict[str, str]) -> str:
        return "wiped"

    @server.tool()
    async def take(about: str) -> str:
        await elicit.confirm("Sure?", arguments={"about": about})
        return "took"

    @server.tool()
    async def connect(account: str) -> str:
        return (await elicit.oauth(github, account=account)).label

    return server


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return a function that lists the messages logged at WARNING or above."""
    caplog.set_level(logging.WARNING)
    return lambda: [record.getMessage() for record in caplog.records]


async def test_malformed_call_is_refused_before_asking(server, revision, logged):
    # finding: S31
    odd: list[tuple[str, dict[str, Any]]] = [
        *(("wipe", {"arguments": value}) for value in (["x"], "x", 5)),
        *(("go", {"inputResponses": value}) for value in ([1], "x", 5, True, {"a": 5})),
    ]
    async with odd_client(server, revision) as (env, client):
        for tool, params in odd:
            reply = await client.call(tool, **params)
            assert reply["error"]["code"] == types.INVALID_PARAMS, params
            (odd_name,) = params
            assert odd_name in reply["error"]["message"], params
        assert not await env.elicitations(), "a malformed call creates no question"
        assert not logged()


async def test_invalid_tool_name_asks_no_person(server):
    # finding: S31
    gate = GatePolicy(patterns=("*",))
    async with odd_client(server, LEGACY, gate=gate) as (env, client):
        for name in ("x" * 257, "x" * 100_000, 5):
            reply = await client.call("go", name=name)
            assert reply["error"]["code"] == types.INVALID_PARAMS
        assert not await env.elicitations()


async def test_client_name_longer_than_256_characters_is_refused(server, revision, logged):
    # finding: S31
    async with server_env(server) as env, httpx.AsyncClient(timeout=300) as http:
        for characters in (257, 100_000):
            client = OddClient(http, env, revision)
            reply = await client.connect("x" * characters) or await client.call("go")
            assert reply["error"]["code"] == types.INVALID_PARAMS
            assert "256 characters" in reply["error"]["message"]
        assert not logged()


async def test_lone_surrogate_in_a_client_name_does_not_prevent_questions(server):
    # finding: S31
    async with server_env(server) as env, httpx.AsyncClient(timeout=300) as http:
        keys = set[str]()
        for name in (f"odd{HALF}", "odd\ufffd", "odd\\ud800", "\ufffdodd\\ud800", "odd\x1b[2J"):
            client = OddClient(http, env, MODERN)
            await client.connect(name)
            reply = await client.call("go")
            assert reply["result"]["resultType"] == "input_required", reply
            (asked,) = [row for row in await env.elicitations() if row.dedupe_key not in keys]
            keys.add(asked.dedupe_key)
            page = await (await env.person()).visit(env.link_of(asked))
            assert "odd" in page.text
            assert "\x1b" not in page.text
        assert len(keys) == 5, "each client name has its own question"


@pytest.mark.parametrize("account", ["x" * 257, "x" * 100_000, "", "a\x00b", f"ann{HALF}"])
async def test_invalid_account_argument_is_refused_with_an_explanation(server, account):
    # finding: S31
    async with odd_client(server) as (_, client):
        reply = await client.call("connect", arguments={"account": account})
        (content,) = reply["result"]["content"]
        assert content["text"].startswith("account must be the name or id of an account")
        assert reply["result"]["isError"]


async def test_lone_surrogate_in_gated_arguments_is_refused_before_asking(server):
    # finding: S31
    async with odd_client(server) as (env, client):
        for text in (HALF, "x" * 100_000):
            reply = await client.call("wipe", arguments={"about": {"a": text}})
            assert "ELICITATION_INVALID_ARGUMENTS" in reply["result"]["content"][0]["text"]
        assert not await env.elicitations()


async def test_oversized_responses_to_the_tools_own_requests_are_refused(
    server,
):
    # finding: S31
    async with odd_client(server) as (_, client):
        roots = {"roots": [{"uri": "file:///" + "x" * 100_000}]}
        reply = await client.call("go", inputResponses={"its own": roots})
        assert "can be stored while a person is asked" in reply["result"]["content"][0]["text"]
