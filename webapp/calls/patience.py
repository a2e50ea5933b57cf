"""The time that each client waits for a call before it gives the call up.

Most clients allow a call 60 s, some ignore progress reports, a few allow only 5 s, and none
declares its limit. A call is therefore held for less than 60 s, unless its client was seen to wait
longer or the operator's settings say that the client waits longer. If a client gave a call up
sooner, its next call is held for less than the time after which the client gave up.
"""

from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final, TypeVar

from webapp.deadline import ticks_of
from webapp.http.exchange import ClientConnection
from webapp.identity.identity import Caller

MOST_ALLOW: Final = timedelta(seconds=60)
REMEMBERED: Final = timedelta(days=1)
# If a client gave up after 10 s, its next call is held for this share of 10 s.
_SHARE_OF_PATIENCE: Final = 0.8
# If a call ends sooner, the client has not given up: the connection broke or the person cancelled.
_GIVEN_UP_AT_LEAST: Final = timedelta(seconds=1)
_CLIENTS_AT_MOST: Final = 10_000
K = TypeVar("K")
V = TypeVar("V")


class Patience:
    """The time that each client waits for a call, as far as this process has seen."""

    def __init__(self, *, patient_clients: frozenset[str], clock: Callable[[], datetime]) -> None:
        self._patient_clients = patient_clients
        self._clock = clock
        self._ticks = ticks_of(clock)
        self._patient: OrderedDict[tuple[str, str], None] = OrderedDict()
        # The time after which a client gave a call up, and until when that is remembered.
        self._gave_up: OrderedDict[tuple[str, str], tuple[timedelta, datetime]] = OrderedDict()

    def is_patient(self, caller: Caller, *, name: str | None) -> bool:
        """Return True if the client waits as long as needed. The client declares `name`."""
        is_named = name in self._patient_clients
        return is_named or (caller.owner or "", caller.client) in self._patient

    def limit_for(self, caller: Caller, limit: timedelta) -> timedelta:
        """Return how long a call can be held: `limit`, or less if the client gave up sooner."""
        known = self._gave_up.get((caller.owner or "", caller.client))
        if known is None or self._clock() >= known[1]:
            return limit
        return min(limit, known[0] * _SHARE_OF_PATIENCE)

    def watch(self, caller: Caller, connection: ClientConnection | None) -> "WatchedCall":
        """Start measuring how long the client waits for a call that begins now."""
        watched = WatchedCall(self, caller, began_at=self._ticks())
        if connection is not None:
            connection.on_broken(watched.gave_up)
            watched.connection = connection
        return watched

    def waited(self, caller: Caller, *, began_at: float, is_given_up: bool = False) -> None:
        """Record how long the client waited for a call that began at `began_at`."""
        if caller.owner is None:
            return
        key, waited = (caller.owner, caller.client), timedelta(seconds=self._ticks() - began_at)
        if is_given_up:
            if _GIVEN_UP_AT_LEAST <= waited < MOST_ALLOW:
                given_up = (waited, self._clock() + REMEMBERED)
                store_bounded(self._gave_up, key, given_up, at_most=_CLIENTS_AT_MOST)
            return
        if waited >= MOST_ALLOW:
            store_bounded(self._patient, key, None, at_most=_CLIENTS_AT_MOST)
        if key in self._gave_up and waited > self._gave_up[key][0]:
            del self._gave_up[key]


class WatchedCall:
    """The wait of one client for one call, which the client may give up."""

    def __init__(self, patience: Patience, caller: Caller, *, began_at: float) -> None:
        self._patience = patience
        self._caller = caller
        self._began_at = began_at
        self._has_result = False
        self.connection: ClientConnection | None = None

    def has_result(self) -> None:
        """Note that the call has a result. When it arrives, record how long the client waited."""
        self._has_result = True
        if self.connection is not None:
            self.connection.on_arrival(self._arrived)

    def _arrived(self, has_arrived: bool) -> None:  # noqa: FBT001 - the connection's callback
        if has_arrived:
            self._patience.waited(self._caller, began_at=self._began_at)

    def gave_up(self) -> None:
        """Record that the client cancelled the call or disconnected, if there is no result yet."""
        if not self._has_result:
            self._patience.waited(self._caller, began_at=self._began_at, is_given_up=True)


def store_bounded(entries: OrderedDict[K, V], key: K, value: V, *, at_most: int) -> None:
    """Store the value and drop the oldest entry if there are more than `at_most`."""
    entries[key] = value
    entries.move_to_end(key)
    if len(entries) > at_most:
        entries.popitem(last=False)
