"""The rows of operators' lists: a class for each list, and how a record becomes a row.

Risks: a list lets its reader answer a question or read its text. Rows therefore have no links
and no text of a question, and owners and ids are shortened. Another risk: a list reads or decrypts
so many rows that other requests have to wait. So it reads a limited number of rows at once, says if
there are more, and lets other work run while it decrypts them.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, Final, Generic, TypeVar, cast

from msgspec import Struct

from flows.elicitation.ending import EndingCallback
from flows.elicitation.states import Elicitation
from flows.errors import Unreadable
from flows.oauth.connection import Connection
from flows.payments.session import UnresolvedPayment
from webapp.logs.masking import MASK
from webapp.records.ids import tail_of
from webapp.records.values import (
    KINDS,
    ClientRecord,
    DoneOnce,
    EarlyEvent,
    OutgoingEvent,
    Reconciliation,
    Standing,
    StoredWebhook,
    TurnedAway,
    Value,
)
from webapp.service import Service

OWNER_CHARACTERS: Final = 6
CANDIDATES_NAMED: Final = 5
# Former names of fields. Until the next release, JSON, CSV and `--where` have these names too.
FORMER_FIELDS: Final[Mapping[str, str]] = {
    "claimed": "disputed",
    "given_back_by_itself_at": "refund_due_at",
    "led_nowhere": "failed_starts",
}
_KIND_WORDS: Final[Mapping[str, str]] = {
    KINDS[UnresolvedPayment]: "unresolved payment",
    KINDS[StoredWebhook]: "webhook",
    KINDS[EarlyEvent]: "early webhook",
    KINDS[Reconciliation]: "reconciliation of payments",
    KINDS[DoneOnce]: "result of once",
    KINDS[EndingCallback]: "callback of on_end",
    KINDS[Standing]: "list of open questions",
}


def kind_word(kind: str) -> str:
    """Return the word that operators see for a kind of record."""
    return _KIND_WORDS.get(kind, kind)


class QuestionRow(Struct, frozen=True, kw_only=True):
    """A question to one person. `why` is the reason of a failed or declined question."""

    id: str
    kind: str
    status: str
    why: str | None = None
    tool: str
    server: str
    client: str | None = None
    owner: str
    asked_at: datetime
    expires_at: datetime
    ended_at: datetime | None = None
    delivered_at: datetime | None = None


def question_row(asked: Elicitation) -> QuestionRow:
    return QuestionRow(
        id=tail_of(asked),
        kind=asked.kind,
        status="late" if asked.is_late else asked.status.value,
        why=asked.why,
        tool=asked.request.tool,
        server=asked.request.server,
        client=asked.request.client,
        owner=asked.owner[:OWNER_CHARACTERS],
        asked_at=asked.created_at,
        expires_at=asked.expires_at,
        ended_at=asked.settled_at,
        delivered_at=asked.delivered_at,
    )


class WebhookRow(Struct, frozen=True, kw_only=True):
    """A delivery, or the number of deliveries rejected on one day for one reason, without an id.

    `status` is the result of the delivery, or `turned away`.
    """

    id: str | None
    provider: str
    event: str | None
    status: str
    why: str | None
    times: int
    received_at: datetime


class Webhook(WebhookRow, frozen=True, kw_only=True):
    """The details of a delivery. `is_of_ours` is True if it is about one of our payments."""

    event_id: str
    is_of_ours: bool
    is_whole: bool
    erased_at: datetime
    replayed_at: datetime | None
    body: str


def webhook_row(hook: StoredWebhook) -> WebhookRow:
    return WebhookRow(
        id=tail_of(hook),
        provider=hook.seller,
        event=hook.type or None,
        status=hook.status,
        why=hook.why,
        times=1,
        received_at=hook.received_at,
    )


def rejected_row(row: TurnedAway) -> WebhookRow:
    what = row.reason.removeprefix("other_")
    if row.reason == "unknown":
        why = "not about a payment of this server"
    elif what != row.reason:
        why = f"its {what} differs from the request"
    else:
        why = f"not verified: {row.reason}"
    return WebhookRow(
        id=None,
        provider=row.seller,
        event=None,
        status="turned away",
        why=why,
        times=row.count,
        received_at=row.last_at or datetime.fromisoformat(row.day).replace(tzinfo=UTC),
    )


class ClientRow(Struct, frozen=True, kw_only=True):
    """A person's client, and what the client last did with forms, links and confirmations.

    None means that the server sent the client no question of this kind.
    """

    id: str
    name: str
    version: str
    owner: str
    forms: str | None
    links: str | None
    confirms: str | None
    seen_at: datetime
    until: datetime


def client_row(client: ClientRecord) -> ClientRow:
    reactions = [one for one in (client.forms, client.confirms, client.links) if one is not None]
    return ClientRow(
        id=tail_of(client),
        name=client.name,
        version=client.release,
        owner=client.owner[:OWNER_CHARACTERS],
        forms=None if client.forms is None else client.forms.what,
        confirms=None if client.confirms is None else client.confirms.what,
        links=None if client.links is None else client.links.what,
        seen_at=max(reaction.at for reaction in reactions),
        until=max(reaction.until for reaction in reactions),
    )


class EventRow(Struct, frozen=True, kw_only=True):
    """An outgoing event. `id` is its `webhook-id`, `about` the question, payment or account.

    `next_at` is the time of the next attempt of an event that waits.
    """

    id: str
    address: str
    type: str
    about: str
    status: str
    why: str | None
    tries: int
    happened_at: datetime
    next_at: datetime | None
    sent_at: datetime | None


def event_row(event: OutgoingEvent) -> EventRow:
    return EventRow(
        id=event.webhook_id,
        address=event.address,
        type=event.type,
        about=str(event.facts["id"]).removeprefix(event.owner),
        status=event.status,
        why=event.why,
        tries=event.tries,
        happened_at=event.happened_at,
        next_at=event.due_at,
        sent_at=event.sent_at,
    )


class AccountRow(Struct, frozen=True, kw_only=True):
    """A connected account and its health. `why` says why it does not work, or what may stop it.

    `refreshed_at` is when its access token was issued, `works_until` when that token expires.
    """

    id: str
    provider: str
    label: str
    status: str
    why: str | None
    owner: str
    tools: list[str]
    connected_at: datetime
    refreshed_at: datetime | None
    works_until: datetime | None
    retry_at: datetime | None
    used_at: datetime | None
    ended_at: datetime | None
    question: str | None


def account_row(account: Connection, *, now: datetime) -> AccountRow:
    return AccountRow(
        id=tail_of(account),
        provider=account.provider,
        label=account.label,
        status=account.status,
        why=_why_not_working(account, now=now),
        owner=account.owner[:OWNER_CHARACTERS],
        tools=[*account.tools],
        connected_at=account.connected_at,
        refreshed_at=account.issued_at,
        works_until=account.expires_at,
        retry_at=account.retry_at,
        used_at=max(account.used.values(), default=None),
        ended_at=account.ended_at or account.lapsed_at,
        question=None if account.came_by is None else account.came_by.removeprefix(account.owner),
    )


def _why_not_working(account: Connection, *, now: datetime) -> str | None:
    if account.ended_at is not None:
        by = f" by {account.ended_by}" if account.ended_by else ""
        return f"disconnected{by}"
    if account.lapsed_at is not None:
        return "the provider refused to renew it: the person has to connect it again"
    if account.refused_at is not None:
        return "the provider refused to renew it once, and the server tries again"
    if account.retry_at is not None and now < account.retry_at:
        return "the last renewal failed, and the server tries again"
    if account.refresh_token is None and not account.works(now=now):
        return "it expired, and the provider issued nothing to renew it with"
    return None


def text_of(value: Any) -> str:
    """Return a field's value as text for a program that reads the output from a pipe."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case datetime():
            return f"{value.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
        case Mapping():
            pairs = cast("Mapping[str, object]", value)
            return ", ".join(f"{name} {text_of(each)}" for name, each in pairs.items())
        case list() | tuple():
            return ", ".join(map(text_of, cast("Sequence[object]", value)))
        case _:
            return str(value)


