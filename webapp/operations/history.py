"""The records that belong to an id, and their history in order of time: `elicit show ID`.

The id can come from a page, a log line, a list, an event or a provider's dashboard. It can be the
id of a question (or its link), a payment, a checkout session, a webhook, an outgoing event, an
account or a call. The command shows the question that the id belongs to, with the question's
timeline.

Risks: an id matches two records; the command then names both and shows neither. A timeline could
reveal a question's text or answer, so it has only kinds, states, reasons and ids.
"""

import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from flows.crypto.tokens import Purpose, Tokens
from flows.elicitation.run import Run
from flows.elicitation.states import RECORD_RETENTION, Elicitation
from flows.elicitation.traits import traits_of
from flows.errors import InvalidToken, Unreadable
from flows.kinds.form import voting_of
from flows.oauth.connection import Connection
from flows.payments.receipt import Payment, ReceiptStatus
from flows.payments.session import UnresolvedPayment, sessions_of
from flows.shown import counted
from webapp.command import CommandRefused
from webapp.elicitations.links import LINK_OUTLIVES
from webapp.operations.rows import CANDIDATES_NAMED, OWNER_CHARACTERS, each_row, kind_word
from webapp.printing import printed
from webapp.records.chain import AUDIT, begins_after, block_of, opened
from webapp.records.ids import tail_of
from webapp.records.owners import Locker
from webapp.records.values import KINDS, OutgoingEvent, StoredWebhook
from webapp.service import Service

Found: TypeAlias = (
    Elicitation | Payment | UnresolvedPayment | StoredWebhook | OutgoingEvent | Connection | Run
)
# The order in which the kinds are searched.
_SOUGHT: Final[tuple[type[Found], ...]] = (
    *(Elicitation, Payment, UnresolvedPayment, StoredWebhook, Connection, Run, OutgoingEvent),
)
ERROR_NUMBER: Final = re.compile(r"[0-9a-f]{12}")  # the number on an error page
LINK: Final = re.compile(r"(https?://\S+)/e/([\w.~-]+)")
_SHORTEST: Final = 4
_AUDITED_OPEN: Final = re.compile(r"audit \d+: elicitation opened.*")
# The action of the server at the `due_at` of a payment, by the payment's status.
_DUE: Final = {
    ReceiptStatus.OPEN: "is refunded automatically if no call uses it",
    ReceiptStatus.REFUNDING: "the refund is tried or checked again",
}
_UNTIMED: Final = "yes; the time is not recorded"
# kinds of pages with a Continue button that leads elsewhere
_AWAY: Final = ("url", "account", "payment")


class Gathered(NamedTuple):
    """A record, its question if it has one, and all records of that question."""

    found: Found
    question: Elicitation | None
    about: list[Found]


class QuestionStage(Struct, frozen=True, kw_only=True):
    """A stage of a question. If `at` is None, `says` tells whether the stage was reached."""

    name: str
    at: datetime | None
    says: str


class TimelineRow(Struct, frozen=True, kw_only=True):
    """An event in the history. `id` is the id of the record that changed, as lists show it."""

    at: datetime
    what: str
    id: str | None = None
    why: str | None = None


class History(Struct, frozen=True, kw_only=True):
    """The records that belong to an id. `question`, `payments` and `accounts` are their ids.

    `failed_starts` is the number of presses of Continue that failed because the provider was
    unreachable.
    """

    id: str
    kind: str
    status: str
    why: str | None = None
    owner: str
    question: str | None = None
    asks: str | None = None
    tool: str | None = None
    server: str | None = None
    client: str | None = None
    provider: str | None = None
    payments: list[str] = []
    accounts: list[str] = []
    sessions: list[str] = []
    failed_starts: int | None = None
    led_nowhere: int | None = None  # see FORMER_FIELDS
    timeline: list[TimelineRow] = []


async def show(service: Service, id: str) -> History:
    """Return the history of the record with this id. Raises CommandRefused."""
    meant = await found_by(service, id)
    if len(meant) > 1:
        named = "; ".join(f"{word_of(row)} {tail_of(row)}" for row in meant[:CANDIDATES_NAMED])
        more = "; ..." if len(meant) > CANDIDATES_NAMED else ""
        raise CommandRefused(f"{printed(id)} is the id of {len(meant)} records: {named}{more}.")
    return await history_of(service, await gathered(service, meant[0]))


