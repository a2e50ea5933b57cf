"""The page of one record for operators, and the changes that they confirm on a second page.

Risks: another site makes an operator's browser send a form. So each form has a CSRF field for its
act and its record. Another risk: a page makes a change that the HTTP API and the commands do not
offer. So the changes are those of `webapp.operations.acts`. A GET changes nothing.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final, cast
from urllib.parse import urlencode

from litestar import Response, post, route
from litestar.exceptions import NotFoundException
from litestar.params import FromPath

from flows.elicitation.run import Run
from flows.elicitation.states import Elicitation
from flows.oauth.connection import Connection
from flows.payments.money import Money
from flows.payments.receipt import Payment, ReceiptStatus
from webapp.command import CommandRefused
from webapp.http.parts import READ
from webapp.identity.operators import OperatorDecision
from webapp.operations import acts
from webapp.operations.catalog import LISTS, PAGES
from webapp.operations.history import Found, gathered, history_of, stages_of, word_of
from webapp.operations.payment_rows import PaymentRow
from webapp.operations.rows import FORMER_FIELDS, listed, shown_body, text_of
from webapp.pages.views_operator import Act, Fact, OperatorAct, OperatorRecord
from webapp.records.ids import owner_of, tail_of
from webapp.records.owners import SERVICE
from webapp.records.values import OutgoingEvent, RefusedRegistration, StoredWebhook
from webapp.routes.answers import see_other
from webapp.routes.operator_access import HERE, about_operator, known_operator, operator_page
from webapp.routes.page_request import CurrentPage, PageRequest

LINKS_AT_MOST: Final = 20
_ID: Final = re.compile(r"[A-Za-z0-9_.~=-]{1,200}")
_ACTS: Final[Mapping[type[Any], Act]] = {
    Elicitation: "cancel",
    Payment: "refund",
    StoredWebhook: "replay",
    OutgoingEvent: "resend",
}
_REASON: Final = "refunded by an operator"
_LABELS: Final = {
    "owner": "Person",
    "refund_due_at": "Automatic refund due",
    "refunded": "Amount refunded",
    "disputed": "Amount claimed by a bank",
    "owed": "Amount owed to the person",
}
# Fields of a row that its title, its price or its note already shows.
_SHOWN_ELSEWHERE: Final = frozenset(
    {"id", "amount", "currency", "paid", "paid_currency", *FORMER_FIELDS}
)
_AMOUNTS: Final = frozenset({"refunded", "disputed", "owed"})  # in minor units
_log = logging.getLogger(__name__)


@route(HERE + "/{name:str}/{id:str}", http_method=READ)
async def operator_record(
    page: CurrentPage, name: FromPath[str], id: FromPath[str]
) -> Response[Any]:
    """Show a record, and the timeline of its question."""
    operator = await known_operator(page)
    found = await _found(page, name, id)
    service = page.service
    records = await gathered(service, found)
    history = await history_of(service, records)
    question = records.question
    sent = None if question is None else service.clients.sent_questions.get(question.id)
    stages = (
        []
        if question is None
        else stages_of(question, history.timeline, sent_at=None if sent is None else sent.at)
    )
    ids = {each.id for each in records.about} | {_id_of(each) for each in records.about}
    act = _ACTS.get(type(found))
    others = [each for each in records.about if each.id != found.id]
    view = OperatorRecord(
        **about_operator(page, operator, tab=name),
        title=f"{word_of(found).capitalize()} {tail_of(found)}",
        facts=(*_facts_of(page, found), *await _of_provider(page, found)),
        stages=tuple(Fact(label=one.name, at=one.at, text=one.says) for one in stages),
        timeline=tuple(
            Fact(label=event.why or "", text=event.what, at=event.at) for event in history.timeline
        ),
        links=tuple(link(each) for each in others[:LINKS_AT_MOST]),
        log_lines=tuple(line.text for line in service.recent_lines.about(ids)),
        acts=() if act is None or _has_ended(found) else ((act, f"{url_of(found)}/{act}"),),
        payload=shown_body(found.body) if isinstance(found, StoredWebhook) else None,
    )
    return operator_page(page, view)


@route(HERE + "/{name:str}/{id:str}/{act:str}", http_method=READ)
async def look_before_act(
    page: CurrentPage,
    name: FromPath[str],
    id: FromPath[str],
    act: FromPath[str],
) -> Response[Any]:
    """Show what a change will do, or redirect to the record if it cannot be changed now."""
    operator = await known_operator(page)
    found = await _acted_on(page, name, id, act)
    if _has_ended(found):
        return see_other(url_of(found))
    return operator_page(page, _act_view(page, operator, found, fault=None))


@post(HERE + "/{name:str}/{id:str}/{act:str}", status_code=HTTPStatus.SEE_OTHER)
async def operator_act(
    page: CurrentPage,
    name: FromPath[str],
    id: FromPath[str],
    act: FromPath[str],
) -> Response[Any]:
    """Make a change, and show the record. Repeating a cancellation or a refund changes nothing."""
    operator = await known_operator(page)
    found = await _acted_on(page, name, id, act)
    page.must_be_form_about(_subject(found))
    _log.warning("operator.acted", extra={"id": _id_of(found), "act": act, "by": operator.owner})
    try:
        await _do(page, found, by=operator.name)
    except CommandRefused as refused:
        view = _act_view(page, operator, found, fault=str(refused))
        return operator_page(page, view, status=HTTPStatus.CONFLICT)
    return see_other(url_of(found))


async def _do(page: PageRequest, found: Found, *, by: str) -> None:
    match found:
        case Elicitation():
            await acts.cancel(page.service, found.id, by=by)
        case Payment():
            spent = page.is_ticked("spent")
            await acts.refund(page.service, found, reason=_REASON, also_spent=spent, by=by)
        case StoredWebhook():
            await acts.replay(page.service, found)
        case OutgoingEvent():
            await page.service.events.replay(found.webhook_id)
        case _:
            raise NotFoundException


def facts(row: Any, fields: Sequence[str], *, owner: str | None = None) -> tuple[Fact, ...]:
    """Return the fields that have a value. With `owner`, link the person to their questions."""
    found = list[Fact]()
    for field in fields:
        value, label = getattr(row, field), label_of(field)
        if isinstance(row, PaymentRow) and field in _AMOUNTS:
            value = str(Money.from_minor_units(value, row.currency)) if value else ""
        if isinstance(value, datetime):
            found.append(Fact(label=label, at=value))
        elif field == "owner" and owner is not None:
            url = f"{HERE}/questions?{urlencode({'person': owner})}"
            found.append(Fact(label=label, text=value, url=url))
        elif text := text_of(value):
            found.append(Fact(label=label, text=text))
    return tuple(found)


def _facts_of(page: PageRequest, found: Found) -> tuple[Fact, ...]:
    if isinstance(found, Run):
        return (Fact(label="Status", text=found.status), Fact(label="Began", at=found.created_at))
    catalogued = LISTS[PAGES[type(found)]]
    row = catalogued.row(found, page.now)
    fields = [field for field in row.__struct_fields__ if field not in _SHOWN_ELSEWHERE]
    return facts(row, fields, owner=found.owner)


async def _of_provider(page: PageRequest, found: Found) -> tuple[Fact, ...]:
    """Return why the provider of an account refuses this server, if it does."""
    if not isinstance(found, Connection):
        return ()
    rows = (await listed(page.service, RefusedRegistration)).rows
    return tuple(
        Fact(
            label="The provider refuses this server",
            text=f"{row.fault}: {row.error or row.http_status}",
            at=row.last_at,
        )
        for row in rows
        if row.provider == found.provider and row.is_refused and row.owner in (SERVICE, found.owner)
    )


def label_of(field: str) -> str:
    """Return the label of a field: `asked_at` becomes "Asked", `is_live` becomes "Live"."""
    plain = field.removeprefix("is_").removesuffix("_at").replace("_", " ")
    return _LABELS.get(field, plain.capitalize())


def _id_of(record: Found) -> str:
    return record.webhook_id if isinstance(record, OutgoingEvent) else record.id


def url_of(record: Found) -> str:
    return f"{HERE}/{PAGES[type(record)]}/{_id_of(record)}"


def link(record: Found) -> Fact:
    label = "Call" if isinstance(record, Run) else word_of(record).capitalize()
    return Fact(label=label, text=tail_of(record), url=url_of(record))


async def record_of(page: PageRequest, id: str) -> Found | None:
    """Return the record with this complete id, or None."""
    if _ID.fullmatch(id) is None:
        return None
    for kind in PAGES:
        if (found := await _read(page, kind, id)) is not None:
            return found
    return None


async def _read(page: PageRequest, kind: type[Any], id: str) -> Found | None:
    if kind is OutgoingEvent:
        return await page.service.events.find(id)
    owner = SERVICE if id.startswith(SERVICE) else owner_of(id)
    return cast("Found | None", await page.service.elicitations.read(kind, owner=owner, id=id))


async def _found(page: PageRequest, name: str, id: str) -> Found:
    kind = next((kind for kind, known in PAGES.items() if known == name), None)
    found = None if kind is None or not _ID.fullmatch(id) else await _read(page, kind, id)
    if found is None:
        raise NotFoundException
    return found


async def _acted_on(page: PageRequest, name: str, id: str, act: str) -> Found:
    found = await _found(page, name, id)
    if _ACTS.get(type(found)) != act:
        raise NotFoundException
    return found


def _has_ended(found: Found) -> bool:
    """Return True for a question or a payment that an operator cannot change any more."""
    if isinstance(found, Elicitation):
        return found.status.is_final
    return isinstance(found, Payment) and found.has_ended


def _subject(found: Found) -> str:
    return f"operator {_ACTS[type(found)]} {_id_of(found)}"


def _act_view(
    page: PageRequest, operator: OperatorDecision, found: Found, *, fault: str | None
) -> OperatorAct:
    name, act = PAGES[type(found)], _ACTS[type(found)]
    row = LISTS[name].row(found, page.now)
    return OperatorAct(
        **about_operator(page, operator, tab=name),
        change=act,
        title=f"{word_of(found).capitalize()} {tail_of(found)}",
        facts=facts(row, (LISTS[name].status, *LISTS[name].shows), owner=found.owner),
        action=f"{url_of(found)}/{act}",
        csrf=page.csrf(_subject(found)),
        back=url_of(found),
        is_spent=isinstance(found, Payment) and found.status is ReceiptStatus.SPENT,
        fault=fault,
    )
