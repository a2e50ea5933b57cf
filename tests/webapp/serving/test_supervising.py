"""`elicit serve --workers`: one socket, several processes, and no lost call."""

import asyncio
import os
import re
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from mcp import Client, MCPError
from mcp_types import ElicitRequestURLParams, ElicitResult

from tests.support.cli import Server, called, output_until, run, serving
from tests.support.processes import ended, error_of
from tests.support.programs import client_of
from webapp.demo.client import text_of
from webapp.demo.walker import walk

READER = "metrics-that-nobody-else-reads-here"
TOOLS = """
import os

from mcp.server.mcpserver import MCPServer
from starlette.responses import JSONResponse

from flows import Money, elicit
from flows.providers import github

mcp = MCPServer("shared")


@mcp.tool()
async def keep() -> str:
    return f"kept {len(await elicit.secret('The key'))} letters"


@mcp.tool()
async def list_repositories() -> list[str]:
    account = await elicit.oauth(github, scopes=["repo"])
    async with account.client() as api:
        return [each["full_name"] for each in (await api.get("/user/repos")).json()]


@mcp.tool()
async def buy() -> str:
    return f"paid {(await elicit.payment(Money('9.00', 'EUR'), 'a lamp')).id}"


@mcp.custom_route("/process", methods=["GET"])
async def process(request):
    return JSONResponse(os.getpid())


@mcp.custom_route("/die", methods=["GET"])
async def die(request):
    os._exit(3)
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "tools.py").write_text(TOOLS)
    return tmp_path


async def pids_of(server: Server, *, are: Callable[[set[int]], bool]) -> set[int]:
    """Request process ids from the server until the collected ids satisfy `are`. Return them."""
    found: set[int] = set()
    async with asyncio.timeout(300):
        while not are(found):
            # A new connection each time, which any process may accept.
            async with httpx.AsyncClient() as browser:
                with suppress(httpx.HTTPError):
                    answer = await browser.get(f"{server.url}/process")
                    # A process that shuts down answers with an error.
                    found.add(answer.raise_for_status().json())
            if len(found) > 2:
                found.clear()
    return found


def are_two(pids: set[int]) -> bool:
    return len(pids) == 2


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_every_kind_of_question_works_with_requests_to_any_worker(home):
    async with (
        serving("tools:mcp", "--workers", "2", "--sandbox", home=home) as server,
        httpx.AsyncClient() as browser,
    ):
        await pids_of(server, are=are_two)
        sandbox = (await browser.get(f"{server.url}/health")).json()["sandbox"]
        for revision in ("legacy", "2026-07-28"):
            for _ in range(3):
                async with client_of(server.url, revision) as (client, person):
                    person.enters.append(sandbox)
                    stored = text_of(await client.call_tool("keep", {}))
                    assert stored == "kept 4 letters"
                    repositories = await client.call_tool("list_repositories", {})
                    assert "octocat/hello-sandbox" in text_of(repositories)
                    assert text_of(await client.call_tool("buy", {})).startswith("paid")
        server.process.terminate()
        end = await ended(server.process)
    assert (end.status, end.err) == (0, "")


async def all_are_counted_as_one(server: Server) -> None:
    tries = 12
    for _ in range(tries):  # each over a new connection, which either process may accept
        async with httpx.AsyncClient() as provider:
            await provider.post(f"{server.url}/webhooks/stripe", content=b"{}")
    for _ in range(4):
        async with httpx.AsyncClient(headers={"authorization": f"Bearer {READER}"}) as reader:
            page = (await reader.get(f"{server.url}/metrics")).text
        counts = re.findall(r"^elicit_webhooks_total{.*} (\d+)", page, re.MULTILINE)
        assert sum(map(int, counts)) == tries, page


async def test_metrics_include_all_workers_and_call_continues_after_workers_die(home):
    links = asyncio.Queue[str]()

    async def show(_: object, params: Any) -> ElicitResult:
        assert isinstance(params, ElicitRequestURLParams)
        links.put_nowait(params.url)
        return ElicitResult(action="accept")

    def client_at(url: str) -> Client:
        return Client(f"{url}/mcp", mode="legacy", elicitation_callback=cast("Any", show))

    command = ("tools:mcp", "--workers", "2", "--sandbox")
    async with serving(*command, home=home, extra={"ELICIT_METRICS": READER}) as server:
        before = await pids_of(server, are=are_two)
        await all_are_counted_as_one(server)
        with suppress(MCPError, httpx.HTTPError, ExceptionGroup):
            async with client_at(server.url) as client, asyncio.timeout(300):
                call = asyncio.create_task(client.call_tool("keep", {}))
                first = await links.get()
                for pid in before:
                    os.kill(pid, signal.SIGKILL)
                await call
        after = await pids_of(server, are=are_two)
        assert not before & after
        async with client_at(server.url) as client, httpx.AsyncClient() as browser:
            again = asyncio.create_task(client.call_tool("keep", {}))
            assert (await links.get()).split("/e/")[0] == first.split("/e/")[0]
            await walk(browser, first, answers={}, say=lambda _: None)
            assert text_of(await again) == "kept 4 letters"
        assert error_of(server.process).count("was killed by signal 9; a new worker replaces") == 2


async def test_new_code_replaces_workers_one_by_one_and_broken_code_does_not(home):
    async with serving("tools:mcp", "--workers", "2", home=home) as server:
        before = await pids_of(server, are=are_two)
        (home / "tools.py").write_text("def broken(:")
        server.process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(300):
            while "the current workers continue" not in error_of(server.process):
                assert await pids_of(server, are=are_two) == before
        assert await pids_of(server, are=are_two) == before
        (home / "tools.py").write_text(TOOLS.replace("kept", "new code kept"))
        server.process.send_signal(signal.SIGHUP)
        replaced = asyncio.create_task(
            output_until("all workers have been replaced", server.process)
        )
        answers = set[str]()
        while not replaced.done():
            async with client_of(server.url, "2026-07-28") as (client, _):
                text = text_of(await client.call_tool("keep", {}))
                # A process that shuts down responds that the call has to be repeated.
                while "call this tool again" in text:
                    text = text_of(await client.call_tool("keep", {}))
                answers.add(text.removeprefix("new code "))
        assert answers == {"kept 4 letters"}
        assert not before & await pids_of(server, are=are_two)
        async with client_of(server.url, "legacy") as (client, _):
            assert text_of(await client.call_tool("keep", {})) == "new code kept 4 letters"


async def test_worker_which_dies_repeatedly_at_startup_ends_server(home):
    async with serving("tools:mcp", "--workers", "2", home=home) as server:
        while server.process.returncode is None:
            async with httpx.AsyncClient() as browser:
                with suppress(httpx.HTTPError):
                    await browser.get(f"{server.url}/die")
        end = await ended(server.process)
    assert end.status == 3
    assert "a worker died 5 times right after it started, so the server stops" in end.err


async def test_workers_exit_when_parent_is_killed(home):
    async with serving("tools:mcp", "--workers", "2", home=home) as server:
        workers = await pids_of(server, are=are_two)
        server.process.kill()
        await ended(server.process)
        async with asyncio.timeout(300):
            while not all(map(is_gone, workers)):  # noqa: ASYNC110 - they are not our children
                await asyncio.sleep(0)


async def test_startup_error_is_printed_once(home):
    (home / "tools.py").write_text("def broken(:")
    end = await run("serve", "tools:mcp", "--workers", "3", "--port", "0", home=home)
    assert end.status == 1
    assert end.err.count("could not be imported") == 1, end.err
    # parity: F13
    with_store = {"ELICIT_STORE": "memory:"}
    end = await called("serve", "--workers", "2", "--port", "0", home=home, extra=with_store)
    assert end.status == 2
    assert end.err.startswith("elicit: ELICIT_STORE: with --workers, memory: cannot be shared")
