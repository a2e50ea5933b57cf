"""The languages of the pages: gettext catalogues, and the choice for a browser.

Risks: a translation that loses a placeholder or adds markup breaks a page. So a translation that
does not have exactly the placeholders and tags of its English sentence is ignored, and the page
shows the English one. A long Accept-Language header is cut (see `ranges`).
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, cached_property, partial
from gettext import GNUTranslations, NullTranslations
from io import BytesIO
from pathlib import Path
from typing import Final, TypeAlias

from babel import Locale
from babel.messages.catalog import Catalog, Message
from babel.messages.mofile import write_mo
from babel.messages.pofile import PoFileError, read_po

MOST_CHARACTERS: Final = 1024  # of an Accept-Language header; browsers send less than 200
MOST_RANGES: Final = 16
CATALOGUES: Final = Path(__file__).resolve().parent / "catalogues"
# A sentence that names the asker exists once with each of these words, because other languages
# inflect them.
ASKERS: Final = ("your assistant", "the application")
JUST_NOW: Final = "just now"
# RFC 9110, 12.5.4 and 12.4.2.
_RANGE = re.compile(
    r"(\*|[A-Za-z]{1,8}(?:-[A-Za-z0-9]{1,8}){0,8})"
    r"(?:[ \t]*;[ \t]*[qQ]=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?))?"
)
FROM_CODE: Final = "code"  # the gettext context of texts from code, not templates
_LONGEST: Final = 600  # characters; a longer text is not matched with sentences that have values
_VALUE = re.compile(r"%\((\w+)\)s")
_PLACEHOLDER = re.compile(r"%(?:\((\w+)\)s|%|.?)")
_TAG = re.compile(r"</?[a-z][^<>]*>")
_log = logging.getLogger(__name__)


Patterns: TypeAlias = tuple[tuple[re.Pattern[str], str], ...]


class Language:
    """A language of the pages. `tag` is its BCP 47 tag, as in the attribute `lang`.

    Its catalogue is read when the first page needs it, because reading takes a tenth of a second.
    """

    def __init__(self, tag: str, read: Callable[[], Catalog] | None = None) -> None:
        self.tag = tag
        self.locale = Locale.parse(tag, sep="-")
        self._read = read

    @property
    def direction(self) -> str:
        """The direction of the text, "ltr" or "rtl", as in the attribute `dir`."""
        return self.locale.text_direction

    @property
    def messages(self) -> NullTranslations:
        """The texts of the templates and of the code, by their English texts."""
        return self._texts[0]

    def translated(self, text: str) -> str:
        """Translate a text that our code has produced. Return any other text unchanged.

        The code produces complete English sentences, because logs, programs and the store use them
        too. A sentence that contains values is therefore recognized by the words around the values.
        """
        messages, patterns = self._texts
        found = messages.pgettext(FROM_CODE, text)
        if found != text or len(text) > _LONGEST:
            return found
        for pattern, translation in patterns:
            if match := pattern.fullmatch(text):
                return _VALUE.sub(partial(_value, match), translation)
        return text

    @cached_property
    def _texts(self) -> tuple[NullTranslations, Patterns]:
        if self._read is None:
            return NullTranslations(), ()
        try:
            catalogue = self._read()
        except (OSError, ValueError, PoFileError):
            _log.exception("page.catalogue_unreadable", extra={"language": self.tag})
            return NullTranslations(), ()
        return self._checked(catalogue)

    def _checked(self, catalogue: Catalog) -> tuple[NullTranslations, Patterns]:
        for message in list(catalogue):
            if message.id and (fault := fault_of(message)) is not None:
                _log.warning("page.translation_wrong", extra={"language": self.tag, "why": fault})
                catalogue.delete(message.id, message.context)
        compiled = BytesIO()
        write_mo(compiled, catalogue)
        compiled.seek(0)
        patterns = (_pattern(one) for one in catalogue if one.context == FROM_CODE)
        return GNUTranslations(compiled), tuple(filter(None, patterns))


ENGLISH: Final = Language("en")


def named_asker(message: str, *, for_user: bool) -> str:
    """Return the sentence with the words for who asks: the assistant, or an application."""
    asker = ASKERS[for_user]
    named = message.replace("%(asked_by)s", asker)
    return named.replace("%(Asked_by)s", asker.capitalize())


def fault_of(message: Message) -> str | None:
    """Return what is wrong with a translation, or None. An empty translation is not wrong."""
    ids = [message.id] if isinstance(message.id, str) else [*message.id]
    texts = [message.string] if isinstance(message.string, str) else [*(message.string or ())]
    for text in filter(None, texts):
        (placeholders, tags), wanted = _parts(text), [_parts(id) for id in ids]
        if message.context == FROM_CODE:  # a translation may omit a value: it can be English text
            is_right = any(placeholders <= values and tags == other for values, other in wanted)
        else:
            is_right = (placeholders, tags) in wanted
        if not is_right:
            return f"{text!r} must have the same placeholders and tags as {ids[-1]!r}."
        if re.search(r'[<>"]', _TAG.sub("", text)):
            return f"{text!r} must not contain < > or straight quotation marks outside of tags."
    return None


def language_in(path: Path) -> Language:
    """Return the language of a catalogue, such as `de.po`."""

    def read() -> Catalog:
        with path.open("rb") as file:
            return read_po(file, locale=path.stem.replace("-", "_"), abort_invalid=True)

    return Language(path.stem, read)


def _value(match: re.Match[str], name: re.Match[str]) -> str:
    return match[name[1]]


def _pattern(message: Message) -> tuple[re.Pattern[str], str] | None:
    """Return the pattern of a sentence with values, and its translation."""
    if not isinstance(message.id, str) or not _VALUE.search(message.id) or not message.string:
        return None
    parts = _VALUE.split(message.id)  # words and names in turn
    names: set[str] = set()
    for number, part in enumerate(parts):
        if number % 2 == 0:
            parts[number] = re.escape(part)
        else:
            parts[number] = f"(?P={part})" if part in names else f"(?P<{part}>.{{0,200}}?)"
            names.add(part)
    return re.compile("".join(parts), re.DOTALL), str(message.string)


def known_tag(tag: str) -> str:
    """Return the tag of a language that has a catalogue, as its catalogue spells it.

    Raises:
        ValueError: There is no such catalogue.
    """
    tags = [ENGLISH.tag, *sorted(path.stem for path in CATALOGUES.glob("*.po"))]
    for known in tags:
        if known.lower() == tag.lower():
            return known
    raise ValueError(f"{tag!r} has no catalogue. There are: {', '.join(tags)}.")


@cache
def languages_of(tags: tuple[str, ...]) -> tuple[Language, ...]:
    """Return the languages of these tags. Without tags, return all languages, English first."""
    all_tags = (ENGLISH.tag, *sorted(path.stem for path in CATALOGUES.glob("*.po")))
    return tuple(
        ENGLISH if tag == ENGLISH.tag else language_in(CATALOGUES / f"{tag}.po")
        for tag in dict.fromkeys(tags or all_tags)
    )


def negotiated(accepted: str, languages: Sequence[Language]) -> Language:
    """Return the language that an Accept-Language header prefers, or the first one.

    A range is shortened from its end, so that "de-AT" finds "de" (RFC 4647, 3.4).
    """
    known = {language.tag.lower(): language for language in languages}
    wanted, refused = ranges(accepted)
    for tag in wanted:
        if tag == "*":
            return next((one for one in languages if one.tag.lower() not in refused), languages[0])
        for shorter in shortened(tag):
            if shorter in refused:
                break
            with suppress(KeyError):
                return known[shorter]
    return languages[0]


def ranges(accepted: str) -> tuple[list[str], set[str]]:
    """Return the ranges in lower case, the most preferred first, and the refused ranges."""
    if len(accepted) > MOST_CHARACTERS:
        accepted = accepted[:MOST_CHARACTERS].rpartition(",")[0]  # a cut range has lost its weight
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


def shortened(tag: str) -> Iterator[str]:
    """Yield the range, then the range without its last subtags: zh-hant-tw, zh-hant, zh."""
    while tag:
        yield tag
        tag = tag.rpartition("-")[0]


def _parts(text: str) -> tuple[Counter[str], Counter[str]]:
    """Return the placeholders and the tags of a sentence, whatever their order."""
    placeholders = Counter(found[0] for found in _PLACEHOLDER.finditer(text) if found[0] != "%%")
    return placeholders, Counter(_TAG.findall(text))
