"""Tools that ask before they act: accounts, expenses, a transfer in two steps, files.

elicit serve approvals:mcp
"""

from datetime import timedelta
from typing import Annotated

from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel, Field

from flows import elicit
from flows.providers import github

mcp = MCPServer("approvals")
SENT = {"code": "314159"}  # simulates the message that a bank sends to a phone


class Deletion(BaseModel):
    confirmed: Annotated[bool, Field(description="Yes, delete it for good")]
    reason: Annotated[str, Field(description="Why, if you like to say")] = ""


class Approval(BaseModel):
    approved: Annotated[bool, Field(description="Approve this expense")]
    notes: Annotated[str, Field(description="For the person who filed it")] = ""


class Verification(BaseModel):
    code: Annotated[
        str, Field(title="The 6 digits that were sent to your phone", pattern="^[0-9]{6}$")
    ]


@mcp.tool()
async def delete_account(user: str) -> str:
    """Delete a user's account for good."""
    question = elicit.form(f"Delete the account {user}? This cannot be undone.", Deletion)
    outcome = await question.outcome()
    if outcome.content is None:
        return f"Nothing was deleted: the answer was {outcome.action}."
    if not outcome.content.confirmed:
        return "Nothing was deleted: it was not confirmed."
    return f"{user} is deleted. {outcome.content.reason}".strip()


@mcp.tool()
async def file_expense(description: str, amount: float) -> str:
    """File an expense; a large one needs approval first."""
    if amount > 1000:
        approval = await elicit.form(f"{amount:.2f} USD for {description!r}: approve it?", Approval)
        if not approval.approved:
            return f"Rejected. {approval.notes}".strip()
    return f"Filed: {description}, {amount:.2f} USD."


@mcp.tool()
async def approve_expense(expense: str, amount: float) -> str:
    """Process an expense report, with an approval where it is over 500."""
    if amount > 500:
        question = f"Approve expense {expense}?"
        if not await elicit.confirm(question, arguments={"amount": f"{amount:.2f} USD"}):
            return f"{expense} is not approved."
    return f"{expense} is approved."


@mcp.tool()
async def transfer_funds(source: str, target: str, amount: float) -> str:
    """Move money between two accounts: the person confirms, then types a code."""
    details = {"from": source, "to": target, "amount": f"{amount:.2f} USD"}
    if not await elicit.confirm("Transfer this?", arguments=details):
        return "Nothing was transferred."
    # Send the code once, even if this tool runs again. A call after a wrong code sends a new code.
    await elicit.once("send the code", send_code, again=True)
    two_minutes = timedelta(minutes=2)
    given = await elicit.form("Please verify it.", Verification, timeout=two_minutes).or_none()
    if given is None:
        return "Nothing was transferred: it was not verified."
    if given.code != SENT["code"]:
        return "Nothing was transferred: that is not the code."
    return f"{amount:.2f} USD went from {source} to {target}."


@mcp.tool()
async def connect_github() -> str:
    """Connect the person's account at GitHub."""
    account = await elicit.oauth(github, scopes=["repo"]).or_none()
    return "Not connected." if account is None else f"Connected as {account.label}."


@mcp.tool()
async def delete_file(path: str, *, sure: bool = False) -> str:
    """Delete a file; without a way to ask, only with `sure`."""
    if not sure:
        if not elicit.can("form"):
            return f"Nobody was asked. Call again with sure=true to delete {path}."
        if not await elicit.confirm(f"Delete {path}? This cannot be undone."):
            return f"{path} stays."
    return f"{path} is deleted."


async def send_code(key: str) -> None:
    """Send the code. A service with idempotency keys sends one message for each key."""
    SENT["key"] = key
