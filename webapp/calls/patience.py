"""Patience: how long each client waits for a call before it gives the call up.

Most clients allow a call 60 s, some whatever is reported meanwhile, a few
only 5 s, and none of them says how long. So a call is held for less than 60 s, unless its client
was seen to wait longer, or the operator says that it does. A client that was seen to give a call up
after fewer seconds is held for less than that the next time.
"""

from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final, TypeVar

from webapp.deadline import ticks_of
from webapp.http.connection import ClientConnection
from webapp.identity.identity import Caller

MOST_ALLOW: Final = timedelta(seconds=60)
REMEMBERED: Final = timedelta(days=1)
# How much of the time after which a client gave a call up its next call is held.
_SHARE_OF_PATIENCE: Final = 0.8
_GIVEN_UP_AT_LEAST: Final = timedelta(seconds=1)  # a sooner end is a broken line, or a person's
_CLIENTS_AT_MOST: Final = 10_000
V = TypeVar("V")


class Patience:
    """The patience of clients, as far as this process has seen it."""

    def __init__(self, *, patient_clients: frozenset[str], clock: Callable[[], datetime]) -> None:
        self._patient_clients = patient_clients
        self._clock = clock
        self._ticks = ticks_of(clock)
        self._patient: OrderedDict[tuple[str, str], None] = OrderedDict()
        # After how long a client gave a call up, and until when that is remembered.
        self._gave_up: OrderedDict[tuple[str, str], tuple[timedelta, datetime]] = OrderedDict()

    def is_patient(self, caller: Caller, *, name: str | None) -> bool:
        """Return True if its client waits as long as it takes; `name` is what it declares."""
        is_named = name in self._patient_clients
        return is_named or (caller.owner or "", caller.client) in self._patient

    def holds(self, caller: Caller, limit: timedelta) -> timedelta:
        """Return for how long its call can be held: less than its client was seen to wait."""
        known = self._gave_up.get((caller.owner or "", caller.client))
        if known is None or self._clock() >= known[1]:
            return limit
        return min(limit, known[0] * _SHARE_OF_PATIENCE)

    def watch(self, caller: Caller, wire: ClientConnection | None) -> "WatchedCall":
        """Watch how long its client waits for a call that begins now."""
        watched = WatchedCall(self, caller, began_at=self._ticks())
        if wire is not None:
            wire.on_broken(watched.gave_up)
            watched.wire = wire
        return watched

    def waited(self, caller: Caller, *, began_at: float, is_given_up: bool) -> None:
        """Note that its client waited for a call that began then."""
        if caller.owner is None:
            return
        key, waited = (caller.owner, caller.client), timedelta(seconds=self._ticks() - began_at)
        if is_given_up:
            if _GIVEN_UP_AT_LEAST <= waited < MOST_ALLOW:
                given_up = (waited, self._clock() + REMEMBERED)
                _keep(self._gave_up, key, given_up)
            return
        if waited >= MOST_ALLOW:
            _keep(self._patient, key, None)
        if key in self._gave_up and waited > self._gave_up[key][0]:
            del self._gave_up[key]


class WatchedCall:
    """How long one client waits for one call, which it may give up."""

    def __init__(self, patience: Patience, caller: Caller, *, began_at: float) -> None:
        self._patience = patience
        self._caller = caller
        self._began_at = began_at
        self.wire: ClientConnection | None = None

    def has_result(self) -> None:
        """There is a result: if it finds the client there, the client has waited so long."""
        if self.wire is not None:
            self.wire.on_end(self._end)

    def gave_up(self) -> None:
        """The client cancelled the call, or closed its connection."""
        self._patience.waited(self._caller, began_at=self._began_at, is_given_up=True)

    def _end(self, arrived: bool) -> None:  # noqa: FBT001 - the connection's callback
        if arrived:
            self._patience.waited(self._caller, began_at=self._began_at, is_given_up=False)


def _keep(kept: OrderedDict[tuple[str, str], V], key: tuple[str, str], value: V) -> None:
    """Keep the latest of them."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > _CLIENTS_AT_MOST:
        kept.popitem(last=False)
