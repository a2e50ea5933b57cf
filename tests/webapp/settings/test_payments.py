"""Settings of payment providers: what is configured, in which mode, and what is wrong."""

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


def test_paypal_is_its_sandbox_until_it_is_said_to_be_live(home: dict[str, str]) -> None:
    for live, api in (("", PAYPAL_TEST_API), ("0", PAYPAL_TEST_API), ("1", PAYPAL_API)):
        settings = read_settings({**home, **PAIR, "ELICIT_PAYPAL_LIVE": live})
        seller = paypal_in(settings)
        assert (seller.api, seller.is_live) == (api, live == "1")
        assert seller.webhook_ids == ()
        assert "hunter2" not in repr(settings)


@pytest.mark.parametrize("live", ["yes", "true", "2", "live"])
def test_real_money_is_said_in_one_way_only(home: dict[str, str], live: str) -> None:
    (problem,) = problems_in({**home, **PAIR, "ELICIT_PAYPAL_LIVE": live})
    assert problem.startswith("ELICIT_PAYPAL_LIVE:")


def test_several_webhooks_of_paypals_are_read(home: dict[str, str]) -> None:
    settings = read_settings({**home, **PAIR, "ELICIT_PAYPAL_WEBHOOK_ID": "1JE42, 8PT59"})
    assert paypal_in(settings).webhook_ids == ("1JE42", "8PT59")


def test_a_webhook_id_that_is_none_is_named(home: dict[str, str]) -> None:
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
def test_half_of_paypals_settings_is_named_once(
    home: dict[str, str], given: str, missing: str
) -> None:
    (problem,) = problems_in({**home, given: "1"})
    assert problem.startswith(f"{missing}: not set, and ")


def test_credentials_that_are_none_are_refused_without_being_repeated(
    home: dict[str, str],
) -> None:
    (problem,) = problems_in({**home, **PAIR, "ELICIT_PAYPAL_CLIENT_SECRET": "hunter2:x"})
    assert problem.startswith("ELICIT_PAYPAL_CLIENT_ID:")


def test_mollies_mode_is_what_its_key_says(home: dict[str, str]) -> None:
    for key, is_live in (("test_hunter2", False), ("live_hunter2", True)):
        settings = read_settings({**home, "ELICIT_MOLLIE_KEY": key})
        assert mollie_in(settings).is_live == is_live
        assert "hunter2" not in repr(settings)


def test_mollie_is_told_where_to_reach_us_only_where_it_can(home: dict[str, str]) -> None:
    key = {"ELICIT_MOLLIE_KEY": "test_x"}
    assert mollie_in(read_settings({**home, **key})).webhook_url is None
    public = read_settings({**home, **key, **PUBLIC})
    assert mollie_in(public).webhook_url == "https://elicit.example/webhooks/mollie"


def test_a_key_that_is_none_of_mollies_is_refused_without_being_repeated(
    home: dict[str, str],
) -> None:
    (problem,) = problems_in({**home, "ELICIT_MOLLIE_KEY": "sk_test_hunter2"})
    assert problem.startswith("ELICIT_MOLLIE_KEY:")


def test_of_several_the_first_is_stripe_whatever_the_order_they_were_given_in(
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


def test_the_problems_of_all_providers_are_told_at_once(home: dict[str, str]) -> None:
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


def test_the_sandbox_plays_all_of_them_where_none_is_set_up(home: dict[str, str]) -> None:
    sandbox = new_sandbox(url="http://127.0.0.1:8766", serves="http://127.0.0.1:8765")
    played = with_sandbox(read_settings(home), sandbox).sellers
    assert list(played) == ["stripe", "paypal", "mollie"]
    assert all(seller.api.startswith(f"{sandbox.url}/") for seller in played.values())
    own = read_settings({**home, "ELICIT_MOLLIE_KEY": "test_x"})
    assert with_sandbox(own, sandbox).sellers == own.sellers
