"""`elicit demo`: a client that a person can watch, and a walk-through without a person."""

import asyncio
import contextlib
import io
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.cli import called, ended, output_until, serving, start, waiting_demo
from tests.support.serving import bound, free_port
from tests.support.serving import serving as serving_app
from webapp.demo.client import ANSWERS, EXPECTED, MAIN_TOOLS
from webapp.demo.walker import DemoWaiting, Page, WalkFailed, walk

TOOLS = tuple(EXPECTED)
SHOP = """
from flows import elicit
from mcp.server.mcpserver import MCPServer

mcp = MCPServer("Shop")


@mcp.tool()
async def close_shop() -> str:
    return f"closed: {await elicit.confirm('Close it for today?')}"
"""

OWN = """
from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult, TextContent, ToolAnnotations

mcp = MCPServer("Own")


@mcp.tool()
async def list_my_repositories() -> str:
    return "none at all"


@mcp.tool()
async def merge(repo: str, number: int, labels: list[str] | None = None) -> str:
    return f"{repo}#{number + 1} {labels}"


@mcp.tool(annotations=ToolAnnotations(destructive_hint=True))
async def wipe() -> str:
    return "wiped"


@mcp.tool()
async def release() -> CallToolResult:
    return CallToolResult(
        content=[TextContent(type="text", text="Waiting for release.")],
        is_error=True,
        _meta={"elicitationPending": {"elicitId": "el_1"}},
    )
"""


@contextlib.asynccontextmanager
async def own_server(home, text=OWN):
    (home / "own.py").write_text(text)
    async with serving("own:mcp", home=home) as server:
        yield server


async def test_demo_walk_succeeds_on_both_revisions_from_any_folder(tmp_path):
    async with serving(home=tmp_path) as server:
        end = await called(
            "demo", "--no-browser", "--url", server.url, home=tmp_path, cwd=tmp_path.root
        )
    assert (end.status, end.err) == (0, "")
    assert end.out.splitlines()[-12:] == [
        f"right  {revision}  {tool}" for revision in ("2025-11-25", "2026-07-28") for tool in TOOLS
    ]
    # On the second revision the account is connected already, so the demo does not ask for it.
    assert end.out.count("POST /e/…") == 11
    assert end.out.count("GitHub is connected") == 1
    assert end.out.count("Paid 9.00 €") == 2
    assert end.out.count("200  Saved") == 2


async def test_demo_walk_succeeds_under_url_path(tmp_path):
    # The walk covers account, payment and secret, webhooks, returns, and the author's own pages.
    port = free_port()
    url = f"http://127.0.0.1:{port}/tools"
    async with serving(home=tmp_path, port=port, extra={"ELICIT_URL": url}) as server:
        assert server.url == url
        end = await called("demo", "--no-browser", "--url", url, home=tmp_path, cwd=tmp_path)
    assert (end.status, end.err) == (0, "")
    assert end.out.count("right  ") == 2 * len(TOOLS)


async def test_demo_leads_person_through_account_payment_and_secret(tmp_path):
    async with serving(home=tmp_path) as server, httpx.AsyncClient() as browser:
        sandbox = (await browser.get(f"{server.url}/health")).json()["sandbox"]
        demo = await start("demo", "--url", server.url, home=tmp_path, extra={"BROWSER": "true"})
        output = ""
        for _ in MAIN_TOOLS:
            output += await output_until(f"{server.url}/e/", demo)
            link = output.split()[-1]
            await walk(browser, link, answers=ANSWERS, also=[sandbox], say=lambda _: None)
        end = await ended(demo)
    assert (end.status, end.err) == (0, "")
    output += end.out
    assert "octocat has 3 repositories" in output
    assert "9.00 EUR was paid" in output
    assert "a key of 20 letters" in output


async def test_demo_waits_for_person_and_prints_result(tmp_path):
    async with serving(home=tmp_path) as server, httpx.AsyncClient() as browser:
        for mode in ("legacy", "2026-07-28", "auto"):
            demo = await waiting_demo(server.url, "--mode", mode, home=tmp_path)
            assert "Waiting for you to open the link" in demo.output
            answers = {"name": "Eve", "line": f"Hi from {mode}!"}
            await walk(browser, demo.link, answers=answers, say=lambda _: None)
            end = await ended(demo.process)
            assert (end.status, end.err) == (0, "")
            assert f"The tool says: Eve wrote: Hi from {mode}!" in end.out


