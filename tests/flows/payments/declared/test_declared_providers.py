"""The declarations of examples/payments: their requests, and what replies and events mean."""

import dataclasses
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from flows.elicitation.flow import Redirect
from flows.errors import Failed, InvalidQuestion
from flows.payments.gateway import Notice, ProviderSession, Signs, verify_notice, verify_session
from flows.payments.money import Money
from flows.payments.receipt import RefundStatus
from flows.payments.session import Malformed, Mismatch, SessionStatus
from tests.support import gateway_env
from tests.support.anything import JSON
from tests.support.clock import NOON
from tests.support.declared_env import CASES, DIGEST, KEY, SECRET, Case, put
from tests.support.gateway_env import ID, NINE, TRIP, reply, run, stored_checkout
from tests.support.signers import EXAMPLES

OPEN, PENDING, PAID, FAILED, CLOSED = SessionStatus

FETCHED = [case for case in CASES if case.fetch is not None]
EVERY = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
REFUNDING = [case for case in CASES if case.refund is not None]
EVERY_REFUNDING = pytest.mark.parametrize("case", REFUNDING, ids=lambda case: case.name)
EVERY_FETCHED = pytest.mark.parametrize("case", FETCHED, ids=lambda case: case.name)


def of_each(pick: Callable[[Case], Any]) -> pytest.MarkDecorator:
    """Parametrize a test with every case, and with every item that `pick` finds in the case."""
    rows = [
        pytest.param(case, one, id=f"{case.name}-{one}") for case in CASES for one in pick(case)
    ]
    return pytest.mark.parametrize(("case", "one"), rows)


def fetch(case: Case, answer: Any) -> ProviderSession:
    return run(case.gateway.fetch(case.begun(), case.session), reply(answer))[0]


def read(case: Case, event: Any) -> Notice:
    return case.gateway.read_notice(case.delivered(event).body)


def refunding(
    case: Case, *replies: httpx.Response, up_to: int | None = None, **changes: Any
) -> Any:
    values = {
        "session": case.session,
        "payment_intent": case.payment,
        "is_live": case.seller.is_live,
    }
    paid = replace(gateway_env.payment(case.name, **values), **changes)
    return run(case.gateway.refund(paid, reason="No seats", up_to=up_to), *replies)


def held(case: Case, refunded: int = 0) -> list[httpx.Response]:
    return [] if case.held is None else [reply(case.held(refunded))]


def test_every_example_has_a_case() -> None:
    assert {case.name: case.seller.declaration for case in CASES} == EXAMPLES
    assert all(isinstance(case.gateway, Signs) for case in CASES)


# The payment page


@EVERY
def test_complete_request_is_stored_before_sending(case: Case) -> None:
    stored = stored_checkout(case.prepared())
    assert (stored.session, stored.url, stored.handle) == (None, None, None)
    assert msgspec.json.decode(stored.request) == case.body
    assert stored.expires_at == (NOON + case.seller.declaration.life).timestamp()


@EVERY
def test_stored_bytes_are_sent_with_idempotency_key_of_attempt(case: Case) -> None:
    before = case.prepared()
    departure, [request] = run(case.gateway.begin(before, TRIP), reply(case.opened, 201))
    assert (request.method, str(request.url)) == ("POST", case.create)
    assert request.content == stored_checkout(before).request.encode()
    [key] = [value for value in request.headers.values() if SECRET in value]
    assert key in (SECRET, f"Bearer {SECRET}")
    assert request.headers["Content-Type"] in ("application/json", "application/vnd.api+json")
    header = case.seller.declaration.idempotency
    assert header is None or request.headers[header] == DIGEST
    assert departure.url == case.page
    stored = stored_checkout(case.begun())
    assert (stored.session, stored.url, stored.handle) == (case.session, case.page, case.handle)


