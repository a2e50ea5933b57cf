"""The questions that a client of 2025-11-25 was asked on one connection, across its calls.

A call ends before its client gives up, and an identical call continues.

Risks between the two calls: a form that a person is filling in disappears, or a link that the
person has opened is shown again. A request that is open when its call ends is therefore passed to
the next call, and an accepted link is not shown again on this connection. An answer that comes
between calls settles its question, because the next call may get the link instead.
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

# The actions that count between two calls. A person who dismissed a question is asked again.
_COUNTS = ("accept", "decline")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAnswer:
    """A client's answer, `after` seconds after the client was asked."""

    action: str
    content: object = None
    after: float = 0.0


# Called with an answer that comes after its call has ended, or with None after an error.
Late: TypeAlias = Callable[[ClientAnswer | None], Awaitable[None]]
Asking: TypeAlias = asyncio.Task[ClientAnswer | None]


@dataclass(frozen=True, slots=True)
class _PassedOn:
    """A request that is still open at the client. The request ends when its question ends."""

    asking: Asking
    end: asyncio.TimerHandle
    on_answer: Callable[[Asking], None]  # callback for the answer


class ClientAsks:
    """The questions of one connection, by elicitation id."""

    def __init__(self) -> None:
        self._passed_on: dict[str, _PassedOn] = {}
        self._open: dict[str, Asking] = {}
        self._accepted: set[str] = set()
        self._given_up: set[str] = set()
        self._to_notify: set[str] = set()  # left open by a call: notify the client when they end
        self._works: set[asyncio.Task[None]] = set()

    def begin(self, id: str, ask: Callable[[], Coroutine[Any, Any, ClientAnswer | None]]) -> Asking:
        """Ask the client, or continue a request that an earlier call left open."""
        self._given_up.discard(id)
        passed_on = self._passed_on.pop(id, None)
        if passed_on is not None:
            passed_on.end.cancel()
            passed_on.asking.remove_done_callback(passed_on.on_answer)
            if not passed_on.asking.done() or _action_of(passed_on.asking) in _COUNTS:
                return passed_on.asking
        asking = self._open[id] = asyncio.create_task(ask())
        asking.add_done_callback(partial(self._closed, id))
        return asking

    def is_open(self, id: str) -> bool:
        """Return True if the client was asked this question and has not answered."""
        return id in self._open

    def _closed(self, id: str, asking: Asking) -> None:
        if self._open.get(id) is asking:
            del self._open[id]

    def leave(
        self, id: str, asking: Asking, *, life: timedelta, late: Late, is_to_newer: bool
    ) -> None:
        """Leave the request open for the next call.

        `late` handles an answer that comes before the next call. The request is cancelled after
        `life`. With `is_to_newer`, a newer identical call already waits for the answer.
        """
        if not is_to_newer:
            self.give_up(id)
        end = asyncio.get_running_loop().call_later(life.total_seconds(), asking.cancel)
        on_answer = partial(self._received, id, late)
        self._passed_on[id] = _PassedOn(asking, end, on_answer)
        self._to_notify.add(id)
        asking.add_done_callback(on_answer)

    def is_passed_on(self, id: str) -> bool:
        return id in self._passed_on

    def is_awaited(self, id: str) -> bool:
        """Return True if the client was asked, and a call still waits for its answer."""
        return id in self._open and id not in self._given_up

    def give_up(self, id: str) -> None:
        """Record that no call waits for the client's answer, although the client can still give it.

        The next call that asks this question waits for the answer again.
        """
        self._given_up.add(id)

    def accept(self, id: str) -> None:
        """Record that the client shows this link."""
        self._accepted.add(id)

    def has_accepted(self, id: str) -> bool:
        return id in self._accepted

    def _received(self, id: str, late: Late, asking: Asking) -> None:
        if id not in self._passed_on or asking.cancelled() or asking.exception() is not None:
            return  # the question has ended or a newer call waits for the answer
        work = asyncio.create_task(_logged(late(asking.result())))
        self._works.add(work)
        work.add_done_callback(self._works.discard)

    def end(self, id: str) -> None:
        """Drop a question that has ended and whose end the client knows."""
        self._to_notify.discard(id)
        self._accepted.discard(id)
        self._given_up.discard(id)
        if (passed_on := self._passed_on.pop(id, None)) is not None:
            passed_on.end.cancel()
            passed_on.asking.cancel()

    async def ended(self, elicitations: Elicitations) -> list[str]:
        """Return and drop the questions that ended between calls. The client is to be notified."""
        ended: list[str] = []
        for id in tuple(self._to_notify):
            found = await elicitations.get(id)
            if found is None or found.status.is_final:
                self.end(id)
                ended.append(id)
        return ended


class ConnectionAsks:
    """The questions on each connection of one server, while the library holds the connection."""

    def __init__(self) -> None:
        self._asks: WeakKeyDictionary[object, ClientAsks] = WeakKeyDictionary()

    def of(self, context: ServerRequestContext[Any, Any]) -> ClientAsks:
        # The library makes a session for each request and has no public name for the connection.
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
