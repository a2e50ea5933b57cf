"""The settings of the payment providers, with the terms that each provider's own pages use.

Risks: a test payment counts as a real one, or a provider gets a webhook address that it cannot
reach. Therefore the key itself or a separate variable says whether payments are live, and a server
on loopback passes no webhook address to providers.
"""

import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from flows.errors import Unverified
from flows.origin import is_origin
from flows.payments.declared.declaration import DeclaredAccount, ProviderDeclaration
from flows.payments.gateway import MerchantAccount
from flows.payments.mollie.gateway import MollieAccount, mollie
from flows.payments.paypal.gateway import PayPalAccount, paypal
from flows.payments.registry import BUILT_IN
from flows.payments.stripe.gateway import StripeAccount, stripe
from flows.webhooks.certificates import WEBHOOK_ID
from flows.webhooks.signatures import Scheme, verify
from webapp.settings.parsers import each, live, words
from webapp.settings.table import Setting, Values

_ANY_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)  # any value works: the request has no signature


def _https_origin(word: str) -> str:
    try:
        if is_origin(word):
            return word
    except ValueError:
        pass
    raise ValueError(f"{word} is not an https origin.")


def _webhook_ids(text: str) -> tuple[str, ...]:
    ids = words(text)
    if not all(map(WEBHOOK_ID.fullmatch, ids)):
        raise ValueError("an id can have only letters and digits.")
    return ids


def _statement(text: str) -> str | None:
    """Check a text on a bank statement by the rules that card networks have for all providers."""
    if not text:
        return None
    if not re.fullmatch(r"(?=.*[A-Za-z])[ -~]{5,22}", text) or re.search(r"[<>\\'\"]|^ | $", text):
        raise ValueError(
            "a text on a bank statement has 5 to 22 characters: letters without accents, digits, "
            "spaces and punctuation, at least one letter, and none of < > \\ ' \"."
        )
    return text


CLIENT_ID = Setting(
    name="ELICIT_{NAME}_CLIENT_ID",
    parse=str,
    says="the client id of your app at an account provider; {NAME} is in capitals, such as GITHUB",
)
CLIENT_SECRET = Setting(
    name="ELICIT_{NAME}_CLIENT_SECRET",
    parse=str,
    says="the client secret of your app at an account provider; for `private_key_jwt` the private "
    "key, as a JWK or PEM",
)
STRIPE_KEY = Setting(
    name="ELICIT_STRIPE_KEY",
    parse=str,
    says="Stripe's secret key; a test key charges nothing, and the pages say so",
)
STRIPE_SIGNS = Setting(
    name="ELICIT_STRIPE_WEBHOOK_SECRET",
    parse=words,
    says="Stripe's webhook signing secret; during a rotation several, separated by commas",
)
PAYPAL_ID = replace(
    CLIENT_ID.of("paypal"),
    says="the client id of a REST app at PayPal, for payments by PayPal (experimental)",
)
PAYPAL_SECRET = replace(CLIENT_SECRET.of("paypal"), says="the client secret of this REST app")
PAYPAL_LIVE = Setting(
    name="ELICIT_PAYPAL_LIVE",
    parse=live,
    default="0",
    says="`1`: the app is live and takes real money; `0`: it is an app in PayPal's sandbox",
)
PAYPAL_WEBHOOKS = Setting(
    name="ELICIT_PAYPAL_WEBHOOK_ID",
    parse=_webhook_ids,
    says="the id of the webhook at PayPal: if set, the server rejects webhooks without a valid "
    "signature by PayPal's certificate; several, separated by commas",
)
MOLLIE_KEY = Setting(
    name="ELICIT_MOLLIE_KEY",
    parse=str,
    says="Mollie's API key, for payments by Mollie (experimental); a key that begins with `test_` "
    "charges nothing",
)
KEY = Setting(
    name="ELICIT_{NAME}_KEY",
    parse=str,
    says="your API key at a declared payment provider, such as ACME",
)
SIGNS = Setting(
    name="ELICIT_{NAME}_WEBHOOK_SECRET",
    parse=words,
    says="the provider's webhook signing secret; several, separated by commas",
)
LIVE = Setting(
    name="ELICIT_{NAME}_LIVE",
    parse=live,
    default="0",
    says="`1`: the key takes real money; `0`: it is a key of the provider's test mode",
)
ORIGINS = Setting(
    name="ELICIT_{NAME}_CHECKOUT_ORIGINS",
    parse=each(_https_origin),
    says="further origins of the provider's payment pages, separated by commas",
)
STATEMENT = Setting(
    name="ELICIT_{NAME}_STATEMENT",
    parse=_statement,
    says="the text on the person's bank statement, as your account at the payment provider has it; "
    "the payment page shows it. {NAME} is STRIPE, PAYPAL, MOLLIE or your own provider",
)
NEED = Setting(
    name="ELICIT_{NAME}_{NEED}",
    parse=str,
    says="a further setting of a declared payment provider; `needs` in the provider's table in "
    "`elicit.toml` names it: [your own provider](../how-to/providers.md#the-provider)",
)
PAYMENTS = (
    *(CLIENT_ID, CLIENT_SECRET, STRIPE_KEY, STRIPE_SIGNS, PAYPAL_ID, PAYPAL_SECRET, PAYPAL_LIVE),
    *(PAYPAL_WEBHOOKS, MOLLIE_KEY, KEY, SIGNS, LIVE, ORIGINS, STATEMENT, NEED),
)
OF_ACCOUNTS = (CLIENT_ID, CLIENT_SECRET)
OF_DECLARED = (KEY, SIGNS, LIVE, ORIGINS, STATEMENT)
# Providers that earlier versions supported, with the sentence for their old settings.
_FORMER: Mapping[str, str] = {
    "adyen": "Adyen was removed from this server, and elicit.toml cannot declare it",
    **{
        name: f"{label} does not come with this server any more; copy the "
        f"table in examples/payments/{name}.toml to elicit.toml"
        for name, label in (
            ("coinbase", "Coinbase Commerce"),
            ("lemon_squeezy", "Lemon Squeezy"),
            ("paddle", "Paddle"),
            ("polar", "Polar"),
            ("square", "Square"),
        )
    },
}


