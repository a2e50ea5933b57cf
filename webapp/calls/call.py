"""One leg of one tool call: who asks, what was asked at which place, what was used, how it ended.

A call is the Asker of the tool that runs in it. What could go wrong: two legs of a run, or two
identical calls, that both act on one answer. The outcome is therefore *taken* by compare-and-set
before the line returns, and whoever cannot have it waits, takes over, or is told.
"""

import asyncio
import json
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from msgspec.json import encode

from flows.elicitation import run as runs
from flows.elicitation.run import AskedStep, Run, Step
from flows.elicitation.states import Elicitation, Json, Status
from flows.elicitation.tool_call import ToolCall
from flows.elicitation.traits import traits_of
from flows.errors import CallOver, ElicitError, Failed, NotAllowed, NotSupported
from flows.question import Outcome, Question
from webapp.calls.delivery import is_error, is_taken_back, used_up
from webapp.calls.leases import Leases
from webapp.calls.outcome import cancelled, outcome_of, processing
from webapp.calls.presenter import Interrupted, PresentedQuestion, Presenter, Prompts
from webapp.calls.questions import Questions
from webapp.calls.run import run_of
from webapp.calls.unasked import nothing_stands_before
from webapp.calls.verbs import Verbs
from webapp.completion import Completing
from webapp.deadline import Deadline
from webapp.elicitations.links import Links
from webapp.elicitations.service import Elicitations
from webapp.elicitations.waiters import Waiter
from webapp.http.client import Outbound
from webapp.identity.identity import Caller
from webapp.kinds.registry import Kinds
from webapp.payments.verification import ON_ITS_WAY

if TYPE_CHECKING:
    from flows.schema.schema import Fault

T = TypeVar("T")
RESULT_BYTES_AT_MOST = 32 * 1024  # as it is sealed: JSON text inside JSON
LOOK_AGAIN = timedelta(seconds=3)
_NO_TIMEOUT = timedelta(days=1)


