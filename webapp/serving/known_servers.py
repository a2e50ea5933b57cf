"""Where each server was served from first: another one may not take its name on the same store.

What could go wrong: accounts, named secrets and approvals are found by a server's name, and another
server takes that name. So where a name comes from is written down when it is first served, and from
elsewhere it is not served before the operator has said that it is the same.
"""

import shlex
from datetime import datetime

from webapp.command import CommandRefused
from webapp.printing import printed
from webapp.records.owners import SERVICE, Owners
from webapp.records.rows import Rows
from webapp.records.values import KnownServer
from webapp.stores import Conflict


async def must_be_known(owners: Owners, *, name: str, place: str, now: datetime) -> None:
    """Write down where it is served from, at its first time. Raises Refused from elsewhere."""
    id = known_server_id(owners, name)
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


def known_server_id(owners: Owners, name: str) -> str:
    return owners.pepper.tag("server", name, size=18)


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
