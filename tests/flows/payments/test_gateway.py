"""Gateways: how a `ProviderSession` of any provider is verified, and Stripe's gateway."""

from contextlib import suppress
from dataclasses import replace as changed
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.elicitation.flow import Redirect
from flows.elicitation.states import Elicitation, Json
from flows.errors import Failed, InvalidQuestion, NotConfigured
from flows.payments import claims
from flows.payments.gateway import (
    Gateway,
    MerchantAccount,
    Notice,
    NoticesOnly,
    ProviderSession,
    Signs,
    forget_page,
    open_page,
    verify_notice,
    verify_session,
    with_returns,
)
from flows.payments.mollie.gateway import mollie
from flows.payments.money import Money
from flows.payments.paypal.gateway import paypal
from flows.payments.receipt import Dispute, Payment, PaymentChange, ReceiptStatus
from flows.payments.registry import Gateways, gateway_of
from flows.payments.responses import is_refusal, minor_units, written
from flows.payments.session import Malformed, Mismatch, SessionStatus, StoredCheckout
from flows.payments.stripe.gateway import StripeGateway, stripe
from flows.payments.stripe.messages import (
    charge_amount,
    listed_session,
    provider_session,
    read_session,
)
from flows.webhooks.signatures import verify
from tests.support import gateway_env, signing
from tests.support.checkouts import session as session_of
from tests.support.clock import NOON
from tests.support.gateway_env import ID, TRIP, reply, run, stored_checkout

OPEN, PENDING, PAID, FAILED, CLOSED = SessionStatus

SELLER = stripe("sk_test_notAKey", ["whsec_one"])
STRIPE = StripeGateway(SELLER)
PAGE = "https://checkout.stripe.com/c/pay/cs_test_1"


def begun(price: Money = gateway_env.NINE) -> Elicitation:
    return gateway_env.begun(
        STRIPE, gateway_env.asked("stripe", price), session="cs_test_1", url=PAGE
    )


def found(**changes: Any) -> ProviderSession:
    """Return a paid `ProviderSession` with these changes."""
    fields: dict[str, Any] = {
        "id": "cs_test_1",
        "state": PAID,
        "amount": 900,
        "currency": "EUR",
        "reference": ID,
        "is_live": False,
    }
    return ProviderSession(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "verified"),
    [
        ({"state": OPEN}, OPEN),
        ({"state": PENDING}, PENDING),
        ({"state": PAID}, PAID),
        ({"state": FAILED}, FAILED),
        ({"state": CLOSED}, CLOSED),
        ({"refunded": 899}, PAID),
        ({"refunded": 900}, FAILED),
        ({"refunded": 400, "charged_back": 500}, FAILED),
    ],
)
def test_session_state_and_refunds_determine_status(
    changes: dict[str, Any], verified: SessionStatus
) -> None:
    assert verify_session(begun(), found(**changes), seller=SELLER) is verified


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"id": "cs_test_2"}, "session"),
        ({"reference": None}, "reference"),
        ({"reference": "another"}, "reference"),
        ({"currency": "USD"}, "currency"),
        ({"currency": None}, "currency"),
        ({"amount": 90}, "amount"),
        ({"amount": 901}, "amount"),
        ({"amount": None}, "amount"),
        ({"is_live": True}, "mode"),
        ({"account": "acct_2"}, "account"),
    ],
)
def test_session_of_another_question_is_refused(changes: dict[str, Any], what: str) -> None:
    seller = stripe("sk_test_x", [], account="acct_1")
    with pytest.raises(Mismatch) as mismatch:
        verify_session(begun(), found(**changes), seller=seller)
    assert mismatch.value.what == what


def paid_row(**changes: Any) -> Payment:
    return gateway_env.payment("mollie", session="tr_1", payment_intent="tr_1", **changes)


