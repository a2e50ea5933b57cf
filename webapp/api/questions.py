"""The routes of questions: ask, read, wait, list, stream changes, and answer or cancel.

Risks: an answer arrives after the store is read and before the wait begins. So the waiter is
registered before the store is read. A wake-up is only a hint; the response is read from the store.

Risks: a program answers for the person whom it asks. So the program that asked may only cancel the
question, or report that a visit has been completed. To answer a form or a confirmation over the
API, a program needs a key that approves for the user. Such a key cannot ask questions.
"""

from collections.abc import AsyncIterator
from datetime import timedelta
from http import HTTPStatus
from typing import Annotated, Any, Final

from litestar import Response, get, post
from litestar.params import FromPath, FromQuery, HeaderParameter, JSONBody, QueryParameter
from litestar.response import Stream
from msgspec.json import encode

from flows.elicitation.states import Completion, Elicitation, Status
from flows.elicitation.traits import ApprovedByKey, traits_of
from flows.errors import ElicitError, InvalidQuestion, NotAllowed, NotPossible
from webapp.api.access import CurrentRequester, must_still_count, requester_of, requires
from webapp.api.asking import (
    KnownAnswer,
    RunPlace,
    ask,
    check_payment,
    is_seen_by,
    mark_used,
    owners_listed,
    question_of,
    with_own_name,
)
from webapp.api.paging import LISTED_AT_MOST, Limit, PageEnd, Span, page_of_spans
from webapp.api.representations import (
    NAME_CHARACTERS,
    CodeCheck,
    Completed,
    NewQuestion,
    QuestionPage,
    QuestionState,
    Resolution,
    UserCode,
    Whose,
)
from webapp.api.states import to_known_question_state, to_question_state
from webapp.deadline import Deadline
from webapp.http.parts import AnyRequest
from webapp.identity.api_keys import KeyScope
from webapp.records.rows import Erased
from webapp.service import Service

WAIT_SECONDS_AT_MOST: Final = 50
_PING_EVERY: Final = timedelta(seconds=15)
_READERS = requires(KeyScope.ASK, KeyScope.APPROVE, or_person=True)


@post("/api/questions", guards=[requires(KeyScope.ASK)], status_code=HTTPStatus.CREATED)
async def new_question(
    data: JSONBody[NewQuestion],
    requester: CurrentRequester,
    idempotency_key: Annotated[
        str | None,
        HeaderParameter(name="Idempotency-Key", min_length=1, max_length=NAME_CHARACTERS),
    ] = None,
) -> QuestionState:
    """Ask a user, or the person of a User-Access-Token. The response contains that person's link.

    With an Idempotency-Key, the same body returns the same question until its answer is used. With
    `run`, the same body returns the same question until the run ends. If the answer is already
    known, for example a connected account, the response contains the answer and no id.
    """
    if data.run is not None and idempotency_key is not None:
        raise InvalidQuestion(
            "A question of a run is identified by its run: send no Idempotency-Key."
        )
    place = None if data.run is None else RunPlace(run=data.run, nth=data.nth)
    question = with_own_name(requester, data.question())
    asked = await ask(requester, question, user=data.user, name=idempotency_key, place=place)
    if isinstance(asked, KnownAnswer):
        return await to_known_question_state(requester.service, asked)
    return await to_question_state(requester, asked)


