"""A tool that waits for a person: clients that replay, count errors, or send empty forms.

Raw requests simulate the clients: a client repeats the call from its first request (XC1),
validates results against the listed output schema (XC2), or accepts a form without content (XC3).
"""

from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import jsonschema

from tests.support.cli import serving
from tests.support.mcp_server import LIBRARIES

FINDING = "XC1-XC3"
_META = "io.modelcontextprotocol/"
FORM: dict[str, Any] = {"elicitation": {}}
NOTHING: dict[str, Any] = {}


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    for library in LIBRARIES:
        with TemporaryDirectory() as folder:
            name = f"tests.outside.waiting_shop:{library}"
            async with serving(name, home=Path(folder)) as here, httpx.AsyncClient() as http:
                for number in range(times):
                    for tool, content in (("form", {"response": "Ann"}), ("confirm", None)):
                        caller = _Caller(http, f"{here.url}/mcp", f"replays {tool} {number}")
                        right = await caller.is_answered_by_a_replay(tool, content)
                        yield f"XC1: {tool}, made again before its answer ({library})", right
                    caller = _Caller(http, f"{here.url}/mcp", f"is silent {number}", NOTHING)
                    yield f"XC2: the link fits the schema ({library})", await caller.gets_a_link()
                    caller = _Caller(http, f"{here.url}/mcp", f"is empty {number}")
                    yield f"XC3: accepted with nothing ({library})", await caller.sends_nothing()


class _Caller:
    def __init__(
        self, http: httpx.AsyncClient, url: str, name: str, declares: dict[str, Any] = FORM
    ) -> None:
        self._http = http
        self._url = url
        self._name = name
        self._declares = declares

    async def is_answered_by_a_replay(self, tool: str, content: Any) -> bool:
        asked = await self._call(tool)
        again = await self._call(tool)
        if again.get("inputRequests") != asked["inputRequests"]:
            return False
        (key,) = again["inputRequests"]
        answer = {"action": "accept", **({} if content is None else {"content": content})}
        done = await self._call(
            tool, requestState=again["requestState"], inputResponses={key: answer}
        )
        return not done.get("isError") and "content" in done and "/e/" not in str(done["content"])

    async def gets_a_link(self) -> bool:
        listed = await self._post("tools/list", {})
        schemas = {tool["name"]: tool.get("outputSchema") for tool in listed["tools"]}
        reported = await self._call("form")
        try:
            jsonschema.validate(reported.get("structuredContent"), schemas["form"])
        except jsonschema.ValidationError:
            return False
        return not reported["isError"] and "/e/" in str(reported["content"])

    async def sends_nothing(self) -> bool:
        asked = await self._call("form")
        (key,) = asked["inputRequests"]
        answers = {key: {"action": "accept", "content": {"other": "Ann"}}}
        refused = await self._call(
            "form", requestState=asked["requestState"], inputResponses=answers
        )
        link = await self._call("form")
        return refused["isError"] and "/e/" in str(link.get("content"))

    async def _call(self, tool: str, **more: Any) -> Any:
        params = {"name": tool, "arguments": {"what": self._name}, **more}
        return await self._post("tools/call", params)

    async def _post(self, method: str, params: dict[str, Any]) -> Any:
        meta = {
            f"{_META}protocolVersion": "2026-07-28",
            f"{_META}clientInfo": {"name": self._name, "version": "1"},
            f"{_META}clientCapabilities": self._declares,
        }
        headers = {
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": method,
            **({"mcp-name": params["name"]} if "name" in params else {}),
        }
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
        reply = await self._http.post(self._url, json=message, headers=headers, timeout=300)
        text = reply.text
        if reply.headers["content-type"].startswith("text/event-stream"):
            text = next(line[6:] for line in text.splitlines() if line.startswith("data: {"))
        return httpx.Response(200, text=text).json()["result"]
