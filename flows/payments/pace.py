"""The polling intervals for payment pages that are open at a provider.

Risks: too many requests to a provider, or requests that ignore its errors. Each provider declares
its intervals, and errors make them longer.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

PACE: Final = tuple(timedelta(seconds=pause) for pause in (2, 3, 5, 8, 13, 21, 30))
TROUBLED_AT_MOST: Final = timedelta(minutes=5)


def next_turn(pace: Sequence[timedelta], *, begun_at: datetime, now: datetime) -> datetime:
    """Return the time of the next poll, after `now`.

    The last interval is repeated.

    `begun_at` can be after `now` if the clock was set back.
    """
    if begun_at > now:
        return now + pace[-1]
    turn = begun_at
    for pause in pace:
        turn += pause
        if turn > now:
            return turn
    return turn + pace[-1] * ((now - turn) // pace[-1] + 1)


def turn_after_trouble(pace: Sequence[timedelta], *, begun_at: datetime, now: datetime) -> datetime:
    """Return the time of the next poll after a failed poll: the waiting time so far is doubled."""
    return now + max(pace[-1], min(now - begun_at, TROUBLED_AT_MOST))
