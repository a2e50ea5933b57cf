"""The inbox of an approver: requests that wait, and decisions, with the approver's access token.

Risks: a program decides in place of a person. So these routes accept no API key, whatever its
scopes. The person's token identifies the approver and is checked with each request. A token is
refused if the person signed in longer ago than ELICIT_APPROVERS_SIGN_IN allows.
"""

from http import HTTPStatus
from typing import Annotated

from litestar import get, post
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter

from flows.elicitation.states import Status
from flows.errors import ElicitError, InvalidQuestion, NotAllowed, NotPossible
from flows.kinds.form import asker_of, voting_of
from webapp.api.access import CurrentRequester, Requester, requires
from webapp.api.representations import (
    DelegationData,
    InboxAnswer,
    InboxDelegation,
    InboxRequest,
    InboxRequests,
)
from webapp.identity.approvers import Deciding
from webapp.kinds.decision import PendingDecision
from webapp.kinds.page_kind import terms_in
from webapp.pages.builder_forms import decision_of
from webapp.service import Service

_PERSONS = requires(or_person=True)
_AFTER = "^[A-Za-z0-9_-]{1,64}$"


class NoSuchRequest(ElicitError):
    """The person has no request with this id in an inbox."""

    name = "NO_SUCH_REQUEST"
    http_status = 404

    def __init__(self) -> None:
        super().__init__("Your inbox has no question with this id: use an id from /api/inbox.")


@get("/api/inbox", guards=[_PERSONS])
async def list_inbox(
    *,
    requester: CurrentRequester,
    of: Annotated[str | None, QueryParameter(max_length=32)] = None,
    decided: FromQuery[bool] = False,
    after: Annotated[str | None, QueryParameter(pattern=_AFTER)] = None,
) -> InboxRequests:
    """List the requests that wait for this person, or with `decided` the last 30 days' decisions.

    `of` is one of the person's approver names. It is optional for a person with a single name.
    """
    service = requester.service
    person, names = _known(requester)
    if of is None and len(names) > 1:
        raise InvalidQuestion(
            f"You have several approver names: set ?of= to one of {', '.join(names)}."
        )
    name = names[0] if of is None else of
    if name not in names:
        raise NotAllowed(f"You are not an approver as {name!r}: your names are {', '.join(names)}.")
    found, last = await service.kinds.decisions.inbox(name, is_decided=decided, after=after)
    return InboxRequests(
        requests=[_to_inbox_request(service, person, one) for one in found], after=last
    )


@post("/api/inbox/{request_id:str}/answer", guards=[_PERSONS], status_code=HTTPStatus.OK)
async def answer_request(
    request_id: FromPath[str], data: JSONBody[InboxAnswer], requester: CurrentRequester
) -> InboxRequest:
    """Approve or decline a request. The response is 409 if the request has already ended."""
    service = requester.service
    person, waiting = await _person_and_request(requester, request_id)
    decisions = service.kinds.decisions
    ended = await decisions.decide(waiting, person, accepts=data.accepts, reason=data.reason)
    if not decisions.is_same_answer(ended, person, accepts=data.accepts):
        wanted = Status.ACCEPTED if data.accepts else Status.DECLINED
        raise NotPossible(status=ended.status, wanted=wanted)
    ended_as = PendingDecision(id=waiting.id, approver=waiting.approver, asked=ended)
    return _to_inbox_request(service, person, ended_as)


@post("/api/inbox/{request_id:str}/delegate", guards=[_PERSONS], status_code=HTTPStatus.OK)
async def delegate_request(
    request_id: FromPath[str], data: JSONBody[InboxDelegation], requester: CurrentRequester
) -> InboxRequest:
    """Hand a request to another approver. The person who hands it on can't decide it any more."""
    service = requester.service
    person, waiting = await _person_and_request(requester, request_id)
    changed = await service.kinds.decisions.delegate(waiting, person, data.to)
    changed_as = PendingDecision(id=waiting.id, approver=waiting.approver, asked=changed)
    return _to_inbox_request(service, person, changed_as)


async def _person_and_request(
    requester: Requester, request_id: str
) -> tuple[Deciding, PendingDecision]:
    """Return the approver, and the request with this id. Raises NotAllowed or NoSuchRequest."""
    person, names = _known(requester)
    approver, _, id = request_id.partition(".")
    decisions = requester.service.kinds.decisions
    waiting = await decisions.read(approver, id) if approver in names and id else None
    if waiting is None:
        raise NoSuchRequest
    return person, waiting


def _known(requester: Requester) -> tuple[Deciding, list[str]]:
    """Return the approver and their names.

    Raises NotAllowed if the person is no approver, or signed in too long ago.
    """
    approvers = requester.service.kinds.decisions.approvers
    caller = requester.person
    person = None if caller is None else approvers.deciding_by_token(caller)
    if person is not None and approvers.is_too_long_ago(person):
        raise NotAllowed(
            "You signed in too long ago to decide with this access token. Sign in again at your "
            "issuer and get a new token, so that its claims are current (ELICIT_APPROVERS_SIGN_IN)."
        )
    names = [] if person is None else list(approvers.names_of(person))
    if person is None or not names:
        raise NotAllowed(
            "You are not an approver on this server: its operator names approvers in elicit.toml."
        )
    return person, names


def _to_inbox_request(service: Service, person: Deciding, one: PendingDecision) -> InboxRequest:
    asked, voting = one.asked, voting_of(one.asked)
    assert voting is not None  # set for each question in an inbox
    approvers = service.kinds.decisions.approvers
    by, described = asked.decided_by, asked.request.described
    return InboxRequest(
        id=f"{one.approver}.{one.id}",
        approver=one.approver,
        decision=decision_of(asked, now=service.clock()),
        message=asked.request.message,
        arguments=terms_in(asked).get("arguments"),
        tool=asked.request.tool,
        asked_by=asker_of(asked),
        client=asked.request.client,
        client_id=asked.request.client_id,
        asked_at=asked.created_at,
        expires_at=asked.expires_at,
        is_own=approvers.is_asker(person, asked),
        approvals_needed=voting.needs,
        approved_by=tuple(vote.label for vote in voting.approvals),
        has_approved=voting.has_approved(person.owner),
        comment=voting.comment,
        comments=voting.comments,
        delegations=[
            DelegationData(by=vote.label, to=vote.to_label or "", at=vote.at)
            for vote in voting.votes
            if vote.to is not None
        ],
        can_delegate_to=tuple(sorted(approvers.colleagues(person, asked).values())),
        decided_by=None if by is None else by.label,
        decided_at=asked.settled_at,
        reason=asked.why if asked.status is Status.DECLINED else None,
        server_title=asked.request.server_title,
        tool_title=None if described is None else described.title,
        tool_description=None if described is None else described.description,
        is_destructive=described is not None and described.is_destructive,
        client_title=asked.request.client_title,
    )
