"""What changes a question that stands: cancelled, completed, taken, its letters, its approval.

What could go wrong: a program that answers for the person it asks. So who asked may end a question,
and say that a visit it sent somebody on is done, as trusted code may; a form or a confirmation is
answered by a key that approves, for a user that it names, and that key can ask nothing.
"""

from http import HTTPStatus

from litestar import post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from flows.elicitation.proof import ApprovedByKey
from flows.elicitation.states import Completion, Elicitation, Status
from flows.elicitation.traits import traits_of
from flows.errors import NotAllowed, NotPossible
from webapp.api.access import Requester, holds
from webapp.api.asking import must_have_its_money, question_of, taken
from webapp.api.representations import CodeTold, Completed, QuestionState, Resolution, UserCode
from webapp.api.states import told
from webapp.identity.api_keys import KeyScope
from webapp.service import Service

_ASKERS, _APPROVERS = holds(KeyScope.ASK), holds(KeyScope.APPROVE)


@post("/api/questions/{question_id:str}/cancel", guards=[_ASKERS], status_code=HTTPStatus.OK)
async def cancel_question(
    question_id: FromPath[str],
    requester: NamedDependency[Requester],
    service: NamedDependency[Service],
) -> QuestionState:
    """Nobody is to answer any more; what its provider holds open is closed. Again is no fault."""
    current = await question_of(service, requester, question_id)
    if current.status is not Status.CANCELLED:
        try:
            current = await service.elicitations.settle(
                current.id, Status.CANCELLED, by=requester.name
            )
        except NotPossible as error:
            if error.status != Status.CANCELLED:
                raise
            current = await question_of(service, requester, question_id)  # this was sent twice
    return await told(service, requester, current)


@post("/api/questions/{question_id:str}/complete", guards=[_ASKERS], status_code=HTTPStatus.OK)
async def complete_question(
    question_id: FromPath[str],
    data: JSONBody[Completed],
    requester: NamedDependency[Requester],
    service: NamedDependency[Service],
) -> QuestionState:
    """The visit that it sent somebody on is done: of the kind `url` alone."""
    current = await question_of(service, requester, question_id)
    done = await service.completing.complete(current.id, data.content, by=requester.name)
    current = await question_of(service, requester, question_id)
    _must_have_counted(done, current)
    return await told(service, requester, current)


@post("/api/questions/{question_id:str}/taken", guards=[_ASKERS], status_code=HTTPStatus.OK)
async def take_answer(
    question_id: FromPath[str],
    requester: NamedDependency[Requester],
    service: NamedDependency[Service],
) -> QuestionState:
    """The program has used the answer: it is wiped here, and a payment is spent.

    409 where its money has gone back meanwhile: give out nothing for it.
    """
    current = await question_of(service, requester, question_id)
    if current.status is not Status.ACCEPTED:
        raise NotPossible(status=current.status, wanted="taken")
    if current.delivered_at is None:
        current = await taken(service, requester, current)
    elif traits_of(current.kind).gives == "receipt":
        await must_have_its_money(service, current)
    return await told(service, requester, current)


@post("/api/questions/{question_id:str}/user-code", guards=[_ASKERS], status_code=HTTPStatus.OK)
async def confirm_user_code(
    question_id: FromPath[str],
    data: JSONBody[UserCode],
    requester: NamedDependency[Requester],
    service: NamedDependency[Service],
) -> CodeTold:
    """The letters of the page, which the user has typed in the program."""
    current = await question_of(service, requester, question_id)
    if not current.is_by_code:
        raise NotAllowed("Its page shows no letters: the user's browser says who they are.")
    return CodeTold(says=await service.user_codes.wrong(current, data.code))


@post("/api/questions/{question_id:str}/answer", guards=[_APPROVERS], status_code=HTTPStatus.OK)
async def answer_question(
    question_id: FromPath[str],
    data: JSONBody[Resolution],
    requester: NamedDependency[Requester],
    service: NamedDependency[Service],
) -> QuestionState:
    """A yes or a no in place of the user, by a key that approves for them."""
    current = await question_of(service, requester, question_id)
    if not current.status.is_final and service.clock() >= current.expires_at:
        # The sweeper is not there yet.
        current = await service.elicitations.end(current, Status.EXPIRED)
    if data.accepts:
        proof = ApprovedByKey(by=requester.name)
        done = await service.completing.approved(current, data.content, proof)
        _must_have_counted(done, await question_of(service, requester, question_id))
    else:
        await service.elicitations.settle(current.id, Status.DECLINED, by=requester.name)
    return await told(service, requester, await question_of(service, requester, question_id))


def _must_have_counted(done: Completion, current: Elicitation) -> None:
    match done:
        case Completion.ACCEPTED | Completion.LATE:
            return
        case Completion.ALREADY_SETTLED:
            raise NotPossible(status=current.status, wanted=Status.ACCEPTED)
        case Completion.UNKNOWN:
            raise NotAllowed(
                "The person answers this on its page: only a visit (url) is completed this way."
            )
