"""The interface of a kind of question; each kind is implemented in its own module."""

from dataclasses import dataclass
from typing import Any, Protocol

from flows.elicitation.calling_client import CallingClient
from flows.elicitation.flow import Flow
from flows.elicitation.states import Asked, Elicitation, Json
from flows.question import Link
from webapp.records.values import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedBy:
    """The asker: the owner, and the tool of the server that asks for the owner.

    `client` is the client that called the tool. It is None for an owner on a page, or if unknown.
    """

    owner: str
    server: str
    tool: str
    version: str | None = None  # the version of the tool
    client: CallingClient | None = None
    asker: str | None = None  # verified identity of the owner, for an approver
    account: str | None = None  # the account that this call already received for the question
    is_later_leg: bool = False  # whether an earlier request of the call received the account


class QuestionKind(Protocol):
    @property
    def flow(self) -> Flow | None:
        """The flow that leads to another site; None if this server's page accepts the answer."""
        ...

    @property
    def holds_open(self) -> bool:
        """True if an attempt leaves something open at the provider that must be closed."""
        ...

    @property
    def may_know(self) -> bool:
        """True if an answer may be known without asking the person."""
        ...

    @property
    def outlives_errors(self) -> bool:
        """True if the answer stays available to the same call after the tool fails."""
        ...

    def facts(self, request: Any) -> Json:
        """Return the facts that identify equal questions, including the server's own settings.

        Raises NotConfigured.
        """
        ...

    async def known(self, request: Any, by: AskedBy) -> Json | None:
        """Return the argument for `Question.answer` if no person has to be asked, else None."""
        ...

    async def asked(self, request: Any, asked: Asked, *, link: Link, by: AskedBy) -> Asked:
        """Return `asked` with the data that this kind shows and needs."""
        ...

    async def answer(self, taken: Elicitation) -> Json:
        """Return the argument for `Question.answer` from an accepted elicitation."""
        ...

    def return_path(self, elicitation: Elicitation) -> str:
        """Return the path to which a provider sends the browser back, or "" if no provider does."""
        ...

    def label(self, elicitation: Elicitation) -> str:
        """Return the provider's name for people, or "" if the provider is not known here."""
        ...

    async def used_up(self, delivered: Elicitation) -> list[Value]:
        """Return more values to write when the result that used the answer was delivered."""
        ...
