"""The payment pages, and the facts that the person has to be able to trust."""

from dataclasses import replace
from typing import Any, get_args

import pytest

from flows.question import MESSAGE_AT_MOST
from tests.support.page_views import HOSTILE, SIGN_IN, USUAL, Shown, usual
from webapp.pages.views import (
    DonePayment,
    Ended,
    Ending,
    Late,
    NotPaid,
    PaymentPending,
    ProviderTrouble,
    StartPayment,
    View,
)
from webapp.pages.views_forms import DoneSecret
from webapp.pages.views_home import Home
from webapp.pages.views_openers import Closed
from webapp.pages.views_payments import NotGivenBack, PaymentOver, PaymentsPage, Stays

TESTABLE = (StartPayment, DonePayment, NotPaid, PaymentPending)


@pytest.fixture
def start() -> StartPayment:
    return usual(StartPayment, place="https://checkout.stripe.com")


def test_paying_says_how_much_what_for_to_whom_where_next_and_no(
    start: StartPayment, shown: Shown
) -> None:
    page = shown(start)
    said = page.said()
    assert page.text("h1") == "Pay 9.00 €"
    assert "my tools (tools.example.com) asks for this because you used book_a_table" in said
    assert page.text("blockquote") == start.what
    assert "Next: https://checkout.stripe.com You pay once, at Stripe." in said
    assert "Your assistant never sees your card." in said
    assert "Who is paidmy tools, through Stripe" in said
    assert "4 minutes, until 21:34 UTC" in said
    assert page.actions() == ["/e/abc/go", "/e/abc/decline"]
    assert page.text("button") == "Continue to paymentDecline"


@pytest.mark.parametrize("view", TESTABLE)
def test_a_test_is_said_loudly_and_real_money_is_not_called_a_test(
    view: type[Any], shown: Shown
) -> None:
    testing = usual(view)
    page = shown(testing)
    assert "Test mode: no real money move" in page.text("strong")
    assert {"class": "loud"} in page.named("p")
    real = shown(replace(testing, is_test=False))
    assert "test" not in real.text().lower()


def test_paid_says_how_much_for_what_and_names_the_receipt(shown: Shown) -> None:
    page = shown(usual(DonePayment))
    assert page.text("h1") == "Paid 9.00 €"
    assert page.text("blockquote") == USUAL["what"]
    assert page.text("code") == "rcp_4Qm2ZkT9"
    assert "Go back to your assistant; you can close this page." in page.said()


def test_a_slow_payment_asks_for_nothing_more(shown: Shown) -> None:
    page = shown(usual(PaymentPending))
    said = page.said()
    assert page.text("h1") == "Your payment is on its way"
    assert "a bank transfer, take a few days" in said
    assert "There is nothing more to do here, and you don't need to pay again." in said
    assert "if it has stopped waiting by then, ask it to continue." in said
    assert page.named("form") == page.named("a") == []


@pytest.mark.parametrize(
    ("is_closed", "heading", "words"),
    [
        (False, "Not paid yet", "You are back from Stripe, and it has no 9.00 € from you:"),
        (True, "The payment page has closed", "Stripe has closed its page, and 9.00 € was not"),
    ],
)
def test_back_without_paying_it_says_what_happened_and_how_to_try_again(
    is_closed: bool, heading: str, words: str, shown: Shown
) -> None:
    view = usual(NotPaid, is_closed=is_closed)
    page = shown(view)
    said = page.said()
    assert page.text("h1") == heading
    assert words in said
    assert "As far as we know nothing was charged." in said
    assert "a bank transfer there? Then don't pay again:" in said
    assert page.actions() == ["/e/abc/go", "/e/abc/decline"]
    assert page.text("button") == "Try againDecline"
    assert page.named("a") == [{"class": "button", "href": "/e/abc"}]


@pytest.mark.parametrize("is_test", [True, False])
def test_paid_late_says_how_much_and_whether_it_was_real_money(is_test: bool, shown: Shown) -> None:
    view = Late(server="my tools", kind="payment", price="9.00 €", is_test=is_test)
    page = shown(view)
    assert "Your 9.00 € arrived, but your assistant had stopped waiting." in page.said()
    assert ("Test mode: no real money moved." in page.text("strong")) == is_test
    assert "of it was refunded" not in page.said()


@pytest.mark.parametrize(
    "view",
    [
        usual(DonePayment),
        Late(server="my tools", kind="payment", price="9.00 €", returned="3.00 €"),
    ],
    ids=["in time", "late"],
)
def test_a_part_that_was_given_back_is_said_and_the_rest_counts(view: View, shown: Shown) -> None:
    said = shown(view).said()
    assert "3.00 € of it was refunded;" in said
    assert "The rest still counts." in said


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
def test_only_what_is_well_has_the_sign_that_says_so(became: str, sign: str, shown: Shown) -> None:
    view = usual(PaymentOver, became=became)
    signs = [each["class"] for each in shown(view).named("svg")]
    assert signs == ["mark", f"sign {sign}"]


