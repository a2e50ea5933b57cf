"""`elicit stdio`: MCP on stdin and stdout, and pages on a port that several processes share."""

import asyncio
import contextlib
import json
import os
import signal
import socket
from pathlib import Path

import httpx
import pytest
from mcp import Client
from mcp_types import CallToolResult

from tests.support.cli import called, run
from tests.support.desktop import PATIENCE_SECONDS, Desktop
from tests.support.processes import ended
from tests.support.serving import serving
from webapp.demo.client import text_of

SOUP = "The person would like soup."
TOOLS = """
import contextlib, os, subprocess, sys
import {example} as example

print("a line of the author's, at import")
mcp = example.mcp

@mcp.tool()
def process() -> int:
    print("a line of a tool's")
    subprocess.run([sys.executable, "-c", "print('a line of a program'); input()"])
    return os.getpid()
"""
MORE = {"name": "order_lunch", "arguments": {"table": "another"}}
REVISIONS = pytest.mark.parametrize("revision", ["legacy", "2026-07-28"])


@pytest.fixture
def desktop(tmp_path: Path, free_port: int, request: pytest.FixtureRequest) -> Desktop:
    example = getattr(request, "param", "my_tools")
    (tmp_path / "tools.py").write_text(TOOLS.format(example=example))
    return Desktop(home=tmp_path, port=free_port)


def link_in(text: str) -> str:
    return next(word for word in text.split() if "/e/" in word)


def calling(client: Client, **arguments: str) -> asyncio.Task[CallToolResult]:
    return asyncio.create_task(client.call_tool("order_lunch", arguments))


async def process_of(client: Client) -> int:
    return int(text_of(await client.call_tool("process", {})))


async def served(url: str) -> None:
    """Wait until a process serves the pages."""
    async with asyncio.timeout(PATIENCE_SECONDS), httpx.AsyncClient() as browser:
        while True:
            with contextlib.suppress(httpx.TransportError):
                assert (await browser.get(f"{url}/health")).status_code == 200
                return


@REVISIONS
@pytest.mark.parametrize("desktop", ["my_tools", "my_tools_fastmcp"], indirect=True)
async def test_stdio_tool_awaits_a_person_despite_printed_output(desktop, revision):
    # parity: L11
    async with desktop.client(revision) as client:
        assert await process_of(client) != os.getpid()
        call = calling(client)
        await desktop.open(await desktop.link())
        assert text_of(await call) == SOUP
    errors = desktop.errors[0].text()
    for printer in ("the author's, at import", "a tool's", "a program"):
        assert f"a line of {printer}" in errors
    assert "served by this process" in errors


@REVISIONS
async def test_stdio_client_without_links_gets_the_link_in_the_result(desktop, revision):
    async with desktop.client(revision, shows_links=False) as client:
        first = text_of(await calling(client))
        await desktop.open(link_in(first))
        assert text_of(await calling(client)) == SOUP


async def test_waiting_process_takes_the_port_when_its_owner_is_killed(desktop):
    async with desktop.client() as owner:
        pid = await process_of(owner)
        async with desktop.client() as client:
            call = calling(client)
            link = await desktop.link()
            os.kill(pid, signal.SIGKILL)
            await served(desktop.url)
            await desktop.open(link)
            assert text_of(await call) == SOUP


async def test_link_of_a_process_opens_at_another_process(desktop):
    async with desktop.client() as owner:
        async with desktop.client() as other:
            call = calling(other)
            await desktop.open(await desktop.link())
            assert text_of(await call) == SOUP
            # Use other arguments, because an identical call could return the first call's result.
            call = calling(owner, table="another")
            link = await desktop.link()
            os.kill(await process_of(other), signal.SIGKILL)
        await desktop.open(link)
        assert text_of(await call) == SOUP


async def test_no_link_is_sent_while_another_program_has_the_port(desktop):
    # finding: S18
    async def app(scope, receive, send):
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b'{"proof": "none"}'})

    owner = await desktop.start()
    other = await desktop.start()
    link = await other.order()
    other.process.send_signal(signal.SIGSTOP)  # the other program gets the port first
    owner.process.kill()
    await ended(owner.process)
    async with serving(app, port=desktop.port):
        other.process.send_signal(signal.SIGCONT)
        for number in range(20):
            await other.say(id=f"again {number}", method="tools/call", params=MORE)
        for _ in range(20):
            result = await other.next_message()
            assert "ELICITATION_PAGES_TAKEN" in str(result)
            assert "/e/" not in str(result)
    await served(desktop.url)
    await desktop.open(link)
    other.close(0)
    await ended(other.process)


async def test_stdio_with_a_port_in_use_ends_with_an_error(desktop):
    async def app(scope, receive, send):
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b"no"})

    async with serving(app, port=desktop.port):
        end = await run(*desktop.arguments, home=desktop.home, extra=desktop.extra)
    assert (end.status, end.out) == (1, "")
    assert end.err.endswith(
        f"elicit: Port {desktop.port} of 127.0.0.1 is already used by another program. "
        "Stop that program, or choose another port with --port.\n"
    )


