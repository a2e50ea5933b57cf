"""Masking: what was typed in confidence is taken out of what others read.

What could go wrong: a text that carries a part of it, since many libraries shorten what they quote
(pydantic's `input_value='the first...the last'`), or that spells it with escapes. A secret that
was turned into something else (hashed, encoded, in capitals, cut into pieces of the tool's own) is
nobody's to find.
"""

import json
import mimetypes
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any, cast
from urllib.parse import quote, quote_plus

MASK = "***"
HIDDEN_AT_LEAST = 4  # letters; fewer are in any text
PART_AT_LEAST = 8  # letters at a secret's beginning or end that say something of it
_ELLIPSES = ("...", "…", "[...]")
_ELLIPSES_BACKWARDS = tuple(mark[::-1] for mark in _ELLIPSES)
# What a client reads a result by: the keys, and the words that stand under some of them.
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
    """Without what is hidden, as it is or as a program quotes it, nor a beginning or end of it."""
    words = sorted({form for word in hidden for form in _forms(word)}, key=len, reverse=True)
    if not words:
        return text
    for word in words:
        text = text.replace(word, MASK)
    text = _without_beginnings(text, words, before=_ELLIPSES)
    backwards = [word[::-1] for word in words]
    return _without_beginnings(text[::-1], backwards, before=_ELLIPSES_BACKWARDS)[::-1]


def masked(value: Any, hidden: Collection[str]) -> Any:
    """JSON without it, keys included; the protocol's own words stay."""
    match value:
        case str():
            return mask(value, hidden)
        case dict():
            items = cast("dict[str, Any]", value).items()
            return {
                key if key in _KEYS else mask(key, hidden): each
                if key in _OF_WORDS and _is_word(each)
                else masked(each, hidden)
                for key, each in items
            }
        case list() | tuple():
            return [masked(each, hidden) for each in cast("Iterable[Any]", value)]
        case bool() | None:
            return value
        case int() | float():
            said = str(value)
            return value if mask(said, hidden) == said else MASK
        case _:
            return value


def _is_word(value: Any) -> bool:
    each = cast("Sequence[object]", value) if isinstance(value, list) else (value,)
    return all(isinstance(one, str) and one in _WORDS for one in each)


def _forms(word: str) -> list[str]:
    """As it is, and as it is quoted in Python, in JSON and in addresses."""
    quoted = [repr(word)[1:-1], json.dumps(word)[1:-1], json.dumps(word, ensure_ascii=False)[1:-1]]
    with suppress(UnicodeEncodeError):  # half a letter
        quoted += [quote(word), quote(word, safe=""), quote_plus(word)]
    forms = [word, word.strip(), *quoted]
    return [form for form in dict.fromkeys(forms) if len(form) >= HIDDEN_AT_LEAST]


def _without_beginnings(text: str, words: Sequence[str], *, before: tuple[str, ...]) -> str:
    """Without beginnings of the words: long ones, and shorter ones where the text is cut off."""
    first = re.compile("|".join({re.escape(word[:HIDDEN_AT_LEAST]) for word in words}))
    parts, at, look_at = list[str](), 0, 0
    while (found := first.search(text, look_at)) is not None:
        start = found.start()
        length = max(_in_common(text, word, start) for word in words)
        end = look_at = start + length
        is_cut = text.startswith(before, end)
        if length >= PART_AT_LEAST or (is_cut and length >= HIDDEN_AT_LEAST):
            parts += [text[at:start], MASK]
            at = end
        else:
            look_at = start + 1
    return "".join([*parts, text[at:]])


def _in_common(text: str, word: str, start: int) -> int:
    """How many letters of the word stand there."""
    there = text[start : start + len(word)]
    pairs = zip(there, word, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), len(there))
