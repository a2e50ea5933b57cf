"""`elicit approvals`: list and revoke the permissions that people gave tools for some time."""

import argparse
from datetime import datetime

from msgspec import Struct

from webapp.cli.arguments import add_id, commands_of
from webapp.cli.operator import add_owner, does, lists, owner_of
from webapp.cli.table import Table, find_by_prefix
from webapp.operations.rows import OWNER_CHARACTERS
from webapp.records.ids import tail_of
from webapp.records.values import Approval
from webapp.service import Service

COLUMNS = (
    *("id", "tool", "arguments", "server", "owner"),
    *("client", "is_client_verified", "given_at", "expires_at"),
)


class ApprovalRow(Struct, frozen=True, kw_only=True):
    """A person's permission for a tool. Without `arguments`, the permission covers all arguments.

    `client` limits the permission to the calls of one client. None means every client of the
    person.
    """

    id: str
    tool: str
    arguments: str | None
    server: str
    owner: str
    client: str | None
    is_client_verified: bool
    given_at: datetime
    expires_at: datetime


def declare(parser: argparse.ArgumentParser) -> None:
    add_command = commands_of(parser)
    words = "list what people have allowed tools to do, newest first"
    listing = add_command("list", help=words)
    add_owner(listing, is_required=False)
    lists(listing, list_approvals, of=ApprovalRow)
    revoke = add_command("revoke", help="revoke one approval; the next call asks again")
    add_id(revoke, shown_by="approvals")
    does(revoke, revoke_approval)
    clear = add_command("clear", help="revoke all approvals of one person, or of everybody")
    add_owner(clear, is_required=False)
    does(clear, clear_approvals)


async def list_approvals(service: Service, owner: str | None = None) -> Table[ApprovalRow]:
    """List the valid approvals of one person or of all people, the latest first.

    Raises CommandRefused.
    """
    whose = owner and await owner_of(service, owner)
    found = await service.kinds.gates.approvals.all(owner=whose)
    return Table(rows=[*map(_row, found)], columns=COLUMNS, nothing="Nothing is approved.")


async def revoke_approval(service: Service, id: str) -> list[str]:
    """Revoke an approval, so that the next call asks again. Raises CommandRefused."""
    approvals = service.kinds.gates.approvals
    there = {tail_of(one): one for one in await approvals.all()}
    meant = find_by_prefix(id, there, what="approval", shown_by="approvals list")
    await approvals.revoke(meant.id)  # no error if the approval is gone in the meantime
    return ["The approval is revoked: the next call asks again."]


async def clear_approvals(service: Service, owner: str | None = None) -> list[str]:
    """Revoke all approvals of a person or of everybody. Raises CommandRefused."""
    whose = owner and await owner_of(service, owner)
    count = await service.kinds.gates.approvals.clear(owner=whose)
    if not count:
        return ["Nothing is approved."]
    return [f"{count} {'is' if count == 1 else 'are'} revoked: the next calls ask again."]


def _row(approval: Approval) -> ApprovalRow:
    client = None if approval.is_for_all else approval.client
    return ApprovalRow(
        id=tail_of(approval),
        tool=approval.tool,
        arguments=None if approval.covers is None else approval.about,
        server=approval.server,
        owner=approval.owner[:OWNER_CHARACTERS],
        client=None if client is None else client.id or client.name,
        is_client_verified=client is not None and client.id is not None,
        given_at=approval.given_at,
        expires_at=approval.until,
    )
