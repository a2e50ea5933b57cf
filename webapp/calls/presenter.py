"""Protocols and values for showing a link to a person and waiting for the answer."""

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

NAME_CHARACTERS = 8  # 48 random bits


class Interrupted(BaseException):
    """Ends a tool's body. A BaseException, so that `except Exception` in a tool cannot stop it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PresentedQuestion:
    """A question as a presenter needs it: its stored elicitation and its link."""

    elicitation: Elicitation
    link: Callable[[], str] = field(repr=False)
    index: int  # position of the question in its run
    is_again: bool  # an earlier request of this run asked the same elicitation
    group: "Batch[Prompt]" = field(
        default_factory=lambda: Batch[Prompt](1)
    )  # the questions that are asked together with this one
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
    is_out: bool = False  # an earlier request sent the question to the client
    is_nobodys: bool = False  # the client's answer came sooner than a person can answer
    user_code: str | None = None

    @property
    def index(self) -> int:
        return self.shown.index


Prompts: TypeAlias = Batch[Prompt]


class Leg(Protocol):
    """The part of a call that presenters use."""

    used: CallUse
    faults: dict[str, Sequence[Fault]]
    has_ended: bool

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
    """The way in which one protocol revision shows a link and waits."""

    def can(self, mode: str) -> bool: ...

    def limit(self, kind: str, *, now: datetime, timeout: timedelta) -> datetime:
        """Return until when a request that asks this kind may wait for another request."""
        ...

    def busy(self) -> object:
        """Return the result for a request whose outcome another request claimed first."""
        ...

    def asks_in_client(self, kind: str, arguments: Json) -> bool:
        """Return True if the client's own form accepts the answer, so that no link is opened.

        `arguments` are what the person confirms; the form has to show them in full.
        """
        ...

    def carry(self, call: Leg, state: object) -> object:
        """Return the tool's own requestState together with this presenter's own state."""
        ...

    async def apply_client_answers(self, call: Leg) -> None:
        """Apply the client's answers to all questions of the run when the request ends early.

        One question ended the request while other questions were pending.
        """
        ...

    async def wait(self, call: Leg, shown: PresentedQuestion, waiter: Waiter) -> Elicitation | None:
        """Show the question and wait until it is final or the wait ends.

        The wait ends if another request takes it over or if this request's time is up. Return None
        if the client cancelled the wait. May end the request with `call.interrupt`.
        """
        ...