@EVERY
def test_lost_reply_is_repeated_with_same_bytes_and_key(case: Case) -> None:
    before = case.prepared()
    assert before.attempt is not None
    _, first = run(case.gateway.begin(before, TRIP), reply(case.opened, 201))
    later = replace(
        before, earlier_attempts=(before.attempt,), attempt=replace(before.attempt, number=2)
    )
    stored, again = run(case.gateway.repeat(later, before.attempt), reply(case.opened, 201))
    assert stored.session == case.session
    assert [(one.content, one.headers) for one in again] == [
        (one.content, one.headers) for one in first
    ]


@EVERY
def test_open_checkout_is_reused(case: Case) -> None:
    begun = case.begun()
    assert begun.attempt is not None
    assert case.gateway.prepare(begun, TRIP) == begun.attempt.kept
    assert run(case.gateway.begin(begun, TRIP)) == (Redirect(url=case.page), [])
    late = dataclasses.replace(TRIP, now=NOON + timedelta(hours=3))
    assert case.gateway.prepare(begun, late) != begun.attempt.kept


@EVERY
@pytest.mark.parametrize(
    "what", ["{secret} {return_url}", '{minor}", "x": "', "{what}", "{digest}{key}", "\n\x00\\"]
)
def test_template_syntax_in_description_is_not_expanded(case: Case, what: str) -> None:
    before = gateway_env.prepared(case.gateway, case.asked(what=what))
    request = msgspec.json.decode(stored_checkout(before).request)
    plain = msgspec.json.decode(
        stored_checkout(gateway_env.prepared(case.gateway, case.asked(what="Words"))).request
    )

    def worded(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: worded(value) for key, value in part.items()}
        if isinstance(part, list):
            return [worded(value) for value in part]
        return what if part == "Words" else part

    assert request == worded(plain)
    _, [sent] = run(case.gateway.begin(before, TRIP), reply(case.opened, 201))
    assert SECRET.encode() not in sent.content
    assert str(sent.url) == case.create


@EVERY
def test_long_description_is_cut_to_provider_limit(case: Case) -> None:
    request = stored_checkout(
        gateway_env.prepared(case.gateway, case.asked(what="é" * 500))
    ).request
    if case.name != "polar":  # polar takes the name from the product
        assert "é" * case.seller.declaration.what_at_most in request
    assert "é" * (case.seller.declaration.what_at_most + 1) not in request


@EVERY
@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example/pay",
        "http://sandbox.square.link/u/1",
        "https://sandbox.square.link@evil.example/",
        "https://sandbox.square.link.evil.example/",
        "https://commerce.coinbase.com:8443/",
        "javascript:alert(1)",
        "//evil.example",
        "",
        None,
        7,
        ["https://shop.example/"],
    ],
)
def test_foreign_checkout_address_is_refused(case: Case, url: Any) -> None:
    place = case.seller.declaration.created.url
    assert place is not None
    with pytest.raises(Failed, match=r"Nothing was charged|its response is invalid") as failed:
        run(case.gateway.begin(case.prepared(), TRIP), reply(put(case.opened, place, url), 201))
    assert SECRET not in str(failed.value)


@EVERY
@pytest.mark.parametrize("bad", [*gateway_env.NO_ANSWERS, reply({"errors": ["key_hidden"]}, 401)])
def test_unreadable_reply_fails_with_explanation(case: Case, bad: httpx.Response) -> None:
    with pytest.raises(Failed, match=rf"^{case.seller.label} [a-z][^\n]+\.$") as failed:
        run(case.gateway.begin(case.prepared(), TRIP), bad)
    assert "hidden" not in str(failed.value)


