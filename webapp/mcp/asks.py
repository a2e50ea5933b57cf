"""Asks: what a client of the older revision was asked on one connection, from call to call.

A call ends before its client gives up on it, and the same call goes on. What could go wrong
between the two: a form that a person is filling in vanishes, or a link that they have opened is
shown to them again. So a request that is left open when its call ends is the next call's, and a
link that was accepted is not shown again on this connection.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

from mcp.server.context import ServerRequestContext

from webapp.elicitations.service import Elicitations

# What counts of an answer that came between two calls: whoever dismissed it is asked again.
_COUNTS = ("accept", "decline")


@dataclass(frozen=True, slots=True)
class _Left:
    """A request that is still out; it ends with its question."""

    asking: asyncio.Task[Any]
    end: asyncio.TimerHandle


class ClientAsks:
    """Of one connection; by the ids of the elicitations."""

    def __init__(self) -> None:
        self._left: dict[str, _Left] = {}
        self._accepted: set[str] = set()
        self._untold: set[str] = set()  # calls went away from these while they were open

    def begin(self, id: str, ask: Callable[[], Coroutine[Any, Any, Any]]) -> asyncio.Task[Any]:
        """Ask the client, or go on with what an earlier call left open."""
        left = self._left.pop(id, None)
        if left is not None:
            left.end.cancel()
            if not left.asking.done() or _action_of(left.asking) in _COUNTS:
                return left.asking
        return asyncio.create_task(ask())

    def leave(self, id: str, asking: asyncio.Task[Any], *, life: timedelta) -> None:
        """The call ends and the question goes on."""
        end = asyncio.get_running_loop().call_later(life.total_seconds(), asking.cancel)
        self._left[id] = _Left(asking, end)
        self._untold.add(id)

    def has_left(self, id: str) -> bool:
        return id in self._left

    def accept(self, id: str) -> None:
        """The client shows this link."""
        self._accepted.add(id)

    def has_accepted(self, id: str) -> bool:
        return id in self._accepted

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


def _action_of(asking: asyncio.Task[Any]) -> object:
    if asking.cancelled() or asking.exception() is not None:
        return None
    answer = asking.result()
    return getattr(answer, "action", answer)
