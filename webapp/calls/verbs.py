"""The methods with which a running tool asks questions, for one request of its call.

Risks: a method acts for a call that has ended. This can happen if several questions are asked
together: one of them can end the request while the others are pending. Each method therefore checks
the call's state before it acts, and no task of a question outlives the tool's `await`.
"""

import asyncio
import json
import logging
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from operator import attrgetter
from typing import Any, NoReturn, TypeVar, cast

from flows.elicitation.once_work import OnceWork
from flows.elicitation.run import AskedStep, Run, Step
from flows.elicitation.states import Completion, Elicitation, Json, Status
from flows.elicitation.tool_call import CallingPerson
from flows.elicitation.traits import traits_of
from flows.errors import (
    CallOver,
    ElicitError,
    Failed,
    InvalidQuestion,
    NotAllowed,
    NotSupported,
)
from flows.kinds.gate import NOT_NEEDED
from flows.question import Outcome, Question, Request, ReturningRequest, current_body, digest_of
from webapp.calls.call import Call, Interrupted
from webapp.calls.endings import register
from webapp.calls.leases import Fact
from webapp.calls.once import (
    RECEIPT_RETENTION,
    RETENTION,
    OnceKey,
    OncePlace,
    do_once,
    do_unkept,
)
from webapp.calls.order import QuestionOrder
from webapp.calls.presenter import Batch
from webapp.calls.questions import Questions
from webapp.calls.resources import OwnersReach
from webapp.calls.unasked import must_have_asked_blocking
from webapp.elicitations.question_kind import AskedBy
from webapp.identity.sessions import LOCAL_ISSUER

T = TypeVar("T")
_RAISED_AT_MOST = 100
_log = logging.getLogger(__name__)


