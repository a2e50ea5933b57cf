"""Runs: a program's piece of work that asks several questions, and what it does once in it.

What could go wrong: a program that dies between the end of its work and the last `taken`, so that
half of what it used is asked again. So a run ends in one write, and what was used is used up in it;
an answer that the program has not seen stays for the next run of this name. Or work that is done
twice: it is claimed first, under the run, and its result is kept as long as the run is. What was
paid for is done under its payment, which an error leaves for the next run.
"""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from litestar import delete, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from msgspec import Meta, Struct

from flows.elicitation import run as runs
from flows.elicitation.run import Run
from flows.elicitation.states import Elicitation, Json, Status
from flows.elicitation.tool_call import client_of
from flows.elicitation.traits import traits_of
from flows.errors import AlreadyDone
from webapp.api.access import Requester, holds
from webapp.api.asking import (
    NoSuchQuestion,
    QuestionBusy,
    application_of,
    caller_of,
    must_have_its_money,
    own_name,
    owner_for,
    run_call_of,
)
from webapp.api.representations import NAME_CHARACTERS, RunName, UserName, Whose
from webapp.calls.call import Call
from webapp.calls.once import (
    DOING,
    KEPT_UNDER_A_RECEIPT,
    OncePlace,
    claim,
    keep,
    release,
    result_of,
)
from webapp.calls.presenter import Interrupted
from webapp.identity.api_keys import KeyScope
from webapp.payments.payments import PaymentGone
from webapp.records.values import ApiKey
from webapp.service import Service

QUESTIONS_AT_MOST: Final = 1000
_ASKERS = holds(KeyScope.ASK)
_OPENED_AGAIN_BEFORE = timedelta(days=1)  # its time is not moved at every step
_Text = Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS)]
_Id = Annotated[str, Meta(min_length=1, max_length=128)]