@EVERY
def test_failure_shows_provider_error_code_but_not_its_message(case: Case) -> None:
    place = case.seller.declaration.trouble
    assert place is not None

    def refusal(code: str) -> httpx.Response:
        error: Any = code
        for part in reversed(place.split(".")):
            error = [error] if part == "0" else {part: error}
        return reply(error, 422)

    with pytest.raises(Failed, match=r"\(HTTP 422, BAD_REQUEST\)"):
        run(case.gateway.begin(case.prepared(), TRIP), refusal("BAD_REQUEST"))
    with pytest.raises(Failed, match=r"\(HTTP 422\)"):
        run(case.gateway.begin(case.prepared(), TRIP), refusal("Pay at https://evil.example"))


@EVERY
def test_malformed_session_id_is_refused(case: Case) -> None:
    created = case.seller.declaration.created
    places = [created.reference if created.has_own_session_ids else created.session, created.handle]
    for place in places:
        id: Any
        for id in ("..", ".", "", "a b", "a\n", "x" * 300, {}, 2.5):
            if place is None:
                continue
            with pytest.raises(Failed):
                run(
                    case.gateway.begin(case.prepared(), TRIP),
                    reply(put(case.opened, place, id), 201),
                )


def place_of(case: Case, name: str) -> str | None:
    """Return the path of this value in the reply that creates a checkout, if the reply has it."""
    created = case.seller.declaration.created
    if created.amount is None:
        return None
    live = next(iter(created.live), "").partition("=")[0]
    return {"amount": created.amount, "currency": created.currency, "live": live}[name]


@of_each(lambda case: [one for one in ("amount", "currency", "live") if place_of(case, one)])
def test_checkout_for_another_price_or_mode_is_refused(case: Case, one: str) -> None:
    place = place_of(case, one)
    assert place
    value = {"currency": "USD", "live": False}.get(one, "8.99" if "pricing" in place else "899")
    with pytest.raises(Failed, match="with another"):
        run(case.gateway.begin(case.prepared(), TRIP), reply(put(case.opened, place, value), 201))


@EVERY
def test_request_in_another_mode_is_not_started(case: Case) -> None:
    before = gateway_env.prepared(case.gateway, case.asked(is_live=not case.seller.is_live))
    with pytest.raises(Failed, match="another mode"):
        next(case.gateway.begin(before, TRIP))
    with pytest.raises(Failed, match="another mode"):
        next(case.gateway.fetch(before, case.session))


# Prices


@EVERY
def test_zero_price_is_refused(case: Case) -> None:
    case.gateway.check(NINE)
    with pytest.raises(InvalidQuestion):
        case.gateway.check(Money.from_minor_units(0, "EUR"))


@EVERY
@pytest.mark.parametrize("price", [Money("500", "JPY"), Money("1.234", "KWD"), Money("5", "ISK")])
def test_price_is_sent_exactly_or_refused_before_question(case: Case, price: Money) -> None:
    currencies = case.seller.declaration.currencies
    if currencies and price.currency not in currencies:
        with pytest.raises(InvalidQuestion, match=f"does not accept {price.currency}"):
            case.gateway.check(price)
        return
    case.gateway.check(price)
    request = stored_checkout(gateway_env.prepared(case.gateway, case.asked(price=price))).request
    amount = '"500"' if case.name == "paddle" else str(price.minor_units)
    shown = f'"{price.amount}"' if case.name == "coinbase" else amount
    assert f":{shown}" in request


# Statuses in the reply to a fetch


@of_each(lambda case: case.words)
def test_each_provider_status_is_verified_as_expected(case: Case, one: str) -> None:
    session, [request] = run(
        case.gateway.fetch(case.begun(), case.session), reply(case.fetched(one))
    )
    assert (request.method, request.url.raw_path.decode()) == ("GET", case.fetch)
    assert request.content == b""
    assert verify_session(case.begun(), session, seller=case.seller) is case.words[one]
    if session.state is PAID:
        assert session.payment == case.payment


@EVERY_FETCHED
def test_unknown_status_raises_failed(case: Case) -> None:
    unknown = "LOST 5" if case.name == "square" else "lost"
    with pytest.raises(Failed, match="report the status of the payment"):
        fetch(case, case.fetched(unknown))


