"""The tables `[notify.NAME]`, the text of a notification, and its delivery by Apprise.

A table applies to the approvers of the same name, or to the people whom it lists itself. Each
address of a table has a row of its own for each question, so that an address that is down does not
delay the other addresses.

Risks: Apprise blocks, has no time limit of its own, and writes addresses with their passwords to
its log. A separate process does not block the event loop and can be killed, and its log is ignored.
The address is passed on stdin, where no list of processes shows it. The process gets the variables
that a network client needs, and none of this server's secrets.

Risks: the text of a question comes from a tool or a model. In a message, it could look like a link
of this server, contain a link of its own, or address a whole chat room; a line break could add a
header to an e-mail. The message therefore has only letters, digits and harmless punctuation of the
question, on one line, in a form that mail programs and chats do not turn into links. Without
`with_question`, the message contains no text of the question.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import unicodedata
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec import Struct, ValidationError, convert

from flows.elicitation.states import RECORD_RETENTION, Elicitation, Status
from flows.kinds.form import approver_of, voting_of
from webapp.languages import ENGLISH, Language
from webapp.records.ids import Notification, RowIds
from webapp.records.values import Value

ADDRESSES_AT_MOST: Final = 8  # in `to` of a table, and as many in `escalate_to`
# People look at their assistant when it asks: they are notified only if they do not answer soon.
AFTER_FOR_PEOPLE: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyTable:
    """A table of the operator. The addresses have Apprise's format, and may contain passwords.

    The people to notify are its `subjects`, its `users`, and this machine's own user if `is_local`.
    If it lists none of these, they are the approvers with the table's name. `remind_after` is the
    time between two messages to the same address. `remind_at_most` is the number of reminders.
    `language` is the tag of the messages' language; None is the first language of the pages.
    """

    name: str
    to: tuple[str, ...] = field(default=(), repr=False)
    escalate_to: tuple[str, ...] = field(default=(), repr=False)
    after: timedelta = timedelta()
    remind_after: timedelta | None = None
    remind_at_most: int = 1
    escalate_after: timedelta | None = None
    with_question: bool = False
    language: str | None = None
    subjects: frozenset[str] = frozenset()
    issuers: frozenset[str] = frozenset()  # issuers of `subjects`; empty: ELICIT_ISSUER
    users: frozenset[str] = frozenset()
    is_local: bool = False

    @property
    def lists_people(self) -> bool:
        """True if the table is about people, False if it is about the approvers of its name."""
        return bool(self.subjects or self.users or self.is_local)

    def address_of(self, row: Notification) -> str | None:
        """Return the row's address from the current settings, or None if they no longer have it."""
        addresses = self.escalate_to if row.is_escalation else self.to
        return addresses[row.address] if row.address < len(addresses) else None

    def reminds_after(self, row: Notification) -> timedelta | None:
        """Return the time until the next message to the row's address, or None if there is none."""
        is_last = row.is_escalation or row.messages > self.remind_at_most
        return None if is_last else self.remind_after


