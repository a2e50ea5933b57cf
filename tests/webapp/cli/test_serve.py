"""`elicit serve`: it starts, prints its address, reports bad input in one sentence, and stops."""

import asyncio
import contextlib
import signal
import socket
import stat
from pathlib import Path

import httpx
import pytest
from mcp import Client
from mcp_types import (
    CallToolResult,
    ElicitRequestParams,
    ElicitRequestURLParams,
    ElicitResult,
)

from tests.support.cli import PROJECT, called, ended, run, serving
from tests.support.serving import bound, free_port
from tests.support.watched import METRICS_TOKEN, WATCHED, parsed, value
from webapp.demo.client import text_of
from webapp.demo.walker import walk

AUTHORS_TOOLS = """
from mcp.server.mcpserver import MCPServer
{imports}
mcp = MCPServer("author's tools")
number = 5
"""


def write_module(folder: Path, *, imports: str = "", name: str = "my_tools.py") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(AUTHORS_TOOLS.format(imports=imports))
    return folder


async def test_serve_prints_its_address_and_makes_its_files_private(tmp_path):
    async with serving(home=tmp_path) as server, httpx.AsyncClient() as browser:
        assert f"{server.url}/mcp" in server.output
        assert "Ctrl+C" in server.output
        home = await browser.get(server.url)
        assert home.status_code == 200
        assert "sign_guest_book" in home.text
        assert "server" not in home.headers
    folder = tmp_path / ".local/share/elicit-url"
    assert f"sqlite:///{folder / 'elicit.db'}" in server.output
    assert {path.name for path in folder.iterdir()} >= {"key", "elicit.db"}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in folder.iterdir())


async def test_stopped_server_prints_no_warnings(tmp_path):
    async with serving(home=tmp_path) as server:
        server.process.terminate()
        end = await ended(server.process)
    assert (end.status, end.err) == (0, "")


RULES = """
from flows.hooks import HookRefused, before

class Rules:
    @before("admit")
    def close(self, question):
        raise HookRefused(f"Closed: {question.kind}.")

rules = Rules()
"""
ASKS = """
from flows import elicit

@mcp.tool()
async def greet() -> str:
    return await elicit.form("Who are you?")
"""


async def test_each_worker_loads_the_plugins_of_the_command(tmp_path):
    tools = write_module(tmp_path) / "my_tools.py"
    tools.write_text(tools.read_text() + ASKS)
    (tmp_path / "my_rules.py").write_text(RULES)
    arguments = ("my_tools:mcp", "--plugin", "my_rules:rules", "--workers", "2")
    async with serving(*arguments, home=tmp_path) as server, Client(f"{server.url}/mcp") as client:
        for _ in range(4):
            assert "Closed: form." in text_of(await client.call_tool("greet", {}))


async def test_all_invalid_settings_are_named_at_once(tmp_path):
    extra = {
        "ELICIT_URL": "ftp://example.org",
        "ELICIT_SECRET": "short",
        "ELICIT_ORIGINS": "example.org/path",
        "ELICIT_PROXIES": "somewhere",
        "ELICIT_TEMPLATES": "/no/such/folder",
    }
    end = await called("serve", "--port", "0", "--host", "0.0.0.0", home=tmp_path, extra=extra)
    assert end.status == 2
    assert {line.split(":")[1].strip() for line in end.err.splitlines()} == {
        *extra,
        "ELICIT_EXPOSE",
    }
    assert "short" not in end.err.replace("short-", "")


async def test_unknown_store_scheme_is_refused_without_its_password(tmp_path):
    end = await called(
        "serve", "--port", "0", home=tmp_path, extra={"ELICIT_STORE": "mysql://u:p@db/x"}
    )
    assert end.status == 2
    assert end.err.startswith("elicit: ELICIT_STORE: there is no store type 'mysql'")
    assert "u:p" not in end.err


async def test_store_encrypted_with_another_secret_is_refused(tmp_path):
    async with serving(home=tmp_path, extra={"ELICIT_SECRET": "a" * 32}):
        pass
    end = await called("serve", "--port", "0", home=tmp_path, extra={"ELICIT_SECRET": "b" * 32})
    assert end.status == 2
    assert "was encrypted with another secret" in end.err
    assert "Traceback" not in end.err


