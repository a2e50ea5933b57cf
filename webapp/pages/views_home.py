"""The views of the home page, which says how to add this server to an assistant."""

import json
import re
import shlex
from dataclasses import dataclass
from typing import ClassVar

from flows.elicitation.tool_call import DescribedTool
from webapp.pages.views import View
from webapp.settings.settings import DEFAULT_URL


@dataclass(frozen=True, slots=True, kw_only=True)
class Home(View):
    """The page of this server and how to add it. `sandbox_url` is None if the sandbox is off."""

    template: ClassVar[str] = "home.html"
    mcp_url: str
    tools: tuple[DescribedTool, ...]
    sandbox_url: str | None = None

    @property
    def demo_command(self) -> str | None:
        """The command that calls one of the server's tools in a terminal, or None without tools."""
        if not self.tools:
            return None
        url = self.mcp_url.removesuffix("/mcp")
        names = [tool.name for tool in self.tools]
        where = [] if url == DEFAULT_URL else ["--url", url]
        which = [] if "list_my_repositories" in names else ["--tool", names[0]]
        return shlex.join(["elicit", "demo", *where, *which])

    @property
    def claude_command(self) -> str:
        """The command that adds the server to Claude Code."""
        return shlex.join(
            ["claude", "mcp", "add", "--transport", "http", self._entry, self.mcp_url]
        )

    @property
    def vscode_settings(self) -> str:
        """The contents of .vscode/mcp.json."""
        return _json({"servers": {self._entry: {"type": "http", "url": self.mcp_url}}})

    @property
    def cursor_settings(self) -> str:
        """The contents of Cursor's mcp.json."""
        return _json({"mcpServers": {self._entry: {"url": self.mcp_url}}})

    @property
    def desktop_settings(self) -> str:
        """The contents of Claude Desktop's file, where the client starts the server itself."""
        # A desktop client has no useful working directory, so PYTHONPATH says where the tools are.
        command = {
            "command": "elicit",
            "args": ["stdio", "my_tools:mcp"],
            "env": {"PYTHONPATH": "/the/folder/of/my_tools"},
        }
        return _json({"mcpServers": {self._entry: command}})

    @property
    def _entry(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.server.lower())[:40].strip("-") or "server"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsersHome(View):
    """The home page of an application without tools, which asks its own users."""

    template: ClassVar[str] = "users_home.html"


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
