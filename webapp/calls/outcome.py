"""Conversion of ended elicitations to the outcomes that a tool receives."""

from collections.abc import Sequence
from typing import Any, TypeVar

from flows.elicitation.states import Elicitation, Json, Status
from flows.elicitation.traits import traits_of
from flows.errors import Cancelled, Failed, InvalidAnswer, NotAccepted, Processing
from flows.kinds.form import approver_of
from flows.payments.unresolved import PAID_OTHERWISE, is_paid_otherwise
from flows.question import Outcome, Question, refusal
from flows.schema.schema import Fault, Refused

T = TypeVar("T")


def outcome_of(
    question: Question[T], claimed: Elicitation, *, content: Json, faults: Sequence[Fault] = ()
) -> Outcome[T]:
    """Return the outcome of an ended elicitation. `content` is the input of `Question.answer`.

    `faults` are the errors in the client's answer that ended the elicitation.
    """
    error = refusal(
        claimed.status,
        message=question.message,
        elicitation_id=claimed.id,
        timeout=claimed.expires_at - claimed.created_at,
        why=claimed.why,
        approver=approver_of(claimed),
    )
    if faults:
        details = [(fault.path, fault.message) for fault in faults]
        error = InvalidAnswer(details, elicitation_id=claimed.id)
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
