"""The elicitation service: every change of an elicitation or a run is made and stored here.

The operations are start, open, settle, claim, deliver and complete. Functions in `flows` decide
what a change does to a value. `change` and `write_rebuilt` write the changed value: if another
process wrote first, they apply the change again, to the new value. `Rows` reads the values.

Risks: fifty writers all retry at once, and a slow process never wins. So a writer that has lost
several times waits before the next attempt, longer each time. The first attempt starts from the
copy in this process's cache, if there is one. Another risk is work that stops halfway because its
caller is cancelled. Such work runs in a task of its own, which continues (`Uncancelled`).
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from msgspec.structs import replace

from flows.elicitation import flow as attempts
from flows.elicitation import states
from flows.elicitation.run import Run
from flows.elicitation.states import LEASE, Elicitation, Lease, Status
from flows.elicitation.traits import Proof
from flows.errors import ElicitError, NotPossible, StoreUnavailable
from webapp.deadline import Clock, Steps, ticks_of
from webapp.elicitations.plugins import Plugins
from webapp.elicitations.waiters import LISTED, OWNER_DATA, ToolLists, Waiter, Waiters
from webapp.records.high_water import HighWater
from webapp.records.owners import Owners
from webapp.records.rows import Erased, Rows
from webapp.records.values import Value
from webapp.stores import Conflict, Record, Store
from webapp.telemetry.work import NONE, Telemetry

TRIES_AT_MOST = 100
AT_ONCE = 3
LONGER_SECONDS = 0.001
LONGEST_SECONDS = 0.05
T = TypeVar("T")
# Returns values to write together with a changed elicitation. It is called for each attempt.
Also: TypeAlias = Callable[[Elicitation], Awaitable[Sequence[Value]]]


class Contended(StoreUnavailable):
    """A writer lost a hundred times in a row. The cause is more likely a bug than load."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} could not be written: other writers changed it {TRIES_AT_MOST} times in a row"
        )


class RunEnds(Protocol):
    """The callbacks of `on_end`, which become due in the write that ends their run."""

    async def due_with(self, runs: Sequence[Run], values: Sequence[Value]) -> Sequence[Value]:
        """Return the callbacks of the ended `runs` to write together with these values."""
        ...

    def after_write(self, rows: Sequence[Value]) -> None:
        """Receive the written callbacks, with their new versions."""
        ...


_log = logging.getLogger(__name__)