@EVERY_FETCHED
@pytest.mark.parametrize("bad", gateway_env.NO_ANSWERS)
def test_unreadable_fetch_reply_raises_failed(case: Case, bad: httpx.Response) -> None:
    with pytest.raises(Failed, match="report the status of the payment"):
        run(case.gateway.fetch(case.begun(), case.session), bad)


@EVERY_FETCHED
def test_reply_about_another_session_raises_failed(case: Case) -> None:
    fetched = case.seller.declaration.fetched
    place = fetched.reference if fetched.has_own_session_ids else fetched.session
    assert place is not None
    another = f"{ID}:2" if fetched.has_own_session_ids else "another"
    answer = put(case.fetched(case.open_word), place, another)
    with pytest.raises(Failed, match="report the status of the payment"):
        fetch(case, answer)


@of_each(lambda case: case.fetched_at)
def test_payment_of_another_question_settles_nothing(case: Case, one: str) -> None:
    for word in case.words:
        answer = put(case.fetched(word), *case.fetched_at[one])
        with pytest.raises(Mismatch) as mismatch:
            verify_session(case.begun(), fetch(case, answer), seller=case.seller)
        assert mismatch.value.what == one


@EVERY_FETCHED
@pytest.mark.parametrize("bad", [None, -900, 9.0, True, "9,00", "1e3", "", [900], 10**40])
def test_invalid_amount_settles_nothing(case: Case, bad: Any) -> None:
    place, _ = case.fetched_at["amount"]
    answer = put(case.fetched(case.open_word), place, bad)
    with pytest.raises((Failed, Mismatch)):
        verify_session(case.begun(), fetch(case, answer), seller=case.seller)


def test_fetch_without_declared_endpoint_fails_with_webhook_only() -> None:
    [case] = [case for case in CASES if case.fetch is None]
    with pytest.raises(Failed, match="only by webhook"):
        next(case.gateway.fetch(case.begun(), case.session))


@EVERY_FETCHED
def test_session_id_stays_within_its_path_segment(case: Case) -> None:
    path = next(case.gateway.fetch(case.begun(), "../x?y=1")).url.raw_path
    assert b"..%2Fx%3Fy%3D1" in path
    assert next(case.gateway.collect(case.begun(), case.session)).method == "GET"


# Closing


@of_each(lambda case: [] if case.close is None else ["closed", "paid", "open"])
def test_unpaid_checkout_is_closed_and_paid_checkout_is_not(case: Case, one: str) -> None:
    assert case.close is not None
    paid = next(word for word, says in case.words.items() if says is PAID or "p" in word)
    after = {"closed": case.over_word, "paid": paid, "open": case.open_word}[one]
    talk = case.gateway.close(case.begun(), case.session)
    answers = [reply(case.fetched(case.open_word)), reply({}, 409), reply(case.fetched(after))]
    if one == "open":
        with pytest.raises(Failed, match="did not close"):
            run(talk, *answers)
        return
    is_closed, [_, closing, _] = run(talk, *answers)
    assert is_closed is (one == "closed")
    call, body = case.close
    assert f"{closing.method} {closing.url.raw_path.decode()}" == call
    assert (msgspec.json.decode(closing.content) if closing.content else None) == body


@of_each(lambda case: [word for word, status in case.words.items() if status is not OPEN])
def test_ended_checkout_is_not_closed_again(case: Case, one: str) -> None:
    is_closed, [request] = run(
        case.gateway.close(case.begun(), case.session), reply(case.fetched(one))
    )
    assert request.method == "GET"
    assert is_closed is (case.words[one] in (CLOSED, FAILED))


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.close is None], ids=lambda case: case.name
)
def test_uncloseable_checkout_raises_failed(case: Case) -> None:
    answers = [] if case.fetch is None else [reply(case.fetched(case.open_word))]
    with pytest.raises(Failed, match=r"only by webhook|did not close"):
        run(case.gateway.close(case.begun(), case.session), *answers)