# The body of a webhook as operators see it: readable, and without keys and tokens.
#
# Risks: a provider sends a key with which a browser could confirm a payment (`client_secret`), or
# one of our own tokens in an address, and the page shows it. So the values of fields with such
# names and our tokens are masked, also in a truncated body.

_NAMES: Final = "secret|token|password|authorization|cookie|signature|api_?key"
_SECRET: Final = re.compile(_NAMES, re.IGNORECASE)
_FIELD: Final = re.compile(
    rf"""((?:{_NAMES})[\w.\[\]-]{{0,40}}"?\s{{0,9}}[:=]\s{{0,9}})"""
    r"""("(?:[^"\\]|\\.)*"?|[^&\s,}\]]+)""",
    re.IGNORECASE,
)
# Our own tokens in the addresses to which a provider redirects. The log masks the same tokens.
_OUR_LINKS: Final = re.compile(r"(?<![\w-])[\w-]{40,}\.[\w-]{43}(?![\w-])")
_VALUE: Final = re.compile(r"(_secret_|\b(?:sk|rk|whsec)_)\w{8,}")


def shown_body(body: str) -> str:
    """Return the body with masked keys; JSON is indented."""
    try:
        text = json.dumps(_masked(json.loads(body)), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        text = _FIELD.sub(rf"\1{MASK}", body)
    return _OUR_LINKS.sub(MASK, _VALUE.sub(rf"\1{MASK}", text))


def _masked(value: Any) -> Any:
    match value:
        case dict():
            fields = cast("dict[str, Any]", value).items()
            return {
                name: MASK if each is not None and _SECRET.search(name) else _masked(each)
                for name, each in fields
            }
        case list():
            return [_masked(each) for each in cast("list[object]", value)]
        case _:
            return value


# Lists of records for a page: one read of the rows, one read of the data keys, then the filters.

ROWS_AT_MOST: Final = 10_000
_OPENED_AT_ONCE: Final = 100
_AGE: Final = re.compile(r"(\d{1,6})(min|h|d)")
_UNITS: Final[Mapping[str, timedelta]] = {
    "min": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
T = TypeVar("T", bound=Value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed(Generic[T]):
    """The rows of a list. `unreadable` is the number of rows that cannot be read.

    `more_after` is the id after which the store has more rows, or None.
    """

    rows: list[T]
    more_after: str | None
    unreadable: int


async def listed(
    service: Service,
    kind: type[T],
    *,
    owner: str | None = None,
    after: str | None = None,
    at_most: int = ROWS_AT_MOST,
) -> Listed[T]:
    """Return the rows of this kind, of one owner or of all, with two reads of the store.

    `after` is the id of the last row that the caller has seen.
    """
    elicitations, found, unreadable = service.elicitations, list[T](), 0
    records = await elicitations.store.list(KINDS[kind], owner=owner, after=after, limit=at_most)
    await elicitations.owners.cache({each.owner for each in records}, at_most=at_most)
    for number, record in enumerate(records, start=1):
        try:
            found.append(await elicitations.rows.open(record, kind))
        except Unreadable:
            unreadable += 1
        if number % _OPENED_AT_ONCE == 0:
            await asyncio.sleep(0)  # let other requests run
    more_after = records[-1].id if len(records) == at_most else None
    return Listed(rows=found, more_after=more_after, unreadable=unreadable)


async def each_row(
    service: Service, kind: type[T], *, at_most: int = ROWS_AT_MOST
) -> AsyncIterator[T]:
    """Yield all rows of this kind, with two reads of the store for each `at_most` rows.

    Rows that cannot be read are skipped.
    """
    part = await listed(service, kind, at_most=at_most)
    while True:
        for row in part.rows:
            yield row
        if part.more_after is None:
            return
        part = await listed(service, kind, after=part.more_after, at_most=at_most)


def matches(text: str, pattern: str) -> bool:
    """Return True if the text fits the pattern, in which * matches anything."""
    return fnmatchcase(text.casefold(), pattern.casefold())


def is_within(moment: datetime | None, *, since: datetime | None, until: datetime | None) -> bool:
    if moment is None:
        return since is None and until is None
    return (since is None or moment >= since) and (until is None or moment < until)


def moment_of(text: str, *, now: datetime) -> datetime:
    """Return the time that an operator wrote: in UTC, or as an age such as 90min, 12h or 7d.

    Raises:
        ValueError: The text is neither.
    """
    try:
        if (age := _AGE.fullmatch(text)) is not None:
            return now - int(age[1]) * _UNITS[age[2]]
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not a time: write it in UTC, such as 2026-03-01T03:12, or an age, such "
            "as 90min or 7d"
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
