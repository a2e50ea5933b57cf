"""Prices in the format of the locale that the person's browser asks for.

Risks: the locale library rounds an Iraqi dinar, which has three decimals. "$" and "kr" are several
currencies. Direction marks reorder digits in an English sentence. Headers with many locales fill
the memory. So prices have all digits of the amount, from left to right, with a sign or code that
only one currency has. The length of the header and the number of loaded locales are limited.
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
    """Return the price as the locale writes it, with a sign or a code, never both.

    Without a locale, return the plain form.
    """
    if locale is None:
        return price.shown
    digits = digits_of(price.currency)
    # No price is negative. Without direction marks, only left-to-right characters are left.
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
    """A finder of locales.

    Only MOST_LOCALES locales are loaded, because a loaded locale stays in memory.
    """

    def __init__(self) -> None:
        self._loaded: set[str] = set()

    def best(self, accepted: str) -> Locale | None:
        """Return the preferred locale of an Accept-Language header, or None for the plain form.

        An unknown range is shortened from its end (RFC 4647, 3.4).
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
