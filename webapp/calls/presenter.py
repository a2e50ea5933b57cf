"""The questions that a request shows together, as presenters need them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from flows.elicitation.states import Elicitation
from webapp.elicitations.waiters import Waiter

# The ways in which a presenter ends a request, in order of precedence. AUTOMATIC comes first, so
# that an automatic answer is reported at once. A form in the client comes before a link for the
# model.
AUTOMATIC = "nobody"
RETRY = "retry"
REQUIRED = "required"
RESULT = "result"
_ENDINGS = (AUTOMATIC, RETRY, REQUIRED, RESULT)
NAME_CHARACTERS = 8  # 48 random bits


@dataclass(frozen=True, slots=True, kw_only=True)
class _Standing:
    ending: str
    part: "Prompt"
    turn: "asyncio.Future[tuple[Prompt, ...]]" = field(repr=False)

    @property
    def rank(self) -> tuple[int, int]:
        return _ENDINGS.index(self.ending), self.part.index


class Batch:
    """The questions that are asked together, often only one.

    Each question waits here, and the request ends when no question of the batch is still running.
    Without this wait, the first question to be shown would end the request, and the others would be
    shown later or never.
    """

    def __init__(self, size: int = 1) -> None:
        self.is_urgent = False  # a question has to be shown: stop waiting for the others
        self._going = size
        self._standing: list[_Standing] = []
        self._waiters: list[Waiter] = []

    @property
    def has_automatic_answer(self) -> bool:
        """True if the client answered a question automatically: the person then gets all links."""
        return any(one.ending == AUTOMATIC for one in self._standing)

    def join(self, waiter: Waiter) -> None:
        self._waiters.append(waiter)

    def leave(self) -> None:
        """Note that one of the questions is answered."""
        self._going -= 1
        self._look()

    async def collect_prompts(
        self, part: "Prompt", *, ending: str, is_urgent: bool
    ) -> "tuple[Prompt, ...]":
        """End one question's wait in this request, and return the prompts to show together.

        This method returns only for the question that ends the request. For the other questions, it
        waits until they are cancelled. The prompts have the order of the run.
        """
        turn = asyncio.get_running_loop().create_future()
        self._standing.append(_Standing(ending=ending, part=part, turn=turn))
        if ending == AUTOMATIC or (is_urgent and not self.is_urgent):
            self.is_urgent = True
            for waiter in self._waiters:
                waiter.wake(None)
        self.leave()
        parts: tuple[Prompt, ...] = await turn
        return parts

    def _look(self) -> None:
        if self._going or not self._standing:
            return
        ordered = sorted(self._standing, key=lambda one: one.rank)
        lead = ordered[0]
        if not lead.turn.done():
            endings = {lead.ending, RESULT} if lead.ending == AUTOMATIC else {lead.ending}
            lead.turn.set_result(tuple(one.part for one in ordered if one.ending in endings))


@dataclass(frozen=True, slots=True, kw_only=True)
class PresentedQuestion:
    """A question as a presenter needs it: its stored elicitation and its link."""

    elicitation: Elicitation
    link: Callable[[], str] = field(repr=False)
    index: int  # position of the question in its run
    is_again: bool  # an earlier request of this run asked the same elicitation
    group: Batch = field(default_factory=Batch)  # the questions asked together with this one
    replaces: str | None = None  # id of the elicitation that an earlier request asked here
    arguments: str = field(default="{}", repr=False)  # the client's arguments as canonical JSON

    @property
    def name(self) -> str:
        """The name of the client's answer. No other question at the same place has this name."""
        return name_at(self.index, self.elicitation.id)

    @property
    def url(self) -> str:
        """The link, created at first use because many requests do not show it."""
        return self.link()


def name_at(index: int, elicitation_id: str) -> str:
    return f"{index}-{elicitation_id[-NAME_CHARACTERS:]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A question of a batch. `user_code` is the text to show about its user code."""

    shown: PresentedQuestion
    is_unanswered: bool = False  # an earlier request sent the question to the client
    is_automatic: bool = False  # the client's answer came sooner than a person can answer
    user_code: str | None = None

    @property
    def index(self) -> int:
        return self.shown.index
