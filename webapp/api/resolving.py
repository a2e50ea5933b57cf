"""The routes that change an open question: cancel, complete, use, check a code, approve.

Risks: a program answers for the person whom it asks. So the program that asked may only cancel the
question, or report that a visit has been completed, as trusted code may. Forms and confirmations
are answered by a key that approves for the users it names, and such a key cannot ask questions.
"""

from http import HTTPStatus

from litestar import post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from flows.elicitation.states import Completion, Elicitation, Status
from flows.elicitation.traits import ApprovedByKey, traits_of
from flows.errors import NotAllowed, NotPossible
from webapp.api.access import Requester, requires
from webapp.api.asking import mark_used, must_have_its_money, question_of
from webapp.api.representations import CodeTold, Completed, QuestionState, Resolution, UserCode
from webapp.api.states import to_question_state
from webapp.identity.api_keys import KeyScope
from webapp.service import Service

_ASKERS, _APPROVERS = requires(KeyScope.ASK), requires(KeyScope.APPROVE)


@post("/api/questions/{question_id:str}/cancel", guards=[_ASKERS], status_code=HTTPStatus.OK)
async def cancel_question(
    question_id: FromPath[str],
    requester: NamedDependency[Requester],
    service: NamedDependency[Service],
) -> QuestionState:
    """Cancel a question, and close its checkout at the provider. Repeating it is not an error."""
    current = await question_of(service, requester, question_id)
    if current.status is not Status.CANCELLED:
        try:
            current = await service.elicitations.settle(
                current.id, Status.CANCELLED, by=requester.name
            )
            await service.kinds.decisions.close_item(current)
        except NotPossible as error:
            if error.status != Status.CANCELLED:
                raise
            current = await question_of(service, requester, question_id)  # a repeated request
    return await to_question_state(service, requester, current)


@post("/api/questions/{question_id:str}/complete", guards=[_ASKERS], status_code=HTTPStatus.OK)
async def complete_question(
    question_id: FromPath[str],
    data: JSONBody[Completed],
    requester: NamedDependency[Requester],
    service: NamedDependency[Service],
) -> QuestionState:
    """Report that the person completed a visit. Only questions of kind `url` can be completed."""
    current = await question_of(service, requester, question_id)
    done = await service.completing.complete(current.id, data.content, by=requester.name)
    current = await question_of(service, requester, question_id)
    _must_have_counted(done, current)
    return await to_question_state(service, requester, current)


@post("/api/questions/{question_id:str}/taken", guards=[_ASKERS], status_code=HTTPStatus.OK)
async def take_answer(
    question_id: FromPath[str],
    requester: NamedDependency[Requester],
    service: NamedDependency[Service],
) -> QuestionState:
    """Report that the program has used the answer or the payment.

    The server erases the answer, or marks the payment as spent. The response is 409 if the payment
    was refunded or disputed in the meantime. In that case, deliver nothing for the payment.
    """
    current = await question_of(service, requester, question_id)
    if current.status is not Status.ACCEPTED:
        raise NotPossible(status=current.status, wanted="taken")
    if current.delivered_at is None:
        current = await mark_used(service, requester, current)
    elif traits_of(current.kind).gives == "receipt":
        await must_have_its_money(service, current)
    return await to_question_state(service, requester, current)


@post("/api/questions/{question_id:str}/user-code", guards=[_ASKERS], status_code=HTTPStatus.OK)
async def confirm_user_code(
    question_id: FromPath[str],
    data: JSONBody[UserCode],
    requester: NamedDependency[Requester],
    service: NamedDependency[Service],
) -> CodeTold:
    """Check the one-time code that the user read on the page and typed in the program."""
    current = await question_of(service, requester, question_id)
    if not current.is_by_code:
        raise NotAllowed("This question has no user code: the user's browser identifies them.")
    return CodeTold(says=await service.identity.user_codes.wrong(current, data.code))


@post("/api/questions/{question_id:str}/answer", guards=[_APPROVERS], status_code=HTTPStatus.OK)
async def answer_question(
    question_id: FromPath[str],
    data: JSONBody[Resolution],
    requester: NamedDependency[Requester],
    service: NamedDependency[Service],
) -> QuestionState:
    """Accept or decline a question in place of the user, with a key that approves for that user."""
    current = await question_of(service, requester, question_id)
    if not current.status.is_final and service.clock() >= current.expires_at:
        # The background sweep has not expired the question yet.
        current = await service.elicitations.end(current, Status.EXPIRED)
    if data.accepts:
        proof = ApprovedByKey(by=requester.name)
        done = await service.completing.approved(current, data.content, proof)
        _must_have_counted(done, await question_of(service, requester, question_id))
    else:
        await service.elicitations.settle(current.id, Status.DECLINED, by=requester.name)
    return await to_question_state(
        service, requester, await question_of(service, requester, question_id)
    )


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
