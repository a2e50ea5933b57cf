"""Checks for questions that a tool created and did not ask.

The checks run before each later step of the body and when the body returns.

Risks: a check reports a question that is about to be asked, because the question's task was created
a moment ago and has not started. Each check therefore lets the ready tasks run first.
"""

import asyncio
import logging

from flows.elicitation.misuse import Unasked, UnaskedQuestion, never_asked
from flows.question import current_unasked

_log = logging.getLogger(__name__)


async def must_have_asked_blocking() -> None:
    """Check that no payment or confirmation was created but not asked. Raises NotAsked."""
    unasked = current_unasked()
    if unasked.stops_what_follows:
        await asyncio.sleep(0)
        if stopping := unasked.stops_what_follows:
            raise never_asked(stopping)


async def all_were_asked(unasked: Unasked, *, tool: str) -> None:
    """Check that the body asked every question it created. Raises NotAsked."""
    if unasked:
        await asyncio.sleep(0)
    if forgotten := unasked.pop_all():
        _log.error("questions.not_awaited", extra={"tool": tool, "places": _in_full(forgotten)})
        raise never_asked(forgotten)


def _in_full(questions: list[UnaskedQuestion]) -> list[str]:
    return [f"{question.path}:{question.line}" for question in questions]