# Refunds


@of_each(lambda case: case.refund_replies)
def test_each_refund_reply_gives_expected_status(case: Case, one: str) -> None:
    answers = [*held(case), reply(case.refund_replies[one], 201)]
    if one == "refused":
        with pytest.raises(Failed, match="refund the payment"):
            refunding(case, *answers)
        return
    refund, requests = refunding(case, *answers)
    assert (refund.price, refund.status) == (NINE, RefundStatus(one))
    sent = requests[-1]
    assert f"{sent.method} {sent.url.raw_path.decode()}" == case.refund
    body = msgspec.json.decode(sent.content)
    assert body == {**body, **case.refund_body}
    assert {*body} - {*case.refund_body} <= {"idempotency_key"}


@EVERY_REFUNDING
def test_same_refund_is_sent_with_same_idempotency_key(case: Case) -> None:
    done = case.refund_replies["pending" if "pending" in case.refund_replies else "succeeded"]
    [first, again] = [refunding(case, *held(case), reply(done))[1][-1] for _ in range(2)]
    assert (first.content, first.headers) == (again.content, again.headers)
    if case.name == "square":
        [other] = [refunding(case, *held(case, 400), reply(done), refunded=400)[1][-1]]
        assert first.content != other.content


@EVERY_REFUNDING
def test_refunded_payment_is_not_refunded_again(case: Case) -> None:
    assert refunding(case, *held(case, 900), refunded=900)[0].status is RefundStatus.SUCCEEDED
    if case.held is not None:
        refund, [look] = refunding(case, *held(case, 900))
        assert (look.method, refund.price) == ("GET", NINE)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.held is not None], ids=lambda case: case.name
)
def test_only_remainder_is_refunded_after_manual_refund(case: Case) -> None:
    done = case.refund_replies["succeeded"]
    refund, [_, sent] = refunding(case, *held(case, 400), reply(done))
    assert refund.price == Money("5.00", "EUR")
    rest = {"polar": 756 - 336, "paddle": None}.get(case.name, 500)
    assert rest is None or f'"amount":{rest}' in sent.content.decode()


@pytest.mark.parametrize("case", [case for case in REFUNDING if case.held], ids=lambda c: c.name)
def test_repeated_part_refund_reports_higher_total_of_provider(case: Case) -> None:
    for at_provider, total in ((600, "6.00"), (900, "9.00")):  # the store has lost these refunds
        refund, [look] = refunding(case, *held(case, at_provider), up_to=300)
        assert (look.method, refund.price) == ("GET", Money(total, "EUR"))
        assert refund.status is RefundStatus.SUCCEEDED


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.held is not None], ids=lambda case: case.name
)
def test_refund_is_not_sent_if_payment_cannot_be_fetched(case: Case) -> None:
    assert case.held is not None
    holding = case.seller.declaration.holding
    others = [reply({}, 503), *gateway_env.NO_ANSWERS]
    if holding is not None:
        others.append(reply(put(case.held(0), holding.id, "another")))
        others.append(reply(put(case.held(0), holding.currency, "USD")))
    for answer in others:
        with pytest.raises(Failed, match="refund the payment"):
            refunding(case, answer)


def test_refund_never_exceeds_remaining_amount() -> None:
    [polar] = [case for case in CASES if case.name == "polar"]
    for left in (0, 901, -1):
        with pytest.raises(Failed, match="refund the payment"):
            refunding(
                polar, reply(put(polar.held(0) if polar.held else {}, "refundable_amount", left))
            )


def test_refund_at_provider_without_refunds_names_manual_address() -> None:
    [case] = [case for case in CASES if case.refund is None]
    with pytest.raises(Failed, match="Refund it there: https://"):
        refunding(case)