class Elicitations:
    """The state shared by all code that starts, settles or awaits questions; one per process."""

    def __init__(
        self,
        *,
        store: Store,
        owners: Owners,
        waiters: Waiters,
        clock: Clock,
        plugins: Plugins | None = None,
        telemetry: Telemetry = NONE,
        high_water: HighWater | None = None,
    ) -> None:
        self.store = store
        self.telemetry = telemetry
        self.observer = telemetry.observer
        self.owners = owners
        self.waiters = waiters
        self.clock = clock
        self.ticks = ticks_of(clock)
        self.steps = Steps(clock)
        self.rows = rows = Rows(owners)
        self.high_water = rows.high_water = high_water or HighWater(store, clock=clock)
        self.read, self.holder, self.all = rows.read, rows.holder, rows.all
        self.get = rows.get
        self.tool_lists = ToolLists()
        # Called with the writes of other processes.
        self.subscribers: list[Callable[[Record], Awaitable[None]]] = []
        self.subscribed_kinds: set[str] = set()  # kinds for which subscribers get every write
        # Called when writes may have been missed, or the store may have changed unnoticed.
        self.on_gap: list[Callable[[], None]] = [self.high_water.reconnected, rows.forget]
        self.plugins = plugins or Plugins()
        self._works: set[asyncio.Task[Any]] = set()
        self._writing: dict[str, asyncio.Event] = {}  # by id: set when the write has ended
        self.doing: dict[str, asyncio.Future[None]] = {}  # steps of `once` in progress
        self.run_ends: RunEnds | None = None

    def new_id(self, owner: str) -> str:
        """Return a new id that cannot be guessed."""
        return self.rows.new_id(owner, now=self.clock())

    async def write(self, *values: Value) -> Sequence[Value]:
        """Write all values or none, then wake the waiters for them; see `Rows.write`."""
        asked, has_ended = len(values), asyncio.Event()
        writing = dict.fromkeys([value.id for value in values], has_ended)
        self._writing.update(writing)
        try:
            ends = [one for one in values if isinstance(one, Run) and one.is_delivered]
            if self.run_ends is not None and any(run.endings for run in ends):
                values = (*values, *await self.run_ends.due_with(ends, values))
            written = await self.rows.write(*values)
            self._notify(written)
        except Conflict:
            for value in values:
                self.rows.recent.forget(value.id)
            raise
        finally:
            for id in writing:
                if self._writing.get(id) is has_ended:
                    del self._writing[id]
            has_ended.set()
        if self.run_ends is not None and len(written) > asked:
            self.run_ends.after_write(written[asked:])
        return written[:asked]

    async def get_written(self, id: str) -> Elicitation | None:
        """Read the elicitation. If this process is writing it now, wait for that write first.

        A change that is based on the version before that write would fail its version check.
        """
        await self._until_written(id)
        return await self.get(id)

    async def _until_written(self, id: str) -> None:
        while (has_ended := self._writing.get(id)) is not None:
            await has_ended.wait()

    def _notify(self, written: Sequence[Value]) -> None:
        """Wake everything that waits for these written values."""
        if any(isinstance(value, LISTED) for value in written):
            self.waiters.wake_lists(written[0].owner)
        for value in written:
            if isinstance(value, OWNER_DATA):
                self.tool_lists.report(value.owner)
            elif isinstance(value, Elicitation):
                if self.rows.recent.store(value):
                    self.waiters.wake(value)
                if value.version == 1:
                    self._was_asked(value)
            elif isinstance(value, Run):
                self.waiters.wake(value)
        self.observer.after_write(written)

    async def write_rebuilt(
        self, values: Callable[[], Awaitable[Sequence[Value]]]
    ) -> Sequence[Value]:
        """Write the values that `values` returns; call `values` again if another write was first.

        Return the written values, with their old versions. If `values` returns no values, write
        nothing. Raises Contended if other writers were first too many times.
        """
        for number in range(TRIES_AT_MOST):
            rows = await values()
            if not rows:
                return rows
            try:
                await self.write(*rows)
            except Conflict:
                await pause(number)
                continue
            return rows
        raise Contended("the records")

    async def change(
        self,
        id: str,
        change: Callable[[Elicitation], Elicitation],
        *,
        also: Also | None = None,
        known: Elicitation | None = None,
    ) -> Elicitation:
        """Apply `change` to one elicitation and write it by compare-and-set. Return the result.

        If another write was first, read the elicitation and apply `change` again. `known` is a copy
        that the caller has already read. Errors of `change` and `also` propagate.

        Raises:
            Erased: The elicitation does not exist.
            Contended: Other writers were first too many times.
        """
        if known is None:
            await self._until_written(id)
        current = known or self.rows.recent.get(id)
        is_read = current is None
        for number in range(TRIES_AT_MOST):
            if is_read or current is None:
                current = await self.get(id)
                is_read = True
            if current is None:
                raise Erased(id)
            try:
                changed = change(current)
            except ElicitError:
                if is_read:
                    raise
                is_read = True  # the cached copy may be stale: read the stored one and try again
                continue
            if changed == current:
                return current
            try:
                await self.write(*(await also(changed) if also is not None else ()), changed)
            except Conflict:
                is_read = True
                await pause(number)
                continue
            if changed.status is not current.status:
                self._moved(changed)
            return replace(changed, version=changed.version + 1)
        raise Contended(id)

    def have_moved(self, *changed: Elicitation) -> None:
        """Log and report elicitations whose new status was written by `write_rebuilt`."""
        for each in changed:
            self._moved(each)

    async def open_attempt(self, id: str, *, browser: str) -> Elicitation:
        """Open an attempt that leads to no provider, for example to a page of this server."""
        return await self.change(
            id, lambda e: attempts.open_attempt(e, browser=browser, now=self.clock())
        )

    async def settle(
        self,
        id: str,
        status: Status,
        *,
        why: str | None = None,
        by: str | None = None,
        proof: Proof | None = None,
        also: Also | None = None,
    ) -> Elicitation:
        """End the elicitation without an answer. Raises NotPossible if it has already ended.

        If this process is handling a request of the waiting call, the same write claims the outcome
        for that request. Cancelling the caller does not stop the work, because waiters must be
        woken after a write. `by` is the name for the audit log. `proof` is the proof of a refusal
        by another person, such as an approver.
        """
        assert status is not Status.ACCEPTED, "pass an answer to complete_elicitation instead"
        return await self.run_to_completion(
            self.end_by(
                id,
                partial(states.settle, status=status, why=why, proof=proof, by=by),
                also=also,
            )
        )

    async def end_by(
        self, id: str, end: Callable[..., Elicitation], *, also: Also | None
    ) -> Elicitation:
        """End the elicitation with the function `end`, and claim the outcome as `settle` does.

        Only `settle` and `complete_elicitation` may call this method, through `run_to_completion`.
        Raises Erased, and what `end` raises.
        """
        waiter: Waiter | None = None

        def change(current: Elicitation) -> Elicitation:
            nonlocal waiter
            now = self.clock()
            waiter = self.waiters.of_request(id, current.waiter)
            lease = (
                Lease(run=waiter.run, leg=waiter.request_id, until=now + LEASE)
                if waiter is not None
                else None
            )
            return end(current, now=now, lease=lease)

        settled = await self.change(id, change, also=also)
        if waiter is not None and waiter.taker is not None:
            request_id = waiter.request_id
            if not waiter.taker.record_prefetch(settled):
                # The request ended during the write. Release its claim for the next request.
                await self.each([id], lambda e: states.release(e, request_id=request_id))
        return settled

    async def end(
        self, current: Elicitation, status: Status, *, why: str | None = None
    ) -> Elicitation:
        """End the elicitation and return it.

        If another write ended the elicitation first, return the result of that write.
        """
        try:
            return await self.settle(current.id, status, why=why)
        except NotPossible:
            return await self.get(current.id) or current

    async def claim(
        self, id: str, *, run: str, request_id: str, known: Elicitation | None = None
    ) -> Elicitation:
        """Claim the outcome for a request. Raises NotPossible if another request has claimed it."""
        previous: Lease | None = None

        def free(current: Elicitation) -> Elicitation:
            nonlocal previous
            previous = current.take
            if (
                (lease := current.take) is not None
                and lease.leg != request_id
                and self._is_unsure(lease)
            ):
                raise NotPossible(status=current.status, wanted="taken")
            return states.claim(current, run=run, request_id=request_id, now=self.clock())

        try:
            claimed = await self.change(id, free, known=known)
        except NotPossible:
            await self.each([id], lambda e: states.shorten(e, now=self.clock()))
            raise
        if previous is not None and previous.leg != request_id and not previous.is_ended:
            _log.info("lease.taken_over", extra={"id": id})
            self.observer.taken_over()
        return claimed

    def is_held(self, current: Elicitation) -> bool:
        """Return True while the lease on the outcome lasts, according to this process's clock."""
        return current.take is not None and self.clock() < current.take.until

    def is_claimed(self, current: Elicitation) -> bool:
        """Return True if a tool may be using the outcome.

        If the clock was changed recently, an expired lease may still be valid, so return True.
        """
        is_doubtful = current.take is not None and self._is_unsure(current.take)
        return self.is_held(current) or is_doubtful

    async def is_in_hand(self, current: Elicitation) -> bool:
        """Return True if a run uses the outcome. Call this method before revoking the outcome.

        A process that has just started cannot know if an expired lease is about to be renewed, so
        this method waits until it knows. A command always runs in such a process.
        """
        while self.is_claimed(current):
            if self.is_held(current):
                await self.each([current.id], lambda e: states.shorten(e, now=self.clock()))
                return True
            await self.steps.over()
            current = await self.get(current.id) or current
        return False

    def _is_unsure(self, lease: Lease) -> bool:
        """Return True if the lease may look expired only because the clock changed recently."""
        return not lease.is_ended and self.steps.is_recent

    async def each(
        self,
        ids: list[str],
        change: Callable[[Elicitation], Elicitation],
    ) -> None:
        """Change several elicitations of one owner in one write. Skip those that cannot change."""
        await self.write_rebuilt(lambda: self.possible(ids, change))

    async def possible(
        self, ids: list[str], change: Callable[[Elicitation], Elicitation]
    ) -> list[Elicitation]:
        """Return the changed elicitations, without those that cannot change. Nothing is written."""
        changed: list[Elicitation] = []
        for id in ids:
            for known in (self.rows.recent.get(id), None):
                current = known or await self.get(id)
                if current is not None:
                    with suppress(NotPossible):
                        if (value := change(current)) != current:
                            changed.append(value)
                        break
        return changed

    async def aclose(self) -> None:
        """Finish the work whose callers have been cancelled, and close the plugins."""
        if self._works:
            await asyncio.wait(tuple(self._works))
        await self.plugins.aclose()

    async def run_to_completion(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the work to completion, even if the caller is cancelled in the meantime."""
        if asyncio.current_task() in self._works:
            return await work  # the current task itself already runs to completion
        doing = Uncancelled(work)
        self._works.add(doing.task)
        doing.task.add_done_callback(self._forget)
        return await doing.result

    async def run_uncancelled(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the work like `run_to_completion`, at less cost.

        The work runs in the caller's own task. Call this method only in a task that nothing cancels
        before the process ends. A request's task is such a task: a disconnect does not cancel it.
        """
        task = asyncio.current_task()
        assert task is not None
        self._works.add(task)
        try:
            return await work
        finally:
            self._works.discard(task)

    def _was_asked(self, fresh: Elicitation) -> None:
        _log.info("elicitation.asked", extra={**_log_fields(fresh), "tool": fresh.request.tool})
        self.observer.asked(fresh.kind)

    def _moved(self, changed: Elicitation) -> None:
        status = "late" if changed.is_late else changed.status.value
        if changed.status.is_final:
            _log.info("elicitation.settled", extra={**_log_fields(changed), "status": status})
            self.observer.settled(changed.kind, status)
            if self.plugins.see_ends:
                self.plugins.settled(changed)
        else:
            _log.info("elicitation.changed", extra={**_log_fields(changed), "status": status})

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._works.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.debug("elicitation.change_refused", exc_info=task.exception())


def _log_fields(elicitation: Elicitation) -> dict[str, str]:
    """Return the log fields of the elicitation, with the waiting call if there is one."""
    about = {"id": elicitation.id, "kind": elicitation.kind}
    return about if elicitation.waiter is None else {**about, "call": elicitation.waiter}


async def pause(number: int) -> None:
    """Wait before the next attempt. `number` counts the lost attempts, from 0 for the first."""
    if number < AT_ONCE:
        return
    longest = min(LONGER_SECONDS * number, LONGEST_SECONDS)
    await asyncio.sleep(longest * (1 + secrets.randbelow(1000)) / 1000)


class Uncancelled(Generic[T]):
    """Work in its own `task`, which continues if the caller that awaits `result` is cancelled."""

    __slots__ = ("_work", "result", "task")

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        loop = asyncio.get_running_loop()
        self.result: asyncio.Future[T] = loop.create_future()
        self.task = loop.create_task(self._run())
        self.task.add_done_callback(self._end)

    async def _run(self) -> T:
        value = await self._work
        if not self.result.done():  # the caller was not cancelled
            self.result.set_result(value)
        return value

    def _end(self, task: asyncio.Task[T]) -> None:
        self._work.close()  # needed if the task was cancelled before the work began
        error = None if task.cancelled() else task.exception()  # asyncio then logs no error
        if self.result.done():
            return
        if error is None:  # no result is set, so the task was cancelled
            self.result.cancel()
        else:
            self.result.set_exception(error)
