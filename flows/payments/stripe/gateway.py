"""The gateway for Stripe Checkout: a hosted payment page. The formats are in `messages`.

Risks: a status is translated to a weaker one, or a repeated request differs from the first, so that
a person pays twice. The full request is therefore stored before it is sent, and one idempotency key
creates one session.

Another risk: a wrong setup is only noticed when the first person pays. The webhook endpoint can
have another address, be disabled or lack event types, and the key can lack a right. `examine`
therefore tests each right with a request that changes nothing: write rights are tested on an id
that does not exist.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Final
from urllib.parse import quote, urlencode

import httpx
import msgspec
from msgspec import Struct

from flows.elicitation.flow import RedirectContext, SetupFinding, SetupReport, Talk
from flows.elicitation.states import Attempt, Elicitation
from flows.errors import Failed
from flows.origin import written_origin
from flows.payments.checkout_page import PACE, HostedCheckout, return_urls, stored_request
from flows.payments.claims import ProviderClaim
from flows.payments.gateway import (
    CLOCKS_DIFFER,
    Notice,
    ProviderSession,
    fits_a_header,
    payment_of,
    terms_for,
)
from flows.payments.listing import SessionPage
from flows.payments.money import Money
from flows.payments.receipt import Payment, Refund, RefundChange
from flows.payments.responses import (
    KeyUsed,
    ProviderRefund,
    already_refunded,
    existing_or_rest,
    existing_refunds,
    part_refund_key,
    problem,
    refund_key,
    reported_changes,
    with_session,
)
from flows.payments.session import REFERENCE_KEY, StoredCheckout, terms_of
from flows.payments.stripe.messages import (
    DISPUTE_EVENTS,
    REFUND_EVENTS,
    REFUNDED,
    SETTLING_EVENTS,
    charge_amount,
    claims_in,
    code_of,
    is_key_used,
    notice_in,
    provider_session,
    read_refund,
    reference_in,
    refunds_in,
    same_session,
    session_in,
    sessions_in,
)
from flows.webhooks.signatures import Scheme

STRIPE_API = "https://api.stripe.com"
STRIPE_CHECKOUT = "https://checkout.stripe.com"
STRIPE_VERSION = "2026-10-28.endive"
LIFE_AT_LEAST = timedelta(minutes=30)
LIFE_AT_MOST = timedelta(hours=24)
REASON_AT_MOST = 500
_SESSIONS = "/v1/checkout/sessions"
_INTENTS = "/v1/payment_intents"
_REFUNDS = "/v1/refunds"
_DISPUTES = "/v1/disputes"
_WITH_CHARGE = urlencode({"expand[]": "payment_intent.latest_charge"})
EVENTS = SETTLING_EVENTS | DISPUTE_EVENTS | REFUND_EVENTS | {REFUNDED}
# The rights of a restricted key, as Stripe names them, and the request that tests each.
RIGHTS: Mapping[str, tuple[str, str]] = {
    "Checkout Sessions: write": ("POST", "/v1/checkout/sessions/cs_of_the_doctor/expire"),
    "PaymentIntents: read": ("GET", "/v1/payment_intents?limit=1"),
    "Charges: read": ("GET", "/v1/charges?limit=1"),
    "Refunds: write": ("POST", "/v1/refunds/re_of_the_doctor"),
    "Disputes: read": ("GET", "/v1/disputes?limit=1"),
}
# Rights that only `examine` uses; payments work without them.
RIGHTS_OF_THE_DOCTOR = ("Account: read", "Webhook Endpoints: read")
# A request that needs the same read rights as the fetch of a payment.
_EXPANDED = "/v1/checkout/sessions?limit=1&expand[]=data.payment_intent.latest_charge"
_REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_EVERYTHING = "*"
_KEYS = "https://dashboard.stripe.com/apikeys"
_KEY, _SECRET = "ELICIT_STRIPE_KEY", "ELICIT_STRIPE_WEBHOOK_SECRET"
_PAGE = "https://dashboard.stripe.com/webhooks"
_STATEMENT = re.compile(
    r"(?=[^*]*[A-Za-z])[^*\s][^*]{0,8}[^*\s]\* (?P<suffix>(?=.*[A-Za-z])[^*\s](?:[^*]*[^*\s])?)"
)


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
    """The operator's account at Stripe.

    `checkout_origins` are the origins of the payment pages. This server's pages show the first one.

    Stripe builds a card statement from the account's prefix, "* " and a suffix. The server sends
    the suffix of a `statement` such as "ACME* REPORTS". A text without "*" is not sent.
    """

    name: str
    label: str
    api: str
    checkout_origins: tuple[str, ...]
    key: str = field(repr=False)
    webhook_secrets: tuple[str, ...] = field(repr=False)
    is_live: bool
    account: str | None = None
    statement: str | None = None

    def __post_init__(self) -> None:
        if "*" in (self.statement or "") and self.statement_suffix is None:
            raise ValueError(
                "Write the text as Stripe does: the prefix of your account (2 to 10 characters), "
                "then an asterisk and a space, then a suffix, as in ACME* REPORTS. Both need a "
                "letter."
            )

    @property
    def statement_suffix(self) -> str | None:
        found = _STATEMENT.fullmatch(self.statement or "")
        return found and found["suffix"]


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

    The account is never in live mode.

    Raises ValueError for a live or invalid key, or an empty webhook secret.
    """
    if key.startswith(("sk_live_", "rk_live_")) or not fits_a_header(key):
        raise ValueError("The key of a sandbox must be a test key, not a live key.")
    api = url.rstrip("/")
    return StripeAccount(
        name="stripe",
        label="Stripe (sandbox)",
        api=api,
        checkout_origins=(written_origin(api),),
        key=key,
        webhook_secrets=_none_empty(webhook_secrets),
        is_live=False,
    )


