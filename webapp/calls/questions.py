"""The questions of one request: find or start each one, show it, wait for it and claim it.

An owner has one elicitation per question. A repeated question joins the existing elicitation, and a
new question starts one. The elicitation is stored and the waiter is registered before anything
leaves the process and before the author's own function runs, because a reply may come back at once.
The address that the author's function returns is stored before the link is shown. If the process
dies after the question was stored and before the address was, the next identical call runs the
function again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from typing import Any, Generic, TypeAlias, TypeVar

from msgspec.structs import replace

from flows.elicitation import run as runs
from flows.elicitation import states
from flows.elicitation.run import AskedStep, Run, Step
from flows.elicitation.states import DOES_NOT_FIT, INTERRUPTED, Asked, Elicitation, Status
from flows.elicitation.tool_call import DescribedTool
from flows.elicitation.traits import traits_of
from flows.errors import CallOver, ElicitError, Failed, InvalidQuestion
from flows.kinds.url import Visit
from flows.question import Outcome, Question
from flows.shown import must_be_tool_name
from webapp.calls.call import Call
from webapp.calls.delivery import cancelled, outcome_of, processing
from webapp.calls.presenter import Batch, PresentedQuestion
from webapp.calls.run import OPEN_AT_LEAST, join_key
from webapp.deadline import Deadline
from webapp.elicitations.aliases import give_alias, must_be_alias
from webapp.elicitations.service import TRIES_AT_MOST, Contended, pause
from webapp.elicitations.waiters import Waiter
from webapp.kinds.gate import still_applies
from webapp.kinds.quotas import Admission
from webapp.records.rows import Erased
from webapp.records.values import Standing, Value
from webapp.stores import Conflict
from webapp.telemetry.work import note, traceparent, working

T = TypeVar("T")
LOOK_AGAIN = timedelta(seconds=3)
SAYS_CHARACTERS = 80

# Returns the outcome that another call has claimed, if one answer serves both calls.
Shared: TypeAlias = Callable[[], Awaitable[Outcome[T] | None]]


@dataclass(frozen=True, slots=True)
class _Asking(Generic[T]):
    """A question at its place in the body, with the waiter for its answer."""

    question: Question[T]
    step: Step
    waiter: Waiter
    is_ordered: bool
    shared: Shared[T]


class _AnsweredMeanwhile(Exception):
    def __init__(self, outcome: Outcome[Any]) -> None:
        self.outcome = outcome


class Questions:
    """The questions that one request asks people."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._elicitations = call.elicitations
        self._kinds = call.kinds
        self._run = call.run
        self._tool = call.tool
        self._lock = asyncio.Lock()
        self._fresh: str | None = None  # id of an elicitation that is started but not announced yet

    async def ask(
        self,
        question: Question[T],
        step: Step,
        group: Batch,
        *,
        is_ordered: bool,
        shared: Shared[T],
    ) -> Outcome[T]:
        """Ask the question at this place: find or start it, show it, wait for it and claim it.

        The questions of one group are shown together.
        """
        call, tracer = self._call, self._elicitations.telemetry.tracer
        with (
            working(f"ask {step.kind}", tracer=tracer, call=call.request_id),
            call.elicitations.waiters.waiter(request_id=call.request_id, taker=call.used) as waiter,
        ):
            call.waiters.add(waiter)
            group.join(waiter)
            asking = _Asking(question, step, waiter, is_ordered, shared)
            try:
                while True:
                    with suppress(Erased):  # the store lost the elicitation: ask again
                        return await self._answered(asking, group)
                    await call.run.reload(writes_again=True)
            except _AnsweredMeanwhile as known:
                return known.outcome
            finally:
                call.waiters.discard(waiter)

    async def _answered(self, asking: _Asking[T], group: Batch) -> Outcome[T]:
        question, step, waiter = asking.question, asking.step, asking.waiter
        call, before = self._call, self._run.value.at(step)
        until = call.presenter.limit(step.kind, now=call.clock(), timeout=question.timeout)
        limit = Deadline(until - call.clock(), ticks=call.elicitations.ticks)
        while True:
            current = await self._start_or_join(asking)
            if current.is_open_there and not current.status.is_final:
                current = await call.kinds.payments.checkouts.ask_once(current)
            if not current.status.is_final:
                shown = self._shown(current, step, before=before, group=group)
                settled = await self._presented(question, shown, waiter)
                if settled is None:
                    return cancelled(question, current)
                current = settled
            await call.must_be_going_on()
            if call.is_not_waited_for(current):
                return processing(question, current)
            if not current.status.is_final:
                call.interrupt(call.presenter.busy())
            claimed = await call.used.claim(current, run=call.run.value.id)
            if claimed is not None and not await self._has_successor(claimed, step):
                await call.run.name(claimed, step)
                return await self._outcome(question, claimed)
            if claimed is None:
                if (outcome := await asking.shared()) is not None:
                    return outcome
                await self._take_over()
                await self._wait_for_the_other(waiter, limit=limit)

    async def _presented(
        self, question: Question[Any], shown: PresentedQuestion, waiter: Waiter
    ) -> Elicitation | None:
        """Show the question and wait for its answer. Return None if the client cancelled the wait.

        If the tool must not wait for this payment (`Call.is_not_waited_for`), return immediately.
        """
        if not question.waits_for_money:
            self._call.leaves_to_come.add(shown.elicitation.id)
        waiter.sees_all = traits_of(shown.elicitation.kind).gives == "receipt"
        if self._call.is_not_waited_for(shown.elicitation):
            return shown.elicitation
        await self._call.links.prove()
        return await self._call.presenter.wait(self._call, shown, waiter)

    async def _has_successor(self, claimed: Elicitation, step: Step) -> bool:
        """Return True if a newer elicitation superseded `claimed`.

        The caller then has to claim the newer elicitation, which replaces `claimed` in the run.
        """
        if claimed.status is not Status.SUPERSEDED:
            return False
        held = await self._elicitations.holder(
            Elicitation, owner=claimed.owner, key=claimed.dedupe_key
        )
        if held is None or held.id == claimed.id:
            return False
        self._call.used.forget(claimed)
        await self._call.run.change(lambda run: runs.put(run, step, held.id))
        return True

    async def _wait_for_the_other(self, waiter: Waiter, *, limit: Deadline) -> None:
        """Wait briefly for the request that claimed the outcome.

        If that request has stored its result, and the result can be repeated, end this body with
        the same result. If this request may not wait longer, end it with a "busy" result.
        """
        call = self._call
        now = call.clock()
        await waiter.changes(until=min(limit.at(now), now + LOOK_AGAIN), now=now)
        await call.run.reload()
        run = call.run.value
        if run.result is not None and run.answers(call.clock(), is_named=call.run.is_continued):
            await call.repeat(run, run.result)
        if limit.has_ended or call.is_draining:
            call.interrupt(call.presenter.busy())

    async def _outcome(self, question: Question[T], claimed: Elicitation) -> Outcome[T]:
        call = self._call
        is_yes = claimed.status is Status.ACCEPTED
        try:
            content = await call.kinds.answer(claimed, call.caller) if is_yes else None
        except Failed:  # the account or payment is gone: the next call asks again
            call.used.use(claimed)
            raise
        call.used.use(claimed)
        call.used.note((claimed.kind, claimed.request.digest), content, question.request)
        faults = call.faults.get(claimed.id, ())
        return outcome_of(question, claimed, content=content, faults=faults)

    async def _start_or_join(self, asking: _Asking[T]) -> Elicitation:
        """Find, join or start the elicitation at this place, and return it.

        The waiter is registered first, so that it receives the elicitation's changes.
        """
        question = asking.question
        if question.elicitation_id is not None:
            must_be_alias(question.elicitation_id)
        async with self._lock, self._kinds.quotas.turn(self._run.value.owner):
            if self._call.has_ended:  # another question ended the request: do not start a new one
                raise CallOver
            current = await self._find_or_start(asking)
            note(current)
            if question.elicitation_id is not None:
                await self._name(question.elicitation_id, current)
            if isinstance(question.request, Visit):
                current = await self._addressed(question.request, current)
            else:
                self._kinds.rules.remember(current, question.request)
            if current.id == self._fresh:
                self._fresh = None
                if self._elicitations.plugins.see_starts:
                    await self._elicitations.plugins.started(current)
            return current

    def _shown(
        self, current: Elicitation, step: Step, *, before: AskedStep | None, group: Batch
    ) -> PresentedQuestion:
        """Return the question for a presenter. `before` is the run's earlier step at this place."""
        asked = self._run.value.asked
        known = None if before is None else before.elicitation_id
        return PresentedQuestion(
            elicitation=current,
            link=cache(partial(self._call.links.of, current, now=self._elicitations.clock())),
            index=next(i for i, asking in enumerate(asked) if asking.place == step),
            is_again=known == current.id,
            replaces=known if known != current.id else None,
            group=group,
            arguments=self._tool.arguments,
        )

    async def _take_over(self) -> None:
        """Move the wait for all questions of the run to this request.

        This ends any older request of the run that claimed an outcome and waits for a later
        question.
        """
        await self._run.reload()
        await self._elicitations.each(
            [asking.elicitation_id for asking in self._run.value.asked],
            lambda e: states.register_waiter(
                e, request_id=self._call.request_id, run=self._run.value.id
            ),
        )

    async def _find_or_start(self, asking: _Asking[T]) -> Elicitation:
        question, step, waiter = asking.question, asking.step, asking.waiter
        client, pepper = self._call.caller.client, self._elicitations.owners.pepper
        join = join_key(question, step, self._tool, client=client, pepper=pepper)
        worded: Question[Any] | None = None
        for number in range(TRIES_AT_MOST):
            before = run = self._run.value
            self._run.must_ask_only(step)
            known = run.at(step)
            standing = None if number else await self._standing(question, run)
            current, previous = await self._look(run, known, join, standing)
            changed: list[Value] = []
            superseded: Sequence[Elicitation] = ()
            if current is None:
                new = await self._new(asking, join, run, previous, standing=standing, worded=worded)
                if new is None:
                    continue
                worded, quota, current = new
                superseded = quota.superseded
                changed += [current, *quota.rows_for(current), *map(states.release_key, previous)]
            elif not current.status.is_final and current.waiter != self._call.request_id:
                current = self._joined(question, current, run)
                changed.append(current)
            if known is None or known.elicitation_id != current.id:
                asked = AskedStep(
                    place=step,
                    elicitation_id=current.id,
                    is_ordered=asking.is_ordered,
                    says=question.message[:SAYS_CHARACTERS],
                    after=self._call.rounds,
                )
                run = runs.ask(run, asked, open_until=current.expires_at + OPEN_AT_LEAST)
                changed.append(run)
            waiter.run = run.id  # an identical call may have stored its run first
            self._elicitations.waiters.add(waiter, run.id, current.id)
            if not changed:
                return current
            try:
                await self._elicitations.write(*changed)
            except Conflict:
                await pause(number)
                await self._run.reload()
                continue
            self._elicitations.have_moved(*superseded)
            if run is not before:
                self._run.value = replace(run, version=run.version + 1)
            is_written = changed[0] is current
            return replace(current, version=current.version + 1) if is_written else current
        raise Contended(str(step))

    def _joined(self, question: Question[Any], current: Elicitation, run: Run) -> Elicitation:
        is_anothers = question.is_for_good and current.run != run.id
        joined = states.register_waiter(
            current, request_id=self._call.request_id, run=run.id, is_of_task=self._call.is_of_task
        )
        # The other call keeps waiting: one answer serves both calls.
        return replace(joined, is_shared=True) if is_anothers else joined

    async def _new(
        self,
        asking: _Asking[Any],
        join: str,
        run: Run,
        previous: Sequence[Elicitation],
        *,
        standing: Standing | None,
        worded: Question[Any] | None,
    ) -> tuple[Question[Any] | None, Admission, Elicitation] | None:
        """Return a new elicitation, its `Admission`, and the question as changed by plugins.

        The plugins change a question only once, even if the write is repeated. Return None if a
        new question was refused on the first try, with `standing`. The caller then tries again and
        looks for a question that has ended and may have the answer.

        Raises:
            _AnsweredMeanwhile: Another call has used the answer since this body looked for one.
        """
        if (outcome := await asking.shared()) is not None:
            raise _AnsweredMeanwhile(outcome)
        question, step, plugins = asking.question, asking.step, self._elicitations.plugins
        admit = partial(
            self._kinds.quotas.admit,
            run,
            client_id=self._call.caller.client,
            tool=self._tool,
            standing=standing,
        )
        try:
            if worded is None and plugins.see_questions:
                is_for_user = self._call.caller.is_user
                worded, quota = await plugins.asking(
                    question, tool=self._tool, owner=run.owner, is_for_user=is_for_user, admit=admit
                )
            else:
                quota = await admit()
            asked = question if worded is None else worded
            return worded, quota, await self._start(asked, step, join, run, previous)
        except ElicitError:
            if standing is None:
                raise
            return None

    async def _name(self, alias: str, current: Elicitation) -> None:
        """Store the author's own id of the stored elicitation, before its link is shown."""
        try:
            await give_alias(self._elicitations, alias, current)
        except InvalidQuestion:
            await self._elicitations.end(current, Status.CANCELLED)
            raise

    async def _addressed(self, visit: Visit, current: Elicitation) -> Elicitation:
        """Call the author's function for the visit's address, if the elicitation has no address.

        Return the elicitation with the address. The elicitation may have ended when the function
        returns, because a reply to the function's own request can come at once. If the function
        raises, end the question as cancelled and propagate the exception; an identical call then
        asks again.
        """
        if current.request.url is not None or current.status.is_final:
            return current
        link = self._call.links.for_author(
            elicitation_id=current.id,
            expires_at=current.expires_at,
            now=self._elicitations.clock(),
        )
        try:
            url = visit.address(link)
        except Exception:
            await self._elicitations.end(current, Status.CANCELLED)
            raise
        return await self._elicitations.change(current.id, lambda e: states.set_url(e, url))

    async def _standing(self, question: Question[Any], run: Run) -> Standing | None:
        """Return the row of the owner's open questions, or None if other rows have to be read."""
        is_perhaps_asked = question.key is not None or question.is_for_good
        if run.version or run.asked or is_perhaps_asked or self._elicitations.plugins.see_questions:
            return None
        return await self._kinds.quotas.standing(run.owner)

    async def _look(
        self, run: Run, known: AskedStep | None, join: str, standing: Standing | None
    ) -> tuple[Elicitation | None, Sequence[Elicitation]]:
        """Return the elicitation to join, or None and the ended ones that own its key."""
        if standing is not None and not standing.open:
            return None, ()  # if a question that has ended owns the key, the write conflicts
        written = self._elicitations.get_written
        current = None if known is None else await written(known.elicitation_id)
        if current is not None and not self._is_still_asked(current):
            current = None
        is_answered = current is not None and current.status is Status.ACCEPTED
        if current is not None and (current.holds_key or not is_answered):
            return current, ()
        held = await self._elicitations.holder(Elicitation, owner=run.owner, key=join)
        # An elicitation that was accepted late does not count if another accepted elicitation
        # owns the key.
        if current is not None and (held is None or held.status is not Status.ACCEPTED):
            return current, ()
        if held is None:
            return None, ()
        if not held.status.is_final and self._elicitations.clock() >= held.expires_at:
            # The sweeper has not ended this expired elicitation yet.
            held = await self._elicitations.end(held, Status.EXPIRED)
        is_there = self._elicitations.clock() < held.joined_until
        if not held.status.is_final or (held.status is Status.ACCEPTED and is_there):
            return held, ()
        return None, (held,)

    def _is_still_asked(self, current: Elicitation) -> bool:
        """Return True if the run's earlier question is valid and need not be asked again."""
        if current.delivered_at is not None:
            return False
        if not (self._run.is_continued or current.status.is_final):
            return self._elicitations.clock() < current.expires_at
        is_stored = partial(self._is_stored, current)
        if current.status is Status.ACCEPTED:
            # If both are False, the answer's content is erased: ask again.
            return is_stored(Status.ACCEPTED) or still_applies(current, self._elicitations)
        return (
            self._run.is_continued
            or not current.status.is_final
            or is_stored(Status.DECLINED, Status.DENIED)
            or (current.why not in (INTERRUPTED, DOES_NOT_FIT) and is_stored(Status.FAILED))
        )

    def _is_stored(self, held: Elicitation, *statuses: Status) -> bool:
        return held.status in statuses and self._elicitations.clock() < held.stored_until

    def _described(self, request: Any) -> DescribedTool | None:
        """Return the author's description of the tool, for an approval; else only its title."""
        called = self._tool.described
        if traits_of(request.kind).page in ("confirm", "decision"):
            return getattr(request, "described", None) or called
        return None if called is None else called.titled

    async def _start(
        self,
        question: Question[Any],
        step: Step,
        join: str,
        run: Run,
        previous: Sequence[Elicitation],
    ) -> Elicitation:
        request = question.request
        must_be_tool_name(self._tool.tool)
        id = self._fresh = self._elicitations.new_id(run.owner)
        now = self._elicitations.clock()
        expires_at = now + self._kinds.quotas.timeout(question, self._tool)
        asked = Asked(
            server=self._tool.server,
            tool=self._tool.tool,
            client=self._tool.client,
            message=question.message,
            digest=step.digest,
            version=self._tool.version,
            client_id=self._tool.client_id,
            client_apart=self._tool.client_apart,
            server_title=self._tool.server_title,
            client_title=self._tool.client_title,
            described=self._described(request),
        )
        link = self._call.links.for_author(elicitation_id=id, expires_at=expires_at, now=now)
        by = self._call.asked_by(step.digest)
        asked = await self._kinds[request.kind].asked(request, asked, link=link, by=by)
        started = Elicitation(
            id=id,
            owner=run.owner,
            kind=request.kind,
            request=asked,
            dedupe_key=join,
            created_at=now,
            expires_at=expires_at,
            waiter=self._call.request_id,
            run=run.id,
            is_by_code=self._call.caller.by_code,
            is_for_page=any(one.why == DOES_NOT_FIT and now < one.expires_at for one in previous),
            is_for_user=self._call.caller.is_user,
            user=self._call.caller.name if self._call.caller.is_user else None,
            is_of_task=self._call.is_of_task,
            trace=traceparent(),
        )
        if traits_of(started.kind).is_anothers:
            await self._kinds.decisions.announce(started)
        return started