@EVERY
def test_payment_of_another_provider_or_mode_is_not_refunded(case: Case) -> None:
    for changes in ({"seller": "another"}, {"is_live": not case.seller.is_live}):
        with pytest.raises(Failed, match="has no payment"):
            refunding(case, **changes)
    with pytest.raises(Failed, match="has no payment"):
        refunding(case, payment_intent=None)


# Events


@of_each(lambda case: case.events)
def test_each_event_is_verified_as_expected(case: Case, one: str) -> None:
    notice = read(case, case.event(one))
    assert (notice.reference, notice.subject) == (ID, case.session)
    assert notice.transition is not None
    assert verify_notice(case.begun(), notice, seller=case.seller) is case.events[one]
    if case.events[one] is PAID:
        assert notice.payment == case.payment
    assert read(case, case.event(one)) == notice


@EVERY
def test_every_declared_event_is_tested(case: Case) -> None:
    tried = {one.split(" ")[0] for one in (*case.events, case.paid_event)}
    declared = {*case.seller.declaration.events}
    assert tried == (declared if case.name != "square" else {"payment.updated"})


@of_each(lambda case: case.event_at)
def test_event_about_another_payment_settles_nothing(case: Case, one: str) -> None:
    notice = read(case, put(case.event(case.paid_event), *case.event_at[one]))
    with pytest.raises(Mismatch) as mismatch:
        verify_notice(case.begun(), notice, seller=case.seller)
    assert mismatch.value.what == one


@EVERY
def test_event_without_our_reference_is_ignored(case: Case) -> None:
    place = case.seller.declaration.told.reference or ""
    for reference in ("somebody's own; order 7", "", None):
        notice = read(case, put(case.event(case.paid_event), place, reference))
        assert (notice.session, notice.news, notice.reference) == (None, None, None)


@EVERY
def test_ignored_event_type_needs_only_id_and_type(case: Case) -> None:
    notice = read(case, case.ignored)
    assert (notice.session, notice.news, notice.transition) == (None, None, None)
    assert notice.id


def test_non_settling_event_names_session_to_fetch() -> None:
    [square] = [case for case in CASES if not case.seller.declaration.settles]
    notice = read(square, square.event(square.paid_event))
    assert (notice.session, notice.subject, notice.reference) == (None, "ORDER1", ID)
    with pytest.raises(Mismatch, match="session"):
        verify_notice(square.begun(), notice, seller=square.seller)


@of_each(lambda case: case.news)
def test_later_event_reports_refund_or_dispute(case: Case, one: str) -> None:
    notice = read(case, case.news[one])
    assert notice.session is None
    assert (notice.payment, notice.reference) == (case.payment, ID)
    assert (notice.account, notice.is_live) == (case.seller.account, case.seller.is_live)
    assert notice.news is not None
    assert (notice.news.returned, notice.news.dispute) == (int(one), None)
    assert notice.news.currency == "EUR"


# Arbitrary input


def places_in(data: Any) -> list[str]:
    pairs = enumerate(data) if isinstance(data, list) else data.items()
    found: list[str] = []
    for key, value in pairs:
        found.append(str(key))
        if isinstance(value, dict | list):
            found += [f"{key}.{place}" for place in places_in(value)]
    return found


