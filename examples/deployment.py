"""A deployment that somebody else approves, with a comment.

elicit serve deployment:mcp

elicit.toml names the people who may approve:

    [approvers.operations]
    subjects = ["248289761001", "248289761002"]
    comment = "required"
"""

import re
from typing import Literal

from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel

from flows import elicit

mcp = MCPServer("deployment")
VERSION = re.compile(r"v[0-9]+\.[0-9]+\.[0-9]+")
running: dict[str, str] = {"staging": "v1.0.0", "production": "v1.0.0"}  # ask your own platform
log: list[str] = []


class Release(BaseModel):
    """A finished deployment."""

    environment: str
    version: str
    approved_because: str = ""


@mcp.tool()
async def deploy(environment: Literal["staging", "production"], version: str) -> Release | str:
    """Deploy a version. For production, another person has to approve it first."""
    if not VERSION.fullmatch(version):
        return f"{version!r} is not a version like v1.2.3."
    # Read the running version once, so that the question stays the same if the tool runs again.
    replaced = await elicit.once("replaced", lambda: running[environment])
    if replaced == version:
        return f"{version} already runs in {environment}."
    because = ""
    if environment == "production":
        question = elicit.confirm(
            f"Deploy {version} to production?",
            arguments={"version": version, "replaces": replaced},
            approver="operations",
        )
        outcome = await question.outcome()
        if not outcome.content:
            return f"Not deployed: {outcome.error}"
        because = "; ".join(outcome.comments)
    await elicit.once("roll out", lambda: roll_out(environment, version))
    return Release(environment=environment, version=version, approved_because=because)


def roll_out(environment: str, version: str) -> None:
    """Start the deployment. `once` runs it once, also if the tool runs again."""
    log.append(f"{environment} {version}")
    running[environment] = version
