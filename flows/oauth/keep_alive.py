"""Times for an account that ends without use: for a refresh, and for a warning before the end.

Risks: a refresh token ends because nobody used it, and the person learns of it when a tool fails.
Or all accounts that were connected in one minute are refreshed in one minute. So each account has
its own time for the next step, which depends on its id.

Lifetimes of less than two days are left alone: they are sessions, which the provider wants to end.
"""

import hashlib
from datetime import datetime, timedelta

from msgspec.structs import replace

from flows.oauth.connection import Connection

LIFE_AT_LEAST = timedelta(days=2)
REFRESH_BEFORE_END = timedelta(days=14)  # before the end; a third of shorter lifetimes
WARNED_BEFORE = timedelta(days=7)  # before the end; a quarter of shorter lifetimes
TRIED_AGAIN_AFTER = timedelta(hours=6)


def planned(connection: Connection, *, now: datetime) -> Connection:
    """Return the connection with the time of its next step, and without an outdated warning."""
    warn_at = _warn_at(connection)
    end = connection.ends_at
    if end is None or warn_at is None or end <= now:
        return replace(connection, keep_at=None)
    if now < warn_at:
        connection = replace(connection, warned_at=None)
    at = warn_at if connection.warned_at is None else end
    if connection.refresh_token is not None and not connection.has_fixed_end:
        before = min(REFRESH_BEFORE_END, _life(connection, end) / 3)
        at = end - before - before / 2 * _share(connection.id)
    return replace(connection, keep_at=max(at, now))


def is_near_end(connection: Connection, *, now: datetime) -> bool:
    """Return True if the account ends soon, so that the person should connect it again."""
    warn_at = _warn_at(connection)
    return warn_at is not None and now >= warn_at


def warned(connection: Connection, *, now: datetime) -> Connection:
    """Record that the person and the operator were warned, at most once until the end changes."""
    if connection.warned_at is not None or not is_near_end(connection, now=now):
        return connection
    return replace(connection, warned_at=now, last_member=None)


def _warn_at(connection: Connection) -> datetime | None:
    """Return when the person is warned; None if the end is unknown, or the lifetime is short."""
    end = connection.ends_at
    if end is None or _life(connection, end) < LIFE_AT_LEAST:
        return None
    return end - min(WARNED_BEFORE, _life(connection, end) / 4)


def _life(connection: Connection, end: datetime) -> timedelta:
    return end - (connection.end_set_at or connection.issued_at or connection.connected_at)


def _share(id: str) -> float:
    """Return a number from 0 to 1 that is the same for an account each time."""
    return int.from_bytes(hashlib.sha256(id.encode()).digest()[:4]) / 2**32