def test_refund_found_by_fetch_is_recorded_in_ledger() -> None:
    assert with_returns(paid_row(), found(id="tr_1"), now=NOON) == paid_row()
    part = with_returns(paid_row(), found(id="tr_1", refunded=400), now=NOON)
    assert (part.status, part.refunded) == (ReceiptStatus.OPEN, 400)
    whole = with_returns(part, found(id="tr_1", refunded=900), now=NOON)
    assert whole.status is ReceiptStatus.REFUNDED
    assert with_returns(whole, found(id="tr_1", refunded=900), now=NOON) == whole
    assert with_returns(part, found(id="tr_1", refunded=0), now=NOON) == part


def test_chargeback_disputes_payment_and_its_end_reopens_payment() -> None:
    gone = with_returns(paid_row(), found(id="tr_1", charged_back=900), now=NOON)
    assert gone.status is ReceiptStatus.DISPUTED
    back = with_returns(gone, found(id="tr_1", charged_back=0), now=NOON)
    assert back.status is ReceiptStatus.OPEN
    again = with_returns(back, found(id="tr_1", charged_back=900), now=NOON)
    assert again.status is ReceiptStatus.DISPUTED


def test_session_of_another_seller_or_mode_is_refused() -> None:
    for other in (changed(SELLER, name="shop"), changed(SELLER, is_live=True)):
        with pytest.raises(Mismatch, match="mode"):
            verify_session(begun(), found(), seller=other)


def outcome(verified: Any) -> object:
    """Return the result of a verification, or the reason of its mismatch."""
    try:
        return verified()
    except Mismatch as error:
        return error.what


json = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
sessions = st.fixed_dictionaries(
    {},
    optional={
        "id": st.sampled_from(["cs_test_1", "cs_test_2"]) | json,
        "amount_total": st.sampled_from([0, 9, 90, 900, 90_000, 10**13, None]),
        "currency": st.sampled_from(["eur", "usd", "jpy", "isk", "mga", "xxx", None]),
        "livemode": st.booleans(),
        "client_reference_id": st.sampled_from([ID, "another", None]),
    },
)
prices = st.sampled_from(
    [
        Money("9.00", "EUR"),
        Money("900", "JPY"),
        Money("9", "ISK"),
        Money("90.00", "MGA"),
        Money("9.000", "KWD"),
    ]
)


@given(sessions, prices)
def test_only_exact_price_in_stripe_units_counts_as_paid(
    changes: dict[str, Json], price: Money
) -> None:
    with suppress(Malformed):
        session = read_session(session_of(**changes, status="complete", payment_status="paid"))
        currency = (session.currency or "").upper()
        counted = (session.amount_total, currency)
        what = {
            "session": session.id == "cs_test_1",
            "reference": session.client_reference_id == ID,
            "currency": currency == price.currency,
            "amount": counted == (charge_amount(price), price.currency),
            "mode": not session.livemode,
        }
        wrong = next((name for name, is_right in what.items() if not is_right), PAID)
        assert (
            outcome(lambda: verify_session(begun(price), provider_session(session), seller=SELLER))
            == wrong
        )


def event(**changes: Any) -> Any:
    fields: dict[str, Any] = {
        "id": "evt_1",
        "type": "checkout.session.completed",
        "created": 1,
        "livemode": False,
        "data": {"object": session_of(status="complete", payment_status="paid")},
    }
    body = msgspec.json.encode({**fields, **changes})
    headers = signing.stripe(body, secret="whsec_one", now=NOON)
    return verify(
        STRIPE.scheme, body=body, headers=headers, secrets=STRIPE.webhook_secrets, now=NOON
    )


def test_refund_event_is_read_as_payment_change() -> None:
    charge = {"id": "ch_1", "payment_intent": "pi_1", "amount_refunded": 400, "currency": "eur"}
    delivery = event(type="charge.refunded", data={"object": charge})
    notice = STRIPE.read_notice(delivery.body)
    at = datetime.fromtimestamp(1, UTC)
    assert notice.news == PaymentChange(returned=400, currency="EUR", at=at)
    assert (notice.payment, notice.session) == ("pi_1", None)
    assert (notice.subject, notice.transition) == ("ch_1", "ch_1 charge.refunded 400 None")


