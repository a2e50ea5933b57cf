"""`elicit audit`: verify the audit chains of all owners, and export one.

Risks: a check of the chains alone cannot show that the end of a chain was removed. The chains are
therefore compared with heads, which are signed documents with the length and hash of every chain.
Heads are in the store, and in the folders of ELICIT_AUDIT_HEADS, which a writer of the store cannot
reach. Without any head the command fails, because it has not verified the ends of the chains.
"""

import argparse
import asyncio
import base64
import binascii
from collections.abc import Sequence
from pathlib import Path

from flows.shown import counted
from webapp.cli.arguments import commands_of
from webapp.cli.operator import OWNERS_SHOWN_BY, add_owner, does, lists
from webapp.cli.table import Table, find_by_prefix
from webapp.command import CommandRefused
from webapp.operations.history import AuditRow, audit_entries_of
from webapp.operations.rows import OWNER_CHARACTERS
from webapp.records.chain import AUDIT, HEAD
from webapp.records.heads import (
    BadHead,
    HeadDocument,
    Heads,
    StoredHeads,
    read_document,
    written_document,
)
from webapp.records.verification import verify
from webapp.service import Service
from webapp.stores import Conflict

COLUMNS = ("number", "at", "kind", "what", "about", "by", "proof", "tool", "client", "why")
_FAULTS_AT_MOST = 20
_PAGE = 100


def declare(parser: argparse.ArgumentParser) -> None:
    add_command = commands_of(parser)
    check = add_command("verify", help="check whether anything is missing or changed")
    check.add_argument(
        "--against",
        metavar="FILE",
        type=Path,
        help="a file with the output of elicit audit head, stored where no server can write",
    )
    check.add_argument(
        "--key", help="the key that the head was signed with, if the secret has changed since"
    )
    does(check, verify_chains, only_reads=True)
    head = add_command("head", help="create a signed head of the current state, and print it")
    does(head, make_head)
    keys = add_command("key", help="print the keys that verify heads")
    does(keys, show_keys, only_reads=True)
    words = "list the entries of one owner, oldest first"
    export = add_command("export", help=words)
    add_owner(export)
    lists(export, export_chain, of=AuditRow)


async def verify_chains(
    service: Service, *, against: Path | None = None, key: str | None = None
) -> list[str]:
    """Verify all chains.

    Raises CommandRefused with all faults, or if there is no head to compare.
    """
    signer = None if key is None else _key(key)
    stored = await service.heads.stored(key=signer)
    found, documents = list(stored.faults), list(stored.documents)
    lines = [_held(documents, of="the store")] if documents else []
    for source, elsewhere in await _from_elsewhere(service, against):
        genuine, wrong = _compared(service.heads, elsewhere, stored, key=signer)
        if source == against and not genuine:
            raise CommandRefused(*(f"{source}: {why}" for why in wrong))
        if genuine:
            lines.append(_held(genuine, of=str(source)))
        found += [f"{source}: {why}" for why in wrong]
        documents += genuine
    verified = await verify(
        service.elicitations.owners,
        now=service.clock(),
        against=(chain for document in documents for chain in document.chains),
    )
    found += [f"{each.owner[:OWNER_CHARACTERS]}: {each.says}." for each in verified.faults]
    entries = counted(verified.entries, "entry", "entries")
    total = f"{entries} of {counted(verified.owners, 'owner')}."
    if faults := list(dict.fromkeys(found)):
        more = len(faults) - _FAULTS_AT_MOST
        also = [f"And {more} more."] if more > 0 else []
        raise CommandRefused(
            *faults[:_FAULTS_AT_MOST],
            *also,
            "Somebody has changed the store or replaced it with an older one: compare it with a "
            "backup.",
        )
    if not documents:
        newest = stored.heads[-1] if stored.heads else None
        state = (
            "The store has no head"
            if newest is None
            else f"The list of the newest head ({newest.number} of {newest.at.isoformat()}) expired"
        )
        raise CommandRefused(
            total,
            f"{state}, so nothing shows whether the end of a chain is missing. A server with "
            "ELICIT_AUDIT=1 makes a head each day. If one ran here, compare the store with a "
            "backup, or name a head that you stored elsewhere: --against FILE",
        )
    return [total, *lines, "Nothing is missing, and nothing was changed."]


def _compared(
    heads: Heads,
    elsewhere: Sequence[HeadDocument | BadHead],
    stored: StoredHeads,
    *,
    key: bytes | None,
) -> tuple[list[HeadDocument], list[str]]:
    """Compare the heads of one folder with the store. Return the genuine heads, and all faults."""
    genuine = list[HeadDocument]()
    wrong = [] if elsewhere else ["The folder has no head, although ELICIT_AUDIT_HEADS names it."]
    for document in elsewhere:
        try:
            if isinstance(document, BadHead):
                raise document
            wrong += heads.compare(document, stored, key=key)
        except BadHead as error:
            wrong.append(str(error))
        else:
            genuine.append(document)
    return genuine, wrong


async def _from_elsewhere(
    service: Service, against: Path | None
) -> list[tuple[Path, list[HeadDocument | BadHead]]]:
    """Read the heads in the folders of ELICIT_AUDIT_HEADS and in `against`.

    Raises CommandRefused.
    """
    try:
        found = await service.heads.in_folders()
    except OSError as error:
        raise CommandRefused(f"ELICIT_AUDIT_HEADS: the folder cannot be read: {error}") from error
    if against is None:
        return found
    try:
        text = await asyncio.to_thread(against.read_bytes)
        return [(against, [read_document(text)]), *found]
    except (BadHead, OSError) as error:
        raise CommandRefused(f"{against}: {error}") from error


def _held(documents: Sequence[HeadDocument], *, of: str) -> str:
    first, last = (documents[at].elicit_audit_head for at in (0, -1))
    until = f"{last.number} of {last.at.isoformat()}"
    if len(documents) == 1:
        return f"Compared with head {until} ({of})."
    return f"Compared with {len(documents)} heads, {first.number} to {until} ({of})."


async def make_head(service: Service) -> list[str]:
    """Create a head of the chains and return its text as lines. Raises CommandRefused."""
    try:
        document = await service.heads.make()
    except Conflict as error:
        raise CommandRefused(
            "A server is creating a head at the moment: run the command again."
        ) from error
    except BadHead as error:
        raise CommandRefused(f"{error} Restore a backup: elicit restore") from error
    return written_document(document).splitlines()


async def show_keys(service: Service) -> list[str]:
    """Return the public keys, one a line, the newest first."""
    return [base64.b64encode(key).decode() for key in service.heads.public_keys]


async def export_chain(service: Service, owner: str) -> Table[AuditRow]:
    """Return the chain of one owner. Raises CommandRefused if no owner or several match."""
    tag = await _owner_of(service, owner)
    rows = [row async for row in audit_entries_of(service, tag)]
    return Table(rows=rows, columns=COLUMNS, nothing="The audit has no entry of that owner.")


async def _owner_of(service: Service, who: str) -> str:
    """Return the tag of the owner, who may have been erased. Raises CommandRefused."""
    issuer, mark, subject = who.rpartition("#")
    if mark:
        return service.elicitations.owners.tag(issuer=issuer, subject=subject)
    store, there, after = service.elicitations.store, dict[str, str](), None
    while page := await store.list(AUDIT, status=HEAD, after=after, limit=_PAGE):
        there |= {each.owner: each.owner for each in page}
        after = page[-1].id
    return find_by_prefix(who, there, what="owner", shown_by=OWNERS_SHOWN_BY)


def _key(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise CommandRefused("--key must be a line that elicit audit key printed.") from error
