"""A payment from start to end at an author's own provider, which is declared in four lines."""

import dataclasses
import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar, cast

import httpx
import msgspec
import pytest
from msgspec.structs import replace
from standardwebhooks import Webhook

from flows.elicitation.flow import Talk
from flows.elicitation.states import Elicitation
from flows.errors import Failed, InvalidQuestion, Unverified
from flows.payments.declared.declaration import DeclaredAccount, ProviderDeclaration
from flows.payments.declared.gateway import DeclaredGateway
from flows.payments.declared.mapping import Holding, Reading
from flows.payments.gateway import Notice, Signs, verify_notice, verify_session, with_returns
from flows.payments.money import Money
from flows.payments.receipt import RefundStatus
from flows.payments.session import SessionStatus
from flows.webhooks.signatures import verify
from tests.support import gateway_env
from tests.support.clock import NOON
from tests.support.gateway_env import BACK, ID, NINE, TRIP

OPEN, PENDING, PAID, FAILED, CLOSED = SessionStatus

T = TypeVar("T")
OWN = ProviderDeclaration(
    name="till",
    label="The Till",
    api="https://api.till.example/v1",
    checkout_origins=("https://pay.till.example",),
)
HOOK_SECRET = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SELLER = DeclaredAccount(
    declaration=OWN, secret="till_key", webhook_secrets=(HOOK_SECRET,), is_live=True
)
GATEWAY = DeclaredGateway(SELLER)


class PaymentEnv:
    """A payment provider that fulfils the contract and does nothing else."""

    def __init__(self) -> None:
        self.checkouts: dict[str, dict[str, Any]] = {}
        self.answers: dict[str, Any] = {}  # by idempotency key
        self.ids = itertools.count(1)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.headers.get("Authorization") != "Bearer till_key":
            return httpx.Response(401, json={"code": "unauthorized"})
        key = request.headers.get("Idempotency-Key")
        if key is not None and key in self.answers:
            return httpx.Response(200, json=self.answers[key])
        status, answer = self.answer(request)
        if key is not None and status < 300:
            self.answers[key] = answer
        return httpx.Response(status, json=answer)

    def answer(self, request: httpx.Request) -> tuple[int, Any]:
        match (request.method, request.url.path.removeprefix("/v1").split("/")[1:]):
            case ("POST", ["checkouts"]):
                return 201, self.open(msgspec.json.decode(request.content))
            case ("GET", ["checkouts", id]) if id in self.checkouts:
                return 200, self.checkouts[id]
            case ("POST", ["checkouts", id, "close"]) if id in self.checkouts:
                if self.checkouts[id]["state"] == "open":
                    self.checkouts[id]["state"] = "closed"
                return 200, self.checkouts[id]
            case ("POST", ["payments", id, "refunds"]):
                return self.refund(id, msgspec.json.decode(request.content))
            case _:
                return 404, {"code": "not_found"}

    def open(self, asked: dict[str, Any]) -> dict[str, Any]:
        id = f"ch-{next(self.ids)}"
        self.checkouts[id] = {
            "id": id,
            "state": "open",
            "live": True,
            "amount": asked["amount"],
            "currency": asked["currency"],
            "reference": asked["reference"],
            "url": f"https://pay.till.example/{id}",
            "closes_at": (NOON + timedelta(hours=1)).isoformat(),
            "refunded": 0,
            "charged_back": 0,
        }
        return dict(self.checkouts[id])

    def pay(self, id: str) -> None:
        self.checkouts[id] |= {"state": "paid", "payment": f"p-{id}"}

    def refund_manually(self, id: str, amount: int) -> None:
        self.checkouts[id]["refunded"] += amount

    def refund(self, payment: str, asked: dict[str, Any]) -> tuple[int, Any]:
        checkout = self.checkouts[payment.removeprefix("p-")]
        if asked["amount"] > checkout["amount"] - checkout["refunded"]:
            return 422, {"code": "too_much"}
        checkout["refunded"] += asked["amount"]
        return 201, {"id": f"re-{next(self.ids)}", "state": "pending", **asked}

    def signed_event(self, id: str) -> tuple[bytes, dict[str, str]]:
        event = {"type": "checkout.updated", "data": self.checkouts[id]}
        body = msgspec.json.encode(event)
        message = f"msg_{next(self.ids)}"
        headers = {
            "webhook-id": message,
            "webhook-timestamp": str(int(NOON.timestamp())),
            "webhook-signature": Webhook(HOOK_SECRET).sign(message, NOON, body.decode()),
        }
        return body, headers


