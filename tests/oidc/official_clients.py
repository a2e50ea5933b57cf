"""`python -m tests.oidc.official_clients [MCP_REMOTE]`: sign in and ask with real MCP clients.

The official TypeScript and Python clients sign in at oidc-provider and call a tool that asks the
person, on each protocol revision. With MCP_REMOTE, the path of the mcp-remote program, mcp-remote
does the same. oidc-provider is configured as docs/how-to/sign-in.md describes. The person uses a
real browser for the sign-in and for the link. The exit status is 1 if a client failed.
"""

import asyncio
import json
import logging
import os
import re
import shutil
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider, TokenStorage
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from mcp_types import ElicitResult
from playwright.async_api import Page, async_playwright
from pydantic import AnyUrl

from flows import elicit
from tests.browser.chrome import ARGUMENTS, visitor
from tests.oidc.env import ASSISTANT, OpenIdProvider, install, sign_in_for
from tests.support.cli import serving
from tests.support.serving import bound
from tests.typescript.env import CLIENTS, Official
from tests.typescript.packages import HERE as PACKAGES
from webapp.demo.client import text_of

STEPS_AT_MOST = 10
SENDS = "button.primary, form button:not([type=button])"
RIGHT = "done"
REMOTE_PORT = 33418
REVISIONS = ("legacy", "2026-07-28")
mcp = MCPServer("shop")


@mcp.tool()
async def visit() -> str:
    # A result that contains the secret would be masked.
    return RIGHT if await elicit.secret("Who are you?") == "alice" else "another answer"


class Callback:
    """A redirect URI that passes the received code to the waiting client."""

    def __init__(self) -> None:
        self.codes: asyncio.Queue[dict[str, str]] = asyncio.Queue()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        query = dict(parse_qsl(urlsplit(target).query))
        if "code" in query:
            self.codes.put_nowait(query)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")
        await writer.drain()
        writer.close()


async def walk(page: Page, url: str, *, until: str) -> None:
    """Press the first button of every page as alice, until the browser is at `until`."""
    await page.goto(url)
    for _ in range(STEPS_AT_MOST):
        if page.url.startswith(until) and not await page.locator(SENDS).count():
            return
        who = page.locator("input[name=login], textarea, input[type=password]")
        if await who.count():
            await who.fill("alice")
        async with page.expect_navigation():
            await page.locator(SENDS).first.click()
    raise AssertionError(page.url)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    page: Page
    url: str  # the address of our server
    back: str  # the start of the clients' redirect URIs
    callback: Callback

    async def sign_in(self, url: str) -> dict[str, str]:
        await walk(self.page, url, until=self.back)
        return await self.callback.codes.get()

    async def open(self, link: str) -> None:
        await walk(self.page, link, until=self.url)