def former(declared: Container[str]) -> Mapping[str, str]:
    """Map the variable prefix of each removed provider to a sentence that explains the removal."""
    return {f"ELICIT_{name.upper()}_": why for name, why in _FORMER.items() if name not in declared}


def names_of(declared: Mapping[str, ProviderDeclaration]) -> Iterator[str]:
    """Yield the variables of declared providers, and the STATEMENT variables of built-in ones."""
    yield from (STATEMENT.of(name).name for name in BUILT_IN)
    for name, declaration in declared.items():
        yield from (row.of(name).name for row in OF_DECLARED)
        yield from (_need(declaration, need).name for need in declaration.needs)


def read_merchant_accounts(
    values: Values,
    *,
    url: str | None,
    credentials: Mapping[str, tuple[str, str]],
    declared: Mapping[str, ProviderDeclaration],
) -> Mapping[str, MerchantAccount]:
    """Return the accounts, in order of preference for tools that name no provider.

    `url` is where providers reach us, or None. `credentials` maps a provider's name to its client
    id and secret, whose problems are already reported. `declared` are the operator's providers.
    """
    found = (
        _stripe(values),
        _paypal(values, pair=credentials.get("paypal")),
        _mollie(values, url=url),
        *(_declared(values, one) for one in declared.values()),
    )
    sellers = {seller.name: seller for seller in found if seller is not None}
    for name in (*sorted(BUILT_IN), *declared):
        row = STATEMENT.of(name)
        statement = values.read(row)
        if statement is not None and name in sellers:
            try:
                sellers[name] = replace(sellers[name], statement=statement)
            except ValueError as error:
                values.problems.append(f"{row.name}: {error}")
        elif statement is not None and not any(
            f"ELICIT_{name.upper()}_" in problem for problem in values.problems
        ):
            values.problems.append(f"{row.name}: set, but {name} is not set up for payments.")
    return sellers


def _stripe(values: Values) -> StripeAccount | None:
    key, secrets = values.read(STRIPE_KEY), values.read(STRIPE_SIGNS)
    if key and secrets:
        try:
            return stripe(key, secrets)
        except ValueError as error:
            values.problems.append(f"{STRIPE_KEY.name}: {error}")
    elif key or secrets:
        missing, present = (STRIPE_SIGNS, STRIPE_KEY) if key else (STRIPE_KEY, STRIPE_SIGNS)
        values.lack(missing.name, present=present.name)
    return None


