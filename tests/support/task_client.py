"""A client that supports tasks. It writes its JSON-RPC messages itself, without an MCP library."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

import httpx
import mcp_types as types

from flows.elicitation.states import Json
from tests.support.mcp_server import MODERN, PATIENCE_SECONDS, TLS, ServerEnv, server_env, soon
from webapp.settings.quotas import PolicySettings

TASKS = "io.modelcontextprotocol/tasks"
RELATED = "io.modelcontextprotocol/related-task"
DECLARED: Mapping[str, Any] = {
    "elicitation": {"form": {}, "url": {}},
    "tasks": {},
    "extensions": {TASKS: {}},
}


def tasks_env(
    server: Any, *, policies: PolicySettings | None = None, **more: Any
) -> AbstractAsyncContextManager[ServerEnv]:
    """Serve a server on which each call that asks becomes a task, even for a short timeout."""
    return server_env(server, policies=always(policies or PolicySettings()), **more)


def always(policies: PolicySettings) -> PolicySettings:
    return replace(policies, tasks_from=timedelta(seconds=1))


class Refused(Exception):
    """A JSON-RPC error."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        self.code: int = error["code"]
        self.data: Any = error.get("data")
        super().__init__(error["message"])


class TaskClient:
    """A client with tasks. It puts the server's requests in `asked` and replies from `answers`."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        url: str,
        revision: str,
        *,
        declares: Mapping[str, Any],
        name: str,
    ) -> None:
        self.is_modern = revision == MODERN
        self.asked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.opening: dict[str, Any] = {}
        self._http = http
        self._url = url
        self._declares = dict(declares)
        self._info = {"name": name, "version": "1"}
        self._headers = {"accept": "application/json, text/event-stream"}
        self._ids = count(1)

    async def connect(self) -> None:
        if self.is_modern:
            self._headers["mcp-protocol-version"] = MODERN
            self.opening = await self.request("server/discover")
            return
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": self._declares,
            "clientInfo": self._info,
        }
        self.opening = await self.request("initialize", **params)
        self._headers["mcp-protocol-version"] = "2025-11-25"
        await self._post({"method": "notifications/initialized"})

    @property
    def promised(self) -> dict[str, Any]:
        capabilities: dict[str, Any] = self.opening["capabilities"]
        return capabilities

    async def request(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a request and return its result. Raise Refused for an error."""
        headers = dict(self._headers)
        if self.is_modern:
            headers["mcp-method"] = method
            named = str(params.get("name", params.get("taskId", "")))
            headers["mcp-name"] = named if named.isascii() and named.isprintable() else "-"
            params["_meta"] = {
                types.PROTOCOL_VERSION_META_KEY: MODERN,
                types.CLIENT_INFO_META_KEY: self._info,
                types.CLIENT_CAPABILITIES_META_KEY: self._declares,
            }
        id = next(self._ids)
        message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
        body, headers["content-type"] = json.dumps(message), "application/json"
        async with self._http.stream("POST", self._url, content=body, headers=headers) as response:
            if "mcp-session-id" in response.headers:
                self._headers["mcp-session-id"] = response.headers["mcp-session-id"]
            async for line in response.aiter_lines():
                text = line.removeprefix("data:").strip()
                if not text.startswith("{"):
                    continue
                data: dict[str, Any] = json.loads(text)
                if data.get("id") == id and "method" not in data:
                    if "error" in data:
                        raise Refused(data["error"])
                    result: dict[str, Any] = data["result"]
                    return result
                if "id" in data:
                    self.asked.put_nowait(data["params"])
                    answer = await self.answers.get()
                    await self._post({"id": data["id"], "result": answer})
        raise AssertionError(f"{method} had no answer: {response.status_code}")

    async def call(self, tool: str, **arguments: Json) -> dict[str, Any]:
        """Call a tool and return the result. In 2025-11-25, request a task."""
        more: dict[str, Any] = {} if self.is_modern else {"task": {"ttl": 60_000}}
        return await self.request("tools/call", name=tool, arguments=arguments, **more)

    async def task(self, tool: str, **arguments: Json) -> str:
        """Call a tool that becomes a task, and return the task's id."""
        answer = await self.call(tool, **arguments)
        if not self.is_modern:
            answer = {**answer["task"], "resultType": "task"}
        assert answer["resultType"] == "task", answer
        assert answer["status"] == "working"
        id: str = answer["taskId"]
        return id

    async def get(self, task: str) -> dict[str, Any]:
        return await self.request("tasks/get", taskId=task)

    async def status(self, task: str) -> str:
        status: str = (await self.get(task))["status"]
        return status

    async def until(self, task: str, *statuses: str) -> dict[str, Any]:
        """Poll until the task has one of these statuses."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (state := await self.get(task))["status"] not in statuses:
                assert state["status"] in ("working", "input_required"), state
        return state

    async def text(self, task: str) -> str:
        """Wait for the task's result, and return its text."""
        if self.is_modern:
            result = (await self.until(task, "completed"))["result"]
        else:
            result = await soon(self.request("tasks/result", taskId=task))
        text: str = result["content"][0]["text"]
        return text

    async def update(self, task: str, **response: Any) -> dict[str, Any]:
        """Answer all open input requests of the task with the same response."""
        asked = (await self.get(task)).get("inputRequests", {})
        responses = dict.fromkeys(asked, response)
        return await self.request("tasks/update", taskId=task, inputResponses=responses)

    async def cancel(self, task: str) -> dict[str, Any]:
        return await self.request("tasks/cancel", taskId=task)

    async def _post(self, message: dict[str, Any]) -> None:
        await self._http.post(self._url, json={"jsonrpc": "2.0", **message}, headers=self._headers)


@asynccontextmanager
async def task_client(
    env: ServerEnv,
    revision: str,
    *,
    declares: Mapping[str, Any] = DECLARED,
    name: str = "mcp",
    headers: Mapping[str, str] | None = None,
) -> AsyncGenerator[TaskClient]:
    """Provide a connected client."""
    async with httpx.AsyncClient(timeout=PATIENCE_SECONDS, verify=TLS, headers=headers) as http:
        client = TaskClient(http, env.mcp_url, revision, declares=declares, name=name)
        await client.connect()
        yield client
