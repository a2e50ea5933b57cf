"""Patience: which clients wait for a call longer than most do.

What could go wrong: a client gives up on its call while its person is busy, and its model reads a
timeout. Most clients allow 60 s, some whatever is reported meanwhile; none of them says how long.
So a call is held for less than that, unless its client was seen to wait longer, or the operator
says that it does.
"""

from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime, timedelta

from webapp.deadline import ticks_of
from webapp.http.connection import ClientConnection
from webapp.identity.identity import Caller

MOST_ALLOW = timedelta(seconds=60)
_CLIENTS_AT_MOST = 10_000


class Patience:
    """Of one process: what was seen is seen again soon, where it was forgotten."""

    def __init__(self, *, named: frozenset[str], clock: Callable[[], datetime]) -> None:
        self._named = named
        self._ticks = ticks_of(clock)
        self._seen: OrderedDict[tuple[str, str], None] = OrderedDict()

    def is_long(self, caller: Caller, *, name: str | None) -> bool:
        """Whether its client waits as long as it takes; `name` is what it declares."""
        return name in self._named or (caller.owner or "", caller.client) in self._seen

    def watch(self, caller: Caller, wire: ClientConnection | None) -> Callable[[], None]:
        """A call begins; if its result finds the client there after that time, it is patient.

        To be called when there is a result: a client that gave its call up is there, too.
        """
        owner, began_at = caller.owner, self._ticks()

        def has_result() -> None:
            if wire is not None and owner is not None:
                wire.on_end(end)

        def end(arrived: bool) -> None:  # noqa: FBT001 - the wire's callback
            assert owner is not None
            if arrived and self._ticks() - began_at >= MOST_ALLOW.total_seconds():
                self._seen[owner, caller.client] = None
                if len(self._seen) > _CLIENTS_AT_MOST:
                    self._seen.popitem(last=False)

        return has_result
