"""Payment reports by thieves and confused providers: only payments that we requested count."""

import json
from contextlib import suppress
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from flows.elicitation import states
from flows.elicitation.flow import RedirectContext
from flows.elicitation.states import Attempt, Elicitation, Status
from flows.errors import Failed, NotPossible
from flows.payments.gateway import Notice, verify_notice, verify_session
from flows.payments.session import Malformed, Mismatch, SessionStatus, StoredCheckout, sessions_of
from flows.payments.stripe.gateway import StripeGateway, stripe
from flows.payments.stripe.messages import SETTLING_EVENTS, provider_session, read_session
from tests.support.checkouts import KEY, asked, begun, prepared, session
from tests.support.clock import NOON
from tests.support.gateway_env import ID, reply, run
from tests.support.payment_events import (
    COMPLETED,
    EXPIRED,
    FAILED,
    SECRET,
    SELLER,
    SUCCEEDED,
    delivery,
    event,
    sent_event,
)

LIVE = stripe("sk_live_notAKey", [SECRET])
read = StripeGateway(SELLER).read_notice
PAID = {"status": "complete", "payment_status": "paid", "payment_intent": "pi_1"}


def mismatch(elicitation: Elicitation, about: dict[str, Any]) -> str:
    """Return the mismatch, which must be the same in a webhook and in a fetched session."""
    with pytest.raises(Mismatch) as by_webhook:
        verify_notice(elicitation, event(COMPLETED, about), seller=SELLER)
    with pytest.raises(Mismatch) as by_fetch:
        verify_session(elicitation, provider_session(read_session(about)), seller=SELLER)
    assert by_webhook.value.what == by_fetch.value.what
    assert by_fetch.value.session == about["id"]
    return by_fetch.value.what


def accepted() -> Elicitation:
    return states.settle(begun(), Status.ACCEPTED, now=NOON, content={"receipt": "r"})


def test_paid_session_of_another_question_is_refused():
    # defect: lynq somebody else's checkout
    assert mismatch(begun(), session(**PAID, id="cs_test_2", client_reference_id="e_2")) == (
        "session"
    )


def test_payment_link_with_our_reference_is_refused():
    link = session(**PAID, id="cs_test_9", payment_link="plink_1", metadata={})
    assert event(COMPLETED, link).reference == ID
    assert mismatch(begun(), link) == "session"


def test_never_started_session_is_refused():
    for elicitation in (asked(), prepared()):
        assert sessions_of(elicitation) == ()
        assert mismatch(elicitation, session(**PAID)) == "session"


def test_session_of_question_of_another_kind_is_refused():
    attempt = Attempt(number=1, browser="b", started_at=NOON, kept={"verifier": "cs_test_1"})
    visit = replace(asked(), kind="oauth", attempt=attempt, earlier_attempts=(attempt,))
    visit = replace(visit, request=replace(visit.request, terms=None))
    assert mismatch(visit, session(**PAID)) == "session"


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"amount_total": 50}, "amount"),
        ({"amount_total": 90000}, "amount"),
        ({"amount_total": 0, "payment_status": "no_payment_required"}, "amount"),
        ({"amount_total": None}, "amount"),
        ({"currency": "usd"}, "currency"),
        ({"currency": "jpy"}, "currency"),
        ({"currency": None}, "currency"),
        ({"livemode": True}, "mode"),
        ({"client_reference_id": "ownertag-e_2"}, "reference"),
        ({"client_reference_id": None}, "reference"),
        ({"client_reference_id": ID.upper()}, "reference"),
    ],
)
def test_paid_session_with_different_terms_is_refused(changes, what):
    assert mismatch(begun(), session(**{**PAID, **changes})) == what


def test_test_payment_never_settles_live_price_or_reverse():
    live = begun()
    live = replace(live, request=asked(is_live=True).request)
    for elicitation, seller, livemode in (
        (live, LIVE, False),
        (live, SELLER, True),
        (live, SELLER, False),
        (begun(), LIVE, False),
        (begun(), LIVE, True),
        (begun(), SELLER, True),
    ):
        there = read_session(session(**PAID, livemode=livemode))
        with pytest.raises(Mismatch) as wrong:
            verify_session(elicitation, provider_session(there), seller=seller)
        assert wrong.value.what == "mode"
    paid = read_session(session(**PAID, livemode=True))
    assert verify_session(live, provider_session(paid), seller=LIVE) is SessionStatus.PAID