def _none_empty(secrets: Sequence[str]) -> tuple[str, ...]:
    if any(not secret.strip() for secret in secrets):
        raise ValueError(
            "A webhook secret is empty, so anybody could sign with it: set the signing secret."
        )
    return tuple(secrets)


class StripeGateway(HostedCheckout[StripeAccount]):
    """The gateway for Stripe. Implements Gateway, Signs, Lists and Examinable."""

    scheme = STRIPE
    pace = PACE

    def __init__(self, seller: StripeAccount) -> None:
        super().__init__(seller)
        self.webhook_secrets: tuple[str, ...] = seller.webhook_secrets

    def check(self, price: Money) -> None:
        charge_amount(price)

    def repeat(self, elicitation: Elicitation, attempt: Attempt) -> Talk[StoredCheckout]:
        stored, key = stored_request(elicitation, attempt, self.seller)
        reply = yield self._post(_SESSIONS, stored.request, key=key)
        if is_key_used(reply):
            raise KeyUsed(self.seller, why=problem(reply, code_of=code_of))
        session = session_in(reply, self.seller, doing="open its payment page")
        return with_session(stored, elicitation, provider_session(session), self.seller)

    def fetch(self, elicitation: Elicitation, session: str) -> Talk[ProviderSession]:
        terms_for(elicitation, self.seller)
        reply = yield self._get(f"{_path(_SESSIONS, session)}?{_WITH_CHARGE}")
        found = same_session(session, reply, self.seller)
        if found.disputed_payment is None:
            return provider_session(found)
        # A charge stays disputed after its dispute has ended, so fetch the disputes' stages.
        claims = yield from self._claims(found.disputed_payment)
        return replace(provider_session(found), claims=claims)

    def list_sessions(self, since: datetime, *, after: str | None = None) -> Talk[SessionPage]:
        """List sessions. Stripe lists the latest first and cannot search for our reference."""
        query = {
            "created[gte]": str(math.floor(since.timestamp())),
            "limit": "100",
            "expand[]": "data.payment_intent.latest_charge",
        }
        if after is not None:
            query["starting_after"] = after
        reply = yield self._get(f"{_SESSIONS}?{urlencode(query)}")
        return sessions_in(reply, self.seller)

    def read_notice(self, body: bytes) -> Notice:
        return notice_in(body)

    def close(self, elicitation: Elicitation, session: str) -> Talk[bool]:
        terms_for(elicitation, self.seller)
        path = _path(_SESSIONS, session)
        reply = yield self._post(f"{path}/expire", "")
        if reply.status_code != 200:  # expired or complete already: fetch the session to find out
            reply = yield self._get(path)
        found = same_session(session, reply, self.seller)
        if found.status in ("expired", "complete"):
            return found.status == "expired"
        raise Failed(f"{self.seller.label} did not close its payment page.")

    def refund(
        self, payment: Payment, *, reason: str | None, up_to: int | None = None
    ) -> Talk[Refund]:
        intent = payment_of(payment, self.seller)
        key = refund_key(payment)
        price = payment.price
        form = {
            "payment_intent": intent,
            "metadata[receipt]": payment.id,
            f"metadata[{REFERENCE_KEY}]": payment.elicitation_id,
        }
        if reason:
            form["metadata[reason]"] = reason[:REASON_AT_MOST]
        if up_to is not None:
            price = Money.from_minor_units(up_to, payment.currency)
            listed = yield from self._refunds(intent)
            found = existing_or_rest(listed, payment, self.seller, price=price)
            if isinstance(found, Refund):
                return found
            form["amount"] = str(charge_amount(found))
            key = part_refund_key(listed, payment, price=price, rest=found)
        reply = yield self._post(_REFUNDS, urlencode(form), key=key)
        if reply.status_code == 200:
            return read_refund(reply, payment, self.seller)
        # Refunded already, or the key was used with another reason: list the refunds to find out.
        listed = yield from self._refunds(intent)
        return already_refunded(
            listed, payment, self.seller, price=price, refused=reply, code_of=code_of
        )

    def refunds(self, payment: Payment) -> Talk[Sequence[RefundChange]]:
        listed = yield from self._refunds(payment_of(payment, self.seller))
        return reported_changes(listed, self.seller)

    def _refunds(self, intent: str) -> Talk[Sequence[ProviderRefund]]:
        def listing() -> Talk[Sequence[ProviderRefund]]:
            query = urlencode({"payment_intent": intent, "limit": "100"})
            return refunds_in((yield self._get(f"{_REFUNDS}?{query}")), self.seller)

        return existing_refunds(listing())

    def claims(self, payment: Payment) -> Talk[Sequence[ProviderClaim]]:
        return (yield from self._claims(payment_of(payment, self.seller)))

    def _claims(self, intent: str) -> Talk[tuple[ProviderClaim, ...]]:
        query = urlencode({"payment_intent": intent, "limit": "100"})
        return claims_in((yield self._get(f"{_DISPUTES}?{query}")), intent, self.seller)

    def trace(self, payment: str) -> Talk[str | None]:
        """Return the elicitation of a payment. A dispute names only the payment."""
        reply = yield self._get(_path(_INTENTS, payment))
        return reference_in(reply, payment, self.seller)

    def examine(self, url: str | None) -> Talk[SetupReport]:
        return examined(self.seller, url, request=self._request)

    def _request(self, method: str, path: str) -> httpx.Request:
        return self._post(path, "") if method == "POST" else self._get(path)

    def _get(self, path: str) -> httpx.Request:
        return httpx.Request("GET", self.seller.api + path, headers=self._headers())

    def _post(self, path: str, body: str, *, key: str | None = None) -> httpx.Request:
        headers = self._headers() | {"Content-Type": "application/x-www-form-urlencoded"}
        if key is not None:
            headers["Idempotency-Key"] = key
        return httpx.Request("POST", self.seller.api + path, headers=headers, content=body.encode())

    def new_request(self, elicitation: Elicitation, context: RedirectContext) -> StoredCheckout:
        terms, (back, cancelled) = terms_of(elicitation), return_urls(context)
        expires_at = _expiry(elicitation.expires_at, now=context.now)
        form = {
            "mode": "payment",
            "client_reference_id": elicitation.id,
            f"metadata[{REFERENCE_KEY}]": elicitation.id,
            f"payment_intent_data[metadata][{REFERENCE_KEY}]": elicitation.id,
            "line_items[0][quantity]": "1",
            "line_items[0][price_data][currency]": terms.currency.lower(),
            "line_items[0][price_data][unit_amount]": str(charge_amount(terms.price)),
            "line_items[0][price_data][product_data][name]": terms.what,
            "success_url": back,
            "cancel_url": cancelled,
            "expires_at": str(expires_at),
        }
        if suffix := self.seller.statement_suffix:
            form["payment_intent_data[statement_descriptor_suffix]"] = suffix
        return StoredCheckout(request=urlencode(form), expires_at=expires_at)

    def _headers(self) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {self.seller.key}", "Stripe-Version": STRIPE_VERSION}
        if self.seller.account is not None:
            headers["Stripe-Account"] = self.seller.account
        return headers


