"""The registry of the kinds of questions, each created once."""

from collections.abc import Awaitable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from flows.elicitation.proof import Proof
from flows.elicitation.states import Elicitation, Json
from flows.elicitation.traits import Traits, traits_of
from flows.errors import InvalidAnswer
from flows.hooks import HookRefused
from flows.oauth.provider import Client
from flows.schema.schema import Fault, check
from webapp.elicitations.plugins import Plugins, is_heard
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


@dataclass(frozen=True, kw_only=True)
class Kinds:
    visits: Visits
    accounts: Accounts
    payments: Payments
    secrets: SecretPage
    forms: PageKind
    gates: Gates
    decisions: Decisions
    quotas: Quotas
    plugins: Plugins
    rules: Rules
    others: Mapping[str, QuestionKind] = field(default_factory=dict[str, QuestionKind])

    def __getitem__(self, name: str) -> QuestionKind:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def on_page(self, name: str) -> PageKind | None:
        """Return the kind if our own page answers it, else None."""
        kind = self._by_name[name]
        return kind if isinstance(kind, PageKind) else None

    def complete(
        self, asked: Elicitation, answer: Json, proof: Proof, *, ticks: Collection[str] = ()
    ) -> Awaitable[Elicitation]:
        """Complete a question of our own page with an answer that matches its schema and rules.

        Return the ended question. Raises InvalidAnswer if a plugin refuses the answer; the question
        then stays open.
        """
        kind = self.on_page(asked.kind)
        assert kind is not None, asked.kind
        self.rules.refused.pop(asked.id, None)
        if self.plugins.hear_answers:
            return self._completed(kind, asked, answer, proof, ticks=ticks)
        return kind.complete(asked, answer, proof, ticks=ticks)

    async def reduced(
        self, asked: Elicitation, answer: Json, proof: Proof, *, by: PageKind
    ) -> Json:
        """Return the answer after the plugins have reduced it. Raises InvalidAnswer."""
        if not is_heard(asked.kind) or asked.status.is_final:
            return answer
        schema = by.schema(asked)

        async def verify(content: Json) -> None:
            faults: Sequence[Fault] = check(schema, content)
            if not faults and content != answer:
                faults = await self.rules.faults(asked, content)
            if faults:
                details = [(fault.path, fault.message) for fault in faults]
                raise InvalidAnswer(details, elicitation_id=asked.id)

        try:
            return await self.plugins.answering(asked, answer, proof, schema=schema, verify=verify)
        except HookRefused as refused:
            details = [(refused.field or "", str(refused))]
            raise InvalidAnswer(details, elicitation_id=asked.id) from refused

    async def _completed(
        self,
        kind: PageKind,
        asked: Elicitation,
        answer: Json,
        proof: Proof,
        *,
        ticks: Collection[str],
    ) -> Elicitation:
        reduced = await self.reduced(asked, answer, proof, by=kind)
        return await kind.complete(asked, reduced, proof, ticks=ticks)

    def client(self, elicitation: Elicitation) -> Client | None:
        """Return the OAuth client at the provider of the account that the question is about."""
        is_account = traits_of(elicitation.kind).gives == "account"
        return self.accounts.client_for(elicitation) if is_account else None

    def label(self, elicitation: Elicitation) -> str:
        return self[elicitation.kind].label(elicitation)

    @cached_property
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
    """The base class of an application's own kinds. Override the methods that differ."""

    traits: ClassVar[Traits]
