"""The payment pages, and the facts that the person has to be able to trust."""

from dataclasses import replace
from typing import Any, get_args

import pytest

from tests.support.markup import Page
from tests.support.page_views import HOSTILE, SIGN_IN, USUAL, Shown, usual
from webapp.pages.renderer import Renderer, template_folder
from webapp.pages.views import (
    DonePayment,
    Ended,
    Ending,
    Late,
    NoCookie,
    NotPaid,
    PaymentPending,
    ProviderTrouble,
    StartPayment,
    View,
)
from webapp.pages.views_forms import Decided, Decision, DoneSecret
from webapp.pages.views_openers import Closed
from webapp.pages.views_own import Home, NotGivenBack, PaymentOver, PaymentsPage, Stays
from webapp.settings.brand import Brand

TESTABLE = (StartPayment, DonePayment, NotPaid, PaymentPending)


@pytest.fixture
def start() -> StartPayment:
    return usual(StartPayment, place="https://checkout.stripe.com")


def test_payment_page_names_price_purpose_recipient_and_decline(
    start: StartPayment, shown: Shown
) -> None:
    page = shown(start)
    text = page.main_text()
    assert page.text("h1") == "Pay 9.00 € to my tools?"
    assert "to use Book a table of my tools (tools.example.com), 12 seconds ago." in text
    assert page.text("q") == start.what
    assert "TotalYou pay once. This is no subscription." in text
    assert "Next: https://checkout.stripe.com You enter your card there, at Stripe." in text
    assert "A payment that is not used is refunded automatically after 7 days." in text
    assert "Your assistant never sees your card." in text
    assert "Who is paidmy tools, through Stripe" in text
    assert "On your statementACME* REPORTS" in text
    assert "On your statement" not in shown(replace(start, statement=None)).main_text()
    assert "4 minutes, until 21:34 UTC" in text
    assert page.actions() == ["/e/abc/go", "/e/abc/decline"]
    assert page.text("button") == "Continue to paymentDecline"


@pytest.mark.parametrize("view", TESTABLE)
def test_test_mode_is_marked_and_real_payment_is_not(view: type[Any], shown: Shown) -> None:
    testing = usual(view)
    page = shown(testing)
    assert "Test mode: no real money move" in page.text("strong")
    assert {"class": "loud"} in page.named("p")
    real = shown(replace(testing, is_test=False))
    assert "test" not in real.text().lower()


def test_paid_page_names_price_purpose_and_receipt(shown: Shown) -> None:
    page = shown(usual(DonePayment))
    assert page.text("h1") == "Paid 9.00 €"
    assert page.text("blockquote") == USUAL["what"]
    assert page.text("code") == "rcp_4Qm2ZkT9"
    assert "Go back to your assistant; you can close this page." in page.main_text()


def test_pending_payment_page_asks_for_no_further_action(shown: Shown) -> None:
    page = shown(usual(PaymentPending))
    text = page.main_text()
    assert page.text("h1") == "Your payment is on its way"
    assert "a bank transfer, take a few days" in text
    assert "There is nothing more to do here, and you don't need to pay again." in text
    assert "if it has stopped waiting by then, ask it to continue." in text
    assert page.named("form") == page.named("a") == []


@pytest.mark.parametrize(
    ("is_closed", "heading", "words"),
    [
        (False, "Not paid yet", "You are back from Stripe, which has not received 9.00 € from you"),
        (True, "The payment page has closed", "Stripe has closed its page, and 9.00 € was not"),
    ],
)
def test_unpaid_return_page_explains_and_offers_retry(
    is_closed: bool, heading: str, words: str, shown: Shown
) -> None:
    view = usual(NotPaid, is_closed=is_closed)
    page = shown(view)
    text = page.main_text()
    assert page.text("h1") == heading
    assert words in text
    assert "As far as we know nothing was charged." in text
    assert "a bank transfer there? Then don't pay again:" in text
    assert page.actions() == ["/e/abc/go", "/e/abc/decline"]
    assert page.text("button") == "Try againDecline"
    assert page.named("a") == [{"class": "button", "href": "/e/abc"}]


@pytest.mark.parametrize("is_test", [True, False])
def test_late_payment_page_names_price_and_test_mode(is_test: bool, shown: Shown) -> None:
    view = Late(server="my tools", kind="payment", price="9.00 €", is_test=is_test)
    page = shown(view)
    assert (
        "Your payment of 9.00 € has arrived. "
        "Your assistant is no longer waiting: ask it to continue." in page.main_text()
    )
    assert ("Test mode: no real money moved." in page.text("strong")) == is_test
    assert "of it was refunded" not in page.main_text()


