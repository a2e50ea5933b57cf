"""The servers that a store has kept things for: by name, and where each was served from first.

What could go wrong: accounts, named secrets and approvals are found by a server's name, and another
server takes that name on the same store. So where a name comes from is written down when it is
first served, and from elsewhere it is not served before the operator has said that it is the same.
"""

import argparse
import shlex
from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from webapp.cli.arguments import commands_of
from webapp.cli.operator import does, lists
from webapp.cli.table import Table
from webapp.command import CommandRefused
from webapp.printing import printed
from webapp.records.owners import SERVICE, Owners
from webapp.records.rows import KnownServer, Rows
from webapp.service import Service
from webapp.stores import Conflict


class ServerRow(Struct, frozen=True, kw_only=True):
    """A server, the one place that it is served from, and since when."""

    name: str
    place: str
    since: datetime


def declare(parser: argparse.ArgumentParser) -> None:
    commands = commands_of(parser)
    words = "list the servers, and where each is served from"
    lists(commands.add_parser("list", help=words), list_servers, of=ServerRow)
    accepting = commands.add_parser(
        "accept", help="a server has moved: it keeps what people connected, saved and approved"
    )
    accepting.add_argument("name", metavar="NAME", help="what it calls itself")
    accepting.add_argument("place", metavar="PLACE", help="where it is now, as its refusal says")
    does(accepting, accept_server)


async def must_be_known(owners: Owners, *, name: str, place: str, now: datetime) -> None:
    """Write down where it is served from, at its first time. Raises Refused from elsewhere."""
    id = _id(owners, name)
    fresh = KnownServer(id=id, owner=SERVICE, name=name, place=place, since=now)
    known = await _kept(owners, fresh)
    if known.place != place:
        raise CommandRefused(
            f"A server named {printed(name)!r} was served from {printed(known.place)} so far, and "
            f"this one is from {printed(place)}: what people connected, saved and approved for "
            "that name is not given to it.",
            "If it is the same server, moved, nothing is lost: elicit servers accept "
            f"{shlex.quote(printed(name))} {shlex.quote(printed(place))}",
            "If it is another one, give it a name, or an ELICIT_STORE, of its own.",
        )


async def list_servers(service: Service) -> Table[ServerRow]:
    """By their names."""
    known = await service.elicitations.all(KnownServer, skips_unreadable=True)
    rows = [ServerRow(name=one.name, place=one.place, since=one.since) for one in known]
    return Table(
        rows=sorted(rows, key=lambda row: row.name),
        columns=("name", "place", "since"),
        nothing="No server was served.",
    )


async def accept_server(service: Service, *, name: str, place: str) -> list[str]:
    """From now on the name is served from there, with all that is kept for it. Raises Refused."""
    elicitations = service.elicitations

    async def moved() -> Sequence[KnownServer]:
        id = _id(elicitations.owners, name)
        found = await elicitations.read(KnownServer, owner=SERVICE, id=id)
        if found is None:
            raise CommandRefused(
                f"No server is named {printed(name)}: elicit servers list shows them."
            )
        return [] if found.place == place else [_moved(found, place, service)]

    await elicitations.write_afresh(moved)
    return [f"{printed(name)} is served from {printed(place)} from now on, and from nowhere else."]


def _moved(known: KnownServer, place: str, service: Service) -> KnownServer:
    return replace(known, place=place, since=service.clock())


async def _kept(owners: Owners, fresh: KnownServer) -> KnownServer:
    """What is written down of it; if nothing is, this."""
    rows = Rows(owners)
    found = await rows.read(KnownServer, owner=SERVICE, id=fresh.id)
    if found is None:
        try:
            await rows.write(fresh)
        except Conflict:  # another process was first
            found = await rows.read(KnownServer, owner=SERVICE, id=fresh.id)
    return found or fresh


def _id(owners: Owners, name: str) -> str:
    return owners.pepper.tag("server", name, size=18)
