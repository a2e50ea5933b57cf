"""The previous version and this one, which serve one store at one address.

Clients are routed to one of the processes by its port, as a load balancer does. Their requests
still name the public address.
"""

import re
import subprocess
import tarfile
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx

from tests.support.cli import PROJECT, serving
from tests.support.mcp_server import PATIENCE_SECONDS, TLS, CutOffCaller
from tests.support.pinned import BUILD
from tests.support.serving import free_port
from webapp.demo.walker import walk

# The commit that people upgrade from. Replace it with the last tag once versions are published.
BEFORE = "2708f64330d4647dd9fd96d13b566f7dbca02c3f"
VERSIONS = ("before", "this")
TOOLS = """
from flows import elicit
from mcp.server.mcpserver import MCPServer

mcp = MCPServer("shop")

@mcp.tool()
async def order(what: str) -> str:
    key = await elicit.secret("Your key")
    return f"{what} for {len(key)} letters"
"""
_LINK = re.compile(r"http://[^\"\\\s]+/e/[A-Za-z0-9._~-]+")


@cache
def code_of(version: str) -> Path:
    """Return the folder with the code of this version, or of the previous one from git."""
    folder = BUILD / f"version-{BEFORE[:12]}"
    if version == "this":
        return PROJECT
    if not folder.is_dir():
        BUILD.mkdir(exist_ok=True)
        packed = subprocess.run(
            ["git", "archive", BEFORE, "elicit_url.py", "flows", "webapp", "templates"],
            cwd=PROJECT,
            check=True,
            capture_output=True,
        )
        with tempfile.TemporaryDirectory(dir=BUILD) as unpacked:
            with tarfile.open(fileobj=BytesIO(packed.stdout)) as files:
                files.extractall(f"{unpacked}/code", filter="data")
            with suppress(OSError):  # another run has already created the folder
                Path(f"{unpacked}/code").rename(folder)
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A public address and a store, which processes of both versions can serve."""

    home: Path
    store: str
    port: int = field(default_factory=free_port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def served(self, version: str) -> AsyncIterator["Serving"]:
        """Serve the site with a process of this version."""
        (self.home / "shop.py").write_text(TOOLS)
        settings = {
            "ELICIT_URL": self.url,
            "ELICIT_STORE": self.store,
            "PYTHONPATH": str(code_of(version)),
        }
        own = free_port()
        async with serving("shop:mcp", home=self.home, port=own, extra=settings) as server:
            yield Serving(site=self, port=own, process=server.process)


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """A process of one of the versions."""

    site: Site
    port: int
    process: Any

    async def _lead(self, request: Any) -> None:
        request.url = request.url.copy_with(port=self.port)  # its Host header is already set

    def http(self) -> httpx.AsyncClient:
        """Return an HTTP client that is routed to this process."""
        hooks = {"request": [self._lead]}
        return httpx.AsyncClient(timeout=PATIENCE_SECONDS, verify=TLS, event_hooks=hooks)

    async def person(self, link: str) -> None:
        """Type the answers as a person, and check that they were saved."""
        async with self.http() as browser:
            lines = list[str]()
            await walk(browser, link, answers={"answer.value": "4711"}, say=lines.append)
            assert "Saved" in lines[-1], lines

    @asynccontextmanager
    async def caller(self, revision: str) -> AsyncIterator[CutOffCaller]:
        async with self.http() as http:
            caller = CutOffCaller(http, f"{self.site.url}/mcp", revision, name="my-agent")
            await caller.connect()
            yield caller


def link_in(text: str) -> str:
    found = _LINK.search(text)
    assert found is not None, text
    return found[0]
