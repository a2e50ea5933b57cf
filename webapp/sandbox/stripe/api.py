"""A small version of Stripe's API: the part that Stripe's Python package and our gateway call."""

import hmac
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any, TypeAlias

from litestar import Router

from flows.elicitation.states import Json
from flows.errors import InvalidQuestion
from flows.payments.money import Money
from flows.payments.stripe.messages import charged
from webapp.sandbox.authorization.granted import basic_of, bearer_of
from webapp.sandbox.checkout.answers import (
    Answer,
    ApiCall,
    Key,
    SandboxAsked,
    provider_router,
    trace,
)
from webapp.sandbox.checkout.deliveries import Outside
from webapp.sandbox.checkout.sales import Sales
from webapp.sandbox.settings import Sandbox
from webapp.sandbox.stripe.form import (
    CheckoutForm,
    ErrorType,
    StripeError,
    missing_resource,
    read_pairs,
)
from webapp.sandbox.stripe.sessions import StripeSession, StripeVendor

_KEY_AT_MOST = 255
_REPLY_RETENTION = timedelta(hours=24)
_OPEN_AT_LEAST = timedelta(minutes=30)
_OPEN_AT_MOST = timedelta(hours=24)
_LATEST_TIME = 2**37  # in seconds since 1970: before the year 9999 ends
_AMOUNT_AT_MOST = 99_999_999  # Stripe accepts at most eight digits
_ITEMS_AT_MOST = 100
_REFERENCE_AT_MOST = 200
_NAME_AT_MOST = 250
_LISTED_AT_MOST = 100
_REASONS = ("duplicate", "fraudulent", "requested_by_customer")
_LISTED_BY_DEFAULT = 10
_SESSIONS = "/v1/checkout/sessions"
# the properties that can be expanded
_INTENT, _CHARGE = "payment_intent", "payment_intent.latest_charge"
# Parameters for Stripe's hosted page. The sandbox's page ignores them.
_WITHOUT_EFFECT = ("locale", "submit_type", "customer_email", "payment_intent_data[description]")
# The effect of a route. The text is the id in the route's path.
Act: TypeAlias = Callable[["StripeApi", CheckoutForm, str], Json]


