"""An `elicit serve`, and programs that ask its users over the HTTP API, on SQLite or PostgreSQL."""

import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urljoin

import httpx

from tests.support.cli import Ended, called, ended, environment_of, run, serving
from tests.support.postgres_server import fresh_database
from tests.support.processes import start
from webapp.demo.walker import Page, walk

STORES: Final = ("sqlite", "postgres")
TOOLS: Final = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("corner shop")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedPrograms:
    url: str
    http: httpx.AsyncClient
    home: Path
    extra: Mapping[str, str] = field(repr=False)

    async def key(self, program: str, *scopes: str, in_own_process: bool = False) -> dict[str, str]:
        """Create an API key for the program, and return its headers."""
        names = ",".join(scopes or ("ask",))
        made = await (run if in_own_process else called)(
            *("api-keys", "new", program, "--scopes", names, "--expires", "90d"),
            home=self.home,
            extra=self.extra,
        )
        found = re.search(r"elicit_key_\w+", made.out)
        assert found, made.err
        return {"authorization": f"Bearer {found[0]}"}

    async def ask(self, program: Mapping[str, str], **body: Any) -> dict[str, Any]:
        about = {"user": "ann", **body}
        answer = await self.http.post("/api/questions", json=about, headers=program)
        data: dict[str, Any] = answer.json()
        return data

    async def do(self, program: Mapping[str, str], asked: Mapping[str, Any], *also: str) -> None:
        """Open the question's link in a browser, and answer the question there.

        `also` are the other origins to which the link's pages redirect.
        """
        async with httpx.AsyncClient(timeout=300) as browser:
            page = await browser.get(asked["url"])
            form = Page(page.text).forms[0]
            await browser.post(urljoin(str(page.url), form.action), data=form.fields)
            shown = re.search(r"[B-Z]{4}-[B-Z]{4}", (await browser.get(asked["url"])).text)
            assert shown, page.text
            path = f"/api/questions/{asked['id']}/user-code"
            await self.http.post(path, json={"code": shown[0]}, headers=program)
            await walk(browser, asked["url"], answers={}, also=also, say=lambda _: None)

    async def script(self, text: str, *arguments: str) -> Ended:
        """Run Python code in its own process, with the server's settings."""
        path = self.home / "vendor.py"
        path.write_text(text, "utf-8")
        process = await start(
            *(sys.executable, "-P", str(path), *arguments),
            name="vendor.py",
            cwd=self.home,
            env=environment_of(self.home, self.extra),
        )
        return await ended(process)


@asynccontextmanager
async def programs_on(
    store: str, home: Path, *arguments: str, tools: str = TOOLS, **extra: str
) -> AsyncIterator[AskedPrograms]:
    """Serve `tools` on a new store: `store` is its kind, such as postgres."""
    async with AsyncExitStack() as stack:
        if store == "postgres":
            extra["ELICIT_STORE"] = await stack.enter_async_context(fresh_database())
        yield await stack.enter_async_context(_served(home, arguments, tools, extra))


@asynccontextmanager
async def _served(
    home: Path, arguments: tuple[str, ...], tools: str, extra: Mapping[str, str]
) -> AsyncIterator[AskedPrograms]:
    (home / "asked_tools.py").write_text(tools, "utf-8")
    settings = {"ELICIT_BIND": "code", **extra}
    async with (
        serving("asked_tools:server", *arguments, home=home, extra=settings) as server,
        httpx.AsyncClient(base_url=server.url, timeout=300) as http,
    ):
        yield AskedPrograms(url=server.url, http=http, home=home, extra=settings)
