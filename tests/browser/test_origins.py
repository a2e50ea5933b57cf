"""Pages of other programs in a person's Chromium, and ten links opened at once in a new browser."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Browser, Page

from flows import elicit
from tests.browser.chrome import press, reads, visitor
from tests.browser.shop_env import open_shop
from tests.support.mcp_server import LEGACY, URL, new_server, server_env, soon, text_of
from tests.support.users import AS_ROOT, ME, NOBODY

pytestmark = pytest.mark.asyncio(loop_scope="session")

TIMES = 20
TEN = range(10)
# Another program of this machine: a page, and a service worker that answers for its origin.
OTHER_PROGRAM = """
import http.server, os, sys

WORKER = b"self.onfetch = e => e.respondWith(new Response('not ours'))"


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        is_worker = self.path == "/worker.js"
        self.send_response(200)
        self.send_header("content-type", "text/javascript" if is_worker else "text/html")
        self.end_headers()
        self.wfile.write(WORKER if is_worker else b"<!doctype html><h1>Another program</h1>")

    def log_message(self, *arguments):
        pass


"name".encode("idna")  # from here on another user may not read what Python loads late
os.setuid(int(sys.argv[2]))
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Page)
print(server.server_port, flush=True)
server.serve_forever()
"""
# A script that calls a tool several times. A foreign page or service worker runs this script.
CALLS = """async ({url, headers, times}) => {
  const call = {jsonrpc: "2.0", id: 1, method: "tools/call",
                params: {name: "book_a_table", arguments: {way: "checkout"}}};
  const said = [];
  for (let number = 0; number < times; number++) {
    try {
      const answer = await fetch(url, {method: "POST", headers, body: JSON.stringify(call)});
      said.push(answer.type === "opaque" ? "opaque" : String(answer.status));
    } catch (error) { said.push("not let through"); }
  }
  return said;
}"""
JSON = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
NEW = {**JSON, "mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call"}
PLAIN = {"content-type": "text/plain"}  # a page may send this to any origin without a preflight


@asynccontextmanager
async def another_program(*, port: int = 0, user: int = ME) -> AsyncGenerator[int]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", OTHER_PROGRAM, str(port), str(user)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        yield int(await process.stdout.readline())
    finally:
        process.kill()
        await process.wait()


async def calls_of(page: Page, url: str, headers: dict[str, str]) -> list[str]:
    outcomes: list[str] = await page.evaluate(
        CALLS, {"url": url, "headers": headers, "times": TIMES}
    )
    return outcomes


@AS_ROOT
@pytest.mark.parametrize("headers", [JSON, NEW, PLAIN], ids=["json", "2026-07-28", "plain"])
async def test_page_of_another_users_program_cannot_call_tool(
    browser: Browser, headers: dict[str, str]
) -> None:
    # finding: S15
    async with open_shop() as shop, another_program(user=NOBODY) as port, visitor(browser) as ann:
        page = await ann.context.new_page()
        for name in ("127.0.0.1", "localhost"):
            await page.goto(f"http://{name}:{port}/")
            for origin in (shop.url, shop.url.replace("127.0.0.1", "localhost")):
                outcomes = await calls_of(page, f"{origin}/mcp", headers)
                assert len(outcomes) == TIMES
                assert set(outcomes) == {"not let through"}
        assert await shop.records() == []


async def test_leftover_service_worker_cannot_call_tool_and_ends_with_reload(
    browser: Browser,
) -> None:
    # finding: S15
    async with visitor(browser) as ann:
        page = await ann.context.new_page()
        async with another_program() as port:
            await page.goto(f"http://127.0.0.1:{port}/")
            await page.evaluate(
                "navigator.serviceWorker.register('/worker.js')"
                ".then(() => navigator.serviceWorker.ready).then(() => true)"
            )
            await page.reload()
            assert await page.text_content("body") == "not ours"
        async with open_shop(port=port) as shop:
            worker = ann.context.service_workers[0]
            for headers in (JSON, NEW):
                statuses = await worker.evaluate(
                    CALLS, {"url": f"{shop.url}/mcp", "headers": headers, "times": TIMES}
                )
                assert statuses == ["403"] * TIMES
            assert await shop.records() == []
            async with shop.calling() as call:
                link = await call.link()
                await page.goto(link)  # the foreign worker may still answer this request
                await page.reload()
                await reads(page, "for Table service?")


async def test_ten_links_opened_at_once_in_new_browser_all_work(browser: Browser) -> None:
    # finding: R15
    server = new_server("mcp")

    @server.tool()
    async def ask(number: int) -> str:
        return f"{number}: {await elicit.form('Which?')}"

    async with (
        server_env(server) as env,
        env.caller(LEGACY, declares=URL) as caller,
        visitor(browser) as ann,
    ):
        calls = [caller.call("ask", number=number) for number in TEN]
        links = [await caller.link() for _ in TEN]
        pages = [await ann.context.new_page() for _ in TEN]
        await asyncio.gather(*(page.goto(link) for page, link in zip(pages, links, strict=True)))
        for page in pages:
            await page.get_by_role("textbox").fill("this one")
            await press(page, "Send")
            await reads(page, "Sent")
        assert {text_of(await soon(call)) for call in calls} == {f"{n}: this one" for n in TEN}