@pytest.mark.parametrize(
    "view",
    [
        usual(DonePayment),
        Late(server="my tools", kind="payment", price="9.00 €", returned="3.00 €"),
    ],
    ids=["in time", "late"],
)
def test_partial_refund_is_shown_and_rest_still_counts(view: View, shown: Shown) -> None:
    text = shown(view).main_text()
    assert "3.00 € of it was refunded;" in text
    assert "The rest of the payment is still valid." in text


@pytest.mark.parametrize(
    ("became", "sign"),
    [
        ("refunding", "time"),
        ("refund_pending", "time"),
        ("refund_failed", "trouble"),
        ("refunded", "good"),
        ("disputed", "trouble"),
        ("dispute_lost", "trouble"),
        ("dispute_appealed", "trouble"),
    ],
)
def test_success_sign_is_shown_only_for_good_outcome(became: str, sign: str, shown: Shown) -> None:
    view = usual(PaymentOver, became=became)
    signs = [each["class"] for each in shown(view).named("svg")]
    assert signs == ["mark", f"sign {sign}"]


def test_page_does_not_say_no_answer_if_provider_refused_or_is_not_set_up(shown: Shown) -> None:
    view = usual(ProviderTrouble, provider="Mollie", trouble="refused", is_payment=True)
    page = shown(view)
    assert "nothing was charged" in page.main_text()
    account = shown(replace(view, is_payment=False))
    assert "charged" not in account.main_text()
    assert page.text("h1") == "Mollie refused the request"
    assert "It refused a request from this server, so you can't pay there" in page.main_text()
    assert "did not answer" not in page.text()
    silent = shown(replace(view, trouble="silent"))
    assert silent.text("h1") == "Mollie did not answer"
    assert "refused" not in silent.text()
    unasked = shown(replace(view, trouble="not set up"))
    assert unasked.text("h1") == "Mollie is not set up here"
    assert (
        "This server's settings for it are missing or wrong, so you can't pay there"
        in unasked.main_text()
    )
    assert "did not answer" not in unasked.text()


def test_payments_page_shows_anonymous_visitor_no_payments(shown: Shown) -> None:
    view = Closed(server="my tools", of="payments", why="Open it over there.", by_code=True)
    page = shown(view)
    assert page.text("h1") == "Your payments"
    assert "only their own payments. It can't tell who you are." in page.main_text()
    assert "Open it over there." in page.main_text()
    assert "The operator of the server can find the payment by its receipt." in page.main_text()
    asked = shown(replace(view, sign_in=SIGN_IN, by_code=False))
    assert asked.text("h1") == "Sign in to see your payments"
    assert asked.actions() == ["/signin"]
    assert "letters" not in asked.main_text()


@pytest.mark.parametrize("ending", get_args(Ending))
def test_unpaid_end_says_nothing_was_charged(ending: Ending, shown: Shown) -> None:
    text = shown(Ended(server="my tools", ending=ending, kind="payment")).main_text()
    assert "nothing was charged" in text
    assert "Nothing was shared with your assistant" in text


@pytest.mark.parametrize("ending", ["declined", "cancelled", "expired", "denied"])
def test_end_page_says_to_continue_and_not_pay_again(ending: Ending, shown: Shown) -> None:
    text = shown(Ended(server="my tools", ending=ending, kind="payment")).main_text()
    assert "Ask your assistant to continue, and don't pay again." in text


def test_failed_payment_does_not_promise_nothing_was_charged(shown: Shown) -> None:
    text = shown(Ended(server="my tools", ending="failed", kind="payment")).main_text()
    assert "as far as we know nothing was charged" in text
    assert "Tell the operator of this server before you pay again." in text


@pytest.mark.parametrize(
    ("is_stored", "words"), [(True, "doesn't ask again"), (False, "it is deleted")]
)
def test_saved_secret_page_says_how_long_secret_is_stored(
    is_stored: bool,
    words: str,
    shown: Shown,
) -> None:
    page = shown(DoneSecret(server="my tools", is_stored=is_stored))
    assert page.text("h1") == "Saved"
    assert words in page.main_text()
    assert (
        "None of them sees it." if is_stored else "Your assistant does not see it."
    ) in page.main_text()


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_text_does_not_change_price_or_buttons(
    text: str, start: StartPayment, shown: Shown
) -> None:
    page = shown(replace(start, server=text, tool=text, what=text, seller=text))
    assert page.text("h1").startswith("Pay 9.00 € to ")
    assert page.named("a") == page.named("img") == []
    assert page.text("button") == "Continue to paymentDecline"


