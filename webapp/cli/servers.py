"""`elicit servers`: list the servers that have records in the store, and where each one runs."""

import argparse
from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from webapp.cli.arguments import commands_of
from webapp.cli.operator import does, lists
from webapp.cli.table import Table
from webapp.command import CommandRefused
from webapp.printing import printed
from webapp.records.owners import SERVICE
from webapp.records.values import KnownServer
from webapp.service import Service
from webapp.serving.http_server import known_server_id


class ServerRow(Struct, frozen=True, kw_only=True):
    """A server, the module that may serve it, and the time when the module was recorded."""

    name: str
    place: str
    since: datetime


def declare(parser: argparse.ArgumentParser) -> None:
    add_command = commands_of(parser)
    words = "list the servers, and the program that serves each"
    lists(add_command("list", help=words), list_servers, of=ServerRow)
    accepting = add_command(
        "accept",
        help="record that the code of a server has moved, so that the server keeps the accounts, "
        "secrets and approvals of its people",
    )
    accepting.add_argument("name", metavar="NAME", help="the server's name")
    accepting.add_argument(
        "place", metavar="PLACE", help="the server's new module, as the error at its start names it"
    )
    does(accepting, accept_server)


async def list_servers(service: Service) -> Table[ServerRow]:
    """List the servers by name."""
    known = await service.elicitations.all(KnownServer, skips_unreadable=True)
    rows = [ServerRow(name=one.name, place=one.place, since=one.since) for one in known]
    return Table(
        rows=sorted(rows, key=lambda row: row.name),
        columns=("name", "place", "since"),
        nothing="No server is stored.",
    )


async def accept_server(service: Service, *, name: str, place: str) -> list[str]:
    """Record that the code of a server is now at `place`. The server keeps its records.

    Raises CommandRefused if no server has this name.
    """
    elicitations = service.elicitations

    async def moved() -> Sequence[KnownServer]:
        id = known_server_id(elicitations.owners, name)
        found = await elicitations.read(KnownServer, owner=SERVICE, id=id)
        if found is None:
            raise CommandRefused(
                f"No server is named {printed(name)}: elicit servers list shows the names."
            )
        return [] if found.place == place else [_moved(found, place, service)]

    await elicitations.write_rebuilt(moved)
    return [f"{printed(name)} is served only from {printed(place)} from now on."]


def _moved(known: KnownServer, module: str, service: Service) -> KnownServer:
    return replace(known, place=module, since=service.clock())
