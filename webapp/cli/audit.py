"""`elicit audit`: whether what is told of every owner is whole, and what that is.

What could go wrong: a look at the chains alone, which cannot show that the end of one was taken
away. So they are held against the newest head in the store too, and against one that was kept
elsewhere, which nobody who writes to the store can reach.
"""

import argparse
import asyncio
import base64
import binascii
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from flows.errors import Unreadable
from webapp.cli.arguments import commands_of
from webapp.cli.operator import OWNER_CHARACTERS, does, lists
from webapp.cli.people import add_owner
from webapp.cli.table import Table, the_one
from webapp.command import CommandRefused
from webapp.records.chain import AUDIT, HEAD, begins_after, block_of, opened
from webapp.records.heads import BadHead, HeadDocument, read_document, written_document
from webapp.records.seal import Locker
from webapp.records.verification import verify
from webapp.service import Service
from webapp.stores import Conflict

COLUMNS = ("number", "at", "kind", "what", "about", "by", "proof", "tool", "client", "why")
_FAULTS_AT_MOST = 20
_PAGE = 100


class AuditRow(Struct, frozen=True, kw_only=True):
    """One entry; of one that nobody can open any more only its number is told.

    `about` is the id that lists show, `proof` what an answer was believed for, `digest` that of all
    the person was shown.
    """

    number: int
    at: datetime | None = None
    kind: str | None = None
    what: str | None = None
    about: str | None = None
    by: str | None = None
    proof: str | None = None
    why: str | None = None
    server: str | None = None
    tool: str | None = None
    client: str | None = None
    asks: str | None = None
    digest: str | None = None
    amount: str | None = None


def declare(parser: argparse.ArgumentParser) -> None:
    commands = commands_of(parser)
    check = commands.add_parser("verify", help="say whether anything is missing or changed")
    check.add_argument(
        "--against",
        metavar="FILE",
        type=Path,
        help="a head that elicit audit head printed, kept where no server can write",
    )
    check.add_argument("--key", help="the key that it was signed by, if the secret is another now")
    does(check, verify_chains)
    head = commands.add_parser("head", help="make a signed head of now and print it")
    does(head, make_head)
    does(commands.add_parser("key", help="print the keys that heads are signed by"), show_keys)
    words = "list what is told of one owner, the oldest first"
    export = commands.add_parser("export", help=words)
    add_owner(export)
    lists(export, export_chain, of=AuditRow)


async def verify_chains(
    service: Service, *, against: Path | None = None, key: str | None = None
) -> list[str]:
    """Raises Refused with all that is wrong."""
    heads, owners = service.heads, service.elicitations.owners
    said, found = list[str](), list[str]()
    documents = list[HeadDocument | None]()
    try:
        if against is not None:
            exported = read_document(await asyncio.to_thread(against.read_bytes))
            heads.must_be_signed(exported, key=None if key is None else _key(key))
            documents.append(exported)
    except (BadHead, OSError) as error:
        raise CommandRefused(f"{against}: {error}") from error
    try:
        documents.append(await heads.newest_document())
    except BadHead as error:
        found.append(str(error))
    for document in documents:
        chains = () if document is None else document.chains
        verified = await verify(
            owners, now=service.clock(), against={each.owner: each for each in chains}
        )
        found += [f"{each.owner[:OWNER_CHARACTERS]}: {each.says}." for each in verified.faults]
        if document is not None:
            signed = document.elicit_audit_head
            said.append(f"Held against head {signed.number} of {signed.at.isoformat()}.")
        said.insert(0, f"{verified.entries} entries of {verified.owners} owners.")
    if faults := list(dict.fromkeys(found)):
        more = len(faults) - _FAULTS_AT_MOST
        also = [f"And {more} more."] if more > 0 else []
        raise CommandRefused(
            *faults[:_FAULTS_AT_MOST],
            *also,
            "Somebody has changed the store, or put an older one back: compare it with a backup.",
        )
    return [*dict.fromkeys(said), "Nothing is missing and nothing was changed."]


async def make_head(service: Service) -> list[str]:
    """Raises Refused."""
    try:
        document = await service.heads.make()
    except Conflict as error:
        raise CommandRefused("A server makes one at this moment: run it again.") from error
    except BadHead as error:
        raise CommandRefused(f"{error} Put a backup back: elicit restore") from error
    return written_document(document).splitlines()


async def show_keys(service: Service) -> list[str]:
    """One a line, the newest first."""
    return [base64.b64encode(key).decode() for key in service.heads.public_keys]


async def export_chain(service: Service, owner: str) -> Table[AuditRow]:
    """Raises Refused if nobody or several are meant."""
    tag = await _owner_of(service, owner)
    rows = [row async for row in _rows(service, tag)]
    return Table(rows=rows, columns=COLUMNS, nothing="Nothing is told of that owner.")


async def _rows(service: Service, owner: str) -> AsyncIterator[AuditRow]:
    owners = service.elicitations.owners
    locker, after = await owners.reader(owner), None
    while page := await owners.store.list(AUDIT, owner=owner, after=after, limit=_PAGE):
        for record in page:
            try:
                block = block_of(record)
            except Unreadable:
                yield AuditRow(number=begins_after(record) + 1, kind=AUDIT, what="damaged")
                continue
            for number, stored in enumerate(block.entries, start=block.before.count + 1):
                yield _row(locker, owner, number, stored.sealed)
        after = page[-1].id


def _row(locker: Locker | None, owner: str, number: int, sealed: bytes) -> AuditRow:
    try:
        entry = None if locker is None else opened(locker, owner, number, sealed)
    except Unreadable:  # of before the owner was erased
        entry = None
    fields = {} if entry is None else msgspec.structs.asdict(entry)
    return AuditRow(number=number, **fields)


async def _owner_of(service: Service, who: str) -> str:
    """Also of one who was erased: whoever has a chain."""
    issuer, mark, subject = who.rpartition("#")
    if mark:
        return service.elicitations.owners.tag(issuer=issuer, subject=subject)
    store, there, after = service.elicitations.store, dict[str, str](), None
    while page := await store.list(AUDIT, status=HEAD, after=after, limit=_PAGE):
        there |= {each.owner: each.owner for each in page}
        after = page[-1].id
    return the_one(who, there, what="owner", shown_by="payments (or pending, approvals, clients)")


def _key(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise CommandRefused("--key is a line that elicit audit key printed.") from error
