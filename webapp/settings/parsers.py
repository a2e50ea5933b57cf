"""The parsers of settings.

Each parser takes the text of a setting. If the text is invalid, the parser raises ValueError. The
arguments of the ValueError are sentences that tell the operator what is wrong.

The keys of a table in `elicit.toml` are the field names of a dataclass, and each value must have
the type of its field.
"""

import ipaddress
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec

from flows.errors import InvalidQuestion
from flows.kinds.gate import GatePolicy
from flows.oauth.provider import NAME
from flows.origin import origin_of
from webapp.http.address import PLAIN_PATH, TrustedHost, read_trusted_host
from webapp.http.edge import Network
from webapp.identity.users import is_user_id

_DURATION = re.compile(r"([0-9]{1,4})([dhms])")
_UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_SECONDS_DIGITS = 6
# Names of tools, with the wildcards *, ? and [abc].
_PATTERN = re.compile(r"(?:[\w.:/*?-]|\[!?[\w.:/-]+\])+")

T = TypeVar("T")


def words(text: str) -> tuple[str, ...]:
    """Return the words between commas or spaces."""
    return tuple(text.replace(",", " ").split())


def each(parse: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """Return a parser for a list of words, which reports the problems of all words at once."""

    def parse_all(text: str) -> tuple[T, ...]:
        found, problems = list[T](), list[str]()
        for word in words(text):
            try:
                found.append(parse(word))
            except ValueError as error:
                problems += error.args
        if problems:
            raise ValueError(*problems)
        return tuple(found)

    return parse_all


def matching(pattern: str, wrong: str) -> Callable[[str], str]:
    """Return a parser for words of this pattern.

    For other words, the parser raises a ValueError whose message ends with `wrong`.
    """

    def parse(word: str) -> str:
        if not re.fullmatch(pattern, word):
            raise ValueError(f"{word!r} {wrong}")
        return word

    return parse


def module_and_object(word: str) -> str:
    """Check that the word names a module and an attribute of it."""
    module, _, name = word.partition(":")
    is_named = all(part.isidentifier() for part in (*module.split("."), name))
    if not is_named or module.endswith(".py"):
        raise ValueError(
            f"{word!r} does not name an object: write module:object, as in my_rules:audit (no "
            "path, no .py)."
        )
    return word


def switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("must be 1 or 0.")
    return text == "1"


def live(text: str) -> bool:
    if text not in ("", "0", "1"):
        raise ValueError("must be 1 for real money, or 0 for the provider's test mode.")
    return text == "1"


def only(word: str) -> Callable[[str], bool]:
    """Return a parser for a switch that allows only this one word."""

    def parse(text: str) -> bool:
        if text not in ("", word):
            raise ValueError(f"must be `{word}`. Otherwise leave it out.")
        return text == word

    return parse


def one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}.")
        return text.lower()

    return parse


