"""The operator's account at Stripe, and the conversion of amounts.

Risks: a price that is a hundred times too high. Stripe counts a few currencies differently from ISO
4217, so all amounts are converted in this module.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from flows.errors import InvalidQuestion
from flows.payments.gateway import fits_a_header
from flows.payments.money import Money, checked_units
from flows.webhooks.signatures import Scheme

STRIPE_API = "https://api.stripe.com"
STRIPE_CHECKOUT = "https://checkout.stripe.com"

# Factors (multiplier, divisor) from ISO 4217 minor units to Stripe's units, where they differ
# (docs.stripe.com/currencies, "Special cases" and "Zero-decimal currencies").
_SCALES: Mapping[str, tuple[int, int]] = {"ISK": (100, 1), "UGX": (100, 1), "MGA": (1, 100)}
_LAST_DIGIT_IS_ZERO = frozenset({"BHD", "JOD", "KWD", "OMR", "TND"})


STRIPE: Final = Scheme(
    name="stripe",
    signature_header="stripe-signature",
    signature_label="v1=",
    separator=",",
    time_label="t=",
    message="{ts}.{body}",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StripeAccount:
    """The account. `checkout_origins` are its payment pages' origins; pages show the first."""

    name: str
    label: str
    api: str
    checkout_origins: tuple[str, ...]
    key: str = field(repr=False)
    webhook_secrets: tuple[str, ...] = field(repr=False)
    is_live: bool
    account: str | None = None


def stripe(
    key: str,
    webhook_secrets: Sequence[str],
    *,
    account: str | None = None,
    own_checkout_origins: Sequence[str] = (),
) -> StripeAccount:
    """Return a Stripe account in live or test mode, according to the key.

    `own_checkout_origins` are custom checkout domains. Raises ValueError if the key is not a secret
    key, or a webhook secret is empty.
    """
    is_live = key.startswith(("sk_live_", "rk_live_"))
    if not (is_live or key.startswith(("sk_test_", "rk_test_"))) or not fits_a_header(key):
        raise ValueError(
            "The key is not a secret key of Stripe: secret keys begin with sk_ or rk_."
        )
    return StripeAccount(
        name="stripe",
        label="Stripe",
        api=STRIPE_API,
        checkout_origins=(*own_checkout_origins, STRIPE_CHECKOUT),
        key=key,
        webhook_secrets=_none_empty(webhook_secrets),
        is_live=is_live,
        account=account,
    )


def sandbox_stripe(url: str, key: str, webhook_secrets: Sequence[str]) -> StripeAccount:
    """Return an account for a sandbox of Stripe under `url`.

    Never live.

    Raises ValueError for a live or invalid key, or an empty webhook secret.
    """
    if key.startswith(("sk_live_", "rk_live_")) or not fits_a_header(key):
        raise ValueError("The key of a sandbox must be a test key, not a live key.")
    api = url.rstrip("/")
    scheme, _, rest = api.partition("://")
    return StripeAccount(
        name="stripe",
        label="Stripe (sandbox)",
        api=api,
        checkout_origins=(f"{scheme}://{rest.partition('/')[0]}",),
        key=key,
        webhook_secrets=_none_empty(webhook_secrets),
        is_live=False,
    )


def charge_amount(price: Money) -> int:
    """Convert a price to Stripe's units. Raises InvalidQuestion if it cannot be charged."""
    multiplier, divisor = _scale(price.currency)
    step = 10 if price.currency in _LAST_DIGIT_IS_ZERO else divisor
    if price.minor_units <= 0:
        raise InvalidQuestion(f"A price of {price} cannot be paid: it must be above zero.")
    if price.minor_units % step:
        raise InvalidQuestion(f"{price} has more decimals than can be charged in this currency.")
    return price.minor_units * multiplier // divisor


def charged(amount: int, currency: str) -> Money:
    """Convert an amount of Stripe's to Money. Raises InvalidQuestion."""
    return Money.from_minor_units(charged_units(amount, currency), currency)


def charged_units(amount: int, currency: str) -> int:
    """Convert an amount of Stripe's to ISO 4217 minor units. Raises InvalidQuestion."""
    multiplier, divisor = _scale(currency)
    minor_units, rest = divmod(amount * divisor, multiplier)
    if rest:
        raise InvalidQuestion(f"{amount} is not a valid amount in {currency}.")
    return checked_units(minor_units, currency)


def _scale(currency: str) -> tuple[int, int]:
    return _SCALES.get(currency, (1, 1))


def _none_empty(secrets: Sequence[str]) -> tuple[str, ...]:
    if any(not secret.strip() for secret in secrets):
        raise ValueError(
            "A webhook secret is empty, so anybody could sign with it: set the signing secret."
        )
    return tuple(secrets)
