"""Finding one person, and all records of that person.

Risks: another person's data is exported or erased because a name matches two people. A person is
therefore identified by a unique prefix of the tag that lists show, or by the exact issuer and
subject.
"""

import argparse
from collections.abc import AsyncIterator, Sequence

from webapp.cli.table import the_one
from webapp.command import CommandRefused
from webapp.records.owners import DATA_KEY, pages
from webapp.service import Service
from webapp.stores import Record


def add_owner(parser: argparse.ArgumentParser, *, is_required: bool = True) -> None:
    parser.add_argument(
        "--owner",
        metavar="WHO",
        required=is_required,
        help="the owner as lists show it, or its unique beginning; or issuer and subject, such as "
        "https://login.example.com#ann",
    )


async def owner_of(service: Service, who: str) -> str:
    """Return the tag of the person. Raises CommandRefused if no person or several match."""
    store = service.elicitations.store
    issuer, mark, subject = who.rpartition("#")
    if mark:
        owner = service.elicitations.owners.tag(issuer=issuer, subject=subject)
        if await service.elicitations.owners.knows(owner):
            return owner
        raise CommandRefused("Nothing was ever stored for that subject of that issuer.")
    there = {each.owner: each.owner async for page in pages(store, DATA_KEY) for each in page}
    return the_one(who, there, what="owner", shown_by="payments (or pending, approvals, clients)")


async def records_of(service: Service, owner: str) -> AsyncIterator[Sequence[Record]]:
    """Yield all records of the owner, of every kind."""
    async for page in service.elicitations.store.scan():
        if theirs := [each for each in page if each.owner == owner]:
            yield theirs
