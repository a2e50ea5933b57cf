"""Tools that need an account, a payment or the person's own key before they run.

elicit serve membership:mcp
"""

from dataclasses import dataclass
from typing import Literal

from mcp.server.mcpserver import MCPServer

from flows import Money, elicit
from flows.providers import github

mcp = MCPServer("membership")
account = elicit.oauth(github, scopes=["repo"])
membership = elicit.payment(Money("9.00", "EUR"), "Membership", once=True)
key = elicit.secret("The key of your weather service.", name="weather")


@dataclass
class Preferences:
    theme: Literal["light", "dark"]
    language: str


@mcp.tool()
async def configure() -> str:
    """Let the person choose theme and language."""
    chosen = await elicit.form("Choose your preferences", Preferences).or_none()
    return "Nothing has changed." if chosen is None else f"{chosen.theme}, in {chosen.language}"


@mcp.tool()
@elicit.needs(account)
@elicit.needs(membership)
async def premium_report() -> str:
    """Return the premium report. It is for members who have connected GitHub."""
    member, paid = await account, await membership  # available, so nobody is asked again
    return f"A report for {member.label}, who paid {paid.price} once."


@mcp.tool()
@elicit.needs(key)
async def forecast() -> str:
    """Ask the weather service with the person's own key, and for another one if it is refused."""
    if not (await key).startswith("wx-"):
        await elicit.forget("weather")
        return "The service refused the key: call again to type another one."
    return "Sunny."
