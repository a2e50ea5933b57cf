"""Servers started by their own `run()` or by `fastmcp run`, after one call of `add_pages`."""

import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import httpx
import pytest
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from starlette.applications import Starlette

from tests.support import processes
from tests.support.cli import PROJECT, output_until, serving
from tests.support.processes import Ended, ended
from tests.support.programs import (
    FASTMCP_RUN,
    client_of,
    environment,
    running,
    started_by_client,
)
from tests.support.serving import bound
from webapp import add_pages
from webapp.demo.client import text_of

SAYS = "The service answers to a key of 4 characters."
SDK, FASTMCP = (
    str(PROJECT / "examples/runs_itself.py"),
    str(PROJECT / "examples/fastmcp_runs_it.py"),
)


def over_http(library: str, port: int) -> tuple[str, ...]:
    if library == "mcp":
        return ("-P", SDK, str(port))
    return (*FASTMCP_RUN, FASTMCP, "--transport", "http", "--port", str(port))


def over_stdio(library: str) -> tuple[str, ...]:
    return ("-P", SDK) if library == "mcp" else (*FASTMCP_RUN, FASTMCP)


async def run(*arguments: str, home: Path, **extra: str) -> Ended:
    process = await processes.start(
        sys.executable, *arguments, name="program", cwd=home, env=environment(home, extra)
    )
    return await ended(process)


@pytest.mark.parametrize("library", ["mcp", "fastmcp"])
async def test_tool_awaits_person_on_own_port_over_http(tmp_path, free_port, library):
    async with running(*over_http(library, free_port), home=tmp_path) as program:
        assert program.url == f"http://127.0.0.1:{free_port}"
        for revision in ("legacy", "2026-07-28"):
            async with client_of(program.url, revision) as (client, person):
                assert text_of(await client.call_tool("use_key", {})) == SAYS
                assert [link.startswith(f"{program.url}/e/") for link in person.links] == [True]
        async with httpx.AsyncClient() as browser:
            assert "use_key" in (await browser.get(program.url)).text
            evil = await browser.get(program.url, headers={"host": "evil.example"})
            assert evil.status_code == 421
        program.process.send_signal(signal.SIGINT)
        assert (await ended(program.process)).status == 0


@pytest.mark.parametrize("revision", ["legacy", "2026-07-28"])
@pytest.mark.parametrize("library", ["mcp", "fastmcp"])
async def test_pages_are_served_on_local_port_over_stdio(tmp_path, free_port, library, revision):
    url = f"http://127.0.0.1:{free_port}"
    async with started_by_client(
        *over_stdio(library), revision=revision, home=tmp_path, extra={"ELICIT_URL": url}
    ) as (client, person, errors):
        assert text_of(await client.call_tool("use_key", {})) == SAYS
        assert person.links[0].startswith(f"{url}/e/")
    assert f"The pages at {url} are served by this process." in errors.text()


async def test_printed_text_stays_out_of_stdio_protocol(tmp_path, free_port):
    (tmp_path / "prints.py").write_text(
        "import os\nfrom mcp.server.mcpserver import MCPServer\nfrom webapp import add_pages\n"
        "mcp = MCPServer('prints')\nadd_pages(mcp)\n"
        "@mcp.tool()\ndef say() -> str:\n"
        "    print('a line of a tool'); os.system('echo a line of a program'); return 'said'\n"
        "mcp.run()\nprint('afterwards')\n"
    )
    async with started_by_client(
        *("-P", "prints.py"),
        revision="legacy",
        home=tmp_path,
        extra={"ELICIT_URL": f"http://127.0.0.1:{free_port}"},
    ) as (client, _, errors):
        assert text_of(await client.call_tool("say", {})) == "said"
    assert {"a line of a tool", "a line of a program"} <= set(errors.text().splitlines())
    assert "afterwards" not in errors.text()


