"""Money: an exact amount in a current currency.

Risks: a float turns 0.29 into 28 cents. A currency without decimals that is charged in hundredths
costs a hundred times too much. "9.000" can mean nine or nine thousand. An amount is therefore a
text, an integer or a Decimal, has at most the digits of its currency, and is never rounded here.
"""

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Final, NoReturn, final

from flows.elicitation.misuse import Explained, raise_misuse
from flows.errors import InvalidQuestion
from flows.question import reporting_errors, verb

MINOR_UNIT_DIGITS_AT_MOST: Final = 12

# ISO 4217 list one, as of 2026-01-01: all current codes with minor units, by number of digits.
# Metals, test codes and units of account without minor units (XAU, XTS, XDR) are left out.
_CODES_BY_DIGITS: Mapping[int, str] = {
    0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
    2: "AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BMD BND BOB BOV BRL BSD BTN BWP BYN BZD"
    " CAD CDF CHE CHF CHW CNY COP COU CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL"
    " GHS GIP GMD GTQ GYD HKD HNL HTG HUF IDR ILS INR IRR JMD KES KGS KHR KPW KYD KZT LAK LBP LKR"
    " LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MXV MYR MZN NAD NGN NIO NOK NPR NZD"
    " PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC"
    " SYP SZL THB TJS TMT TOP TRY TTD TWD TZS UAH USD USN UYU UZS VED VES WST XAD XCD XCG YER ZAR"
    " ZMW ZWG",
    3: "BHD IQD JOD KWD LYD OMR TND",
    4: "CLF UYW",
}
_DIGITS: Mapping[str, int] = {
    code: digits for digits, codes in _CODES_BY_DIGITS.items() for code in codes.split()
}
# Only symbols that mean one currency: $ and ¥ alone are ambiguous.
_SYMBOLS: Mapping[str, str] = {"EUR": "€", "GBP": "£", "INR": "₹", "USD": "US$"}
_NO_BREAK = "\N{NO-BREAK SPACE}"
_NARROW = "\N{NARROW NO-BREAK SPACE}"
_WRITTEN = re.compile(r"-?[0-9]{1,30}(\.[0-9]{1,30})?")


class InvalidAmount(InvalidQuestion):
    """An amount or a currency is invalid. The model may have chosen it as a tool argument."""


@final
@dataclass(frozen=True, slots=True, init=False, repr=False)
class Money(Explained):
    """A positive amount of money: `Money("9.00", "EUR")`.

    The amount is normalized to the currency's digits, so 9 EUR equals 9.00 EUR.

    Args:
        amount: A text with digits and one point, an int or a Decimal, in units of the currency.
        currency: A current code of ISO 4217, such as `EUR`.

    Raises:
        InvalidQuestion: The amount is a float, not above zero, has too many digits, or the code is
            not current. If both are constants in a tool's code, the error is InvalidUse and names
            the line.
    """

    amount: Decimal
    currency: str

    @verb
    def __init__(self, amount: str | int | Decimal, currency: str) -> None:
        with _naming(amount, currency):
            digits = digits_of(currency)
            number = _minor_units(_exact(amount), currency=currency, digits=digits)
        self._fill(number, currency)

    @classmethod
    def from_minor_units(cls, number: int, currency: str) -> "Money":
        """Return the amount for a number of the currency's smallest unit.

        Args:
            number: The number of cents, or of the smallest unit. Zero is allowed, because totals
                can be zero.
            currency: A current code of ISO 4217, such as `EUR`.

        Returns:
            The amount.

        Raises:
            InvalidQuestion: The number is not an int or is negative, or the code is not current.
        """
        with reporting_errors(), _naming(number, currency):
            checked_units(number, currency)
        money = object.__new__(cls)
        money._fill(number, currency)
        return money

    def __repr__(self) -> str:
        return f"Money({str(self.amount)!r}, {self.currency!r})"

    def __str__(self) -> str:
        return f"{self.amount} {self.currency}"

    def __format__(self, spec: str) -> str:
        return str(self) if not spec else self._calculated()

    def _calculated(self, *_: object) -> NoReturn:
        raise_misuse(
            "Money cannot be calculated, compared or formatted. Use price.amount, which is a "
            "Decimal, or price.minor_units, which is an int, as in "
            "Money.from_minor_units(2 * price.minor_units, price.currency).",
            TypeError,
        )

    if not TYPE_CHECKING:  # hidden from type checkers, so that they report the operator
        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _calculated
        __truediv__ = __rtruediv__ = __floordiv__ = __mod__ = __neg__ = __abs__ = _calculated
        __lt__ = __le__ = __gt__ = __ge__ = __int__ = __float__ = __round__ = _calculated

    @property
    def minor_units(self) -> int:
        """The amount in the currency's smallest unit: 900 for 9.00 EUR, 500 for 500 JPY."""
        return int(str(self.amount).replace(".", ""))

    @property
    def shown(self) -> str:
        """The text for a page: the amount, then symbol or code, without a possible line break."""
        integer, point, fraction = str(self.amount).partition(".")
        grouped = f"{int(integer):,}".replace(",", _NARROW)
        return f"{grouped}{point}{fraction}{_NO_BREAK}{_SYMBOLS.get(self.currency, self.currency)}"

    def _fill(self, minor_units: int, currency: str) -> None:
        # Built from digits: arithmetic would round to the caller's decimal precision.
        figures = tuple(int(figure) for figure in str(minor_units))
        object.__setattr__(self, "amount", Decimal((0, figures, -_DIGITS[currency])))
        object.__setattr__(self, "currency", currency)


