"""The declaration of a payment provider: its requests, and where values are in its responses.

Risks: because of a wrong declaration, the server accepts a payment that does not belong to the
question. A declaration therefore only says where values are. flows.payments.gateway compares the
values with the question, as for every other provider.

The defaults describe an API of our own design. A provider that implements that API only needs to
declare its addresses.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from flows.elicitation.states import Json
from flows.errors import InvalidQuestion
from flows.oauth.declaration_checks import LABEL_AT_MOST
from flows.oauth.provider import NAME
from flows.origin import is_origin
from flows.payments.checkout_page import PACE
from flows.payments.declared.mapping import (
    DEFAULT_FETCHED,
    DEFAULT_OPENED,
    DEFAULT_WEBHOOK,
    Holding,
    Reading,
)
from flows.payments.declared.templates import fill_text, names_in, place_faults
from flows.payments.gateway import fits_a_header
from flows.payments.receipt import Dispute, RefundStatus
from flows.webhooks.signatures import STANDARD_WEBHOOKS, Scheme

LIFE_AT_MOST: Final = timedelta(days=7)
# The names that templates can use, in addition to the declaration's `needs`.
ASKED: Final = frozenset(
    {"minor", "decimal", "currency", "currency_lower", "what", "reference", "key"}
    | {"digest", "return_url", "cancel_url", "expires_at"}
)
NEEDED: Final = ("created.states", "fetched.states", "told.states", "event_type", "refund_id")
SENT: Final = frozenset({"reference", "key", "digest"})
KNOWN: Final = frozenset({"session", "handle"})
GIVEN_BACK: Final = frozenset(
    {"payment", "minor", "decimal", "currency", "currency_lower", "reason", "key", "digest"}
)
_CALL = re.compile(r"(GET|POST|PUT|PATCH|DELETE) (/[!-~]*)")
_OWN = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9_.-]{1,128}")  # the value can be part of a path
_OWN_NAME = re.compile(r"[a-z][a-z_]{0,31}")
_NO_PLACES = frozenset({"unit", "call"})
_HEADER = re.compile(r"[A-Za-z0-9-]{1,64}")


def _checkout() -> Json:
    return {
        "reference": "{reference}",
        "amount": "{minor}",
        "currency": "{currency}",
        "description": "{what}",
        "return_url": "{return_url}",
        "cancel_url": "{cancel_url}",
    }


def _refund() -> Json:
    return {"amount": "{minor}", "currency": "{currency}", "reason": "{reason}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderDeclaration:
    """The declaration of one payment provider.

    - A call is a method and a path, such as "POST /v2/payments/{session}/cancel".
    - Names in braces in a template are replaced by values. A value that is only {minor} becomes a
      number, and a key whose value is missing is left out.
    - `needs`: names of further values that the operator's settings must contain. `account` is the
      name in `needs` whose value identifies the recipient of the money.
    - `news`: event types that report a later change of a paid payment.
    - `manage`: the page for manual refunds.
    - {digest}: a hash of {key} with 32 characters. Requests that create a session or a refund send
      the hash in the header that `idempotency` names.

    If the response to a refund request is lost, the server sends the request again. To prevent a
    second refund, the declaration needs an idempotency key in the header or in the body of the
    request, or a call that returns the amount refunded so far.
    """

    name: str
    label: str
    api: str
    checkout_origins: tuple[str, ...]
    test_api: str | None = None
    test_checkout_origins: tuple[str, ...] = ()
    headers: tuple[tuple[str, str], ...] = (("Authorization", "Bearer {secret}"),)
    needs: tuple[str, ...] = ()
    account: str | None = None
    currencies: tuple[str, ...] = ()
    unit_digits: int | None = None  # decimal places of {decimal}, if not those of ISO 4217
    text_minor: bool = False  # {minor} is sent as text
    what_at_most: int = 255
    life: timedelta = timedelta(minutes=30)

    create: str = "POST /checkouts"
    create_body: Json = field(default_factory=_checkout)
    idempotency: str | None = "Idempotency-Key"
    created: Reading = DEFAULT_OPENED
    fetch: str | None = "GET /checkouts/{session}"
    fetched: Reading = DEFAULT_FETCHED
    pace: tuple[timedelta, ...] = PACE  # polling intervals if no webhook reaches us
    close: str | None = "POST /checkouts/{session}/close"
    close_body: Json = None
    refund: str | None = "POST /payments/{payment}/refunds"
    refund_body: Json = field(default_factory=_refund)
    holding: Holding | None = None  # fetched before a refund; if None, `fetched` is used
    refund_id: str = "id"
    refund_states: Mapping[str, RefundStatus] = field(
        default_factory=lambda: {f"state={status}": status for status in RefundStatus}
    )
    trouble: str | None = "code"
    # error codes for an idempotency key that was used for another request
    key_used: tuple[str, ...] = ()
    manage: str | None = None

    scheme: Scheme = STANDARD_WEBHOOKS
    event_id: str | None = None
    event_type: str = "type"
    events: tuple[str, ...] = ("checkout.updated",)
    settles: bool = True
    told: Reading = DEFAULT_WEBHOOK
    news: Mapping[str, Dispute | None] = field(default_factory=dict[str, Dispute | None])

    def __post_init__(self) -> None:
        faults = [*self._name_faults(), *self._path_faults()]
        faults += [*self._call_faults(), *self._pointer_faults()]
        if faults:
            raise InvalidQuestion("\n".join(faults))

    def needed(self, *, is_live: bool) -> tuple[str, ...]:
        """Return the needs for this mode.

        In test mode, leave out the needs that only the live address uses.
        """
        if is_live:
            return self.needs
        holding = None if self.holding is None else self.holding.call
        used = {self.account} | names_in(
            [
                self.test_api,
                *(value for _, value in self.headers),
                *(self.create, self.create_body, self.fetch),
                *(self.close, self.close_body),
                *(self.refund, self.refund_body, holding),
            ]
        )
        unused = names_in(self.api) - used
        return tuple(name for name in self.needs if name not in unused)

    @property
    def has_refund_key(self) -> bool:
        """True if two simultaneous requests for the same refund make only one refund."""
        has_key = names_in(self.refund_body) & {"key", "digest"}
        return self.idempotency is not None or bool(has_key)

    @property
    def refunds_parts(self) -> bool:
        """True if the server can refund a part of a payment.

        For that, a refund request must have an idempotency key and an amount, and the provider must
        count refunds in the same way as prices.
        """
        names_amount = bool(names_in(self.refund_body) & {"minor", "decimal"})
        counts_alike = self.holding is None or self.holding.left is None
        is_possible = self.refund is not None and names_amount and counts_alike
        return is_possible and self.has_refund_key

    @property
    def reports_refunds(self) -> bool:
        """True if `fetch` reports refunds, and uses {session} but not {handle}."""
        names = names_in(self.fetch)
        is_asked = "session" in names and "handle" not in names
        return is_asked and self.fetched.refunded is not None

    def origins(self, *, is_live: bool) -> tuple[str, ...]:
        return self.checkout_origins if is_live else self.test_checkout_origins

    def _name_faults(self) -> list[str]:
        faults: list[str] = []
        if not NAME.fullmatch(self.name):
            faults.append("name: must be 1 to 32 characters (a-z, 0-9, _) and begin with a letter.")
        if not self.label.strip() or not self.label.isprintable():
            faults.append("label: must be a printable name, which people see.")
        if len(self.label) > LABEL_AT_MOST:
            faults.append(f"label: must not be longer than {LABEL_AT_MOST} characters.")
        return faults

    def _path_faults(self) -> list[str]:
        faults = [
            f"needs: {name!r} is reserved or not a valid name; choose another name."
            for name in self.needs
            if not _OWN_NAME.fullmatch(name) or name in ASKED | KNOWN | GIVEN_BACK | {"secret"}
        ]
        if self.account is not None and self.account not in self.needs:
            faults.append("account: must be one of `needs`.")
        for key, api in (("api", self.api), ("test_api", self.test_api)):
            unknown = names_in(api) - {*self.needs}
            faults += [f"{key}: {_nothing(name)}" for name in sorted(unknown)]
            example = fill_text(api or "", dict.fromkeys({*self.needs, *unknown}, "example"))
            origin = "/".join(example.split("/")[:3])
            if api is not None and (not _is_origin(origin) or api.endswith("/")):
                faults.append(f"{key}: must be an https address without a slash at its end.")
        faults += [
            f"checkout_origins: {origin!r} is not an https origin."
            for origin in (*self.checkout_origins, *self.test_checkout_origins)
            if not _is_origin(origin)
        ]
        if not timedelta() < self.life <= LIFE_AT_MOST:
            faults.append("life: must be longer than zero and at most seven days.")
        if not self.pace or min(self.pace) < timedelta(seconds=1):
            faults.append("pace: must be a list of pauses of at least one second.")
        if self.what_at_most < 1:
            faults.append("what_at_most: must be at least 1.")
        if self.unit_digits is not None and self.unit_digits not in range(7):
            faults.append("unit_digits: must be from 0 to 6.")
        return faults

    def _call_faults(self) -> list[str]:
        own = frozenset(self.needs)
        holding = None if self.holding is None else self.holding.call
        allowed = {
            "create": (self.create, SENT),
            "create_body": (self.create_body, ASKED),
            "fetch": (self.fetch, KNOWN),
            "close": (self.close, KNOWN),
            "close_body": (self.close_body, KNOWN),
            "refund": (self.refund, GIVEN_BACK),
            "refund_body": (self.refund_body, GIVEN_BACK),
            "holding": (holding, frozenset({"payment"})),
        }
        faults: list[str] = []
        for key, (template, names) in allowed.items():
            unknown = names_in(template) - names - own
            faults += [f"{key}: {_nothing(name)}" for name in sorted(unknown)]
        calls = {"create": self.create, "fetch": self.fetch, "close": self.close}
        for key, call in {**calls, "refund": self.refund, "holding": holding}.items():
            if call is not None and not _CALL.fullmatch(call):
                faults.append(f'{key}: must be a method and a path, such as "POST /checkouts".')
        if self.refund and not (self.has_refund_key or self.holding or self.reports_refunds):
            faults.append(
                "refund: a repeated refund request must not refund twice. Set `idempotency`, or"
                " `holding`, or `fetched.refunded` with {session} in `fetch`."
            )
        if not self.settles and self.fetch is None:
            faults.append("settles: if the webhook does not settle the payment, set `fetch`.")
        for header, template in (*self.headers, (self.idempotency or "Idempotency-Key", "")):
            if not _HEADER.fullmatch(header) or not (template.isascii() and template.isprintable()):
                faults.append(f"headers: {header!r} is not a valid header.")
            unknown = names_in(template) - own - {"secret"}
            faults += [f"headers.{header}: {_nothing(name)}" for name in sorted(unknown)]
        return faults

    def _pointer_faults(self) -> list[str]:
        faults: list[str] = []
        names = ("event_id", "event_type", "refund_id", "refund_states", "trouble")
        places: dict[str, str | Mapping[str, object] | None] = {
            name: getattr(self, name) for name in names
        }
        for part in ("created", "fetched", "told", "holding"):
            reading: Reading | Holding | None = getattr(self, part)
            keys = () if reading is None else reading.__dataclass_fields__
            places |= {
                f"{part}.{key}": getattr(reading, key) for key in keys if key not in _NO_PLACES
            }
            if isinstance(reading, Reading) and reading.has_own_session_ids:
                del places[f"{part}.session"]
        faults += [f"{name}: required." for name in NEEDED if places[name] is None]
        return faults + place_faults(places)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredAccount:
    """The operator's account at a declared provider.

    `own` maps each name in the declaration's `needs` to its value.
    """

    declaration: ProviderDeclaration
    secret: str = field(repr=False)
    webhook_secrets: tuple[str, ...] = field(default=(), repr=False)
    is_live: bool
    own: Mapping[str, str] = field(default_factory=dict[str, str])
    more_checkout_origins: tuple[str, ...] = ()
    statement: str | None = None

    def __post_init__(self) -> None:
        declared = self.declaration
        missing = [n for n in declared.needed(is_live=self.is_live) if n not in self.own]
        if missing:
            raise ValueError(f"{declared.label} needs {', '.join(missing)}.")
        if not all(map(_OWN.fullmatch, self.own.values())):
            raise ValueError(
                f"The settings for {declared.label} can contain only letters, digits, dots, dashes "
                "and underscores."
            )
        if not fits_a_header(self.secret):
            raise ValueError(f"The key is not a valid key of {declared.label}.")
        if not self.is_live and declared.test_api is None:
            raise ValueError(f"{declared.label} has no test mode.")
        if not self.checkout_origins or not all(map(_is_origin, self.checkout_origins)):
            raise ValueError(f"{declared.label} needs the origin of its payment pages.")

    @property
    def name(self) -> str:
        return self.declaration.name

    @property
    def label(self) -> str:
        return self.declaration.label

    @property
    def account(self) -> str | None:
        name = self.declaration.account
        return None if name is None else self.own[name]

    @property
    def api(self) -> str:
        test = None if self.is_live else self.declaration.test_api
        return fill_text(test or self.declaration.api, self.own)

    @property
    def checkout_origins(self) -> tuple[str, ...]:
        declared = self.declaration.origins(is_live=self.is_live)
        return (*declared, *self.more_checkout_origins)


def _nothing(name: str) -> str:
    return f"{{{name}}} is not allowed here."


def _is_origin(text: str) -> bool:
    try:
        return is_origin(text)
    except InvalidQuestion:
        return False