async def test_store_of_own_run_can_be_used_by_elicit_serve_afterwards(tmp_path, free_port):
    async with running(*over_http("mcp", free_port), home=tmp_path):
        pass
    async with serving("runs_itself:mcp", home=tmp_path, cwd=PROJECT / "examples") as server:
        assert "runs itself is served." in server.output


CANNOT_BE: tuple[tuple[str, dict[str, str], dict[str, str], str], ...] = (
    ("sse", {}, {}, "cannot be served over the transport sse"),
    ("streamable-http", {"streamable_http_path": "/x"}, {}, "always serves MCP at /mcp"),
    ("streamable-http", {"event_store": "mine"}, {}, "given event_store="),
    ("streamable-http", {"host": "0.0.0.0"}, {}, "ELICIT_EXPOSE: "),
    ("streamable-http", {}, {"ELICIT_SECRET": "short"}, "ELICIT_SECRET: "),
    ("stdio", {}, {"ELICIT_STORE": "mysql://"}, "ELICIT_STORE: "),
    (
        "stdio",
        {},
        {"ELICIT_URL": "https://example.org", "ELICIT_SECRET": "s" * 32},
        "ELICIT_URL: ",
    ),
)


async def test_unsupported_configuration_ends_run_with_reason(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import os, sys, traceback\n"
        "from mcp.server.mcpserver import MCPServer\nfrom webapp import add_pages\n"
        f"for transport, options, extra, _ in {CANNOT_BE!r}:\n"
        "    mcp = MCPServer('mine')\n    add_pages(mcp)\n    os.environ.update(extra)\n"
        "    try:\n        mcp.run(transport=transport, **options)\n"
        "    except Exception as error:\n"
        "        traceback.print_exception(error)\n"
        "    for name in extra:\n        del os.environ[name]\n"
        "mcp.run(transport='sse')\n"
    )
    end = await run("-P", "mine.py", home=tmp_path)
    assert (end.status, end.out) == (1, "")
    reasons = [each.partition("Traceback")[0] for each in end.err.split("CommandRefused: ")[1:]]
    for (*_, says), sentence in zip((*CANNOT_BE, CANNOT_BE[0]), reasons, strict=True):
        assert says in sentence


async def test_port_in_use_error_names_setting(tmp_path):
    with bound("127.0.0.1") as holder:
        holder.listen()
        port = holder.getsockname()[1]
        end = await run("-P", SDK, str(port), home=tmp_path)
    assert f"Port {port} of 127.0.0.1 is already used by another program" in end.err
    assert end.err.rstrip().endswith("choose another port with port= of run().")


def test_unsupported_server_error_names_alternative():
    with pytest.raises(TypeError, match="elicit stdio"):
        add_pages(Server("low"))
    with pytest.raises(TypeError, match=r"webapp\.create_app"):
        add_pages(Starlette())
    with pytest.raises(ValueError, match="no name of its own"):
        add_pages(MCPServer())


async def test_server_can_run_next_to_other_tasks_of_author(tmp_path, free_port):
    (tmp_path / "companion.py").write_text(
        "import asyncio\nfrom mcp.server.mcpserver import MCPServer\nfrom webapp import add_pages\n"
        "mcp = MCPServer('companion')\nadd_pages(mcp)\n"
        "async def main() -> None:\n"
        f"    serving = asyncio.create_task(mcp.run_streamable_http_async(port={free_port}))\n"
        "    await asyncio.to_thread(input)\n"
        "    serving.cancel()\n"
        "    await asyncio.gather(serving, return_exceptions=True)\n"
        "    print('it went on')\n"
        "asyncio.run(main())\n"
    )
    process = await processes.start(
        *(sys.executable, "-P", "companion.py"),
        name="program",
        stdin=PIPE,
        cwd=tmp_path,
        env=environment(tmp_path),
    )
    await output_until("stop", process)
    assert process.stdin is not None
    process.stdin.write(b"enough\n")
    end = await ended(process)
    assert (end.status, end.out, end.err) == (0, "it went on\n", "")