class Verbs:
    """The questions and actions of one request. Implements flows.question.Asker."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.raised = deque[Raised](maxlen=_RAISED_AT_MOST)  # oldest first
        self.last_step: Step | None = None  # the step of the latest question for a person
        self.last_known: Json = None  # the latest answer that needed no question
        self.prefetched = Prefetched()
        self._questions = Questions(call)
        self._counts: Counter[Fact] = Counter()
        self._order = QuestionOrder(call)

    @property
    def request_id(self) -> str:
        """The id of this request in log lines."""
        return self.call.request_id

    @property
    def hidden(self) -> Collection[str]:
        """The texts that must not appear in the tool's logs."""
        return self.call.used.hidden

    @property
    def resources(self) -> OwnersReach:
        run = self.call.run.value
        return OwnersReach(call=self.call, owner=run.owner, run=run.id)

    def count_from(self, nth: int, request: Request) -> None:
        """Set how many equal questions came before the next question with this request."""
        self._counts[self.fact(request)] = nth

    def fact(self, request: Request) -> Fact:
        """Return the kind and digest that equal questions have in common. Raises NotConfigured."""
        facts = self.call.kinds.facts(request, self.call.caller)
        return request.kind, digest_of(request.kind, facts)

    async def ask(self, question: Question[T]) -> Outcome[T]:
        with self._verb():
            await must_have_asked_blocking(self.call.loop)
            outcome = await self._step(question)
            if isinstance(outcome, Step):
                outcome = await self._ask_person(outcome, question)
            is_gate = traits_of(question.request.kind).is_gate
            if is_gate and outcome.accepted and self.call.run.value.result is not None:
                # Return a stored result instead of running the body again.
                await self.call.current_run()
        self._ended(outcome)
        return outcome

    async def ask_together(
        self, questions: Sequence[Question[Any]], *, stops_at_no: bool
    ) -> tuple[Outcome[Any], ...]:
        with self._verb():
            await must_have_asked_blocking(self.call.loop)
            outcomes = await self._ask_all(questions, stops_at_no=stops_at_no)
        self._ended(*outcomes)
        return outcomes

    async def once(self, work: OnceWork) -> Json:
        """Do the work once and return its stored result.

        The result is stored under the run, so an identical call after a crash gets the result.
        After a payment, the result is stored under the receipt: every call that gets the same
        receipt again shares the result. Raises NotAllowed for a refused caller, because nothing
        could be stored and the work would be repeated.
        """
        body = current_body()
        with self._verb():
            await must_have_asked_blocking(self.call.loop)
            if work.again is None:
                return await self._once(work, step=("", "", ""))
            step = (self.call.tool.tool, body.path, json.dumps(work.key))
            with body.using(work.name, work.key):
                result = await self._once(work, step=step)
            self.call.used.note_use(again=work.again)
            return result

    async def on_end(self, callback: str, payload: str, *, key: str) -> None:
        """Register a callback for the end of the call; see `webapp.calls.endings`.

        Raises NotAllowed for a refused caller, for whom nothing is stored.
        """
        call, body = self.call, current_body()
        with self._verb():
            await must_have_asked_blocking(self.call.loop)
            await call.must_be_going_on()
            if call.caller.is_anonymous and call.caller.refusal is not None:
                raise NotAllowed(f"on_end registered nothing. {call.caller.refusal}")
            if call.used.is_once_here:
                raise InvalidQuestion(
                    "on_end cannot be called in the work of `once`, which does not run again in "
                    "the next call. Call on_end before `once`, or after it."
                )
            await call.current_run()
            step = (call.tool.tool, body.path, key)
            await register(call, callback, payload, step=step, caller=self.caller().id)

    def caller(self) -> CallingPerson:
        known, server = self.call.caller, self.call.tool.server
        tag, is_local = self.call.elicitations.owners.pepper.tag, known.issuer == LOCAL_ISSUER
        return CallingPerson(
            id=None if known.owner is None else tag("caller", server, known.owner, size=18),
            issuer=None if is_local else known.issuer,
            client=known.client or None,
            is_client_verified=known.is_client_verified,
            is_local=is_local,
        )

    def needed(self, question: Question[T]) -> T:
        """Return a prefetched answer. Implements NeedsHolder.

        The thread of a `def` tool can call this method.
        """
        if self.call.has_ended:
            raise CallOver
        return self.prefetched.see(self.fact(question.request), question)

    async def notify(self, message: str) -> None:
        await self.call.notify(message)

    def can(self, mode: str) -> bool:
        return self.call.presenter.can(mode)

    def token(self, elicitation_id: str, *, timeout: timedelta) -> str:
        return self.call.completing.token(elicitation_id, timeout=timeout)

    def read_token(self, text: str) -> str:
        return self.call.completing.read_token(text)

    async def complete(
        self,
        elicitation_id: str,
        content: Json,
        *,
        owner: str | None = None,
        program: str | None = None,
        tool: str | None = None,
    ) -> Completion:
        await must_have_asked_blocking(self.call.loop)
        return await self.call.completing.complete(
            elicitation_id, content, owner=owner, program=program, tool=tool
        )

    async def complete_return(self, request: ReturningRequest, content: Json) -> Completion:
        await must_have_asked_blocking(self.call.loop)
        return await self.call.completing.complete_return(request, content)

    async def forget(self, name: str) -> bool:
        await must_have_asked_blocking(self.call.loop)
        await self.call.must_be_going_on()
        owner, server = self.call.caller.must_be_known(), self.call.tool.server
        return await self.call.kinds.secrets.forget(owner=owner, server=server, name=name)

    def failed(self, error: ElicitError) -> None:
        self.raised.append(Raised(error, _this_task()))

    @contextmanager
    def _verb(self) -> Generator[None]:
        """Note the error of a verb. If an error ended the request, raise it instead of Interrupted.

        In a tool, a result ends the request, and Interrupted ends the body.
        """
        try:
            yield
        except Interrupted:
            if isinstance(self.call.answer, ElicitError):
                raise self.call.answer from None
            raise
        except ElicitError as error:
            self.failed(error)
            raise

    def _ended(self, *outcomes: Outcome[Any]) -> None:
        """Replace this task's earlier, handled errors with the errors of the outcomes."""
        here = _this_task()
        others = [one for one in self.raised if one.task is not here]
        errors = [one.error for one in outcomes if one.error is not None]
        self.raised = deque([*others, *(Raised(one, here) for one in errors)], _RAISED_AT_MOST)

    async def _ask_all(
        self, questions: Sequence[Question[Any]], *, stops_at_no: bool
    ) -> tuple[Outcome[Any], ...]:
        """Ask all questions in one round, and return the outcomes in the order of the questions.

        With `stops_at_no`, raise the first refusal that has no default, without waiting for the
        rest.
        """
        steps = [await self._step(question) for question in questions]
        group = Batch(len(steps))

        async def ask(question: Question[Any], step: Step | Outcome[Any]) -> Outcome[Any]:
            outcome = step
            if isinstance(outcome, Step):
                outcome = await self._ask_person(outcome, question, group)
            if stops_at_no and outcome.error is not None and question.no is None:
                raise outcome.error
            group.leave()
            return outcome

        asking: list[asyncio.Task[Outcome[Any]]] = []
        try:
            async with asyncio.TaskGroup() as tasks:
                for question, step in zip(questions, steps, strict=True):
                    asking.append(tasks.create_task(ask(question, step)))
        except BaseExceptionGroup:
            if self.call.is_interrupted:
                raise Interrupted from None
            _raise_first(asking)
        return tuple(task.result() for task in asking)

    async def _step(self, question: Question[T]) -> Step | Outcome[T]:
        """Return the question's place in the run, or its outcome if no person has to be asked."""
        call, kind = self.call, question.request.kind
        facts = call.kinds.facts(question.request, call.caller)
        fact = kind, digest_of(kind, facts)
        call.used.must_hold_nothing_hidden([question.message, facts])
        if question.again:
            call.used.note_use(again=True)
        if (prefetched := self.prefetched.pop(fact, question)) is not None:
            await call.must_be_going_on()
            return prefetched
        step = Step(kind=kind, digest=fact[1], nth=self._counts[fact])
        self._counts[fact] += 1
        await self._must_ask_only(step)
        traits = traits_of(kind)
        await call.must_be_going_on()
        try:
            about = cast("Json", getattr(question.request, "arguments", None))
            in_client = call.presenter.asks_in_client(kind, about)
            call.kinds.quotas.must_have_form(kind, in_client=in_client)
            call.caller.must_be_answerable(kind, in_client=in_client)
            if traits.is_anothers:
                call.kinds.decisions.must_be_decidable(question.request, call.caller)
        except (NotAllowed, NotSupported) as error:
            details = {"kind": kind, "tool": call.tool.tool, "why": str(error)}
            _log.info("question.not_asked", extra=details)
            return question.unasked(error)
        run = await (self._run_of_gate() if traits.is_gate else call.current_run())
        if call.kinds[kind].can_answer_without_asking:
            later = None if traits.is_gate else self._asked_again(run, step)
            try:
                known = await self._known(question.request, step.digest, run.at(step))
            except Failed:
                if later is None:
                    raise
                known = None
            if known is not None:
                return self._given(question, step, known)
            if later is not None and await self._has_received(run.at(step)):
                self._order.note(*run.alike(step))
                self._counts[fact], step = later.nth + 1, later
        await self._order.check(question, step)
        return step

    def _given(self, question: Question[T], step: Step, known: Json) -> Outcome[T]:
        """Return a known answer, which has no place in the run and is not checked for order."""
        self.call.used.has_known = True
        self._order.note(step)
        self.call.used.note((step.kind, step.digest), known, question.request)
        return Outcome(status=Status.ACCEPTED, content=question.answer(known))

    async def _must_ask_only(self, step: Step) -> None:
        """Check a call that asks once before its stored result is repeated for another question."""
        if not self.call.run.asks_once:
            return
        try:
            await self.call.current_run()
        finally:
            if self.call.run.is_loaded:
                self.call.run.must_ask_only(step)

    async def _run_of_gate(self) -> Run:
        """Return the run for a gate, even if the run's result was delivered.

        A new call has to pass its gate before the delivered result is repeated.
        """
        await self.call.must_be_going_on()
        run = await self.call.run.load()
        return run if run.is_delivered else await self.call.current_run()

    def _asked_again(self, run: Run, step: Step) -> Step | None:
        """Return the later place where an earlier request asked this question again, or None."""
        latest = max(run.alike(step), default=step, key=attrgetter("nth"))
        return latest if latest.nth > step.nth else None

    async def _has_received(self, asking: AskedStep | None) -> bool:
        """Return True if the body already received an answer at this place before it asked again.

        This is the case if the answer was known without a question, or if the question at this
        place asked for an account and was accepted.
        """
        if asking is None:
            return True
        asked = await self.call.elicitations.get(asking.elicitation_id)
        is_accepted = asked is not None and asked.status is Status.ACCEPTED
        return is_accepted and traits_of(asking.place.kind).gives == "account"

    async def _known(self, request: Request, digest: str, asking: AskedStep | None) -> Json | None:
        """Return an answer that needs no question, unless the elicitation at this place is open."""
        call = self.call
        by = call.asked_by(digest)
        if asking is not None:
            asked = await call.elicitations.get(asking.elicitation_id)
            if asked is not None and asked.delivered_at is None and await self._is_open(asked, by):
                return None
        self.last_known = await call.kinds[request.kind].known(request, by)
        return self.last_known

    async def _is_open(self, asked: Elicitation, by: AskedBy) -> bool:
        if traits_of(asked.kind).is_gate and asked.status is Status.ACCEPTED:
            return await self.call.kinds.gates.is_still_valid(asked, by)
        return self.call.clock() < asked.stored_until

    async def _ask_person(
        self, step: Step, question: Question[T], group: Batch | None = None
    ) -> Outcome[T]:
        self.last_step = step
        return await self._questions.ask(
            question,
            step,
            group or Batch(),
            is_ordered=self._order.seen[step],
            shared=partial(self._shared, question, step),
        )

    async def _shared(self, question: Question[T], step: Step) -> Outcome[T] | None:
        """Return the stored outcome of a permanent purchase, which all calls share, or None."""
        if not question.is_for_good:
            return None
        known = await self._known(question.request, step.digest, None)
        return None if known is None else self._given(question, step, known)

    async def _once(self, work: OnceWork, *, step: OnceKey) -> Json:
        call, name = self.call, work.name
        await call.must_be_going_on()
        if call.caller.owner is None:
            if call.caller.refusal is not None:
                raise NotAllowed(
                    f"once({name!r}) did not run, because its result could not be stored. "
                    f"{call.caller.refusal}"
                )
            return await do_unkept(name, work, used=call.used)
        await call.current_run()
        retention = RETENTION if (receipt := call.used.receipt) is None else RECEIPT_RETENTION
        scope, wish = await call.run.begin_once(receipt, retention=retention)
        owner = call.run.value.owner
        return await do_once(
            call.elicitations,
            once=OncePlace(owner=owner, scope=scope, wish=wish, step=step, name=name),
            retention=retention,
            work=work,
            used=call.used,
            wait=call.wait_for,
            also=partial(call.kinds.payments.record_work, owner, receipt),
        )