async def test_decline_on_page_ends_demo_with_tool_error(tmp_path):
    async with serving(home=tmp_path) as server, httpx.AsyncClient() as browser:
        demo = await waiting_demo(server.url, home=tmp_path)
        link = demo.link
        page = Page((await browser.get(link)).text)
        decline = page.forms[-1]
        await browser.post(f"{link}/decline", data=decline.fields)
        end = await ended(demo.process)
    assert end.status == 1
    assert "The tool failed: The person declined: 'Please sign our guest book.'." in end.out


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_demo_answers_confirmation_of_custom_tool(tmp_path, mode):
    (tmp_path / "shop.py").write_text(SHOP)
    extra = {"ELICIT_MIN_ANSWER": "1"}
    async with serving("shop:mcp", home=tmp_path, extra=extra) as server:
        demo = ("demo", "--no-browser", "--tool", "close_shop", "--mode", mode)
        end = await called(*demo, "--url", server.url, home=tmp_path)
        assert (end.status, end.err) == (0, "")
        assert "The tool says: closed: True" in end.out
        known = await called("clients", "list", "--json", home=tmp_path)
        assert "at once" not in known.out, (
            "the server does not list the demo as a client that answers at once"
        )


async def test_demo_passes_named_arguments_to_tool(tmp_path):
    # finding: XA5
    async with own_server(tmp_path) as server:
        demo = ("demo", "--url", server.url, "--tool", "merge")
        words = await called(*demo, "repo=a/b", "number=3", home=tmp_path)
        both = await called(
            *demo, 'labels=["x"]', "--args", '{"repo": "c/d", "number": 4}', home=tmp_path
        )
        none = await called(*demo, home=tmp_path)
        no_tool = await called("demo", "--url", server.url, "repo=a/b", home=tmp_path)
    assert (words.status, words.err) == (0, "")
    assert "The tool says: a/b#4 None" in words.out
    assert "The tool says: c/d#5 ['x']" in both.out
    assert (none.status, none.out) == (1, "")
    assert none.err.startswith("elicit: The tool 'merge' needs repo and number. Write: ")
    shown = f"elicit demo --url {server.url} --tool merge repo=STRING number=INTEGER\n"
    assert none.err.endswith(shown)
    assert (no_tool.status, no_tool.err) == (
        2,
        "elicit: Arguments belong to one tool: name it with --tool.\n",
    )


@pytest.mark.parametrize("options", [(), ("--no-browser",)])
async def test_demo_without_tool_option_calls_listed_tools_without_arguments(tmp_path, options):
    # finding: XA18, XA11
    async with own_server(tmp_path) as server:
        end = await called("demo", *options, "--url", server.url, home=tmp_path)
    assert (end.status, end.err) == (0, "")
    times = 2 if options else 1  # the walk runs on both revisions
    assert end.out.count("The tool says: none at all") == times
    assert end.out.count("The tool waits: Waiting for release.") == times
    assert "failed" not in end.out
    assert "wiped" not in end.out
    shown = " ".join(["elicit demo", *options, "--url", server.url])
    assert f"{shown} --tool merge repo=STRING number=INTEGER\n" in end.out
    assert f"{shown} --tool wipe\n" in end.out


async def test_error_of_a_server_without_callable_tools_shows_commands(tmp_path):
    # finding: XA18
    text = OWN[: OWN.index("@mcp.tool()")] + OWN[OWN.index("@mcp.tool(annotations") :]
    text = text[: text.rindex("@mcp.tool()")]
    async with own_server(tmp_path, text) as server:
        end = await called("demo", "--url", f"{server.url}/mcp/", home=tmp_path)
    assert (end.status, end.out) == (1, "")
    assert end.err.startswith(
        f"elicit: The server at {server.url} has no tool that can be called without arguments. "
        "Call one with:\n  "
    )
    assert end.err.endswith(f"elicit demo --url {server.url} --tool wipe\n")


async def test_unreachable_server_error_shows_serve_command(tmp_path):
    with bound("127.0.0.1") as silent:
        port = silent.getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        end = await called("demo", "--url", url, home=tmp_path)
    assert end.status == 1
    assert end.err.startswith(f"elicit: No server answers at {url}. Start one in another terminal")
    assert end.err.endswith(f" serve --port {port}\n")