async def test_error_names_the_server_that_uses_the_port_with_another_store(desktop):
    # finding: XA19
    first = await desktop.start()
    elsewhere = {**desktop.extra, "ELICIT_STORE": f"sqlite:///{desktop.home / 'other.db'}"}
    end = await run(*desktop.arguments, home=desktop.home, extra=elsewhere)
    assert (end.status, end.out) == (1, "")
    assert "is already used by elicit, which serves 'lunch'" in end.err
    first.close(0)
    assert (await ended(first.process)).status == 0


@pytest.mark.parametrize(
    ("arguments", "extra", "says", "runs"),
    [
        (("--port", "0"), {}, "a different port for each process", called),
        (("--plugin", "rules.py"), {}, "as in my_rules:audit", called),
        (("--host", "0.0.0.0"), {}, "unrecognized arguments: --host", called),
        (
            (),
            {"ELICIT_URL": "https://example.org", "ELICIT_SECRET": "s" * 32},
            "ELICIT_URL: ",
            called,
        ),
        ((), {"ELICIT_SECRET": "short"}, "ELICIT_SECRET: ", called),
        # From here on the command replaces stdin and stdout, so it runs in a process of its own.
        ((), {"ELICIT_STORE": "mysql://"}, "ELICIT_STORE: ", run),
    ],
)
async def test_invalid_stdio_arguments_are_refused(desktop, arguments, extra, says, runs):
    end = await runs(
        *desktop.arguments, *arguments, home=desktop.home, extra={**desktop.extra, **extra}
    )
    assert (end.status, end.out) == (2, "")
    assert says in end.err
    assert "Traceback" not in end.err


async def test_missing_stdio_server_is_refused(tmp_path):
    end = await run("stdio", "nowhere:mcp", home=tmp_path)
    assert (end.status, end.out) == (1, "")
    assert "There is no module 'nowhere' in" in end.err


async def test_missing_stdio_plugin_is_refused(desktop):
    plugin = ("--plugin", "nowhere:rules")
    end = await run(*desktop.arguments, *plugin, home=desktop.home, extra=desktop.extra)
    assert (end.status, end.out) == (1, "")
    assert "The plugin nowhere:rules: There is no module 'nowhere' in" in end.err


@pytest.mark.parametrize("number", [None, signal.SIGTERM, signal.SIGINT])
async def test_stdio_ends_with_its_client_or_a_signal_while_a_call_waits(desktop, number):
    pipe = await desktop.start()
    link = await pipe.order()
    async with httpx.AsyncClient() as browser, browser.stream("GET", f"{link}/live") as page:
        assert await anext(page.aiter_lines()) == "data: pending"
        if number is None:
            pipe.close(0)
        else:
            pipe.process.send_signal(number)
        async with asyncio.timeout(300):
            end = await ended(pipe.process)
    assert end.status == 0
    # finding: R5
    (answer,) = [json.loads(line) for line in end.out.splitlines()]
    assert answer["id"] == 2
    if number is not None:
        assert "Still waiting" in answer["result"]["content"][0]["text"]
    assert "Traceback" not in end.err
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", desktop.port)).close()


async def test_invalid_input_from_the_client_does_not_end_stdio(desktop):
    pipe = await desktop.start()
    assert pipe.process.stdin is not None
    pipe.process.stdin.write(b"\n\xff\xfe\n{\n[]\n" + b"x" * 200_000 + b"\n")
    await pipe.say(id=3, method="ping")
    assert (await pipe.next_message())["id"] == 3
    pipe.close(0)
    assert (await ended(pipe.process)).status == 0


@pytest.mark.parametrize("shows_links", [True, False])
async def test_result_lost_in_a_broken_pipe_is_returned_to_the_same_call(desktop, shows_links):
    async with desktop.client() as other:
        await process_of(other)
        pipe = await desktop.start(shows_links=shows_links)
        if shows_links:
            link = await pipe.order()
        else:
            link = link_in(await pipe.result())
            await pipe.say(id=2, method="tools/call", params={"name": "order_lunch"})
        pipe.close(1)
        await desktop.open(link)
        assert (await ended(pipe.process)).status == 0
        again = await desktop.start()
        assert await again.result() == SOUP
        again.close(0)
        await ended(again.process)


async def test_delivered_result_is_not_returned_to_the_next_call(desktop):
    pipe = await desktop.start()
    link = await pipe.order()
    await desktop.open(link)
    assert (await pipe.next_message())["method"] == "notifications/elicitation/complete"
    assert (await pipe.next_message())["result"]["content"][0]["text"] == SOUP
    assert await pipe.order() != link
    pipe.close(0)
    await ended(pipe.process)


async def test_authors_lifespan_is_entered_once(desktop):
    (desktop.home / "tools.py").write_text(
        "import contextlib\n"
        "from mcp.server.mcpserver import Context, MCPServer\n"
        "@contextlib.asynccontextmanager\n"
        "async def lifespan(server):\n"
        "    print('lifespan entered')\n"
        "    yield 'a pool'\n"
        "    print('lifespan left')\n"
        "mcp = MCPServer('x', lifespan=lifespan)\n"
        "@mcp.tool()\n"
        "def pool(ctx: Context) -> str:\n"
        "    return ctx.request_context.lifespan_context\n"
    )
    async with desktop.client() as client:
        assert text_of(await client.call_tool("pool", {})) == "a pool"
    errors = desktop.errors[0].text()
    assert (errors.count("lifespan entered"), errors.count("lifespan left")) == (1, 1)
