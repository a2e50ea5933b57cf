"""The registry of the kinds of questions, each created once, and the kind `url`."""

from collections.abc import Awaitable, Collection, Iterator, Mapping, Sequence
from typing import ClassVar

from msgspec.structs import replace

from flows.elicitation.states import Asked, Elicitation, Json
from flows.elicitation.traits import Proof, Traits, traits_of
from flows.errors import InvalidAnswer
from flows.hooks import HookRefused
from flows.kinds.url import Visit, VisitFlow
from flows.oauth.provider import Client
from flows.question import Link, Request
from flows.requests import AccountRequest
from flows.schema.schema import Fault, check
from webapp.elicitations.plugins import is_seen_by_hooks
from webapp.elicitations.question_kind import AskedBy, QuestionKind
from webapp.elicitations.service import Elicitations
from webapp.http.client import Outbound
from webapp.identity.approvers import Approvers
from webapp.identity.identity import Caller, Identity
from webapp.kinds.decision import Decisions
from webapp.kinds.gate import Gates
from webapp.kinds.page_kind import PageKind, SecretPage
from webapp.kinds.quotas import Quotas
from webapp.kinds.rules import Rules
from webapp.oauth.accounts import Accounts
from webapp.payments.payments import Payments
from webapp.settings.settings import Settings


class Visits(QuestionKind):
    """The kind `url`: the person opens an address that a Visit names."""

    def redirect_flow(self) -> VisitFlow:
        return VisitFlow()

    async def asked(self, request: Visit, asked: Asked, *, link: Link, by: AskedBy) -> Asked:
        """Return `asked` with the address to open, if the author gave an address.

        If the author gave a function, it is called later, after the question is stored.
        """
        url = None if callable(request.url) else request.address(link)
        return replace(asked, url=url, origins=request.origins, waits=request.waits)

    async def answer(self, claimed: Elicitation) -> Json:
        return claimed.content


class Kinds:
    """The kinds of questions, by name and as attributes. `own` are an application's own kinds."""

    def __init__(
        self,
        settings: Settings,
        elicitations: Elicitations,
        *,
        outbound: Outbound,
        identity: Identity,
        own: "Collection[type[OwnKind]]" = (),
    ) -> None:
        # Only users of this machine may see the path of the file of declarations in errors.
        config = str(settings.config) if settings.is_local and settings.config else "elicit.toml"
        who, users = settings.identity, identity.users
        self.accounts = Accounts(
            elicitations=elicitations,
            outbound=outbound,
            providers=settings.providers,
            credentials=settings.credentials,
            config=config,
            teams=who.teams,
            issuers={
                name: one.client for one in who.issuers for name in one.client.provider.issuers
            },
        )
        self.payments = Payments(
            elicitations=elicitations,
            outbound=outbound,
            sellers=settings.sellers,
            refund_unused=settings.refund_unused,
            unreached=settings.unreached,
            config=config,
        )
        self.secrets = SecretPage(elicitations=elicitations)
        self.forms = PageKind(elicitations=elicitations)
        self.gates = Gates(elicitations=elicitations, policy=settings.gate)
        self.decisions = Decisions(
            elicitations=elicitations,
            approvers=Approvers(
                rules=who.approval,
                owners=elicitations.owners,
                identity=identity,
                issuers=who.first_names,
                application="" if users is None else users.application,
                clock=elicitations.clock,
                config=config,
            ),
        )
        self.quotas = Quotas(elicitations=elicitations, settings=settings.policies)
        self.plugins = elicitations.plugins
        self.rules = Rules(elicitations)
        self._by_name: Mapping[str, QuestionKind] = {
            "url": Visits(),
            "oauth": self.accounts,
            "api_key": self.accounts,
            "payment": self.payments,
            "secret": self.secrets,
            "form": self.forms,
            "confirm": self.forms,
            "gate": self.gates,
            "decision": self.decisions,
            **{kind.traits.name: kind(elicitations=elicitations) for kind in own},
        }

    async def answer(self, claimed: Elicitation, caller: Caller) -> Json:
        """Return the content of an accepted elicitation, for `Question.answer`.

        Raises Failed if the account or payment is gone, or if the caller can no longer use it.
        """
        if traits_of(claimed.kind).gives == "account":
            team = self.accounts.terms(claimed).team
            self.accounts.must_be_member(team, until=caller.teams_until)
        return await self._by_name[claimed.kind].answer(claimed)

    def __getitem__(self, name: str) -> QuestionKind:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def facts(self, request: Request, caller: Caller) -> Json:
        """Return the facts that make two questions of this caller equal."""
        if isinstance(request, AccountRequest):
            return self.accounts.facts(request, teams=caller.teams)
        return self._by_name[request.kind].facts(request)

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
        if self.plugins.see_answers:
            return self._completed(kind, asked, answer, proof, ticks=ticks)
        return kind.complete(asked, answer, proof, ticks=ticks)

    async def reduced(
        self, asked: Elicitation, answer: Json, proof: Proof, *, by: PageKind
    ) -> Json:
        """Return the answer after the plugins have removed parts of it. Raises InvalidAnswer."""
        if not is_seen_by_hooks(asked.kind) or asked.status.is_final:
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


class OwnKind(PageKind):
    """The base class of an application's own kinds. Override the methods that differ."""

    traits: ClassVar[Traits]
