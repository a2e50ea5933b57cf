"""What shows a link to a person and waits: one for each way that a protocol revision has."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NoReturn, Protocol, TypeAlias

from flows.elicitation.states import Elicitation, Json
from flows.schema.schema import Fault
from webapp.calls.batch import Batch
from webapp.calls.run import CurrentRun
from webapp.calls.used import CallUse
from webapp.elicitations.links import Links
from webapp.elicitations.service import Elicitations
from webapp.elicitations.waiters import Waiter
from webapp.kinds.registry import Kinds

NAME_CHARACTERS = 8  # 48 bits of chance


class Interrupted(BaseException):
    """Ends a tool's body. No Exception, so that `except Exception` in a tool cannot stop it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PresentedQuestion:
    """A question as a presenter needs it: what stands in the store, and its address."""

    elicitation: Elicitation
    link: Callable[[], str] = field(repr=False)
    index: int  # of the question in its run
    is_again: bool  # an earlier leg of this run asked this very elicitation already
    group: "Batch[Prompt]" = field(
        default_factory=lambda: Batch[Prompt](1)
    )  # of those that are asked with it
    replaces: str | None = None  # the other elicitation at this place that an earlier leg asked
    arguments: str = field(default="{}", repr=False)  # the client's own, as canonical JSON

    @property
    def name(self) -> str:
        """What the client's answer to it is called: by no other question at its place."""
        return name_at(self.index, self.elicitation.id)

    @property
    def url(self) -> str:
        """The link, made when it is first wanted: not every leg shows it."""
        return self.link()


def name_at(index: int, elicitation_id: str) -> str:
    return f"{index}-{elicitation_id[-NAME_CHARACTERS:]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One of those that are asked together; `letters` is what to say of its letters."""

    shown: PresentedQuestion
    is_out: bool = False  # the client was shown it in an earlier leg
    is_nobodys: bool = False  # the client answered it, sooner than a person can
    user_code: str | None = None

    @property
    def index(self) -> int:
        return self.shown.index


Prompts: TypeAlias = Batch[Prompt]


class Leg(Protocol):
    """What a presenter takes of a call."""

    used: CallUse
    faults: dict[str, Sequence[Fault]]
    is_over: bool

    @property
    def now(self) -> datetime: ...
    @property
    def elicitations(self) -> Elicitations: ...
    @property
    def links(self) -> Links: ...
    @property
    def kinds(self) -> Kinds: ...
    @property
    def run(self) -> CurrentRun: ...
    @property
    def is_draining(self) -> bool: ...
    @property
    def is_interrupted(self) -> bool: ...

    def is_waiting_for(self, current: Elicitation) -> bool: ...

    def next_step(self) -> float: ...

    def interrupt(self, answer: object) -> NoReturn: ...

    async def hold(
        self,
        current: Elicitation,
        waiter: Waiter,
        *,
        until: datetime,
        stops: Callable[[], bool] = lambda: False,
    ) -> Elicitation: ...


class Presenter(Protocol):
    """How one protocol revision shows a link and waits."""

    def can(self, mode: str) -> bool: ...

    def limit(self, kind: str, *, now: datetime, timeout: timedelta) -> datetime:
        """Until when a leg that asks this kind may be kept waiting for another one."""
        ...

    def busy(self) -> object:
        """The result for a leg that another one outran."""
        ...

    def asks_in_client(self, kind: str, arguments: Json) -> bool:
        """Whether the client's own form takes the answer, so that nobody opens a link.

        `arguments` are what a yes is about, which it has to show whole.
        """
        ...

    def carry(self, call: Leg, state: object) -> object:
        """A tool's own requestState, with what this presenter needs beside it."""
        ...

    async def heed(self, call: Leg) -> None:
        """One question has ended the leg: what the client answered to others is not lost."""
        ...

    async def wait(self, call: Leg, shown: PresentedQuestion, waiter: Waiter) -> Elicitation | None:
        """Show it and wait until it is final, another leg waits, or this leg's time is up.

        None = the wait was cancelled in the client. May end the leg with `call.interrupt`.
        """
        ...