class Call(Verbs):
    """Implements flows.question.Asker."""

    def __init__(
        self,
        *,
        elicitations: Elicitations,
        links: Links,
        completing: Completing,
        kinds: Kinds,
        outbound: Outbound,
        landed: Callable[..., Awaitable[bool]],
        caller: Caller,
        tool: ToolCall,
        presenter: Presenter,
        run_id: str | None = None,
        run_key: str | None = None,
        accounts: Mapping[str, str] | None = None,
    ) -> None:
        self.leg = secrets.token_urlsafe(12)
        run = run_of(
            elicitations,
            caller=caller,
            tool=tool,
            landed=partial(landed, wait=self.wait_for),
            leg=self.leg,
            named=run_id,
            named_key=run_key,
        )
        super().__init__(
            elicitations=elicitations,
            completing=completing,
            kinds=kinds,
            outbound=outbound,
            caller=caller,
            tool=tool,
            run=run,
            accounts=accounts or {},
        )
        self.links = links
        self.faults: dict[str, Sequence[Fault]] = {}  # of what the client answered, by elicitation
        self.answer: object = None  # the result that the presenter wants instead of the body's
        self.repeats_until: datetime | None = None  # that answer was given before; until then
        self.taken = Leases(elicitations, leg=self.leg)
        self._line = Questions(
            elicitations=elicitations,
            links=links,
            kinds=kinds,
            run=run,
            tool=tool,
            client_id=caller.client,
            leg=self.leg,
            is_by_code=caller.by_code,
            is_over=lambda: self.is_over,
        )
        self._presenter = presenter
        self._task: asyncio.Task[object] | None = None
        self._counts: Counter[tuple[str, str]] = Counter()
        self._seen: dict[Step, bool] = {}  # and whether its order counts
        self._is_repeated = False
        self._is_finished = False
        # Finished, and nobody was asked in any leg: the run stands nowhere.
        self._is_unasked = False
        self._is_error = False
        self._is_known = False  # answered without asking
        self._waiters: set[Waiter] = set()
        self._leaves_to_come: set[str] = set()  # by elicitation

    @property
    def now(self) -> datetime:
        return self.elicitations.clock()

    @property
    def has_taken(self) -> bool:
        """From here on a client that goes away on 2025-11-25 no longer ends the body."""
        return bool(self.taken)

    @property
    def must_finish(self) -> bool:
        """Whether only a client that says so ends the body: it has a payment, or began `once`."""
        return self.has_paid or self.working.has_begun

    @property
    def is_draining(self) -> bool:
        """Whether the process ends: what is not answered yet is told to come again."""
        return self.elicitations.waiters.is_draining

    @property
    def is_interrupted(self) -> bool:
        """Whether the presenter's answer is the result, whatever the body made of it."""
        return self.answer is not None

    def begin(self) -> None:
        """The tool's body starts in the current task."""
        self._task = asyncio.current_task()

    async def ask(self, question: Question[T]) -> Outcome[T]:
        try:
            await nothing_stands_before()
            outcome = await self._ask(question)
            is_gate = traits_of(question.request.kind).is_gate
            if is_gate and outcome.accepted and self.run.value.result is not None:
                await self._the_run()  # what is done is given, and no body starts for it again
        except ElicitError as error:
            self.last_error = error
            raise
        self.last_error = outcome.error
        return outcome

    def can(self, mode: str) -> bool:
        return self._presenter.can(mode)

    async def hold(
        self,
        current: Elicitation,
        waiter: Waiter,
        *,
        until: datetime,
        stops: Callable[[], bool] = lambda: False,
    ) -> Elicitation:
        """Wait until it is final, another leg took the wait over, `until`, or `stops` at a wake.

        It ends at once where the process does.
        """
        limit = Deadline(until - self.now, ticks=self.elicitations.ticks)
        while self.is_waiting_for(current):
            now = self.now
            # An exchange may end later; a broken one the sweeper ends.
            is_exchanging = current.status is Status.EXCHANGING
            if now >= current.expires_at and not is_exchanging:
                return await self.elicitations.end(current, Status.EXPIRED)
            if limit.is_over or self.is_draining or stops():
                return current
            until = limit.at(now)
            ends_at = until if is_exchanging else min(until, current.expires_at)
            changes = await waiter.changes(until=ends_at, now=now)
            current = await self.elicitations.newest(current, changes)
        return current

    async def wait_for(self, others: Collection[asyncio.Future[Any]]) -> None:
        """What other calls are at, for as long as this one may be held."""
        now = self.now
        until = self._presenter.limit("once", now=now, timeout=_NO_TIMEOUT)
        _, late = await asyncio.wait(others, timeout=(until - now).total_seconds())
        if late:
            self.interrupt(self._presenter.busy())

    def is_waiting_for(self, current: Elicitation) -> bool:
        is_done = self.is_over or current.status.is_final or self._is_left_to_come(current)
        return not is_done and current.waiter == self.leg

    def _is_left_to_come(self, current: Elicitation) -> bool:
        """Whether a payment is on its way that the tool does not wait for."""
        is_on_its_way = not current.status.is_final and current.progress == ON_ITS_WAY
        return is_on_its_way and current.id in self._leaves_to_come

    def interrupt(self, answer: object) -> NoReturn:
        """End the body here; `answer` is the call's result, whatever the body does about it."""
        if self.answer is None:
            self.answer = answer
        self._end()
        raise Interrupted

    async def finish(
        self, result: Callable[[], str] | None = None, *, is_error: bool = False
    ) -> None:
        """The body is over; what it returned is kept till it is known to have arrived."""
        self._end()
        if not self._is_repeated:  # a failure that is told again is one still
            self._is_error = is_error
        await self.taken.release_unused()
        if result is None or self.is_interrupted or not self._is_wish_granted:
            await self.taken.release_used()
        elif self.run.is_loaded and not self.run.value.version:
            self._is_unasked = self.has_accounts_of_earlier_legs
        elif self.run.is_loaded:
            self._is_finished = True
            text = result()
            if len(encode(text)) <= RESULT_BYTES_AT_MOST:
                await self.run.change(
                    lambda run: runs.finish(self._noted(run), result=text, now=self.now)
                )

    async def go_on(self) -> None:
        """The body ended with a request of the tool's own: what it used stays used in this run."""
        self._end()
        await self.taken.release_unused()
        if self.taken.used or (self.again is not None and self.run.is_loaded):
            await self.run.change(
                lambda run: runs.use(self._noted(run), self.taken.used), also=self.taken.ended
            )

    async def delivered(self) -> None:
        """The last byte of the result went out while the connection was open."""
        if self._is_unasked:
            await self.run.end_unasked()
        if not (self._is_finished or self._is_repeated):
            return
        await self.run.change(
            lambda run: runs.deliver(run, now=self.now, is_error=self._is_error),
            also=lambda: used_up(
                self.elicitations,
                self.kinds,
                self.run.value,
                is_error=self._is_error,
                now=self.now,
            ),
        )

    async def renew(self) -> None:
        """Lengthen the leases while the body runs."""
        if self.taken and not self.is_over:
            await self.taken.renew()
            await self.run.keep_open()

    async def _ask(self, question: Question[T]) -> Outcome[T]:
        step = await self.step(question)
        if isinstance(step, Outcome):
            return step
        return await self.ask_at(step, question, Prompts())

    async def step(self, question: Question[T]) -> Step | Outcome[T]:
        """Where it stands in the run, or its outcome where nobody is asked."""
        fact = self.fact(question.request)
        if question.again:
            self.note_use(again=True)
        if (handed := self.handed.take(fact, question)) is not None:
            await self._must_be_going_on()
            return handed
        step = Step(kind=fact[0], digest=fact[1], nth=self._counts[fact])
        self._counts[fact] += 1
        is_gate = traits_of(fact[0]).is_gate
        is_ordered = not is_gate and asyncio.current_task() is self._task
        await self._must_be_going_on()
        try:
            about = cast("Json", getattr(question.request, "arguments", None))
            in_client = self._presenter.asks_in_client(fact[0], about)
            self._must_be_askable(fact[0], in_client=in_client)
        except (NotAllowed, NotSupported) as error:
            return question.unasked(error)
        run = await (self._a_gates_run() if is_gate else self._the_run())
        later = self._asked_again(run, step)
        try:
            known = await self._known(question.request, step.digest, run.at(step))
        except Failed:
            if later is None:
                raise
            known = None
        if known is None and later is not None and await self._is_got(run.at(step)):
            self._seen.update((one, False) for one in run.alike(step))
            self._counts[fact], step = later.nth + 1, later
        if known is not None:  # it has no place in the run, and so none in its order
            self._is_known = True
            self._seen[step] = False
            self.note(fact, known)
            return Outcome(status=Status.ACCEPTED, content=question.answer(known))
        # A call that the client did not continue may ask afresh.
        if is_ordered and self.run.is_continued:
            runs.check_order(run, step, seen=self._seen, says=question.message)
        self._seen[step] = is_ordered
        return step

    def _asked_again(self, run: Run, step: Step) -> Step | None:
        """Where an earlier leg asked for the same once more, as what it had got works no more."""
        if not self.kinds[step.kind].may_know or traits_of(step.kind).is_gate:
            return None
        latest = max(run.alike(step), default=step, key=attrgetter("nth"))
        return latest if latest.nth > step.nth else None

    async def _is_got(self, asking: AskedStep | None) -> bool:
        """Whether the leg that asked again had got it here: it was at hand, or is an account."""
        if asking is None:
            return True
        asked = await self.elicitations.get(asking.elicitation_id)
        is_accepted = asked is not None and asked.status is Status.ACCEPTED
        return is_accepted and traits_of(asking.place.kind).gives == "account"

    async def ask_at(self, step: Step, question: Question[T], group: Prompts) -> Outcome[T]:
        """Ask it there; one group is shown together."""
        with self.elicitations.waiters.waiter(leg=self.leg, taker=self.taken) as waiter:
            self._waiters.add(waiter)
            group.join(waiter)
            try:
                return await self._answered(question, step, waiter, group)
            finally:
                self._waiters.discard(waiter)

    async def _answered(
        self, question: Question[T], step: Step, waiter: Waiter, group: Prompts
    ) -> Outcome[T]:
        before, is_ordered = self.run.value.at(step), self._seen[step]
        until = self._presenter.limit(step.kind, now=self.now, timeout=question.timeout)
        limit = Deadline(until - self.now, ticks=self.elicitations.ticks)
        while True:
            current = await self._line.park(question, step, waiter, is_ordered=is_ordered)
            if current.is_open_there and not current.status.is_final:
                current = await self.kinds.payments.checkouts.ask_once(current)
            if not current.status.is_final:
                # A new question at a place of old has been shown to nobody.
                is_again = before is not None and before.elicitation_id == current.id
                shown = self._line.shown(current, step, is_again=is_again, group=group)
                if not question.waits_for_money:
                    self._leaves_to_come.add(current.id)
                    waiter.sees_all = True
                settled = await self._presented(shown, waiter)
                if settled is None:
                    return cancelled(question, current)
                current = settled
            await self._must_be_going_on()
            if self._is_left_to_come(current):
                return processing(question, current)
            if not current.status.is_final:
                self.interrupt(self._presenter.busy())
            taken = await self.taken.take(current, run=self.run.value.id)
            if taken is not None and not await self._has_successor(taken):
                return await self._outcome(question, taken)
            if taken is None:
                await self._line.take_over()
                await self._wait_for_the_other(waiter, limit=limit)

    async def _presented(self, shown: PresentedQuestion, waiter: Waiter) -> Elicitation | None:
        """Shown to the person, and waited for; what comes by itself later is neither."""
        if self._is_left_to_come(shown.elicitation):
            return shown.elicitation
        await self.links.prove()
        return await self._presenter.wait(self, shown, waiter)

    async def _the_run(self) -> Run:
        """This leg's run. If its result is there already, that is this leg's result too.

        Not where the money for it has gone back meanwhile: then this call is another wish.
        """
        await self._must_be_going_on()
        run = await self.run.load()
        if run.result is not None:
            if await is_taken_back(self.elicitations, self.kinds, run):
                self.drop_accounts()
                return await self.run.begin_anew()
            self._repeat(run, run.result)
        return run

    async def _a_gates_run(self) -> Run:
        """The same; but a result that went out is given again behind the gate of a new call."""
        await self._must_be_going_on()
        run = await self.run.load()
        return run if run.is_delivered else await self._the_run()

    def _repeat(self, run: Run, result: str) -> NoReturn:
        self._is_repeated = True
        self._is_error = is_error(result)
        self.repeats_until = run.repeated_until
        self.interrupt(json.loads(result))

    def _noted(self, run: Run) -> Run:
        return run if self.again is None else runs.note_use(run, again=self.again)

    async def _has_successor(self, taken: Elicitation) -> bool:
        """Whether it made way for another elicitation of its question, which is to be taken."""
        if taken.status is not Status.SUPERSEDED:
            return False
        held = await self.elicitations.find(owner=taken.owner, join=taken.join)
        if held is None or held.id == taken.id:
            return False
        self.taken.forget(taken)
        await self.run.change(lambda run: runs.move(run, taken.id, held.id))
        return True

    async def _wait_for_the_other(self, waiter: Waiter, *, limit: Deadline) -> None:
        """Another leg acts on the outcome: its result is ours too if it does not arrive there."""
        now = self.now
        await waiter.changes(until=min(limit.at(now), now + LOOK_AGAIN), now=now)
        await self.run.reload()
        run = self.run.value
        if run.result is not None and run.answers(self.now, is_named=self.run.is_continued):
            self._repeat(run, run.result)
        if limit.is_over or self.is_draining:
            self.interrupt(self._presenter.busy())

    def _end(self) -> None:
        """Nothing is handed to this leg any more; what it still waits for (a gather) stops."""
        self.is_over = self.taken.is_over = True
        for waiter in self._waiters:
            waiter.wake(None)

    async def _outcome(self, question: Question[T], taken: Elicitation) -> Outcome[T]:
        is_yes = taken.status is Status.ACCEPTED
        try:
            content = await self.kinds[taken.kind].answer(taken) if is_yes else None
        except Failed:  # what it led to is gone: the next call asks anew
            self.taken.use(taken)
            raise
        self.taken.use(taken)
        self.note((taken.kind, taken.asked.digest), content)
        return outcome_of(question, taken, content=content, faults=self.faults.get(taken.id, ()))

    @property
    def _is_wish_granted(self) -> bool:
        """Whether the result of this leg used an answer or `once`, or needed none."""
        asked = self.run.value.asked if self.run.is_loaded else ()
        is_used = self._is_known or self.taken.used or self.again is not None
        is_used = is_used or any(asking.is_used for asking in asked)
        return bool(is_used or not asked)

    async def _must_be_going_on(self) -> None:
        if self.is_over:
            await asyncio.sleep(0)  # a tool that tries for ever must not stop the others
            raise CallOver
