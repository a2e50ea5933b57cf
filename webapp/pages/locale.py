"""Prices in the format of the locale that the person's browser asks for.

Risks: the locale library rounds an Iraqi dinar, which has three decimals. "$" and "kr" are several
currencies. Direction marks reorder digits in an English sentence. Headers with many locales fill
the memory. So prices have all digits of the amount, from left to right, with a sign or code that
only one currency has. The length of the header and the number of loaded locales are limited.
"""

import re
from collections.abc import Iterator
from decimal import Context, localcontext
from typing import Final

from babel import Locale, UnknownLocaleError
from babel.numbers import format_currency, get_currency_symbol

from flows.payments.money import Money, digits_of

MOST_CHARACTERS: Final = 1024  # characters of Accept-Language; browsers send fewer than 200
MOST_RANGES: Final = 16
MOST_LOCALES: Final = 64  # a loaded locale takes up to 1 MB of memory, and a thousand locales exist

# Signs that mean one currency only, in every locale.
_SIGNS = frozenset("€₹₪₫₴₸₺₼₽₾₡₦₮₲₭฿៛৳֏")
_DIRECTION_MARKS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_FRACTION = re.compile(r"0(\.0+)?")
_TOUCHING = re.compile("(?<=¤)(?=[#0])|(?<=0)(?=¤)")
_NO_BREAK = "\N{NO-BREAK SPACE}"
# RFC 9110, 12.5.4 and 12.4.2.
_RANGE = re.compile(
    r"(\*|[A-Za-z]{1,8}(?:-[A-Za-z0-9]{1,8}){0,8})"
    r"(?:[ \t]*;[ \t]*[qQ]=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?))?"
)


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
        wanted, refused = _ranges(accepted)
        for tag in wanted:
            if tag == "*":
                return None
            for shorter in _shortened(tag):
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


def _ranges(accepted: str) -> tuple[list[str], set[str]]:
    """Return the ranges in lower case, the most preferred first, and the refused ranges."""
    if len(accepted) > MOST_CHARACTERS:
        # the header was cut in this range, so the range has lost its weight
        accepted = accepted[:MOST_CHARACTERS].rpartition(",")[0]
    weighed: list[tuple[float, str]] = []
    refused: set[str] = set()
    for part in accepted.split(","):
        found = _RANGE.fullmatch(part.strip(" \t"))
        if found is None:
            continue
        tag, weight = found[1].lower(), float(found[2] or 1)
        if weight:
            weighed.append((weight, tag))
        else:
            refused.add(tag)
    weighed.sort(key=lambda pair: pair[0], reverse=True)
    return [tag for _, tag in weighed[:MOST_RANGES]], refused


def _shortened(tag: str) -> Iterator[str]:
    """Yield the range, then the range without its last subtags: zh-hant-tw, zh-hant, zh."""
    while tag:
        yield tag
        tag = tag.rpartition("-")[0]


def _known(tag: str) -> Locale | None:
    try:
        return Locale.parse(tag, sep="-")
    except (UnknownLocaleError, ValueError):
        return None
