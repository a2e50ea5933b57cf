"""Outcomes: what a tool is told of its question."""

from typing import TypeVar

from flows.elicitation import Elicitation, Json, Status
from flows.errors import Cancelled
from flows.question import Outcome, Question, refusal

T = TypeVar("T")


def outcome_of(question: Question[T], taken: Elicitation, *, content: Json) -> Outcome[T]:
    """Of an elicitation that is over; `content` is for the question's own `answer`."""
    error = refusal(
        taken.status,
        message=question.message,
        elicitation_id=taken.id,
        timeout=question.timeout,
        why=taken.why,
    )
    answer = question.answer(content) if error is None else None
    return Outcome(status=taken.status, content=answer, error=error, is_late=taken.is_late)


def cancelled(question: Question[T], current: Elicitation) -> Outcome[T]:
    """Of a wait that ended in the client: the elicitation lives on."""
    error = Cancelled(
        f"The question was dismissed: {question.message!r}. It stays open until "
        f"{current.expires_at:%H:%M} UTC: call the tool again to go on.",
        elicitation_id=current.id,
    )
    return Outcome(status=Status.CANCELLED, error=error)
