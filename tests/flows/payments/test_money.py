"""Money: amounts are exact in every currency, and `Money` refuses an amount that is not exact."""

import copy
import pickle
from dataclasses import FrozenInstanceError
from decimal import Decimal, localcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from iso4217 import Currency

from flows.errors import InvalidQuestion
from flows.payments.money import MINOR_UNIT_DIGITS_AT_MOST, Money, digits_of

PUBLISHED = {each.code: each.exponent for each in Currency}
WITH_MINOR_UNITS = sorted(code for code, digits in PUBLISHED.items() if digits is not None)
WITHOUT = sorted(PUBLISHED.keys() - set(WITH_MINOR_UNITS))
WITHDRAWN = ["ANG", "BGN", "CUC", "DEM", "HRK", "MRO", "SLL", "VEF", "ZWL"]
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
ALL_IN_CAPITALS = [a + b + c for a in ALPHABET for b in ALPHABET for c in ALPHABET]


def is_known(code: str) -> bool:
    try:
        digits_of(code)
    except InvalidQuestion:
        return False
    return True


@pytest.mark.parametrize("code", WITH_MINOR_UNITS)
def test_every_current_currency_has_its_iso_4217_digits(code: str) -> None:
    digits = PUBLISHED[code]
    assert digits is not None
    assert digits_of(code) == digits
    smallest = Money.from_minor_units(1, code)
    assert smallest.amount == Decimal(1).scaleb(-digits)
    assert Money(1, code).minor_units == 10**digits
    assert Money(str(smallest.amount), code) == smallest


def test_only_iso_4217_codes_are_known_currencies() -> None:
    assert [code for code in ALL_IN_CAPITALS if is_known(code)] == WITH_MINOR_UNITS


@pytest.mark.parametrize("code", [*WITHOUT, *WITHDRAWN, "", "€", "EURO", "EUR ", "EU", "\u0415UR"])
def test_unusable_currency_code_is_refused(code: str) -> None:
    with pytest.raises(InvalidQuestion, match=r"write a current code of ISO 4217 such as 'EUR'"):
        Money("9.00", code)
    with pytest.raises(InvalidQuestion):
        Money.from_minor_units(900, code)


@pytest.mark.parametrize("code", ["eur", "Eur", "eUR"])
def test_lowercase_currency_error_shows_capitals(code: str) -> None:
    with pytest.raises(InvalidQuestion, match=f"capitals: 'EUR', not '{code}'"):
        Money("9.00", code)


@pytest.mark.parametrize("code", [None, 978, b"EUR", ["EUR"]])
def test_non_text_currency_is_refused(code: object) -> None:
    with pytest.raises(InvalidQuestion, match="must be text"):
        Money("9.00", code)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("amount", "currency", "minor_units"),
    [
        ("9.00", "EUR", 900),
        ("9", "EUR", 900),
        ("9.0", "EUR", 900),
        (9, "EUR", 900),
        (Decimal(9), "EUR", 900),
        (Decimal("9.00"), "EUR", 900),
        (Decimal("0.9E+1"), "EUR", 900),
        (Decimal("1E+3"), "EUR", 100_000),
        ("0.29", "USD", 29),  # 28 if a float is converted with int()
        ("4.35", "USD", 435),
        ("0.01", "USD", 1),
        ("007", "USD", 700),
        ("500", "JPY", 500),  # 50000 if every currency had cents
        ("1", "KWD", 1000),  # 100 if every currency had cents
        ("1.005", "BHD", 1005),
        ("0.0001", "CLF", 1),
        ("9999999999.99", "EUR", 999_999_999_999),
        (999_999_999_999, "JPY", 999_999_999_999),
    ],
)
def test_minor_units_are_exact(
    amount: str | int | Decimal, currency: str, minor_units: int
) -> None:
    money = Money(amount, currency)
    assert money.minor_units == minor_units
    assert money == Money.from_minor_units(minor_units, currency)
    assert hash(money) == hash(Money.from_minor_units(minor_units, currency))


def test_same_amount_is_equal_however_written() -> None:
    written = {Money("9", "EUR"), Money("9.00", "EUR"), Money(9, "EUR"), Money("09.0", "EUR")}
    assert len(written) == 1
    assert str(written.pop().amount) == "9.00"
    assert Money("9.00", "EUR") != Money("9.00", "USD")
    assert Money("9.00", "EUR") != Money("90.00", "EUR")


@pytest.mark.parametrize("amount", [9.0, 0.29, float("nan"), None, True, b"9.00", [9], 9j])
def test_float_or_other_type_is_refused_as_amount(amount: object) -> None:
    with pytest.raises(InvalidQuestion, match="a float is not exact"):
        Money(amount, "EUR")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "amount",
    [
        "",
        " ",
        "9,00",
        "1,000.00",
        "1_000",
        "1e3",
        " 9.00",
        "9.00\n",
        "9.",
        ".5",
        "+9",
        "--9",
        "9.0.0",
        "€9",
        "9 EUR",
        "NaN",
        "sNaN",
        "Infinity",
        "\u0669",
        "\uff19",
        "9" * 31,
        "9" * 5000,
        "0x9",
    ],
)
def test_text_other_than_plain_number_is_refused(amount: str) -> None:
    with pytest.raises(InvalidQuestion, match="is not an amount: write digits and one point"):
        Money(amount, "EUR")


@pytest.mark.parametrize("amount", ["NaN", "-NaN", "sNaN", "NaN123", "Infinity", "-Infinity"])
def test_decimal_nan_or_infinity_is_refused(amount: str) -> None:
    with pytest.raises(InvalidQuestion, match="not NaN, and not infinite"):
        Money(Decimal(amount), "EUR")


