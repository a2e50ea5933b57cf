"""Checks for questions that a tool created and did not ask.

The checks run before each later step of the body and when the body returns.

Risks: a check reports a question that is about to be asked, because the question's task was created
a moment ago and has not started. Each check therefore lets the ready tasks run first.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

from flows.elicitation import run as runs
from flows.elicitation.misuse import Unasked, UnaskedQuestion, never_asked
from flows.elicitation.run import AskedStep, Run, Step
from flows.elicitation.states import Elicitation, Status
from flows.elicitation.traits import traits_of
from flows.errors import ElicitError, InvalidQuestion, NoAsker, QuestionChanged
from flows.kinds.form import changed_part
from flows.question import Question, asking, current_unasked
from webapp.calls.call import Call
from webapp.deadline import Deadline
from webapp.elicitations.waiters import Waiter

T = TypeVar("T")
_log = logging.getLogger(__name__)


async def must_have_asked_blocking(loop: asyncio.AbstractEventLoop | None = None) -> None:
    """Check that no payment or confirmation was created but not asked. `loop` is the call's.

    Raises NotAsked, or InvalidQuestion in another event loop, where no answer would arrive.
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
    """Run a prompt or a resource, which can ask nobody.

    Raises NoAsker for a verb, also for one that was not awaited.
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
    """An asker whose every method is missing."""

    def failed(self, error: ElicitError) -> None:
        """Ignore the error, which no model reads."""

    def __getattr__(self, name: str) -> NoReturn:
        raise NoAsker


def _in_full(questions: list[UnaskedQuestion]) -> list[str]:
    return [f"{question.path}:{question.line}" for question in questions]


# The questions that one request has asked, compared with those of the call's earlier requests.
#
# Risks: a question contains a value that changes, such as the time. Each request of the call then
# asks a new question and ignores the answer to the previous one: the person answers, and pays,
# without end. A new question is therefore refused if the body left out an earlier one.
#
# The tool's own task asks in order, so the check needs no wait there. The other tasks of the body
# ask in any order, and an earlier question may only be late. A new question then waits until the
# body has asked every question that a person has answered.

LATE_AT_MOST = timedelta(minutes=1)  # how long a task of the body can take to repeat a question
_ANSWERED = (Status.ACCEPTED, Status.DECLINED, Status.DENIED)


class QuestionOrder:
    """The steps of one request in the order in which its body asked them."""

    def __init__(self, call: Call) -> None:
        self._call = call
        # The steps of this request; True if a later request has to repeat the step before it asks a
        # new question.
        self.seen: dict[Step, bool] = {}
        self._waiters = set[Waiter]()

    def note(self, *steps: Step, is_ordered: bool = False) -> None:
        """Record that the body has asked these steps."""
        self.seen.update(dict.fromkeys(steps, is_ordered))
        for waiter in self._waiters:
            waiter.wake(None)

    async def check(self, question: Question[Any], step: Step) -> None:
        """Check that a new question leaves out no earlier one, and record its step.

        Raises QuestionChanged.
        """
        call, run = self._call, self._call.run.value
        is_gate = traits_of(step.kind).is_gate
        is_ordered = not is_gate and asyncio.current_task() is call.task
        is_new = not is_gate and run.at(step) is None
        # A call that continues no other may ask in any order, for example after a price changed.
        if call.run.is_continued and is_new and any(e.place not in self.seen for e in run.asked):
            if is_ordered:
                left_out = runs.not_repeated(run, step, seen=self.seen)
                await self._must_be_none(left_out, question)
            await self._all_repeated(question)
        self.note(step, is_ordered=is_ordered)

    async def _all_repeated(self, question: Question[Any]) -> None:
        """Wait until the body has asked every answered question of the run again."""
        call, now = self._call, self._call.clock()
        until = call.presenter.limit("once", now=now, timeout=LATE_AT_MOST)
        limit = Deadline(min(until - now, LATE_AT_MOST), ticks=call.elicitations.ticks)
        with call.elicitations.waiters.waiter(leg=call.leg) as waiter:
            call.waiters.add(waiter)
            self._waiters.add(waiter)
            try:
                while (left_out := await self._left_out(call.run.value)) is not None:
                    if limit.has_ended or call.is_draining or self._is_in_order(left_out):
                        await self._must_be_none(left_out, question)
                    now = call.clock()
                    await waiter.changes(until=limit.at(now), now=now)
                    await call.must_be_going_on()
            finally:
                self._waiters.discard(waiter)
                call.waiters.discard(waiter)

    def _is_in_order(self, left_out: AskedStep) -> bool:
        return left_out.is_ordered and asyncio.current_task() is self._call.task

    async def _left_out(self, run: Run) -> AskedStep | None:
        """Return the first answered question that this request has not asked yet, or None."""
        for each in run.asked:
            if each.place in self.seen or each.is_used or traits_of(each.place.kind).is_gate:
                continue
            asked = await self._call.elicitations.get(each.elicitation_id)
            if asked is not None and self._is_answered(asked) and each.place not in self.seen:
                return each
        return None

    def _is_answered(self, asked: Elicitation) -> bool:
        return asked.status in _ANSWERED and self._call.clock() < asked.stored_until

    async def _must_be_none(self, left_out: AskedStep | None, question: Question[Any]) -> None:
        """Raise QuestionChanged if there is a question that the body left out."""
        if left_out is not None:
            before = await self._call.elicitations.get(left_out.elicitation_id)
            differs = None if before is None else changed_part(before, question.request)
            raise QuestionChanged(expected=left_out.says, asked=question.message, differs=differs)