@get("/api/questions", guards=[_READERS])
async def list_questions(
    *,
    requester: CurrentRequester,
    user: Whose = None,
    status: FromQuery[Status | None] = None,
    waiting: FromQuery[bool] = False,
    after: PageEnd = None,
    limit: Limit = LISTED_AT_MOST,
) -> QuestionPage:
    """List questions without their answers. Pass the `after` of a page to get the next page.

    A short page can still have more pages after it. With `waiting`, only unanswered questions are
    listed; a question that is opened while you read the pages may appear twice. Without `user`,
    the list contains all questions of the program, or of the users that the key names. With a key
    and a person's access token, it contains the questions that the program asked this person. With
    an access token instead of a key, it contains all questions to this person.
    """
    service = requester.service
    if waiting and status is not None:
        raise InvalidQuestion("Send either `status` or `waiting`, not both.")

    def sees(one: Elicitation) -> bool:
        is_wanted = not waiting or service.clock() < one.expires_at
        return is_wanted and is_seen_by(requester, one)

    statuses = (Status.PENDING, Status.OPENED) if waiting else (status,)
    owners = owners_listed(requester, user)
    spans = [Span(owner, each) for each in statuses for owner in owners]
    found, last = await page_of_spans(
        service, Elicitation, spans, sees=sees, after=after, limit=limit
    )
    states = [await to_question_state(requester, each, with_answer=False) for each in found]
    return QuestionPage(questions=states, after=last)


@get("/api/questions/{question_id:str}", guards=[_READERS])
async def read_question(
    question_id: FromPath[str],
    request: AnyRequest,
    requester: CurrentRequester,
    wait: Annotated[int, QueryParameter(ge=0, le=WAIT_SECONDS_AT_MOST)] = 0,
) -> QuestionState:
    """Return a question. With `wait`, wait up to that many seconds until the question has ended.

    The wait also ends when `progress` changes, for example because a payment is being processed,
    which may take days.
    """
    current = await question_of(requester, question_id)
    if wait:
        current = await _waited(requester.service, current, within=timedelta(seconds=wait))
        await must_still_count(request)
    return await to_question_state(requester, current)


@get("/api/questions/{question_id:str}/events", guards=[_READERS], media_type="text/event-stream")
async def question_events(
    question_id: FromPath[str],
    request: AnyRequest,
    requester: CurrentRequester,
    last_event_id: Annotated[
        str | None, HeaderParameter(name="Last-Event-ID", max_length=64)
    ] = None,
) -> Response[Any]:
    """Stream the question as server-sent events, now and at each change, until it has ended.

    With Last-Event-ID, versions that you already received are not repeated. Events do not contain
    the answer. The stream also ends when the key is revoked or the access token expires.
    """
    current = await question_of(requester, question_id)
    return Stream(
        _events(requester.service, request, current, last_sent=last_event_id),
        media_type="text/event-stream",
        headers={"x-accel-buffering": "no"},
    )


async def _waited(service: Service, asked: Elicitation, *, within: timedelta) -> Elicitation:
    elicitations = service.elicitations
    limit = Deadline(within, ticks=elicitations.ticks)
    with elicitations.waiters.waiter(asked.id, sees_all=True) as waiter:
        current = await elicitations.get(asked.id) or asked
        while not (current.status.is_final or limit.has_ended or service.is_draining):
            if current.progress != asked.progress:  # a payment is being processed, perhaps for days
                break
            now = service.clock()
            changes = await waiter.changes(until=limit.at(now), now=now)
            if not changes:
                break
            current = await elicitations.rows.newest(current, changes)
    return current


async def _events(
    service: Service, request: AnyRequest, asked: Elicitation, *, last_sent: str | None
) -> AsyncIterator[str]:
    elicitations, requester = service.elicitations, requester_of(request)
    with elicitations.waiters.waiter(asked.id, sees_all=True) as waiter:
        current = await elicitations.get(asked.id)
        while current is not None and await _still_counts(request):
            if str(current.version) != last_sent:
                state = await to_question_state(requester, current, with_answer=False)
                last_sent = str(current.version)
                yield f"id: {last_sent}\nevent: question\ndata: {encode(state).decode()}\n\n"
            if current.status.is_final or service.is_draining:  # the reader reconnects
                return
            changes = await waiter.changes(until=service.clock() + _PING_EVERY, now=service.clock())
            if not changes:
                yield ": ping\n\n"
            try:
                current = await elicitations.rows.newest(current, changes)
            except Erased:  # the reader reconnects and gets an error
                return


async def _still_counts(request: AnyRequest) -> bool:
    try:
        await must_still_count(request)
    except ElicitError:  # the reader reconnects and gets this error
        return False
    return True


