"""The text that a person sees before they decide: complete, unambiguous and limited in size.

Risks: a person approves something that no page shows, or two different values look alike. Nothing
is therefore truncated: a question with arguments that are too large is rejected. The limits apply
to the displayed text: with one value on each line, a few bytes of deeply nested JSON become
megabytes.
"""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import isfinite
from typing import Final, cast

from flows.errors import InvalidQuestion

DEPTH_AT_MOST: Final = 12
LINES_AT_MOST: Final = 2_000
VALUES_AT_MOST: Final = 4_000
CHARACTERS_AT_MOST: Final = 48 * 1024
TOOL_CHARACTERS_AT_MOST: Final = 200
_LONE: Final = re.compile("[\ud800-\udfff]")
_BITS_AT_MOST: Final = 4096
_NAME_AT_MOST: Final = 500  # characters
_LINE: Final = 60  # longer JSON is shown on several lines
# Combining marks that are piled on one letter cover the lines above it.
_MARK = r"[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff]"
PILED_MARKS = re.compile(f"({_MARK}{{3}}){_MARK}+")
# Invisible letters and marks: Unicode's Default_Ignorable_Code_Point, as far as Python treats them
# as printable, and the empty braille pattern.
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U000e0100-\U000e01ef]"
)
_ESCAPE = re.compile(r"\\(?:u[0-9a-f]{4}|.)")  # a JSON escape; its letter is not part of a word
_PLAIN_NAME = re.compile("[a-z][a-z0-9]*(_[a-z0-9]+)*")
_WORD = re.compile(r"[^\W\d_]+")
_LATIN = re.compile("[A-Za-z\u00c0-\u024f]")
# Greek, Cyrillic, Armenian, Cherokee, Coptic, Lisu.
_LIKE_LATIN = re.compile("[\u0370-\u058f\u13a0-\u13ff\u1c80-\u1c8f\u2c80-\u2dff\ua4d0-\ua69f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """An argument of a call, as plain text or JSON."""

    name: str
    value: str

    @property
    def mixes_alphabets(self) -> bool:
        """True if a word mixes Latin letters with letters that look like Latin ones."""
        words = _WORD.findall(_ESCAPE.sub(" ", f"{self.name} {self.value}"))
        return any(_LATIN.search(word) and _LIKE_LATIN.search(word) for word in words)


def arguments_of(arguments: object, *, in_a_line: bool = False) -> tuple[Argument, ...]:
    """Return a tool's arguments as a person reads them: all of them, each complete.

    Different values never look alike. `in_a_line`: each value is on one line.
    """
    if not isinstance(arguments, Mapping):
        return ()
    return tuple(
        Argument(name=_name(name), value=_words(value, in_a_line=in_a_line))
        for name, value in cast("Mapping[str, object]", arguments).items()
    )


def readable_name(name: str) -> str:
    """Return a name such as `with_backups` in words, or any other name unchanged."""
    if not _PLAIN_NAME.fullmatch(name):
        return name
    words = name.replace("_", " ").strip()
    return words[:1].upper() + words[1:]


def with_titles(
    arguments: Sequence[Argument], titles: Sequence[tuple[str, str]]
) -> tuple[Argument, ...]:
    """Return the arguments in the order of `titles`, with these titles in place of their names.

    An argument keeps its name if its title is also the title or the name of another argument.
    """
    names = dict(titles)
    places = {name: place for place, name in enumerate(names)}
    shown = [replace(one, name=names.get(one.name, one.name)) for one in arguments]
    looks = Counter(
        look
        for one, by in zip(arguments, shown, strict=True)
        for look in {_look(one.name), _look(by.name)}
    )
    titled = [
        by if looks[_look(by.name)] == 1 else one for one, by in zip(arguments, shown, strict=True)
    ]
    order = [places.get(one.name, len(places)) for one in arguments]
    return tuple(
        one for _, one in sorted(zip(order, titled, strict=True), key=lambda pair: pair[0])
    )


def looks_of(text: str) -> str:
    """Return the text as a page shows it in one line, without invisible characters.

    The result is the same for two texts that differ in invisible characters only.
    """
    shown = PILED_MARKS.sub(r"\1", unicodedata.normalize("NFC", text))
    seen = "".join(sign if sign.isprintable() else " " * sign.isspace() for sign in shown)
    return " ".join(_UNSEEN.sub("", seen).split())


def must_be_tool_name(name: str) -> None:
    """Check that a page can show the name of the tool that asks.

    Raises:
        InvalidQuestion: The name is too long.
    """
    if len(name) > TOOL_CHARACTERS_AT_MOST:
        raise InvalidQuestion(
            f"The name of the tool has {len(name)} characters, and the page shows at most "
            f"{TOOL_CHARACTERS_AT_MOST}. Give the tool a shorter name."
        )


def must_be_shown(arguments: Mapping[str, object]) -> None:
    """Check that a page can show these arguments completely.

    Raises:
        InvalidQuestion: The arguments are too large; the message names the limit.
    """
    must_be_flat(arguments)
    shown = arguments_of(arguments)
    for what, number, at_most in (
        ("lines", sum(1 + one.value.count("\n") for one in shown), LINES_AT_MOST),
        ("characters", sum(len(one.name) + len(one.value) for one in shown), CHARACTERS_AT_MOST),
    ):
        if number > at_most:
            raise InvalidQuestion(
                f"The arguments have {number:,} {what} when shown to a person, and can have "
                f"{at_most:,} at most. Send less at once."
            )


def must_be_flat(arguments: object) -> None:
    """Check the depth and number of values without recursion: arguments can be any JSON.

    Raises:
        InvalidQuestion: The arguments are nested too deep, or have too many values.
    """
    level, values = [arguments], 0
    for depth in count():
        below = list[object]()
        for each in level:
            if isinstance(each, Mapping):
                below += cast("Mapping[object, object]", each).values()
            elif isinstance(each, list | tuple):
                below += cast("Sequence[object]", each)
        level, values = below, values + len(below)
        if not level:
            return
        if depth > DEPTH_AT_MOST:
            raise InvalidQuestion(
                f"The arguments are nested more than {DEPTH_AT_MOST} deep, which is more than "
                "the page can show. Send flatter arguments."
            )
        if values > VALUES_AT_MOST:
            raise InvalidQuestion(
                f"The arguments have more than {VALUES_AT_MOST:,} values, which is more than "
                "the page can show. Send less at once."
            )


def is_too_long(value: object) -> bool:
    """Return True for an integer with too many bits.

    Python refuses to convert integers with more than 4,300 digits to text. The limit of this
    function is lower.
    """
    return isinstance(value, int) and value.bit_length() > _BITS_AT_MOST


def json_text(value: object, name: str) -> str:
    """Return the value as JSON text. `name` is what the author calls it, such as `arguments`.

    Raises:
        InvalidQuestion: The value is not JSON. The message names the part that is not.
    """
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()
    except (TypeError, ValueError, RecursionError):
        why = _why_not_json(value, name)
    else:
        return text
    raise InvalidQuestion(f"{why}. Use only texts, numbers, booleans, None, lists and dicts.")


def _why_not_json(value: object, name: str) -> str:
    """Return the first part of the value that is not JSON, with the reason."""
    ahead, seen = [(name, value)], set[int]()
    for where, part in ahead:
        if why := _why_no_part(part):
            return f"{where} {why}"
        is_new = id(part) not in seen and len(where) < _NAME_AT_MOST
        if is_new and isinstance(part, dict | list | tuple):
            inner = cast("Mapping[object, object] | Sequence[object]", part)
            seen.add(id(inner))
            named = inner.items() if isinstance(inner, Mapping) else enumerate(inner)
            ahead += [(f"{where}[{key!r}]", each) for key, each in named]
    return f"{name} contains itself, or is nested too deeply"


def _why_no_part(part: object) -> str | None:
    """Return why a value cannot be a part of JSON, or None. The parts inside it are not read."""
    match part:
        case str() if _LONE.search(part):
            return "contains half of a character (a lone surrogate)"
        case float() if not isfinite(part):
            return f"is {part}, which is not JSON"
        case dict():
            keys = cast("Mapping[object, object]", part)
            if any(map(is_too_long, keys)):
                return "has a key that is a number with too many digits"
            wrong = [key for key in keys if not isinstance(key, str | int | float | None)]
            return (
                f"has a key that is a {type(wrong[0]).__name__} and not a text" if wrong else None
            )
        case int() if is_too_long(part):
            return "is a number with too many digits"
        case None | bool() | int() | str() | float() | list() | tuple():
            return None
        case _:
            return f"is of the type {type(part).__name__}, which is not JSON"


def _look(name: str) -> str:
    return looks_of(name).casefold()


def _name(name: str) -> str:
    return name if name.isidentifier() and _can_be_seen(name) else _in_json(name)


def _words(value: object, *, in_a_line: bool) -> str:
    match value:
        case str() if _is_plain(value, in_a_line=in_a_line):
            return value
        case True:
            return "yes"
        case False:
            return "no"
        case None:
            return "nothing"
        case _:
            text = _in_json(value)
            return text if in_a_line or len(text) <= _LINE else _in_json(value, indent=2)


def _is_plain(text: str, *, in_a_line: bool) -> bool:
    """Return True if the text looks like neither JSON nor the page's own words yes, no, nothing."""
    signs = text if in_a_line else text.replace("\n", "").replace("\t", "")
    if not _can_be_seen(signs) or PILED_MARKS.search(text) or text in ("yes", "no", "nothing"):
        return False
    if text.strip() != text.rstrip("\n") or text[:1] in ("", '"', "[", "{"):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return True
    return False


def _in_json(value: object, *, indent: int | None = None) -> str:
    """Return the value as JSON with invisible characters escaped, also line breaks in texts."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    text = PILED_MARKS.sub(lambda marks: spelled(marks[0]), text)
    return "\n".join(
        line if _can_be_seen(line) else "".join(map(_seen, line)) for line in text.split("\n")
    )


def _seen(sign: str) -> str:
    return sign if _can_be_seen(sign) else spelled(sign)


def spelled(text: str) -> str:
    """Return the text as ASCII JSON without quotes."""
    return json.dumps(text)[1:-1]


def _can_be_seen(text: str) -> bool:
    return text.isprintable() and _UNSEEN.search(text) is None


def counted(number: float, one: str, several: str | None = None) -> str:
    """Return the number with its noun, for example "1 day" or "3 days"."""
    return f"{number:.15g} {one if number == 1 else several or f'{one}s'}"
