"""The running tool bodies, each in a task of its own.

Risks: a client goes away after the person paid, or while `once` is at work, and the body stops half
way. A broken connection is therefore distinguished from a cancelled call where the protocol allows
that. With protocol revision 2025-11-25, a broken connection does not stop the body. With revision
2026-07-28 over HTTP, a closed stream means "cancel", but can also be a broken connection. A body
that claimed a payment or began `once` then runs to completion as an orphan. A cancelled body stops
at its next await outside `once`.

An identical call waits for the orphan and gets its result, or a response that asks the client to
call again. Orphans, and bodies that are cancelled inside `once`, have a time limit. After that
limit, or when the process shuts down, work inside `once` may only run for the grace period.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import anyio

from flows.errors import StoreUnavailable
from webapp.calls.call import Call
from webapp.elicitations.service import Uncancelled
from webapp.http.exchange import ClientConnection
from webapp.settings.quotas import PolicySettings

if TYPE_CHECKING:
    from webapp.calls.replay import Replays

T = TypeVar("T")
Later: TypeAlias = Callable[[Callable[[ClientConnection], None]], None]
Wait: TypeAlias = Callable[[Collection[asyncio.Future[Any]]], Awaitable[object]]
RENEWAL_SECONDS = 10.0
ARRIVAL_SECONDS = 5.0
ENDING_SECONDS = 5.0
_USUAL = PolicySettings()
_log = logging.getLogger(__name__)


class RunningTools:
    """The owner of every task that may outlive the request that started it."""

    def __init__(
        self,
        *,
        orphaned_at_most: timedelta = _USUAL.orphaned_at_most,
        grace: timedelta = _USUAL.grace,
    ) -> None:
        self._orphaned_at_most = orphaned_at_most
        self._grace = grace
        self._calls: dict[asyncio.Task[Any], Call] = {}
        self._orphans: dict[asyncio.Task[Any], Call] = {}
        self._blocks: set[Call] = set()
        self._delivering: set[Call] = set()  # calls whose delivery is not stored yet
        self._notes: set[asyncio.Task[None]] = set()
        self._again = asyncio.Event()  # set when failed writes are to be retried
        self._is_closing = False
        self._begun: set[asyncio.Task[None]] = set()
        self._in_flight: dict[str, asyncio.Future[None]] = {}
        self._unanswered: set[Call] = set()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self.replays: Replays | None = None  # set in replay mode

    def __len__(self) -> int:
        return len(self._calls)

    async def run(
        self,
        call: Call,
        body: Callable[[], Coroutine[Any, Any, T]],
        connection: ClientConnection | None,
        *,
        is_cancel_explicit: bool = True,
    ) -> T:
        """Run a body and return its result.

        Cancelling this coroutine means that the client cancelled the call. With
        `is_cancel_explicit=False` the protocol does not distinguish a broken connection from a
        cancelled call, so a cancellation can mean either.
        """
        self._unanswered.add(call)
        self._is_idle.clear()
        running = Uncancelled(body())
        task = running.task
        self._calls[task] = call
        task.add_done_callback(self._calls.pop)
        if connection is not None:
            connection.on_broken(lambda: self._orphan(task, call))
            call.used.on_first = lambda: self._orphan(task, call) if connection.is_broken else None
        try:
            return await running.result
        except asyncio.CancelledError:
            task.add_done_callback(lambda _: self._record_lost(call))
            if not task.done():
                if not is_cancel_explicit and call.used.must_finish:
                    self._orphan(task, call)
                else:
                    await self._cancelled(task, call)
            raise
        finally:
            if not task.done():  # no client gets the result, but a shutdown waits for the body
                task.add_done_callback(lambda _: self._answered(call))
            elif task.cancelled() or task.exception() is not None:
                self._answered(call)

    def begin(
        self,
        call: Call,
        body: Callable[[], Coroutine[Any, Any, T]],
        then: Callable[[T | Exception], Awaitable[None]],
    ) -> asyncio.Task[None]:
        """Run a body that no request waits for, and pass its result or error to `then`.

        Cancelling the returned task means that the client cancelled the call.
        """
        call.is_polled = True

        async def work() -> None:
            outcome: T | Exception
            try:
                outcome = await self.run(call, body, None)
            except Exception as error:  # noqa: BLE001 - a task's edge: stored and reported
                outcome = error
            finally:
                self._answered(call)
            await self._noted(call, lambda: then(outcome))

        task = asyncio.create_task(work())
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)
        return task

    @contextlib.contextmanager
    def at_work(self, call: Call) -> Generator[None]:
        """Run the author's own coroutine as the body of the call, in the current task.

        Renew the call's leases, and let a shutdown wait for the coroutine.
        """
        call.begin()
        self._unanswered.add(call)
        self._is_idle.clear()
        self._blocks.add(call)
        try:
            yield
        finally:
            self._blocks.discard(call)
            self._answered(call)

    async def ended(self, call: Call, end: Callable[[], Awaitable[None]]) -> None:
        """Write how a coroutine ended.

        If the store is unavailable, raise StoreUnavailable and retry the write later.
        """
        try:
            await end()
        except StoreUnavailable:
            self._delivering.add(call)
            self._note(call, end, then=lambda: self._delivering.discard(call))
            raise

    @property
    def has_blocks(self) -> bool:
        return bool(self._blocks)

    @property
    def is_storing_result(self) -> bool:
        """Return True if the result of a call is not durable yet."""
        return bool(self._notes)

    async def noted(self) -> None:
        """Wait until the results of all calls are durable."""
        while self._notes:
            await asyncio.wait(tuple(self._notes))

    async def all_answered(self, *, within: timedelta) -> None:
        """Wait until every call is answered and its delivery is stored, or until the time is up."""
        self._try_again()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within.total_seconds()):
                await self._is_idle.wait()

    def deliver(
        self, call: Call, connection: ClientConnection | None, *, later: Later | None = None
    ) -> None:
        """Store that the response arrived, when it has been sent. Identical calls wait for this.

        `later` registers a callback for the next connection that sends the result, in case the
        result did not arrive through `connection`.
        """
        if not call.notes_delivery:
            if connection is None:
                self._answered(call)
            else:
                connection.on_end(lambda _: self._answered(call))
            return
        arrival = self._in_flight[call.run.value.id] = asyncio.get_running_loop().create_future()

        self._delivering.add(call)

        def end(arrived: bool) -> None:  # noqa: FBT001 - the connection's callback
            self._answered(call)
            if arrived:
                self._note(call, call.delivered, then=lambda: self._record_arrival(call, arrival))
            else:
                self._record_arrival(call, arrival)
                self._record_lost(call)
                if later is not None:
                    later(lambda other: self.deliver(call, other))

        if connection is None:
            end(True)  # no connection to watch: assume that the written response arrived
        else:
            connection.on_arrival(end)

    async def wait_until_sent(self, run_id: str, *, wait: Wait | None = None) -> bool:
        """Wait until the run's response, if one is being sent, has arrived or has failed.

        Also wait for the run's orphans, by calling `wait` if it is given. `wait` may stop waiting
        before they end. Skip orphans that have claimed an outcome, because the caller waits for
        the outcome itself. Return False if there was neither a response nor an orphan.
        """
        orphans = [task for task, call in self._orphans.items() if _only_works(call, run_id)]
        if orphans:
            await (wait(orphans) if wait else asyncio.wait(orphans, timeout=ARRIVAL_SECONDS))
        arrival = self._in_flight.get(run_id)
        if arrival is not None:
            await asyncio.wait({arrival}, timeout=ARRIVAL_SECONDS)
        return bool(orphans) or arrival is not None

    async def renew_leases(self) -> None:
        """Renew the leases of running bodies until cancelled."""
        while True:
            await asyncio.sleep(RENEWAL_SECONDS)
            await self.renew()

    async def renew(self) -> None:
        """Renew all leases once and retry failed writes."""
        for call in {*self._calls.values(), *self._blocks, *self._delivering}:
            try:
                await call.renew()
            except Exception as error:  # noqa: BLE001 - a task's edge
                _log.exception("call.not_renewed", extra=_about(call, error))
        self._try_again()

    async def aclose(self) -> None:
        """End the bodies that still run, after one more attempt to write the results of calls."""
        self._is_closing = True
        self._try_again()
        if self._notes:
            await asyncio.wait(tuple(self._notes))
        for task in tuple(self._calls):
            task.cancel()
        if self._calls:
            _, stubborn = await asyncio.wait(tuple(self._calls), timeout=ENDING_SECONDS)
            for task in stubborn:
                _log.error("call.not_ended", extra={"leg": self._calls[task].request_id})
        for pending in (self._begun, self._notes):
            if pending:
                await asyncio.wait(tuple(pending), timeout=ENDING_SECONDS)

    def _answered(self, call: Call) -> None:
        self._unanswered.discard(call)
        if not self._unanswered:
            self._is_idle.set()

    def _orphan(self, task: asyncio.Task[Any], call: Call) -> None:
        if task.done() or not (call.used.has_claimed or call.used.must_finish):
            return
        self._bound(task, call)

    def _bound(self, task: asyncio.Task[Any], call: Call) -> None:
        after = self._orphaned_at_most.total_seconds()
        timer = asyncio.get_running_loop().call_later(after, self._end, task, call)
        self._orphans[task] = call
        task.add_done_callback(lambda _: timer.cancel())
        task.add_done_callback(lambda _: self._orphans.pop(task, None))
        task.add_done_callback(_retrieve)

    def _end(self, task: asyncio.Task[Any], call: Call) -> None:
        """Cancel the body now or after `once`. The grace period limits the time inside `once`."""
        call.used.when_outside_once(task.cancel)
        if call.used.is_inside_once:
            asyncio.get_running_loop().call_later(self._grace.total_seconds(), task.cancel)

    async def _cancelled(self, task: asyncio.Task[Any], call: Call) -> None:
        """Cancel the body at its next await outside `once`.

        Return when the body has ended. If the body is inside `once`, return at once.
        """
        task.add_done_callback(_retrieve)
        call.used.when_outside_once(task.cancel)
        if call.used.is_inside_once:
            self._bound(task, call)
            return
        with anyio.CancelScope(shield=True):
            await asyncio.wait({task})

    def _note(
        self,
        call: Call,
        note: Callable[[], Awaitable[None]],
        *,
        then: Callable[[], object] = lambda: None,
    ) -> None:
        async def noting() -> None:
            try:
                await self._noted(call, note)
            finally:
                self._notes.discard(task)
                then()

        task = asyncio.create_task(noting())
        self._notes.add(task)

    def _record_lost(self, call: Call) -> None:
        """Record that the call's result did not reach the client."""
        if call.marked:
            self._note(call, call.lost)

    async def _noted(self, call: Call, note: Callable[[], Awaitable[None]]) -> None:
        """Call `note`, which stores what happened to a call.

        After StoreUnavailable, retry with each lease renewal. Other errors are only logged.
        """
        has_failed = False
        while not await self._is_noted(call, note, has_failed=has_failed):
            if self._is_closing:
                _log.error("call.not_recorded", extra=_about(call))
                break
            if not has_failed:  # a shutdown waits for the retry
                self._unanswered.add(call)
                self._is_idle.clear()
            has_failed = True
            await self._again.wait()
        if has_failed:
            self._answered(call)

    async def _is_noted(
        self, call: Call, note: Callable[[], Awaitable[None]], *, has_failed: bool
    ) -> bool:
        try:
            await note()
        except StoreUnavailable as error:
            if not has_failed:
                _log.warning("call.bookkeeping_failed", extra=_about(call, error))
            return False
        except Exception as error:  # noqa: BLE001 - a task's edge
            _log.exception("call.bookkeeping_failed", extra=_about(call, error))
            return True
        if has_failed:
            _log.info("call.recorded", extra=_about(call))
        return True

    def _try_again(self) -> None:
        again, self._again = self._again, asyncio.Event()
        again.set()

    def _record_arrival(self, call: Call, arrival: asyncio.Future[None]) -> None:
        self._delivering.discard(call)
        run_id = call.run.value.id
        if self._in_flight.get(run_id) is arrival:
            del self._in_flight[run_id]
        if not arrival.done():
            arrival.set_result(None)


def _only_works(call: Call, run_id: str) -> bool:
    return call.run.is_loaded and call.run.value.id == run_id and not call.used.has_claimed


def _about(call: Call, error: Exception | None = None) -> dict[str, object]:
    """Return the log fields that let an operator find the call's payments."""
    about: dict[str, object] = {"call": call.request_id, "tool": call.tool.tool}
    if payments := {*call.used.payments, *(one.id for one in call.marked)}:
        about["payments"] = " ".join(sorted(payments))
    if error is not None:
        about["why"] = getattr(error, "why", None) or str(error)
    return about


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.warning("call.abandoned_run_failed", exc_info=task.exception())