class RunEnd(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run that is over, and the questions whose answers it used.

    A payment for which `once` did work is used, also where its question is not named.
    After an error (`is_error`) what was paid stays for the next run of this name. With `again` the
    next one is another wish at once; else, after a payment or `once`, two minutes later.
    """

    user: UserName | None = None
    run: RunName
    questions: Annotated[list[_Id], Meta(max_length=QUESTIONS_AT_MOST)] = []
    is_error: bool = False
    again: bool = False


class RunEnded(Struct, frozen=True, kw_only=True):
    """The run is over; so is one that was over before."""

    run: str


class OnceStep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Work that is done once in a run; `by` is your process, in letters that no other one has.

    With `payment`, which the run has in hand, it is done once for that, whichever run has it later.
    """

    user: UserName | None = None
    run: RunName
    name: _Text
    key: Annotated[str, Meta(max_length=NAME_CHARACTERS)] | int | None = None
    by: _Text
    payment: _Id | None = None


class OnceClaim(OnceStep, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The work is about to be done, or still is: a claim holds for 30 seconds.

    So long nobody refunds what the run was told is paid.
    """

    again: bool = False


class OnceDone(OnceStep, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What became of it: a `result`, a `fault` for which that is not kept, or it `failed`."""

    result: Any = None
    fault: str | None = None
    failed: bool = False


class OnceState(Struct, frozen=True, kw_only=True):
    """How it stands: `yours` to do, `busy` elsewhere, or `done`, with what came of it.

    Pass `idempotency_key` on to whom the work calls: it is the same each time.
    """

    status: str
    idempotency_key: str
    result: Json = None
    busy_until: str | None = None


class RunSpending(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A payment that the run has in hand, to be spent before something that cannot be undone."""

    user: UserName | None = None
    run: RunName
    payment: _Id


@post("/api/runs/end", guards=[_ASKERS], status_code=HTTPStatus.OK)
async def end_run(
    data: JSONBody[RunEnd], requester: NamedDependency[Requester], service: NamedDependency[Service]
) -> RunEnded:
    """All that it used is wiped here, or spent, in one write. Say so when you kept what you got.

    409 where a payment among it was refunded or disputed meanwhile, or used by another run.
    """
    try:
        async with _at_work(service, requester, user=data.user, run=data.run) as call:
            run = await call.the_run()
            for asked in run.asked:
                await _end_with(service, call, run, asked.elicitation_id, data=data)
            call.used.has_known = True  # the program says that it is over, whatever it got
            if data.again:
                call.used.note_use(again=True)
            await service.elicitations.whole(call.end(is_error=data.is_error))
    except AlreadyDone:
        pass  # by this request, when its answer was lost
    return RunEnded(run=data.run)


@post("/api/runs/spend", guards=[_ASKERS], status_code=HTTPStatus.NO_CONTENT)
async def spend_payment(
    data: JSONBody[RunSpending],
    requester: NamedDependency[Requester],
    service: NamedDependency[Service],
) -> None:
    """It is used up, while the run goes on: it is not refunded any more, and the run may see it."""
    async with _at_work(service, requester, user=data.user, run=data.run) as call:
        run = await call.the_run()
        await _hold(service, call, run, payment=data.payment)
        await service.kinds.payments.spend(run.owner, data.payment, run=run.id, leg=call.leg)
        await service.elicitations.whole(call.finish())


@post("/api/runs/once", guards=[_ASKERS], status_code=HTTPStatus.OK)
async def claim_once(
    data: JSONBody[OnceClaim],
    requester: NamedDependency[Requester],
    service: NamedDependency[Service],
) -> OnceState:
    """Before the work: whether it is yours to do. Sent again within 30 seconds it stays yours."""
    async with _at_work(service, requester, user=data.user, run=data.run) as call:
        await call.the_run()
        await call.run.change(lambda run: _kept_open(service, run, again=data.again))
        await _hold(service, call, call.run.value, payment=data.payment)
        place = await _place(requester.program, call, data)
        row = await claim(service.elicitations, place, by=data.by)
    until = row.claimed_until
    is_ours = row.claimed_by == data.by
    if row.status == DOING:
        return OnceState(
            status="yours" if is_ours else "busy",
            idempotency_key=place.idempotency_key(service.elicitations),
            busy_until=None if is_ours or until is None else until.isoformat(),
        )
    return OnceState(
        status="done",
        idempotency_key=place.idempotency_key(service.elicitations),
        result=await result_of(service.elicitations, row, name=data.name),
    )


@post("/api/runs/once/done", guards=[_ASKERS], status_code=HTTPStatus.OK)
async def keep_once(
    data: JSONBody[OnceDone],
    requester: NamedDependency[Requester],
    service: NamedDependency[Service],
) -> OnceState:
    """After the work: its result is kept under the run. Of two results the first one is."""
    elicitations = service.elicitations
    async with _at_work(service, requester, user=data.user, run=data.run) as call:
        await call.the_run()
        with suppress(QuestionBusy, PaymentGone):  # what was done is kept in any case
            await _hold(service, call, call.run.value, payment=data.payment)
        place = await _place(requester.program, call, data)
        idempotency_key = place.idempotency_key(elicitations)
        if data.failed:
            await release(elicitations, place, by=data.by)
            return OnceState(status="busy", idempotency_key=idempotency_key)
        worked = partial(service.kinds.payments.worked, place.owner, data.payment)
        done = await keep(elicitations, place, data.result, fault=data.fault, also=worked)
    result = await result_of(elicitations, done, name=data.name)
    return OnceState(status="done", idempotency_key=idempotency_key, result=result)


@delete("/api/secrets/{name:str}", guards=[_ASKERS], status_code=HTTPStatus.NO_CONTENT)
async def forget_secret(
    name: FromPath[str],
    requester: NamedDependency[Requester],
    service: NamedDependency[Service],
    user: Whose = None,
) -> None:
    """What a user typed under this name is wiped. 404: there was nothing."""
    owner = owner_for(service, requester, user)
    forgotten = await service.kinds.secrets.forget(
        owner=owner, server=application_of(service), name=own_name(requester, name)
    )
    if not forgotten:
        raise NoSuchQuestion


@asynccontextmanager
async def _at_work(
    service: Service, requester: Requester, *, user: str | None, run: str
) -> AsyncGenerator[Call]:
    """A leg of the run. Raises AlreadyDone where that is over, NotAllowed for other users."""
    caller = caller_of(service, requester, user)
    call = run_call_of(service, requester.program, caller, run=run)
    with service.bodies.at_work(call):
        call.begin()
        try:
            yield call
        except Interrupted:
            raise AlreadyDone from None
        except BaseException:
            await service.elicitations.whole(call.finish())
            raise


async def _use(service: Service, call: Call, run: Run, current: Elicitation) -> None:
    """Have the run use an answer that is there. Raises QuestionBusy, PaymentGone."""
    is_payment = traits_of(current.kind).gives == "receipt"
    if current.delivered_at is not None:
        if is_payment:
            await must_have_its_money(service, current, run=run.id)
        return
    mine = await call.taken.take(current, run=run.id)
    if mine is None:
        raise QuestionBusy
    call.taken.use(mine)
    paid = None
    if is_payment and mine.status is Status.ACCEPTED:
        paid = msgspec.to_builtins(await service.kinds.payments.usable(mine))
    call.used.note((mine.kind, mine.asked.digest), paid)


async def _end_with(service: Service, call: Call, run: Run, id: str, *, data: RunEnd) -> None:
    """Have the run use the answer, if the request names it or `once` did work for the payment."""
    if data.is_error and id not in data.questions:
        return
    current = await service.elicitations.get(id)
    if current is None or not current.status.is_final:
        return
    if id not in data.questions and not await _is_worked_for(service, current):
        return
    try:
        await _use(service, call, run, current)
    except PaymentGone:
        if not (data.is_error or await _gave_back(service, run, current)):
            raise


async def _hold(service: Service, call: Call, run: Run, *, payment: str | None) -> None:
    """Have in hand what the run was told is paid, for as long as a tool's call without renewal.

    Raises NoSuchQuestion where it was not told of `payment`, QuestionBusy where another run has
    that in hand, and PaymentGone where its money has gone back, or another run has used it.
    """
    is_known = payment is None
    for asked in run.asked:
        if traits_of(asked.place.kind).gives != "receipt":
            continue
        current = await service.elicitations.get(asked.elicitation_id)
        paid = None if current is None else await service.kinds.payments.paid(current)
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


async def _is_worked_for(service: Service, current: Elicitation) -> bool:
    """Return True if `once` did work for the payment, and no run has spent it."""
    if traits_of(current.kind).gives != "receipt":
        return False
    paid = await service.kinds.payments.paid(current)
    return paid is not None and paid.worked_at is not None and paid.spent_at is None


async def _gave_back(service: Service, run: Run, current: Elicitation) -> bool:
    """Return True if the run itself refunded the payment."""
    paid = await service.kinds.payments.paid(current)
    return paid is not None and paid.refund_by == run.id


def _kept_open(service: Service, run: Run, *, again: bool) -> Run:
    """As long as what is done in it is kept."""
    until = service.clock() + KEPT_UNDER_A_RECEIPT
    if run.open_until < until - _OPENED_AGAIN_BEFORE:
        run = runs.keep_open(run, until=until)
    return runs.note_use(run, again=again)


async def _place(key: ApiKey, call: Call, step: OnceStep) -> OncePlace:
    run = call.run.value
    scope, wish = await call.run.begin_once(step.payment, kept=KEPT_UNDER_A_RECEIPT)
    return OncePlace(
        owner=run.owner,
        scope=scope,
        wish=wish,
        step=(client_of(key.program), "", json.dumps(step.key)),
        name=step.name,
    )
