"""The routes of questions: asked, read, waited for, listed, and heard of as they change.

What could go wrong: an answer that comes between the look and the wait. So the waiter stands before
the store is read, as everywhere; a wake is a hint, and what the store says is told.
"""

from collections.abc import AsyncIterator
from datetime import timedelta
from http import HTTPStatus
from typing import Annotated, Any, Final

from litestar import Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, HeaderParameter, JSONBody, QueryParameter
from litestar.response import Stream
from msgspec.json import encode

from flows.elicitation.states import Elicitation, Status
from flows.errors import ElicitError, InvalidQuestion
from webapp.api.access import Requester, holds, must_still_count, requester_of
from webapp.api.asking import (
    Known,
    RunPlace,
    ask,
    is_seen_by,
    owners_listed,
    question_of,
    with_own_name,
)
from webapp.api.paging import LISTED_AT_MOST, Limit, PageEnd, Span, page_of_spans
from webapp.api.representations import (
    NAME_CHARACTERS,
    NewQuestion,
    QuestionPage,
    QuestionState,
    Whose,
)
from webapp.api.states import told, told_known
from webapp.deadline import Deadline
from webapp.elicitations.retry import Erased
from webapp.http.parts import AnyRequest
from webapp.identity.api_keys import KeyScope
from webapp.service import Service

WAIT_SECONDS_AT_MOST: Final = 50
_PING_EVERY: Final = timedelta(seconds=15)
_READERS = holds(KeyScope.ASK, KeyScope.APPROVE, or_person=True)


@post("/api/questions", guards=[holds(KeyScope.ASK)], status_code=HTTPStatus.CREATED)
async def new_question(
    data: JSONBody[NewQuestion],
    requester: NamedDependency[Requester],
    service: NamedDependency[Service],
    idempotency_key: Annotated[
        str | None,
        HeaderParameter(name="Idempotency-Key", min_length=1, max_length=NAME_CHARACTERS),
    ] = None,
) -> QuestionState:
    """Ask a user, or the person of a User-Access-Token; the answer has the link for them.

    With an Idempotency-Key the same body sent again gets the same question, until its answer is
    taken; with `run`, until that is ended. What is known already, such as a connected account, is
    answered at once, without an id.
    """
    if data.run is not None and idempotency_key is not None:
        raise InvalidQuestion("A question of a run has its place there: send no Idempotency-Key.")
    place = None if data.run is None else RunPlace(run=data.run, nth=data.nth)
    question = with_own_name(requester, data.question())
    asked = await ask(
        service, requester, question, user=data.user, name=idempotency_key, place=place
    )
    if isinstance(asked, Known):
        return await told_known(service, asked)
    return await told(service, requester, asked)


@get("/api/questions", guards=[_READERS])
async def list_questions(
    *,
    requester: NamedDependency[Requester],
    service: NamedDependency[Service],
    user: Whose = None,
    status: FromQuery[Status | None] = None,
    waiting: FromQuery[bool] = False,
    after: PageEnd = None,
    limit: Limit = LISTED_AT_MOST,
) -> QuestionPage:
    """Questions without what was answered; `after` of a page goes on behind it.

    A page may be short and have more behind it all the same. With `waiting` they are those that
    nobody has answered yet; one that is opened while you read the pages may come twice. Without
    `user` they are all that the program asked, or all that the users of the key are asked. A
    person's access token beside a key gives what that program asked them, and in its place all that
    they are asked.
    """
    if waiting and status is not None:
        raise InvalidQuestion("Say `status` or `waiting`, and leave the other out.")

    def sees(one: Elicitation) -> bool:
        is_wanted = not waiting or service.clock() < one.expires_at
        return is_wanted and is_seen_by(service, requester, one)

    statuses = (Status.PENDING, Status.OPENED) if waiting else (status,)
    owners = owners_listed(service, requester, user)
    spans = [Span(owner, each) for each in statuses for owner in owners]
    found, last = await page_of_spans(
        service, Elicitation, spans, sees=sees, after=after, limit=limit
    )
    states = [await told(service, requester, each, with_answer=False) for each in found]
    return QuestionPage(questions=states, after=last)


@get("/api/questions/{question_id:str}", guards=[_READERS])
async def read_question(
    question_id: FromPath[str],
    request: AnyRequest,
    requester: NamedDependency[Requester],
    service: NamedDependency[Service],
    wait: Annotated[int, QueryParameter(ge=0, le=WAIT_SECONDS_AT_MOST)] = 0,
) -> QuestionState:
    """How it stands; with `wait`, as soon as it is over, or after so many seconds.

    Sooner where its `progress` changes: a payment is on its way, and may take days.
    """
    current = await question_of(service, requester, question_id)
    if wait:
        current = await _waited(service, current, within=timedelta(seconds=wait))
        await must_still_count(request)
    return await told(service, requester, current)


@get("/api/questions/{question_id:str}/events", guards=[_READERS], media_type="text/event-stream")
async def question_events(
    question_id: FromPath[str],
    request: AnyRequest,
    requester: NamedDependency[Requester],
    service: NamedDependency[Service],
    last_event_id: Annotated[
        str | None, HeaderParameter(name="Last-Event-ID", max_length=64)
    ] = None,
) -> Response[Any]:
    """Server-sent events: the question, now and at each change, until it is over.

    With Last-Event-ID what was told already is not told again. What was answered is not in them.
    They end too when the key is revoked, or the access token is over.
    """
    current = await question_of(service, requester, question_id)
    return Stream(
        _events(service, request, current, told_before=last_event_id),
        media_type="text/event-stream",
        headers={"x-accel-buffering": "no"},
    )


async def _waited(service: Service, asked: Elicitation, *, within: timedelta) -> Elicitation:
    elicitations = service.elicitations
    limit = Deadline(within, ticks=elicitations.ticks)
    with elicitations.waiters.waiter(asked.id, sees_all=True) as waiter:
        current = await elicitations.get(asked.id) or asked
        while not (current.status.is_final or limit.is_over or service.is_draining):
            if current.progress != asked.progress:  # a payment is on its way, for days perhaps
                break
            now = service.clock()
            changes = await waiter.changes(until=limit.at(now), now=now)
            if not changes:
                break
            current = await elicitations.newest(current, changes)
    return current


async def _events(
    service: Service, request: AnyRequest, asked: Elicitation, *, told_before: str | None
) -> AsyncIterator[str]:
    elicitations, requester = service.elicitations, requester_of(request)
    with elicitations.waiters.waiter(asked.id, sees_all=True) as waiter:
        current = await elicitations.get(asked.id)
        while current is not None and await _still_counts(request):
            if str(current.version) != told_before:
                state = await told(service, requester, current, with_answer=False)
                told_before = str(current.version)
                yield f"id: {told_before}\nevent: question\ndata: {encode(state).decode()}\n\n"
            if current.status.is_final or service.is_draining:  # whoever reads asks again
                return
            changes = await waiter.changes(until=service.clock() + _PING_EVERY, now=service.clock())
            if not changes:
                yield ": ping\n\n"
            try:
                current = await elicitations.newest(current, changes)
            except Erased:  # whoever reads asks again, and is told
                return


async def _still_counts(request: AnyRequest) -> bool:
    try:
        await must_still_count(request)
    except ElicitError:  # whoever reads asks again, and is told why not
        return False
    return True