def stripe_api(sandbox: Sandbox, outside: Outside) -> "StripeApi":
    vendor = StripeVendor(
        webhook_url=sandbox.webhook_url, secret=sandbox.webhook_secret, clock=outside.clock
    )
    sales = Sales(vendor, outside)
    return StripeApi(
        url=sandbox.url, key=sandbox.stripe_key, sales=sales, webhook_url=sandbox.webhook_url
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StripeApi:
    """Stripe's API for callers with the key. Implements ProviderApi."""

    url: str
    key: str = field(repr=False)
    sales: Sales[StripeSession]
    webhook_url: str

    def require_key(self, call: ApiCall) -> None:
        """Check the key, which comes as a bearer or as the user name of HTTP Basic.

        Raises:
            StripeError: The key is missing or wrong.
        """
        headers = call.request.headers
        key = bearer_of(headers) or (basic_of(headers) or ("",))[0]
        if not key:
            raise StripeError(
                "You did not provide an API key. Give it as `Authorization: Bearer YOUR_KEY`.",
                status=401,
            )
        if not self.key or not hmac.compare_digest(key.encode(), self.key.encode()):
            raise StripeError("Invalid API Key provided.", status=401)

    def ask(self, call: ApiCall, act: Act) -> SandboxAsked:
        self.require_key(call)
        pairs = read_pairs(call.body if call.changes else call.query)
        name = call.request.headers.get("idempotency-key") if call.changes else None

        def answer() -> Answer:
            return Answer(body=act(self, CheckoutForm(pairs), call.id))

        key = _key(name, asked=(call.path, *sorted(pairs))) if name else None
        return SandboxAsked(act=answer, changes=call.changes, key=key)

    def refusal(self, words: str, status: HTTPStatus) -> StripeError:
        is_server_error = status >= HTTPStatus.INTERNAL_SERVER_ERROR
        error_type: ErrorType = "api_error" if is_server_error else "invalid_request_error"
        return StripeError(words, status=status, error_type=error_type)

    def headers(self, is_replayed: bool) -> Mapping[str, str]:  # noqa: FBT001 - there is one
        headers = {"request-id": f"req_{trace()}"}
        return {**headers, "idempotent-replayed": "true"} if is_replayed else headers

    # Routes. Each raises StripeError.

    def create(self, form: CheckoutForm, _: str) -> Json:
        now = self.sales.clock()
        expanded = _expanded(form)
        form.choice("mode", "payment")
        what, price = _items(form)
        id = f"cs_test_{secrets.token_hex(24)}"
        success_url = form.url("success_url")
        cancel_url = form.url("cancel_url") if form.gives("cancel_url") else None
        reference = form.text_or_none("client_reference_id", at_most=_REFERENCE_AT_MOST)
        session = StripeSession(
            id=id,
            url=f"{self.url}/pay/{id}",
            what=what,
            price=price,
            back_url=success_url.replace("{CHECKOUT_SESSION_ID}", id),
            cancel_url=cancel_url,
            asked={
                "success_url": success_url,
                "cancel_url": cancel_url,
                "client_reference_id": reference,
                "metadata": form.metadata("metadata"),
            },
            payment_metadata=form.metadata("payment_intent_data[metadata]"),
            number=secrets.token_hex(12),
            made_at=now,
            until=_expiry(form, now=now),
        )
        for name in _WITHOUT_EFFECT:
            form.text_or_none(name)
        form.text_or_none("payment_intent_data[statement_descriptor_suffix]", at_most=22)
        form.end()
        return _shown(self.sales.keep(session), expanded=expanded)

    def list_sessions(self, form: CheckoutForm, _: str) -> Json:
        """List the sessions since a time, the latest first."""
        expanded = frozenset(name for name in (_INTENT, _CHARGE) if form.expands(f"data.{name}"))
        is_since = form.gives("created[gte]")
        since = form.whole("created[gte]", least=0, most=_LATEST_TIME) if is_since else 0
        after, limit = form.text_or_none("starting_after"), _limit(form)
        form.end()
        ids = [one.id for one in self.sales.all()[::-1] if one.made_at.timestamp() >= since]
        if after is not None:
            ids = ids[ids.index(self._known(after).id) + 1 :]
        data = [_shown(self._known(id), expanded=expanded) for id in ids[:limit]]
        return {"object": "list", "data": data, "has_more": len(ids) > limit, "url": _SESSIONS}

    def retrieve(self, form: CheckoutForm, id: str) -> Json:
        expanded = _expanded(form)
        form.end()
        return _shown(self._known(id), expanded=expanded)

    def expire(self, form: CheckoutForm, id: str) -> Json:
        expanded = _expanded(form)
        form.end()
        session = self._known(id)
        if not session.is_open:
            raise StripeError(
                'Only Checkout Sessions with a status in ["open"] can be expired. This Checkout '
                f"Session has a status of {session.status}."
            )
        return _shown(self.sales.end(session), expanded=expanded)

    def retrieve_payment(self, form: CheckoutForm, id: str) -> Json:
        form.end()
        for session in self._paid(id):
            return session.payment_as_json()
        raise missing_resource("payment_intent", id, param="intent")

    def refund(self, form: CheckoutForm, _: str) -> Json:
        """Refund the remaining amount of a payment, or a part of that amount."""
        id = form.text("payment_intent")
        amount = _amount(form, "amount") if form.gives("amount") else None
        reason = form.choice("reason", *_REASONS) if form.gives("reason") else None
        metadata = form.metadata("metadata")
        form.end()
        for session in self._paid(id):
            price = _part(session, amount)
            about: dict[str, Json] = {"reason": reason, "metadata": metadata}
            if session.refunds_slowly:
                about["status"] = "pending"
            return session.refund_as_json(self.sales.refund(session, price, about))
        raise missing_resource("payment_intent", id, param="payment_intent", status=400)

    def retrieve_refund(self, form: CheckoutForm, id: str) -> Json:
        form.end()
        for refund in self._refunds(None):
            if refund["id"] == id:
                return refund
        raise missing_resource("refund", id, param="refund")

    def list_payments(self, form: CheckoutForm, _: str) -> Json:
        return _listed(
            form,
            lambda _: [one.payment_as_json() for one in self._paid(None)],
            url="/v1/payment_intents",
        )

    def list_charges(self, form: CheckoutForm, _: str) -> Json:
        return _listed(
            form,
            lambda payment: [one.charge_as_json() for one in self._paid(payment)],
            url="/v1/charges",
        )

    def account(self, form: CheckoutForm, _: str) -> Json:
        form.end()
        return {"id": "acct_sandbox", "object": "account"}

    def list_endpoints(self, form: CheckoutForm, _: str) -> Json:
        """List the one webhook endpoint, which receives all events."""
        endpoint: dict[str, Json] = {
            "id": "we_sandbox",
            "object": "webhook_endpoint",
            "enabled_events": ["*"],
            "status": "enabled",
            "url": self.webhook_url,
        }
        return _listed(form, lambda _: [endpoint], url="/v1/webhook_endpoints")

    def list_refunds(self, form: CheckoutForm, _: str) -> Json:
        return _listed(form, self._refunds, url="/v1/refunds")

    def list_disputes(self, form: CheckoutForm, _: str) -> Json:
        """List the disputes. In the sandbox, a payment has at most one."""
        return _listed(form, self._disputes, url="/v1/disputes")

    def _known(self, id: str) -> StripeSession:
        session = self.sales.find(id)
        if session is None:
            raise missing_resource("checkout.session", id, param="session")
        return session

    def _paid(self, payment: str | None) -> list[StripeSession]:
        """Return the sessions with this payment, or with any payment, the latest first."""
        return [
            session
            for session in self.sales.all()[::-1]
            if session.payment is not None and payment in (None, session.payment)
        ]

    def _refunds(self, payment: str | None) -> list[dict[str, Json]]:
        found = [(session, one) for session in self._paid(payment) for one in session.refunds[::-1]]
        found.sort(key=lambda pair: pair[1].made_at, reverse=True)
        return [session.refund_as_json(one) for session, one in found]

    def _disputes(self, payment: str | None) -> list[dict[str, Json]]:
        return [one.dispute_as_json() for one in self._paid(payment) if one.dispute is not None]


def stripe_routes() -> Router:
    session = _SESSIONS
    routes = {
        f"POST {session}": StripeApi.create,
        f"GET {session}": StripeApi.list_sessions,
        f"GET {session}/{{id:str}}": StripeApi.retrieve,
        f"POST {session}/{{id:str}}/expire": StripeApi.expire,
        "GET /v1/account": StripeApi.account,
        "GET /v1/webhook_endpoints": StripeApi.list_endpoints,
        "GET /v1/payment_intents": StripeApi.list_payments,
        "GET /v1/payment_intents/{id:str}": StripeApi.retrieve_payment,
        "GET /v1/charges": StripeApi.list_charges,
        "POST /v1/refunds": StripeApi.refund,
        "GET /v1/refunds": StripeApi.list_refunds,
        "GET /v1/refunds/{id:str}": StripeApi.retrieve_refund,
        # At Stripe, this POST changes the refund's metadata. The sandbox only returns the refund.
        "POST /v1/refunds/{id:str}": StripeApi.retrieve_refund,
        "GET /v1/disputes": StripeApi.list_disputes,
    }
    return provider_router("stripe", routes)


def _key(name: str, *, asked: tuple[Any, ...]) -> Key:
    if len(name) > _KEY_AT_MOST:
        raise StripeError(f"Idempotency keys have {_KEY_AT_MOST} characters at most.")
    conflict = StripeError(
        "Keys for idempotent requests can only be used with the same parameters they were "
        "first used with. Use another key to send another request.",
        error_type="idempotency_error",
    )
    return Key(name=name, asked=asked, life=_REPLY_RETENTION, conflict=conflict)


def _shown(session: StripeSession, *, expanded: frozenset[str]) -> Json:
    """Return the session. Expand its payment and charge if `expanded` names them."""
    shown = session.as_json()
    if expanded and session.payment is not None:
        shown["payment_intent"] = session.payment_as_json(with_charge=_CHARGE in expanded)
    return shown


def _part(session: StripeSession, amount: int | None) -> int:
    """Return the minor units to refund. If `amount` is None, return the remaining amount."""
    if not session.is_paid:
        raise StripeError(
            f"This PaymentIntent ({session.payment}) does not have a successful charge to refund.",
            code="resource_missing",
            param="payment_intent",
        )
    if session.remaining_units == 0:
        raise StripeError(
            f"Charge {session.charge} has already been refunded.", code="charge_already_refunded"
        )
    if amount is None:
        return session.remaining_units
    remaining = session.remaining_amount
    if amount > remaining:
        raise StripeError(
            f"Refund amount ({amount}) is greater than unrefunded amount on charge ({remaining}).",
            param="amount",
        )
    try:
        return charged(amount, session.price.currency).minor_units
    except InvalidQuestion:
        raise StripeError(f"Invalid amount: {amount}", param="amount") from None


def _listed(
    form: CheckoutForm, found: Callable[[str | None], Sequence[dict[str, Json]]], *, url: str
) -> Json:
    """Return a list of the objects of one payment, or of all payments, the latest first."""
    payment, limit = form.text_or_none("payment_intent"), _limit(form)
    form.end()
    all_of_them = found(payment)
    has_more = len(all_of_them) > limit
    return {"object": "list", "data": [*all_of_them[:limit]], "has_more": has_more, "url": url}


def _limit(form: CheckoutForm) -> int:
    if not form.gives("limit"):
        return _LISTED_BY_DEFAULT
    return form.whole("limit", least=1, most=_LISTED_AT_MOST)


def _amount(form: CheckoutForm, name: str) -> int:
    return form.whole(name, least=1, most=_AMOUNT_AT_MOST)


def _expanded(form: CheckoutForm) -> frozenset[str]:
    return frozenset(name for name in (_INTENT, _CHARGE) if form.expands(name))


def _expiry(form: CheckoutForm, *, now: datetime) -> datetime:
    now = now.replace(microsecond=0)
    if not form.gives("expires_at"):
        return now + _OPEN_AT_MOST
    until = datetime.fromtimestamp(form.whole("expires_at", least=0, most=_LATEST_TIME), UTC)
    if not now + _OPEN_AT_LEAST <= until <= now + _OPEN_AT_MOST:
        raise StripeError(
            "The `expires_at` timestamp must be at least 30 minutes and at most 24 hours from "
            "Checkout Session creation.",
            param="expires_at",
        )
    return until


def _items(form: CheckoutForm) -> tuple[tuple[str, ...], Money]:
    """Return the names of the sold items, and the total price."""
    what: list[str] = []
    total, currency = 0, ""
    while not what or form.has(f"line_items[{len(what)}]"):
        item = f"line_items[{len(what)}]"
        price = f"{item}[price_data]"
        this = form.text(f"{price}[currency]").upper()
        if currency not in ("", this):
            raise StripeError("All line items need the same currency.", param="line_items")
        currency = this
        amount = _amount(form, f"{price}[unit_amount]")
        total += amount * _amount(form, f"{item}[quantity]")
        what.append(form.text(f"{price}[product_data][name]", at_most=_NAME_AT_MOST))
        form.text_or_none(f"{price}[product_data][description]")
        if total > _AMOUNT_AT_MOST or len(what) > _ITEMS_AT_MOST:
            raise StripeError(
                "The Checkout Session's total amount is too large.",
                code="amount_too_large",
                param="line_items",
            )
    try:
        return tuple(what), charged(total, currency)
    except InvalidQuestion:
        raise StripeError(
            f"Invalid currency or amount: {total} {currency[:9].lower()}", param="line_items"
        ) from None