def odd(data: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for the data with one value replaced."""
    return st.builds(put, st.just(data), st.sampled_from(places_in(data)), JSON)


@given(
    st.sampled_from(CASES).flatmap(
        lambda case: st.tuples(
            st.just(case), JSON | odd(case.event(case.paid_event)) | odd(case.ignored)
        )
    )
)
def test_random_event_is_parsed_or_raises_our_errors(pair: tuple[Case, Any]) -> None:
    case, event = pair
    with suppress(Malformed):
        notice = case.gateway.read_notice(msgspec.json.encode(event))
        if notice.session is not None:
            with suppress(Mismatch):
                assert verify_notice(case.begun(), notice, seller=case.seller) in SessionStatus


@given(st.sampled_from(CASES), st.binary())
def test_random_event_bytes_are_parsed_or_raise_our_errors(case: Case, body: bytes) -> None:
    with suppress(Malformed):
        assert case.gateway.read_notice(body).session is None


@given(
    st.sampled_from(FETCHED).flatmap(
        lambda case: st.tuples(st.just(case), JSON | odd(case.fetched(case.open_word)))
    )
)
def test_random_fetch_reply_is_verified_or_raises_our_errors(
    pair: tuple[Case, Any],
) -> None:
    case, answer = pair
    with suppress(Failed, Mismatch):
        assert (
            verify_session(case.begun(), fetch(case, answer), seller=case.seller) in SessionStatus
        )


@given(
    st.sampled_from(CASES).flatmap(lambda case: st.tuples(st.just(case), JSON | odd(case.opened)))
)
def test_random_reply_redirects_only_to_provider_checkout(pair: tuple[Case, Any]) -> None:
    case, answer = pair
    with suppress(Failed):
        departure, _ = run(case.gateway.begin(case.prepared(), TRIP), reply(answer))
        origin = "/".join(departure.url.split("/")[:3])
        assert origin in case.seller.checkout_origins


@given(st.sampled_from([case for case in CASES if case.refund]), JSON | st.binary())
def test_random_refund_reply_raises_failed(case: Case, answer: Any) -> None:
    response = httpx.Response(200, content=answer) if isinstance(answer, bytes) else reply(answer)
    with pytest.raises(Failed):
        refunding(case, *held(case), response)


def test_idempotency_key_and_digest_have_expected_form() -> None:
    assert (KEY, len(DIGEST)) == (f"{ID}:1", 32)


def test_long_refund_reason_is_cut() -> None:
    [square] = [case for case in CASES if case.name == "square"]
    paid = gateway_env.payment("square", session="ORDER1", payment_intent=square.payment)
    done = reply(square.refund_replies["succeeded"])
    _, [*_, sent] = run(square.gateway.refund(paid, reason="é" * 300), *held(square), done)
    assert len(msgspec.json.decode(sent.content)["reason"]) == 190


def test_payment_change_event_states_its_mode() -> None:
    [lemon] = [case for case in CASES if case.name == "lemon_squeezy"]
    live = put(lemon.news["400"], "data.attributes.test_mode", False)
    assert read(lemon, live).is_live
    with pytest.raises(Malformed):
        read(lemon, put(lemon.news["400"], "data.attributes.test_mode", None))


@EVERY_FETCHED
@pytest.mark.parametrize("currency", ["EURO", "E", "", 7, None])
def test_invalid_currency_settles_nothing(case: Case, currency: Any) -> None:
    place, _ = case.fetched_at["currency"]
    with pytest.raises(Failed):
        fetch(case, put(case.fetched(case.open_word), place, currency))


def test_number_is_refused_where_decimal_text_is_declared() -> None:
    [coinbase] = [case for case in CASES if case.name == "coinbase"]
    with pytest.raises(Failed):
        fetch(coinbase, put(coinbase.fetched("COMPLETED"), "data.pricing.local.amount", 9))


@EVERY
@pytest.mark.parametrize("word", ["a b", "a\nb", "x" * 300, {}, 1.5])
def test_event_with_invalid_type_or_id_is_malformed(case: Case, word: Any) -> None:
    declared = case.seller.declaration
    for place in (declared.event_type, declared.event_id):
        if place is not None:
            event = msgspec.json.encode(put(case.event(case.paid_event), place, word))
            with pytest.raises(Malformed):
                case.gateway.read_notice(event)


def test_known_refund_counts_before_provider_reports_refund() -> None:
    [square] = [case for case in CASES if case.name == "square"]
    done = reply(square.refund_replies["succeeded"])
    assert refunding(square, *held(square, 0), done, refunded=400)[0].price == Money("5.00", "EUR")
