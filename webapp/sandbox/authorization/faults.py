"""Faults on request: failures of a provider, planned by a test or a curious person."""

import asyncio
from collections import deque
from enum import StrEnum

from litestar.types import Receive


class PlayedFault(StrEnum):
    """A fault, which happens once: the first six in a token reply, the others in a redirect."""

    SERVER_ERROR = "500"
    HTML = "html"
    ERROR_WITH_200 = "200-with-error"
    NO_TOKEN = "no-token"  # noqa: S105 - the name of a fault
    HUGE_TOKEN = "huge-token"  # noqa: S105 - the name of a fault
    SLOW = "slow"
    DROP_ISS = "drop-iss"
    WRONG_ISS = "wrong-iss"


REDIRECT_FAULTS = frozenset({PlayedFault.DROP_ISS, PlayedFault.WRONG_ISS})
TOKEN_FAULTS = frozenset(PlayedFault) - REDIRECT_FAULTS


class Faults:
    """The planned faults and the held replies."""

    def __init__(self) -> None:
        self._planned: deque[PlayedFault] = deque()
        self._released = asyncio.Event()

    @property
    def planned(self) -> list[PlayedFault]:
        return list(self._planned)

    def plan(self, fault: PlayedFault) -> None:
        self._planned.append(fault)
        if fault is PlayedFault.SLOW:
            self._released.clear()

    def pop(self, kinds: frozenset[PlayedFault]) -> PlayedFault | None:
        """Remove and return the next planned fault of these kinds."""
        for fault in self._planned:
            if fault in kinds:
                self._planned.remove(fault)
                return fault
        return None

    def release(self) -> None:
        """Release all held replies."""
        self._released.set()

    async def hold(self, receive: Receive) -> None:
        """Wait until the replies are released or the client has disconnected."""
        async with asyncio.TaskGroup() as group:
            waits = [group.create_task(self._released.wait()), group.create_task(_gone(receive))]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()


async def _gone(receive: Receive) -> bool:
    while (await receive())["type"] != "http.disconnect":
        pass
    return True
