"""Trying again: what was decided on a row that somebody else has changed is decided anew.

What could go wrong: fifty at once who all try again at once, and a slow process among them that
never wins. So whoever has lost often waits a little, and longer each time, before the next try.
"""

import asyncio
import secrets

TRIES_AT_MOST = 100
AT_ONCE = 3
LONGER_SECONDS = 0.001
LONGEST_SECONDS = 0.05


class Contended(RuntimeError):
    """A hundred writers in a row were first: something is wrong, not busy."""


async def pause(number: int) -> None:
    """Before the next try; `number` is how many were lost before this one."""
    if number < AT_ONCE:
        return
    longest = min(LONGER_SECONDS * number, LONGEST_SECONDS)
    await asyncio.sleep(longest * (1 + secrets.randbelow(1000)) / 1000)
