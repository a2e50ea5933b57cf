"""`elicit serve --reload`: a change is served at once on the same socket, and no call is lost."""

import asyncio
import os
import signal
from asyncio import TaskGroup
from typing import Any, cast

import httpx
from mcp import Client
from mcp_types import ElicitRequestParams, ElicitRequestURLParams, ElicitResult

from tests.support.cli import called, output_until, serving, start
from tests.support.processes import ended, error_of
from webapp.demo.client import text_of
from webapp.demo.walker import walk
from webapp.serving.reloading import files_in

TOOLS = """
from mcp.server.mcpserver import MCPServer
from flows import elicit

mcp = MCPServer("changing")

@mcp.tool()
async def keep() -> str:
    key = await elicit.secret("The key")
    return "{answer}"
"""


async def test_call_waiting_while_file_changes_continues_in_new_code(tmp_path):
    tools = tmp_path / "tools.py"
    tools.write_text(TOOLS.format(answer="old code"))
    links = asyncio.Queue[str]()

    async def show(_: object, params: ElicitRequestParams) -> ElicitResult:
        assert isinstance(params, ElicitRequestURLParams)
        links.put_nowait(params.url)
        return ElicitResult(action="accept")

    async with serving("tools:mcp", "--reload", home=tmp_path) as server:
        client = Client(
            f"{server.url}/mcp", mode="2026-07-28", elicitation_callback=cast("Any", show)
        )
        async with client, TaskGroup() as group, httpx.AsyncClient() as browser:
            held = group.create_task(client.call_tool("keep", {}))
            first = await links.get()
            tools.write_text(TOOLS.format(answer="new code"))
            assert "tools.py changed: the server restarts." in await output_until(
                "stop", server.process
            )
            assert "Still waiting" in text_of(await held)
            again = group.create_task(client.call_tool("keep", {}))
            assert (await links.get()).split("/e/")[0] == first.split("/e/")[0]
            await walk(browser, first, answers={}, say=lambda _: None)
            assert text_of(await again) == "new code"


async def test_server_with_syntax_error_waits_for_file_change(tmp_path):
    tools = tmp_path / "tools.py"
    tools.write_text("def broken(:")
    process = await start("serve", "tools:mcp", "--reload", "--port", "0", home=tmp_path)
    await output_until("server restarts when a file changes", process)
    assert "tools:mcp could not be imported" in error_of(process)
    tools.write_text(TOOLS.format(answer="mended"))
    assert "changing is served." in await output_until("stop", process)
    process.send_signal(signal.SIGINT)
    assert (await ended(process)).status == 0


async def test_error_which_no_file_change_can_fix_ends_reloading_server(tmp_path):
    end = await called(
        *("serve", "--reload", "--port", "0"), home=tmp_path, extra={"ELICIT_STORE": "memory:"}
    )
    assert end.status == 2
    assert end.err.startswith("elicit: ELICIT_STORE: with --reload, memory: loses its data")


def test_files_of_author_are_watched_and_others_ignored(tmp_path):
    mine = {"a.py", "pages/b.html", "elicit.toml"}
    others = {"notes.txt", ".git/c.py", "venv/lib/d.py", "node_modules/e.py"}
    for name in mine | others:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "venv/pyvenv.cfg").touch()
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere.py")
    before = files_in(tmp_path)
    assert set(before) == mine
    os.utime(tmp_path / "a.py", ns=(1, 1))
    assert {name for name, _ in files_in(tmp_path).items() ^ before.items()} == {"a.py"}
