"""The public servers: the package on PyPI that contains each, and the lines added to it.

The packages are installed once, outside git, with pinned versions. A test serves its own copy with
the lines added.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.pinned import installed

HERE = Path(__file__).parent
LINES_AT_MOST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """A line to insert `before` or `behind` the first line that starts with the given words."""

    file: str
    line: str
    before: str | None = None
    behind: str | None = None

    def to(self, text: str) -> str:
        lines = text.splitlines(keepends=True)
        words = self.before or self.behind or ""
        (at, *_) = [n for n, line in enumerate(lines) if line.strip().startswith(words)]
        indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
        if self.behind is not None:
            at += 1
        return "".join([*lines[:at], f"{indent}{self.line}\n", *lines[at:]])


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicServer:
    package: str
    added: tuple[Added, ...]

    def published(self) -> Path:
        return _packages() / self.package

    def copied(self, folder: Path) -> Path:
        """Return the folder of a copy with the added lines. All other lines are as published."""
        shutil.copytree(self.published(), folder / self.package)
        for each in self.added:
            file = folder / self.package / each.file
            file.write_text(each.to(file.read_text("utf-8")), "utf-8")
        return folder


# MCPServer in a module; an `async def` tool asks for an account.
DUCKDUCKGO = PublicServer(
    package="duckduckgo_mcp_server",
    added=(
        Added(file="server.py", before="import httpx", line="from flows import elicit"),
        Added(file="server.py", before="import httpx", line="from flows.providers import github"),
        Added(
            file="server.py",
            before="return await fetcher.fetch_and_parse(",
            line='await elicit.oauth(github, scopes=["read:user"])',
        ),
    ),
)
# FastMCP in a function; a `def` tool requires a payment. Its own command starts it, over HTTP.
MOTHERDUCK = PublicServer(
    package="mcp_server_motherduck",
    added=(
        Added(file="server.py", before="import json", line="import flows, webapp"),
        Added(
            file="server.py",
            before="def list_tables(",
            line='@flows.elicit.needs(flows.elicit.payment(flows.Money("0.10", "EUR"), "A look"))',
        ),
        Added(file="server.py", before="return mcp", line="webapp.add_pages(mcp)"),
    ),
)
# MCPServer in a function; its own annotation says that a tool is destructive. Over stdio.
GIT = PublicServer(
    package="mcp_server_git",
    added=(
        Added(file="server.py", before="import git", line="from webapp import add_pages"),
        Added(file="server.py", before="return server", line="add_pages(server)"),
    ),
)


def environment(folder: Path) -> Mapping[str, str]:
    """Return a PYTHONPATH with the copy, the other packages and ours."""
    return {"PYTHONPATH": f"{folder}:{HERE.parents[1]}:{_packages()}"}


def _packages() -> Path:
    return installed(HERE / "requirements.txt", "public_servers")
