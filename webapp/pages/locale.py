"""A price as the person who looks writes one: in the locale that their browser asks for.

What could go wrong: a library of locales knows an Iraqi dinar without its three digits and rounds;
"$" and "kr" are several currencies; marks of direction turn figures around in an English sentence;
and a header that names one locale after the other fills the memory. So all digits of the amount are
shown, in figures of one direction and with a sign or code that only one currency has, and no more
of the header is read, and no more locales are loaded, than people need.
"""

import re
from collections.abc import Iterator
from decimal import Context, localcontext
from typing import Final

from babel import Locale, UnknownLocaleError
from babel.numbers import format_currency, get_currency_symbol

from flows.payments.money import Money, digits_of

MOST_CHARACTERS: Final = 1024  # of Accept-Language; browsers send less than 200
MOST_RANGES: Final = 16
MOST_LOCALES: Final = 64  # each keeps up to 1 MB, and there are a thousand

# No other currency has them, in whatever locale.
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
    """`price` as the locale writes it, or in the plain form; only sign or code, never both."""
    if locale is None:
        return price.shown
    digits = digits_of(price.currency)
    # Nothing here is negative, and what is left has letters and figures of one direction only.
    positive = locale.currency_formats["standard"].pattern.partition(";")[0]
    pattern = _DIRECTION_MARKS.sub("", positive)
    pattern = _FRACTION.sub("0." + "0" * digits if digits else "0", pattern)
    if get_currency_symbol(price.currency, locale) not in _SIGNS:
        pattern = _TOUCHING.sub(_NO_BREAK, pattern.replace("¤", "¤¤"))
    with localcontext(Context()):  # whoever calls may have set one that rounds
        return format_currency(
            price.amount, price.currency, format=pattern, locale=locale, currency_digits=False
        )


class Locales:
    """Finds locales, and keeps count of those that were loaded: nothing unloads them."""

    def __init__(self) -> None:
        self._loaded: set[str] = set()

    def best(self, accepted: str) -> Locale | None:
        """The locale that `accepted`, an Accept-Language, wants most; None: the plain form will do.

        A range that is not known is shortened from its end (RFC 4647, 3.4).
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
    """The ranges in lower case, the dearest first, and those that are refused."""
    if len(accepted) > MOST_CHARACTERS:
        accepted = accepted[:MOST_CHARACTERS].rpartition(",")[0]  # half a range has lost its weight
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
    """The range, and what is left of it as its last subtags go: zh-hant-tw, zh-hant, zh."""
    while tag:
        yield tag
        tag = tag.rpartition("-")[0]


def _known(tag: str) -> Locale | None:
    try:
        return Locale.parse(tag, sep="-")
    except (UnknownLocaleError, ValueError):
        return None
