"""Tables of `elicit.toml`: their keys, and the types of the values in words.

A key is a field of its declaration, and its value has the type of that field.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from types import NoneType
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

import msgspec

from flows.oauth.provider import NAME

TEXT, TEXTS, FLAG = "a text", "a list of texts", "true or false"
TABLE, LISTS, NUMBER = "a table of texts", "a table of lists of texts", "a whole number"
TYPES: Mapping[str, Any] = {
    TEXT: str,
    TEXTS: tuple[str, ...],
    FLAG: bool,
    TABLE: dict[str, str],
    LISTS: dict[str, tuple[str, ...]],
    NUMBER: int,
}
_WORDS: Mapping[Any, str] = {
    **{of_type: words for words, of_type in TYPES.items()},
    tuple[tuple[str, str], ...]: TABLE,
    Mapping[str, str]: TABLE,
    Mapping[str, tuple[str, ...]]: LISTS,
}


_HEADER = re.compile(r"\s*\[\[?([^\]]+)\]\]?\s*(?:#.*)?$")


def unknown_key(key: str, known: Collection[str]) -> str:
    """Return the sentence for an unknown key, with the most similar known one."""
    return f"{key}: unknown; the keys are {', '.join(known)}.{meant(key, known)}"


def meant(name: str, known: Collection[str]) -> str:
    """Return a sentence with the most similar name, or "" if none is similar."""
    near = get_close_matches(name, [*known], n=1)
    return f" Perhaps {near[0]} is meant." if near else ""


def line_of(text: str, place: str) -> int | None:
    """Return the line of a TOML text that declares a place such as `providers.acme.person.url`.

    The result is the line of the innermost table or key of that place that the text has, or None.
    """
    parts, depth, found = place.split("."), 0, None
    here: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if (header := _HEADER.match(line)) is not None:
            here = _parts_of(header[1])
            path = here
        else:
            key, equals, _ = line.partition("=")
            if not equals:
                continue
            path = [*here, *_parts_of(key)]
        length = min(len(path), len(parts))
        if path[:length] == parts[:length] and length > depth:
            depth, found = length, number
    return found


def _parts_of(key: str) -> list[str]:
    return [part.strip().strip("\"'") for part in key.strip().split(".")]


def keys_of(declaration: type, **more: str | None) -> Mapping[str, str]:
    """Return the type in words for each field. `more` replaces a type, or removes it by None."""
    keys: dict[str, str | None] = {"name": None}
    for name, hint in get_type_hints(declaration).items():
        (needed,) = {*get_args(hint)} - {NoneType} if NoneType in get_args(hint) else (hint,)
        keys.setdefault(name, TEXT if get_origin(needed) is Literal else _WORDS.get(needed))
    return {name: words for name, words in {**keys, **more}.items() if words is not None}


def tables_in(
    tables: Mapping[str, Any], *, kind: str, built_in: Collection[str], problems: list[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the tables of [kind.NAME] with a valid name, and add faults to the problems."""
    for name, table in tables.items():
        place = f"{kind}.{name}"
        if not NAME.fullmatch(name):
            problems.append(
                f"{place}: a name has 1 to 32 of a-z, 0-9 and _, and begins with a letter."
            )
        elif name in built_in:
            problems.append(f"{place}: this name is built in; choose another one.")
        elif not isinstance(table, dict):
            problems.append(f"{place}: it must be a table, [{place}].")
        else:
            yield name, cast("dict[str, Any]", table)


def converted(
    given: Mapping[str, Any],
    keys: Mapping[str, str],
    faults: list[str],
    *,
    types: Mapping[str, Any] = TYPES,
) -> dict[str, Any]:
    """Return the values that have their key's type, and add faults for the others."""
    values: dict[str, Any] = {}
    for key, value in given.items():
        try:
            values[key] = msgspec.convert(value, types[keys[key]])
        except msgspec.ValidationError:
            faults.append(f"{key}: must be {keys[key]}.")
    return values
