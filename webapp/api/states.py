"""The state of a question, built field by field for the key that reads it.

Risks: a response contains an account's access token, or an approver's API key can read a user's
answer. So an account is shown by its name, and only the program that asked receives the answer.
"""

from collections.abc import Mapping
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from flows.elicitation.states import Elicitation, Json, Status
from flows.elicitation.traits import traits_of
from flows.errors import Failed
from flows.kinds.form import voting_of
from flows.oauth.connection import Connection
from flows.payments.claims import claimed_of, stage_of
from flows.payments.receipt import Payment
from flows.requests import AccountRequest
from webapp.api.access import Requester
from webapp.api.asking import KnownAnswer, teams_for
from webapp.api.representations import AccountData, PaymentData, QuestionState
from webapp.kinds.page_kind import arguments_in, terms_in
from webapp.records.ids import owner_of
from webapp.service import Service


async def to_question_state(
    requester: Requester, current: Elicitation, *, with_answer: bool = True
) -> QuestionState:
    """Return the question's state as the requester may see it.

    Only the program that asked and the person receive the link. Only the program receives the
    answer. A key that approves sees the form or the arguments to decide on.
    """
    service = requester.service
    has_link = requester.asks or requester.key is None
    is_open = not current.status.is_final and service.clock() < current.expires_at
    is_form = service.kinds.on_page(current.kind) is not None
    described, voting = current.request.described, voting_of(current)
    state = QuestionState(
        id=current.id,
        kind=current.kind,
        status=current.status.value,
        message=current.request.message,
        asked_by=current.request.tool,
        tool_title=None if described is None else described.title,
        server_title=current.request.server_title,
        user=current.user,
        asked_at=current.created_at,
        expires_at=current.expires_at,
        url=service.links.of(current, now=service.clock()) if has_link and is_open else None,
        needs_code=current.is_by_code and is_open,
        progress=current.progress,
        why=current.why,
        superseded_by=await _successor(service, current),
        is_late=current.is_late,
        schema=terms_in(current).get("schema") if is_form else None,
        arguments=arguments_in(current) if is_form else None,
        approver=None if voting is None else voting.approver,
        approvals=0 if voting is None else len(voting.approvals),
        approvals_needed=None if voting is None else voting.needs,
        settled_at=current.settled_at,
        taken_at=current.delivered_at,
        version=current.version,
    )
    if not (requester.asks and with_answer and current.status is Status.ACCEPTED):
        return state
    match traits_of(current.kind).gives:
        case "account":
            id = str(_facts(current.content).get("account"))
            scopes = service.kinds.accounts.terms(current).scopes
            account = await _account(service, id, scopes)
            teams = teams_for(requester, current.user)
            # A person who has left the team no longer sees the team's account.
            is_seen = account is not None and account.team in (None, *teams)
            return replace(state, account=account if is_seen else None)
        case "receipt":
            paid = await service.kinds.payments.ledger.paid(current)
            return replace(state, payment=None if paid is None else to_payment_data(paid))
        case None:
            comments = () if (voting := voting_of(current)) is None else voting.comments
            return replace(state, content=current.content, comments=comments)


async def _successor(service: Service, current: Elicitation) -> str | None:
    """Return the id of the elicitation that superseded `current` for the same question, or None."""
    if current.status is not Status.SUPERSEDED:
        return None
    held = await service.elicitations.holder(
        Elicitation, owner=current.owner, key=current.dedupe_key
    )
    return None if held is None or held.id == current.id else held.id


async def to_known_question_state(service: Service, known: KnownAnswer) -> QuestionState:
    """Return the state for an answer that was already known, without a stored question."""
    kind, content = known.question.request.kind, known.content
    status = Status.ACCEPTED.value
    state = QuestionState(id=None, kind=kind, status=status, message=known.question.message)
    match traits_of(kind).gives:
        case "account":
            id = str(_facts(content).get("connection"))
            request = known.question.request
            scopes = request.scopes if isinstance(request, AccountRequest) else ()
            return replace(state, account=await _account(service, id, scopes))
        case "receipt":
            return replace(state, payment=to_payment_data(msgspec.convert(content, Payment)))
        case None:
            return replace(state, content=content)


async def _account(service: Service, id: str, scopes: tuple[str, ...]) -> AccountData | None:
    """Return the account, or None if it was disconnected or the answer that named it was erased.

    `scopes` are those that the question asks for.
    """
    found = await service.elicitations.read(Connection, owner=owner_of(id), id=id)
    if found is None or not found.is_connected:
        return None
    return to_account_data(service, found, scopes=scopes)


def to_account_data(
    service: Service, found: Connection, *, scopes: tuple[str, ...] = ()
) -> AccountData:
    provider = service.kinds.accounts.connections.provider(found)
    api = None
    # `Failed`: this server has no OAuth client for the provider, or the provider's declaration
    # has changed
    with suppress(Failed):
        api, _ = service.kinds.accounts.connections.reach(found)
    return AccountData(
        id=found.id,
        provider=found.provider,
        label=found.label,
        scopes=found.scopes,
        missing=() if provider is None else provider.missing(scopes, granted=found.scopes),
        tenant=found.tenant,
        details=found.details,
        api=api,
        status=found.status,
        connected_at=found.connected_at,
        ends_at=found.ends_at if found.warned_at is not None and found.is_connected else None,
        team=found.team,
    )


def to_payment_data(paid: Payment) -> PaymentData:
    dispute = stage_of(paid)
    return PaymentData(
        id=paid.id,
        question_id=paid.elicitation_id,
        provider=paid.seller,
        status=paid.status.value,
        amount=paid.amount,
        currency=paid.currency,
        what=paid.what,
        is_live=paid.is_live,
        paid_at=paid.paid_at,
        refunded=paid.refunded,
        refunded_at=paid.refunded_at,
        is_refund_pending=paid.is_refund_pending,
        owed=paid.owed,
        dispute=None if dispute is None else dispute.value,
        disputed=claimed_of(paid),
    )


def _facts(content: Json) -> Mapping[str, Json]:
    return content if isinstance(content, Mapping) else {}
