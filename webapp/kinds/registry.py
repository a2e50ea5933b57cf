"""The kinds of question that this server can carry out, each built once, in sight."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from flows.elicitation.states import Elicitation
from flows.elicitation.traits import Traits, traits_of
from flows.oauth.provider import Client
from webapp.elicitations.question_kind import QuestionKind
from webapp.kinds.decision import Decisions
from webapp.kinds.gate import Gates
from webapp.kinds.page_kind import PageKind
from webapp.kinds.quotas import Quotas
from webapp.kinds.rules import Rules
from webapp.kinds.secret import SecretPage
from webapp.kinds.url import Visits
from webapp.oauth.accounts import Accounts
from webapp.payments.payments import Payments


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinds:
    visits: Visits
    accounts: Accounts
    payments: Payments
    secrets: SecretPage
    forms: PageKind
    gates: Gates
    decisions: Decisions
    policies: Quotas
    rules: Rules
    others: Mapping[str, QuestionKind] = field(default_factory=dict[str, QuestionKind])

    def __getitem__(self, name: str) -> QuestionKind:
        return self._by_name()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name())

    def on_page(self, name: str) -> PageKind | None:
        """The kind, if our own page takes the answer."""
        kind = self._by_name()[name]
        return kind if isinstance(kind, PageKind) else None

    def client(self, elicitation: Elicitation) -> Client | None:
        """Ours at the provider of an account that it is about."""
        is_account = traits_of(elicitation.kind).gives == "account"
        return self.accounts.client_for(elicitation) if is_account else None

    def label(self, elicitation: Elicitation) -> str:
        return self[elicitation.kind].label(elicitation)

    def _by_name(self) -> Mapping[str, QuestionKind]:
        return {
            "url": self.visits,
            "oauth": self.accounts,
            "payment": self.payments,
            "secret": self.secrets,
            "form": self.forms,
            "confirm": self.forms,
            "gate": self.gates,
            "decision": self.decisions,
            **self.others,
        }


class OwnKind(PageKind):
    """A kind of question beside the built-in ones: its declaration, and what differs."""

    traits: ClassVar[Traits]