async def test_rotated_secret_opens_the_existing_store(tmp_path):
    async with serving(home=tmp_path, extra={"ELICIT_SECRET": "a" * 32}):
        pass
    new_then_old = {"ELICIT_SECRET": "b" * 32 + "," + "a" * 32}
    async with (
        serving(home=tmp_path, extra=new_then_old) as server,
        httpx.AsyncClient() as browser,
    ):
        assert (await browser.get(f"{server.url}/health")).status_code == 200


async def test_port_in_use_is_named_in_the_error(tmp_path):
    with bound("127.0.0.1") as holder:
        holder.listen()
        port = holder.getsockname()[1]
        end = await called("serve", "--port", str(port), home=tmp_path)
    assert end.status == 1
    assert end.err == (
        f"elicit: Port {port} of 127.0.0.1 is already used by another program. "
        "Stop that program, or choose another port with --port.\n"
    )


async def test_address_of_another_machine_is_refused(tmp_path):
    end = await called(
        "serve", "--port", "0", "--host", "192.0.2.1", home=tmp_path,
        extra={
            "ELICIT_EXPOSE": "1",
            "ELICIT_URL": "https://example.org",
            "ELICIT_SECRET": "a" * 32,
        },
    )  # fmt: skip
    assert end.status == 1
    assert end.err.startswith("elicit: Port 0 of 192.0.2.1 cannot be used:")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere:mcp", "There is no module 'nowhere' in"),
        ("my_tools.py:mcp", "'my_tools.py:mcp' does not name a server"),
        ("./my_tools.py:mcp", "write module:attribute"),
        ("my_tools:", "write module:attribute"),
        ("my_tools:tools", "has no attribute 'tools'"),
        ("my_tools:number", "is a int, not an MCPServer"),
        # finding: XA19
        (
            "lacking:mcp",
            "/lacking.py:3: lacking imports 'surely_not_installed', which cannot be found.",
        ),
        ("broken:mcp", "broken:mcp could not be imported: ZeroDivisionError at {home}/broken.py:3"),
        ("unread:mcp", "unread:mcp could not be imported: SyntaxError at {home}/unread.py:3"),
        (
            "former:mcp",
            "/former.py:3: former imports 'mcp.server.fastmcp', which cannot be found. It",
        ),
        ("former:mcp", " is written for mcp 1. elicit-url needs mcp 2, and mcp 2."),
        (
            "former:mcp",
            "change the import to `from mcp.server.mcpserver import MCPServer`",
        ),
        ("former:mcp", "mcp says: This is mcp 2.x, where FastMCP was renamed to MCPServer"),
        ("renamed:mcp", "cannot import name 'FastMCP' from 'mcp.server'"),
        ("renamed:mcp", "). It is written for mcp 1. elicit-url needs mcp 2"),
        ("lost:mcp", "). Perhaps it is written for mcp 1. elicit-url needs mcp 2"),
    ],
)
async def test_server_that_cannot_be_imported_is_named_in_the_error(tmp_path, name, says):
    # finding: XA2, XA19
    write_module(tmp_path)
    for module, imports in {
        "lacking": "import surely_not_installed",
        "broken": "1 / 0",
        "unread": "def broken(:",
        "former": "from mcp.server.fastmcp import FastMCP",
        "renamed": "from mcp.server import FastMCP",
        "lost": "from mcp import McpError",
    }.items():
        write_module(tmp_path, imports=imports, name=f"{module}.py")
    with bound("127.0.0.1") as holder:
        holder.listen()
        used = str(holder.getsockname()[1])
        for port in ("0", used):  # errors in the module are reported before errors of the port
            end = await called("serve", name, "--port", port, home=tmp_path)
            assert end.status == 1
            assert says.format(home=tmp_path) in end.err
            assert ("Traceback" in end.err) == name.startswith(("broken", "unread"))


@pytest.mark.parametrize("more", [(), ("--reload",), ("--workers", "2")])
async def test_server_named_by_the_setting_is_served_without_an_argument(tmp_path, more):
    write_module(tmp_path)
    extra = {"ELICIT_SERVER": " my_tools:mcp"}
    async with serving(*more, home=tmp_path, extra=extra) as server:
        assert server.output.startswith("author's tools is served.")
        assert "\n  sandbox " not in server.output  # only the demo always runs a sandbox


