"""`elicit questions`: list all questions, answered or not, with their results.

Risks: a list that lets its reader answer a question or read its text. The list therefore has no
links and no text of a question, and owners and ids are shortened.
"""

import argparse

from flows.elicitation.states import Elicitation
from webapp.cli import show as showing
from webapp.cli.arguments import add_id, commands_of
from webapp.cli.operator import add_owner, lists, owner_of, shows
from webapp.cli.table import Table
from webapp.operations.history import History, show
from webapp.operations.rows import QuestionRow, question_row
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
    shows(one, show, of=History, show=showing.show_history)


async def list_questions(service: Service, owner: str | None = None) -> Table[QuestionRow]:
    """List the questions of a person or of all owners, the latest first. Raises CommandRefused."""
    whose = owner and await owner_of(service, owner)
    found = await service.elicitations.all(Elicitation, owner=whose)
    found.sort(key=lambda one: one.created_at, reverse=True)
    return Table(
        rows=[*map(question_row, found)], columns=COLUMNS, nothing="No question was asked."
    )
