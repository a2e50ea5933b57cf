"""The effects of a delivered result on the answers that it used.

Risks: a person pays for nothing. A tool that failed has not delivered what was paid for, so its
payment stays available for an identical call. Every other answer is used up by any result.
"""

from collections.abc import Callable, Collection
from datetime import datetime
from functools import partial

from msgspec import Struct, ValidationError
from msgspec.json import decode

from flows.elicitation import states
from flows.elicitation.run import Run
from flows.elicitation.states import Elicitation, Status
from flows.elicitation.traits import traits_of
from flows.payments.receipt import Payment
from webapp.elicitations.service import Elicitations
from webapp.kinds.registry import Kinds
from webapp.records.values import Value


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
        before = elicitations.recent.get(id) or await elicitations.get(id)
        if before is None:
            continue
        kind = kinds[before.kind]
        gone = await _gave_back(before, kinds, run=run.id)
        is_released = is_error and kind.outlives_errors and not gone
        change = _released if is_released else partial(states.deliver, now=now)
        change = partial(_unless_anothers, change, unused=unused, run=run.id)
        changed = await elicitations.possible([id], change)
        written += changed
        if changed and not is_released:
            written += await kind.used_up(before)
        elif changed:
            written += await kinds.payments.in_vain(before)
    return written


async def made(
    elicitations: Elicitations, kinds: Kinds, run: Run, *, unused: Collection[str], now: datetime
) -> list[Payment]:
    """Return the payments that a result uses, marked as perhaps delivered, before it is sent.

    The arrival of the result may never be recorded. A marked payment is not refunded automatically;
    the operator decides about it.
    """
    marked: list[Payment] = []
    for asking in run.asked:
        id, is_payment = asking.elicitation_id, traits_of(asking.place.kind).gives == "receipt"
        used = await elicitations.get(id) if is_payment and id not in unused else None
        if used is not None:
            marked += await kinds.payments.made(used, now=now)
    return marked


async def _gave_back(elicitation: Elicitation, kinds: Kinds, *, run: str) -> bool:
    """Return True if this run refunded the payment, so that no call can use it any more."""
    if traits_of(elicitation.kind).gives != "receipt":
        return False
    paid = await kinds.payments.paid(elicitation)
    return paid is not None and paid.has_ended and paid.refund_by == run


async def is_refunded(elicitations: Elicitations, kinds: Kinds, run: Run) -> bool:
    """Return True if the payment for a result was refunded, so that the result is not repeated.

    If the body itself made the refund, its result reports the refund and has to be delivered. That
    refund therefore counts only after the delivery.
    """
    for asking in run.asked:
        asked = await elicitations.get(asking.elicitation_id)
        if asked is None or traits_of(asked.kind).gives != "receipt":
            continue
        paid = await kinds.payments.paid(asked)
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
    return states.release(elicitation, leg=lease.leg)


def _unless_anothers(
    change: Callable[..., Elicitation],
    elicitation: Elicitation,
    *,
    unused: Collection[str],
    run: str,
) -> Elicitation:
    is_anothers = elicitation.id in unused and elicitation.status is Status.ACCEPTED
    return elicitation if is_anothers else change(elicitation, run=run)