@pytest.mark.parametrize("option", ["--replay", "--reload"])
async def test_option_for_one_process_is_refused_with_several_workers(tmp_path, option):
    write_module(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:  # checked before the port
        extra = {"ELICIT_PORT": str(taken.getsockname()[1])}
        words = ("serve", "my_tools:mcp", option, "--workers", "2")
        ended = await called(*words, home=tmp_path, extra=extra)
    assert (ended.status, f"{option} uses one process" in ended.err) == (2, True)


async def test_argument_takes_precedence_over_the_setting(tmp_path):
    write_module(tmp_path)
    extra = {"ELICIT_SERVER": "nowhere:mcp"}
    async with serving("my_tools:mcp", home=tmp_path, extra=extra) as server:
        assert server.output.startswith("author's tools is served.")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("nowhere:mcp", "There is no module 'nowhere' in"),
        ("my_tools.py", "'my_tools.py' does not name a server: write module:attribute, as in"),
        ("my_tools:tools", "my_tools ({home}/my_tools.py) has no attribute 'tools'."),
        ("broken:mcp", "broken:mcp could not be imported: ZeroDivisionError at {home}/broken.py:3"),
    ],
)
async def test_bad_value_of_the_setting_is_refused_with_the_name_of_the_setting(
    tmp_path, value, says
):
    write_module(tmp_path)
    write_module(tmp_path, imports="1 / 0", name="broken.py")
    with bound("127.0.0.1") as holder:
        holder.listen()
        for port in ("0", str(holder.getsockname()[1])):  # the setting is checked before the port
            extra = {"ELICIT_SERVER": value}
            end = await called("serve", "--port", port, home=tmp_path, extra=extra)
            assert end.status == 1
            assert f"elicit: ELICIT_SERVER: {says.format(home=tmp_path)}" in end.err


async def test_outdated_fastmcp_error_names_the_upgrade_command(tmp_path):
    # finding: XA3
    (tmp_path / "fastmcp").mkdir()
    text = "def __getattr__(name): raise ImportError('FastMCP server support is not installed.')"
    (tmp_path / "fastmcp" / "__init__.py").write_text(text)
    (tmp_path / "fastmcp-3.4.11.dist-info").mkdir()
    named = "Metadata-Version: 2.1\nName: fastmcp\nVersion: 3.4.11\n"
    (tmp_path / "fastmcp-3.4.11.dist-info" / "METADATA").write_text(named)
    (tmp_path / "tools.py").write_text("from fastmcp import FastMCP\n")
    extra = {"PYTHONPATH": f"{tmp_path}:{PROJECT}"}
    end = await run("serve", "tools:mcp", "--port", "0", home=tmp_path, extra=extra)
    assert end.status == 1
    assert end.err.endswith(
        "FastMCP 3.4.11 is installed; elicit-url needs 4: pip install 'elicit-url[fastmcp]'\n"
    )


async def test_port_used_by_another_elicit_server_names_the_server(tmp_path):
    # finding: XA19
    write_module(tmp_path)
    port = free_port()
    async with serving("my_tools:mcp", home=tmp_path, port=port):
        end = await called("serve", "--port", str(port), home=tmp_path)
    assert end.status == 1
    assert end.err == (
        f"elicit: Port {port} of 127.0.0.1 is already used by elicit, which serves "
        '"author\'s tools". Stop that program, or choose another port with --port.\n'
    )


@pytest.mark.parametrize("command", ["serve", "stdio"])
@pytest.mark.parametrize(
    ("kind", "made_in"), [("MCPServer", "mcp.server.mcpserver"), ("FastMCP", "fastmcp")]
)
async def test_server_without_a_name_is_refused(tmp_path, free_port, command, kind, made_in):
    (tmp_path / "tools.py").write_text(f"from {made_in} import {kind}\nmcp = {kind}()\n")
    # `stdio` replaces its process's stdin and stdout, so it runs in a separate process.
    runs = called if command == "serve" else run
    end = await runs(command, "tools:mcp", "--port", str(free_port), home=tmp_path)
    assert end.status == 1
    assert end.err.startswith("elicit: The server has no name of its own")
    assert f'{kind}(name="...")' in end.err
    assert "Traceback" not in end.err


async def test_authors_folders_named_like_our_packages_do_no_harm(tmp_path):
    for folder in ("flows", "webapp", "templates"):
        write_module(
            tmp_path / folder, imports="raise RuntimeError('not yours')", name="__init__.py"
        )
    write_module(tmp_path, imports="from flows import elicit")
    async with serving("my_tools:mcp", home=tmp_path) as server:
        assert server.output.startswith("author's tools is served.")


