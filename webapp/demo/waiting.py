"""The demo's status display: the link's live status and the time left.

On a terminal the display is one line that changes in place, otherwise one line for each change.
"""

import asyncio
from typing import TextIO

import httpx

from flows.elicitation.states import Status
from flows.question import DEFAULT_TIMEOUT
from webapp.demo.walker import Page

_TICK_SECONDS = 1.0
_CLEAR_LINE = "\r\x1b[K"
_WORDS = {
    Status.PENDING: "Waiting for you to open the link",
    Status.OPENED: "Opened; waiting until you are done there",
    Status.EXCHANGING: "Finishing",
    Status.ACCEPTED: "Done",
}


class DemoWaiting:
    """Shows one link's status until it is final or the task is cancelled."""

    def __init__(self, client: httpx.AsyncClient, link: str, *, out: TextIO) -> None:
        self._client = client
        self._link = link
        self._out = out
        self._is_terminal = out.isatty()
        self._ends_at = 0.0
        self._status = Status.PENDING

    async def show(self) -> None:
        """Show the status. Ignore HTTP errors, since the call continues without the display."""
        page = Page((await self._client.get(self._link)).text)
        left = page.seconds_left
        self._ends_at = asyncio.get_running_loop().time() + (
            left if left is not None else DEFAULT_TIMEOUT.total_seconds()
        )
        self._print()
        ticking = asyncio.create_task(self._tick()) if self._is_terminal else None
        try:
            await self._listen()
        except httpx.HTTPError:
            pass
        finally:
            if ticking is not None:
                ticking.cancel()
                self._out.write("\n")

    async def _listen(self) -> None:
        timeout = httpx.Timeout(10, read=60)
        async with self._client.stream("GET", f"{self._link}/live", timeout=timeout) as events:
            async for line in events.aiter_lines():
                _, is_data, status = line.partition("data: ")
                if is_data and status in set(Status) and status != self._status:
                    self._status = Status(status)
                    self._print()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            self._print()

    def _print(self) -> None:
        words = _WORDS.get(self._status, f"It is {self._status}")
        seconds = max(0, round(self._ends_at - asyncio.get_running_loop().time()))
        if not self._status.is_final:
            words = f"{words} ({seconds // 60}:{seconds % 60:02} left)"
        self._out.write(_CLEAR_LINE + words if self._is_terminal else f"{words}\n")
        self._out.flush()
