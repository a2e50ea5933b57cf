"""The recorded origin of each server name, so that no other server uses the name on this store.

Risks: another server uses the name of this one, and so receives its accounts, named secrets and
approvals, which are stored by server name. The origin of a name is therefore recorded when the name
is first served. A server of another origin starts only after the operator confirms that it is the
same server.
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
    """Record the origin of a new name. Raises CommandRefused if the name has another origin."""
    id = known_server_id(owners, name)
    fresh = KnownServer(id=id, owner=SERVICE, name=name, place=place, since=now)
    known = await _kept(owners, fresh)
    if known.place != place:
        raise CommandRefused(
            f"A server named {printed(name)!r} was served from {printed(known.place)} so far, but "
            f"this one is from {printed(place)}. It gets no access to the accounts, secrets and "
            "approvals stored under that name.",
            "If it is the same server at a new place, accept it, and nothing is lost: elicit "
            f"servers accept {shlex.quote(printed(name))} {shlex.quote(printed(place))}",
            "If it is a different server, give it its own name or its own ELICIT_STORE.",
        )


def known_server_id(owners: Owners, name: str) -> str:
    return owners.pepper.tag("server", name, size=18)


async def _kept(owners: Owners, fresh: KnownServer) -> KnownServer:
    """Return the stored record of the name, or store `fresh`."""
    rows = Rows(owners)
    found = await rows.read(KnownServer, owner=SERVICE, id=fresh.id)
    if found is None:
        try:
            await rows.write(fresh)
        except Conflict:  # another process was first
            found = await rows.read(KnownServer, owner=SERVICE, id=fresh.id)
    return found or fresh
