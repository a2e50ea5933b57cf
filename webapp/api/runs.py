"""Runs: a program's piece of work that asks several questions, and what it does once in it.

What could go wrong: a program that dies between the end of its work and the last `taken`, so that
half of what it used is asked again. So a run ends in one write, and what was used is used up in it;
an answer that the program has not seen stays for the next run of this name. Or work that is done
twice: it is claimed first, under the run, and its result is kept as long as the run is. What was
paid for is done under its payment, which an error leaves for the next run.
"""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
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
from flows.elicitation.states import Elicitation, Json
from flows.elicitation.traits import traits_of
from flows.errors import AlreadyDone
from webapp.api.access import Requester, holds
from webapp.api.asking import (
    NoSuchQuestion,
    QuestionBusy,
    application_of,
    call_of,
    caller_of,
    client_of,
    named_by_run,
    own_name,
    owner_for,
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
from webapp.records.values import ApiKey
from webapp.service import Service

QUESTIONS_AT_MOST: Final = 1000
_ASKERS = holds(KeyScope.ASK)
_OPENED_AGAIN_BEFORE = timedelta(days=1)  # its time is not moved at every step
_Text = Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS)]
_Id = Annotated[str, Meta(min_length=1, max_length=128)]


class RunEnd(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run that is over, and the questions whose answers it used.

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
    """The work is about to be done, or still is: a claim holds for 30 seconds."""

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
    """All that it used is wiped here, or spent, in one write. Say so when you kept what you got."""
    try:
        async with _at_work(service, requester, user=data.user, run=data.run) as call:
            run = await call.the_run()
            for asked in run.asked:
                if asked.elicitation_id in data.questions:
                    await _use(service, call, run, asked.elicitation_id)
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
        asked = await _paid_by(service, run, data.payment)
        await _use(service, call, run, asked.id)
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
        place = await _place(service, requester.program, call, data)
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
        place = await _place(service, requester.program, call, data)
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
    call = call_of(service, requester.program, caller, arguments=named_by_run(run))
    with service.bodies.at_work(call):
        call.begin()
        try:
            yield call
        except Interrupted:
            raise AlreadyDone from None
        except BaseException:
            await service.elicitations.whole(call.finish())
            raise


async def _use(service: Service, call: Call, run: Run, id: str) -> None:
    """Take it for this leg, if it is over and unused. Raises QuestionBusy."""
    current = await service.elicitations.get(id)
    if current is None or not current.status.is_final or current.delivered_at is not None:
        return
    mine = await call.taken.take(current, run=run.id)
    if mine is None:
        raise QuestionBusy
    call.taken.use(mine)
    call.used.note((mine.kind, mine.asked.digest), await _receipt(service, mine))


async def _paid_by(service: Service, run: Run, payment: str) -> Elicitation:
    """The question of the run that this payment answered. Raises NoSuchQuestion."""
    for asked in run.asked:
        current = await service.elicitations.get(asked.elicitation_id)
        if current is None or traits_of(current.kind).gives != "receipt":
            continue
        paid = await service.kinds.payments.paid(current)
        if paid is not None and paid.id == payment:
            return current
    raise NoSuchQuestion


async def _receipt(service: Service, mine: Elicitation) -> Json:
    if traits_of(mine.kind).gives != "receipt":
        return None
    content: Json = msgspec.to_builtins(await service.kinds.payments.paid(mine))
    return content


def _kept_open(service: Service, run: Run, *, again: bool) -> Run:
    """As long as what is done in it is kept."""
    until = service.clock() + KEPT_UNDER_A_RECEIPT
    if run.open_until < until - _OPENED_AGAIN_BEFORE:
        run = runs.keep_open(run, until=until)
    return runs.note_use(run, again=again)


async def _place(service: Service, key: ApiKey, call: Call, step: OnceStep) -> OncePlace:
    """Raises NoSuchQuestion for a payment that the run has not in hand."""
    run = call.run.value
    if step.payment is not None:
        await _paid_by(service, run, step.payment)
    return OncePlace(
        owner=run.owner,
        scope=step.payment or run.id,
        step=(client_of(key.program), "", json.dumps(step.key)),
        name=step.name,
    )
