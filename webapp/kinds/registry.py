"""The kinds of question that this server can carry out, each built once, in sight."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

from flows.elicitation.states import Elicitation
from flows.kinds.gate import GatePolicy
from flows.oauth.provider import Client, Provider
from flows.payments.gateway import MerchantAccount
from webapp.elicitations.kind import Kind
from webapp.elicitations.service import Elicitations
from webapp.http.client import Outbound
from webapp.kinds.form import AskedForms
from webapp.kinds.gate import Gates
from webapp.kinds.quotas import Quotas
from webapp.kinds.rules import Rules
from webapp.kinds.secret import KeptSecrets
from webapp.kinds.url import Visits
from webapp.oauth.accounts import Accounts
from webapp.payments.payments import Payments
from webapp.settings.quotas import PolicySettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinds:
    visits: Visits
    accounts: Accounts
    payments: Payments
    secrets: KeptSecrets
    forms: AskedForms
    gates: Gates
    policies: Quotas
    rules: Rules

    def __getitem__(self, name: str) -> Kind:
        return self._by_name()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name())

    def typed(self, name: str) -> AskedForms | KeptSecrets | None:
        """The kind, if our own page takes the answer."""
        kind = self._by_name()[name]
        return kind if isinstance(kind, AskedForms | KeptSecrets) else None

    def client(self, elicitation: Elicitation) -> Client | None:
        """Ours at the provider of an account that it is about."""
        return self.accounts.client_for(elicitation) if elicitation.kind == "oauth" else None

    def label(self, elicitation: Elicitation) -> str:
        """What people call the provider that it leads to; nothing where it is not known here."""
        label: str | None = None
        if elicitation.kind == "oauth":
            client = self.client(elicitation)
            label = None if client is None else client.provider.label
        elif elicitation.kind == "payment":
            seller = self.payments.seller(self.payments.seller_of(elicitation))
            label = None if seller is None else seller.label
        return label or ""

    def _by_name(self) -> Mapping[str, Kind]:
        return {
            "url": self.visits,
            "oauth": self.accounts,
            "payment": self.payments,
            "secret": self.secrets,
            "form": self.forms,
            "confirm": self.forms,
            "gate": self.gates,
        }


def open_kinds(
    *,
    elicitations: Elicitations,
    outbound: Outbound,
    providers: Mapping[str, Provider],
    credentials: Mapping[str, tuple[str, str]],
    sellers: Mapping[str, MerchantAccount],
    refund_unused: timedelta | None,
    unreached: Collection[str],
    gate: GatePolicy,
    policies: PolicySettings,
) -> Kinds:
    """`credentials` are our client id and secret at a provider, by its name."""
    return Kinds(
        visits=Visits(),
        accounts=Accounts(
            elicitations=elicitations,
            outbound=outbound,
            providers=providers,
            credentials=credentials,
        ),
        payments=Payments(
            elicitations=elicitations,
            outbound=outbound,
            sellers=sellers,
            refund_unused=refund_unused,
            unreached=unreached,
        ),
        secrets=KeptSecrets(elicitations=elicitations),
        forms=AskedForms(elicitations=elicitations),
        gates=Gates(elicitations=elicitations, policy=gate),
        policies=Quotas(elicitations=elicitations, settings=policies),
        rules=Rules(elicitations),
    )
