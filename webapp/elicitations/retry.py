"""Retries: if another process has changed a row, the change is decided again on the new row.

Risks: fifty writers all retry at once, and a slow process never wins. So a writer that has lost
several times waits before the next attempt, longer each time.
"""

import asyncio
import secrets

from flows.errors import ElicitError, StoreUnavailable

TRIES_AT_MOST = 100
AT_ONCE = 3
LONGER_SECONDS = 0.001
LONGEST_SECONDS = 0.05


class Contended(StoreUnavailable):
    """A writer lost a hundred times in a row. The reason is rather an error than load."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} could not be written: other writers changed it {TRIES_AT_MOST} times in a row"
        )


class Erased(ElicitError, KeyError):
    """The record of a call, a run or a question is no longer in the store.

    The record was purged, or the store has stepped back.
    """

    name = "ELICITATION_ERASED"
    jsonrpc_code = -32000
    http_status = 410

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(
            "This server no longer has the record of this call: the record was erased, or the "
            "store lost it. So the call could not be finished. Call the tool again: the same call "
            "can still use a payment that was not used."
        )

    def __str__(self) -> str:
        return Exception.__str__(self)


async def pause(number: int) -> None:
    """Wait before the next attempt. `number` counts the lost attempts, from 0 for the first."""
    if number < AT_ONCE:
        return
    longest = min(LONGER_SECONDS * number, LONGEST_SECONDS)
    await asyncio.sleep(longest * (1 + secrets.randbelow(1000)) / 1000)
