"""The pace at which a payment provider is asked about a page that is open at it.

What could go wrong: a provider that is asked by many at once, or by somebody who does not hear that
it is in trouble. Each declares the pauses that it bears, and trouble makes them longer.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

PACE: Final = tuple(timedelta(seconds=pause) for pause in (2, 3, 5, 8, 13, 21, 30))
TROUBLED_AT_MOST: Final = timedelta(minutes=5)


def next_turn(pace: Sequence[timedelta], *, begun_at: datetime, now: datetime) -> datetime:
    """When it is asked next, after now; the last pause is repeated.

    It may have begun later than now: the clock was set back meanwhile.
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
    """The same where it could not be asked now: after as long a time as it has been tried."""
    return now + max(pace[-1], min(now - begun_at, TROUBLED_AT_MOST))