async def found_by(service: Service, id: str) -> list[Found]:
    """Return the record that an id means, or several records that it could mean.

    Raises:
        CommandRefused: Nothing is stored under this id.
    """
    if (link := LINK.search(id)) is not None:
        return [await _by_link(service, link[2], server=link[1])]
    if id.startswith("evt_") and (event := await service.events.find(id)) is not None:
        return [event]
    rows = await _alike(service, id)
    exact = [row for row in rows if id in _names_of(row)]
    meant = {(type(row), row.id): row for row in exact or rows}
    if not meant:
        raise _nothing(id)
    if len(meant) > 1 and len({_question_id(row) for row in meant.values()} - {None}) == 1:
        # All these rows have the same question and timeline. Choose by the order of the kinds.
        return [min(meant.values(), key=lambda row: _SOUGHT.index(type(row)))]
    return [*meant.values()]


async def _alike(service: Service, id: str) -> list[Found]:
    """Return every row with an id that equals `id`, or begins with a long enough `id`."""
    found = list[Found]()
    for kind in _SOUGHT:
        async for row in each_row(service, kind):
            names = _names_of(row)
            begins = len(id) >= _SHORTEST and any(name.startswith(id) for name in names)
            if begins or id in names:
                found.append(row)
    return found


def word_of(row: Found) -> str:
    """Return the word that operators see for this kind of record."""
    return "question" if isinstance(row, Elicitation) else kind_word(KINDS[type(row)])


def _names_of(row: Found) -> tuple[str, ...]:
    """Return the ids by which a row can be found, our own first."""
    names: list[str | None] = [tail_of(row), row.id]
    match row:
        case Elicitation():
            names += [*sessions_of(row), row.waiter, row.run]
        case Payment():
            names += [row.session, row.payment_intent, row.refund_id, *row.disputes]
        case UnresolvedPayment():
            names += [row.session]
        case StoredWebhook():
            names += [row.event, row.session]
        case OutgoingEvent():
            names = [row.webhook_id]
        case Connection() | Run():
            pass
    return tuple(name for name in names if name)


