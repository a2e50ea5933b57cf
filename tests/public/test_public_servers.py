"""Tests in which each public server asks a person, on both revisions."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TextIO, cast

import httpx
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import ElicitRequestParams, ElicitRequestURLParams, ElicitResult

from tests.public.servers import DUCKDUCKGO, GIT, LINES_AT_MOST, MOTHERDUCK, environment
from tests.support import processes
from tests.support.cli import environment_of, output_until, serving
from tests.support.mcp_server import LEGACY, MODERN, URL, _Declaring, text_of
from tests.support.processes import ended, error_output
from webapp.demo.walker import walk

REVISIONS = (LEGACY, MODERN)


class Person:
    """A person who opens the links that the client shows, and does what the pages ask for."""

    def __init__(self, *origins: str) -> None:
        self.origins = origins
        self.did: list[str] = []
        self._walks: set[asyncio.Task[None]] = set()

    async def show(self, context: Any, params: ElicitRequestParams) -> ElicitResult:
        assert isinstance(params, ElicitRequestURLParams)
        self._walks.add(asyncio.create_task(self._walk(params.url)))
        return ElicitResult(action="accept")

    async def _walk(self, link: str) -> None:
        async with httpx.AsyncClient() as browser:
            await walk(browser, link, answers={}, also=self.origins, say=self.did.append)


def address_in(output: str, line: str) -> str:
    """Return the word after `line`, in the line of the startup output that starts with it."""
    return next(words[1] for each in output.splitlines() if (words := each.split())[:1] == [line])


@pytest.mark.parametrize("server", [DUCKDUCKGO, MOTHERDUCK, GIT], ids=lambda s: s.package)
def test_copied_server_differs_only_by_three_added_lines(server: Any, tmp_path: Path) -> None:
    folder = server.copied(tmp_path)
    assert len(server.added) <= LINES_AT_MOST
    for file in {each.file for each in server.added}:
        lines = (folder / server.package / file).read_text("utf-8").splitlines()
        for each in server.added:
            (found,) = (n for n, line in enumerate(lines) if line.strip() == each.line)
            del lines[found]
        published = (server.published() / file).read_text("utf-8").splitlines()
        assert lines == published


@pytest.mark.parametrize("revision", REVISIONS)
async def test_search_server_asks_for_an_account(revision: str, tmp_path: Path) -> None:
    folder = DUCKDUCKGO.copied(tmp_path)
    page = await asyncio.start_server(_answer_with_a_page, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{page.sockets[0].getsockname()[1]}/"
    more = {**environment(folder), "DDG_ALLOW_PRIVATE_URLS": "1"}
    served = serving("duckduckgo_mcp_server.server:mcp", "--sandbox", home=tmp_path, extra=more)
    async with page, served as at:
        person = Person(address_in(at.output, "sandbox"))
        async with Client(
            f"{at.url}/mcp", mode=revision, elicitation_callback=person.show
        ) as client:
            first = await client.call_tool("fetch_content", {"url": address})
            assert "The page that was asked for." in text_of(first)
            assert any("/callback/github" in each for each in person.did)
            done = len(person.did)
            again = await client.call_tool("fetch_content", {"url": address, "max_length": 9})
            assert "The page" in text_of(again)
            assert len(person.did) == done  # the account is stored


@pytest.mark.parametrize("revision", REVISIONS)
async def test_database_server_takes_a_payment(revision: str, tmp_path: Path) -> None:
    folder = MOTHERDUCK.copied(tmp_path)
    async with by_its_own_command(
        *("-c", "from mcp_server_motherduck import main; main()"),
        *("--transport", "http", "--port", "0"),
        *("--db-path", ":memory:", "--read-write"),
        folder=folder,
    ) as output:
        person = Person(address_in(output, "sandbox"))
        url = address_in(output, "MCP")
        async with Client(url, mode=revision, elicitation_callback=person.show) as client:
            looked = await client.call_tool("list_tables", {})
            assert '"success": true' in text_of(looked)
            assert any("/checkout" in each or "/pay" in each for each in person.did), person.did


@pytest.mark.parametrize("revision", REVISIONS)
async def test_git_server_waits_for_approval(revision: str, tmp_path: Path, free_port: int) -> None:
    folder, work = GIT.copied(tmp_path), tmp_path / "work"
    _make_repository(work)
    person = Person()
    more = {**environment(folder), "ELICIT_URL": f"http://127.0.0.1:{free_port}"}
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-m", "mcp_server_git", "--repository", str(work)],
        env=environment_of(tmp_path, more),
        cwd=tmp_path,
    )
    with error_output("mcp_server_git") as errors:
        started = stdio_client(parameters, errlog=cast("TextIO", errors))
        client = _Declaring(started, mode=revision, elicitation_callback=person.show)
        client.declares = URL  # otherwise the client itself would show the approval
        async with client:
            assert _staged(work) == ["a.txt"]
            reset = await client.call_tool("git_reset", {"repo_path": str(work)})
            assert not reset.is_error, text_of(reset)
            assert _staged(work) == []
            assert person.did


@contextlib.asynccontextmanager
async def by_its_own_command(*arguments: str, folder: Path) -> AsyncIterator[str]:
    """Start the server with its author's command, and yield its output when it is ready."""
    process = await processes.start(
        *(sys.executable, "-P", *arguments),
        name="a public server",
        cwd=folder,
        env=environment_of(folder, {**environment(folder), "ELICIT_SANDBOX": "1"}),
    )
    try:
        yield await output_until("stop", process)
    finally:
        if process.returncode is None:
            process.terminate()
        await ended(process)


async def _answer_with_a_page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    page = b"<html><body><p>The page that was asked for.</p></body></html>"
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {len(page)}\r\n"
    writer.write(f"{head}connection: close\r\n\r\n".encode() + page)
    await writer.drain()
    writer.close()


def _git(work: Path, *arguments: str) -> str:
    command = ("git", "-C", str(work), "-c", "user.name=a", "-c", "user.email=a@localhost")
    return subprocess.run([*command, *arguments], check=True, capture_output=True, text=True).stdout


def _make_repository(work: Path) -> None:
    work.mkdir()
    _git(work, "init", "--quiet")
    _git(work, "commit", "--quiet", "--allow-empty", "--message", "begin")
    (work / "a.txt").write_text("a")
    _git(work, "add", "a.txt")


def _staged(work: Path) -> list[str]:
    return _git(work, "diff", "--cached", "--name-only").split()