@pytest.mark.parametrize(
    "amount", ["0", "0.00", "-0", "-1", "-9.00", 0, -1, Decimal("-0"), Decimal("0E+9")]
)
def test_zero_or_negative_amount_is_refused(amount: str | int | Decimal) -> None:
    with pytest.raises(InvalidQuestion, match="more than zero"):
        Money(amount, "EUR")


@pytest.mark.parametrize(
    ("amount", "currency"),
    [
        ("9.001", "EUR"),
        ("9.000", "EUR"),  # 9, or 9,000 in countries where the point groups digits
        ("500.0", "JPY"),
        ("1.0000", "KWD"),
        (Decimal("0.001"), "EUR"),
        (Decimal("1E-999999"), "EUR"),
        (Decimal("1E-999999"), "JPY"),
    ],
)
def test_too_many_decimals_are_refused_instead_of_rounded(
    amount: str | Decimal, currency: str
) -> None:
    with pytest.raises(InvalidQuestion, match=f"{currency} has {digits_of(currency)}: round it"):
        Money(amount, currency)


@pytest.mark.parametrize(
    ("amount", "currency"),
    [
        ("10000000000.00", "EUR"),
        ("10000000000", "EUR"),
        (10**12, "JPY"),
        (Decimal("1E+999999"), "EUR"),
        ("9" * 30, "EUR"),
    ],
)
def test_more_than_twelve_digits_of_minor_units_are_refused(
    amount: str | int | Decimal, currency: str
) -> None:
    with pytest.raises(InvalidQuestion, match="too large"):
        Money(amount, currency)


@pytest.mark.parametrize("number", [-1, 10**12, True, 9.0, "900", None, Decimal(9)])
def test_invalid_minor_units_are_refused(number: object) -> None:
    with pytest.raises(InvalidQuestion):
        Money.from_minor_units(number, "EUR")  # type: ignore[arg-type]


def test_unprintably_long_number_is_refused() -> None:
    for number in (10**5000, -(10**5000)):
        with pytest.raises(InvalidQuestion):
            Money(number, "JPY")
        with pytest.raises(InvalidQuestion):
            Money.from_minor_units(number, "JPY")


def test_zero_is_allowed_from_minor_units() -> None:
    nothing = Money.from_minor_units(0, "EUR")
    assert (str(nothing), nothing.minor_units) == ("0.00 EUR", 0)


@pytest.mark.parametrize(
    ("money", "text", "shown"),
    [
        (Money("9", "EUR"), "9.00 EUR", "9.00\u00a0€"),
        (Money("9", "USD"), "9.00 USD", "9.00\u00a0US$"),
        (Money("9", "GBP"), "9.00 GBP", "9.00\u00a0£"),
        (Money("9", "CAD"), "9.00 CAD", "9.00\u00a0CAD"),
        (Money("500", "JPY"), "500 JPY", "500\u00a0JPY"),
        (Money("1", "KWD"), "1.000 KWD", "1.000\u00a0KWD"),
        (Money("999.99", "EUR"), "999.99 EUR", "999.99\u00a0€"),
        (Money("1234.5", "EUR"), "1234.50 EUR", "1\u202f234.50\u00a0€"),
        (Money("1234567890", "JPY"), "1234567890 JPY", "1\u202f234\u202f567\u202f890\u00a0JPY"),
        (Money.from_minor_units(0, "EUR"), "0.00 EUR", "0.00\u00a0€"),
        (Money.from_minor_units(1, "CLF"), "0.0001 CLF", "0.0001\u00a0CLF"),
    ],
)
def test_amount_has_expected_text_and_display_form(money: Money, text: str, shown: str) -> None:
    assert str(money) == text
    assert money.shown == shown


def test_money_is_immutable() -> None:
    money = Money("9.00", "EUR")
    with pytest.raises(FrozenInstanceError):
        money.amount = Decimal("0.01")  # type: ignore[misc]
    with pytest.raises((AttributeError, TypeError)):
        money.tip = Decimal(1)  # type: ignore[attr-defined]


def test_copy_of_money_is_equal_and_repr_can_be_evaluated() -> None:
    money = Money("9.00", "EUR")
    assert repr(money) == "Money('9.00', 'EUR')"
    assert copy.deepcopy(money) == pickle.loads(pickle.dumps(money)) == money  # noqa: S301 - ours


def test_decimal_context_precision_does_not_round_money() -> None:
    with localcontext() as context:
        context.prec = 2
        assert Money("1234567.89", "EUR").minor_units == 123_456_789
        assert str(Money(Decimal("1234567.89"), "EUR")) == "1234567.89 EUR"
        assert str(Money.from_minor_units(123_456_789, "EUR")) == "1234567.89 EUR"


amounts = st.integers(1, 10**MINOR_UNIT_DIGITS_AT_MOST - 1)


@settings(deadline=None)
@given(number=amounts, currency=st.sampled_from(WITH_MINOR_UNITS))
def test_every_amount_survives_every_representation(number: int, currency: str) -> None:
    money = Money.from_minor_units(number, currency)
    assert money.minor_units == number
    assert Money(money.amount, currency) == money
    assert Money(str(money).split()[0], currency) == money
    figures = "".join(each for each in money.shown if each.isdigit())
    assert int(figures) == number


@settings(deadline=None)
@given(amount=st.text(max_size=40) | st.decimals() | st.integers() | st.floats())
def test_random_amount_is_exact_money_or_raises_invalid_question(
    amount: str | Decimal | float,
) -> None:
    try:
        money = Money(amount, "EUR")  # type: ignore[arg-type]
    except InvalidQuestion:
        return
    assert money.minor_units > 0
    assert money.amount == Decimal(amount)