def run(talk: Talk[T], payment_env: Callable[[httpx.Request], httpx.Response]) -> T:
    with httpx.Client(transport=httpx.MockTransport(payment_env)) as client:
        try:
            request = next(talk)
            while True:
                request = talk.send(client.send(request))
        except StopIteration as stop:
            result: T = stop.value
            return result


def asked() -> Elicitation:
    return gateway_env.asked("till", is_live=True)


def opened(payment_env: PaymentEnv) -> Elicitation:
    before = gateway_env.prepared(GATEWAY, asked())
    assert before.attempt is not None
    departure = run(GATEWAY.begin(before, TRIP), payment_env)
    assert departure.url == "https://pay.till.example/ch-1"
    return replace(before, attempt=replace(before.attempt, kept=departure.attempt_data))


def notice_of(payment_env: PaymentEnv, id: str = "ch-1") -> Notice:
    body, headers = payment_env.signed_event(id)
    delivery = verify(
        GATEWAY.scheme,
        body=body,
        headers=[*headers.items()],
        secrets=GATEWAY.webhook_secrets,
        now=NOON,
    )
    return GATEWAY.read_notice(delivery.body)


def test_provider_declared_in_four_lines_can_be_paid() -> None:
    assert isinstance(GATEWAY, Signs)
    payment_env = PaymentEnv()
    elicitation = opened(payment_env)
    request = msgspec.json.decode(gateway_env.stored_checkout(elicitation).request)
    assert request == {
        "reference": ID,
        "amount": 900,
        "currency": "EUR",
        "description": "Premium report & more",
        "return_url": f"{BACK}?state=s-1",
        "cancel_url": f"{BACK}?state=s-1&cancelled=1",
    }
    assert verify_session(
        elicitation, run(GATEWAY.fetch(elicitation, "ch-1"), payment_env), seller=SELLER
    ) is (OPEN)
    payment_env.pay("ch-1")
    found = run(GATEWAY.fetch(elicitation, "ch-1"), payment_env)
    assert verify_session(elicitation, found, seller=SELLER) is PAID
    assert found.payment == "p-ch-1"
    notice = notice_of(payment_env)
    assert notice.session == dataclasses.replace(found, url=None, closes_at=None, is_now=False)
    assert verify_notice(elicitation, notice, seller=SELLER) is PAID
    assert run(GATEWAY.close(elicitation, "ch-1"), payment_env) is False


def test_lost_reply_opens_no_second_checkout() -> None:
    payment_env = PaymentEnv()
    elicitation = opened(payment_env)
    assert elicitation.attempt is not None
    stored = run(GATEWAY.repeat(elicitation, elicitation.attempt), payment_env)
    assert (stored.session, len(payment_env.checkouts)) == ("ch-1", 1)
    again = gateway_env.prepared(GATEWAY, asked(), number=2)
    run(GATEWAY.begin(again, TRIP), payment_env)
    assert len(payment_env.checkouts) == 2


def test_closed_checkout_is_reported_by_event() -> None:
    payment_env = PaymentEnv()
    elicitation = opened(payment_env)
    assert run(GATEWAY.close(elicitation, "ch-1"), payment_env) is True
    assert verify_notice(elicitation, notice_of(payment_env), seller=SELLER) is CLOSED


def test_partial_manual_refund_is_completed_by_our_refund() -> None:
    payment_env = PaymentEnv()
    elicitation = opened(payment_env)
    payment_env.pay("ch-1")
    paid = gateway_env.payment("till", session="ch-1", payment_intent="p-ch-1", is_live=True)
    payment_env.refund_manually("ch-1", 400)
    notice = notice_of(payment_env)
    assert notice.session is not None
    paid = with_returns(paid, notice.session, now=NOON)
    assert paid.refunded_price == Money("4.00", "EUR")
    refund = run(GATEWAY.refund(paid, reason="No seats"), payment_env)
    assert (refund.price, refund.status) == (Money("5.00", "EUR"), RefundStatus.PENDING)
    again = run(GATEWAY.refund(paid, reason="No seats"), payment_env)
    assert (again.price, again.status) == (NINE, RefundStatus.SUCCEEDED)
    assert payment_env.checkouts["ch-1"]["refunded"] == 900
    assert verify_session(
        elicitation, run(GATEWAY.fetch(elicitation, "ch-1"), payment_env), seller=SELLER
    ) is (FAILED)


