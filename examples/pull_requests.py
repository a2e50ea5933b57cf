"""The pull requests of a person at GitHub: list them, and merge one that the person confirms.

elicit serve pull_requests:mcp
"""

from functools import partial

import httpx
from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel

from flows import elicit
from flows.providers import github

mcp = MCPServer("pull requests")


class PullRequest(BaseModel):
    number: int
    title: str
    commit: str


async def read_pull_request(api: httpx.AsyncClient, path: str) -> PullRequest:
    reply = (await api.get(path)).raise_for_status().json()
    return PullRequest(number=reply["number"], title=reply["title"], commit=reply["head"]["sha"])


async def merge(api: httpx.AsyncClient, path: str, commit: str) -> str:
    """Merge the commit that the person has confirmed. GitHub refuses a newer one with 409."""
    reply = await api.put(f"{path}/merge", json={"sha": commit})
    merged = reply.raise_for_status().json()
    return str(merged["sha"])


@mcp.tool()
async def list_pull_requests(repository: str) -> list[str]:
    """List the open pull requests of a repository, such as octocat/hello-world."""
    account = await elicit.oauth(github, scopes=["repo"])
    async with account.client() as api:
        reply = (await api.get(f"/repos/{repository}/pulls")).raise_for_status()
    return [f"#{one['number']} {one['title']}" for one in reply.json()]


@mcp.tool()
async def merge_pull_request(repository: str, number: int) -> str:
    """Merge a pull request, if the person confirms it."""
    account = await elicit.oauth(github, scopes=["repo"], reason="To merge pull requests for you.")
    path = f"/repos/{repository}/pulls/{number}"
    async with account.client() as api:
        # Read the pull request once: if this function starts again, the commit stays the same.
        pull = await elicit.once("read", partial(read_pull_request, api, path))
        shown = {"repository": repository, "title": pull.title, "commit": pull.commit}
        if not await elicit.confirm(f"Merge pull request #{number}?", arguments=shown):
            return "Nothing was merged."
        commit = await elicit.once("merge", partial(merge, api, path, pull.commit))
    return f"#{number} is merged as {commit}, by {account.label}."