def test_event_of_another_account_or_mode_is_refused():
    for changes, what in (({"account": "acct_2"}, "account"), ({"livemode": True}, "mode")):
        with pytest.raises(Mismatch) as wrong:
            verify_notice(begun(), event(COMPLETED, session(**PAID), **changes), seller=SELLER)
        assert wrong.value.what == what
    own = stripe(KEY, [SECRET], account="acct_1")
    with pytest.raises(Mismatch):
        verify_notice(begun(), event(COMPLETED, session(**PAID)), seller=own)
    connected = event(COMPLETED, session(**PAID), account="acct_1")
    assert verify_notice(begun(), connected, seller=own) is SessionStatus.PAID


def test_event_for_another_elicitation_is_refused():
    other = event(COMPLETED, session(**PAID, id="cs_test_2", client_reference_id="ownertag-e_2"))
    assert other.reference == "ownertag-e_2"
    with pytest.raises(Mismatch):
        verify_notice(begun(), other, seller=SELLER)


def test_completed_but_unpaid_session_stays_pending():
    unpaid = session(**{**PAID, "payment_status": "unpaid"})
    assert verify_notice(begun(), event(COMPLETED, unpaid), seller=SELLER) is SessionStatus.PENDING
    assert verify_notice(begun(), event(FAILED, unpaid), seller=SELLER) is SessionStatus.FAILED
    paid = event(SUCCEEDED, session(**PAID))
    assert verify_notice(begun(), paid, seller=SELLER) is SessionStatus.PAID


@pytest.mark.parametrize("kind", [EXPIRED, FAILED])
def test_expiry_or_failure_after_payment_does_not_undo_payment(kind):
    after = event(kind, session(**{**PAID, "status": "expired"}))
    assert verify_notice(accepted(), after, seller=SELLER) is SessionStatus.PAID
    before = event(EXPIRED, session(status="expired", url=None))
    assert verify_notice(accepted(), before, seller=SELLER) is SessionStatus.CLOSED
    for status in (Status.EXPIRED, Status.FAILED):
        with pytest.raises(NotPossible):
            states.settle(accepted(), status, now=NOON)


def test_session_of_earlier_attempt_is_accepted():
    first = begun()
    assert first.attempt is not None
    stored = msgspec.convert(first.attempt.kept, StoredCheckout)
    later = replace(
        first.attempt, number=2, kept=msgspec.to_builtins(replace(stored, session="cs_test_2"))
    )
    both = replace(first, attempt=later, earlier_attempts=(first.attempt,))
    assert sessions_of(both) == ("cs_test_2", "cs_test_1")
    for id in sessions_of(both):
        paid = read_session(session(**PAID, id=id))
        assert verify_session(both, provider_session(paid), seller=SELLER) is SessionStatus.PAID


@pytest.mark.parametrize(
    "url",
    [
        "https://checkout.stripe.com.evil.example/c/pay/cs_test_1",
        "https://evil.example/https://checkout.stripe.com/",
        "https://checkout.stripe.com@evil.example/",
        "https://checkout.stripe.com:8443/c/pay",
        "http://checkout.stripe.com/c/pay",
        "https://checkout.stripe.com\\@evil.example/",
        "https://checkout.stripe.com/\r\nLocation: https://evil.example",
        "//checkout.stripe.com/c/pay",
        "javascript:alert(1)",
        "http://127.0.0.1/",
        "https://checkout.stripe.com/" + "x" * 10_000,
    ],
)
def test_redirect_to_foreign_payment_page_is_refused(url):
    context = RedirectContext(number=1, return_url="https://elicit.example/cb", state="s", now=NOON)
    with pytest.raises(Failed, match="does not send you there") as failed:
        run(StripeGateway(SELLER).begin(prepared(), context), reply(session(url=url)))
    assert "evil" not in str(failed.value)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'"evt_1"',
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        b"[" * 100_000,
        b'{"id":' * 20_000,
        b'{"id":"evt_1","x":' + b"[" * 100_000,
        json.dumps(sent_event(COMPLETED, {"x": "DEEP"}))
        .encode()
        .replace(b'"DEEP"', b"[" * 100_000),
        b'{"id":"evt_1","type":"\xff"}',
        b'{"id":"evt_1","type":1}',
        b'{"id":"evt/1","type":"x"}',
        b'{"id":"evt_1","type":"checkout.session.completed"}',
        b'{"id":"evt_1","type":"checkout.session.completed"} {}',
        json.dumps(sent_event(COMPLETED, {})).encode(),
        json.dumps(sent_event(COMPLETED, session(**PAID), data=None)).encode(),
        json.dumps(sent_event(COMPLETED, session(**PAID), data=[session(**PAID)])).encode(),
        json.dumps(sent_event(COMPLETED, session(**PAID), livemode="false")).encode(),
        json.dumps(sent_event(COMPLETED, session(**PAID), created=-1)).encode(),
        json.dumps(sent_event(COMPLETED, session(**PAID), created=True)).encode(),
        json.dumps(sent_event(COMPLETED, session(**PAID), account=["acct_1"])).encode(),
        json.dumps(sent_event(COMPLETED, session(**{**PAID, "amount_total": 900.5}))).encode(),
        json.dumps(sent_event(COMPLETED, session(**{**PAID, "id": None}))).encode(),
        json.dumps(sent_event(COMPLETED, session(**PAID))).encode("utf-16"),
    ],
)
def test_malformed_signed_body_is_refused_with_400(body):
    with pytest.raises(Malformed) as refused:
        read(delivery(body).body)
    assert refused.value.http_status == 400