async def test_authors_package_hidden_by_our_package_is_explained(tmp_path):
    write_module(tmp_path / "webapp", name="models.py")
    write_module(tmp_path, imports="import webapp.models")
    end = await called("serve", "my_tools:mcp", "--port", "0", home=tmp_path)
    assert end.status == 1
    assert "my_tools imports 'webapp.models', which cannot be found." in end.err
    assert "hides your webapp, which has the same name" in end.err


async def test_authors_file_hidden_by_an_installed_package_is_explained(tmp_path):
    write_module(tmp_path, name="mcp.py")
    end = await called("serve", "mcp:server_of_mine", "--port", "0", home=tmp_path)
    assert end.status == 1
    assert "hides your mcp.py, which has the same name" in end.err


async def test_foreign_flows_package_before_our_package_is_refused(tmp_path):
    write_module(tmp_path / "flows", imports="raise RuntimeError('not yours')", name="__init__.py")
    end = await run(
        "serve", "--port", "0", home=tmp_path, extra={"PYTHONPATH": f"{tmp_path}:{PROJECT}"}
    )
    assert end.status == 2
    assert f"`import flows` finds {tmp_path / 'flows' / '__init__.py'}" in end.err
    assert "Traceback" not in end.err


@pytest.mark.parametrize(
    ("number", "revision"), [(signal.SIGTERM, "legacy"), (signal.SIGINT, "2026-07-28")]
)
async def test_signal_stops_serve_with_a_waiting_call_and_an_open_page(tmp_path, number, revision):
    # finding: R5
    links, results = asyncio.Queue[str](), list[CallToolResult]()

    async def show(context, params: ElicitRequestParams) -> ElicitResult:
        assert isinstance(params, ElicitRequestURLParams)
        links.put_nowait(params.url)
        if revision == "legacy":  # the answer would be another request
            await asyncio.Event().wait()
        return ElicitResult(action="accept")

    async def call(url: str) -> None:
        async with Client(f"{url}/mcp", mode=revision, elicitation_callback=show) as client:
            await client.list_tools()  # otherwise the client lists the tools after the result
            results.append(await client.call_tool("sign_guest_book", {}))

    async with serving(home=tmp_path, extra=WATCHED) as server, httpx.AsyncClient() as browser:
        held = asyncio.create_task(call(server.url))
        link = await links.get()
        async with browser.stream("GET", f"{link}/live") as page:
            lines = page.aiter_lines()
            assert await anext(lines) == "data: pending"
            # A request that arrives after the end of the server is lost.
            while await number_of_held_calls(browser, server.url) != 1:
                assert not held.done()
            server.process.send_signal(number)
            async with asyncio.timeout(300):
                end = await ended(server.process)
            with contextlib.suppress(httpx.RemoteProtocolError):
                # The stream ends without another event. A browser would reconnect.
                assert [line async for line in lines if line.startswith("data")] == []
        (raised,) = await asyncio.gather(held, return_exceptions=True)
    assert (end.status, end.err) == (0, "")
    # Closing the session may fail, because the server is gone.
    assert ["Still waiting" in text_of(result) for result in results] == [True], repr(raised)


async def number_of_held_calls(browser: httpx.AsyncClient, url: str) -> float | None:
    token = {"authorization": f"Bearer {METRICS_TOKEN}"}
    page = await browser.get(f"{url}/metrics", headers=token)
    return value(parsed(page.text), "elicit_calls_held")


@pytest.mark.parametrize("revision", ["legacy", "2026-07-28"])
@pytest.mark.parametrize("example", ["my_tools", "my_tools_fastmcp"])
async def test_examples_run_unchanged(tmp_path, example, revision):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    extra = {"ELICIT_URL": f"http://127.0.0.1:{port}"}
    steps = list[str]()
    async with (
        serving(
            f"{example}:mcp", home=tmp_path, port=port, cwd=PROJECT / "examples", extra=extra
        ) as server,
        httpx.AsyncClient() as browser,
        asyncio.TaskGroup() as group,
    ):

        async def show(context, params: ElicitRequestParams) -> ElicitResult:
            assert isinstance(params, ElicitRequestURLParams)
            group.create_task(walk(browser, params.url, answers={"dish": "soup"}, say=steps.append))
            return ElicitResult(action="accept")

        async with Client(f"{server.url}/mcp", mode=revision, elicitation_callback=show) as client:
            result = await client.call_tool("order_lunch", {})
    assert text_of(result) == "The person would like soup."
    assert steps[-1].endswith("Your order: accepted")