@pytest.mark.parametrize("created", [253402300800, 10**18, 10**19])
def test_event_with_time_too_late_for_a_date_is_refused_or_ignored(created: int) -> None:
    with pytest.raises(Malformed):
        STRIPE.read_notice(event(created=created).body)
    ignored = STRIPE.read_notice(event(created=created, type="charge.captured").body)
    assert ignored == Notice(id="evt_1", type="charge.captured", is_live=False)


@pytest.mark.parametrize("expires_at", [-1, 253402300800, 10**18, 10**19])
def test_listed_session_with_impossible_expiry_has_no_expiry(expires_at: int) -> None:
    named = {**session_of(), "client_reference_id": ID, "expires_at": expires_at}
    listed = listed_session(named)
    assert listed is not None
    assert listed.closes_at is None


def test_notice_without_session_settles_nothing() -> None:
    for bare in (
        Notice(id="evt_1", type="x", is_live=False),
        Notice(id="evt_0", type="x", is_live=False, subject="evt_1"),
    ):
        with pytest.raises(Mismatch, match="session") as mismatch:
            verify_notice(begun(), bare, seller=SELLER)
        assert mismatch.value.session == "evt_1"


def test_notice_of_another_mode_settles_nothing() -> None:
    notice = Notice(id="evt_1", type="x", is_live=True, session=found())
    with pytest.raises(Mismatch, match="mode"):
        verify_notice(begun(), notice, seller=SELLER)


@pytest.mark.parametrize(
    ("changes", "state", "failed"),
    [
        ({}, OPEN, OPEN),
        ({"status": None}, OPEN, OPEN),
        ({"status": "open", "payment_status": "no_payment_required"}, OPEN, OPEN),
        ({"status": "complete"}, PENDING, FAILED),
        ({"status": "complete", "payment_status": "paid"}, PAID, PAID),
        ({"status": "complete", "payment_status": "no_payment_required"}, PAID, PAID),
        ({"status": "expired"}, CLOSED, CLOSED),
        ({"status": "expired", "payment_status": "paid"}, PAID, PAID),
    ],
)
def test_stripe_session_status_is_mapped_to_session_state(
    changes: dict[str, Any], state: SessionStatus, failed: SessionStatus
) -> None:
    session = read_session(session_of(**changes))
    assert provider_session(session).state is state
    for kind, wanted in (
        ("checkout.session.completed", state),
        ("checkout.session.async_payment_failed", failed),
    ):
        delivered = event(type=kind, data={"object": session_of(**changes)})
        notice = STRIPE.read_notice(delivered.body)
        assert notice.session is not None
        assert notice.session.state is wanted


@pytest.mark.parametrize(
    ("status", "changes", "state"),
    [
        ("processing", {}, PENDING),
        ("requires_action", {}, PENDING),
        ("succeeded", {}, PENDING),
        ("requires_payment_method", {}, FAILED),
        ("canceled", {}, FAILED),
        ("canceled", {"payment_status": "paid"}, PAID),
        ("canceled", {"payment_status": "no_payment_required"}, PAID),
        ("requires_payment_method", {"status": "open"}, OPEN),
        ("canceled", {"status": "expired"}, CLOSED),
    ],
)
def test_failed_delayed_payment_is_found_by_fetch(
    status: str, changes: dict[str, Any], state: SessionStatus
) -> None:
    intent = {"id": "pi_1", "object": "payment_intent", "status": status}
    answer = session_of(**{"status": "complete", "payment_intent": intent, **changes})
    found, [asked] = run(STRIPE.fetch(begun(), "cs_test_1"), reply(answer))
    assert asked.url.params.multi_items() == [("expand[]", "payment_intent.latest_charge")]
    assert (found.state, found.payment) == (state, "pi_1")