def test_home_mentions_sandbox_only_if_enabled(shown: Shown) -> None:
    home = usual(Home)
    assert "http://127.0.0.1:8766" in shown(home).text("code")
    assert "sandbox" not in shown(replace(home, sandbox_url=None)).text().lower()


def test_home_shows_command_for_desktop_client(shown: Shown) -> None:
    home = usual(Home)
    assert home.desktop_settings in shown(home).text("pre")
    assert '"command": "elicit"' in home.desktop_settings
    assert '"my_tools:mcp"' in home.desktop_settings


@pytest.mark.parametrize(
    "view", [StartPayment, DonePayment, NotPaid, PaymentPending, PaymentOver, PaymentsPage]
)
def test_price_is_isolated_and_not_translated(view: type[Any], shown: Shown) -> None:
    page = shown(usual(view))
    prices = [each for each in page.named("bdi") if each.get("class") == "price"]
    assert prices != []
    assert all(price["translate"] == "no" for price in prices)


@pytest.mark.parametrize(("is_test", "other"), [(True, "with real money"), (False, "as a test")])
def test_page_for_mismatched_payment_does_not_say_no_real_money_moves(
    is_test: bool, other: str, shown: Shown
) -> None:
    view = usual(PaymentPending, is_otherwise=True, is_test=is_test, price="9.00 €")
    page = shown(view)
    text = page.main_text()
    assert page.text("h1") == "A different amount was paid"
    assert other in text
    assert "no real money moves." not in page.text("strong")
    assert "You don't need to pay again." in text
    assert [each["class"] for each in page.named("svg")] == ["mark", "sign trouble"]


@pytest.mark.parametrize("because", get_args(Stays))
def test_unrefunded_page_shows_receipt_if_person_has_to_name_receipt(
    because: Stays, shown: Shown
) -> None:
    view = NotGivenBack(server="my tools", because=because, receipt="rcp_4Qm2ZkT9")
    page = shown(view)
    assert ("rcp_4Qm2ZkT9" in page.text("code")) == ("name the receipt" in page.main_text())


# finding: XP12
def test_bill_names_the_legal_name_and_where_to_ask_for_a_refund(start: StartPayment) -> None:
    brand = Brand(name="Acme", legal_name="Acme GmbH", contact="help@acme.example").of("my tools")
    pages = Renderer(folders=[template_folder()], brand=brand)
    text = Page(pages.render(replace(start, refunded_after=None))).main_text()
    assert "Pay 9.00 € to Acme?" in text
    assert "Who is paidAcme GmbH, through Stripe" in text
    assert "Ask Acme GmbH for a refund (help@acme.example)." in text


# finding: XP17
@pytest.mark.parametrize("ending", get_args(Ending))
def test_ended_payment_names_its_question_and_leads_to_the_payments(
    shown: Shown, ending: Ending
) -> None:
    page = shown(Ended(server="my tools", ending=ending, kind="payment", price="€9.00"))
    assert "The question was: Pay €9.00 to my tools?" in page.main_text()
    assert [link["href"] for link in page.named("a")] == ["/payments"]


# finding: XP17
def test_ended_page_names_its_question_only_if_the_viewer_was_asked(shown: Shown) -> None:
    page = shown(Ended(server="my tools", ending="declined", kind="confirm", question="Ship it?"))
    assert "The question was: Ship it?" in page.main_text()
    unknown = shown(Ended(server="my tools", ending="declined", kind="confirm"))
    assert "The question was" not in unknown.main_text()


# finding: XP17
@pytest.mark.parametrize("decision", ["approved", "declined", "withdrawn", "expired"])
def test_page_of_a_decision_names_the_question(shown: Shown, decision: Decision) -> None:
    page = shown(usual(Decided, decision=decision, question="Refund order A-17?"))
    assert "The question was: Refund order A-17?" in page.main_text()


# finding: XP17
def test_page_about_a_missing_cookie_leads_back(shown: Shown) -> None:
    (link,) = shown(NoCookie(server="my tools", again_url="/e/abc")).named("a")
    assert link["href"] == "/e/abc"
