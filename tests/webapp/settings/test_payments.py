"""Settings of payment providers: accounts, live or test mode, and errors for invalid values."""

import re

import pytest

from flows.payments.mollie.gateway import MollieAccount
from flows.payments.paypal.gateway import PAYPAL_API, PAYPAL_TEST_API, PayPalAccount
from tests.support.settings import PUBLIC, problems_in, variables_in
from webapp.sandbox.settings import new_sandbox
from webapp.settings.sandboxed import with_sandbox
from webapp.settings.settings import Settings, read_settings

PAIR = {"ELICIT_PAYPAL_CLIENT_ID": "an-id", "ELICIT_PAYPAL_CLIENT_SECRET": "hunter2"}


def paypal_in(settings: Settings) -> PayPalAccount:
    seller = settings.sellers["paypal"]
    assert isinstance(seller, PayPalAccount)
    return seller


def mollie_in(settings: Settings) -> MollieAccount:
    seller = settings.sellers["mollie"]
    assert isinstance(seller, MollieAccount)
    return seller


def test_paypal_uses_sandbox_unless_live_is_set(home: dict[str, str]) -> None:
    for live, api in (("", PAYPAL_TEST_API), ("0", PAYPAL_TEST_API), ("1", PAYPAL_API)):
        settings = read_settings({**home, **PAIR, "ELICIT_PAYPAL_LIVE": live})
        seller = paypal_in(settings)
        assert (seller.api, seller.is_live) == (api, live == "1")
        assert seller.webhook_ids == ()
        assert "hunter2" not in repr(settings)


@pytest.mark.parametrize("live", ["yes", "true", "2", "live"])
def test_live_setting_accepts_only_1_and_0(home: dict[str, str], live: str) -> None:
    (problem,) = problems_in({**home, **PAIR, "ELICIT_PAYPAL_LIVE": live})
    assert problem.startswith("ELICIT_PAYPAL_LIVE:")


def test_several_paypal_webhook_ids_are_read(home: dict[str, str]) -> None:
    settings = read_settings({**home, **PAIR, "ELICIT_PAYPAL_WEBHOOK_ID": "1JE42, 8PT59"})
    assert paypal_in(settings).webhook_ids == ("1JE42", "8PT59")


def test_invalid_paypal_webhook_id_is_reported(home: dict[str, str]) -> None:
    (problem,) = problems_in({**home, **PAIR, "ELICIT_PAYPAL_WEBHOOK_ID": "1JE42|x"})
    assert problem.startswith("ELICIT_PAYPAL_WEBHOOK_ID:")


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ("ELICIT_PAYPAL_CLIENT_ID", "ELICIT_PAYPAL_CLIENT_SECRET"),
        ("ELICIT_PAYPAL_CLIENT_SECRET", "ELICIT_PAYPAL_CLIENT_ID"),
        ("ELICIT_PAYPAL_LIVE", "ELICIT_PAYPAL_CLIENT_ID"),
        ("ELICIT_PAYPAL_WEBHOOK_ID", "ELICIT_PAYPAL_CLIENT_ID"),
    ],
)
def test_incomplete_paypal_settings_are_reported_once(
    home: dict[str, str], given: str, missing: str
) -> None:
    (problem,) = problems_in({**home, given: "1"})
    assert problem.startswith(f"{missing}: not set, and ")


def test_invalid_paypal_credentials_are_refused_without_repeating_secret(
    home: dict[str, str],
) -> None:
    (problem,) = problems_in({**home, **PAIR, "ELICIT_PAYPAL_CLIENT_SECRET": "hunter2:x"})
    assert problem.startswith("ELICIT_PAYPAL_CLIENT_ID:")


def test_mode_of_mollie_is_derived_from_key(home: dict[str, str]) -> None:
    for key, is_live in (("test_hunter2", False), ("live_hunter2", True)):
        settings = read_settings({**home, "ELICIT_MOLLIE_KEY": key})
        assert mollie_in(settings).is_live == is_live
        assert "hunter2" not in repr(settings)


