"""`elicit pending`: list the questions that are open now.

Risks: a list that lets its reader answer a question or read its text. The list therefore has no
links and no text of a question, and owners and ids are shortened.
"""

import argparse
from datetime import datetime

from msgspec import Struct

from flows.elicitation.states import Elicitation
from webapp.cli.arguments import commands_of
from webapp.cli.operator import add_owner, lists, owner_of
from webapp.cli.table import Table
from webapp.operations.rows import OWNER_CHARACTERS
from webapp.records.ids import tail_of
from webapp.service import Service

COLUMNS = ("id", "kind", "tool", "server", "owner", "asked_at", "expires_at")


class PendingRow(Struct, frozen=True, kw_only=True):
    """An open question to one person."""

    id: str
    kind: str
    status: str
    tool: str
    server: str
    owner: str
    asked_at: datetime
    expires_at: datetime


def declare(parser: argparse.ArgumentParser) -> None:
    words = "list open questions, newest first"
    listing = commands_of(parser)("list", help=words)
    add_owner(listing, is_required=False)
    lists(listing, list_pending, of=PendingRow)


async def list_pending(service: Service, owner: str | None = None) -> Table[PendingRow]:
    """List the open questions of a person or of all, the latest first. Raises CommandRefused."""
    asked = await service.elicitations.open_of(owner and await owner_of(service, owner))
    return Table(rows=[*map(_row, asked)], columns=COLUMNS, nothing="No question is open.")


def _row(asked: Elicitation) -> PendingRow:
    return PendingRow(
        id=tail_of(asked),
        kind=asked.kind,
        status=asked.status.value,
        tool=asked.asked.tool,
        server=asked.asked.server,
        owner=asked.owner[:OWNER_CHARACTERS],
        asked_at=asked.created_at,
        expires_at=asked.expires_at,
    )
