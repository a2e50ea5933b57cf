"""`elicit questions`, `elicit pending` and `elicit show`: lists of questions, and their history.

Risks: the reader of a list answers a question or reads the question's text. Lists therefore have
no links and no texts of questions, and they shorten owners and ids.
"""

import argparse
from datetime import datetime
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from flows.elicitation.states import Elicitation
from webapp.cli.arguments import add_id, commands_of
from webapp.cli.operator import add_owner, lists, owner_of, shows
from webapp.cli.table import Table, lines_of, show_facts, terminal_width
from webapp.connecting import utc_now
from webapp.operations.history import History, show
from webapp.operations.rows import OWNER_CHARACTERS, QuestionRow, question_row
from webapp.printing import print_text
from webapp.records.ids import tail_of
from webapp.service import Service

COLUMNS = ("id", "kind", "status", "tool", "server", "owner", "asked_at", "ended_at", "why")


def declare(parser: argparse.ArgumentParser) -> None:
    add_command = commands_of(parser)
    words = "list the stored questions, open or ended, newest first"
    listing = add_command("list", help=words)
    add_owner(listing, is_required=False)
    lists(listing, list_questions, of=QuestionRow)
    one = add_command("show", help="show one question with its timeline, as elicit show does")
    add_id(one, shown_by="questions")
    shows(one, show, of=History, show=show_history)


async def list_questions(service: Service, owner: str | None = None) -> Table[QuestionRow]:
    """List the questions of a person or of all owners, the latest first. Raises CommandRefused."""
    whose = owner and await owner_of(service, owner)
    found = await service.elicitations.all(Elicitation, owner=whose)
    found.sort(key=lambda one: one.created_at, reverse=True)
    return Table(
        rows=[*map(question_row, found)], columns=COLUMNS, nothing="No question was asked."
    )


# `elicit show`

_HISTORY_COLUMNS: Final = ("at", "what", "id", "why")


def declare_show(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show what an id refers to, and its history, oldest first. It can be the id (or its "
        "beginning) of a question, payment, webhook, event, account or call, a provider's id of a "
        "checkout session, payment or event, or the link of a question."
    )
    parser.add_argument(
        "id",
        metavar="ID",
        type=lambda text: text.removeprefix("id:").strip(),
        help="the id, or a link",
    )
    shows(parser, show, of=History, show=show_history)


def show_history(history: History, *, as_json: bool) -> None:
    """Print the facts, then the timeline as a table."""
    if as_json:
        show_facts(history, as_json=True)
        return
    show_facts(replace(history, timeline=[]), as_json=False)
    if history.timeline:
        print_text("")
    table = Table(rows=history.timeline, columns=_HISTORY_COLUMNS, nothing="")
    for line in lines_of(table, width=terminal_width(), now=utc_now(), is_exact=True):
        print_text(line)


# `elicit pending`

_PENDING_COLUMNS = ("id", "kind", "tool", "server", "owner", "asked_at", "expires_at")


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


def declare_pending(parser: argparse.ArgumentParser) -> None:
    words = "list open questions, newest first"
    listing = commands_of(parser)("list", help=words)
    add_owner(listing, is_required=False)
    lists(listing, list_pending, of=PendingRow)


async def list_pending(service: Service, owner: str | None = None) -> Table[PendingRow]:
    """List the open questions of a person or of all owners, latest first. Raises CommandRefused."""
    asked = await service.elicitations.rows.open_of(
        owner and await owner_of(service, owner), now=service.clock()
    )
    return Table(
        rows=[*map(_pending_row, asked)], columns=_PENDING_COLUMNS, nothing="No question is open."
    )


def _pending_row(asked: Elicitation) -> PendingRow:
    return PendingRow(
        id=tail_of(asked),
        kind=asked.kind,
        status=asked.status.value,
        tool=asked.request.tool,
        server=asked.request.server,
        owner=asked.owner[:OWNER_CHARACTERS],
        asked_at=asked.created_at,
        expires_at=asked.expires_at,
    )
