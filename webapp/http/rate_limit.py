"""Rate limits: a token bucket for each key, in this process's memory.

Risks: memory use. There are at most 10,000 buckets. If there are more, the bucket that was unused
for the longest time is dropped, so a caller with more than 10,000 addresses is not limited by
address.
"""

from collections import Counter, OrderedDict
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from ipaddress import IPv6Address, ip_network
from math import ceil
from typing import Any

from flows.errors import ElicitError
from flows.shown import counted
from webapp.deadline import Clock, ticks_of
from webapp.http.address import plain_ip

KEYS_AT_MOST = 10_000
# Length of the IPv6 prefix that a provider assigns to one customer, who can use all its addresses.
_HOUSEHOLD_BITS = 64


class TooOften(ElicitError):
    """The caller sends requests too fast. `seconds` is the time to wait."""

    name = "ELICITATION_TOO_OFTEN"
    http_status = 429

    def __init__(self, wait: float) -> None:
        self.seconds = ceil(wait)
        super().__init__(f"That was too fast. Try again in {counted(self.seconds, 'second')}.")


class Rates:
    """A rate limiter that allows `burst` requests at once, then one per interval `every`."""

    def __init__(
        self,
        *,
        burst: int,
        every: timedelta,
        clock: Clock,
        keys_at_most: int = KEYS_AT_MOST,
    ) -> None:
        """Raise ValueError for limits that would block or allow everything."""
        if burst < 1 or every <= timedelta() or keys_at_most < 1:
            raise ValueError(
                "burst and keys_at_most must be at least 1, and every must be longer than zero"
            )
        self._burst = burst
        self._every = every.total_seconds()
        self._ticks = ticks_of(clock)
        self._keys_at_most = keys_at_most
        # For each key, the time when its bucket is full again. The content of the bucket can be
        # computed from this time.
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._full_at)

    def wait(self, key: str) -> float:
        """Return the seconds to wait, without counting a request."""
        now = self._ticks()
        return max(self._full_at.get(key, now) - now - (self._burst - 1) * self._every, 0.0)

    def consume(self, key: str) -> float:
        """Count a request and return 0, or return the seconds to wait without counting it."""
        wait = self.wait(key)
        if not wait:
            now = self._ticks()
            self._full_at[key] = max(self._full_at.get(key, now), now) + self._every
        self._full_at.move_to_end(key)
        if len(self._full_at) > self._keys_at_most:
            self._full_at.popitem(last=False)
        return wait

    def require(self, key: str) -> None:
        """Count a request. Raises TooOften without counting it if there are too many."""
        wait = self.consume(key)
        if wait:
            raise TooOften(wait)


def address_key(scope: Mapping[str, Any]) -> str:
    """Return the rate limit key of a client: its IPv4 address, or its IPv6 /64 network."""
    client = scope.get("client")
    try:
        address = plain_ip(client[0]) if client else ""
        if ":" not in address:
            return address
        plain = IPv6Address(address.partition("%")[0])
    except ValueError:
        return ""
    return str(ip_network((plain, _HOUSEHOLD_BITS), strict=False))


class ConcurrencyLimit:
    """A limit on how many operations of each key run at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._running = Counter[str]()

    def __len__(self) -> int:
        return len(self._running)

    @contextmanager
    def slot(self, key: str) -> Generator[bool]:
        """Yield True and count the operation if there is room, else yield False."""
        if self._running[key] >= self._most:
            yield False
            return
        self._running[key] += 1
        try:
            yield True
        finally:
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]
