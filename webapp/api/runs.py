"""Runs: a program's unit of work with several questions, and steps that are done once.

Risks: a program dies after its work, when only some of its answers are marked as used, and the
server asks the answered questions again. So a run ends in one write, which also uses up the
answers. An answer that the program has not seen stays for the next run with this name. Two
processes could do the same work. So a process first claims the work for the run, and the result is
stored as long as the run. Paid work is claimed for the payment instead of the run. If the run ends
with an error, the next run with this name can use the payment.
"""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final

from litestar import delete, post
from litestar.params import FromPath, JSONBody
from msgspec import Meta, Struct

from flows.elicitation import run as runs
from flows.elicitation.run import Run
from flows.elicitation.states import Elicitation, Json
from flows.elicitation.tool_call import client_of
from flows.elicitation.traits import traits_of
from flows.errors import AlreadyDone
from webapp.api.access import CurrentRequester, Requester, requires
from webapp.api.asking import (
    NoSuchQuestion,
    QuestionBusy,
    application_of,
    caller_of,
    check_payment,
    own_name,
    owner_for,
    run_call_of,
)
from webapp.api.representations import NAME_CHARACTERS, RunName, UserName, Whose
from webapp.calls.call import Call, Interrupted
from webapp.calls.once import (
    DOING,
    RECEIPT_RETENTION,
    OncePlace,
    claim,
    keep,
    release,
    result_of,
)
from webapp.identity.api_keys import KeyScope
from webapp.payments.payments import PaymentGone
from webapp.records.values import ApiKey
from webapp.service import Service

QUESTIONS_AT_MOST: Final = 1000
_ASKERS = requires(KeyScope.ASK)
_LEAST_EXTENSION = timedelta(days=1)  # an extension of a run by less is not stored
_Text = Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS)]
_Id = Annotated[str, Meta(min_length=1, max_length=128)]


