"""Prices are exact in each locale, and no `Accept-Language` breaks them or exhausts memory."""

import decimal
import unicodedata
from typing import cast

import pytest
from babel import Locale, localedata
from babel.numbers import get_currency_symbol, parse_decimal
from hypothesis import given
from hypothesis import strategies as st

from flows import Money
from flows.payments.money import _DIGITS, digits_of
from webapp import prices as module
from webapp.languages import MOST_CHARACTERS
from webapp.prices import MOST_LOCALES, Locales, price_in

NINE = Money("9.00", "EUR")
LOCALES = sorted(localedata.locale_identifiers())
CURRENCIES = sorted(_DIGITS)
TAGS = st.from_regex(r"[A-Za-z]{1,8}(-[A-Za-z0-9]{1,8}){0,3}|\*", fullmatch=True)
WEIGHTS = st.sampled_from(["", ";q=0", ";q=0.5", "; q=1.000", ";q=2", ";q=", ";q=-1", ";x=1"])
LIKELY = st.lists(st.tuples(TAGS | st.sampled_from(LOCALES), WEIGHTS).map("".join)).map(",".join)


def shown(accepted: str, price: Money = NINE) -> str:
    return price_in(Locales().best(accepted), price)


@pytest.mark.parametrize(
    ("accepted", "price", "words"),
    [
        ("de-DE,de;q=0.9,en;q=0.8", Money("1234567.89", "EUR"), "1.234.567,89\u00a0€"),
        ("de-AT", Money("9", "USD"), "USD\u00a09,00"),
        ("en-US,en;q=0.5", Money("1234.5", "USD"), "USD\u00a01,234.50"),
        ("en-US", Money("1234.5", "EUR"), "€1,234.50"),
        ("en-GB", Money("9", "GBP"), "GBP\u00a09.00"),
        ("fr-CH", Money("1234.5", "CHF"), "1\u202f234,50\u00a0CHF"),
        ("de-CH", Money("1234.5", "CHF"), "CHF\u00a01\u2019234.50"),
        ("ja", Money("1500", "JPY"), "JPY\u00a01,500"),
        ("ja-JP", Money("1500", "EUR"), "€1,500.00"),
        ("ar", Money("1234.567", "KWD"), "1,234.567\u00a0KWD"),
        ("ar-EG", Money("9", "EUR"), "9.00\u00a0€"),
        ("he", Money("1234.5", "ILS"), "1,234.50\u00a0₪"),
        ("hi-IN", Money("12345678.9", "INR"), "₹1,23,45,678.90"),
        ("sv", Money("1234.5", "SEK"), "1\u00a0234,50\u00a0SEK"),
        ("zh-TW", Money("1234.5", "TWD"), "TWD\u00a01,234.50"),
        ("en", Money("1.234", "IQD"), "IQD\u00a01.234"),
        ("en", Money("1234.5678", "CLF"), "CLF\u00a01,234.5678"),
    ],
)
def test_price_is_formatted_for_locale_of_person(accepted: str, price: Money, words: str) -> None:
    assert shown(accepted, price) == words


@given(
    locale=st.sampled_from(LOCALES),
    currency=st.sampled_from(CURRENCIES),
    minor_units=st.integers(min_value=0, max_value=10**12 - 1),
)
def test_every_locale_shows_every_currency_with_all_minor_units(
    locale: str, currency: str, minor_units: int
) -> None:
    price, found = Money.from_minor_units(minor_units, currency), Locale.parse(locale)
    words = price_in(found, price)
    figures = "".join(each for each in words if each.isdigit())
    assert figures == str(price.amount).replace(".", "")
    number = "".join(part for part in words if part.isdigit() or part in separators(found))
    assert parse_decimal(number.strip(), locale=found) == price.amount


def separators(locale: Locale) -> str:
    symbols = cast("dict[str, dict[str, str]]", locale.number_symbols)["latn"]
    return symbols["decimal"] + symbols["group"]