async def _by_link(service: Service, token: str, *, server: str) -> Elicitation:
    """Return the question of a link, which may have expired. Raises CommandRefused."""
    tokens, now = Tokens(service.elicitations.owners.ring, origin=server), service.clock()
    longer = service.elicitations.rows.retention_overrides.get(Elicitation, timedelta())
    stored_for = RECORD_RETENTION + max(longer, timedelta())
    for days in range((stored_for + LINK_OUTLIVES) // timedelta(days=1) + 2):
        try:
            then = now - timedelta(days=days)
            claims = tokens.read(token, purpose=Purpose.LINK, now=then)
        except InvalidToken as error:
            if error.reason not in ("expired", "malformed"):  # a token of another day is malformed
                break
            continue
        found = await service.elicitations.get(claims.id)
        if found is not None:
            return found
        raise CommandRefused(
            "The question of this link was erased: ELICIT_KEEP_RECORDS sets how long ended "
            "questions are stored."
        )
    raise CommandRefused(
        f"No server of this store created this link at {printed(server)}: copy the whole link, and "
        "set ELICIT_SECRET to the server's secret."
    )


def _nothing(id: str) -> CommandRefused:
    if ERROR_NUMBER.fullmatch(id):
        where = f"journalctl -u elicit | grep {id}"
        return CommandRefused(
            f"{id} is the number of an error page, or of a problem of the HTTP API: the log has it "
            f"as error_id= or among error_ids=. Find the line with `{where}`, or in the same way "
            "with docker compose logs or kubectl logs. It says what went wrong, and its id= is the "
            "question, for elicit show."
        )
    return CommandRefused(
        f"Nothing is stored under {printed(id)}. The lists show what is stored: elicit questions "
        "list, payments list, webhooks list, events list. ELICIT_KEEP_RECORDS, "
        "ELICIT_KEEP_WEBHOOKS and ELICIT_KEEP_EVENTS set how long ended questions, webhooks and "
        "events are stored."
    )


def _question_id(row: Found) -> str | None:
    match row:
        case Elicitation():
            return row.id
        case Payment() | UnresolvedPayment():
            return row.elicitation_id
        case StoredWebhook():
            return row.elicitation_id or None
        case OutgoingEvent():
            about = row.facts.get("question") or (row.facts["id"] if "kind" in row.facts else None)
            return None if about is None else str(about)
        case Connection():
            return row.came_by
        case Run():
            return row.asked[-1].elicitation_id if row.asked else None


async def _question_of(service: Service, row: Found) -> Elicitation | None:
    if isinstance(row, Elicitation):
        return row
    id = _question_id(row)
    return None if id is None else await service.elicitations.get(id)


async def gathered(service: Service, found: Found) -> Gathered:
    """Return this record with its question, and the other records of that question."""
    question, owner = await _question_of(service, found), found.owner
    about: list[Found] = [found] if question is None else [question]
    if question is not None:
        for kind in _SOUGHT[1:]:
            rows = await service.elicitations.all(kind, owner=owner, skips_unreadable=True)
            about += [row for row in rows if _question_id(row) == question.id]
    if all(row.id != found.id for row in about):
        about.append(found)
    return Gathered(found, question, about)


async def history_of(service: Service, records: Gathered) -> History:
    """Return the facts and the timeline of these records."""
    (found, question, about), owner = records, records.found.owner
    happened = [each for row in about for each in _happened(row)]
    ids = {tail_of(row) for row in about}
    happened += [each async for each in _audited(service, owner, ids)]
    asked = None if question is None else question.request
    failed_starts = None if question is None else question.led_nowhere or None
    return History(
        id=tail_of(found) if not isinstance(found, OutgoingEvent) else found.webhook_id,
        kind=word_of(found),
        status=str(getattr(found, "status", "")),
        why=getattr(found, "why", None),
        owner=owner[:OWNER_CHARACTERS],
        question=None if question is None else tail_of(question),
        asks=None if question is None else question.kind,
        tool=None if asked is None else asked.tool or None,
        server=None if asked is None else asked.server,
        client=None if asked is None else asked.client,
        provider=getattr(found, "seller", None) or getattr(found, "provider", None),
        payments=[tail_of(row) for row in about if isinstance(row, Payment)],
        accounts=[tail_of(row) for row in about if isinstance(row, Connection)],
        sessions=[] if question is None else [*sessions_of(question)],
        failed_starts=failed_starts,
        led_nowhere=failed_starts,
        timeline=sorted(happened, key=lambda each: each.at),
    )


def _happened(row: Found) -> Iterator[TimelineRow]:
    """Yield the past events of a row, each with its time."""
    times: Mapping[str, datetime | None]
    match row:
        case Elicitation():
            times = _of_question(row)
        case Payment():
            times = {
                f"paid {row.price}": row.paid_at,
                "used by a call": row.spent_at,
                f"refunded {row.refunded_price}": row.refunded_at,
                _DUE.get(row.status, "the provider is asked about it"): row.due_at,
            }
        case UnresolvedPayment():
            times = {"unknown whether it was paid": row.found_at, f"{row.status}": row.ended_at}
        case StoredWebhook():
            times = {
                f"webhook {row.type or 'event'} {row.status}": row.received_at,
                "replayed": row.replayed_at,
            }
        case OutgoingEvent():
            event = f"event {row.type} to {row.address}"
            sent = f"{event} {row.status} ({counted(row.tries, 'try', 'tries')})"
            times = {event: row.happened_at, sent: row.sent_at or row.due_at}
        case Connection():
            times = {
                f"account connected at {row.provider}": row.connected_at,
                "access token issued": row.issued_at,
                "refresh refused": row.refused_at,
                "account lapsed": row.lapsed_at,
                "account disconnected": row.ended_at,
            }
        case Run():
            times = {"call began": row.created_at, f"call {row.status}": row.finished_at}
    id = row.webhook_id if isinstance(row, OutgoingEvent) else tail_of(row)
    why = getattr(row, "why", None) or getattr(row, "reason", None)
    last = max((at for at in times.values() if at is not None), default=None)
    for what, at in times.items():
        if at is not None:
            yield TimelineRow(at=at, what=what, id=id, why=why if at == last else None)


def _of_question(row: Elicitation) -> Mapping[str, datetime | None]:
    attempts = [*row.earlier_attempts, *([] if row.attempt is None else [row.attempt])]
    late = " late" if row.is_late else ""
    return {
        f"asked: {row.kind}": row.created_at,
        **{
            f"Continue pressed ({each.number})" + (f": {each.trouble}" if each.trouble else ""): (
                each.started_at
            )
            for each in attempts
        },
        **_of_voting(row),
        f"{row.status.value}{late}": row.settled_at,
        "result delivered": row.delivered_at,
        "its time ends": None if row.status.is_final else row.expires_at,
    }


def _of_voting(row: Elicitation) -> Mapping[str, datetime | None]:
    """Return the votes of approvers, and the escalation, with their times."""
    voting = voting_of(row)
    if voting is None:
        return {}
    found = dict[str, datetime | None]()
    given = 0
    for vote in voting.votes:
        given += vote.to is None
        what = f"approval {given} of {voting.needs}" if vote.to is None else "delegated"
        to = "" if vote.to is None else f" to {vote.to_label}"
        found[f"{what} by {vote.name}{to}"] = vote.at
    ended_at = row.settled_at or row.expires_at
    if voting.escalates_at is not None and voting.escalates_at < ended_at:
        found[f"escalates to {voting.escalates_to}"] = voting.escalates_at
    return found


async def _audited(service: Service, owner: str, ids: set[str]) -> AsyncIterator[TimelineRow]:
    """Yield the audit entries about these rows, if the server has an audit."""
    async for entry in audit_entries_of(service, owner):
        if entry.about in ids and entry.at is not None:
            by = f" by {entry.by}" if entry.by else ""
            proof = f", trusted because of {entry.proof}" if entry.proof else ""
            what = f"audit {entry.number}: {entry.kind} {entry.what}{by}{proof}"
            yield TimelineRow(at=entry.at, what=what, id=entry.about, why=entry.why)


def stages_of(
    question: Elicitation, timeline: Sequence[TimelineRow], *, sent_at: datetime | None
) -> list[QuestionStage]:
    """Return the eight stages of a question, from the store and the audit.

    `sent_at` is when this process showed the question to its client, if it knows that.
    """
    attempts = [
        *question.earlier_attempts,
        *([] if question.attempt is None else [question.attempt]),
    ]
    audited = next((row.at for row in timeline if _AUDITED_OPEN.fullmatch(row.what)), None)
    opened = audited or (attempts[0].started_at if attempts else None)
    leaves = traits_of(question.kind).page in _AWAY
    has_returned = leaves and bool(attempts) and attempts[-1].state is None
    missing = "not recorded" if question.status.is_final else "not yet"
    spent = next((row.at for row in timeline if row.what == "used by a call"), None)
    late = ", late" if question.is_late else ""
    away = missing if leaves else "not needed: the page of this server asks"
    sent_away = attempts[-1].started_at if leaves and attempts else None

    def stage(name: str, at: datetime | None, says: str = "", *, otherwise: str) -> QuestionStage:
        return QuestionStage(name=name, at=at, says=otherwise if at is None else says)

    return [
        stage("Asked", question.created_at, otherwise=missing),
        stage("Shown", sent_at, otherwise="not recorded"),
        stage("Opened", opened, otherwise=missing),
        stage("Sent to the provider", sent_away, otherwise=away),
        stage("Returned", None, otherwise=_UNTIMED if has_returned else away),
        stage("Settled", question.settled_at, f"{question.status.value}{late}", otherwise=missing),
        stage("Claimed", spent, otherwise=missing if question.take is None else _UNTIMED),
        stage("Delivered", question.delivered_at, otherwise=missing),
    ]


# The audit entries of one owner, as operators see them.

_PAGE = 100


class AuditRow(Struct, frozen=True, kw_only=True):
    """An audit entry. An entry that can no longer be opened has only its number.

    `about` is the record's id as lists show it, `proof` is why an answer was accepted, and `digest`
    is the hash of everything that the person saw.
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


async def audit_entries_of(service: Service, owner: str) -> AsyncIterator[AuditRow]:
    """Yield the entries of an owner's chain, the oldest first. `owner` is the owner's tag."""
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
    except Unreadable:  # the entry is older than the erasure of the owner
        entry = None
    fields = {} if entry is None else msgspec.structs.asdict(entry)
    return AuditRow(number=number, **fields)