def test_chargeback_in_event_fails_the_session() -> None:
    payment_env = PaymentEnv()
    elicitation = opened(payment_env)
    payment_env.pay("ch-1")
    before = notice_of(payment_env)
    payment_env.checkouts["ch-1"]["charged_back"] = 900
    after = notice_of(payment_env)
    assert after.session is not None
    assert (after.session.charged_back, after.session.state) == (900, PAID)
    assert after.transition != before.transition
    assert verify_notice(elicitation, after, seller=SELLER) is FAILED


def test_changed_event_body_is_refused() -> None:
    payment_env = PaymentEnv()
    opened(payment_env)
    body, headers = payment_env.signed_event("ch-1")
    for changed in (body + b" ", body.replace(b"open", b"paid")):
        with pytest.raises(Unverified):
            verify(
                GATEWAY.scheme,
                body=changed,
                headers=[*headers.items()],
                secrets=GATEWAY.webhook_secrets,
                now=NOON,
            )


def test_wrong_api_key_fails_with_provider_error_code() -> None:
    other = DeclaredGateway(dataclasses.replace(SELLER, secret="other"))
    with pytest.raises(Failed, match=r"The Till could not .+ \(HTTP 401, unauthorized\)"):
        run(other.begin(gateway_env.prepared(other, asked()), TRIP), PaymentEnv())


# The content of a declaration.


def declared(**fields: Any) -> ProviderDeclaration:
    return dataclasses.replace(OWN, **fields)


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"name": "Till"}, "name:"),
        ({"label": " "}, "label:"),
        ({"api": "http://till.example"}, "api:"),
        ({"api": "https://till.example/"}, "api:"),
        ({"api": "https://{region}.till.example"}, "api: {region}"),
        ({"test_api": "https://{secret}.till.example"}, "test_api: {secret}"),
        ({"checkout_origins": ("https://till.example/pay",)}, "checkout_origins:"),
        ({"needs": ("secret",)}, "needs:"),
        ({"needs": ("what",)}, "needs:"),
        ({"needs": ("Shop",)}, "needs:"),
        ({"account": "shop"}, "account:"),
        ({"life": timedelta()}, "life:"),
        ({"life": timedelta(days=8)}, "life:"),
        ({"create": "checkouts"}, "create:"),
        ({"create": "POST https://evil.example/"}, "create:"),
        ({"create": "POST /x/{minor}"}, "create: {minor}"),
        ({"create_body": {"key": "{secret}"}}, "create_body: {secret}"),
        ({"create_body": {"{payment}": 1}}, "create_body: {payment}"),
        ({"fetch": "GET /x/{reference}"}, "fetch: {reference}"),
        ({"close_body": {"x": ["{what}"]}}, "close_body: {what}"),
        ({"refund": "POST /x/{session}"}, "refund: {session}"),
        ({"settles": False, "fetch": None}, "settles:"),
        ({"headers": (("X Y", "z"),)}, "headers:"),
        ({"headers": (("X-Y", "a\r\nb"),)}, "headers:"),
        ({"headers": (("X-Y", "{what}"),)}, "headers.X-Y: {what}"),
        ({"idempotency": "a b"}, "headers:"),
        ({"event_type": "a..b"}, "event_type:"),
        ({"refund_states": {"paid": RefundStatus.PENDING}}, "refund_states:"),
        ({"fetched": Reading(amount="a b")}, "fetched.amount:"),
        ({"fetched": Reading(amount="a+b")}, "fetched.amount:"),
        ({"fetched": Reading(payment="{key}")}, "fetched.payment:"),
        ({"fetched": Reading(states=cast("Any", None))}, "fetched.states:"),
        ({"what_at_most": 0}, "what_at_most:"),
        ({"unit_digits": -1}, "unit_digits:"),
        ({"told": Reading(states={"paid": PAID})}, "told.states:"),
        (
            {"holding": Holding(call="GET /x/{session}", id="id", currency="c", given="g")},
            "holding: {session}",
        ),
        (
            {"holding": Holding(call="GET /x", id="id", currency="c", given="g+")},
            "holding.given:",
        ),
    ],
)
def test_invalid_declaration_field_is_named_in_error(fields: dict[str, Any], fault: str) -> None:
    with pytest.raises(InvalidQuestion) as found:
        declared(**fields)
    [line] = [line for line in str(found.value).splitlines() if line.startswith(fault)]
    assert line.endswith(".")