class NotifyTables:
    """The tables of a server, by the people to whom they apply.

    `owners` are the owner tags of the people of each table.
    """

    def __init__(
        self,
        tables: Iterable[NotifyTable],
        *,
        owners: Mapping[str, Iterable[str]],
        ids: RowIds,
    ) -> None:
        self.by_name: Mapping[str, NotifyTable] = {table.name: table for table in tables}
        self._ids = ids
        self._of_owners: dict[str, list[NotifyTable]] = {}
        for name, tags in owners.items():
            for tag in tags:
                self._of_owners.setdefault(tag, []).append(self.by_name[name])

    def rows(self, values: Sequence[Value]) -> list[Notification]:
        """Return the rows to write together with `values`: the notifications of new questions."""
        return [
            row
            for value in values
            if isinstance(value, Elicitation)
            if value.version == 0 and value.status is Status.PENDING
            for table, since in self._tables_for(value)
            for row in self._rows(value, table, since=since)
        ]

    def _tables_for(self, asked: Elicitation) -> Iterator[tuple[NotifyTable, datetime]]:
        """Yield the tables that apply to a new question, each with the start time of its delays."""
        voting = voting_of(asked)
        if voting is None:
            yield from ((table, asked.created_at) for table in self._of_owners.get(asked.owner, ()))
            return
        names = [(voting.approver, asked.created_at)]
        if voting.escalates_to is not None and voting.escalates_at is not None:
            names.append((voting.escalates_to, voting.escalates_at))
        for name, since in names:
            table = self.by_name.get(name)
            if table is not None and not table.lists_people and since < asked.expires_at:
                yield table, since

    def _rows(
        self, asked: Elicitation, table: NotifyTable, *, since: datetime
    ) -> Iterator[Notification]:
        plan = [(False, table.after, table.to)]
        if table.escalate_after is not None:
            plan.append((True, table.escalate_after, table.escalate_to))
        for is_escalation, after, addresses in plan:
            for number in range(len(addresses)):
                yield Notification(
                    id=self._ids.notification(
                        asked.id, table=table.name, is_escalation=is_escalation, address=number
                    ),
                    owner=asked.owner,
                    elicitation_id=asked.id,
                    table=table.name,
                    address=number,
                    is_escalation=is_escalation,
                    next_at=since + after,
                    erase_at=asked.expires_at + RECORD_RETENTION,
                )


QUESTION_CHARACTERS: Final = 120
NAME_CHARACTERS: Final = 80
# Spaces, currency signs, dashes and quotation marks, in addition to letters (L), marks on them (M)
# and digits (N): the general categories of Unicode, section 4.5.
_SIGNS: Final = frozenset({"Zs", "Sc", "Pd", "Pi", "Pf"})
# The last five are punctuation of Chinese and Japanese.
_PUNCTUATION: Final = frozenset(".:,;?!'\"()+%\u3002\u3001\uff0c\uff1f\uff01")
_MARKS_AT_MOST: Final = 2  # the most marks on one letter; more would cover other lines
# Matches what `in_a_line` replaces with a space, so that the text contains no address: a dot or
# colon inside a word (a dot or colon between digits stays), and the position after U+3002, which
# addresses can have in place of a dot.
_INSIDE: Final = re.compile(r"[.:](?=\S)(?!(?<=\d.)\d)|(?<=\u3002)(?=\S)")


# The first sentence of a message to a person, and of a message to approvers.
SENTENCES: Final[Mapping[str, tuple[str, str]]] = {
    "first": (
        "Something waits for you at %(server)s.",
        "A request waits for your approval at %(server)s.",
    ),
    "reminder": (
        "Reminder: something waits for you at %(server)s.",
        "Reminder: a request waits for your approval at %(server)s.",
    ),
    "escalation": (
        "Nobody has answered: something still waits for an answer at %(server)s.",
        "Nobody has answered: a request still waits for approval at %(server)s.",
    ),
}
LINES: Final[Mapping[str, str]] = {
    "approvers": "Approvers: %(approvers)s",
    "question": "Question: %(question)s",
    "times": "Asked at %(asked_at)s, open until %(until)s.",
    "answer": "To answer, open %(url)s and sign in.",
}


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
    language: Language = ENGLISH,
) -> Message:
    """Return the message to send for a stored notification. `headline` is the question.

    `name` is the operator's name for this server, or None. `language` is that of the message.
    """
    title = asked.request.server_title or asked.request.server
    server = name or in_a_line(title, at_most=NAME_CHARACTERS) or public_url
    approver = approver_of(asked)
    times = "escalation" if row.is_escalation else "reminder" if row.messages else "first"
    page = "activity" if approver is None else "inbox"
    question = in_a_line(headline, at_most=QUESTION_CHARACTERS) if table.with_question else ""
    values = {
        "server": server,
        "approvers": table.name,
        "question": question,
        "asked_at": _moment(asked.created_at),
        "until": _moment(asked.expires_at),
        "url": f"{public_url}/{page}",
    }

    def written(sentence: str) -> str:
        return language.messages.gettext(sentence) % values

    first = written(SENTENCES[times][approver is not None])
    names = ["approvers"] if approver is not None else []
    names += ["question"] if question else []
    lines = [first, *(written(LINES[name]) for name in (*names, "times", "answer"))]
    return Message(title=first.removesuffix("."), body="\n".join(lines))


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"