@pytest.mark.parametrize("intent", ["pi_1", None, {"id": "pi_1"}, {"id": "pi_1", "status": "new"}])
def test_payment_without_intent_status_is_pending(intent: Json) -> None:
    answer = session_of(status="complete", payment_intent=intent, payment_intent_status="canceled")
    assert run(STRIPE.fetch(begun(), "cs_test_1"), reply(answer))[0].state is PENDING


@pytest.mark.parametrize(
    "changes",
    [{"amount_total": None}, {"currency": None}, {"currency": "xxx"}, {"amount_total": 10**13}],
)
def test_missing_stripe_amount_or_currency_is_none(changes: dict[str, Any]) -> None:
    assert provider_session(read_session(session_of(**changes))).amount is None


def charged_back(**charge: Json) -> Json:
    """Return a paid session as Stripe sends it, with its full charge."""
    whole = {"id": "ch_1", "object": "charge", "amount_refunded": 0, "disputed": False, **charge}
    intent = {"id": "pi_1", "object": "payment_intent", "status": "succeeded"}
    return session_of(
        status="complete", payment_status="paid", payment_intent={**intent, "latest_charge": whole}
    )


def test_stripe_fetch_reports_refunds() -> None:
    # finding: M2
    part, [asked] = run(
        STRIPE.fetch(begun(), "cs_test_1"), reply(charged_back(amount_refunded=400))
    )
    assert asked.url.params["expand[]"] == "payment_intent.latest_charge"
    assert (part.state, part.refunded) == (PAID, 400)
    assert verify_session(begun(), part, seller=SELLER) is PAID
    whole, _ = run(STRIPE.fetch(begun(), "cs_test_1"), reply(charged_back(amount_refunded=900)))
    assert verify_session(begun(), whole, seller=SELLER) is FAILED


@pytest.mark.parametrize(
    ("status", "dispute", "becomes"),
    [
        ("needs_response", Dispute.OPEN, ReceiptStatus.DISPUTED),
        ("warning_needs_response", Dispute.INQUIRY, ReceiptStatus.OPEN),
        ("lost", Dispute.LOST, ReceiptStatus.DISPUTED),
        ("appeal_under_review", Dispute.APPEALED, ReceiptStatus.DISPUTED),
        ("won", Dispute.WON, ReceiptStatus.OPEN),
        ("warning_closed", Dispute.CLOSED, ReceiptStatus.OPEN),
        ("a_word_of_next_year", Dispute.OPEN, ReceiptStatus.DISPUTED),
    ],
)
def test_stripe_fetch_reports_dispute_stage(
    status: str, dispute: Dispute, becomes: ReceiptStatus
) -> None:
    # finding: M2
    claim = {"id": "dp_1", "object": "dispute", "payment_intent": "pi_1", "status": status}
    found, [_, asked] = run(
        STRIPE.fetch(begun(), "cs_test_1"),
        reply(charged_back(disputed=True)),
        reply({"object": "list", "data": [claim], "has_more": False}),
    )
    assert (asked.url.path, asked.url.params["payment_intent"]) == ("/v1/disputes", "pi_1")
    assert [(one.id, one.stage) for one in found.claims] == [("dp_1", dispute)]
    payment = gateway_env.payment("stripe", session="cs_test_1", payment_intent="pi_1")
    now = with_returns(payment, found, now=NOON)
    assert now.status is becomes
    # The event of the same dispute changes nothing further.
    assert claims.disputed(now, "dp_1", dispute, at=NOON) == now


@pytest.mark.parametrize("amount", ["9", -1, None])
def test_unreadable_stripe_charge_raises_failed(amount: Json) -> None:
    with pytest.raises(Failed):
        run(STRIPE.fetch(begun(), "cs_test_1"), reply(charged_back(amount_refunded=amount)))