class RunEnd(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The end of a run, and the questions whose answers the run used.

    A payment for which `once` did work counts as used, even if the request does not name its
    question. After an error (`is_error`), paid questions stay for the next run with this name. With
    `again`, you can start a new run with this name immediately. Without `again`, you have to wait
    for two minutes if the run used a payment or `once`.
    """

    user: UserName | None = None
    run: RunName
    questions: Annotated[list[_Id], Meta(max_length=QUESTIONS_AT_MOST)] = []
    is_error: bool = False
    again: bool = False


class RunEnded(Struct, frozen=True, kw_only=True):
    """The response when the run has ended. Ending a run twice is not an error."""

    run: str


class OnceStep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A step that is done once per run. `by` identifies your process and must be unique.

    `payment` is the id of a payment that the run has claimed. With it, the step is done once for
    that payment, even if another run claims the payment later.
    """

    user: UserName | None = None
    run: RunName
    name: _Text
    key: Annotated[str, Meta(max_length=NAME_CHARACTERS)] | int | None = None
    by: _Text
    payment: _Id | None = None


class OnceClaim(OnceStep, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A claim for a step that your process is about to do, or still does. It holds for 30 seconds.

    While the claim holds, the run's payments are not refunded.
    """

    again: bool = False


class OnceDone(OnceStep, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The outcome of a step: a `result`, the `fault` that prevents storing it, or `failed`."""

    result: Any = None
    fault: str | None = None
    failed: bool = False


class OnceState(Struct, frozen=True, kw_only=True):
    """The state of a step: `yours` to do, `busy` elsewhere, or `done` with a `result`.

    Send `idempotency_key` to the services that the step calls. It is the same for every attempt.
    """

    status: str
    idempotency_key: str
    result: Json = None
    busy_until: str | None = None


class RunSpending(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A claimed payment that the run spends before the program does irreversible work."""

    user: UserName | None = None
    run: RunName
    payment: _Id


@post("/api/runs/end", guards=[_ASKERS], status_code=HTTPStatus.OK)
async def end_run(data: JSONBody[RunEnd], requester: CurrentRequester) -> RunEnded:
    """End the run. Its used answers are erased and its used payments are spent in one write.

    Send this after you have saved your results. The response is 409 if one of the payments was
    refunded, disputed or used by another run in the meantime.
    """
    service = requester.service
    try:
        async with _at_work(requester, user=data.user, run=data.run) as call:
            run = await call.current_run()
            for asked in run.asked:
                await _use_named_answer(service, call, run, asked.elicitation_id, data=data)
            call.used.has_known = True  # end the run even if the program got no answer
            if data.again:
                call.used.note_use(again=True)
            await service.elicitations.run_to_completion(call.end(is_error=data.is_error))
    except AlreadyDone:
        pass  # ended by an earlier copy of this request whose response was lost
    return RunEnded(run=data.run)


@post("/api/runs/spend", guards=[_ASKERS], status_code=HTTPStatus.NO_CONTENT)
async def spend_payment(data: JSONBody[RunSpending], requester: CurrentRequester) -> None:
    """Spend the payment before the run ends. The server then no longer refunds it automatically."""
    service = requester.service
    async with _at_work(requester, user=data.user, run=data.run) as call:
        run = await call.current_run()
        await _claim_payments(service, call, run, payment=data.payment)
        await service.kinds.payments.spend(
            run.owner, data.payment, run=run.id, request_id=call.request_id
        )
        await service.elicitations.run_to_completion(call.finish())


@post("/api/runs/once", guards=[_ASKERS], status_code=HTTPStatus.OK)
async def claim_once(data: JSONBody[OnceClaim], requester: CurrentRequester) -> OnceState:
    """Claim a step before doing it. To keep the claim, send it again within 30 seconds."""
    service = requester.service
    async with _at_work(requester, user=data.user, run=data.run) as call:
        await call.current_run()
        await call.run.change(lambda run: _extended(service, run, again=data.again))
        await _claim_payments(service, call, call.run.value, payment=data.payment)
        place = await _place(requester.program, call, data)
        row = await claim(service.elicitations, place, by=data.by)
    until = row.claimed_until
    is_callers = row.claimed_by == data.by
    if row.status == DOING:
        return OnceState(
            status="yours" if is_callers else "busy",
            idempotency_key=place.idempotency_key(service.elicitations),
            busy_until=None if is_callers or until is None else until.isoformat(),
        )
    return OnceState(
        status="done",
        idempotency_key=place.idempotency_key(service.elicitations),
        result=await result_of(service.elicitations, row, name=data.name),
    )


@post("/api/runs/once/done", guards=[_ASKERS], status_code=HTTPStatus.OK)
async def keep_once(data: JSONBody[OnceDone], requester: CurrentRequester) -> OnceState:
    """Store the result of a step under the run. If there are two results, the first is stored."""
    service = requester.service
    elicitations = service.elicitations
    async with _at_work(requester, user=data.user, run=data.run) as call:
        await call.current_run()
        with suppress(QuestionBusy, PaymentGone):  # store the result of finished work in any case
            await _claim_payments(service, call, call.run.value, payment=data.payment)
        place = await _place(requester.program, call, data)
        idempotency_key = place.idempotency_key(elicitations)
        if data.failed:
            await release(elicitations, place, by=data.by)
            return OnceState(status="busy", idempotency_key=idempotency_key)
        worked = partial(service.kinds.payments.record_work, place.owner, data.payment)
        done = await keep(elicitations, place, data.result, fault=data.fault, also=worked)
    result = await result_of(elicitations, done, name=data.name)
    return OnceState(status="done", idempotency_key=idempotency_key, result=result)


@delete("/api/secrets/{name:str}", guards=[_ASKERS], status_code=HTTPStatus.NO_CONTENT)
async def forget_secret(
    name: FromPath[str], requester: CurrentRequester, user: Whose = None
) -> None:
    """Erase the secret that a user typed under this name. The response is 404 if none is stored."""
    service = requester.service
    owner = owner_for(requester, user)
    forgotten = await service.kinds.secrets.forget(
        owner=owner, server=application_of(service), name=own_name(requester, name)
    )
    if not forgotten:
        raise NoSuchQuestion


@asynccontextmanager
async def _at_work(requester: Requester, *, user: str | None, run: str) -> AsyncGenerator[Call]:
    """Yield the call of the run.

    Raises:
        AlreadyDone: The run has ended.
        NotAllowed: The key is for other users.
    """
    service = requester.service
    caller = caller_of(requester, user)
    call = run_call_of(service, requester.program, caller, run=run)
    with service.running_tools.at_work(call):
        try:
            yield call
        except Interrupted:
            raise AlreadyDone from None
        except BaseException:
            await service.elicitations.run_to_completion(call.finish())
            raise


async def _use(service: Service, call: Call, run: Run, current: Elicitation) -> None:
    """Let the run use an available answer. Raises QuestionBusy or PaymentGone."""
    if current.delivered_at is not None:
        if traits_of(current.kind).gives == "receipt":
            await check_payment(service, current, run=run.id)
        return
    if not await call.use(current):
        raise QuestionBusy


async def _use_named_answer(
    service: Service, call: Call, run: Run, id: str, *, data: RunEnd
) -> None:
    """Let the run use the answer of the question `id`, if the request names the question.

    The run also uses a payment for which `once` did work, unless the run ends with an error.
    """
    if data.is_error and id not in data.questions:
        return
    current = await service.elicitations.get(id)
    if current is None or not current.status.is_final:
        return
    if id not in data.questions and not await _has_unspent_work(service, current):
        return
    try:
        await _use(service, call, run, current)
    except PaymentGone:
        if not (data.is_error or await _has_refunded(service, run, current)):
            raise


async def _claim_payments(service: Service, call: Call, run: Run, *, payment: str | None) -> None:
    """Claim the run's payments, for as long as a tool call claims its payments, without renewal.

    Raises:
        NoSuchQuestion: `payment` is not a payment of this run.
        QuestionBusy: Another run has claimed `payment`.
        PaymentGone: `payment` was refunded or disputed, or another run used it.
    """
    is_known = payment is None
    for asked in run.asked:
        if traits_of(asked.place.kind).gives != "receipt":
            continue
        current = await service.elicitations.get(asked.elicitation_id)
        paid = None if current is None else await service.kinds.payments.ledger.paid(current)
        if current is None or paid is None:
            continue
        is_known = is_known or paid.id == payment
        try:
            await _use(service, call, run, current)
        except (QuestionBusy, PaymentGone):
            if paid.id == payment:
                raise
    if not is_known:
        raise NoSuchQuestion


async def _has_unspent_work(service: Service, current: Elicitation) -> bool:
    """Return True if `once` did work for the payment, and no run has spent it."""
    if traits_of(current.kind).gives != "receipt":
        return False
    paid = await service.kinds.payments.ledger.paid(current)
    return paid is not None and paid.worked_at is not None and paid.spent_at is None


async def _has_refunded(service: Service, run: Run, current: Elicitation) -> bool:
    """Return True if the run itself refunded the payment."""
    paid = await service.kinds.payments.ledger.paid(current)
    return paid is not None and paid.refund_by == run.id


def _extended(service: Service, run: Run, *, again: bool) -> Run:
    """Keep the run open for as long as the results of its `once` steps are stored."""
    until = service.clock() + RECEIPT_RETENTION
    if run.open_until < until - _LEAST_EXTENSION:
        run = runs.keep_open(run, until=until)
    return runs.note_use(run, again=again)


async def _place(key: ApiKey, call: Call, step: OnceStep) -> OncePlace:
    run = call.run.value
    scope, wish = await call.run.begin_once(step.payment, retention=RECEIPT_RETENTION)
    return OncePlace(
        owner=run.owner,
        scope=scope,
        wish=wish,
        step=(client_of(key.program), "", json.dumps(step.key)),
        name=step.name,
    )
