"""Sellers: the settings of the payment providers, each with the words of its own pages.

What could go wrong: test money taken for real money, or an address for webhooks that nobody
reaches. So whether it is live is what a key says of itself, or is said by a variable of its own;
and a server on loopback gives no provider an address.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from flows.errors import InvalidQuestion, Unverified
from flows.origin import is_origin
from flows.payments.declared.catalog import SELLERS
from flows.payments.declared.declaration import DeclaredAccount, ProviderDeclaration
from flows.payments.gateway import MerchantAccount
from flows.payments.mollie.gateway import mollie
from flows.payments.paypal.gateway import paypal
from flows.payments.stripe.account import stripe
from flows.webhooks.certificates import WEBHOOK_ID
from flows.webhooks.signatures import Scheme, verify
from webapp.settings.environment import words

_ANY_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)  # what is not signed has none
_PAYPAL_PAIR = ("ELICIT_PAYPAL_CLIENT_ID", "ELICIT_PAYPAL_CLIENT_SECRET")


def read_merchant_accounts(
    environment: Mapping[str, str],
    problems: list[str],
    *,
    url: str | None,
    credentials: Mapping[str, tuple[str, str]],
    declared: Mapping[str, ProviderDeclaration],
) -> Mapping[str, MerchantAccount]:
    """In the order in which one is chosen where a tool names none.

    `url` is where providers reach us, None where they cannot; `credentials` are a client id and
    secret at a provider, by its name, their problems told already. `declared` are an operator's.
    """
    found = (
        _stripe(environment, problems),
        _paypal(environment, problems, pair=credentials.get("paypal")),
        _mollie(environment, problems, url=url),
        *(_declared(environment, problems, one) for one in {**SELLERS, **declared}.values()),
    )
    return {seller.name: seller for seller in found if seller is not None}


def _stripe(environment: Mapping[str, str], problems: list[str]) -> MerchantAccount | None:
    key = environment.get("ELICIT_STRIPE_KEY", "").strip()
    secrets = words(environment, "ELICIT_STRIPE_WEBHOOK_SECRET")
    if not key and not secrets:
        return None
    if not key or not secrets:
        missing = "KEY" if not key else "WEBHOOK_SECRET"
        problems.append(f"ELICIT_STRIPE_{missing}: not set, and the other one is.")
        return None
    try:
        return stripe(key, secrets)
    except ValueError as error:
        problems.append(f"ELICIT_STRIPE_KEY: {error}")
        return None


def _paypal(
    environment: Mapping[str, str], problems: list[str], *, pair: tuple[str, str] | None
) -> MerchantAccount | None:
    ids = tuple(words(environment, "ELICIT_PAYPAL_WEBHOOK_ID"))
    live = environment.get("ELICIT_PAYPAL_LIVE", "").strip()
    if live not in ("", "0", "1"):
        problems.append("ELICIT_PAYPAL_LIVE: it is 1 for real money, or 0 for PayPal's sandbox.")
    if not all(map(WEBHOOK_ID.fullmatch, ids)):
        problems.append("ELICIT_PAYPAL_WEBHOOK_ID: an id has letters and digits only.")
        return None
    if pair is None:
        # Where only one of the two is missing, it was named already.
        named = (*_PAYPAL_PAIR, "ELICIT_PAYPAL_LIVE", "ELICIT_PAYPAL_WEBHOOK_ID")
        is_set = [name for name in named if environment.get(name, "").strip()]
        if is_set and is_set[0] not in _PAYPAL_PAIR:
            problems.append(f"{_PAYPAL_PAIR[0]}: not set, and {is_set[0]} is.")
        return None
    try:
        return paypal(*pair, is_live=live == "1", webhook_ids=ids)
    except ValueError as error:
        problems.append(f"{_PAYPAL_PAIR[0]}: {error}")
        return None


def _mollie(
    environment: Mapping[str, str], problems: list[str], *, url: str | None
) -> MerchantAccount | None:
    key = environment.get("ELICIT_MOLLIE_KEY", "").strip()
    if not key:
        return None
    try:
        return mollie(key, webhook_url=None if url is None else f"{url}/webhooks/mollie")
    except (InvalidQuestion, ValueError) as error:
        problems.append(f"ELICIT_MOLLIE_KEY: {error}")
        return None


def _declared(
    environment: Mapping[str, str], problems: list[str], declaration: ProviderDeclaration
) -> MerchantAccount | None:
    """Of a declared provider, for its ELICIT_{NAME}_KEY and what it needs besides."""
    prefix, label = f"ELICIT_{declaration.name.upper()}", declaration.label
    names = ("key", "webhook_secret", "live", "checkout_origins", *declaration.needs)
    said = {name: environment.get(f"{prefix}_{name.upper()}", "").strip() for name in names}
    is_set = [f"{prefix}_{name.upper()}" for name, value in said.items() if value]
    if not is_set:
        return None
    key, is_live = said["key"], said["live"] == "1"
    secrets = tuple(words(environment, f"{prefix}_WEBHOOK_SECRET"))
    origins = tuple(words(environment, f"{prefix}_CHECKOUT_ORIGINS"))
    found: list[str] = []
    found += [
        f"{prefix}_{name.upper()}: not set, and {is_set[0]} is."
        for name in ("key", "webhook_secret")
        if not said[name]
    ]
    if key and (not key.isascii() or not key.isprintable() or " " in key):
        found.append(f"{prefix}_KEY: this is no key of {label}.")
    if not all(_is_secret(declaration.scheme, secret) for secret in secrets):
        found.append(f"{prefix}_WEBHOOK_SECRET: this is nothing that {label} signs with.")
    if said["live"] not in ("", "0", "1"):
        found.append(f"{prefix}_LIVE: it is 1 for real money, or 0 for {label}'s test mode.")
    elif not is_live and declaration.test_api is None:
        found.append(f"{prefix}_LIVE: {label} has no test mode; it is 1, for real money.")
    found += [
        f"{prefix}_CHECKOUT_ORIGINS: {origin} is no https origin."
        for origin in origins
        if not _is_origin(origin)
    ]
    if not found and not (*declaration.origins(is_live=is_live), *origins):
        found.append(f"{prefix}_CHECKOUT_ORIGINS: needed, where {label}'s payment pages stand.")
    needed = declaration.needed(is_live=is_live)
    found += [
        f"{prefix}_{name.upper()}: not set, and {label} needs it."
        for name in needed
        if not said[name]
    ]
    problems += found
    if found:
        return None
    try:
        return DeclaredAccount(
            declaration=declaration,
            secret=key,
            webhook_secrets=secrets,
            is_live=is_live,
            own={name: said[name] for name in declaration.needs if said[name]},
            more_checkout_origins=origins,
        )
    except ValueError as error:
        needs = ", ".join(f"{prefix}_{name.upper()}" for name in declaration.needs)
        problems.append(f"{needs or prefix}: {error}")
        return None


def _is_secret(scheme: Scheme, secret: str) -> bool:
    """Whether a delivery can be verified with it; one that cannot stops all the others."""
    try:
        verify(
            scheme, body=b"", headers=[], secrets=[secret], now=_ANY_TIME, url="https://x.example"
        )
    except Unverified as error:
        return error.reason != "no_secret"
    return False


def _is_origin(text: str) -> bool:
    try:
        return is_origin(text)
    except InvalidQuestion:
        return False