def test_mollie_receives_webhook_url_only_from_public_server(home: dict[str, str]) -> None:
    key = {"ELICIT_MOLLIE_KEY": "test_x"}
    assert mollie_in(read_settings({**home, **key})).webhook_url is None
    public = read_settings({**home, **key, **PUBLIC})
    assert mollie_in(public).webhook_url == "https://elicit.example/webhooks/mollie"


def test_invalid_mollie_key_is_refused_without_repeating_key(
    home: dict[str, str],
) -> None:
    (problem,) = problems_in({**home, "ELICIT_MOLLIE_KEY": "sk_test_hunter2"})
    assert problem.startswith("ELICIT_MOLLIE_KEY:")


STRIPE = {"ELICIT_STRIPE_KEY": "sk_test_x", "ELICIT_STRIPE_WEBHOOK_SECRET": "whsec_x"}


def test_each_provider_has_its_own_text_on_bank_statement(home: dict[str, str]) -> None:
    sellers = read_settings(
        {
            **home,
            **STRIPE,
            "ELICIT_MOLLIE_KEY": "test_x",
            "ELICIT_STRIPE_STATEMENT": "ACME* REPORTS",
            "ELICIT_MOLLIE_STATEMENT": "ACME RESEARCH",
        }
    ).sellers
    statements = [(name, seller.statement) for name, seller in sellers.items()]
    assert statements == [("stripe", "ACME* REPORTS"), ("mollie", "ACME RESEARCH")]


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        *(
            (text, "5 to 22 characters")
            for text in ("ACME", "A" * 23, "12345", "ACME <B>", "Größe 12", "A\\CME", "ACME'S AG")
        ),
        ("ACME*REPORTS", "as in ACME\\* REPORTS"),
    ],
)
def test_invalid_text_on_bank_statement_is_refused_with_rule(
    home: dict[str, str], statement: str, says: str
) -> None:
    (problem,) = problems_in({**home, **STRIPE, "ELICIT_STRIPE_STATEMENT": statement})
    assert problem.startswith("ELICIT_STRIPE_STATEMENT:")
    assert re.search(says, problem)


def test_text_on_bank_statement_without_its_provider_is_reported(home: dict[str, str]) -> None:
    (problem,) = problems_in({**home, "ELICIT_MOLLIE_STATEMENT": "ACME RESEARCH"})
    assert problem == "ELICIT_MOLLIE_STATEMENT: set, but mollie is not set up for payments."


def test_stripe_comes_first_regardless_of_order_in_environment(
    home: dict[str, str],
) -> None:
    settings = read_settings(
        {
            **home,
            "ELICIT_MOLLIE_KEY": "test_x",
            **PAIR,
            "ELICIT_STRIPE_KEY": "sk_test_x",
            "ELICIT_STRIPE_WEBHOOK_SECRET": "whsec_x",
        }
    )
    assert list(settings.sellers) == ["stripe", "paypal", "mollie"]


def test_problems_of_all_providers_are_reported_together(home: dict[str, str]) -> None:
    found = problems_in(
        {
            **home,
            "ELICIT_MOLLIE_KEY": "x",
            "ELICIT_PAYPAL_CLIENT_ID": "an-id",
            "ELICIT_PAYPAL_LIVE": "yes",
            "ELICIT_STRIPE_KEY": "sk_test_x",
        }
    )
    assert sorted(variables_in(found)) == [
        "ELICIT_MOLLIE_KEY",
        "ELICIT_PAYPAL_CLIENT_SECRET",
        "ELICIT_PAYPAL_LIVE",
        "ELICIT_STRIPE_WEBHOOK_SECRET",
    ]


def test_sandbox_simulates_all_payment_providers_if_none_is_configured(
    home: dict[str, str],
) -> None:
    sandbox = new_sandbox(url="http://127.0.0.1:8766", serves="http://127.0.0.1:8765")
    played = with_sandbox(read_settings(home), sandbox).sellers
    assert list(played) == ["stripe", "paypal", "mollie"]
    assert all(seller.api.startswith(f"{sandbox.url}/") for seller in played.values())
    own = read_settings({**home, "ELICIT_MOLLIE_KEY": "test_x"})
    assert with_sandbox(own, sandbox).sellers == own.sellers