def count(at_most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        is_number = text.isascii() and text.isdigit() and len(text) <= len(str(at_most))
        found = int(text) if is_number else 0
        if not 1 <= found <= at_most:
            raise ValueError(f"must be a whole number from 1 to {at_most:,}.")
        return found

    return parse


def duration(
    at_most: timedelta, says: str, *, at_least: timedelta = timedelta(seconds=1)
) -> Callable[[str], timedelta]:
    """Return a parser for seconds or a number with a unit; `says` is the maximum in words."""

    def parse(text: str) -> timedelta:
        found = with_unit(text)
        if text.isascii() and text.isdigit() and len(text) <= _SECONDS_DIGITS:
            found = timedelta(seconds=int(text))
        if found is None or not at_least <= found <= at_most:
            raise ValueError(
                f"must be a number of seconds, or 7d, 12h, 30m and so on, {says} at most."
            )
        return found

    return parse


def with_unit(text: str) -> timedelta | None:
    """Return the duration of `7d`, `12h`, `30m` or `90s`, above 0; None for other text."""
    match = _DURATION.fullmatch(text)
    if match is None or not int(match[1]):
        return None
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def origin(word: str) -> str:
    word = without_default_port(word)
    try:
        if origin_of(word) == word:
            return word
    except InvalidQuestion as error:
        raise ValueError(f"{word}: {error}") from None
    raise ValueError(f"{word} is not an origin (scheme://host[:port]).")


def without_default_port(origin: str) -> str:
    """Return the origin without its scheme's default port, as browsers and clients write it."""
    scheme, _, rest = origin.partition("://")
    default = {"http": ":80", "https": ":443"}.get(scheme)
    return origin if default is None else f"{scheme}://{rest.removesuffix(default)}"


def public_url(text: str) -> str:
    """Return the address where people reach a server, without a slash at the end."""
    scheme, slashes, rest = text.partition("://")
    host, slash, path = rest.partition("/")
    return origin(f"{scheme}{slashes}{host}") + url_path(slash + path)


def url_path(text: str) -> str:
    """Return the path without a slash at the end."""
    if not PLAIN_PATH.fullmatch(text.rstrip("/")):
        raise ValueError("its path must be like /tools, with only letters, digits, and . _ ~ -.")
    return text.rstrip("/")


def network(word: str) -> Network:
    try:
        return ipaddress.ip_network(word)
    except ValueError:
        raise ValueError(f"{word} is not an address or a network.") from None


def trusted_host(word: str) -> TrustedHost:
    try:
        return read_trusted_host(word)
    except ValueError:
        raise ValueError(
            f"{word} is not a host or a network, with or without a port, such as "
            "login.internal:8443 or 10.0.0.0/8."
        ) from None


def folders(text: str) -> tuple[Path, ...]:
    if text and not Path(text).is_dir():
        raise ValueError(f"{text} is not a folder.")
    return (Path(text),) if text else ()


def seconds(text: str) -> timedelta | None:
    """Return the duration, or None for an empty text."""
    if text and not re.fullmatch(r"[0-9]{1,9}", text):
        raise ValueError("must be a number of seconds, such as 86400 for a day.")
    return timedelta(seconds=int(text)) if text else None


def unused_for(text: str) -> timedelta | None:
    """Return after how long an unused payment is refunded, or None for never."""
    found = with_unit(text)  # a number alone could mean days
    if found is None and text != "0":
        raise ValueError("must be a duration such as 7d, 12h, 30m or 90s, or 0 for never.")
    return found


def label_of(name: str) -> str:
    """Return the label of a table in `elicit.toml` that sets no label."""
    return name.replace("_", " ").title()


def asks_of_payments(text: str) -> bool | None:
    if text not in ("", "0", "1"):
        raise ValueError("must be 1 to poll about every open payment, or 0 to poll about none.")
    return text == "1" if text else None


def gate(text: str) -> GatePolicy:
    """Return the policy for tools that need approval although the server's code requires none."""
    names = words(text) or ("destructive",)
    if names == ("off",):
        return GatePolicy(gates_destructive=False)
    patterns = tuple(word for word in names if word != "destructive")
    problems = ["off cannot be combined with other values."] if "off" in names else []
    problems += [
        f"{word!r} is neither a tool name nor a pattern of names, such as delete_*."
        for word in patterns
        if not _PATTERN.fullmatch(word)
    ]
    if problems:
        raise ValueError(*problems)
    return GatePolicy(gates_destructive="destructive" in names, patterns=patterns)


# Tables of `elicit.toml`: their keys, and the types of the values in words.

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

    If the text lacks the full place, return the line of the longest part of it, or None.
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
    """Return each field's type in words. `more` replaces a type; None removes the field."""
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


def user_faults(read: Mapping[str, Any]) -> Iterator[str]:
    """Yield a fault for each invalid user id of the key `users`."""
    for user in read.get("users", ()):
        if not is_user_id(user):
            yield f"users: {user!r} is not a valid user id."


def label_faults(read: Mapping[str, Any], *, at_most: int) -> Iterator[str]:
    """Yield a fault if the key `label` has an empty, too long or unprintable text."""
    label = read.get("label", "x")
    if not label.strip() or not label.isprintable() or len(label) > at_most:
        yield f"label: must have 1 to {at_most} printable characters."


def faults_of_value(key: str, parse: Callable[[str], object], text: str) -> Iterator[str]:
    """Yield the faults that the parser of a key finds in its value."""
    try:
        parse(text)
    except ValueError as error:
        yield from (f"{key}: {sentence}" for sentence in error.args)


def converted(
    table: Mapping[str, Any],
    keys: Mapping[str, str],
    faults: list[str],
    *,
    types: Mapping[str, Any] = TYPES,
) -> dict[str, Any]:
    """Return the values that have their key's type, and add faults for the others.

    Unknown keys are faults too.
    """
    faults += [unknown_key(key, sorted(keys)) for key in table if key not in keys]
    values: dict[str, Any] = {}
    for key in (key for key in table if key in keys):
        try:
            values[key] = msgspec.convert(table[key], types[keys[key]])
        except msgspec.ValidationError:
            faults.append(f"{key}: must be {keys[key]}.")
    return values