def _path(collection: str, id: str) -> str:
    return f"{collection}/{quote(id, safe='')}"


def _expiry(wanted: datetime, *, now: datetime) -> int:
    earliest, latest = now + LIFE_AT_LEAST + CLOCKS_DIFFER, now + LIFE_AT_MOST - CLOCKS_DIFFER
    return math.ceil(min(max(wanted, earliest), latest).timestamp())


class _Account(Struct, frozen=True, kw_only=True):
    id: str


class _Endpoint(Struct, frozen=True, kw_only=True):
    url: str
    status: str
    enabled_events: tuple[str, ...]


class _Endpoints(Struct, frozen=True, kw_only=True):
    data: tuple[_Endpoint, ...]


def examined(
    seller: StripeAccount, url: str | None, *, request: Callable[[str, str], httpx.Request]
) -> Talk[SetupReport]:
    """Check the account. `url` is the webhook address, or None if webhooks cannot reach us."""
    reply = yield request("GET", "/v1/account")
    reported_at = reply.headers.get("date")
    if reply.status_code == HTTPStatus.UNAUTHORIZED:
        wrong = SetupFinding(
            says=f"{seller.label} rejects the key.",
            fix=f"set {_KEY} to a secret key from {_KEYS}",
        )
        return SetupReport(findings=(wrong,), reported_at=reported_at)
    found = [_of_account(reply, seller)]
    tried: dict[str, int] = {}
    for right, (method, path) in RIGHTS.items():
        tried[right] = (yield request(method, path)).status_code
    status = (yield request("GET", _EXPANDED)).status_code
    found.append(_of_rights(tried, status, seller))
    if url is not None:
        listed = yield request("GET", "/v1/webhook_endpoints?limit=100")
        found += _of_endpoints(listed, url, seller)
    return SetupReport(findings=tuple(found), reported_at=reported_at)


