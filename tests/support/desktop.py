"""A desktop program that starts `elicit stdio` and reads its output."""

import asyncio
import contextlib
import json
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO, cast

import httpx
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import ElicitRequestParams, ElicitRequestURLParams, ElicitResult

from tests.support.cli import COMMAND, PROJECT, environment_of, start
from tests.support.leaks import LEAKS, Written
from tests.support.processes import error_output
from webapp.demo.walker import walk

PATIENCE_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True)
class Desktop:
    """A home directory with the author's tools, and a client that starts them by command."""

    home: Path
    port: int
    links: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    more: Mapping[str, str] = field(default_factory=dict)  # environment variables
    errors: list[Written] = field(
        default_factory=list
    )  # what the processes wrote to standard error

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def extra(self) -> dict[str, str]:
        path = f"{PROJECT}:{PROJECT / 'examples'}"
        return {"ELICIT_URL": self.url, "PYTHONPATH": path, **self.more}

    @property
    def arguments(self) -> tuple[str, ...]:
        return ("stdio", "tools:mcp", "--port", str(self.port))

    @contextlib.asynccontextmanager
    async def client(
        self, revision: str = "legacy", *, shows_links: bool = True
    ) -> AsyncIterator[Client]:
        command, *rest = COMMAND
        parameters = StdioServerParameters(
            command=command,
            args=[*rest, *self.arguments],
            env=environment_of(self.home, self.extra),
            cwd=self.home,
        )
        with error_output("elicit stdio") as errors:
            self.errors.append(errors)
            async with Client(
                stdio_client(parameters, errlog=cast("TextIO", errors)),
                mode=revision,
                elicitation_callback=self._show if shows_links else None,
            ) as client:
                yield client

    async def link(self) -> str:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.links.get()

    async def open(self, link: str) -> None:
        """Open the link as the person, and order soup."""
        async with httpx.AsyncClient() as browser:
            await walk(browser, link, answers={"dish": "soup"}, say=lambda _: None)

    async def start(self, *, shows_links: bool = True) -> "Pipe":
        """Start `elicit stdio` and initialize the session without a client library."""
        process = await start(*self.arguments, home=self.home, extra=self.extra, stdin=PIPE)
        pipe = Pipe(process)
        await pipe.say(
            id=1,
            method="initialize",
            params={
                "protocolVersion": "2025-11-25",
                "capabilities": {"elicitation": {"url": {}}} if shows_links else {},
                "clientInfo": {"name": "test", "version": "1"},
            },
        )
        assert (await pipe.next_message())["result"]["protocolVersion"] == "2025-11-25"
        await pipe.say(method="notifications/initialized")
        return pipe

    async def _show(self, context: Any, params: ElicitRequestParams) -> ElicitResult:
        assert isinstance(params, ElicitRequestURLParams)
        self.links.put_nowait(params.url)
        return ElicitResult(action="accept")


@dataclass(frozen=True, slots=True)
class Pipe:
    """A process whose stdin and stdout the test uses directly."""

    process: Process

    async def say(self, **message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        await self.process.stdin.drain()

    async def next_message(self) -> dict[str, Any]:
        """Return the next message. Fail if a line on stdout is not a JSON-RPC message."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            line = await self.process.stdout.readline()
        message: dict[str, Any] = json.loads(line)
        assert message["jsonrpc"] == "2.0"
        LEAKS.check_messages("failed tool over stdio", message)
        return message

    async def order(self) -> str:
        """Call the tool, and return the link that it asks the client to show."""
        await self.say(id=2, method="tools/call", params={"name": "order_lunch"})
        asked = await self.next_message()
        assert asked["method"] == "elicitation/create"
        await self.say(id=asked["id"], result={"action": "accept"})
        link: str = asked["params"]["url"]
        return link

    async def result(self) -> str:
        """Call the tool, and return its result. The call must ask nothing."""
        await self.say(id=2, method="tools/call", params={"name": "order_lunch"})
        text: str = (await self.next_message())["result"]["content"][0]["text"]
        return text

    def close(self, descriptor: int) -> None:
        """Close our end of one of the process's pipes."""
        transport: Any = self.process._transport  # type: ignore[attr-defined]
        transport.get_pipe_transport(descriptor).close()
