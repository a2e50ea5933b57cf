"""The guarantees of every gateway that was written for a single provider."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from flows.elicitation.flow import Redirect, Talk
from flows.elicitation.states import Elicitation
from flows.errors import Failed, InvalidQuestion
from flows.payments.gateway import Gateway, MerchantAccount, verify_session
from flows.payments.mollie.gateway import sandbox_mollie
from flows.payments.money import Money
from flows.payments.paypal.gateway import sandbox_paypal
from flows.payments.registry import gateway_of
from flows.payments.session import Mismatch, SessionStatus, sessions_of
from flows.payments.stripe.gateway import sandbox_stripe
from tests.support import checkouts, gateway_env
from tests.support.anything import JSON
from tests.support.checkout_replies import (
    MOLLIE_KEY,
    MOLLIE_PAGE,
    MOLLIE_SELLER,
    PAYPAL_PAGE,
    PAYPAL_SELLER,
    PAYPAL_TOKEN,
    mollie_payment,
    paypal_order,
)
from tests.support.gateway_env import ID, NINE, NO_ANSWERS, TRIP, T, reply, stored_checkout

SANDBOX = "http://127.0.0.1:8766/there"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A provider with an open checkout, its successful reply and its refusal."""

    seller: MerchantAccount
    sandbox: MerchantAccount  # uses the address SANDBOX
    session: str
    page: str
    call: str
    headers: Mapping[str, str]
    opened: Callable[..., dict[str, Any]]
    with_page: Callable[[str], dict[str, Any]]
    refusal: Callable[[str], dict[str, Any]]
    lets_in: tuple[dict[str, Any], ...] = ()  # replies before the tested one, such as a token

    @property
    def gateway(self) -> Gateway:
        return gateway_of(self.seller)

    def asked(self, price: Money = NINE, **terms: Any) -> Elicitation:
        return gateway_env.asked(self.seller.name, price, **terms)

    def prepared(self, *, number: int = 1) -> Elicitation:
        return gateway_env.prepared(self.gateway, self.asked(), number=number)

    def begun(self) -> Elicitation:
        return gateway_env.begun(self.gateway, self.asked(), session=self.session, url=self.page)

    def run(self, talk: Talk[T], *replies: httpx.Response) -> tuple[T, list[httpx.Request]]:
        result, requests = gateway_env.run(talk, *map(reply, self.lets_in), *replies)
        return result, requests[len(self.lets_in) :]


CASES = {
    "stripe": Case(
        seller=checkouts.SELLER,
        sandbox=sandbox_stripe(f"{SANDBOX}/", checkouts.KEY, ["whsec_x"]),
        session="cs_test_1",
        page=checkouts.PAGE,
        call="POST https://api.stripe.com/v1/checkout/sessions",
        headers={
            "idempotency-key": f"{ID}:3",
            "authorization": f"Bearer {checkouts.KEY}",
            "content-type": "application/x-www-form-urlencoded",
        },
        opened=checkouts.session,
        with_page=lambda url: checkouts.session(url=url),
        refusal=lambda code: {
            "error": {"code": code, "message": f"{checkouts.KEY} is not good for that"}
        },
    ),
    "paypal": Case(
        seller=PAYPAL_SELLER,
        sandbox=sandbox_paypal(f"{SANDBOX}/", "id", "secret"),
        session="ORDER1",
        page=PAYPAL_PAGE,
        call="POST https://api-m.sandbox.paypal.com/v2/checkout/orders",
        headers={
            "paypal-request-id": f"{ID}:3",
            "authorization": "Bearer A21-hidden-2",
            "prefer": "return=representation",
        },
        opened=paypal_order,
        with_page=lambda url: paypal_order(links=[{"rel": "approve", "href": url}]),
        refusal=lambda code: {"details": [{"issue": code, "description": "hidden-1 is not good"}]},
        lets_in=(PAYPAL_TOKEN,),
    ),
    "mollie": Case(
        seller=MOLLIE_SELLER,
        sandbox=sandbox_mollie(f"{SANDBOX}/", MOLLIE_KEY),
        session="tr_1",
        page=MOLLIE_PAGE,
        call="POST https://api.mollie.com/v2/payments",
        headers={
            "idempotency-key": f"{ID}:3",
            "authorization": f"Bearer {MOLLIE_KEY}",
            "content-type": "application/json",
        },
        opened=mollie_payment,
        with_page=lambda url: mollie_payment(_links={"checkout": {"href": url}}),
        refusal=lambda code: {"field": code, "detail": f"{MOLLIE_KEY} is not good for that"},
    ),
}
every = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@every
def test_stored_bytes_are_sent_with_idempotency_key_of_attempt(case: Case) -> None:
    # defect: paymcp no idempotency key
    before = case.prepared(number=3)
    assert before.attempt is not None
    departure, [request] = case.run(case.gateway.begin(before, TRIP), reply(case.opened(), 201))
    assert f"{request.method} {request.url}" == case.call
    assert request.content == stored_checkout(before).request.encode()
    assert case.headers.items() <= dict(request.headers).items()
    assert departure.url == case.page
    stored = replace(stored_checkout(before), session=case.session, url=case.page)
    assert departure.attempt_data == msgspec.to_builtins(stored)
    after = replace(before, attempt=replace(before.attempt, kept=departure.attempt_data))
    assert sessions_of(after) == (case.session,)
    for secret in ("hidden", checkouts.KEY, MOLLIE_KEY):
        assert secret not in str(departure.attempt_data)


