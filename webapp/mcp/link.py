"""link: the result itself carries the link (a client without URL mode).

The same call made again goes on: it is held for a while, and then says again what it waits for.
The model can wait or give up; it can never say yes for the person.
"""

from datetime import datetime, timedelta

from flows.elicitation import Elicitation
from webapp.call import Call
from webapp.mcp.results import Result, busy_text, link_meta, link_text, text_result
from webapp.presenter import Shown
from webapp.waiters import Waiter


class LinkInResult:
    """Presents by an ordinary result."""

    def __init__(
        self,
        *,
        protocol_version: str,
        modes: frozenset[str],
        held: timedelta,
        is_error: bool,
    ) -> None:
        self._protocol_version = protocol_version
        self._modes = modes
        self._held = held
        self._is_error = is_error

    def can(self, mode: str) -> bool:
        return mode in self._modes

    def limit(self, *, now: datetime, timeout: timedelta) -> datetime:
        return now + self._held

    def busy(self) -> Result:
        return text_result(busy_text(), protocol_version=self._protocol_version, is_error=True)

    async def wait(self, call: Call, shown: Shown, waiter: Waiter) -> Elicitation | None:
        limit = call.now + (self._held if shown.is_again else timedelta())
        current = await call.hold(shown.elicitation, waiter, until=limit)
        if call.is_waiting_for(current):
            call.interrupt(
                text_result(
                    link_text(shown, is_again=shown.is_again),
                    protocol_version=self._protocol_version,
                    is_error=self._is_error,
                    meta=link_meta(shown),
                )
            )
        return current