@pytest.mark.parametrize(
    "bad",
    [
        reply({"data": [{"id": "dp_1", "payment_intent": "pi_2", "status": "won"}]}),
        reply({"data": [{"id": "dp_1"}]}),
        reply({}, 403),
    ],
)
def test_unreadable_stripe_disputes_raise_failed(bad: httpx.Response) -> None:
    with pytest.raises(Failed, match="could not list the disputes of a payment"):
        run(STRIPE.fetch(begun(), "cs_test_1"), reply(charged_back(disputed=True)), bad)


def test_stripe_payment_is_traced_to_its_question() -> None:
    intent = {"id": "pi_1", "metadata": {"elicitation": ID}}
    found, [asked] = run(STRIPE.trace("pi_1"), reply(intent))
    assert (found, asked.url.path) == (ID, "/v1/payment_intents/pi_1")
    assert run(STRIPE.trace("pi_1"), reply({"id": "pi_1"}))[0] is None
    assert run(STRIPE.trace("pi_1"), reply({}, 404))[0] is None
    for bad in (reply({"id": "pi_2"}), reply({}, 500), reply([]), httpx.Response(200)):
        with pytest.raises(Failed, match="could not report a payment"):
            run(STRIPE.trace("pi_1"), bad)


def test_stripe_collect_only_fetches_the_session() -> None:
    session, [asked] = run(STRIPE.collect(begun(), "cs_test_1"), reply(session_of()))
    assert (session.state, asked.method) == (OPEN, "GET")


SELLERS: dict[str, MerchantAccount] = {
    "stripe": SELLER,
    "paypal": paypal("id", "secret", is_live=False),
    "mollie": mollie("test_x"),
}
ALL: dict[str, Gateway] = {name: gateway_of(seller) for name, seller in SELLERS.items()}


def test_gateways_route_each_question_to_its_own_provider() -> None:
    gateways = Gateways(SELLERS)
    for name, gateway in ALL.items():
        assert gateways.of(gateway_env.asked(name)).seller == gateways.seller(name) == SELLERS[name]
        assert gateways.prepare(gateway_env.asked(name), TRIP) == gateway.prepare(
            gateway_env.asked(name), TRIP
        )
    before = gateway_env.prepared(STRIPE, gateway_env.asked("stripe"))
    assert before.attempt is not None
    assert isinstance(run(gateways.begin(before, TRIP), reply(session_of()))[0], Redirect)
    for name in SELLERS:
        assert gateways.for_stored(name) is gateways.named(name)


def test_removed_provider_is_named_in_error() -> None:
    gateways = Gateways({"paypal": SELLERS["paypal"]})
    with pytest.raises(NotConfigured, match="stripe"):
        gateways.prepare(gateway_env.asked("stripe"), TRIP)
    with pytest.raises(NotConfigured, match="stripe"):
        next(gateways.begin(begun(), TRIP))


def test_session_of_removed_provider_cannot_be_fetched() -> None:
    gateways = Gateways({"paypal": SELLERS["paypal"]})
    with pytest.raises(Failed, match="not configured any more"):
        gateways.for_stored("stripe")


def test_only_signing_gateway_can_settle_by_webhook() -> None:
    assert {name for name, one in ALL.items() if isinstance(one, Signs)} == {"stripe"}
    assert {name for name, one in ALL.items() if isinstance(one, NoticesOnly)} == {
        "paypal",
        "mollie",
    }


def test_repr_of_sellers_hides_secrets() -> None:
    shown = repr(paypal("id", "hidden-1", is_live=True)) + repr(mollie("live_hidden-2"))
    assert "hidden" not in shown


def test_checkout_is_reused_until_shortly_before_closing() -> None:
    elicitation = begun()
    stored = stored_checkout(elicitation)
    assert open_page(elicitation, now=NOON) == stored
    until = datetime.fromtimestamp(stored.expires_at, UTC)
    assert open_page(elicitation, now=until - timedelta(minutes=2, seconds=1)) == stored
    assert open_page(elicitation, now=until - timedelta(minutes=2)) is None
    assert open_page(gateway_env.asked("stripe"), now=NOON) is None


