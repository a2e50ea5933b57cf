"""A tool that changes something at another service: the person approves before it starts.

elicit serve issues:mcp
"""

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

from flows import elicit
from flows.providers import github

mcp = MCPServer("issues")


@mcp.tool(annotations=ToolAnnotations(destructive_hint=True))
@elicit.gate
async def create_issue(repository: str, title: str, body: str = "") -> str:
    """Create an issue at GitHub. The person approves it, with these very arguments."""
    account = await elicit.oauth(github, scopes=["repo"])
    async with account.client() as api:
        answer = await api.post(f"/repos/{repository}/issues", json={"title": title, "body": body})
    return f"{answer.status_code}: {title!r} in {repository}, as {account.label}"
