"""Templates and paths: how a declaration writes requests and reads responses.

Risks: an inserted value is parsed as part of the template, or breaks out of its path segment. Names
are therefore searched only in the template itself, and values in a path are quoted, including
slashes.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias, TypeVar
from urllib.parse import quote

from flows.elicitation.states import Json
from flows.payments.session import Malformed

T = TypeVar("T")
Values: TypeAlias = Mapping[str, str | int | None]
TEXT_AT_MOST: Final = 2048
_INDEX = re.compile(r"-1|[0-9]{1,3}", re.ASCII)
_PLACE = r"[A-Za-z0-9_@-]+(\.[A-Za-z0-9_@-]+)*"
_RULE = re.compile(rf"{_PLACE}=[!-~]*")
_ADDED_UP = re.compile(r"(.+\.)?(refunded|charged_back|given)")
_NAME = re.compile(r"\{([a-z_]+)\}")


def names_in(template: Json) -> frozenset[str]:
    """Return the names in braces that the template contains."""
    match template:
        case str():
            return frozenset(_NAME.findall(template))
        case Mapping():
            return _all_in((*template, *template.values()))
        case list() | tuple():
            return _all_in(template)
        case _:
            return frozenset()


def _all_in(parts: Sequence[Json]) -> frozenset[str]:
    return frozenset(name for part in parts for name in names_in(part))


def fill(template: Json, values: Values) -> Json:
    """Fill in the values.

    A template that is only a name in braces keeps the value's type. A key whose value is None is
    left out.
    """
    match template:
        case str():
            alone = _NAME.fullmatch(template)
            return values[alone[1]] if alone is not None else fill_text(template, values)
        case Mapping():
            filled = {key: fill(value, values) for key, value in template.items()}
            return {
                fill_text(key, values): value
                for key, value in filled.items()
                if value is not None or template[key] is None
            }
        case list() | tuple():
            return [fill(value, values) for value in template]
        case _:
            return template


def fill_text(template: str, values: Values) -> str:
    return _NAME.sub(lambda found: str(values[found[1]] or ""), template)


def fill_path(template: str, values: Values) -> str:
    """Fill in the values, fully quoted, so that no value adds a path segment."""
    return _NAME.sub(lambda found: quote(str(values[found[1]] or ""), safe=""), template)


def at(data: Json, path: str) -> Json:
    """Return the value at this path, or None if the path does not exist."""
    for part in path.split("."):
        if isinstance(data, Mapping):
            data = data.get(part)
        elif isinstance(data, list) and _INDEX.fullmatch(part) and data:
            index = int(part)  # -1 is the last item
            data = data[index] if index < len(data) else None
        else:
            return None
    return data


def text_at(data: Json, path: str | None) -> str | None:
    """Return the value at this path as text, or None if there is none.

    Raises Malformed if the value is not a text, a whole number or a boolean, or is too long.
    """
    found = None if path is None else at(data, path)
    match found:
        case None:
            return None
        case bool():
            return str(found).lower()
        case str() | int() if len(str(found)) <= TEXT_AT_MOST:
            return str(found)
        case _:
            raise Malformed("answer")


def first_of(data: Json, rules: Mapping[str, T]) -> T | None:
    """Return the outcome of the first matching rule. A rule is "path=text"."""
    for rule, outcome in rules.items():
        path, _, value = rule.partition("=")
        if text_at(data, path) == value:
            return outcome
    return None


def place_faults(places: Mapping[str, str | Mapping[str, object] | None]) -> list[str]:
    """Return messages about invalid paths and rules. Some fields allow paths joined by a plus."""
    faults: list[str] = []
    for name, value in places.items():
        if isinstance(value, Mapping):
            wrong = [rule for rule in value if not _RULE.fullmatch(rule)]
            faults += [f"{name}: {rule!r} is not of the form path=value." for rule in wrong]
        elif value is not None:
            parts = value.split("+") if _ADDED_UP.fullmatch(name) else [value]
            if not all(re.fullmatch(_PLACE, part) for part in parts):
                faults.append(f"{name}: {value!r} is not a valid path.")
    return faults
