"""The lists of the operator's pages: what each shows, how it is filtered, and where an entry leads.

Each list has a row class that a command prints, too; a page shows some of its fields, and a CSV
file has all of them.
"""

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from io import StringIO
from typing import Any, Final

from msgspec import Struct

from flows.elicitation.run import Run
from flows.elicitation.states import Elicitation
from flows.oauth.connection import Connection
from flows.payments.receipt import Payment, ReceiptStatus
from flows.payments.session import UnresolvedPayment
from webapp.operations.payment_rows import PaymentRow, of_payment, of_unresolved
from webapp.operations.rows import (
    AccountRow,
    ClientRow,
    EventRow,
    QuestionRow,
    WebhookRow,
    account_row,
    client_row,
    event_row,
    question_row,
    rejected_row,
    text_of,
    webhook_row,
)
from webapp.printing import printed
from webapp.records.owners import SERVICE
from webapp.records.values import ClientRecord, OutgoingEvent, StoredWebhook, TurnedAway

# Spreadsheet programs run a cell of a CSV file as a formula if it begins with such a character.
_FORMULA: Final = tuple("=+-@\t\r\uff1d\uff0b\uff0d\uff20")


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogued:
    """A list. `row` makes a row of a record, and `time` is the field by which the list is sorted.

    `title` and `shows` are the fields that an entry shows. `filters` are the fields that can be
    filtered. `status` names the status field, and `quick` are its values that have a filter link.
    `has_page` is True if each entry has its own page.
    """

    label: str
    kind: type[Any]
    of: type[Struct]
    row: Callable[[Any, datetime], Any]
    time: str
    title: tuple[str, ...]
    shows: tuple[str, ...]
    filters: tuple[str, ...]
    quick: tuple[str, ...] = ()
    status: str = "status"
    has_page: bool = True
    owner: str | None = None  # the only owner of such rows


LISTS: Final[Mapping[str, Catalogued]] = {
    "questions": Catalogued(
        label="Questions",
        kind=Elicitation,
        of=QuestionRow,
        row=lambda asked, _: question_row(asked),
        time="asked_at",
        title=("kind", "id"),
        shows=("tool", "client", "owner", "asked_at", "ended_at", "why"),
        filters=("kind", "tool", "server", "client", "why"),
        quick=("open", "accepted", "declined", "denied", "expired", "cancelled", "failed", "late"),
    ),
    "payments": Catalogued(
        label="Payments",
        kind=Payment,
        of=PaymentRow,
        row=lambda paid, _: of_payment(paid, is_claimed=paid.status is ReceiptStatus.TAKEN),
        time="paid_at",
        title=("price", "id"),
        shows=("what", "tool", "provider", "owner", "paid_at", "spent_at", "refunded_at", "note"),
        filters=("tool", "what", "provider", "session", "payment", "currency"),
        quick=("open", "spent", "refunding", "refunded", "disputed"),
        status="standing",
    ),
    "unresolved": Catalogued(
        label="To check",
        kind=UnresolvedPayment,
        of=PaymentRow,
        row=lambda paid, _: of_unresolved(paid),
        time="paid_at",
        title=("price", "id"),
        shows=("what", "tool", "provider", "owner", "paid_at", "session", "note"),
        filters=("tool", "what", "provider", "session"),
        status="standing",
    ),
    "webhooks": Catalogued(
        label="Webhooks",
        kind=StoredWebhook,
        of=WebhookRow,
        row=lambda hook, _: webhook_row(hook),
        time="received_at",
        title=("event", "id"),
        shows=("provider", "received_at", "why"),
        filters=("provider", "event", "why"),
        quick=("applied", "waiting", "repeated", "refused", "unknown", "ignored"),
    ),
    "rejected": Catalogued(
        label="Rejected",
        kind=TurnedAway,
        of=WebhookRow,
        row=lambda count, _: rejected_row(count),
        time="received_at",
        title=("provider",),
        shows=("why", "times", "received_at"),
        filters=("provider", "why"),
        has_page=False,
        owner=SERVICE,
    ),
    "accounts": Catalogued(
        label="Accounts",
        kind=Connection,
        of=AccountRow,
        row=lambda account, now: account_row(account, now=now),
        time="connected_at",
        title=("provider", "label"),
        shows=("why", "owner", "connected_at", "refreshed_at", "used_at", "tools"),
        filters=("provider", "label", "why", "tools"),
        quick=("connected", "lapsed", "disconnected"),
    ),
    "clients": Catalogued(
        label="Clients",
        kind=ClientRecord,
        of=ClientRow,
        row=lambda client, _: client_row(client),
        time="seen_at",
        title=("name",),
        shows=("forms", "links", "confirms", "owner", "seen_at", "until"),
        filters=("name", "version", "forms", "links", "confirms"),
        status="version",
        has_page=False,
    ),
    "events": Catalogued(
        label="Outgoing events",
        kind=OutgoingEvent,
        of=EventRow,
        row=lambda event, _: event_row(event),
        time="happened_at",
        title=("type", "about"),
        shows=("address", "tries", "happened_at", "next_at", "sent_at", "why"),
        filters=("address", "type", "about", "why"),
        quick=("waiting", "sent", "given up"),
    ),
}
# The list that a record found by the search belongs to. A call has no list.
PAGES: Final[Mapping[type[Any], str]] = {
    **{listed.kind: name for name, listed in LISTS.items() if listed.has_page},
    Run: "calls",
}


def csv_of(of: type[Struct], rows: Iterable[Struct]) -> str:
    """Return the rows as a CSV file (RFC 4180), in which no cell is a formula."""
    text = StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    names: Sequence[str] = of.__struct_fields__
    writer.writerow(names)
    for row in rows:
        writer.writerow([_cell(text_of(getattr(row, name))) for name in names])
    return text.getvalue()


def _cell(text: str) -> str:
    shown = printed(text)
    return f"'{shown}" if shown.lstrip().startswith(_FORMULA) else shown
