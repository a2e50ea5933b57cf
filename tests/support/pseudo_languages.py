"""Pseudo-locales: invented languages that test whether the pages can be translated.

One has accents and longer texts, the other one is read from right to left.
"""

import re
from collections.abc import Callable
from functools import partial

from babel.messages.catalog import Catalog

from tests.messages import extracted
from webapp.languages import Language

ACCENTED = str.maketrans(
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
    "ÅƁÇÐÉƑĜĤÎĴĶĻṀÑÖÞǪŔŠŢÛṼŴẊÝŽåƀçđéƒĝĥîĵķļṁñöþǫŕšţûṽŵẋýž",
)
ARABIC = str.maketrans("abcdefghijklmnopqrstuvwxyz", "ابتثجحخدذرزسشصضطظعغفقكلمنه")
PLACEHOLDERS = re.compile(
    r"(<[^>]*>|%\(\w+\)s|%%|\{number\}|`[^`]*`)"
)  # what a translator leaves as it is


def accented(text: str) -> str:
    """Return the text with accents, and 40 % longer."""
    parts = [
        part if PLACEHOLDERS.fullmatch(part) else part.translate(ACCENTED)
        for part in PLACEHOLDERS.split(text)
    ]
    return "".join(parts) + "~" * round(len(text) * 0.4)


def right_to_left(text: str) -> str:
    lowered = (
        part if PLACEHOLDERS.fullmatch(part) else part.lower().translate(ARABIC)
        for part in PLACEHOLDERS.split(text)
    )
    return "".join(lowered)


def changed(locale: str, change: Callable[[str], str]) -> Catalog:
    """Return a catalogue with each text changed."""
    catalogue = Catalog(locale=locale)
    for message in extracted():
        if message.id:
            string = (
                change(message.id)
                if isinstance(message.id, str)
                else tuple(change(message.id[-1]) for _ in range(catalogue.num_plurals))
            )
            catalogue.add(message.id, string, context=message.context)
    return catalogue


# Each locale, Greek and Arabic, has its own alphabet. The texts are extracted when the first page
# needs them, because every run imports this module and the extraction takes seconds.
PSEUDO = {
    "accented": Language("el", partial(changed, "el", accented)),
    "right to left": Language("ar", partial(changed, "ar", right_to_left)),
}
