"""A single request of a tool call: its caller, its run, its claims, and how it ends.

The methods that the tool uses to ask questions are in `verbs`.

Risks: two requests of a run, or two identical calls, both act on one answer. The outcome is
therefore *claimed* by compare-and-set before the tool's `await` returns. A request that cannot
claim the outcome waits for the request that has claimed it, takes over from an older request that
waits for a later question, or gets a "busy" result.
"""

import asyncio
import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from msgspec import to_builtins
from msgspec.json import encode

from flows.elicitation import run as runs
from flows.elicitation.run import Run
from flows.elicitation.states import Elicitation, Json, Status
from flows.elicitation.tool_call import ToolCall
from flows.elicitation.traits import traits_of
from flows.errors import AlreadyDone, CallOver
from flows.payments.events import ON_ITS_WAY
from flows.payments.receipt import Payment, record_unsent_result
from flows.payments.session import is_paid_otherwise
from webapp.calls.delivery import is_error, is_refunded, made, used_up
from webapp.calls.leases import CallUse
from webapp.calls.presenter import PresentedQuestion
from webapp.calls.run import CurrentRun
from webapp.completion import Completing
from webapp.deadline import Deadline
from webapp.elicitations.links import Links
from webapp.elicitations.question_kind import AskedBy
from webapp.elicitations.service import Elicitations
from webapp.elicitations.waiters import Waiter
from webapp.http.client import Outbound
from webapp.identity.identity import Caller
from webapp.kinds.registry import Kinds
from webapp.logs.masking import masked
from webapp.records.values import Value

if TYPE_CHECKING:
    from flows.schema.schema import Fault

RESULT_BYTES_AT_MOST = 32 * 1024  # bytes of the stored form: JSON text inside JSON
NO_RESULT = "{}"  # stored for a body whose result no client receives
_NO_TIMEOUT = timedelta(days=1)
_log = logging.getLogger(__name__)


class Interrupted(BaseException):
    """Ends a tool's body. A BaseException, so that `except Exception` in a tool cannot stop it."""


class Presenter(Protocol):
    """The interface with which one protocol revision shows a question and waits for it."""

    def can(self, mode: str) -> bool: ...

    def limit(self, kind: str, *, now: datetime, timeout: timedelta) -> datetime:
        """Return the time until which a question of this kind may wait for another request."""
        ...

    def busy(self) -> object:
        """Return the result for a request whose outcome another request claimed first."""
        ...

    def asks_in_client(self, kind: str, arguments: Json) -> bool:
        """Return True if the client's own form accepts the answer, so that no link is opened.

        `arguments` are what the person confirms; the form has to show them in full.
        """
        return False

    def carry(self, call: "Call", state: object) -> object:
        """Return a requestState with the tool's own state and this presenter's state."""
        return state

    async def apply_client_answers(self, call: "Call") -> None:
        """Apply the client's answers to all questions of the run when the request ends early.

        One question ended the request while other questions were pending.
        """
        return

    async def wait(
        self, call: "Call", shown: PresentedQuestion, waiter: Waiter
    ) -> Elicitation | None:
        """Show the question and wait until it is final or the wait ends.

        The wait ends if another request takes it over or if this request's time is up. Return None
        if the client cancelled the wait. May end the request with `call.interrupt`.
        """
        ...


class Landing(Protocol):
    def wait_until_sent(
        self, run_id: str, *, wait: Callable[[Collection[asyncio.Future[Any]]], Awaitable[object]]
    ) -> Awaitable[bool]:
        """See `RunningTools.wait_until_sent`."""
        ...


class Parts(Protocol):
    """The parts of the service that a call uses."""

    elicitations: Elicitations
    links: Links
    completing: Completing
    kinds: Kinds
    outbound: Outbound

    @property
    def running_tools(self) -> Landing: ...


