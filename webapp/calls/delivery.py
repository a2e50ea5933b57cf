"""Outcomes for tools, and the effects of a delivered result.

Risks: a person pays for nothing. A tool that failed has not delivered what was paid for, so its
payment stays available for an identical call. All other answers are used up by any result, also by
an error.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct, ValidationError
from msgspec.json import decode

from flows.elicitation import states
from flows.elicitation.ending import refusal
from flows.elicitation.run import Run
from flows.elicitation.states import Elicitation, Json, Status
from flows.elicitation.traits import traits_of
from flows.errors import Cancelled, Failed, InvalidAnswer, NotAccepted, Processing
from flows.kinds.form import voting_of
from flows.payments.receipt import Payment
from flows.payments.session import PAID_OTHERWISE, is_paid_otherwise
from flows.question import Outcome, Question
from flows.schema.schema import Fault, Refused
from webapp.elicitations.service import Elicitations
from webapp.kinds.registry import Kinds
from webapp.records.values import Value

T = TypeVar("T")


def outcome_of(
    question: Question[T], claimed: Elicitation, *, content: Json, faults: Sequence[Fault] = ()
) -> Outcome[T]:
    """Return the outcome of an ended elicitation. `content` is the input of `Question.answer`.

    `faults` are the errors in the client's answer that ended the elicitation.
    """
    voting = voting_of(claimed) if traits_of(claimed.kind).is_anothers else None
    error: NotAccepted | None = None
    if claimed.status is not Status.ACCEPTED:
        error = refusal(
            claimed.status,
            message=question.message,
            elicitation_id=claimed.id,
            timeout=claimed.expires_at - claimed.created_at,
            why=claimed.why,
            approver=None if voting is None else voting.approver,
        )
    if faults:
        details = [(fault.path, fault.message) for fault in faults]
        error = InvalidAnswer(details, elicitation_id=claimed.id)
    if any(fault.is_of_tool for fault in faults):
        why = (
            "the tool's code raised an error while it checked the answer. This is a bug in the tool"
        )
        error = Failed(f"{question.message!r}: {why}.", elicitation_id=claimed.id)
    answer: T | None = None
    if error is None:
        try:
            answer = question.answer(content)
        except Refused as refused:
            if traits_of(claimed.kind).is_secret:  # no error message may contain a person's secret
                raise
            details = [(fault.path, fault.message) for fault in refused.faults]
            raise InvalidAnswer(details, elicitation_id=claimed.id) from None
    return Outcome(
        status=claimed.status,
        content=answer,
        error=error,
        is_late=claimed.is_late,
        is_by_model=claimed.is_by_model,
        comments=() if voting is None else voting.comments,
    )


def cancelled(question: Question[T], current: Elicitation) -> Outcome[T]:
    """Return the outcome of a wait that the client cancelled. The elicitation stays open."""
    error = Cancelled(
        f"The question was dismissed: {question.message!r}. It stays open until "
        f"{current.expires_at:%H:%M} UTC: call the tool again to continue.",
        elicitation_id=current.id,
    )
    return Outcome(status=Status.CANCELLED, error=error)


def processing(question: Question[T], current: Elicitation) -> Outcome[T]:
    """Return the outcome of a payment that the tool does not wait for.

    The payment needs time, or the operator has to check it.
    """
    if is_paid_otherwise(current.progress):
        error: NotAccepted = paid_otherwise(question, elicitation_id=current.id)
        return Outcome(status=current.status, error=error)
    error = Processing(
        f"The payment for {question.message!r} is on its way, and can take days. The person has "
        "nothing more to do and must not pay again: call the tool again later.",
        elicitation_id=current.id,
    )
    return Outcome(status=current.status, error=error)


def paid_otherwise(question: Question[Any], *, elicitation_id: str) -> Failed:
    """Return the error for a payment with another amount or currency than requested."""
    return Failed(
        f"{question.message!r} was {PAID_OTHERWISE}. The person has nothing more to do and must "
        "not pay again.",
        elicitation_id=elicitation_id,
    )


async def used_up(
    elicitations: Elicitations,
    kinds: Kinds,
    run: Run,
    *,
    unused: Collection[str],
    is_error: bool,
    now: datetime,
) -> list[Value]:
    """Return the rows to write together with the run's delivery.

    `unused` are the ids of questions whose acceptances were not used for this result. If such a
    question has been accepted in the meantime, another request may be using its answer right now,
    so that answer is neither used up nor released here.
    """
    written: list[Value] = []
    for id in [asking.elicitation_id for asking in run.asked]:
        before = elicitations.rows.recent.get(id) or await elicitations.get(id)
        if before is None:
            continue
        kind = kinds[before.kind]
        gone = await _has_refunded(before, kinds, run=run.id)
        is_released = is_error and kind.outlives_errors and not gone
        change = _released if is_released else partial(states.deliver, now=now)
        change = partial(_unless_anothers, change, unused=unused, run=run.id)
        changed = await elicitations.possible([id], change)
        written += changed
        if changed and not is_released:
            written += await kind.used_up(before)
        elif changed:
            written += await kinds.payments.record_failure(before)
    return written


async def made(
    elicitations: Elicitations, kinds: Kinds, run: Run, *, unused: Collection[str], now: datetime
) -> list[Payment]:
    """Return the payments that a result uses, marked as perhaps delivered.

    Write these payments before the result is sent, because the server may never record whether the
    result arrived. A marked payment is not refunded automatically; the operator decides about it.
    """
    marked: list[Payment] = []
    for asking in run.asked:
        id, is_payment = asking.elicitation_id, traits_of(asking.place.kind).gives == "receipt"
        used = await elicitations.get(id) if is_payment and id not in unused else None
        if used is not None:
            marked += await kinds.payments.record_result(used, now=now)
    return marked


async def _has_refunded(elicitation: Elicitation, kinds: Kinds, *, run: str) -> bool:
    """Return True if this run refunded the payment: no call can use the payment any more."""
    if traits_of(elicitation.kind).gives != "receipt":
        return False
    paid = await kinds.payments.ledger.paid(elicitation)
    return paid is not None and paid.has_ended and paid.refund_by == run


async def is_refunded(elicitations: Elicitations, kinds: Kinds, run: Run) -> bool:
    """Return True if the result must not be repeated, because its payment was refunded.

    A refund that this run's tool made itself counts only after the result was delivered, because
    the result reports the refund and has to reach the client.
    """
    for asking in run.asked:
        asked = await elicitations.get(asking.elicitation_id)
        if asked is None or traits_of(asked.kind).gives != "receipt":
            continue
        paid = await kinds.payments.ledger.paid(asked)
        if paid is not None and paid.has_ended:
            return run.is_delivered or paid.refund_by != run.id
    return False


def is_error(result: str) -> bool:
    """Return True if a stored result, which is JSON, says that the tool failed."""
    try:
        return decode(result, type=_Result).isError
    except ValidationError:
        return False


class _Result(Struct):
    isError: bool = False  # noqa: N815 - the protocol's name


def _released(elicitation: Elicitation, *, run: str) -> Elicitation:
    lease = elicitation.take
    if lease is None or lease.run != run or elicitation.delivered_at is not None:
        return elicitation
    return states.release(elicitation, request_id=lease.leg)


def _unless_anothers(
    change: Callable[..., Elicitation],
    elicitation: Elicitation,
    *,
    unused: Collection[str],
    run: str,
) -> Elicitation:
    is_anothers = elicitation.id in unused and elicitation.status is Status.ACCEPTED
    return elicitation if is_anothers else change(elicitation, run=run)
