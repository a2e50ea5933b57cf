"""Trying again: what was decided on a row that somebody else has changed is decided anew.

What could go wrong: fifty at once who all try again at once, and a slow process among them that
never wins. So whoever has lost often waits a little, and longer each time, before the next try.
"""

import asyncio
import secrets

from flows.errors import ElicitError, StoreUnavailable

TRIES_AT_MOST = 100
AT_ONCE = 3
LONGER_SECONDS = 0.001
LONGEST_SECONDS = 0.05


class Contended(StoreUnavailable):
    """A hundred writers in a row were first: something is wrong, not busy."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{TRIES_AT_MOST} writers in a row changed {what} first")


class Erased(ElicitError, KeyError):
    """A record of a call, a run or a question is not in the store any more.

    It was purged, or the store has stepped back.
    """

    name = "ELICITATION_ERASED"
    jsonrpc_code = -32000
    http_status = 410

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(
            "This server no longer has its record of this call: it was erased, or lost by the "
            "store. So the call could not be finished. Call the tool again: a payment that was not "
            "used is there for the same call."
        )

    def __str__(self) -> str:
        return Exception.__str__(self)


async def pause(number: int) -> None:
    """Before the next try; `number` is how many were lost before this one."""
    if number < AT_ONCE:
        return
    longest = min(LONGER_SECONDS * number, LONGEST_SECONDS)
    await asyncio.sleep(longest * (1 + secrets.randbelow(1000)) / 1000)