def in_a_line(text: str, *, at_most: int) -> str:
    """Return the text on one line, without characters that could form a link or markup."""
    found, marks = list[str](), 0
    for character in unicodedata.normalize("NFC", text[: at_most * 8]):
        category = unicodedata.category(character)
        marks = marks + 1 if category in ("Mn", "Mc") else 0
        is_word = category[0] in "LN" or 0 < marks <= _MARKS_AT_MOST
        is_shown = is_word or category in _SIGNS or character in _PUNCTUATION
        found.append(character if is_shown else " ")
    line = " ".join(_INSIDE.sub(" ", "".join(found)).split())
    return line if len(line) <= at_most else line[: at_most - 1].rstrip() + "…"


# A function that sends a message to an address, and returns why that failed, or None.
Deliver: TypeAlias = Callable[[str, Message], Awaitable[str | None]]
SECONDS_AT_MOST: Final = 20.0
_CHECK_SECONDS_AT_MOST: Final = 60.0
# -P: files in the working directory cannot replace a library.
_COMMAND: Final = (sys.executable, "-P", str(Path(__file__).with_name("apprise_program.py")))
_VARIABLES: Final = frozenset(
    {
        *("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH"),
        *("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "SSL_CERT_FILE", "SSL_CERT_DIR"),
        *("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
        *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    }
)
_NO_ANSWER: Final = "the process that sends messages ended without an answer"


class CheckedAddress(Struct, frozen=True, kw_only=True):
    """An address as Apprise reads it.

    `fault` is `scheme` (Apprise has no such service), `format` (something is missing or misspelt),
    `library` (a library that the service needs is not installed), or None. `near` are similar
    schemes.
    """

    fault: str | None = None
    near: tuple[str, ...] = ()
    has_secret: bool = False


async def deliver(
    address: str, message: Message, *, seconds: float = SECONDS_AT_MOST
) -> str | None:
    """Send the message. Return why that failed, without any part of the address, or None."""
    asked = {"send": {"address": address, **message._asdict()}}
    try:
        async with asyncio.timeout(seconds):
            answer = await _answer_to(asked)
    except TimeoutError:
        return f"no answer within {seconds:.0f} seconds"
    except OSError as error:
        return f"no process could be started: {error.strerror}"
    match answer:
        case {"result": None}:
            return None
        case {"result": str(why)}:
            return why
        case _:
            return _NO_ANSWER


def check_addresses(addresses: Sequence[str]) -> Sequence[CheckedAddress]:
    """Check each address with Apprise, and send nothing. Raises OSError if the check fails."""
    asked = json.dumps({"check": addresses}).encode()
    try:
        process = subprocess.run(  # noqa: S603 - our own program
            _COMMAND,
            input=asked,
            capture_output=True,
            env=_environment(),
            timeout=_CHECK_SECONDS_AT_MOST,
            check=False,
        )
        found = convert(json.loads(process.stdout), dict[str, tuple[CheckedAddress, ...]])
        return found["result"]
    except (ValueError, ValidationError, KeyError, subprocess.TimeoutExpired):
        raise OSError(_NO_ANSWER) from None


async def _answer_to(asked: Mapping[str, Any]) -> object:
    process = await asyncio.create_subprocess_exec(
        *_COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=_environment(),
        start_new_session=True,  # Ctrl+C does not end the child process: the server waits for it
    )
    try:
        answer, _ = await process.communicate(json.dumps(asked).encode())
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    with suppress(ValueError):
        return json.loads(answer)
    return None


def _environment() -> Mapping[str, str]:
    return {name: os.environ[name] for name in _VARIABLES if name in os.environ}