def test_all_invalid_declaration_fields_are_named_at_once() -> None:
    with pytest.raises(InvalidQuestion) as found:
        declared(name="Till", label="", create="x")
    assert len(str(found.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"secret": ""}, "not a valid key"),
        ({"secret": "a b"}, "not a valid key"),
        ({"secret": "a\nb"}, "not a valid key"),
        ({"secret": "ä"}, "not a valid key"),
        ({"is_live": False}, "no test mode"),
        ({"own": {"shop": "a/b"}}, "letters"),
        ({"own": {"shop": ".."}}, "letters"),
        ({"more_checkout_origins": ("https://till.example/x",)}, "origin"),
        ({"declaration": declared(checkout_origins=())}, "origin"),
        ({"declaration": declared(needs=("shop",))}, "needs shop"),
    ],
)
def test_unusable_registration_is_refused(fields: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        dataclasses.replace(SELLER, **fields)


def test_repr_hides_keys() -> None:
    assert "till_key" not in repr(SELLER)
    assert HOOK_SECRET not in repr(SELLER)


def test_setting_value_is_filled_into_path_and_body() -> None:
    own = declared(
        needs=("shop",), create="POST /shops/{shop}/checkouts", create_body={"shop": "{shop}"}
    )
    gateway = DeclaredGateway(dataclasses.replace(SELLER, declaration=own, own={"shop": "a.b"}))
    before = gateway_env.prepared(gateway, asked())
    request = next(gateway.begin(before, TRIP))
    assert request.url.path == "/v1/shops/a.b/checkouts"
    assert request.content == b'{"shop":"a.b"}'


def test_refund_without_reason_sends_no_reason_member() -> None:
    payment_env = PaymentEnv()
    opened(payment_env)
    payment_env.pay("ch-1")
    paid = gateway_env.payment("till", session="ch-1", payment_intent="p-ch-1", is_live=True)
    talk = GATEWAY.refund(paid, reason=None)
    next(talk)
    request = talk.send(httpx.Response(200, json=payment_env.checkouts["ch-1"]))
    assert msgspec.json.decode(request.content) == {"amount": 900, "currency": "EUR"}


def test_refund_excludes_amount_already_refunded() -> None:
    payment_env = PaymentEnv()
    opened(payment_env)
    payment_env.pay("ch-1")
    paid = gateway_env.payment(
        "till", session="ch-1", payment_intent="p-ch-1", is_live=True, refunded=400
    )
    assert run(GATEWAY.refund(paid, reason=None), payment_env).price == Money("5.00", "EUR")


@pytest.mark.parametrize("changes", [{"id": "ch-2"}, {"currency": "USD"}, {"refunded": -1}])
def test_refund_reply_about_another_payment_raises_failed(changes: dict[str, Any]) -> None:
    payment_env = PaymentEnv()
    opened(payment_env)
    paid = gateway_env.payment("till", session="ch-1", payment_intent="p-ch-1", is_live=True)
    talk = GATEWAY.refund(paid, reason=None)
    next(talk)
    with pytest.raises(Failed, match="refund the payment"):
        talk.send(httpx.Response(200, json={**payment_env.checkouts["ch-1"], **changes}))


def test_refund_is_sent_directly_if_fetch_needs_a_handle() -> None:
    own = declared(fetch="GET /checkouts/{handle}")
    gateway = DeclaredGateway(dataclasses.replace(SELLER, declaration=own))
    paid = gateway_env.payment("till", session="ch-1", payment_intent="p-ch-1", is_live=True)
    assert next(gateway.refund(paid, reason=None)).method == "POST"


def test_checkout_expires_when_provider_says() -> None:
    stored = gateway_env.stored_checkout(opened(PaymentEnv()))
    assert stored.expires_at == (NOON + timedelta(hours=1)).timestamp()


@pytest.mark.parametrize("changes", [{"closes_at": "2026-03-01T13:00:00"}, {"closes_at": "soon"}])
def test_invalid_closing_time_opens_no_checkout(changes: dict[str, Any]) -> None:
    payment_env = PaymentEnv()
    opened(payment_env)
    talk = GATEWAY.begin(gateway_env.prepared(GATEWAY, asked()), TRIP)
    next(talk)
    with pytest.raises(Failed, match="its response is invalid"):
        talk.send(httpx.Response(201, json={**payment_env.checkouts["ch-1"], **changes}))
