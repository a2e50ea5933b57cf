"""`elicit clients`: what each client did with what it was sent, for a day, and its end.

What could go wrong: a terminal that obeys what a client calls itself: names are shown cut, and
signs that are no letters as such.
"""

import argparse
import json
from collections.abc import Mapping

from webapp.cli.arguments import add_id, commands_of
from webapp.cli.operator import OWNER_CHARACTERS, WHAT_CHARACTERS, does
from webapp.command import CommandRefused
from webapp.printing import printed
from webapp.records.ids import tail_of
from webapp.records.rows import ClientDeed, ClientRecord
from webapp.service import Service


def declare(parser: argparse.ArgumentParser) -> None:
    commands = commands_of(parser)
    words = "list what clients did with the forms and links that they were sent, the latest first"
    listing = commands.add_parser("list", help=words)
    listing.add_argument("--json", action="store_true", dest="as_json", help="as one JSON array")
    does(listing, list_clients)
    forget = commands.add_parser("forget", help="forget one: it is sent forms and links again")
    add_id(forget, shown_by="clients")
    does(forget, forget_client)
    does(commands.add_parser("clear", help="forget all, of everybody"), clear_clients)


async def list_clients(service: Service, *, as_json: bool = False) -> list[str]:
    """Of all owners, the latest first."""
    found = await service.clients.all()
    if as_json:
        return [json.dumps([_facts(one) for one in found], indent=2)]
    return [line for one in found for line in _told(one)] or ["No client is remembered."]


async def forget_client(service: Service, id: str) -> list[str]:
    """The next question is put to it as if it had never been asked. Raises Refused."""
    if not await service.clients.forget(id):
        raise CommandRefused(f"There is no client {id}: elicit clients list shows them.")
    return ["It is forgotten: the next question is put to it again."]


async def clear_clients(service: Service) -> list[str]:
    """Forget all, of everybody."""
    count = await service.clients.forget()
    if not count:
        return ["No client is remembered."]
    return [f"{count} {'is' if count == 1 else 'are'} forgotten."]


def _told(client: ClientRecord) -> list[str]:
    name = printed(client.name[:WHAT_CHARACTERS]) or "(no name)"
    release = printed(client.release[:WHAT_CHARACTERS])
    who = client.owner[:OWNER_CHARACTERS]
    return [
        f"{tail_of(client)}  {name} {release}, of {who}",
        *(f"  {sent}: {_deed(deed)}" for sent, deed in _deeds(client).items()),
    ]


def _deed(deed: ClientDeed) -> str:
    return f"{deed.what}  {deed.at:%Y-%m-%d %H:%M}, until {deed.until:%Y-%m-%d %H:%M} UTC"


def _deeds(client: ClientRecord) -> Mapping[str, ClientDeed]:
    both = {"forms": client.forms, "links": client.links}
    return {sent: deed for sent, deed in both.items() if deed is not None}


def _facts(client: ClientRecord) -> dict[str, object]:
    return {
        "id": tail_of(client),
        "owner": client.owner[:OWNER_CHARACTERS],
        "name": client.name,
        "version": client.release,
        **{
            sent: {"did": deed.what, "at": deed.at.isoformat(), "until": deed.until.isoformat()}
            for sent, deed in _deeds(client).items()
        },
    }
