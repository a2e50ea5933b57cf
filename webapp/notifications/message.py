"""The text of a notification.

Risks: the text of a question comes from a tool or a model. In a message, it could look like a link
of this server, contain a link of its own, or address a whole chat room; a line break could add a
header to an e-mail. The message therefore has only letters, digits and harmless punctuation of the
question, on one line, in a form that mail programs and chats do not turn into links. Without
`with_question`, the message contains no text of the question.
"""

import re
import unicodedata
from datetime import datetime
from typing import Final, NamedTuple

from flows.elicitation.states import Elicitation
from flows.kinds.form import approver_of
from webapp.notifications.tables import NotifyTable
from webapp.records.waiting import Notification

QUESTION_CHARACTERS: Final = 120
NAME_CHARACTERS: Final = 80
# Spaces, currency signs, dashes and quotation marks, in addition to letters (L), marks on them (M)
# and digits (N): the general categories of Unicode, section 4.5.
_SIGNS: Final = frozenset({"Zs", "Sc", "Pd", "Pi", "Pf"})
# The last five are those of Chinese and Japanese.
_PUNCTUATION: Final = frozenset(".:,;?!'\"()+%\u3002\u3001\uff0c\uff1f\uff01")
_MARKS_AT_MOST: Final = 2  # on one letter; more would cover other lines
# Text that `in_a_line` replaces with a space, so that no address results: a dot or colon, unless a
# space or the end follows or it is between digits, and the position after U+3002, which addresses
# can contain in place of a dot.
_INSIDE: Final = re.compile(r"[.:](?=\S)(?!(?<=\d.)\d)|(?<=\u3002)(?=\S)")


class Message(NamedTuple):
    """A message: a title of one line, and a text of some lines."""

    title: str
    body: str


def message_for(
    row: Notification,
    asked: Elicitation,
    table: NotifyTable,
    *,
    headline: str,
    name: str | None,
    public_url: str,
) -> Message:
    """Return the message to send for a stored notification. `headline` is the question.

    `name` is the operator's name for this server, or None.
    """
    said = asked.asked.server_title or asked.asked.server
    server = name or in_a_line(said, at_most=NAME_CHARACTERS) or public_url
    approver = approver_of(asked)
    what = "Something waits for you" if approver is None else "A request waits for your approval"
    if row.is_escalation:
        what = f"Nobody has answered: {what[0].lower()}{what[1:]}"
    elif row.messages:
        what = f"Reminder: {what[0].lower()}{what[1:]}"
    page = "activity" if approver is None else "inbox"
    question = in_a_line(headline, at_most=QUESTION_CHARACTERS) if table.with_question else ""
    lines = [
        f"{what} at {server}.",
        *([] if approver is None else [f"Approvers: {table.name}"]),
        *([f"Question: {question}"] if question else []),
        f"Asked at {_moment(asked.created_at)}, open until {_moment(asked.expires_at)}.",
        f"To answer, open {public_url}/{page} and sign in.",
    ]
    return Message(title=f"{what} at {server}", body="\n".join(lines))


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"


def in_a_line(text: str, *, at_most: int) -> str:
    """Return the text on one line, with only the characters that make neither link nor markup."""
    found, marks = list[str](), 0
    for character in unicodedata.normalize("NFC", text[: at_most * 8]):
        category = unicodedata.category(character)
        marks = marks + 1 if category in ("Mn", "Mc") else 0
        is_word = category[0] in "LN" or 0 < marks <= _MARKS_AT_MOST
        is_kept = is_word or category in _SIGNS or character in _PUNCTUATION
        found.append(character if is_kept else " ")
    line = " ".join(_INSIDE.sub(" ", "".join(found)).split())
    return line if len(line) <= at_most else line[: at_most - 1].rstrip() + "…"
