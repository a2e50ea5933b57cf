"""Bodies: the tool bodies that are running, each in a task of its own.

What could go wrong: a client goes away after it was paid for, or while `once` is at work, and the
body ends half way. So a line that breaks is told from a call that is cancelled, where that can be
told. On 2025-11-25 a broken line ends nothing. On 2026-07-28 over HTTP a closed stream is a cancel,
and may be a cut as well: a body that took a payment or began `once` then runs to its end, as an
orphan. A cancel reaches a body at its next await outside `once`.

An orphan's end is waited for by the same call made again, which gets its result, or is told to come
again. It has a time at most, and so have a body that is cancelled inside `once` and a process that
ends; what is inside `once` then gets the grace and no more.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar

import anyio

from flows.errors import StoreUnavailable
from webapp.calls.call import Call
from webapp.http.connection import ClientConnection
from webapp.settings.quotas import PolicySettings

T = TypeVar("T")
Later: TypeAlias = Callable[[Callable[[ClientConnection], None]], None]
Wait: TypeAlias = Callable[[Collection[asyncio.Future[Any]]], Awaitable[object]]
RENEWAL_SECONDS = 10.0
ARRIVAL_SECONDS = 5.0
ENDING_SECONDS = 5.0
_USUAL = PolicySettings()
_log = logging.getLogger(__name__)


class RunningTools:
    """Owns every task that may outlive the request it began in."""

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
        self._delivering: set[Call] = set()  # whose result goes out, or went and is not noted yet
        self._notes: set[asyncio.Task[None]] = set()
        self._again = asyncio.Event()  # what could not be written is written again
        self._is_closing = False
        self._begun: set[asyncio.Task[None]] = set()
        self._in_flight: dict[str, asyncio.Future[None]] = {}
        self._unanswered: set[Call] = set()
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def __len__(self) -> int:
        return len(self._calls)

    async def run(
        self,
        call: Call,
        body: Callable[[], Coroutine[Any, Any, T]],
        wire: ClientConnection | None,
        *,
        is_cut_told: bool = True,
    ) -> T:
        """Run a body. Cancelling this is a client's cancel, unless a cut could be mistaken for one.

        That is so where not `is_cut_told`.
        """
        self._unanswered.add(call)
        self._is_idle.clear()
        task = asyncio.create_task(body())
        self._calls[task] = call
        task.add_done_callback(self._calls.pop)
        if wire is not None:
            wire.on_broken(lambda: self._orphan(task, call))
            call.taken.on_first = lambda: self._orphan(task, call) if wire.is_broken else None
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(lambda _: self._lose(call))
            if not task.done():
                if not is_cut_told and call.used.must_finish:
                    self._orphan(task, call)
                else:
                    await self._cancelled(task, call)
            raise
        finally:
            if not task.done():  # nobody gets its result here, and whoever ends us waits for it
                task.add_done_callback(lambda _: self._answered(call))
            elif task.cancelled() or task.exception() is not None:
                self._answered(call)

    def begin(
        self,
        call: Call,
        body: Callable[[], Coroutine[Any, Any, T]],
        then: Callable[[T | Exception], Awaitable[None]],
    ) -> asyncio.Task[None]:
        """Run a body that no request waits for; `then` keeps what came of it.

        Cancelling the task is its client's cancel.
        """
        call.is_polled = True

        async def work() -> None:
            came_of_it: T | Exception
            try:
                came_of_it = await self.run(call, body, None)
            except Exception as error:  # noqa: BLE001 - a task's edge: it is kept, and told
                came_of_it = error
            finally:
                self._answered(call)
            await self._noted(call, lambda: then(came_of_it))

        task = asyncio.create_task(work())
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)
        return task

    @contextlib.contextmanager
    def at_work(self, call: Call) -> Generator[None]:
        """While a coroutine of the author's is at it: it is renewed, and waited for at the end."""
        self._unanswered.add(call)
        self._is_idle.clear()
        self._blocks.add(call)
        try:
            yield
        finally:
            self._blocks.discard(call)
            self._answered(call)

    async def ended(self, call: Call, end: Callable[[], Awaitable[None]]) -> None:
        """Write how a coroutine ended. Raises StoreUnavailable, and writes it again later."""
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
    def is_noting(self) -> bool:
        """Return True if the result of a call is not durable yet."""
        return bool(self._notes)

    async def all_answered(self, *, within: timedelta) -> None:
        """Wait until every call has had its answer and that is noted, or the time is up."""
        self._try_again()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within.total_seconds()):
                await self._is_idle.wait()

    def deliver(
        self, call: Call, wire: ClientConnection | None, *, later: Later | None = None
    ) -> None:
        """Once the response is out, note that it arrived. Identical calls wait for that.

        `later` knows of another exchange that brings it, where this one has not.
        """
        if wire is None:
            self._answered(call)
        else:
            wire.on_end(lambda _: self._answered(call))
        if not call.notes_delivery:
            return
        over = self._in_flight[call.run.value.id] = asyncio.get_running_loop().create_future()

        self._delivering.add(call)
        before = 0 if wire is None else wire.pieces

        def end(arrived: bool) -> None:  # noqa: FBT001 - the wire's callback
            # A client may close a stream as soon as it has the result, before the empty last piece.
            if arrived or (wire is not None and wire.pieces > before):
                self._note(call, call.delivered, then=lambda: self._land(call, over))
            else:
                self._land(call, over)
                self._lose(call)
                if later is not None:
                    later(lambda other: self.deliver(call, other))

        if wire is None:
            end(True)  # no connection to watch: written is all that can be known
        else:
            wire.on_end(end)

    async def landed(self, run_id: str, *, wait: Wait | None = None) -> bool:
        """Wait until the response of that run, if one is on its way, has arrived or has not.

        False where nothing was waited for. An orphan is waited for, too, by `wait`, which may give
        up: but for one that holds an outcome, as that is waited for.
        """
        orphans = [task for task, call in self._orphans.items() if _only_works(call, run_id)]
        if orphans:
            await (wait(orphans) if wait else asyncio.wait(orphans, timeout=ARRIVAL_SECONDS))
        over = self._in_flight.get(run_id)
        if over is not None:
            await asyncio.wait({over}, timeout=ARRIVAL_SECONDS)
        return bool(orphans) or over is not None

    async def renew_leases(self) -> None:
        """Keep what running bodies have taken; runs until cancelled."""
        while True:
            await asyncio.sleep(RENEWAL_SECONDS)
            await self.renew()

    async def renew(self) -> None:
        """Keep it for another while, and write again what could not be written."""
        for call in {*self._calls.values(), *self._blocks, *self._delivering}:
            try:
                await call.renew()
            except Exception as error:  # noqa: BLE001 - a task's edge
                _log.exception("call.not_renewed", extra=_about(call, error))
        self._try_again()

    async def aclose(self) -> None:
        """End what still runs, after one more try to write what came of the calls."""
        self._is_closing = True
        self._try_again()
        if self._notes:
            await asyncio.wait(tuple(self._notes))
        for task in tuple(self._calls):
            task.cancel()
        if self._calls:
            _, stubborn = await asyncio.wait(tuple(self._calls), timeout=ENDING_SECONDS)
            for task in stubborn:
                _log.error("call.would_not_end", extra={"leg": self._calls[task].leg})
        for left in (self._begun, self._notes):
            if left:
                await asyncio.wait(tuple(left), timeout=ENDING_SECONDS)

    def _answered(self, call: Call) -> None:
        self._unanswered.discard(call)
        if not self._unanswered:
            self._is_idle.set()

    def _orphan(self, task: asyncio.Task[Any], call: Call) -> None:
        if task.done() or not (call.has_taken or call.used.must_finish):
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
        """Now, or after `once`, or in the midst of it when its grace is over."""
        call.used.working.when_out(task.cancel)
        if call.used.working:
            asyncio.get_running_loop().call_later(self._grace.total_seconds(), task.cancel)

    async def _cancelled(self, task: asyncio.Task[Any], call: Call) -> None:
        """Cancel it at its next await outside `once`; return when it is over, or is inside."""
        task.add_done_callback(_retrieve)
        call.used.working.when_out(task.cancel)
        if call.used.working:
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
        task = asyncio.create_task(self._noted(call, note))
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)
        task.add_done_callback(lambda _: then())

    def _lose(self, call: Call) -> None:
        """Note that the result of the call reaches no client."""
        if call.marked:
            self._note(call, call.lost)

    async def _noted(self, call: Call, note: Callable[[], Awaitable[None]]) -> None:
        """Write what became of a call until that is durable: again with each renewal of leases.

        Only a store that is away is worth another try.
        """
        has_failed = False
        while not await self._is_noted(call, note, has_failed=has_failed):
            if self._is_closing:
                _log.error("call.not_noted", extra=_about(call))
                break
            if not has_failed:  # a process that ends waits for it
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
            _log.info("call.noted", extra=_about(call))
        return True

    def _try_again(self) -> None:
        again, self._again = self._again, asyncio.Event()
        again.set()

    def _land(self, call: Call, over: asyncio.Future[None]) -> None:
        self._delivering.discard(call)
        run_id = call.run.value.id
        if self._in_flight.get(run_id) is over:
            del self._in_flight[run_id]
        if not over.done():
            over.set_result(None)


def _only_works(call: Call, run_id: str) -> bool:
    return call.run.is_loaded and call.run.value.id == run_id and not call.has_taken


def _about(call: Call, error: Exception | None = None) -> dict[str, object]:
    """Return the fields of a log line about a call, by which an operator finds its payment."""
    about: dict[str, object] = {"call": call.leg, "tool": call.tool.tool}
    if payments := {*call.used.payments, *(one.id for one in call.marked)}:
        about["payments"] = " ".join(sorted(payments))
    if error is not None:
        about["why"] = getattr(error, "why", None) or str(error)
    return about


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.warning("call.left_body_failed", exc_info=task.exception())
