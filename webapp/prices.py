"""Prices in the format of the locale that the person's browser asks for.

Risks:
- Babel rounds Iraqi dinars to whole numbers, but they have three decimals. So prices show all
  decimals of their currency.
- "$" and "kr" are signs of several currencies. So prices have a sign that only one currency uses,
  or else the currency's code.
- Unicode direction marks reorder digits in an English sentence. So prices have no direction marks.
- Requests with many different locales fill the memory. So the length of the Accept-Language header
  and the number of loaded locales are limited.
"""

import re
from decimal import Context, localcontext
from typing import Final

from babel import Locale, UnknownLocaleError
from babel.numbers import format_currency, get_currency_symbol

from flows.payments.money import Money, digits_of
from webapp.languages import ranges, shortened

MOST_LOCALES: Final = 64  # a loaded locale takes up to 1 MB of memory, and a thousand locales exist

# Signs that mean one currency only, in every locale.
_SIGNS = frozenset("€₹₪₫₴₸₺₼₽₾₡₦₮₲₭฿៛৳֏")
_DIRECTION_MARKS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_FRACTION = re.compile(r"0(\.0+)?")
_TOUCHING = re.compile("(?<=¤)(?=[#0])|(?<=0)(?=¤)")
_NO_BREAK = "\N{NO-BREAK SPACE}"


def price_in(locale: Locale | None, price: Money) -> str:
    """Return the price in the locale's format, with either a currency sign or a currency code.

    If `locale` is None, return `price.shown`.
    """
    if locale is None:
        return price.shown
    digits = digits_of(price.currency)
    # Use the pattern for positive amounts: no price is negative. Remove the direction marks: all
    # other characters of a pattern are written from left to right.
    positive = locale.currency_formats["standard"].pattern.partition(";")[0]
    pattern = _DIRECTION_MARKS.sub("", positive)
    pattern = _FRACTION.sub("0." + "0" * digits if digits else "0", pattern)
    if get_currency_symbol(price.currency, locale) not in _SIGNS:
        pattern = _TOUCHING.sub(_NO_BREAK, pattern.replace("¤", "¤¤"))
    with localcontext(Context()):  # the caller may have set a decimal context that rounds
        return format_currency(
            price.amount, price.currency, format=pattern, locale=locale, currency_digits=False
        )


class Locales:
    """The locales that this process has loaded for prices.

    At most MOST_LOCALES locales are loaded, because a loaded locale stays in memory.
    """

    def __init__(self) -> None:
        self._loaded: set[str] = set()

    def best(self, accepted: str) -> Locale | None:
        """Return the preferred available locale of an Accept-Language header, or None.

        If the header has a locale that is not available, try its shorter forms, such as `de` for
        `de-XX` (RFC 4647, 3.4).
        """
        wanted, refused = ranges(accepted)
        for tag in wanted:
            if tag == "*":
                return None
            for shorter in shortened(tag):
                if shorter in refused:
                    break
                locale = _known(shorter)
                if locale is not None and self._may_load(locale):
                    return locale
        return None

    def _may_load(self, locale: Locale) -> bool:
        if len(self._loaded) < MOST_LOCALES:
            self._loaded.add(str(locale))
        return str(locale) in self._loaded


def _known(tag: str) -> Locale | None:
    try:
        return Locale.parse(tag, sep="-")
    except (UnknownLocaleError, ValueError):
        return None