def _paypal(values: Values, *, pair: tuple[str, str] | None) -> PayPalAccount | None:
    ids, is_live = values.read(PAYPAL_WEBHOOKS), values.read(PAYPAL_LIVE)
    if pair is None:
        # If only the client id or only the secret is missing, the caller already reported it.
        named = (PAYPAL_ID, PAYPAL_SECRET, PAYPAL_LIVE, PAYPAL_WEBHOOKS)
        is_set = [row for row in named if values.text(row)]
        if is_set and is_set[0] not in (PAYPAL_ID, PAYPAL_SECRET):
            values.problems.append(f"{PAYPAL_ID.name}: not set, and {is_set[0].name} is.")
        return None
    try:
        return paypal(*pair, is_live=is_live, webhook_ids=ids)
    except ValueError as error:
        values.problems.append(f"{PAYPAL_ID.name}: {error}")
        return None


def _mollie(values: Values, *, url: str | None) -> MollieAccount | None:
    key = values.read(MOLLIE_KEY)
    if not key:
        return None
    try:
        return mollie(key, webhook_url=None if url is None else f"{url}/webhooks/mollie")
    except ValueError as error:
        values.problems.append(f"{MOLLIE_KEY.name}: {error}")
        return None


def _declared(values: Values, declaration: ProviderDeclaration) -> DeclaredAccount | None:
    """Return the account of a declared provider, from ELICIT_{NAME}_KEY and its other settings."""
    name = declaration.name
    key_row, signs, live_row, origins_row = (
        KEY.of(name),
        SIGNS.of(name),
        LIVE.of(name),
        ORIGINS.of(name),
    )
    needs = {need: _need(declaration, need) for need in declaration.needs}
    rows: tuple[Setting[Any], ...] = (key_row, signs, live_row, origins_row, *needs.values())
    is_set = [row for row in rows if values.text(row)]
    if not is_set:
        return None
    problems, label = values.problems, declaration.label
    before = len(problems)
    problems += [
        f"{row.name}: not set, and {is_set[0].name} is."
        for row in (key_row, signs)
        if row not in is_set
    ]
    key, secrets = values.read(key_row), values.read(signs)
    if not key.isascii() or not key.isprintable() or " " in key:
        problems.append(f"{key_row.name}: this is not a key of {label}.")
    if not all(_is_secret(declaration.scheme, secret) for secret in secrets):
        problems.append(f"{signs.name}: this is not a signing secret of {label}.")
    known_problems = len(problems)
    is_live = values.read(live_row)
    if not is_live and declaration.test_api is None and len(problems) == known_problems:
        problems.append(f"{live_row.name}: {label} has no test mode. Set it to 1, for real money.")
    origins = values.read(origins_row)
    if len(problems) == before and not (*declaration.origins(is_live=is_live), *origins):
        problems.append(f"{origins_row.name}: required: the origins of {label}'s payment pages.")
    problems += [
        f"{needs[need].name}: not set, and {label} needs it."
        for need in declaration.needed(is_live=is_live)
        if needs[need] not in is_set
    ]
    if len(problems) > before:
        return None
    try:
        return DeclaredAccount(
            declaration=declaration,
            secret=key,
            webhook_secrets=secrets,
            is_live=is_live,
            own={need: values.text(row) for need, row in needs.items() if row in is_set},
            more_checkout_origins=origins,
        )
    except ValueError as error:
        named = ", ".join(row.name for row in needs.values())
        problems.append(f"{named or key_row.name}: {error}")
        return None


def _need(declaration: ProviderDeclaration, need: str) -> Setting[str]:
    return replace(NEED, name=NEED.name.replace("{NEED}", need.upper())).of(declaration.name)


def _is_secret(scheme: Scheme, secret: str) -> bool:
    """Return True if the secret is usable. One unusable secret makes every verification fail."""
    try:
        verify(
            scheme, body=b"", headers=[], secrets=[secret], now=_ANY_TIME, url="https://x.example"
        )
    except Unverified as error:
        return error.reason != "no_secret"
    return False
