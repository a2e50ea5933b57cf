"""`elicit approvals`: what people have allowed tools without being asked again, and its end.

What could go wrong: a terminal that obeys what a model wrote: arguments are shown cut, and signs
that are no letters as such.
"""

import argparse

from webapp.cli.arguments import add_id, commands_of
from webapp.cli.operator import OWNER_CHARACTERS, WHAT_CHARACTERS, does
from webapp.command import CommandRefused
from webapp.printing import printed
from webapp.records.ids import tail_of
from webapp.records.rows import Approval
from webapp.service import Service


def declare(parser: argparse.ArgumentParser) -> None:
    commands = commands_of(parser)
    words = "list what people have allowed tools, the latest first"
    does(commands.add_parser("list", help=words), list_approvals)
    revoke = commands.add_parser("revoke", help="end one: the next call asks again")
    add_id(revoke, shown_by="approvals")
    does(revoke, revoke_approval)
    does(commands.add_parser("clear", help="end all, of everybody"), clear_approvals)


async def list_approvals(service: Service) -> list[str]:
    """What is in force, the latest first."""
    approvals = await service.kinds.gates.approvals.all()
    return [line for one in approvals for line in _told(one)] or ["Nothing is approved."]


async def revoke_approval(service: Service, id: str) -> list[str]:
    """End one: the next call asks again. Raises Refused."""
    if not await service.kinds.gates.approvals.revoke(id):
        raise CommandRefused(
            f"There is no approval {id} in force: elicit approvals list shows them."
        )
    return ["It is revoked: the next call asks again."]


async def clear_approvals(service: Service) -> list[str]:
    """End all, of everybody."""
    count = await service.kinds.gates.approvals.clear()
    if not count:
        return ["Nothing is approved."]
    return [f"{count} {'is' if count == 1 else 'are'} revoked: the next calls ask again."]


def _told(approval: Approval) -> list[str]:
    about = printed(approval.about[:WHAT_CHARACTERS])
    what = f'with "{about}"' if approval.covers is not None else about
    when = f"{approval.given_at:%Y-%m-%d %H:%M}, until {approval.until:%H:%M} UTC"
    server, who = printed(approval.server), approval.owner[:OWNER_CHARACTERS]
    return [
        f"{tail_of(approval)}  {when}  {printed(approval.tool)}",
        f"  {what}, at {server}, by {who}, for {_client(approval)}",
    ]


def _client(approval: Approval) -> str:
    """Whose calls it opens for: verified, or by what it calls itself."""
    client = approval.client
    if approval.is_for_all or client is None:
        return "every client of theirs"
    if client.id is not None:
        return f"the client {printed(client.id)}"
    return f'what calls itself "{printed(client.name[:WHAT_CHARACTERS])}"'
