"""The replies and webhooks of each provider that a file in examples/payments declares."""

import hashlib
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import msgspec

from flows.elicitation.states import Elicitation
from flows.payments.declared.declaration import DeclaredAccount
from flows.payments.declared.gateway import DeclaredGateway
from flows.payments.session import SessionStatus
from flows.webhooks.signatures import Delivery, verify
from tests.support import gateway_env
from tests.support.clock import NOON
from tests.support.gateway_env import BACK, ID, NINE, TRIP, reply, run
from tests.support.signers import EXAMPLES, SIGNERS, URL

SECRET = "key_hidden"
KEY = f"{ID}:1"
DIGEST = hashlib.sha256(KEY.encode()).hexdigest()[:32]
RETURN = f"{BACK}?state=s-1"
CANCEL = f"{RETURN}&cancelled=1"
WHAT = "Premium report & more"
HOOK_SECRET = "d2hz"
PAYMENT = "pay-1"
Data = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A provider with its requests, replies and webhooks.

    `fetched` and `event` build a reply and a webhook for a status word of the provider. `words` and
    `events` map these words to the session status that we must read from them. `fetched_at` and
    `event_at` are about wrong replies and webhooks: for each fact, such as the amount, they have
    its path in the JSON data, and a wrong value to put there.
    """

    seller: DeclaredAccount
    session: str
    handle: str | None = None
    page: str
    payment: str = PAYMENT
    create: str
    body: Data
    opened: Data
    fetch: str | None
    fetched: Callable[[str], Data]
    words: Mapping[str, SessionStatus]
    open_word: str
    over_word: str
    event: Callable[[str], Data]
    events: Mapping[str, SessionStatus]
    paid_event: str
    ignored: Data
    fetched_at: Mapping[str, tuple[str, Any]] = field(default_factory=dict[str, tuple[str, Any]])
    event_at: Mapping[str, tuple[str, Any]] = field(default_factory=dict[str, tuple[str, Any]])
    close: tuple[str, Any] | None = None
    refund: str | None = None
    refund_body: Data = field(default_factory=dict[str, Any])
    refund_replies: Mapping[str, Data] = field(default_factory=dict[str, Data])
    held: Callable[[int], Data] | None = None  # builds a payment after a refund of this amount
    news: Mapping[str, Data] = field(default_factory=dict[str, Data])

    @property
    def name(self) -> str:
        return self.seller.name

    @property
    def gateway(self) -> DeclaredGateway:
        return DeclaredGateway(self.seller)

    def asked(self, **terms: Any) -> Elicitation:
        return gateway_env.asked(
            self.name, **{"price": NINE, "is_live": self.seller.is_live, **terms}
        )

    def prepared(self) -> Elicitation:
        return gateway_env.prepared(self.gateway, self.asked())

    def begun(self) -> Elicitation:
        before = self.prepared()
        departure, _ = run(self.gateway.begin(before, TRIP), reply(self.opened, 201))
        return gateway_env.with_stored(before, departure.attempt_data)

    def delivered(self, event: Data) -> Delivery:
        scheme, body = self.seller.declaration.scheme, msgspec.json.encode(event)
        headers = SIGNERS[scheme](body, HOOK_SECRET, NOON)
        secrets = self.seller.webhook_secrets
        return verify(scheme, body=body, headers=headers, secrets=secrets, now=NOON, url=URL)


def put(data: Data, place: str, value: Any) -> Data:
    """Return a copy of `data` with `value` at this place."""
    data = deepcopy(data)
    *parts, last = place.split(".")
    found: Any = data
    for part in parts:
        found = found[int(part)] if isinstance(found, list) else found[part]
    found[int(last) if isinstance(found, list) else last] = value
    return data


def seller(name: str, **fields: Any) -> DeclaredAccount:
    reported = {"secret": SECRET, "webhook_secrets": (HOOK_SECRET,), "is_live": False}
    return DeclaredAccount(declaration=EXAMPLES[name], **{**reported, **fields})


def eur(amount: int) -> Data:
    return {"amount": amount, "currency": "EUR"}


# Square


def _square_link() -> Data:
    link = {
        "id": "LINK1",
        "version": 1,
        "order_id": "ORDER1",
        "url": "https://sandbox.square.link/u/1",
        "long_url": "https://sandbox.square.link/long/1",
        "created_at": "2026-03-01T12:00:00Z",
        "payment_note": ID,
    }
    return {"payment_link": link, "related_resources": {"orders": []}}


def _square_order(word: str) -> Data:
    state, _, due = word.partition(" ")
    order = {
        "id": "ORDER1",
        "location_id": "L1",
        "state": state,
        "version": 4,
        "metadata": {"elicitation": ID},
        "total_money": eur(900),
        "net_amount_due_money": eur(int(due)),
        "created_at": "2026-03-01T12:00:00Z",
    }
    if not int(due):
        order["tenders"] = [{"id": PAYMENT, "type": "CARD", "payment_id": PAYMENT}]
    return {"order": order}


def _square_event(word: str) -> Data:
    kind, _, status = word.partition(" ")
    payment = {
        "id": PAYMENT,
        "order_id": "ORDER1",
        "note": ID,
        "status": status,
        "amount_money": eur(900),
    }
    return {
        "merchant_id": "M1",
        "type": kind,
        "event_id": "ev-1",
        "created_at": "2026-03-01T12:05:00Z",
        "data": {"type": "payment", "id": PAYMENT, "object": {"payment": payment}},
    }


def _square_refund(status: str) -> Data:
    refund = {"id": "re-1", "status": status, "amount_money": eur(900), "payment_id": PAYMENT}
    return {"refund": refund}


def _square_payment(refunded: int) -> Data:
    payment = {"id": PAYMENT, "status": "COMPLETED", "amount_money": eur(900)}
    return {"payment": {**payment, **({"refunded_money": eur(refunded)} if refunded else {})}}


square = Case(
    seller=seller("square", own={"location": "L1"}),
    session="ORDER1",
    handle="LINK1",
    page="https://sandbox.square.link/u/1",
    create="https://connect.squareupsandbox.com/v2/online-checkout/payment-links",
    body={
        "idempotency_key": DIGEST,
        "order": {
            "location_id": "L1",
            "metadata": {"elicitation": ID},
            "line_items": [{"name": WHAT, "quantity": "1", "base_price_money": eur(900)}],
        },
        "checkout_options": {"redirect_url": RETURN, "allow_tipping": False},
        "payment_note": ID,
    },
    opened=_square_link(),
    fetch="/v2/orders/ORDER1",
    fetched=_square_order,
    words={
        "OPEN 900": SessionStatus.OPEN,
        "DRAFT 900": SessionStatus.OPEN,
        "OPEN 0": SessionStatus.PAID,
        "COMPLETED 0": SessionStatus.PAID,
        "CANCELED 900": SessionStatus.CLOSED,
    },
    open_word="OPEN 900",
    over_word="CANCELED 900",
    fetched_at={
        "amount": ("order.total_money.amount", 90),
        "currency": ("order.total_money.currency", "USD"),
        "reference": ("order.metadata.elicitation", "another"),
        "account": ("order.location_id", "L2"),
    },
    close=("DELETE /v2/online-checkout/payment-links/LINK1", None),
    event=_square_event,
    events={},
    paid_event="payment.updated COMPLETED",
    ignored=put(_square_event("x COMPLETED"), "type", "invoice.created"),
    refund="POST /v2/refunds",
    refund_body={"payment_id": PAYMENT, "amount_money": eur(900), "reason": "No seats"},
    refund_replies={
        "pending": _square_refund("PENDING"),
        "succeeded": _square_refund("COMPLETED"),
        "refused": _square_refund("FAILED"),
    },
    held=_square_payment,
)


# Paddle


def _paddle_transaction(word: str) -> Data:
    totals = {
        "subtotal": "756",
        "discount": "0",
        "tax": "144",
        "total": "900",
        "credit": "0",
        "credit_to_balance": "0",
        "balance": "900",
        "grand_total": "900",
        "grand_total_tax": "144",
        "fee": None,
        "earnings": None,
        "currency_code": "EUR",
    }
    return {
        "data": {
            "id": "txn_1",
            "status": word,
            "custom_data": {"elicitation": ID, "return_url": RETURN},
            "currency_code": "EUR",
            "origin": "api",
            "collection_mode": "automatic",
            "items": [],
            "details": {"tax_rates_used": [], "totals": totals, "line_items": []},
            "payments": [],
            "checkout": {"url": "https://shop.example/pay?_ptxn=txn_1"},
            "created_at": "2026-03-01T12:00:00+00:00",
            "updated_at": "2026-03-01T12:00:00+00:00",
        },
        "meta": {"request_id": "r-1"},
    }


def _paddle_held(refunded: int) -> Data:
    breakdown = {"credit": "0", "refund": str(refunded), "chargeback": "0"}
    totals = {"subtotal": "0", "tax": "0", "total": "0", "fee": "0", "earnings": "0"}
    adjusted = {**totals, "breakdown": breakdown, "currency_code": "EUR"}
    return put(_paddle_transaction("completed"), "data.adjustment_totals", adjusted)


def _paddle_event(word: str) -> Data:
    kind, _, status = word.partition(" ")
    return {
        "event_id": "evt_1",
        "notification_id": "ntf_1",
        "event_type": kind,
        "occurred_at": "2026-03-01T12:05:00+00:00",
        "data": _paddle_transaction(status)["data"],
    }


def _paddle_adjustment(status: str) -> Data:
    totals = {"subtotal": "756", "tax": "144", "total": "900", "fee": "0", "earnings": "0"}
    return {
        "data": {
            "id": "adj_1",
            "action": "refund",
            "transaction_id": "txn_1",
            "customer_id": "ctm_1",
            "reason": "asked for by the seller",
            "currency_code": "EUR",
            "status": status,
            "items": [],
            "totals": {**totals, "retained_fee": "0", "currency_code": "EUR"},
            "created_at": "2026-03-01T12:10:00+00:00",
            "tax_rates_used": [],
            "type": "full",
        }
    }


_PADDLE_PRICE = {
    "description": WHAT,
    "name": WHAT,
    "tax_mode": "internal",
    "unit_price": {"amount": "900", "currency_code": "EUR"},
    "quantity": {"minimum": 1, "maximum": 1},
    "product": {"name": WHAT, "tax_category": "saas"},
}
paddle = Case(
    seller=seller(
        "paddle", own={"tax_category": "saas"}, more_checkout_origins=("https://shop.example",)
    ),
    session="txn_1",
    page="https://shop.example/pay?_ptxn=txn_1",
    payment="txn_1",
    create="https://sandbox-api.paddle.com/transactions",
    body={
        "items": [{"quantity": 1, "price": _PADDLE_PRICE}],
        "currency_code": "EUR",
        "collection_mode": "automatic",
        "custom_data": {"elicitation": ID, "return_url": RETURN},
    },
    opened=_paddle_transaction("ready"),
    fetch="/transactions/txn_1?include=adjustments_totals",
    fetched=_paddle_transaction,
    words={
        "draft": SessionStatus.OPEN,
        "ready": SessionStatus.OPEN,
        "billed": SessionStatus.PENDING,
        "paid": SessionStatus.PAID,
        "completed": SessionStatus.PAID,
        "canceled": SessionStatus.CLOSED,
        "past_due": SessionStatus.FAILED,
    },
    open_word="ready",
    over_word="canceled",
    fetched_at={
        "amount": ("data.details.totals.grand_total", "90"),
        "currency": ("data.currency_code", "USD"),
        "reference": ("data.custom_data.elicitation", "another"),
    },
    event_at={
        "amount": ("data.details.totals.grand_total", "90"),
        "currency": ("data.currency_code", "USD"),
        "session": ("data.id", "txn_2"),
    },
    close=("PATCH /transactions/txn_1", {"status": "canceled"}),
    event=_paddle_event,
    events={
        "transaction.paid paid": SessionStatus.PAID,
        "transaction.completed completed": SessionStatus.PAID,
        "transaction.canceled canceled": SessionStatus.CLOSED,
        "transaction.updated ready": SessionStatus.OPEN,
    },
    paid_event="transaction.completed completed",
    ignored=put(_paddle_event("x paid"), "event_type", "transaction.ready"),
    refund="POST /adjustments",
    refund_body={
        "action": "refund",
        "type": "full",
        "transaction_id": "txn_1",
        "reason": "asked for by the seller",
    },
    refund_replies={
        "pending": _paddle_adjustment("pending_approval"),
        "succeeded": _paddle_adjustment("approved"),
        "refused": _paddle_adjustment("rejected"),
    },
    held=_paddle_held,
)


# Polar


def _polar_checkout(word: str) -> Data:
    return {
        "id": "co-1",
        "created_at": "2026-03-01T12:00:00Z",
        "modified_at": None,
        "payment_processor": "stripe",
        "status": word,
        "client_secret": "polar_c_1",
        "url": "https://sandbox.polar.sh/checkout/polar_c_1",
        "expires_at": "2026-03-01T13:00:00Z",
        "success_url": RETURN,
        "amount": 900,
        "discount_amount": 0,
        "net_amount": 756,
        "tax_amount": 144,
        "tax_behavior": "inclusive",
        "total_amount": 900,
        "currency": "eur",
        "product_id": "prod-1",
        "metadata": {"elicitation": ID},
    }


def _polar_order(status: str = "paid", refunded: tuple[int, int] = (0, 0)) -> Data:
    return {
        "id": PAYMENT,
        "status": status,
        "paid": True,
        "subtotal_amount": 756,
        "discount_amount": 0,
        "net_amount": 756,
        "tax_amount": 144,
        "total_amount": 900,
        "refunded_amount": refunded[0],
        "refunded_tax_amount": refunded[1],
        "refundable_amount": 756 - refunded[0],
        "refundable_tax_amount": 144 - refunded[1],
        "currency": "eur",
        "checkout_id": "co-1",
        "product_id": "prod-1",
        "metadata": {"elicitation": ID},
    }


def _polar_event(word: str) -> Data:
    kind, _, status = word.partition(" ")
    order = _polar_order(status)
    when = "2026-03-01T12:05:00Z"
    return {"type": kind, "timestamp": when, "api_version": "2026-10", "data": order}


def _polar_held(refunded: int) -> Data:
    tax = refunded * 144 // 900
    return _polar_order("partially_refunded", (refunded - tax, tax))


def _polar_refund(status: str) -> Data:
    return {"id": "re-1", "status": status, "amount": 756, "tax_amount": 144, "order_id": PAYMENT}


_POLAR_PRICE = {"amount_type": "fixed", "price_amount": 900, "price_currency": "eur"}
polar = Case(
    seller=seller("polar", own={"product": "prod-1"}),
    session="co-1",
    page="https://sandbox.polar.sh/checkout/polar_c_1",
    create="https://sandbox-api.polar.sh/v1/checkouts/",
    body={
        "products": ["prod-1"],
        "prices": {"prod-1": [{**_POLAR_PRICE, "tax_behavior": "inclusive"}]},
        "allow_discount_codes": False,
        "metadata": {"elicitation": ID},
        "success_url": RETURN,
        "return_url": CANCEL,
    },
    opened=_polar_checkout("open"),
    fetch="/v1/checkouts/co-1",
    fetched=_polar_checkout,
    words={
        "open": SessionStatus.OPEN,
        "confirmed": SessionStatus.PENDING,
        "succeeded": SessionStatus.PENDING,
        "failed": SessionStatus.FAILED,
        "expired": SessionStatus.CLOSED,
    },
    open_word="open",
    over_word="expired",
    fetched_at={
        "amount": ("total_amount", 90),
        "currency": ("currency", "usd"),
        "reference": ("metadata.elicitation", "another"),
    },
    event_at={
        "amount": ("data.total_amount", 90),
        "currency": ("data.currency", "usd"),
        "session": ("data.checkout_id", "co-2"),
    },
    event=_polar_event,
    events={
        "order.paid paid": SessionStatus.PAID,
        "order.paid partially_refunded": SessionStatus.PAID,
        "order.paid refunded": SessionStatus.PAID,
    },
    paid_event="order.paid paid",
    ignored=_polar_event("order.created paid"),
    refund="POST /v1/refunds/",
    refund_body={
        "order_id": PAYMENT,
        "reason": "customer_request",
        "amount": 756,
        "comment": "No seats",
    },
    refund_replies={
        "pending": _polar_refund("pending"),
        "succeeded": _polar_refund("succeeded"),
        "refused": _polar_refund("failed"),
    },
    held=_polar_held,
    news={"400": {**_polar_event("order.refunded paid"), "data": _polar_held(400)}},
)


# Lemon Squeezy


def _lemon_checkout() -> Data:
    preview = {"currency": "EUR", "subtotal": 756, "discount_total": 0, "tax": 144, "total": 900}
    attributes = {
        "store_id": 1,
        "variant_id": 2,
        "custom_price": 900,
        "checkout_data": {"email": "", "custom": {"elicitation": KEY}},
        "preview": preview,
        "expires_at": "2026-03-01T13:00:00.000000Z",
        "test_mode": True,
        "url": "https://shop.lemonsqueezy.com/checkout/custom/1?signature=x",
    }
    return {"data": {"type": "checkouts", "id": "lc-1", "attributes": attributes}}


def _lemon_order(status: str, refunded: int = 0) -> Data:
    attributes = {
        "store_id": 1,
        "identifier": "uuid-1",
        "currency": "EUR",
        "subtotal": 756,
        "tax": 144,
        "total": 900,
        "status": status,
        "refunded": status == "refunded",
        "refunded_amount": refunded,
        "test_mode": True,
    }
    return {"data": {"type": "orders", "id": "4001", "attributes": attributes}}


def _lemon_event(word: str) -> Data:
    kind, _, status = word.partition(" ")
    meta = {"test_mode": True, "event_name": kind, "custom_data": {"elicitation": KEY}}
    return {"meta": meta, **_lemon_order(status)}


lemon_squeezy = Case(
    seller=seller(
        "lemon_squeezy",
        own={"store": "1", "variant": "2"},
        more_checkout_origins=("https://shop.lemonsqueezy.com",),
    ),
    session=KEY,
    handle="lc-1",
    page="https://shop.lemonsqueezy.com/checkout/custom/1?signature=x",
    payment="4001",
    create="https://api.lemonsqueezy.com/v1/checkouts",
    body={
        "data": {
            "type": "checkouts",
            "attributes": {
                "custom_price": 900,
                "product_options": {"name": WHAT, "redirect_url": RETURN},
                "checkout_options": {"discount": False},
                "checkout_data": {"custom": {"elicitation": KEY}},
                "expires_at": "2026-03-01T13:00:00+00:00",
                "preview": True,
            },
            "relationships": {
                "store": {"data": {"type": "stores", "id": "1"}},
                "variant": {"data": {"type": "variants", "id": "2"}},
            },
        }
    },
    opened=_lemon_checkout(),
    fetch=None,
    fetched=_lemon_order,
    words={},
    open_word="",
    over_word="",
    event=_lemon_event,
    events={
        "order_created paid": SessionStatus.PAID,
        "order_created pending": SessionStatus.PENDING,
        "order_created failed": SessionStatus.FAILED,
        "order_created refunded": SessionStatus.PAID,
    },
    paid_event="order_created paid",
    event_at={
        "amount": ("data.attributes.total", 90),
        "currency": ("data.attributes.currency", "USD"),
        "session": ("meta.custom_data.elicitation", f"{ID}:2"),
        "mode": ("data.attributes.test_mode", False),
    },
    ignored=_lemon_event("subscription_created paid"),
    refund="POST /v1/orders/4001/refund",
    refund_body={"data": {"type": "orders", "id": "4001", "attributes": {"amount": 900}}},
    refund_replies={
        "succeeded": _lemon_order("refunded", 900),
        "refused": _lemon_order("paid"),
    },
    held=lambda refunded: _lemon_order("paid", refunded),
    news={"400": {**_lemon_event("order_refunded paid"), **_lemon_order("paid", 400)}},
)


# Coinbase Commerce


def _charge(word: str) -> Data:
    statuses = ["NEW"] if word == "NEW" else ["NEW", word]
    return {
        "id": "charge-1",
        "code": "CODE1",
        "name": WHAT,
        "hosted_url": "https://commerce.coinbase.com/charges/CODE1",
        "created_at": "2026-03-01T12:00:00Z",
        "expires_at": "2026-03-01T13:00:00Z",
        "timeline": [{"time": "2026-03-01T12:00:00Z", "status": one} for one in statuses],
        "metadata": {"elicitation": ID},
        "pricing_type": "fixed_price",
        "pricing": {"local": {"amount": "9.00", "currency": "EUR"}},
        "payments": [],
    }


def _coinbase_event(word: str) -> Data:
    kind, _, status = word.partition(" ")
    event = {"id": "ev-1", "resource": "event", "type": kind, "data": _charge(status)}
    return {"id": "delivery-1", "attempt_number": 1, "event": event}


coinbase = Case(
    seller=seller("coinbase", is_live=True),
    session="charge-1",
    page="https://commerce.coinbase.com/charges/CODE1",
    payment="CODE1",
    create="https://api.commerce.coinbase.com/charges",
    body={
        "name": WHAT,
        "description": WHAT,
        "pricing_type": "fixed_price",
        "local_price": {"amount": "9.00", "currency": "EUR"},
        "metadata": {"elicitation": ID},
        "redirect_url": RETURN,
        "cancel_url": CANCEL,
    },
    opened={"data": _charge("NEW")},
    fetch="/charges/charge-1",
    fetched=lambda word: {"data": _charge(word)},
    words={
        "NEW": SessionStatus.OPEN,
        "SIGNED": SessionStatus.OPEN,
        "PENDING": SessionStatus.PENDING,
        "COMPLETED": SessionStatus.PAID,
        "UNRESOLVED": SessionStatus.PENDING,
        "RESOLVED": SessionStatus.PENDING,
        "EXPIRED": SessionStatus.CLOSED,
        "CANCELED": SessionStatus.CLOSED,
    },
    open_word="NEW",
    over_word="CANCELED",
    fetched_at={
        "amount": ("data.pricing.local.amount", "0.90"),
        "currency": ("data.pricing.local.currency", "USD"),
        "reference": ("data.metadata.elicitation", "another"),
    },
    event_at={
        "amount": ("event.data.pricing.local.amount", "0.90"),
        "currency": ("event.data.pricing.local.currency", "USD"),
        "session": ("event.data.id", "charge-2"),
    },
    close=("POST /charges/charge-1/cancel", None),
    event=_coinbase_event,
    events={
        "charge:confirmed COMPLETED": SessionStatus.PAID,
        "charge:pending PENDING": SessionStatus.PENDING,
        "charge:failed EXPIRED": SessionStatus.CLOSED,
        "charge:resolved RESOLVED": SessionStatus.PENDING,
    },
    paid_event="charge:confirmed COMPLETED",
    ignored=_coinbase_event("charge:created NEW"),
)

CASES = (coinbase, lemon_squeezy, paddle, polar, square)