def test_a_provider_that_said_no_is_not_said_to_be_silent(shown: Shown) -> None:
    view = usual(ProviderTrouble, provider="Mollie", trouble="refused", is_payment=True)
    page = shown(view)
    assert "nothing was charged" in page.said()
    account = shown(replace(view, is_payment=False))
    assert "charged" not in account.said()
    assert page.text("h1") == "Mollie refused the request"
    assert "It refused a request from this server, so you can't continue there" in page.said()
    assert "did not answer" not in page.text()
    silent = shown(replace(view, trouble="silent"))
    assert silent.text("h1") == "Mollie did not answer"
    assert "refused" not in silent.text()
    unasked = shown(replace(view, trouble="not set up"))
    assert unasked.text("h1") == "Mollie is not set up here"
    assert (
        "This server's settings for it are missing or wrong, so you can't continue there"
        in unasked.said()
    )
    assert "did not answer" not in unasked.text()


def test_payments_of_whoever_is_not_known_are_not_shown(shown: Shown) -> None:
    view = Closed(server="my tools", of="payments", why="Open it over there.", by_code=True)
    page = shown(view)
    assert page.text("h1") == "Your payments"
    assert "only their own payments, and it doesn't know who you are." in page.said()
    assert "Open it over there." in page.said()
    assert "The operator of the server can find the payment by its receipt." in page.said()
    asked = shown(replace(view, sign_in=SIGN_IN, by_code=False))
    assert asked.text("h1") == "Sign in to see your payments"
    assert asked.actions() == ["/signin"]
    assert "letters" not in asked.said()


@pytest.mark.parametrize("ending", get_args(Ending))
def test_an_unpaid_end_says_that_nothing_was_charged(ending: Ending, shown: Shown) -> None:
    said = shown(Ended(server="my tools", ending=ending, kind="payment")).said()
    assert "nothing was charged" in said
    assert "Nothing was shared with your assistant" in said


@pytest.mark.parametrize("ending", ["declined", "cancelled", "expired"])
def test_money_that_was_sent_at_the_last_moment_counts(ending: Ending, shown: Shown) -> None:
    said = shown(Ended(server="my tools", ending=ending, kind="payment")).said()
    assert "ask your assistant to continue before you pay again" in said


def test_a_failed_payment_does_not_promise_what_only_the_bank_knows(shown: Shown) -> None:
    said = shown(Ended(server="my tools", ending="failed", kind="payment")).said()
    assert "as far as we know nothing was charged" in said
    assert "Tell the operator of this server before you pay again." in said


@pytest.mark.parametrize(("kept", "words"), [(True, "doesn't ask again"), (False, "it is deleted")])
def test_a_saved_secret_says_how_long_it_is_kept(
    kept: bool,
    words: str,
    shown: Shown,
) -> None:
    page = shown(DoneSecret(server="my tools", kept=kept))
    assert page.text("h1") == "Saved"
    assert words in page.said()
    assert ("None of them sees it." if kept else "Your assistant does not see it.") in page.said()


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_strangers_words_leave_the_price_and_the_buttons(
    text: str, start: StartPayment, shown: Shown
) -> None:
    page = shown(replace(start, server=text, tool=text, what=text, seller=text))
    assert page.text("h1") == "Pay 9.00 €"
    assert len(page.text("blockquote")) <= MESSAGE_AT_MOST
    assert page.named("a") == page.named("img") == []
    assert page.text("button") == "Continue to paymentDecline"


def test_home_says_that_the_sandbox_is_on_only_when_it_is(shown: Shown) -> None:
    home = usual(Home)
    assert "http://127.0.0.1:8766" in shown(home).text("code")
    assert "sandbox" not in shown(replace(home, sandbox_url=None)).text().lower()


def test_home_gives_a_desktop_client_a_command_of_its_own(shown: Shown) -> None:
    home = usual(Home)
    assert home.desktop_settings in shown(home).text("pre")
    assert '"command": "elicit"' in home.desktop_settings
    assert '"my_tools:mcp"' in home.desktop_settings


@pytest.mark.parametrize(
    "view", [StartPayment, DonePayment, NotPaid, PaymentPending, PaymentOver, PaymentsPage]
)
def test_a_price_stands_apart_from_the_sentence_and_no_machine_translates_it(
    view: type[Any], shown: Shown
) -> None:
    page = shown(usual(view))
    prices = [each for each in page.named("bdi") if each.get("class") == "price"]
    assert prices != []
    assert all(price["translate"] == "no" for price in prices)


@pytest.mark.parametrize(("is_test", "other"), [(True, "with real money"), (False, "as a test")])
def test_what_was_paid_otherwise_is_not_called_free_of_money(
    is_test: bool, other: str, shown: Shown
) -> None:
    view = usual(PaymentPending, is_otherwise=True, is_test=is_test, price="9.00 €")
    page = shown(view)
    said = page.said()
    assert page.text("h1") == "A different amount was paid"
    assert other in said
    assert "no real money moves." not in page.text("strong")
    assert "You don't need to pay again." in said
    assert [each["class"] for each in page.named("svg")] == ["mark", "sign trouble"]


@pytest.mark.parametrize("because", get_args(Stays))
def test_whoever_is_to_name_the_receipt_reads_it_there(because: Stays, shown: Shown) -> None:
    view = NotGivenBack(server="my tools", because=because, receipt="rcp_4Qm2ZkT9")
    page = shown(view)
    assert ("rcp_4Qm2ZkT9" in page.text("code")) == ("name the receipt" in page.said())
