"""Masking: remove secrets, which people typed, from texts that other people read.

Risks: a text contains only a part of a secret, since many libraries shorten what they quote
(pydantic's `input_value='the first...the last'`), or contains the secret with escapes. A secret
that a tool transformed (hashed, encoded, in capitals, cut into pieces) cannot be found.
"""

import json
import mimetypes
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any, cast
from urllib.parse import quote, quote_plus

from flows.shown import counted

MASK = "***"
HIDDEN_AT_LEAST = 4  # in characters; shorter texts occur everywhere
PART_AT_LEAST = 8  # a secret's beginning or end that is this long reveals something
_CUT_OFF = "…"
_ELLIPSES = ("...", _CUT_OFF, "[...]")
_ELLIPSES_BACKWARDS = tuple(mark[::-1] for mark in _ELLIPSES)
# The keys and the fixed values by which a client interprets a result.
_WORDS = frozenset(
    {
        *("text", "image", "audio", "resource", "resource_link", "user", "assistant"),
        *("complete", "input_required", *mimetypes.types_map.values()),
    }
)
_OF_WORDS = frozenset({"type", "resultType", "audience", "role", "mimeType"})
_KEYS = _OF_WORDS | {
    *("content", "structuredContent", "isError", "_meta", "text", "data", "uri", "name", "title"),
    *("description", "resource", "blob", "annotations", "priority", "lastModified", "size"),
    *("icons", "src", "errorId", "code", "status", "jsonrpcCode", "elicitId", "details", "path"),
    "message",
}


def mask(text: str, hidden: Collection[str]) -> str:
    """Replace each secret in a text, quoted or not, and each beginning or end of a secret."""
    return _masker(hidden, is_quoting=True)(text)


def masked_in_short(text: str, hidden: Collection[str], *, at_most: int) -> str:
    """Mask a text, and shorten it to `at_most` characters from its beginning and its end.

    The text is cut before it is masked, so that a long text costs no more than a short one. The
    pieces to mask are longer than the pieces to show. The difference is the length of the longest
    secret: otherwise a part of a secret could remain at the cut.
    """
    half = at_most // 2
    near = half + max(map(len, _words(hidden)), default=0)
    if len(text) <= 2 * near:
        whole = mask(text, hidden)
        if len(whole) <= at_most:
            return whole
        return f"{whole[:half]}{_more(len(whole) - 2 * half)}{whole[-half:]}"
    # Masking can move the cut into view. A partial secret before an ellipsis is masked as well.
    first = mask(text[:near] + _CUT_OFF, hidden).removesuffix(_CUT_OFF)
    last = mask(_CUT_OFF + text[-near:], hidden).removeprefix(_CUT_OFF)
    return f"{first[:half]}{_more(len(text) - 2 * half)}{last[-half:]}"


def masked(value: Any, hidden: Collection[str], *, is_quoting: bool = True) -> Any:
    """Mask all strings and keys of a JSON value, except the protocol's own keys and fixed values.

    `is_quoting`: the texts can contain shortened quotes, as errors do. In other texts, a beginning
    or end of a secret stays if it is shorter than 8 characters.
    """
    return _masked(value, _masker(hidden, is_quoting=is_quoting)) if hidden else value


def _masked(value: Any, mask: Callable[[str], str]) -> Any:
    match value:
        case str():
            return mask(value)
        case dict():
            items = cast("dict[str, Any]", value).items()
            return {
                key if key in _KEYS else mask(key): each
                if key in _OF_WORDS and _is_word(each)
                else _masked(each, mask)
                for key, each in items
            }
        case list() | tuple():
            return [_masked(each, mask) for each in cast("Iterable[Any]", value)]
        case int() | float() if not isinstance(value, bool):
            text = str(value)
            return value if mask(text) == text else MASK
        case _:
            return value


def _masker(hidden: Collection[str], *, is_quoting: bool) -> Callable[[str], str]:
    """Return a function that masks a text. Create it once for many texts."""
    words = _words(hidden)
    backwards = [word[::-1] for word in words]
    forth = _beginnings(words, before=_ELLIPSES if is_quoting else ())
    back = _beginnings(backwards, before=_ELLIPSES_BACKWARDS if is_quoting else ())
    # Each masked part of a secret contains one of these ends. Few texts contain any of them.
    ends = {end for word in words for end in (word[:HIDDEN_AT_LEAST], word[-HIDDEN_AT_LEAST:])}

    def mask(text: str) -> str:
        if not any(end in text for end in ends):
            return text
        for word in words:
            text = text.replace(word, MASK)
        if forth is None or back is None:
            return text
        text = _without_beginnings(text, words, forth)
        return _without_beginnings(text[::-1], backwards, back)[::-1]

    return mask


def _more(length: int) -> str:
    return f" [{counted(length, 'more character')}] "


def _words(hidden: Collection[str]) -> list[str]:
    return sorted({form for word in hidden for form in _forms(word)}, key=len, reverse=True)


def _is_word(value: Any) -> bool:
    each = cast("Sequence[object]", value) if isinstance(value, list) else (value,)
    return all(isinstance(one, str) and one in _WORDS for one in each)


def _forms(word: str) -> list[str]:
    """Return a secret as it is, and as Python, JSON and URLs quote it."""
    quoted = [repr(word)[1:-1], json.dumps(word)[1:-1], json.dumps(word, ensure_ascii=False)[1:-1]]
    with suppress(UnicodeEncodeError):  # a lone surrogate
        quoted += [quote(word), quote(word, safe=""), quote_plus(word)]
    forms = [word, word.strip(), *quoted]
    return [form for form in dict.fromkeys(forms) if len(form) >= HIDDEN_AT_LEAST]


def _beginnings(words: Sequence[str], *, before: tuple[str, ...]) -> re.Pattern[str] | None:
    """Return a pattern of beginnings of the words: long ones, and shorter ones before an ellipsis.

    One pattern finds them all, so a text with many first letters costs a single pass.
    """
    longer = {re.escape(word[:PART_AT_LEAST]) for word in words if len(word) >= PART_AT_LEAST}
    patterns = sorted(longer)
    if before and words:
        cut_off = "|".join(map(re.escape, before))
        shorter = "|".join(sorted({_begun(word) for word in words}))
        patterns.append(f"(?:{shorter})(?={cut_off})")
    return re.compile("|".join(patterns)) if patterns else None


def _without_beginnings(text: str, words: Sequence[str], found: re.Pattern[str]) -> str:
    parts, at = list[str](), 0
    while (begun := found.search(text, at)) is not None:
        start = begun.start()
        parts += [text[at:start], MASK]
        at = max(begun.end(), *(start + _in_common(text, word, start) for word in words))
    return "".join([*parts, text[at:]])


def _begun(word: str) -> str:
    """Return a pattern of a word's first HIDDEN_AT_LEAST to PART_AT_LEAST - 1 letters."""
    pattern = ""
    for character in reversed(word[HIDDEN_AT_LEAST : PART_AT_LEAST - 1]):
        pattern = f"(?:{re.escape(character)}{pattern})?"
    return re.escape(word[:HIDDEN_AT_LEAST]) + pattern


def _in_common(text: str, word: str, start: int) -> int:
    """Return how many characters of the word are in the text at `start`."""
    most = min(len(word), len(text) - start)
    return next((at for at in range(most) if text[start + at] != word[at]), most)