class Call:
    """A single request of a tool call."""

    def __init__(
        self,
        parts: Parts,
        caller: Caller,
        tool: ToolCall,
        *,
        presenter: Presenter,
        run_id: str | None = None,
        run_key: str | None = None,
        accounts: Mapping[str, str] | None = None,
        is_of_task: bool = False,
        asks_once: bool = False,
        request_id: str | None = None,
    ) -> None:
        """Create a request of a call.

        `accounts` are the accounts that the body received in earlier requests, by question digest.
        `asks_once`: the call can ask one question only, as under an Idempotency-Key.
        Pass `request_id` if several HTTP requests share it, as in a program's run.
        """
        self.request_id = request_id or secrets.token_urlsafe(12)
        self.loop = asyncio.get_running_loop()
        self.elicitations = elicitations = parts.elicitations
        self.clock = elicitations.clock
        self.links = parts.links
        self.completing = parts.completing
        self.kinds = parts.kinds
        self.outbound = parts.outbound
        self.caller, self.tool = caller, tool
        self.presenter = presenter
        self.run = CurrentRun(
            elicitations,
            caller=caller,
            tool=tool,
            wait_until_sent=partial(parts.running_tools.wait_until_sent, wait=self.wait_for),
            request_id=self.request_id,
            named=run_id,
            named_key=run_key,
            asks_once=asks_once,
        )
        self.used = CallUse(
            elicitations,
            request_id=self.request_id,
            is_shared=request_id is not None,
            accounts=accounts,
        )
        self.has_ended = False
        self.is_of_task = is_of_task  # the result is stored for polling
        # The questions sent to a client whose engine replays the call. See `AskedStep.after`.
        self.rounds: tuple[str, ...] = ()
        # the faults in the client's answers, by elicitation id
        self.faults: dict[str, Sequence[Fault]] = {}
        self.answer: object = None  # the result that the presenter returns instead of the body's
        self.is_interrupted = False  # if True, `answer` replaces the body's own result
        self.on_notice: Callable[[str], Awaitable[object]] | None = None
        self.steps = 0.0  # the number of the last progress step, which must not decrease
        self.repeats_until: datetime | None = None  # identical calls get the result until then
        self.task: asyncio.Task[object] | None = None  # the task that runs the body
        self.waiters: set[Waiter] = set()
        self.leaves_to_come: set[str] = set()  # payments that the tool does not wait for
        self.is_repeated = False  # the result was stored by an earlier request
        self._is_finished = False
        # The body finished and no request of the run asked a question, so the run is not stored.
        self._is_unasked = False
        self._is_error = False
        self.is_polled = False  # True if no HTTP request waits for the result
        self.marked: list[Payment] = []  # payments that this request marked as used by its result

    @property
    def is_draining(self) -> bool:
        """True if the process is shutting down. Waiting requests then tell the client to retry."""
        return self.elicitations.waiters.is_draining

    def asked_by(self, digest: str) -> AskedBy:
        """Return who asks the question with this digest."""
        return AskedBy(
            owner=self.run.value.owner,
            server=self.tool.server,
            tool=self.tool.tool,
            version=self.tool.version,
            client=self.tool.calling_client,
            asker=self.caller.name,
            teams=self.caller.teams,
            teams_until=self.caller.teams_until,
            bearer=self.caller.bearer,
            account=self.used.accounts.get(digest),
            is_later_request=digest in self.used.of_earlier_requests,
        )

    def next_step(self) -> float:
        """Return the number of the next progress step."""
        self.steps += 1
        return self.steps

    def begin(self) -> None:
        """Note that the tool's body starts in the current task."""
        self.task = asyncio.current_task()

    async def must_be_going_on(self) -> None:
        """Check that the call has not ended. Raises CallOver if the call has ended."""
        if self.has_ended:
            await asyncio.sleep(0)  # a tool that retries forever must not block the event loop
            raise CallOver

    async def notify(self, message: str) -> None:
        """Send a progress message to the client, if the client asked for progress.

        Raises CallOver if the call has ended.
        """
        await self.must_be_going_on()
        if self.on_notice is not None:
            await self.on_notice(masked(message, self.used.hidden, is_quoting=False))

    async def current_run(self) -> Run:
        """Return the run of this request.

        If the run already has a result, end the body here and return the stored result to the
        client. If the payment for that result was refunded, start and return a new run.
        """
        await self.must_be_going_on()
        run = await self.run.load()
        if run.result is not None:
            if await is_refunded(self.elicitations, self.kinds, run):
                self.used.drop_accounts()
                return await self.run.restart()
            await self.repeat(run, run.result)
        return run

    async def repeat(self, run: Run, result: str) -> NoReturn:
        """End the body here. The stored result becomes the result of this request."""
        await self.return_stored_result(run, result)
        self.interrupt(AlreadyDone() if result == NO_RESULT else json.loads(result))

    async def return_stored_result(self, run: Run, result: str) -> None:
        """Make the stored result the result of this request, without starting a body."""
        self.is_repeated = True
        self._is_error = is_error(result)
        self.repeats_until = run.repeated_until
        if not (self._is_error or run.is_delivered):
            await self.elicitations.write_rebuilt(self._marked_payments)

    async def use(self, current: Elicitation) -> bool:
        """Claim an outcome and use it in this run, as the `await` of a tool does.

        Return False if another request has it. Errors for a refunded or disputed payment propagate.
        """
        mine = await self.used.claim(current, run=self.run.value.id)
        if mine is None:
            return False
        self.used.use(mine)
        if traits_of(mine.kind).gives == "receipt" and mine.status is Status.ACCEPTED:
            paid = to_builtins(await self.kinds.payments.usable(mine))
            self.used.note((mine.kind, mine.request.digest), paid)
        return True

    async def hold(
        self,
        current: Elicitation,
        waiter: Waiter,
        *,
        until: datetime,
        stops: Callable[[], bool] = lambda: False,
    ) -> Elicitation:
        """Wait until the elicitation is final or the wait has to stop.

        The wait stops at `until`, if another request takes the wait over, if `stops` returns True
        after a wake-up, or if the process shuts down.
        """
        limit = Deadline(until - self.clock(), ticks=self.elicitations.ticks)
        observer = self.elicitations.observer
        observer.held(1)
        try:
            while self.is_waiting_for(current):
                now = self.clock()
                # An exchange with a provider may finish after the question's end. If the exchange
                # was interrupted, the sweeper ends the question.
                is_exchanging = current.status is Status.EXCHANGING
                if now >= current.expires_at and not is_exchanging:
                    return await self.elicitations.end(current, Status.EXPIRED)
                if limit.has_ended or self.is_draining or stops():
                    return current
                until = limit.at(now)
                ends_at = until if is_exchanging else min(until, current.expires_at)
                changes = await waiter.changes(until=ends_at, now=now)
                current = await self.elicitations.rows.newest(current, changes)
                if current.status.is_final and current.settled_at is not None:
                    since = (self.clock() - current.settled_at).total_seconds()
                    _log.info("call.woken", extra={"id": current.id, "seconds": round(since, 3)})
                    observer.woken(current.kind, seconds=since)
            return current
        finally:
            observer.held(-1)

    async def wait_for(self, others: Collection[asyncio.Future[Any]]) -> None:
        """Wait for work of other calls. If the work takes too long, end with a "busy" result."""
        now = self.clock()
        until = self.presenter.limit("once", now=now, timeout=_NO_TIMEOUT)
        _, late = await asyncio.wait(others, timeout=(until - now).total_seconds())
        if late:
            self.interrupt(self.presenter.busy())

    def is_waiting_for(self, current: Elicitation) -> bool:
        is_done = self.has_ended or current.status.is_final or self.is_not_waited_for(current)
        return not is_done and (current.waiter == self.request_id or self._shares_purchase(current))

    def _shares_purchase(self, current: Elicitation) -> bool:
        """Return True if this call and another call wait for the same permanent purchase."""
        return current.is_shared and current.run != self.run.value.id

    def is_not_waited_for(self, current: Elicitation) -> bool:
        """Return True if the tool does not wait: the payment is pending, or not as requested."""
        if current.status.is_final or current.progress is None:
            return False
        is_processing = current.progress == ON_ITS_WAY and current.id in self.leaves_to_come
        return is_processing or is_paid_otherwise(current.progress)

    def interrupt(self, answer: object) -> NoReturn:
        """End the body here. `answer` becomes the call's result, whatever the body does next."""
        if not self.is_interrupted:
            self.answer, self.is_interrupted = answer, True
        self._end()
        raise Interrupted

    async def finish(
        self, result: Callable[[], str] | None = None, *, is_error: bool = False
    ) -> None:
        """End the body, and store its result until the client is known to have received it."""
        self._end()
        if not self.is_repeated:  # the stored result of a failed tool stays an error
            self._is_error = is_error
        await self.used.release_unused()
        if result is None or self.is_interrupted or not self._should_store_result:
            await self.used.release_used()
        elif self.run.is_loaded and not self.run.value.version:
            self._is_unasked = bool(self.used.of_earlier_requests)
        elif self.run.is_loaded:
            self._is_finished = True
            text = result()
            marks = _nothing if self._is_error or self.is_polled else self._marked_payments
            if len(encode(text)) <= RESULT_BYTES_AT_MOST:
                await self.run.change(lambda run: self._finished(run, text), also=marks)
            else:
                await self.elicitations.write_rebuilt(marks)
            if self.run.value.is_cancelled:
                await self._discard_result()

    async def keep(self, result: str) -> None:
        """Store the result even if no answer was used: a later poll then starts no new run."""
        self._is_finished = True
        await self.run.change(lambda run: self._finished(run, result))

    async def end(self, *, is_error: bool = False) -> None:
        """End a body whose result no client receives, and use up its answers in one write.

        A single write leaves no gap for a crash. If the body used a payment or `once`, the run is
        remembered for an identical call, as if its result had just been sent.
        """
        self._end()
        await self.used.release_unused()
        if self.is_interrupted or not self._should_store_result:
            await self.used.release_used()
        elif self.run.is_loaded and self.run.value.version:
            await self.run.change(
                lambda run: runs.deliver(
                    self._finished(run, NO_RESULT),
                    now=self.clock(),
                    is_error=is_error,
                ),
                also=partial(self._used_up, is_error=is_error),
            )

    async def go_on(self) -> None:
        """End the request with the tool's own input request. Used answers stay used by this run."""
        self._end()
        await self.used.release_unused()
        if self.used.seen or (self.used.again is not None and self.run.is_loaded):
            await self.run.change(
                lambda run: runs.use(self.used.noted(run), self.used.seen), also=self.used.ended
            )

    @property
    def notes_delivery(self) -> bool:
        """True if something has to be stored after the result was sent."""
        return self._is_unasked or self._is_finished or self.is_repeated

    async def delivered(self) -> None:
        """Store that the last byte of the result was sent while the connection was open."""
        if self._is_unasked:
            await self.run.end_unasked()
        if not (self._is_finished or self.is_repeated):
            return
        await self.run.change(
            lambda run: runs.deliver(run, now=self.clock(), is_error=self._is_error),
            also=partial(self._used_up, is_error=self._is_error),
        )

    async def lost(self) -> None:
        """Remove the marks from the payments: no byte of the result that used them was sent."""
        ledger = self.kinds.payments.ledger
        for one in self.marked:
            if (made_at := one.made_at) is not None:
                change = partial(record_unsent_result, made_at=made_at)
                await ledger.change(one.owner, one.id, change)
        self.marked = []

    async def renew(self) -> None:
        """Extend the leases while the body runs and until its result is known to have arrived."""
        if self.used.has_claimed:
            await self.used.renew()
        if self.has_ended:
            return
        is_awaited = self.run.is_loaded and (self.is_of_task or bool(self.run.value.endings))
        if self.used.has_claimed or is_awaited:
            await self.run.keep_open()

    async def _discard_result(self) -> None:
        """Handle a body that finished after its client had cancelled the task.

        The result is discarded. An identical call may use the same answers. If the tool succeeded,
        its payments are not refunded automatically, because the work may be done.
        """
        if not self._is_error:
            await self.elicitations.write_rebuilt(self._marked_payments)
            self.marked = []
        await self.used.release_used()

    async def _marked_payments(self) -> list[Payment]:
        """Return the payments that the result uses, marked as perhaps delivered."""
        self.marked = await made(
            self.elicitations, self.kinds, self.run.value, unused=self._unused, now=self.clock()
        )
        return self.marked

    async def _used_up(self, *, is_error: bool) -> list[Value]:
        return await used_up(
            self.elicitations,
            self.kinds,
            self.run.value,
            unused=self._unused,
            is_error=is_error,
            now=self.clock(),
        )

    def _finished(self, run: Run, result: str) -> Run:
        unused = self.used.unused_of(run)
        return runs.finish(self.used.noted(run), result=result, now=self.clock(), unused=unused)

    @property
    def _unused(self) -> set[str]:
        """The ids of the run's questions whose acceptances were not used for this result."""
        run = self.run.value
        if self.is_repeated:
            return {asking.elicitation_id for asking in run.asked if asking.is_unused}
        return self.used.unused_of(run)

    def _end(self) -> None:
        """End the request: no more answers are delivered to it, and its waiters wake up."""
        self.has_ended = self.used.has_ended = True
        for waiter in self.waiters:
            waiter.wake(None)

    @property
    def _should_store_result(self) -> bool:
        """Return True if the body used an answer or `once`, or if the run asked no question."""
        asked = self.run.value.asked if self.run.is_loaded else ()
        is_used = self.used.has_known or self.used.seen or self.used.again is not None
        is_used = is_used or any(asking.is_used for asking in asked)
        return bool(is_used or not asked)


async def _nothing() -> list[Payment]:
    return []
