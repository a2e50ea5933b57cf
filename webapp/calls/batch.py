"""A batch: the questions that are asked together, and what to show when their request ends.

Risks: the first question to be shown ends the request, and the others are shown one request later
or never. Each question therefore stops here, and the request ends when no question is running.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from webapp.elicitations.waiters import Waiter

# The ways in which a presenter ends a request, in order of precedence. AUTOMATIC comes first, so
# that an automatic answer is reported at once. A form in the client comes before a link for the
# model.
AUTOMATIC = "nobody"
RETRY = "retry"
REQUIRED = "required"
RESULT = "result"
_ENDINGS = (AUTOMATIC, RETRY, REQUIRED, RESULT)


class Placed(Protocol):
    @property
    def index(self) -> int:
        """The position of the question in its run."""
        ...


PartT = TypeVar("PartT", bound=Placed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Standing(Generic[PartT]):
    ending: str
    part: PartT
    turn: asyncio.Future[tuple[PartT, ...]] = field(repr=False)

    @property
    def rank(self) -> tuple[int, int]:
        return _ENDINGS.index(self.ending), self.part.index


class Batch(Generic[PartT]):
    """The questions that are asked together, often only one."""

    def __init__(self, size: int = 1) -> None:
        self.is_urgent = False  # a question has to be shown: stop waiting for the others
        self._going = size
        self._standing: list[_Standing[PartT]] = []
        self._waiters: list[Waiter] = []

    @property
    def has_nobodys(self) -> bool:
        """True if the client answered a question automatically: the person gets all links."""
        return any(one.ending == AUTOMATIC for one in self._standing)

    def join(self, waiter: Waiter) -> None:
        self._waiters.append(waiter)

    def leave(self) -> None:
        """Note that one of the questions is answered."""
        self._going -= 1
        self._look()

    async def collect_prompts(
        self, part: PartT, *, ending: str, is_urgent: bool
    ) -> tuple[PartT, ...]:
        """Stop one question for this request, and return the parts to show together.

        Only the question that ends the request returns, with the parts in the order of the run. The
        others wait until they are cancelled.
        """
        turn = asyncio.get_running_loop().create_future()
        self._standing.append(_Standing(ending=ending, part=part, turn=turn))
        if ending == AUTOMATIC or (is_urgent and not self.is_urgent):
            self.is_urgent = True
            for waiter in self._waiters:
                waiter.wake(None)
        self.leave()
        parts: tuple[PartT, ...] = await turn
        return parts

    def _look(self) -> None:
        if self._going or not self._standing:
            return
        ordered = sorted(self._standing, key=lambda one: one.rank)
        lead = ordered[0]
        if not lead.turn.done():
            endings = {lead.ending, RESULT} if lead.ending == AUTOMATIC else {lead.ending}
            lead.turn.set_result(tuple(one.part for one in ordered if one.ending in endings))
