"""The official TypeScript clients as processes, which the tests control over pipes.

The clients call one of our servers. They do not simulate a person. A test receives the questions of
a client and acts as the person itself, or sets the client's answers in advance.
"""

import asyncio
import json
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast

from flows.elicitation.states import Json
from tests.support.processes import ended, error_of, killed, start
from tests.typescript.packages import HERE

PATIENCE_SECONDS = 300.0
OLDER, NEWER = "2025-11-25", "2026-07-28"
URL: Mapping[str, Json] = {"url": {}}
FORM: Mapping[str, Json] = {"form": {}}
BOTH: Mapping[str, Json] = {"form": {}, "url": {}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Official:
    """An official client on one revision."""

    library: str
    revision: str

    def __str__(self) -> str:
        return f"{self.library}-{self.revision}"


CLIENTS = (
    Official(library="sdk", revision=OLDER),
    Official(library="client", revision=OLDER),
    Official(library="client", revision=NEWER),
)


class Caller:
    """A running client that makes one call at a time."""

    def __init__(self, process: Process, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._process = process
        self._patience_seconds = patience_seconds
        self.speaks = ""
        self.tools: list[str] = []
        self.completed: list[str] = []  # ids of the complete notifications
        self.is_killed = False

    async def connected(self) -> None:
        message = await self._line()
        self.speaks, self.tools = message["speaks"], message["tools"]

    def begin(self, tool: str, **arguments: Json) -> None:
        """Start a call. The client's questions and the result are read afterwards."""
        line = json.dumps({"name": tool, "arguments": arguments})
        cast("asyncio.StreamWriter", self._process.stdin).write(line.encode() + b"\n")

    async def call(self, tool: str, **arguments: Json) -> dict[str, Any]:
        """Call a tool that asks the client nothing, and return the result."""
        self.begin(tool, **arguments)
        return await self.result()

    async def asked(self) -> dict[str, Any]:
        """Return the client's next question. Fail if the call returns a result first."""
        message = await self._next()
        assert "asked" in message, message
        return cast("dict[str, Any]", message["asked"])

    async def link(self) -> str:
        """Return the link that the client was asked to show."""
        asked = await self.asked()
        assert asked["mode"] == "url"
        return cast("str", asked["url"])

    async def result(self) -> dict[str, Any]:
        message = await self._next()
        assert "result" in message, message
        return cast("dict[str, Any]", message["result"])

    async def next_message(self) -> dict[str, Any]:
        """Return the next message: a question, a result or an error."""
        return await self._next()

    async def kill(self) -> None:
        """Kill the client during a call."""
        self.is_killed = True
        await killed(self._process)

    async def _next(self) -> dict[str, Any]:
        while "completed" in (message := await self._line()):
            self.completed.append(message["completed"])
        return message

    async def _line(self) -> dict[str, Any]:
        async with asyncio.timeout(self._patience_seconds):
            line = await cast("asyncio.StreamReader", self._process.stdout).readline()
            if not line:
                raise AssertionError(f"the client ended: {error_of(self._process)}")
        return cast("dict[str, Any]", json.loads(line))


@asynccontextmanager
async def calling(
    node: str,
    official: Official,
    url: str,
    *,
    declares: Mapping[str, Json] | None,
    answers: Sequence[Mapping[str, Json] | str] = (),
    answers_after: float | Literal["never"] = 0.0,
    patience_seconds: float = PATIENCE_SECONDS,
) -> AsyncIterator[Caller]:
    """Connect a client. It gives `answers` (contents or actions) one by one, then accepts.

    `answers_after` is the delay in seconds before each of these answers.
    """
    given = [
        {"afterSeconds": answers_after, "action": each}
        if isinstance(each, str)
        else {"afterSeconds": answers_after, "action": "accept", "content": each}
        for each in answers
    ]
    wanted = {
        "library": official.library,
        "revision": official.revision,
        "url": url,
        "elicitation": declares,
        "answers": given,
    }
    command = (node, str(HERE / "client.mjs"), json.dumps(wanted))
    process = await start(*command, name="the client", stdin=PIPE)
    try:
        caller = Caller(process, patience_seconds=patience_seconds)
        await caller.connected()
        yield caller
        if caller.is_killed:
            return
        cast("asyncio.StreamWriter", process.stdin).close()
        end = await ended(process, within_seconds=PATIENCE_SECONDS)
        assert (end.status, end.err) == (0, "")
    finally:
        await killed(process)


def text_of(result: Mapping[str, Any]) -> str:
    (content,) = result["content"]
    return cast("str", content["text"])