@given(st.binary(max_size=200))
def test_random_bytes_are_parsed_or_refused_as_malformed(body):
    with suppress(Malformed):
        assert read(delivery(body).body).session is None


@pytest.mark.parametrize(
    "about",
    [
        {"id": "sub_1", "object": "subscription", "metadata": None},
        {"id": "ch_1", "metadata": {"elicitation": "x" * 1000}, "payment_intent": ["pi_1"]},
        {"id": 7, "client_reference_id": {"a": 1}, "payment_intent": {"id": 3}},
    ],
)
def test_event_about_unknown_object_is_parsed_and_ignored(about):
    ignored = event("customer.subscription.updated", about)
    found = (ignored.session, ignored.reference, ignored.payment)
    assert found == (None, None, None)
    with pytest.raises(Mismatch):
        verify_notice(begun(), ignored, seller=SELLER)


def test_event_of_unknown_format_is_ignored_without_error():
    thin = b'{"id":"evt_2","object":"v2.core.event","type":"v1.x","created":"2026-03-01T12:00Z"}'
    assert read(delivery(thin).body) == Notice(id="evt_2", type="v1.x", is_live=False)


def test_other_sessions_of_the_seller_are_parsed_but_refused():
    setup = {
        "id": "cs_test_5",
        "object": "checkout.session",
        "status": "complete",
        "payment_status": "no_payment_required",
        "amount_total": None,
        "currency": None,
        "livemode": False,
        "client_reference_id": "user@shop.example",
        "mode": "setup",
    }
    other = event(COMPLETED, setup)
    assert other.session == provider_session(read_session(setup), is_now=False)
    assert other.reference is None
    assert mismatch(begun(), setup) == "session"


def test_later_event_about_charge_names_its_elicitation():
    charge = {
        "id": "ch_1",
        "object": "charge",
        "payment_intent": "pi_1",
        "amount_refunded": 900,
        "currency": "eur",
        "metadata": {"elicitation": ID},
    }
    later = event("charge.refunded", charge)
    assert (later.reference, later.payment, later.subject) == (ID, "pi_1", "ch_1")
    intent = event("payment_intent.succeeded", {"id": "pi_1", "object": "payment_intent"})
    assert (intent.payment, intent.session) == ("pi_1", None)


def test_each_settling_event_carries_its_session():
    for kind in sorted(SETTLING_EVENTS):
        found = event(kind, session(**PAID))
        assert (found.id, found.type, found.subject) == ("evt_1", kind, "cs_test_1")
        assert (found.reference, found.payment) == (ID, "pi_1")
        assert found.session == provider_session(read_session(session(**PAID)), is_now=False)


def test_two_events_about_same_change_have_equal_object_and_type():
    first, second = (event(COMPLETED, session(**PAID), id=id) for id in ("evt_1", "evt_2"))
    assert first != second
    assert (first.subject, first.type) == (second.subject, second.type)


def test_html_page_is_not_accepted_as_provider_response():
    page = httpx.Response(200, text="<html>Paid! cs_test_1</html>")
    with pytest.raises(Failed):
        run(StripeGateway(SELLER).fetch(begun(), "cs_test_1"), page)