@dataclass(frozen=True, slots=True)
class Raised:
    """An error that a verb raised, and the task that called the verb."""

    error: ElicitError
    task: asyncio.Task[Any] | None

    @property
    def has_ended_its_task(self) -> bool:
        """True if the error ended the task, so that a task group receives it."""
        task = self.task
        is_done = task is not None and task.done() and not task.cancelled()
        return is_done and task is not None and task.exception() is self.error


def _this_task() -> asyncio.Task[Any] | None:
    with suppress(RuntimeError):  # the thread of a `def` tool has no event loop
        return asyncio.current_task()
    return None


class Prefetched:
    """The answers of one request that were collected before its body runs.

    The answers are not stored: each request of a call collects them again before its body runs. An
    `await` uses an answer up: the first await of an equal question gets the answer, and the next
    await asks a question of its own. `needed` only reads answers and can read each one repeatedly.
    """

    def __init__(self) -> None:
        self._outcomes: defaultdict[tuple[Fact, str | None], list[Outcome[Json]]] = defaultdict(
            list
        )
        self._brought: dict[tuple[Fact, str | None], Outcome[Json]] = {}

    def put(self, fact: Fact, outcome: Outcome[Json], *, key: str | None) -> None:
        """Add an answer.

        `outcome` has the value to pass to `Question.answer`; `key` is the question's key.
        """
        self._outcomes[fact, key].append(outcome)
        self._brought[fact, key] = outcome

    def see(self, fact: Fact, question: Question[T]) -> T:
        """Return the latest answer, even if it was awaited before.

        Raises InvalidQuestion if no such question was asked before the body.
        """
        outcome = self._brought.get((fact, question.key))
        if outcome is None:
            raise InvalidQuestion(NOT_NEEDED)
        return question.answer(outcome.content)

    def pop(self, fact: Fact, question: Question[T]) -> Outcome[T] | None:
        """Return the answer for the first await of this question, or None if there is none left."""
        outcomes = self._outcomes.get((fact, question.key))
        if not outcomes:
            return None
        outcome: Outcome[Any] = outcomes.pop(0)
        return replace(outcome, content=question.answer(outcome.content))


def _raise_first(asking: Sequence[asyncio.Task[Any]]) -> NoReturn:
    """Raise the first task's error itself, without the exception group of the TaskGroup."""
    errors = [task.exception() for task in asking if not task.cancelled()]
    raise next(error for error in errors if error is not None) from None
