"""The registry of payment gateways: selects the gateway of a question or a receipt.

Risks: one provider's question is answered by another provider. Therefore only the terms of the
question, or the receipt, decide which provider is used.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from flows.elicitation.flow import Redirect, RedirectContext, Talk
from flows.elicitation.states import Elicitation, Json
from flows.errors import Failed, NotConfigured
from flows.payments.declared.declaration import DeclaredAccount
from flows.payments.declared.gateway import DeclaredGateway
from flows.payments.gateway import (
    Examinable,
    Gateway,
    MerchantAccount,
    NoticesOnly,
    Signs,
)
from flows.payments.listing import Lists, ReportsDisputes, ReportsRefunds
from flows.payments.mollie.gateway import MOLLIE, MollieAccount, MollieGateway
from flows.payments.paypal.gateway import PayPalAccount, PayPalGateway
from flows.payments.session import terms_of
from flows.payments.stripe.gateway import STRIPE, StripeAccount, StripeGateway
from flows.providers.github import GITHUB
from flows.webhooks.signatures import STANDARD_WEBHOOKS, Scheme

# Each type of account needs one line here.
_GATEWAYS: Mapping[type, Callable[[Any], Gateway]] = {
    StripeAccount: StripeGateway,
    PayPalAccount: PayPalGateway,
    MollieAccount: MollieGateway,
    DeclaredAccount: DeclaredGateway,
}
# The webhook signature schemes that an operator's own declaration can name.
SCHEMES: Final[Mapping[str, Scheme]] = {
    one.name: one for one in (STANDARD_WEBHOOKS, GITHUB, MOLLIE, STRIPE)
}
# The settings of the providers that are written in code.
_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "stripe": ("ELICIT_STRIPE_KEY", "ELICIT_STRIPE_WEBHOOK_SECRET"),
    "paypal": ("ELICIT_PAYPAL_CLIENT_ID", "ELICIT_PAYPAL_CLIENT_SECRET"),
    "mollie": ("ELICIT_MOLLIE_KEY",),
}
# Names that an operator's declaration cannot use.
BUILT_IN = frozenset(_SETTINGS)


class Gateways:
    """The gateways of this server.

    Implements flows.elicitation.flow.Flow.

    Each call goes to the gateway of its elicitation or payment. If that provider is no longer
    configured, a new payment raises NotConfigured, and a stored session or payment raises Failed.

    - `signers`: gateways that can verify signed webhooks; `signing`: those with a webhook secret.
    - `unsigned`: gateways whose webhooks only say what to fetch.
    - `refundable`: names of gateways that support refunds.
    - `examinable`: gateways that can check the operator's account.
    - `listing`: gateways that list sessions.
    - `refund_reporters`, `dispute_reporters`: gateways that report the status of refunds, of
      disputes.
    """

    def __init__(self, sellers: Mapping[str, MerchantAccount]) -> None:
        self._gateways = {name: gateway_of(seller) for name, seller in sellers.items()}
        self.signers: dict[str, Signs] = self._all_that(Signs)
        self.signing: dict[str, Signs] = {
            name: one for name, one in self.signers.items() if one.webhook_secrets
        }
        self.unsigned: dict[str, NoticesOnly] = self._all_that(NoticesOnly)
        self.examinable: dict[str, Examinable] = self._all_that(Examinable)
        self.refund_reporters: dict[str, ReportsRefunds] = self._all_that(ReportsRefunds)
        self.dispute_reporters: dict[str, ReportsDisputes] = self._all_that(ReportsDisputes)
        self.listing: dict[str, Lists] = self._all_that(Lists)
        self.refundable: frozenset[str] = frozenset(
            name
            for name, one in self._gateways.items()
            if not isinstance(one, DeclaredGateway) or one.seller.declaration.refund is not None
        )

    def _all_that(self, protocol: type) -> dict[str, Any]:
        """Return the gateways that implement a protocol. Call it once: isinstance is slow here."""
        return {name: one for name, one in self._gateways.items() if isinstance(one, protocol)}

    @property
    def names(self) -> Collection[str]:
        return self._gateways.keys()

    def supports_partial_refunds(self, name: str) -> bool:
        """Return True if partial refunds are possible, and a repeated request refunds only once."""
        found = self._gateways.get(name)
        return found is not None and not (
            isinstance(found, DeclaredGateway) and not found.seller.declaration.refunds_parts
        )

    def has_refund_key(self, name: str) -> bool:
        """Return True if sending the same refund request twice makes only one refund."""
        found = self._gateways.get(name)
        return not isinstance(found, DeclaredGateway) or found.seller.declaration.has_refund_key

    def named(self, name: str) -> Gateway:
        if name not in self._gateways:
            raise NotConfigured(f"the payment provider {name!r}")
        return self._gateways[name]

    def seller(self, name: str) -> MerchantAccount:
        return self.named(name).seller

    def statement(self, name: str) -> str | None:
        """Return the text of a payment on the person's bank statement, if it is known."""
        return self._gateways[name].seller.statement if name in self._gateways else None

    def of(self, elicitation: Elicitation) -> Gateway:
        return self.named(terms_of(elicitation).seller)

    def can_be_polled(self, elicitation: Elicitation) -> bool:
        """Return True if the provider can be polled, or if it is not configured at the moment."""
        gateway = self._gateways.get(terms_of(elicitation).seller)
        if gateway is None or not isinstance(gateway.seller, DeclaredAccount):
            return True
        return gateway.seller.declaration.fetch is not None

    def lists(self, elicitation: Elicitation) -> bool:
        """Return True if the elicitation's provider lists the sessions of our account."""
        return terms_of(elicitation).seller in self.listing

    def prepare(self, elicitation: Elicitation, context: RedirectContext) -> Json:
        return self.of(elicitation).prepare(elicitation, context)

    def begin(self, elicitation: Elicitation, context: RedirectContext) -> Talk[Redirect]:
        return (yield from self.of(elicitation).begin(elicitation, context))

    def for_stored(self, name: str) -> Gateway:
        """Return the gateway to ask about a stored session or payment.

        Raises:
            Failed: The provider is not configured any more.
        """
        try:
            return self.named(name)
        except NotConfigured as error:
            raise Failed("The payment provider is not configured any more.") from error


def settings_of(name: str = "stripe") -> tuple[str, ...]:
    """Return the names of the settings that a provider needs.

    For a provider that the operator declared, they are its table and its key setting.
    """
    its_own = f"[sellers.{name}] in elicit.toml", f"ELICIT_{name.upper()}_KEY"
    return _SETTINGS.get(name, its_own)


def gateway_of(seller: MerchantAccount) -> Gateway:
    """Return the gateway for an account. Raises TypeError for an unknown type of account."""
    for sort, gateway in _GATEWAYS.items():
        if isinstance(seller, sort):
            return gateway(seller)
    raise TypeError(f"{type(seller).__name__} is not an account at a payment provider")
