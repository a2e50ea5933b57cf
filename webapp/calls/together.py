"""Together: several questions of one await, each asked as by itself and all in one round.

What could go wrong: one of them ends the leg while the others are under way. What the call knows
then decides, and no task outlives the await.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol, TypeVar

from flows.elicitation.run import Step
from flows.question import Outcome, Question
from webapp.calls.presenter import Interrupted, Prompts

T = TypeVar("T")


class AsksTogether(Protocol):
    """The part of a call that asking takes."""

    @property
    def is_interrupted(self) -> bool: ...

    async def step(self, question: Question[T]) -> Step | Outcome[T]: ...
    async def ask_at(self, step: Step, question: Question[T], group: Prompts) -> Outcome[T]: ...


async def ask_all(
    call: AsksTogether, questions: Sequence[Question[Any]], *, stops_at_no: bool
) -> tuple[Outcome[Any], ...]:
    """The outcomes, in the order of the questions.

    With `stops_at_no` the first no that is no answer is raised at once: nobody waits for the rest.
    """
    places = [await call.step(question) for question in questions]
    group = Prompts(len(places))

    async def ask(question: Question[Any], step: Step | Outcome[Any]) -> Outcome[Any]:
        outcome = step
        if isinstance(outcome, Step):
            outcome = await call.ask_at(outcome, question, group)
        if stops_at_no and outcome.error is not None and question.no is None:
            raise outcome.error
        group.leave()
        return outcome

    asking: list[asyncio.Task[Outcome[Any]]] = []
    try:
        async with asyncio.TaskGroup() as tasks:
            for question, step in zip(questions, places, strict=True):
                asking.append(tasks.create_task(ask(question, step)))
    except BaseExceptionGroup:
        if call.is_interrupted:
            raise Interrupted from None
        _raise_first(asking)
    return tuple(task.result() for task in asking)


def _raise_first(asking: Sequence[asyncio.Task[Any]]) -> NoReturn:
    """Raises the error itself: whoever asked one question alone would get no group either."""
    errors = [task.exception() for task in asking if not task.cancelled()]
    raise next(error for error in errors if error is not None) from None
