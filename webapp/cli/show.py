"""`elicit show ID`: print what an id refers to, and its history."""

import argparse
from typing import Final

from msgspec.structs import replace

from webapp.cli.operator import shows
from webapp.cli.table import Table, lines_of, show_facts, terminal_width
from webapp.connecting import utc_now
from webapp.operations.history import History, show
from webapp.printing import tell

_COLUMNS: Final = ("at", "what", "id", "why")


def declare(parser: argparse.ArgumentParser) -> None:
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
        tell("")
    table = Table(rows=history.timeline, columns=_COLUMNS, nothing="")
    for line in lines_of(table, width=terminal_width(), now=utc_now(), is_exact=True):
        tell(line)
