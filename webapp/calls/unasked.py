"""Checks for questions that a tool created and did not ask.

The checks run before each later step of the body and when the body returns.

Risks: a check reports a question that is about to be asked, because the question's task was created
a moment ago and has not started. Each check therefore lets the ready tasks run first.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeVar

from flows.elicitation.misuse import Unasked, UnaskedQuestion, never_asked
from flows.errors import ElicitError, InvalidQuestion, NoAsker
from flows.question import asking, current_unasked

T = TypeVar("T")
_log = logging.getLogger(__name__)


async def must_have_asked_blocking(loop: asyncio.AbstractEventLoop | None = None) -> None:
    """Check that no payment or confirmation was created but not asked.

    `loop` is the event loop of the call. Raises NotAsked, or InvalidQuestion if the current event
    loop is another one, in which no answer would arrive.
    """
    if loop is not None and asyncio.get_running_loop() is not loop:
        raise InvalidQuestion(
            "A verb was awaited in another event loop, such as that of asyncio.run() in a thread. "
            "Await the verb in the tool itself. A plain `def` tool cannot await: mark it with "
            "@elicit.needs(question), and read the answer with elicit.needed(question)."
        )
    unasked = current_unasked()
    if unasked.stops_what_follows:
        await asyncio.sleep(0)
        if stopping := unasked.stops_what_follows:
            raise never_asked(stopping)


async def all_were_asked(unasked: Unasked, *, tool: str, has_raised: bool = False) -> None:
    """Check that the body asked every question it created. Raises NotAsked.

    `has_raised`: the body raised an error, which may be about something else.
    """
    if unasked:
        await asyncio.sleep(0)
    if forgotten := unasked.pop_all():
        _log.error("questions.not_awaited", extra={"tool": tool, "places": _in_full(forgotten)})
        raise never_asked(forgotten, has_raised=has_raised)


async def asking_nobody(work: Callable[[], Awaitable[T]]) -> T:
    """Run a prompt or a resource, which cannot ask questions.

    Raises NoAsker if the prompt or resource calls a verb, even if it does not await the verb.
    """
    nobody: Any = _Nobody()
    with asking(nobody, is_tool=None) as unasked:
        result = await work()
        if unasked:
            await asyncio.sleep(0)
        if forgotten := unasked.pop_all():
            error = NoAsker()
            error.place = forgotten[0].place
            raise error
    return result


class _Nobody:
    """An asker that raises NoAsker for every method except `failed`."""

    def failed(self, error: ElicitError) -> None:
        """Ignore the error, which no model reads."""

    def __getattr__(self, name: str) -> NoReturn:
        raise NoAsker


def _in_full(questions: list[UnaskedQuestion]) -> list[str]:
    return [f"{question.path}:{question.line}" for question in questions]
