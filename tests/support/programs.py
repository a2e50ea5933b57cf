"""An author's own program that serves tools, with a client and a person for it."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, TextIO, cast

import httpx
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import ElicitRequestParams, ElicitRequestURLParams, ElicitResult

from tests.support import processes
from tests.support.cli import PROJECT, Server, environment_of, until_stopped
from tests.support.leaks import Written
from tests.support.processes import error_output
from webapp.demo.walker import walk

FASTMCP_RUN = ("-P", "-m", "fastmcp.cli", "run")


def environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment in which FastMCP checks for no updates and shows no banner."""
    quiet = {"FASTMCP_CHECK_FOR_UPDATES": "off", "FASTMCP_SHOW_SERVER_BANNER": "false"}
    return environment_of(home, {**quiet, "PYTHONPATH": f"{PROJECT}", **(extra or {})})


@contextlib.asynccontextmanager
async def running(
    *arguments: str,
    home: Path,
    cwd: Path | None = None,
    extra: Mapping[str, str] | None = None,
) -> AsyncIterator[Server]:
    """Run the program over HTTP, and wait until it has printed its address."""
    process = await processes.start(
        sys.executable,
        *arguments,
        name="an author's program",
        cwd=cwd or home,
        env=environment(home, extra),
    )
    async with until_stopped(process, name="an author's program") as program:
        yield program


@contextlib.asynccontextmanager
async def started_by_client(
    *arguments: str, revision: str, home: Path, extra: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[Client, "PersonAtLinks", Written]]:
    """Run the program on stdin and stdout, with the client that started it."""
    parameters = StdioServerParameters(
        command=sys.executable, args=[*arguments], env=environment(home, extra), cwd=home
    )
    person = PersonAtLinks()
    with error_output("an author's program") as errors:
        async with (
            Client(
                stdio_client(parameters, errlog=cast("TextIO", errors)),
                mode=revision,
                elicitation_callback=cast("Any", person.show),
            ) as client,
            asyncio.TaskGroup() as person.steps,  # the last page loads before the client ends
        ):
            yield client, person, errors


def elicit_stdio(server: str, *arguments: str) -> tuple[str, ...]:
    return ("-P", "-m", "elicit_url", "stdio", server, *arguments)


@contextlib.asynccontextmanager
async def client_of(url: str, revision: str) -> AsyncIterator[tuple[Client, "PersonAtLinks"]]:
    """Connect a client over HTTP, and a person who opens the links that it shows."""
    person = PersonAtLinks()
    async with (
        Client(
            f"{url}/mcp", mode=revision, elicitation_callback=cast("Any", person.show)
        ) as client,
        asyncio.TaskGroup() as person.steps,
    ):
        yield client, person


class PersonAtLinks:
    """A person who opens each link and completes its pages, typing `demo` into fields."""

    def __init__(self) -> None:
        self.steps = cast("asyncio.TaskGroup", None)
        self.links: list[str] = []
        self.enters: list[str] = []  # origins that are allowed in addition to the link's own
        self._one_at_a_time = asyncio.Lock()

    async def show(self, _: Any, params: ElicitRequestParams) -> ElicitResult:
        assert isinstance(params, ElicitRequestURLParams)
        self.links.append(params.url)
        self.steps.create_task(self._open(params.url))
        return ElicitResult(action="accept")

    async def _open(self, link: str) -> None:
        # The server can close an idle connection just when the browser uses it again.
        no_keep_alive = httpx.Limits(max_keepalive_connections=0)
        # A repeated call shows the same question again. The person finishes one page before opening
        # the next: a second walk at the same time could submit a form that is no longer open.
        async with self._one_at_a_time, httpx.AsyncClient(limits=no_keep_alive) as browser:
            await walk(browser, link, answers={}, also=self.enters, say=lambda _: None)