@contextmanager
def _naming(amount: object, currency: object) -> Generator[None]:
    """Add the values to an InvalidAmount: if both are constants, the author made the mistake."""
    try:
        yield
    except InvalidAmount as error:
        error.values = (amount, currency)
        raise


def checked_units(number: object, currency: str) -> int:
    """Return `number` if it is a possible amount in minor units of the currency.

    Raises InvalidQuestion.
    """
    digits_of(currency)
    if not isinstance(number, int) or isinstance(number, bool):
        raise InvalidQuestion("An amount in minor units must be an int.")
    if number < 0:
        raise InvalidAmount("An amount of money must not be negative.")
    if number >= 10**MINOR_UNIT_DIGITS_AT_MOST:
        raise InvalidAmount(_TOO_LARGE)
    return number


def digits_of(currency: object) -> int:
    """Return the currency's number of decimals (ISO 4217): EUR 2, JPY 0, KWD 3.

    Raises InvalidQuestion if `currency` is not a current code in capitals.
    """
    if not isinstance(currency, str):
        raise InvalidQuestion("A currency must be text: its ISO 4217 code, such as 'EUR'.")
    if currency in _DIGITS:
        return _DIGITS[currency]
    if (code := currency.upper()) in _DIGITS:
        raise InvalidAmount(f"Write the currency in capitals: {code!r}, not {currency!r}.")
    raise InvalidAmount(
        f"{currency[:20]!r} is not a currency: write a current code of ISO 4217 such as 'EUR'."
    )


def _exact(amount: object) -> Decimal:
    if isinstance(amount, Decimal):
        return amount
    if isinstance(amount, int) and not isinstance(amount, bool):
        return Decimal(amount)
    if not isinstance(amount, str):
        raise InvalidQuestion(
            "An amount must be text such as '9.00', an int or a Decimal; a float is not exact."
        )
    if not _WRITTEN.fullmatch(amount):
        raise InvalidAmount(
            f"{amount[:40]!r} is not an amount: write digits and one point, such as '1234.50'."
        )
    return Decimal(amount)


def _minor_units(amount: Decimal, *, currency: str, digits: int) -> int:
    _, figures, exponent = amount.as_tuple()
    if not isinstance(exponent, int):
        raise InvalidAmount("An amount must be a number: not NaN, and not infinite.")
    if amount <= 0:
        raise InvalidAmount("A price must be more than zero.")
    if -exponent > digits:
        raise InvalidAmount(
            f"The amount has {-exponent} digits after the point, but {currency} has "
            f"{digits}: round it first."
        )
    if amount.adjusted() + digits >= MINOR_UNIT_DIGITS_AT_MOST:
        raise InvalidAmount(_TOO_LARGE)
    return int("".join(map(str, figures))) * int(10 ** (exponent + digits))


_TOO_LARGE = f"The amount is too large: at most {MINOR_UNIT_DIGITS_AT_MOST} digits in minor units."
