"""The requests of the verbs `oauth`, `api_key` and `payment`.

Risks: two different questions look alike. Everything that a person sees, and the source of the
answer, is therefore among the question's facts (see `Request.facts`). A payment of 9 EUR never
answers a question for 90 EUR.
"""

from dataclasses import dataclass, field

import msgspec

from flows.elicitation.states import Json
from flows.errors import InvalidQuestion
from flows.oauth.provider import NAME, SCOPE, Provider
from flows.payments.money import Money
from flows.payments.receipt import Payment, Receipt
from flows.question import Resources

WHAT_AT_MOST = 250
REASON_AT_MOST = 500
ACCOUNT_AT_MOST = 256
SCOPES_AT_MOST = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountRequest:
    """A request to connect an account. `provider` may be the name of a declared provider.

    `tenant` is the host of the wanted tenant, for a provider with a host for each customer.
    `again`: also ask for scopes that the person did not grant before.
    """

    kind: str = field(default="oauth", init=False, repr=False, compare=False)
    provider: Provider | str
    scopes: tuple[str, ...]
    account: str | None = None
    tenant: str | None = None
    reason: str | None = None
    again: bool = False

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise InvalidQuestion(f"{self.name!r} is not a valid name of a provider.")
        for scope in self.scopes:
            if not SCOPE.fullmatch(scope):
                raise InvalidQuestion(f"{scope!r} is not a valid scope (RFC 6749, 3.3).")
        if sum(map(len, self.scopes)) > SCOPES_AT_MOST:
            raise InvalidQuestion(
                f"All scopes together must not have more than {SCOPES_AT_MOST} characters."
            )
        if self.account is not None and not is_account_name(self.account):
            raise InvalidQuestion(
                f"account must be the name or id of an account, of 1 to {ACCOUNT_AT_MOST} "
                "characters. Leave it out to accept any account."
            )
        if isinstance(self.provider, Provider) and self.tenant is not None:
            self.provider.for_tenant(self.tenant)  # raises for an invalid tenant
        has_keys = isinstance(self.provider, Provider) and self.provider.key is not None
        if isinstance(self.provider, Provider) and has_keys != isinstance(self, ApiKeyRequest):
            raise InvalidQuestion(wrong_verb(self.provider))
        if self.reason is not None and not 1 <= len(self.reason) <= REASON_AT_MOST:
            raise InvalidQuestion(f"reason must have 1 to {REASON_AT_MOST} characters.")

    @property
    def message(self) -> str:
        label = self.provider if isinstance(self.provider, str) else self.provider.label
        return f"Connect {label}" + (f": {self.reason}" if self.reason else "")

    @property
    def name(self) -> str:
        return self.provider if isinstance(self.provider, str) else self.provider.name

    def facts(self) -> Json:
        return {
            "provider": self.name,
            "scopes": sorted(self.scopes),
            "account": self.account,
            "reason": self.reason,
            # Add these facts only if they are set: questions of earlier versions do not have them.
            **({"again": True} if self.again else {}),
            **({} if self.tenant is None else {"tenant": self.tenant}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKeyRequest(AccountRequest):
    """A request to connect an account with an API key, or with a user name and a password."""

    kind: str = field(default="api_key", init=False, repr=False, compare=False)
    scopes: tuple[str, ...] = field(default=(), init=False)
    again: bool = field(default=False, init=False)


def wrong_verb(provider: Provider) -> str:
    """Return the advice to use the other verb: `oauth` or `api_key`."""
    if provider.key is None:
        return f"{provider.label} has no API keys in its declaration: ask with elicit.oauth."
    return f"{provider.label} has API keys instead of OAuth: ask with elicit.api_key."


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentRequest:
    """A request to pay. Without `seller`, the server's only provider is used."""

    kind: str = field(default="payment", init=False, repr=False, compare=False)
    price: Money
    what: str
    seller: str | None = None
    once: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.price, Money):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidQuestion('The price must be a Money, such as Money("9.00", "EUR").')
        if self.price.minor_units <= 0:  # the provider checks other limits
            raise InvalidQuestion(f"A price of {self.price} cannot be paid: it must be above zero.")
        if not self.what.strip() or len(self.what) > WHAT_AT_MOST:
            raise InvalidQuestion(
                f"what must say, in 1 to {WHAT_AT_MOST} characters, what the person pays for."
            )
        if not self.what.isprintable():
            wrong = next(sign for sign in self.what if not sign.isprintable())
            raise InvalidQuestion(
                f"what contains the character U+{ord(wrong):04X}, which pages cannot show. Write "
                "what the person pays for on one line, without invisible characters."
            )
        if self.seller is not None and not NAME.fullmatch(self.seller):
            raise InvalidQuestion(f"{self.seller!r} is not a valid name of a provider.")

    @property
    def message(self) -> str:
        return f"Pay {self.price} for {self.what}"

    def facts(self) -> Json:
        return {
            "amount": self.price.minor_units,
            "currency": self.price.currency,
            "what": self.what,
            "seller": self.seller,
            "once": self.once,
        }


def is_account_name(account: object) -> bool:
    """Return True if `account`, which a model may have written, is a valid account name."""
    return (
        isinstance(account, str) and 1 <= len(account) <= ACCOUNT_AT_MOST and account.isprintable()
    )


def receipt_of(content: Json, resources: Resources) -> Receipt:
    """Return the receipt of a stored `Payment`."""
    return Receipt(msgspec.convert(content, Payment), resources=resources)