@every
def test_lost_reply_is_repeated_with_same_bytes_and_key(case: Case) -> None:
    before = case.prepared()
    attempt = before.attempt
    assert attempt is not None
    _, first = case.run(case.gateway.begin(before, TRIP), reply(case.opened(), 201))
    later = replace(before, earlier_attempts=(attempt,), attempt=replace(attempt, number=2))
    stored, again = case.run(case.gateway.repeat(later, attempt), reply(case.opened()))
    assert stored.session == case.session
    assert [(one.content, one.headers) for one in again] == [
        (one.content, one.headers) for one in first
    ]


@every
def test_second_press_reuses_open_checkout(case: Case) -> None:
    first = case.begun()
    assert first.attempt is not None
    assert case.gateway.prepare(first, TRIP) == first.attempt.kept
    assert gateway_env.run(case.gateway.begin(first, TRIP)) == (Redirect(url=case.page), [])


@every
def test_zero_price_is_refused(case: Case) -> None:
    nothing = Money.from_minor_units(0, "EUR")
    case.gateway.check(NINE)
    with pytest.raises(InvalidQuestion):
        case.gateway.check(nothing)
    with pytest.raises(InvalidQuestion):
        case.gateway.prepare(case.asked(nothing), TRIP)


@every
def test_attempt_without_stored_request_cannot_be_repeated(case: Case) -> None:
    before = case.prepared()
    assert before.attempt is not None
    with pytest.raises(Failed, match="not been started"):
        next(case.gateway.repeat(before, replace(before.attempt, kept={"verifier": "v"})))


@every
def test_test_mode_gateway_refuses_live_prices(case: Case) -> None:
    name, gateway = case.seller.name, case.gateway
    live = gateway_env.prepared(gateway, case.asked(is_live=True))
    assert live.attempt is not None
    paid = gateway_env.payment(name, session="X", payment_intent="X", is_live=True)
    for talk in (
        gateway.begin(live, TRIP),
        gateway.repeat(live, live.attempt),
        gateway.fetch(live, "X"),
        gateway.collect(live, "X"),
        gateway.close(live, "X"),
        gateway.refund(paid, reason=None),
        gateway.refund(replace(paid, is_live=False, seller="another"), reason=None),
        gateway.refund(replace(paid, is_live=False, payment_intent=None), reason=None),
    ):
        with pytest.raises(Failed, match=r"mode|has no payment"):
            next(talk)


@every
def test_sandbox_has_its_own_address_and_is_never_live(case: Case) -> None:
    sandbox, page = case.sandbox, f"{SANDBOX}/pay/1"
    assert (sandbox.api, sandbox.is_live) == (SANDBOX, False)
    assert sandbox.checkout_origins == ("http://127.0.0.1:8766",)
    talk = gateway_of(sandbox).begin(case.prepared(), TRIP)
    departure, [request] = case.run(talk, reply(case.with_page(page)))
    assert str(request.url) == SANDBOX + request.url.path.removeprefix("/there")
    assert departure.url == page


@every
def test_failure_shows_provider_error_code_but_not_its_message(case: Case) -> None:
    for code, shown in (("TOO_SMALL", ", TOO_SMALL"), ("Pay at https://evil.example", "")):
        refused = reply(case.refusal(code), 422)
        with pytest.raises(Failed, match=rf"\(HTTP 422{shown}\)") as failed:
            case.run(case.gateway.begin(case.prepared(), TRIP), refused)
        assert "not good" not in str(failed.value)


@every
@pytest.mark.parametrize("bad", NO_ANSWERS)
def test_unreadable_reply_fails_with_explanation(case: Case, bad: httpx.Response) -> None:
    words = rf"^{case.seller.label} [a-z][^\n]+\.$"
    with pytest.raises(Failed, match=words):
        case.run(case.gateway.begin(case.prepared(), TRIP), bad)
    with pytest.raises(Failed, match=words):
        case.run(case.gateway.fetch(case.begun(), case.session), bad, bad)


@every
@pytest.mark.parametrize(
    "host",
    [
        "https://{}.evil.example/",
        "https://{}@evil.example/",
        "http://{}/",
        "https://{}:8443/",
        "//evil.example",
        "javascript:alert(1)",
        "",
    ],
)
def test_foreign_checkout_address_is_refused(case: Case, host: str) -> None:
    url = host.format(httpx.URL(case.page).host)
    with pytest.raises(Failed, match=r"does not send you there|returned no payment page"):
        case.run(case.gateway.begin(case.prepared(), TRIP), reply(case.with_page(url), 201))


@given(st.sampled_from([*CASES.values()]), st.data())
def test_random_reply_is_verified_or_raises_our_errors(case: Case, data: st.DataObject) -> None:
    odd = st.dictionaries(st.sampled_from(sorted(case.opened())), JSON)
    answer = data.draw(JSON | odd.map(lambda changes: case.opened(**changes)))
    with suppress(Failed, Mismatch):
        session, _ = case.run(case.gateway.fetch(case.begun(), case.session), reply(answer))
        assert verify_session(case.begun(), session, seller=case.seller) in SessionStatus
