"""Asks: what a client of the older revision was asked on one connection, from call to call.

A call ends before its client gives up on it, and the same call goes on. What could go wrong
between the two: a form that a person is filling in vanishes, or a link that they have opened is
shown to them again. So a request that is left open when its call ends is the next call's, and a
link that was accepted is not shown again on this connection. An answer that comes while no call is
there settles its question, as the next one may be given the link instead.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from mcp.server.context import ServerRequestContext

from webapp.elicitations.service import Elicitations

# What counts of an answer that came between two calls: whoever dismissed it is asked again.
_COUNTS = ("accept", "decline")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAnswer:
    """What a client answered, so many seconds after it was asked."""

    action: str
    content: object = None
    after: float = 0.0


# What is done about one that comes when its call has ended; None is an error's.
Late: TypeAlias = Callable[[ClientAnswer | None], Awaitable[None]]
Asking: TypeAlias = asyncio.Task[ClientAnswer | None]


@dataclass(frozen=True, slots=True)
class _Left:
    """A request that is still out; it ends with its question."""

    asking: Asking
    end: asyncio.TimerHandle
    came: Callable[[Asking], None]  # what hears of its answer


class ClientAsks:
    """Of one connection; by the ids of the elicitations."""

    def __init__(self) -> None:
        self._left: dict[str, _Left] = {}
        self._open: dict[str, Asking] = {}
        self._accepted: set[str] = set()
        self._untold: set[str] = set()  # calls went away from these while they were open
        self._works: set[asyncio.Task[None]] = set()

    def begin(self, id: str, ask: Callable[[], Coroutine[Any, Any, ClientAnswer | None]]) -> Asking:
        """Ask the client, or go on with what an earlier call left open."""
        left = self._left.pop(id, None)
        if left is not None:
            left.end.cancel()
            left.asking.remove_done_callback(left.came)
            if not left.asking.done() or _action_of(left.asking) in _COUNTS:
                return left.asking
        asking = self._open[id] = asyncio.create_task(ask())
        asking.add_done_callback(partial(self._closed, id))
        return asking

    def is_open(self, id: str) -> bool:
        """Return True if the client is asked this on this connection, and has not answered."""
        return id in self._open

    def _closed(self, id: str, asking: Asking) -> None:
        if self._open.get(id) is asking:
            del self._open[id]

    def leave(self, id: str, asking: Asking, *, life: timedelta, late: Late) -> None:
        """The call ends and the question goes on; `late` is for an answer before the next call."""
        end = asyncio.get_running_loop().call_later(life.total_seconds(), asking.cancel)
        came = partial(self._came, id, late)
        self._left[id] = _Left(asking, end, came)
        self._untold.add(id)
        asking.add_done_callback(came)

    def has_left(self, id: str) -> bool:
        return id in self._left

    def accept(self, id: str) -> None:
        """The client shows this link."""
        self._accepted.add(id)

    def has_accepted(self, id: str) -> bool:
        return id in self._accepted

    def _came(self, id: str, late: Late, asking: Asking) -> None:
        if id not in self._left or asking.cancelled() or asking.exception() is not None:
            return  # nobody waits for it any more
        work = asyncio.create_task(_logged(late(asking.result())))
        self._works.add(work)
        work.add_done_callback(self._works.discard)

    def end(self, id: str) -> None:
        """It is over, and the client knows."""
        self._untold.discard(id)
        self._accepted.discard(id)
        if (left := self._left.pop(id, None)) is not None:
            left.end.cancel()
            left.asking.cancel()

    async def ended(self, elicitations: Elicitations) -> list[str]:
        """Those that ended while no call was there to tell the client, which is to be told now."""
        ended: list[str] = []
        for id in tuple(self._untold):
            found = await elicitations.get(id)
            if found is None or found.status.is_final:
                self.end(id)
                ended.append(id)
        return ended


class ConnectionAsks:
    """What is asked on each connection of one server, for as long as the library keeps it."""

    def __init__(self) -> None:
        self._asks: WeakKeyDictionary[object, ClientAsks] = WeakKeyDictionary()

    def of(self, context: ServerRequestContext[Any, Any]) -> ClientAsks:
        # A session is made for each request; what it belongs to has no other name.
        connection = getattr(context.session, "_connection", context.session)
        return self._asks.setdefault(connection, ClientAsks())


def _action_of(asking: Asking) -> str | None:
    if asking.cancelled() or asking.exception() is not None:
        return None
    answer = asking.result()
    return None if answer is None else answer.action


async def _logged(work: Awaitable[None]) -> None:
    try:
        await work
    except Exception:  # noqa: BLE001 - a task's edge
        _log.exception("client.late_answer_lost")