@pytest.mark.parametrize("currency", ["CLF", "EUR", "INR", "JPY", "KWD", "USD"])
def test_price_is_unambiguous_left_to_right_and_unbroken_in_every_locale(currency: str) -> None:
    price = Money.from_minor_units(123456789, currency)
    for name in LOCALES:
        words = price_in(Locale.parse(name), price)
        assert currency in words or any(sign in words for sign in module._SIGNS), name
        assert not any(unicodedata.bidirectional(each) in {"R", "AL"} for each in words), name
        assert not any(unicodedata.category(each) in {"Cf", "Cc"} for each in words), name
        assert " " not in words, name


def test_currency_sign_is_unique_in_every_locale() -> None:
    means: dict[str, set[str]] = {}
    for name in LOCALES:
        locale = Locale.parse(name)
        for currency in CURRENCIES:
            sign = get_currency_symbol(currency, locale)
            if sign in module._SIGNS:
                means.setdefault(sign, set()).add(currency)
    assert set(means) == module._SIGNS
    assert all(len(currencies) == 1 for currencies in means.values()), means


def test_decimal_context_of_caller_does_not_round_price() -> None:
    with decimal.localcontext(decimal.Context(prec=3)):
        assert shown("en", Money("123456789.99", "EUR")) == "€123,456,789.99"


@pytest.mark.parametrize(
    ("accepted", "found"),
    [
        ("en;q=0.1, de;q=0.9", "de"),
        ("en, de", "en"),
        ("de;q=0", None),
        ("de;q=0.000, sv;q=0.001", "sv"),
        ("de-CH, de;q=0", "de_CH"),
        ("de-XX, de;q=0", None),
        ("*", None),
        ("*, de;q=0.5", None),
        ("*;q=0.5, de", "de"),
        ("*;q=0, de", "de"),
        ("tlh, de;q=0.5", "de"),
        ("de-DE-1996-u-co-phonebk", "de_DE"),
        ("DE-de ;\tQ=1.000", "de_DE"),
        (" ,, de ,", "de"),
        ("de;q=1.5, de;q=0.1234, de;q=, de;level=1, en;q=0.2", "en"),
        ("de_DE, de.DE, ../../etc/passwd, d\xe9, \x00, <b>", None),
        ("", None),
    ],
)
def test_accept_language_is_parsed_according_to_standard(accepted: str, found: str | None) -> None:
    locale = Locales().best(accepted)
    assert (locale and str(locale)) == found
    assert price_in(None, NINE) == NINE.shown == "9.00\u00a0€"


@pytest.mark.parametrize(
    "accepted",
    [
        *("a" * 1_000_000, "," * 1_000_000, "-a" * 500_000, " \t" * 500_000),
        *("de;" * 333_333, "de;q=0." + "0" * 1_000_000, "x,xx-" + "a-" * 500_000),
    ],
    ids=range(7),
)
def test_very_long_header_is_cut_before_parsing(accepted: str) -> None:
    assert Locales().best(accepted) is None
    assert str(Locales().best("sv," + accepted)) == "sv"


def test_language_range_cut_by_the_length_limit_is_ignored() -> None:
    accepted = "x" * (MOST_CHARACTERS - 6) + ",sv-SE;q=0"
    assert accepted[:MOST_CHARACTERS].endswith(",sv-SE")
    assert Locales().best(accepted) is None


@given(accepted=LIKELY | st.text(max_size=200))
def test_price_is_shown_for_any_header(accepted: str) -> None:
    assert "".join(each for each in shown(accepted) if each.isdigit()) == "900"


def test_number_of_loaded_locales_is_limited() -> None:
    locales = Locales()
    found = [locales.best(name.replace("_", "-")) for name in LOCALES]
    assert len({str(locale) for locale in found if locale}) == MOST_LOCALES
    assert locales.best(LOCALES[0].replace("_", "-")) is not None
    assert locales.best(LOCALES[-1].replace("_", "-")) is None


def test_test_currencies_cover_all_numbers_of_digits() -> None:
    assert {digits_of(currency) for currency in CURRENCIES} == {0, 2, 3, 4}