async def test_server_of_another_kind_is_reported(tmp_path):
    async def teapot(scope, receive, send):
        await send({"type": "http.response.start", "status": 418, "headers": []})
        await send({"type": "http.response.body", "body": b"short and stout"})

    async with serving_app(teapot) as url:
        end = await called("demo", "--url", url, home=tmp_path)
    assert end.status == 1
    assert "Another program than `elicit serve` answers" in end.err


async def test_unknown_tool_error_lists_available_tools(tmp_path):
    async with serving(home=tmp_path) as server:
        end = await called("demo", "--tool", "fly", "--url", server.url, home=tmp_path)
    assert end.status == 1
    assert end.err == (
        f"elicit: The server at {server.url} has no tool 'fly'. "
        "Name one of its tools with --tool: list_my_repositories, buy_report, use_key, "
        "sign_guest_book, visit_terms, draw_ticket.\n"
    )


async def test_server_stop_during_demo_is_reported_without_traceback(tmp_path):
    async with serving(home=tmp_path) as server:
        demo = await start("demo", "--url", server.url, home=tmp_path, extra={"BROWSER": "true"})
        await output_until("left)", demo)
        server.process.terminate()
        await ended(server.process)
        end = await ended(demo)
    assert end.status == 1
    assert end.err.startswith("elicit: ")
    assert "Traceback" not in end.err


async def test_walk_refuses_redirect_to_another_site():
    async def lure(scope, receive, send):
        location = (b"location", b"https://example.com/form")
        await send({"type": "http.response.start", "status": 303, "headers": [location]})
        await send({"type": "http.response.body", "body": b""})

    async with serving_app(lure) as url, httpx.AsyncClient() as browser:
        with pytest.raises(WalkFailed, match=r"leads to https://example\.com"):
            await walk(browser, f"{url}/e/token", answers={}, say=lambda _: None)


async def test_demo_form_is_accepted_from_redirected_browser_only(tmp_path):
    async with serving(home=tmp_path) as server:
        demo = await waiting_demo(server.url, home=tmp_path)
        link = demo.link
        fields = {"name": "Mallory", "line": "Hi!"}
        async with httpx.AsyncClient() as person, httpx.AsyncClient() as stranger:
            start_page = Page((await person.get(link)).text)
            sent = await person.post(link, data=start_page.forms[0].fields)
            service = sent.headers["location"]
            refused = await stranger.post(service, data=fields)
            from_elsewhere = await person.post(
                service, data=fields, headers={"origin": "https://evil.example"}
            )
            empty = await person.post(service, data={"name": " "})
            path = urlsplit(service).path
            unknown = await person.post(f"{server.url}{path}?elicitation=x", data=fields)
            done = await person.post(service, data={**fields, "name": "Eve"})
            again = await person.post(service, data=fields)
        end = await ended(demo.process)
    assert [
        answer.status_code for answer in (refused, from_elsewhere, empty, unknown, done, again)
    ] == [403, 403, 422, 404, 200, 200]
    assert Page(again.text).heading != Page(done.text).heading
    assert "Eve wrote: Hi!" in end.out


async def test_terms_page_refuses_return_address_of_another_site(tmp_path):
    async with serving(home=tmp_path) as server, httpx.AsyncClient() as person:
        answer = await person.post(f"{server.url}/demo/terms?back=https://evil.example/return?")
    assert answer.status_code == 400
    assert "location" not in answer.headers


async def test_time_left_is_updated_in_place_on_terminal():
    class Terminal(io.StringIO):
        opened = asyncio.Event()

        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> int:
            if "Opened" in text:
                self.opened.set()
            return super().write(text)

    answered = asyncio.Event()

    async def page(scope, receive, send):
        is_live = scope["path"].endswith("/live")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if not is_live:
            await send({"type": "http.response.body", "body": b"<p data-left='90'>"})
            return
        await send({"type": "http.response.body", "body": b"data: opened\n\n", "more_body": True})
        await answered.wait()
        await send({"type": "http.response.body", "body": b"data: accepted\n\n"})

    out = Terminal()
    async with serving_app(page) as url, httpx.AsyncClient() as client, asyncio.timeout(300):
        showing = asyncio.create_task(DemoWaiting(client, f"{url}/e/token", out=out).show())
        await out.opened.wait()
        answered.set()
        await showing
    shown = out.getvalue().split("\r\x1b[K")
    assert "Waiting for you to open the link (1:30 left)" in shown
    assert shown[-1] == "Done\n"
    assert "\n" not in out.getvalue().rstrip("\n")