_ASKERS, _APPROVERS = requires(KeyScope.ASK), requires(KeyScope.APPROVE)


@post("/api/questions/{question_id:str}/cancel", guards=[_ASKERS], status_code=HTTPStatus.OK)
async def cancel_question(question_id: FromPath[str], requester: CurrentRequester) -> QuestionState:
    """Cancel a question, and close its checkout at the provider. Repeating it is not an error."""
    service = requester.service
    current = await question_of(requester, question_id)
    if current.status is not Status.CANCELLED:
        try:
            current = await service.elicitations.settle(
                current.id, Status.CANCELLED, by=requester.name
            )
            await service.kinds.decisions.close_item(current)
        except NotPossible as error:
            if error.status != Status.CANCELLED:
                raise
            current = await question_of(requester, question_id)  # a repeated request
    return await to_question_state(requester, current)


@post("/api/questions/{question_id:str}/complete", guards=[_ASKERS], status_code=HTTPStatus.OK)
async def complete_question(
    question_id: FromPath[str], data: JSONBody[Completed], requester: CurrentRequester
) -> QuestionState:
    """Report that the person completed a visit. Only questions of kind `url` can be completed."""
    current = await question_of(requester, question_id)
    done = await requester.service.completing.complete(current.id, data.content, by=requester.name)
    current = await question_of(requester, question_id)
    _must_have_counted(done, current)
    return await to_question_state(requester, current)


@post("/api/questions/{question_id:str}/taken", guards=[_ASKERS], status_code=HTTPStatus.OK)
async def take_answer(question_id: FromPath[str], requester: CurrentRequester) -> QuestionState:
    """Report that the program has used the answer or the payment.

    The server erases the answer, or marks the payment as spent. The response is 409 if the payment
    was refunded or disputed in the meantime. In that case, deliver nothing for the payment.
    """
    current = await question_of(requester, question_id)
    if current.status is not Status.ACCEPTED:
        raise NotPossible(status=current.status, wanted="taken")
    if current.delivered_at is None:
        current = await mark_used(requester, current)
    elif traits_of(current.kind).gives == "receipt":
        await check_payment(requester.service, current)
    return await to_question_state(requester, current)


@post("/api/questions/{question_id:str}/user-code", guards=[_ASKERS], status_code=HTTPStatus.OK)
async def confirm_user_code(
    question_id: FromPath[str], data: JSONBody[UserCode], requester: CurrentRequester
) -> CodeCheck:
    """Check the one-time code that the user read on the page and typed in the program."""
    current = await question_of(requester, question_id)
    if not current.is_by_code:
        raise NotAllowed("This question has no user code: the user's browser identifies them.")
    return CodeCheck(says=await requester.service.identity.user_codes.wrong(current, data.code))


@post("/api/questions/{question_id:str}/answer", guards=[_APPROVERS], status_code=HTTPStatus.OK)
async def answer_question(
    question_id: FromPath[str], data: JSONBody[Resolution], requester: CurrentRequester
) -> QuestionState:
    """Accept or decline a question in place of the user, with a key that approves for that user."""
    service = requester.service
    current = await question_of(requester, question_id)
    if not current.status.is_final and service.clock() >= current.expires_at:
        # The background sweep has not expired the question yet.
        current = await service.elicitations.end(current, Status.EXPIRED)
    if data.accepts:
        proof = ApprovedByKey(by=requester.name)
        done = await service.completing.complete_with(current, data.content, proof)
        _must_have_counted(done, await question_of(requester, question_id))
    else:
        await service.elicitations.settle(current.id, Status.DECLINED, by=requester.name)
    return await to_question_state(requester, await question_of(requester, question_id))


def _must_have_counted(done: Completion, current: Elicitation) -> None:
    match done:
        case Completion.ACCEPTED | Completion.LATE:
            return
        case Completion.ALREADY_SETTLED:
            raise NotPossible(status=current.status, wanted=Status.ACCEPTED)
        case Completion.UNKNOWN:
            raise NotAllowed(
                "The person answers this question on its page: only a visit (url) can be completed "
                "this way."
            )
