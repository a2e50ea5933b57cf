"""What shows a link to a person and waits: one for each way that a protocol revision has."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from flows.elicitation import Elicitation, Json
from webapp.group import Group
from webapp.waiters import Waiter

if TYPE_CHECKING:
    from webapp.call import Call


NAME_CHARACTERS = 8  # 48 bits of chance


class Interrupted(BaseException):
    """Ends a tool's body. No Exception, so that `except Exception` in a tool cannot stop it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A question as a presenter needs it: what stands in the store, and its address."""

    elicitation: Elicitation
    link: Callable[[], str] = field(repr=False)
    index: int  # of the question in its run
    is_again: bool  # an earlier leg of this run asked it already
    group: Group = field(default_factory=Group)  # of those that are asked together with it
    arguments: str = field(default="{}", repr=False)  # the client's own, as canonical JSON

    @property
    def name(self) -> str:
        """What the client's answer to it is called: by no other question at its place."""
        return f"{self.index}-{self.elicitation.id[-NAME_CHARACTERS:]}"

    @property
    def url(self) -> str:
        """The link, made when it is first wanted: not every leg shows it."""
        return self.link()


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

    def carry(self, call: "Call", state: object) -> object:
        """A tool's own requestState, with what this presenter needs beside it."""
        ...

    async def wait(self, call: "Call", shown: Shown, waiter: Waiter) -> Elicitation | None:
        """Show it and wait until it is final, another leg waits, or this leg's time is up.

        None = the wait was cancelled in the client. May end the leg with `call.interrupt`.
        """
        ...
