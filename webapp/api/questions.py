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
from flows.errors import InvalidQuestion, Unreadable
from webapp.api.access import holds
from webapp.api.asking import (
    Known,
    RunPlace,
    ask,
    is_seen_by,
    must_be_for,
    owner_of_user,
    question_of,
)
from webapp.api.representations import (
    NAME_CHARACTERS,
    USER_CHARACTERS,
    NewQuestion,
    QuestionPage,
    QuestionState,
)
from webapp.api.states import told, told_known
from webapp.deadline import Deadline
from webapp.identity.api_keys import KeyScope
from webapp.records.values import KINDS, ApiKey
from webapp.service import Service

WAIT_SECONDS_AT_MOST: Final = 50
LISTED_AT_MOST: Final = 100
PAGES_READ_AT_MOST: Final = 5  # of rows, for one page of a list
_PING_EVERY: Final = timedelta(seconds=15)
_READERS = holds(KeyScope.ASK, KeyScope.APPROVE)


@post("/api/questions", guards=[holds(KeyScope.ASK)], status_code=HTTPStatus.CREATED)
async def new_question(
    data: JSONBody[NewQuestion],
    key: NamedDependency[ApiKey],
    service: NamedDependency[Service],
    idempotency_key: Annotated[
        str | None,
        HeaderParameter(name="Idempotency-Key", min_length=1, max_length=NAME_CHARACTERS),
    ] = None,
) -> QuestionState:
    """Ask a user; the answer has the link for them.

    With an Idempotency-Key the same body sent again gets the same question, until its answer is
    taken; with `run`, until that is ended. What is known already, such as a connected account, is
    answered at once, without an id.
    """
    if data.run is not None and idempotency_key is not None:
        raise InvalidQuestion("A question of a run has its place there: send no Idempotency-Key.")
    asked = await ask(
        service,
        key,
        data.question(),
        user=data.user,
        name=idempotency_key,
        place=None if data.run is None else RunPlace(run=data.run, nth=data.nth),
    )
    if isinstance(asked, Known):
        return await told_known(service, asked)
    return await told(service, key, asked)


@get("/api/questions", guards=[_READERS])
async def list_questions(
    *,
    key: NamedDependency[ApiKey],
    service: NamedDependency[Service],
    user: Annotated[str | None, QueryParameter(min_length=1, max_length=USER_CHARACTERS)] = None,
    status: FromQuery[Status | None] = None,
    after: Annotated[str | None, QueryParameter(pattern="^[A-Za-z0-9_-]{1,64}$")] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=LISTED_AT_MOST)] = LISTED_AT_MOST,
) -> QuestionPage:
    """Questions of one user, without what was answered; `after` of a page goes on behind it.

    A page may be short and have more behind it all the same. A key for one user needs no `user`.
    """
    if user is None:
        if len(key.owners) != 1:
            raise InvalidQuestion("Say whose: write ?user=, with an id of one of your users.")
        user = key.owners[0]
    must_be_for(key, user)
    owner = owner_of_user(service, user)
    found, last = await _listed(
        service, key, owner=owner, status=status, after=after, at_most=limit
    )
    states = [await told(service, key, each, with_answer=False) for each in found]
    return QuestionPage(questions=states, after=last)


@get("/api/questions/{question_id:str}", guards=[_READERS])
async def read_question(
    question_id: FromPath[str],
    key: NamedDependency[ApiKey],
    service: NamedDependency[Service],
    wait: Annotated[int, QueryParameter(ge=0, le=WAIT_SECONDS_AT_MOST)] = 0,
) -> QuestionState:
    """How it stands; with `wait`, as soon as it is over, or after so many seconds.

    Sooner where its `progress` changes: a payment is on its way, and may take days.
    """
    current = await question_of(service, key, question_id)
    if wait:
        current = await _waited(service, current, within=timedelta(seconds=wait))
    return await told(service, key, current)


@get("/api/questions/{question_id:str}/events", guards=[_READERS], media_type="text/event-stream")
async def question_events(
    question_id: FromPath[str],
    key: NamedDependency[ApiKey],
    service: NamedDependency[Service],
    last_event_id: Annotated[
        str | None, HeaderParameter(name="Last-Event-ID", max_length=64)
    ] = None,
) -> Response[Any]:
    """Server-sent events: the question, now and at each change, until it is over.

    With Last-Event-ID what was told already is not told again. What was answered is not in them.
    """
    current = await question_of(service, key, question_id)
    return Stream(
        _events(service, key, current, told_before=last_event_id),
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
    service: Service, key: ApiKey, asked: Elicitation, *, told_before: str | None
) -> AsyncIterator[str]:
    elicitations = service.elicitations
    with elicitations.waiters.waiter(asked.id, sees_all=True) as waiter:
        current = await elicitations.get(asked.id)
        while current is not None:
            if str(current.version) != told_before:
                state = await told(service, key, current, with_answer=False)
                told_before = str(current.version)
                yield f"id: {told_before}\nevent: question\ndata: {encode(state).decode()}\n\n"
            if current.status.is_final or service.is_draining:  # whoever reads asks again
                return
            changes = await waiter.changes(until=service.clock() + _PING_EVERY, now=service.clock())
            if not changes:
                yield ": ping\n\n"
            current = await elicitations.newest(current, changes)


async def _listed(
    service: Service,
    key: ApiKey,
    *,
    owner: str,
    status: Status | None,
    after: str | None,
    at_most: int,
) -> tuple[list[Elicitation], str | None]:
    """The questions, and behind what to go on; None at the end."""
    elicitations = service.elicitations
    found, last = list[Elicitation](), None if after is None else owner + after
    for _ in range(PAGES_READ_AT_MOST):
        page = await elicitations.store.list(
            KINDS[Elicitation], owner=owner, status=status, after=last, limit=LISTED_AT_MOST
        )
        for record in page:
            last = record.id
            try:
                current = await elicitations.rows.open(record, Elicitation)
            except Unreadable:
                continue
            if is_seen_by(service, key, current):
                found.append(current)
            if len(found) == at_most:
                return found, last.removeprefix(owner)
        if len(page) < LISTED_AT_MOST:
            return found, None
    return found, None if last is None else last.removeprefix(owner)
