"""What the service must know of one kind of question; each kind is a module of its own."""

from dataclasses import dataclass
from typing import Any, Protocol

from flows.elicitation.calling_client import CallingClient
from flows.elicitation.flow import Flow
from flows.elicitation.states import Asked, Elicitation, Json
from flows.question import Link
from webapp.records.values import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedBy:
    """Who asks: the owner, and the tool of the served server that asks for them.

    `client` is the one that called it; None: the owner on a page, or one that is not known.
    """

    owner: str
    server: str
    tool: str
    version: str | None = None  # of the tool, if it has one
    client: CallingClient | None = None
    asker: str | None = None  # what was verified of the owner, for whoever decides for them
    account: str | None = None  # that this call's body has got for the same question
    is_later_leg: bool = False  # than the one in which the body got it


class QuestionKind(Protocol):
    @property
    def flow(self) -> Flow | None:
        """What leads elsewhere; None where our own page takes the answer."""
        ...

    @property
    def holds_open(self) -> bool:
        """Whether an attempt leaves something at the provider that must end with the question."""
        ...

    @property
    def may_know(self) -> bool:
        """Whether there may be an answer that nobody has to be asked for."""
        ...

    @property
    def outlives_errors(self) -> bool:
        """Whether a tool that fails leaves the answer to the same call made again."""
        ...

    def facts(self, request: Any) -> Json:
        """What makes two questions the same, the server's own settings included.

        Raises NotConfigured.
        """
        ...

    async def known(self, request: Any, by: AskedBy) -> Json | None:
        """What `Question.answer` takes, where nobody has to be asked."""
        ...

    async def asked(self, request: Any, asked: Asked, *, link: Link, by: AskedBy) -> Asked:
        """With what this kind shows and needs."""
        ...

    async def answer(self, taken: Elicitation) -> Json:
        """What `Question.answer` takes, of an accepted elicitation."""
        ...

    def return_path(self, elicitation: Elicitation) -> str:
        """Where a provider sends the browser back to; empty where none does."""
        ...

    def label(self, elicitation: Elicitation) -> str:
        """What people call the provider that it leads to; nothing where it is not known here."""
        ...

    async def used_up(self, delivered: Elicitation) -> list[Value]:
        """What else is written when the result that used it went out."""
        ...