def _of_rights(tried: Mapping[str, int], charge_status: int, seller: StripeAccount) -> SetupFinding:
    """Report missing rights.

    `charge_status` is the status of a request that needs all read rights.
    """
    lacking = [right for right, status in tried.items() if status in _REFUSED]
    if lacking or charge_status in _REFUSED:
        named = ", ".join(lacking) or "one of " + ", ".join(RIGHTS)
        return SetupFinding(
            says=f"The key lacks a permission at {seller.label} that payments need: {named}.",
            fix=f"add this permission to the key at {_KEYS}, or set {_KEY} to a key that has it",
        )
    known = (HTTPStatus.OK, HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND)
    unclear = [right for right, status in tried.items() if status not in known]
    if unclear or charge_status != HTTPStatus.OK:
        says = f"{seller.label} did not report the permissions of the key."
        return SetupFinding(says=says, fix="run elicit doctor again", is_wrong=False)
    return SetupFinding(says="The key has all permissions that payments need.")


def _of_account(reply: httpx.Response, seller: StripeAccount) -> SetupFinding:
    mode = "live" if seller.is_live else "test"
    if reply.status_code == HTTPStatus.FORBIDDEN:
        return SetupFinding(
            says=f"{seller.label} accepts the key ({mode}), but the key cannot read its account."
        )
    try:
        id = msgspec.json.decode(reply.content, type=_Account).id
    except msgspec.MsgspecError:
        return SetupFinding(
            says=f"{seller.label} returns HTTP {reply.status_code}.",
            fix=f"check https://status.stripe.com, and the key in {_KEY}",
        )
    return SetupFinding(says=f"{seller.label} accepts the key ({mode}) of account {id}.")


def _of_endpoints(reply: httpx.Response, url: str, seller: StripeAccount) -> list[SetupFinding]:
    if reply.status_code in _REFUSED:
        says = f"The key cannot check if {seller.label} sends webhooks to {url}."
        fix = "let the key read webhook endpoints, or check them at " + _PAGE
        return [SetupFinding(says=says, fix=fix, is_wrong=False)]
    try:
        listed = msgspec.json.decode(reply.content, type=_Endpoints).data
    except msgspec.MsgspecError:
        says = f"{seller.label} does not list its webhook endpoints (HTTP {reply.status_code})."
        return [SetupFinding(says=says, fix=f"check them at {_PAGE}", is_wrong=False)]
    of_server = [one for one in listed if one.url == url]
    if not of_server:
        others = ", ".join(sorted(one.url for one in listed)) or "none"
        return [
            SetupFinding(
                says=f"{seller.label} has no webhook endpoint {url} (it has: {others}).",
                fix=f"create one at {_PAGE} for that address, with {_listed(EVENTS)}, and set "
                f"{_SECRET} to its signing secret",
            )
        ]
    enabled = [one for one in of_server if one.status == "enabled"]
    if not enabled:
        return [
            SetupFinding(
                says=f"The webhook endpoint {url} at {seller.label} is disabled.",
                fix=f"enable it at {_PAGE}, once {seller.label} can reach ELICIT_URL",
            )
        ]
    sent = {event for one in enabled for event in one.enabled_events}
    if lacking := (set[str]() if _EVERYTHING in sent else EVENTS - sent):
        return [
            SetupFinding(
                says=f"{seller.label} does not send all events that payments need to {url}.",
                fix=f"add these events to the endpoint at {_PAGE}: {_listed(lacking)}",
            )
        ]
    return [SetupFinding(says=f"{seller.label} sends all events that payments need to {url}.")]


def _listed(events: AbstractSet[str]) -> str:
    return ", ".join(sorted(events))
