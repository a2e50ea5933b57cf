"""What a tool made and did not ask, judged: before what follows, and when its body returned.

What could go wrong: a question whose task was made a moment ago and has not begun. So everybody
who is ready goes first.
"""

import asyncio
import logging

from flows.elicitation.unasked import Made, Unasked, never_asked
from flows.question import current_unasked

_log = logging.getLogger(__name__)


async def nothing_stands_before() -> None:
    """Raises NotAsked where a payment or a yes was made and not asked: nothing follows on it."""
    unasked = current_unasked()
    if unasked.stops_what_follows:
        await asyncio.sleep(0)
    if stopping := unasked.stops_what_follows:
        raise never_asked(stopping)


async def all_were_asked(unasked: Unasked, *, tool: str) -> None:
    """Raises NotAsked where the body returned without asking what it had made."""
    if unasked:
        await asyncio.sleep(0)
    if made := unasked.take():
        _log.error("questions.never_asked", extra={"tool": tool, "places": _in_full(made)})
        raise never_asked(made)


def _in_full(made: list[Made]) -> list[str]:
    return [f"{each.path}:{each.line}" for each in made]
