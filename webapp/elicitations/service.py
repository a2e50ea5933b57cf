"""The service: every change of an elicitation or a run goes through here and the store.

Start, open, settle, take, deliver, complete. There is one retry loop over Store.write (`change`);
what a change means is decided in `flows`, on values, and a loser sees what won.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias, TypeVar

from msgspec.structs import replace

from flows.elicitation import attempt as attempts
from flows.elicitation import states
from flows.elicitation.proof import Proof
from flows.elicitation.run import Run
from flows.elicitation.states import LEASE, Elicitation, Json, Lease, Status
from flows.errors import ElicitError, NotPossible
from webapp.deadline import Clock, Steps, ticks_of
from webapp.elicitations.cache import Cache
from webapp.elicitations.changes import KEPT, Changes
from webapp.elicitations.plugins import Plugins
from webapp.elicitations.retry import TRIES_AT_MOST, Contended, Erased, pause
from webapp.elicitations.waiters import Changed, Waiter, Waiters
from webapp.records.high_water import HighWater
from webapp.records.ids import owner_of
from webapp.records.owners import Owners
from webapp.records.rows import Rows
from webapp.records.values import DoneOnce, Value
from webapp.stores import Conflict, Record, Store
from webapp.telemetry.telemetry import NONE, Telemetry
from webapp.telemetry.work import note

T = TypeVar("T")
# What is written together with the change of an elicitation, read afresh for each try.
Also: TypeAlias = Callable[[Elicitation], Awaitable[Sequence[Value]]]
_log = logging.getLogger(__name__)


class Elicitations:
    """What every part that starts, settles or waits shares; one for a process."""

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
        self.recent = Cache()
        self.news = Changes()
        self.hearers: list[Callable[[Record], Awaitable[None]]] = []  # of other processes' writes
        self.followed: set[str] = set()  # kinds of which they hear all, who may wait or not
        # Told when some of those may have been missed, or the store may have changed unheard.
        self.missed: list[Callable[[], None]] = [self.high_water.reconnected, rows.forget]
        self.plugins = plugins or Plugins()
        self._works: set[asyncio.Task[Any]] = set()
        self.doing: dict[str, asyncio.Future[None]] = {}  # what `once` is at work on

    def new_id(self, owner: str) -> str:
        """An id that nobody can guess."""
        return self.rows.new_id(owner, now=self.clock())

    async def get(self, id: str) -> Elicitation | None:
        found = await self.read(Elicitation, owner=owner_of(id), id=id)
        if found is not None:
            note(found)
        return found

    async def as_remembered(self, id: str) -> Elicitation | None:
        """While it goes on, as this process wrote it last, if it did: a write has to follow."""
        known = self.recent.get(id)
        if known is None or known.status.is_final:
            return await self.get(id)
        note(known)
        return known

    async def run(self, *, owner: str, id: str) -> Run | None:
        return await self.read(Run, owner=owner, id=id)

    async def find(self, *, owner: str, join: str) -> Elicitation | None:
        """The elicitation that stands for this question, if any."""
        return await self.holder(Elicitation, owner=owner, key=join)

    async def open_of(self, owner: str | None = None) -> list[Elicitation]:
        """What this owner is asked, or everybody is, and has not answered; the latest first."""
        found = {  # by id: one that is opened meanwhile is found twice
            one.id: one
            for status in (Status.PENDING, Status.OPENED)
            for one in await self.all(
                Elicitation, owner=owner, status=status, skips_unreadable=True
            )
        }
        open_now = [one for one in found.values() if self.clock() < one.expires_at]
        return sorted(open_now, key=lambda one: one.created_at, reverse=True)

    async def find_run(self, *, owner: str, key: str) -> Run | None:
        return await self.holder(Run, owner=owner, key=key)

    async def done(self, *, owner: str, id: str) -> DoneOnce | None:
        return await self.read(DoneOnce, owner=owner, id=id)

    async def write(self, *values: Value) -> Sequence[Value]:
        """Write all or none, then wake whoever waits for them; see `Rows.write`."""
        try:
            written = await self.rows.write(*values)
        except Conflict:
            for value in values:
                self.recent.forget(value.id)
            raise
        for value in written:
            if isinstance(value, KEPT):
                self.news.tell(value.owner)
            elif isinstance(value, Elicitation):
                if self.recent.keep(value):
                    self.waiters.wake(value)
                if value.version == 1:
                    self._was_asked(value)
            elif isinstance(value, Run):
                self.waiters.wake(value)
        self.observer.wrote(written)
        return written

    async def write_afresh(
        self, values: Callable[[], Awaitable[Sequence[Value]]]
    ) -> Sequence[Value]:
        """Write what `values` decides on, which is asked again where somebody was first.

        Returns what was written, as it was given; nothing to write is done at once.
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
        raise Contended("what is decided afresh")

    async def change(
        self,
        id: str,
        change: Callable[[Elicitation], Elicitation],
        *,
        also: Also | None = None,
        known: Elicitation | None = None,
    ) -> Elicitation:
        """Change one elicitation: read, decide, compare-and-set, and again if somebody was first.

        `known` was read already. Raises what `change` or `also` raises, Erased if there is no
        such elicitation.
        """
        current = known or self.recent.get(id)
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
                is_read = True  # it was refused by what we remembered: ask the store
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
                self.have_moved(changed)
            return replace(changed, version=changed.version + 1)
        raise Contended(id)

    def have_moved(self, *changed: Elicitation) -> None:
        """Their status was written, and is another than before."""
        for each in changed:
            self._moved(each)

    async def open_attempt(self, id: str, *, browser: str) -> Elicitation:
        """For what leads to no provider of ours."""
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
        """End it without an answer; the first end wins.

        `by` is told by the audit; `proof` is for a no of somebody else's.

        If its leg waits here, the same write hands it the outcome.

        Goes on to its end when cancelled: whoever waits must hear of what was written.
        Raises NotPossible when it has ended already.
        """
        assert status is not Status.ACCEPTED, "an answer goes through complete_elicitation"
        return await self.whole(
            self._end(
                id,
                partial(states.settle, status=status, why=why, proof=proof, by=by),
                also=also,
            )
        )

    async def accept(
        self,
        id: str,
        proof: Proof,
        *,
        content: Json,
        also: Also,
        first: Sequence[Value] | None = None,
    ) -> Elicitation:
        """The same, with an answer, or expired: for `complete_elicitation` alone."""

        async def rows(ended: Elicitation) -> Sequence[Value]:
            nonlocal first
            if ended.status is not Status.ACCEPTED:
                return ()
            known, first = first, None
            return await also(ended) if known is None else known

        return await self._end(id, partial(states.accept, proof=proof, content=content), also=rows)

    async def end(
        self, current: Elicitation, status: Status, *, why: str | None = None
    ) -> Elicitation:
        """End it, or see what ended it first."""
        try:
            return await self.settle(current.id, status, why=why)
        except NotPossible:
            return await self.get(current.id) or current

    async def newest(self, current: Elicitation, changes: list[Changed]) -> Elicitation:
        """The latest of what a wake brought; read again where a wake brought nothing.

        Raises Erased.
        """
        if None in changes:
            if (found := await self.get(current.id)) is None:
                raise Erased(current.id)
            return found
        for changed in changes:  # answers may overtake each other
            if (
                isinstance(changed, Elicitation)
                and changed.id == current.id
                and changed.version > current.version
            ):
                current = changed
        return current

    async def take(
        self, id: str, *, run: str, leg: str, known: Elicitation | None = None
    ) -> Elicitation:
        """Raises NotPossible if another leg uses the outcome."""
        former: Lease | None = None

        def free(current: Elicitation) -> Elicitation:
            nonlocal former
            former = current.take
            if (lease := current.take) is not None and lease.leg != leg and self._is_unsure(lease):
                raise NotPossible(status=current.status, wanted="taken")
            return states.take(current, run=run, leg=leg, now=self.clock())

        try:
            taken = await self.change(id, free, known=known)
        except NotPossible:
            await self.each([id], lambda e: states.shorten(e, now=self.clock()))
            raise
        if former is not None and former.leg != leg and not former.is_ended:
            _log.info("lease.taken_over", extra={"id": id})
            self.observer.taken_over()
        return taken

    def is_held(self, current: Elicitation) -> bool:
        """Return True while the lease on its outcome lasts, by the time of day alone."""
        return current.take is not None and self.clock() < current.take.until

    def is_taken(self, current: Elicitation) -> bool:
        """Whether a body may be using its outcome, and will have renewed its lease if it is."""
        is_doubtful = current.take is not None and self._is_unsure(current.take)
        return self.is_held(current) or is_doubtful

    async def is_in_hand(self, current: Elicitation) -> bool:
        """Return True if a run uses its outcome, for whoever would take that away.

        A process that has just begun cannot tell a lease that ran out from one that is about to be
        renewed. It waits until it can: a command's process is always that young.
        """
        while self.is_taken(current):
            if self.is_held(current):
                await self.each([current.id], lambda e: states.shorten(e, now=self.clock()))
                return True
            await self.steps.over()
            current = await self.get(current.id) or current
        return False

    def _is_unsure(self, lease: Lease) -> bool:
        """Whether it may be out by this clock alone."""
        return not lease.is_ended and self.steps.is_recent

    async def each(
        self,
        ids: list[str],
        change: Callable[[Elicitation], Elicitation],
    ) -> None:
        """Change several elicitations of one owner in one write; skip where it is not possible."""
        await self.write_afresh(lambda: self.possible(ids, change))

    async def possible(
        self, ids: list[str], change: Callable[[Elicitation], Elicitation]
    ) -> list[Elicitation]:
        """The changed values of those elicitations that can change so, not yet written."""
        changed: list[Elicitation] = []
        for id in ids:
            for known in (self.recent.get(id), None):
                current = known or await self.get(id)
                if current is not None:
                    with suppress(NotPossible):
                        if (value := change(current)) != current:
                            changed.append(value)
                        break
        return changed

    async def aclose(self) -> None:
        """Finish what was begun and whose caller has left."""
        if self._works:
            await asyncio.wait(tuple(self._works))
        await self.plugins.aclose()

    async def whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it to its end, also when the caller is cancelled meanwhile."""
        if asyncio.current_task() in self._works:
            return await work  # a part of what is done to its end already
        task = asyncio.create_task(work)
        self._works.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    async def uncancelled(self, work: Coroutine[Any, Any, T]) -> T:
        """As `whole`, in a task that nothing but the end of the process cancels, and at less cost.

        A server goes on with a request whose client has left.
        """
        task = asyncio.current_task()
        assert task is not None
        self._works.add(task)
        try:
            return await work
        finally:
            self._works.discard(task)

    def _was_asked(self, fresh: Elicitation) -> None:
        _log.info("elicitation.asked", extra={**_told(fresh), "tool": fresh.asked.tool})
        self.observer.asked(fresh.kind)

    def _moved(self, changed: Elicitation) -> None:
        status = "late" if changed.is_late else changed.status.value
        if changed.status.is_final:
            _log.info("elicitation.settled", extra={**_told(changed), "status": status})
            self.observer.settled(changed.kind, status)
            if self.plugins.hear_ends:
                self.plugins.settled(changed)
        else:
            _log.info("elicitation.moved", extra={**_told(changed), "status": status})

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._works.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.debug("elicitation.change_refused", exc_info=task.exception())

    async def _end(
        self, id: str, end: Callable[..., Elicitation], *, also: Also | None
    ) -> Elicitation:
        waiter: Waiter | None = None

        def change(current: Elicitation) -> Elicitation:
            nonlocal waiter
            now = self.clock()
            waiter = self.waiters.of_leg(id, current.waiter)
            take = (
                Lease(run=waiter.run, leg=waiter.leg, until=now + LEASE)
                if waiter is not None
                else None
            )
            return end(current, now=now, take=take)

        settled = await self.change(id, change, also=also)
        if waiter is not None and waiter.taker is not None:
            leg = waiter.leg
            if not waiter.taker.was_prefetched(settled):
                # It ended while the write was under way: the next one need not wait for the lease.
                await self.each([id], lambda e: states.release(e, leg=leg))
        return settled


def _told(elicitation: Elicitation) -> dict[str, str]:
    """What the log says of it, and the call that waits, whoever ends it."""
    about = {"id": elicitation.id, "kind": elicitation.kind}
    return about if elicitation.waiter is None else {**about, "call": elicitation.waiter}