def test_checkout_closed_early_is_not_reused() -> None:
    closed = forget_page(begun(), "cs_test_1")
    assert open_page(closed, now=NOON) is None
    assert stored_checkout(closed).session == "cs_test_1"
    assert forget_page(closed, "cs_test_1") == closed
    assert forget_page(begun(), "cs_test_2") == begun()
    assert forget_page(gateway_env.asked("stripe"), "cs_test_1") == gateway_env.asked("stripe")
    for gateway in ALL.values():
        name = gateway.seller.name
        over = forget_page(
            gateway_env.begun(gateway, gateway_env.asked(name), session="tr_1", url=PAGE), "tr_1"
        )
        fresh = msgspec.convert(gateway.prepare(over, TRIP), StoredCheckout)
        assert (fresh.session, fresh.url) == (None, None)


@pytest.mark.parametrize(
    ("price", "digits", "figures"),
    [
        (Money("9.00", "EUR"), None, "9.00"),
        (Money("0.29", "USD"), None, "0.29"),
        (Money("500", "JPY"), None, "500"),
        (Money("1.005", "KWD"), None, "1.005"),
        (Money("900.00", "HUF"), 0, "900"),
        (Money("5", "ISK"), 2, "5.00"),
        (Money("5.120", "KWD"), 2, "5.12"),
    ],
)
def test_amount_is_written_with_requested_decimals(
    price: Money, digits: int | None, figures: str
) -> None:
    assert written(price, digits=digits) == figures
    assert minor_units(figures, price.currency) == price.minor_units


@pytest.mark.parametrize(
    ("price", "digits"),
    [
        (Money("900.50", "HUF"), 0),
        (Money("5.124", "KWD"), 2),
        (Money.from_minor_units(0, "EUR"), None),
    ],
)
def test_unwritable_price_is_refused_instead_of_rounded(price: Money, digits: int | None) -> None:
    with pytest.raises(InvalidQuestion, match=str(price)):
        written(price, digits=digits)


@pytest.mark.parametrize(
    ("figures", "currency"),
    [
        ("9.005", "EUR"),
        ("9,00", "EUR"),
        ("-9.00", "EUR"),
        ("+9.00", "EUR"),
        ("9e2", "EUR"),
        (".90", "EUR"),
        ("9.", "EUR"),
        ("", "EUR"),
        (" 9.00", "EUR"),
        ("9.00\n", "EUR"),
        ("NaN", "EUR"),
        ("Infinity", "EUR"),
        ("\u0669.00", "EUR"),
        ("9" * 13, "JPY"),
        ("9" * 11, "EUR"),
        ("10000000000.00", "EUR"),
        ("9.00", "XXX"),
        ("9.00", "eur"),
        ("0.5", "JPY"),
    ],
)
def test_invalid_amount_text_is_malformed(figures: str, currency: str) -> None:
    with pytest.raises(Malformed):
        minor_units(figures, currency)


def test_zero_and_trailing_zeros_are_read_as_amounts() -> None:
    assert minor_units("0.00", "EUR") == 0
    assert minor_units("500.00", "JPY") == 500
    assert minor_units("9", "EUR") == 900


@given(st.integers(1, 10**12 - 1), st.sampled_from(["EUR", "JPY", "KWD", "HUF", "CLF"]))
def test_written_amount_converts_back_to_price(number: int, currency: str) -> None:
    assert minor_units(written(Money.from_minor_units(number, currency)), currency) == number


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_permanent_client_error_is_a_refusal(status: int) -> None:
    assert is_refusal(httpx.Response(status))


@pytest.mark.parametrize("status", [200, 201, 302, 408, 409, 425, 429, 500, 503, 504])
def test_success_or_temporary_error_status_is_not_a_refusal(status: int) -> None:
    assert not is_refusal(httpx.Response(status))
