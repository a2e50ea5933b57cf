"""The questions that one request has asked, compared with those of the call's earlier requests.

Risks: a question contains a value that changes, such as the time. Each request of the call then
asks a new question and ignores the answer to the previous one: the person answers, and pays,
without end. A new question is therefore refused if the body left out an earlier one.

The tool's own task asks in order, so its check does not wait. Other tasks of the body ask in any
order, so they may still ask an earlier question that is missing so far. A new question of such a
task therefore waits until the body has asked every question that a person has answered.
"""

import asyncio
from datetime import timedelta
from typing import Any

from flows.elicitation import run as runs
from flows.elicitation.run import AskedStep, Run, Step
from flows.elicitation.states import Elicitation, Status
from flows.elicitation.traits import traits_of
from flows.errors import QuestionChanged
from flows.kinds.form import changed_part
from flows.question import Question
from webapp.calls.call import Call
from webapp.deadline import Deadline
from webapp.elicitations.waiters import Waiter

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
        """Check that the body asked all earlier questions before a new one, and record the step.

        Raises QuestionChanged.
        """
        call, run = self._call, self._call.run.value
        is_gate = traits_of(step.kind).is_gate
        is_ordered = not is_gate and asyncio.current_task() is call.task
        is_new = not is_gate and run.at(step) is None
        # A call that does not continue an earlier request may ask in any order, for example after a
        # price changed.
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
        with call.elicitations.waiters.waiter(request_id=call.request_id) as waiter:
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
