"""The base class of the kinds of questions. Each kind is a subclass in another module.

A kind raises NotConfigured if the server has no settings for the question. `missing_table` creates
this error for a name in an author's code that has no table in `elicit.toml`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from flows.elicitation.flow import Flow
from flows.elicitation.states import Asked, Elicitation, Json
from flows.elicitation.tool_call import CallingClient
from flows.errors import NotConfigured
from flows.oauth.token_exchange import SubjectToken
from flows.question import Link
from webapp.records.values import Value

# The documentation of each kind of table.
_PAGES = {
    "approvers": "how-to/approvals.md",
    "providers": "how-to/providers.md",
    "sellers": "how-to/providers.md",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedBy:
    """The asker: the owner, and the tool that asks in the owner's call.

    `client` is the client that called the tool. It is None if the owner asks on a page, or if the
    client is unknown.
    """

    owner: str
    server: str
    tool: str
    version: str | None = None  # the version of the tool
    client: CallingClient | None = None
    asker: str | None = None  # verified identity of the owner, for an approver
    account: str | None = None  # the account that this call already received for the question
    is_later_request: bool = False  # True if an earlier request of the call received the account
    teams: tuple[str, ...] = ()  # the names of the owner's teams, according to this call
    teams_until: datetime | None = None  # when the call no longer proves the owner's teams
    issuer: str | None = None  # the issuer of the owner's verified subject
    bearer: SubjectToken | None = field(default=None, repr=False)  # the owner's own access token


class QuestionKind(ABC):
    """The base class of the kinds. A kind overrides the methods in which it differs.

    `needs_closing`: an attempt opens something at the provider that has to be closed later.
    `can_answer_without_asking`: an answer may be known without asking the person.
    `outlives_errors`: an identical call can use the answer again after the tool failed.
    """

    needs_closing = False
    can_answer_without_asking = False
    outlives_errors = False

    def redirect_flow(self) -> Flow | None:
        """Return the flow through another site, or None if our own page accepts the answer."""
        return None

    def facts(self, request: Any) -> Json:
        """Return the facts that make two questions equal, including the server's settings.

        Raises NotConfigured if this server has no settings for the question.
        """
        facts: Json = request.facts()
        return facts

    async def known(self, request: Any, by: AskedBy) -> Json | None:
        """Return the argument for `Question.answer` if no person has to be asked, else None."""
        return None

    @abstractmethod
    async def asked(self, request: Any, asked: Asked, *, link: Link, by: AskedBy) -> Asked:
        """Return `asked` with the data that this kind shows and needs."""

    @abstractmethod
    async def answer(self, claimed: Elicitation) -> Json:
        """Return the argument for `Question.answer` from an accepted elicitation."""

    def return_path(self, elicitation: Elicitation) -> str:
        """Return the path to which a provider sends the browser back, or "" if no provider does."""
        return ""

    def label(self, elicitation: Elicitation) -> str:
        """Return the provider's name for people, or "" if the provider is not known here."""
        return ""

    async def used_up(self, delivered: Elicitation) -> list[Value]:
        """Return the values to write after a result that used the answer was delivered."""
        return []


def missing_table(
    kind: str,
    name: str,
    *,
    known: Iterable[str],
    config: str,
    also: Sequence[str] = (),
    has_none: bool = False,
) -> NotConfigured:
    """Return the error for an unknown name without a table in `elicit.toml`.

    `known` are the known names, and `config` is the path of the file, as the error message shows
    it. `also` are settings that are needed together with the table.
    """
    table, near = f"[{kind}.{name}]", get_close_matches(name, [*known], n=1)
    how = f"Write {table} in {config}, as docs/{_PAGES[kind]} shows."
    if near:
        how, also = f"Perhaps {near[0]!r} is meant. If not: {how}", ()
    error = NotConfigured(f"{table} in elicit.toml", *also, has_none=has_none, how=how)
    error.is_unknown_name = True
    return error