async def typescript(place: Place, client: Official) -> str:
    about = {
        "library": client.library,
        "revision": client.revision,
        "url": f"{place.url}/mcp",
        "client_id": ASSISTANT,
        "redirect": f"{place.back}/callback",
        "tool": "visit",
    }
    process = await asyncio.create_subprocess_exec(
        *("node", str(PACKAGES / "signing_in.mjs"), json.dumps(about)), stdin=PIPE, stdout=PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    while line := await process.stdout.readline():
        match json.loads(line):
            case {"authorize": str(url)}:
                process.stdin.write(json.dumps(await place.sign_in(url)).encode() + b"\n")
            case {"asked": str(link)}:
                await place.open(link)
            case {"result": str(text)}:
                return text
            case other:
                return f"it said {other}"
    return "it ended"


class StoredTokens(TokenStorage):
    def __init__(self, place: Place) -> None:
        self._tokens: OAuthToken | None = None
        self._client = OAuthClientInformationFull(
            client_id=ASSISTANT,
            redirect_uris=[AnyUrl(f"{place.back}/callback")],
            token_endpoint_auth_method="none",
        )

    async def get_tokens(self) -> OAuthToken | None:
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._client = client_info


def shower(place: Place) -> Any:
    async def show(_: object, params: Any) -> ElicitResult:
        await place.open(params.url)
        return ElicitResult(action="accept")

    return show


async def python(place: Place, revision: str) -> str:
    got: list[dict[str, str]] = []

    async def redirected(url: str) -> None:
        got.append(await place.sign_in(url))

    async def called_back() -> AuthorizationCodeResult:
        back = got.pop()
        return AuthorizationCodeResult(
            code=back["code"], state=back.get("state"), iss=back.get("iss")
        )

    provider = OAuthClientProvider(
        f"{place.url}/mcp",
        OAuthClientMetadata(client_name="python", redirect_uris=[AnyUrl(f"{place.back}/callback")]),
        StoredTokens(place),
        redirect_handler=redirected,
        callback_handler=called_back,
    )
    async with httpx2.AsyncClient(auth=provider, timeout=300) as http:
        transport = streamable_http_client(f"{place.url}/mcp", http_client=http)
        async with Client(transport, mode=revision, elicitation_callback=shower(place)) as client:
            return text_of(await client.call_tool("visit", {}))


async def mcp_remote(place: Place, program: str, revision: str, home: Path) -> str:
    """Run mcp-remote. It prints the sign-in address on standard error and listens for the code."""
    registered = json.dumps({"client_id": ASSISTANT, "token_endpoint_auth_method": "none"})
    options = ("--host", "127.0.0.1", "--allow-http", "--static-oauth-client-info", registered)
    started = StdioServerParameters(
        command="node",
        args=[program, f"{place.url}/mcp", str(REMOTE_PORT), *options],
        env={"PATH": os.environ["PATH"], "HOME": str(home), "MCP_REMOTE_CONFIG_DIR": str(home)},
    )
    log = home / f"said-{revision}"

    async def sign_in() -> None:
        address = re.compile(r"^(http\S+/auth\?\S+)", re.MULTILINE)
        while not (found := address.findall(log.read_text())):  # noqa: ASYNC110 -- not our file
            await asyncio.sleep(0.1)
        await walk(place.page, found[0], until=f"http://127.0.0.1:{REMOTE_PORT}/")

    with log.open("w") as errors:
        signing_in = asyncio.create_task(sign_in())
        transport = stdio_client(started, errlog=errors)
        async with Client(transport, mode=revision, elicitation_callback=shower(place)) as client:
            text = text_of(await client.call_tool("visit", {}))
        await signing_in
    return text


@asynccontextmanager
async def place(provider: OpenIdProvider, home: Path, page: Page) -> AsyncIterator[Place]:
    await asyncio.to_thread(home.mkdir)
    with bound("127.0.0.1") as free:
        port = free.getsockname()[1]
    callback = Callback()
    listening = await asyncio.start_server(callback.serve, "127.0.0.1", 0)
    back = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    url = f"http://127.0.0.1:{port}"
    variables = sign_in_for(provider, url)
    server_client, assistant = provider.wanted["clients"]
    remote = f"http://127.0.0.1:{REMOTE_PORT}/oauth/callback"
    assistant = {**assistant, "redirect_uris": [f"{back}/callback", remote]}
    provider.change(clients=[server_client, assistant])
    async with (
        listening,
        serving("tests.oidc.official_clients:mcp", home=home, port=port, extra=variables),
    ):
        yield Place(page=page, url=url, back=back, callback=callback)


async def tried(remote: str | None = None) -> bool:
    logging.disable()  # hide the log of the libraries in this process
    ways: dict[str, Callable[[Place, Path], Awaitable[str]]] = {
        **{f"TypeScript {one}": partial(_typescript, client=one) for one in CLIENTS},
        **{f"Python {revision}": partial(_python, revision=revision) for revision in REVISIONS},
    }
    if remote is not None:
        for revision in REVISIONS:
            ways[f"mcp-remote {revision}"] = partial(_remote, program=remote, revision=revision)
    is_right = True
    with OpenIdProvider(install()) as provider, TemporaryDirectory() as folder:
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=list(ARGUMENTS)
            )
            for number, (name, way) in enumerate(ways.items()):
                home = Path(folder, str(number))
                async with (
                    visitor(browser) as alice,
                    place(provider, home, await alice.page()) as here,
                ):
                    text = await way(here, home)
                is_right = is_right and text == RIGHT
                print("right" if text == RIGHT else f"WRONG {text}", name, flush=True)  # noqa: T201
    return is_right


async def _typescript(here: Place, _: Path, *, client: Official) -> str:
    return await typescript(here, client)


async def _python(here: Place, _: Path, *, revision: str) -> str:
    return await python(here, revision)


async def _remote(here: Place, home: Path, *, program: str, revision: str) -> str:
    return await mcp_remote(here, program, revision, home)


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(tried(*sys.argv[1:])) else 1)
