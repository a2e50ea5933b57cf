"""Retries of writes that conflict with other writers, and work that a cancellation does not stop.

If another process has changed a row, the writer applies its change again, to the new row. Work that
must not stop halfway runs in a task of its own, which continues if its caller is cancelled.

Risks: fifty writers all retry at once, and a slow process never wins. So a writer that has lost
several times waits before the next attempt, longer each time. The first attempt starts from the
copy in this process's cache, if there is one.
"""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from flows.elicitation.states import Elicitation
from flows.errors import ElicitError, StoreUnavailable

TRIES_AT_MOST = 100
AT_ONCE = 3
LONGER_SECONDS = 0.001
LONGEST_SECONDS = 0.05
REMEMBERED_AT_MOST = 10_000


class Contended(StoreUnavailable):
    """A writer lost a hundred times in a row. The cause is more likely a bug than load."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} could not be written: other writers changed it {TRIES_AT_MOST} times in a row"
        )


class Erased(ElicitError, KeyError):
    """The record of a call, a run or a question is no longer in the store.

    The record was purged, or the store has stepped back.
    """

    name = "ELICITATION_ERASED"
    jsonrpc_code = -32000
    http_status = 410

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(
            "This server no longer has the record of this call: the record was erased, or the "
            "store lost it. So the call could not be finished. Call the tool again: the same call "
            "can still use a payment that was not used."
        )

    def __str__(self) -> str:
        return Exception.__str__(self)


async def pause(number: int) -> None:
    """Wait before the next attempt. `number` counts the lost attempts, from 0 for the first."""
    if number < AT_ONCE:
        return
    longest = min(LONGER_SECONDS * number, LONGEST_SECONDS)
    await asyncio.sleep(longest * (1 + secrets.randbelow(1000)) / 1000)


class Cache:
    """The elicitations that this process wrote last and whose answer a call can still use.

    A change may start from a cached copy, because the write checks the version. Code that needs the
    current value reads the store.
    """

    def __init__(self) -> None:
        self._by_id: OrderedDict[str, Elicitation] = OrderedDict()
        self._ended: OrderedDict[str, None] = OrderedDict()

    def get(self, id: str) -> Elicitation | None:
        return self._by_id.get(id)

    def has_ended(self, id: str) -> bool:
        """Return True if the elicitation is known to have ended. Ended elicitations stay ended."""
        return id in self._ended

    def store(self, value: Elicitation) -> bool:
        """Store the value. Return False if the cache has a newer version."""
        if value.status.is_final:
            self._ended[value.id] = None
            if len(self._ended) > REMEMBERED_AT_MOST:
                self._ended.popitem(last=False)
        known = self._by_id.get(value.id)
        if known is not None and known.version > value.version:
            return False
        is_for_somebody = not value.status.is_final or value.holds_key or value.take is not None
        if is_for_somebody and value.delivered_at is None:
            self._by_id[value.id] = value
            if len(self._by_id) > REMEMBERED_AT_MOST:
                self._by_id.popitem(last=False)
        else:
            self._by_id.pop(value.id, None)
        return True

    def forget(self, id: str) -> None:
        self._by_id.pop(id, None)

    def clear(self) -> None:
        """Remove all elicitations, and the ids of those that have ended.

        If the store went back to an older state, an elicitation that had ended can be open again.
        """
        self._by_id.clear()
        self._ended.clear()


T = TypeVar("T")


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
