"""Payment providers that an operator declares in `elicit.toml`, under [sellers.NAME].

Risks: see webapp.settings.config_file. In addition, a header could contain the provider's API
key, so a header such as Authorization must contain a placeholder instead of the key.

The keys of a table are the field names in flows.payments.declared.declaration. `false` means that
the provider lacks the feature of that key.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Any, Final, cast

import msgspec

from flows.errors import InvalidQuestion
from flows.payments.declared.declaration import LIFE_AT_MOST, ProviderDeclaration
from flows.payments.declared.mapping import (
    DEFAULT_FETCHED,
    DEFAULT_OPENED,
    DEFAULT_WEBHOOK,
    Holding,
    Reading,
)
from flows.payments.receipt import Dispute, RefundStatus
from flows.payments.registry import BUILT_IN, SCHEMES
from flows.payments.session import SessionStatus
from flows.webhooks.signatures import Scheme
from webapp.settings import parsers
from webapp.settings.payments import OF_ACCOUNTS, OF_DECLARED

# The settings that every provider has, named without the prefix ELICIT_{NAME}_. `needs` must not
# repeat them.
SETTINGS: Final = frozenset(
    row.name.removeprefix("ELICIT_{NAME}_").lower() for row in (*OF_ACCOUNTS, *OF_DECLARED)
)

_READINGS: Final = {"created": DEFAULT_OPENED, "fetched": DEFAULT_FETCHED, "told": DEFAULT_WEBHOOK}
_MINUTES_AT_MOST = LIFE_AT_MOST // timedelta(minutes=1)
_INTEGERS = range(-(2**63), 2**64)  # the integers that JSON can contain
_HEADER = re.compile(r"[A-Za-z0-9-]{1,64}")
_CARRIERS = frozenset({"authorization", "proxy-authorization", "cookie"})
_ANY, _MINUTES = "a table of JSON values", f"a whole number, 1 to {_MINUTES_AT_MOST}"
_SECONDS = "a list of seconds, each a whole number, 1 at least"
_REFUNDS = "a table of pending or succeeded"
_NEWS = f"a table of {', '.join(Dispute)} or returned"
_STATES = f"a table of {', '.join(SessionStatus)}"
_LIVE, _UNIT, _ENCODING = "a table of true or false", "minor or decimal", "hex or base64"
_TYPES: Mapping[str, Any] = {
    **parsers.TYPES,
    _ANY: dict[str, Any],
    _MINUTES: int,
    _SECONDS: tuple[Annotated[int, msgspec.Meta(ge=1, le=86_400)], ...],
    _REFUNDS: dict[str, RefundStatus],
    _NEWS: dict[str, str],
    _STATES: dict[str, SessionStatus],
    _LIVE: dict[str, bool],
    _UNIT: str,
}
_KEYS = parsers.keys_of(
    ProviderDeclaration,
    **dict.fromkeys(("create_body", "close_body", "refund_body"), _ANY),
    minutes=_MINUTES,  # the life of a checkout
    pace=_SECONDS,
    refund_states=_REFUNDS,
    news=_NEWS,
)
_CAN_BE_NONE = frozenset(
    {"idempotency", "fetch", "close", "refund", "trouble", "manage", "event_id", "account"}
)
_READING_KEYS: Mapping[str, str] = {
    **dict.fromkeys(Reading.__dataclass_fields__, parsers.TEXT),
    "states": _STATES,
    "live": _LIVE,
    "unit": _UNIT,
}
_ALWAYS_READ = frozenset({"session", "states", "unit"})
_HOLDING_KEYS: Mapping[str, str] = dict.fromkeys(Holding.__dataclass_fields__, parsers.TEXT)
# The parts of a signature that a table can describe. `false` means that the scheme has none.
_SCHEME_KEYS: Mapping[str, str] = dict.fromkeys(
    ("signature_header", "signature_label", "separator", "time_label", "message", "encoding"),
    parsers.TEXT,
)
KEYS: Final = (*_KEYS, *_READINGS, "holding", "scheme")


def read_merchant_accounts(
    tables: Mapping[str, Any], problems: list[str]
) -> Mapping[str, ProviderDeclaration]:
    """Return the declared sellers by name, and add faults to the problems."""
    sellers: dict[str, ProviderDeclaration] = {}
    for name, table in parsers.tables_in(
        tables, kind="sellers", built_in=BUILT_IN, problems=problems
    ):
        faults: list[str] = []
        values: dict[str, Any] = {"label": parsers.label_of(name), **_values(table, faults)}
        if not faults:
            try:
                sellers[name] = ProviderDeclaration(name=name, **values)
            except InvalidQuestion as error:
                faults += map(_without_value, str(error).splitlines())
        problems += [f"sellers.{name}.{fault}" for fault in dict.fromkeys(faults)]
    return sellers


def _without_value(fault: str) -> str:
    """Remove a quoted value from the fault, because the value may be a misplaced API key."""
    key, _, says = fault.partition(": ")
    return f"{key}: its value is {says.rpartition(' is ')[2]}" if says[:1] in ("'", '"') else fault


def _values(table: Mapping[str, Any], faults: list[str]) -> dict[str, Any]:
    faults += [f"{key}: required." for key in ("api", "checkout_origins") if key not in table]
    faults += [parsers.unknown_key(key, KEYS) for key in table if key not in KEYS]
    values = _converted({key: table[key] for key in table if key in _KEYS}, _KEYS, faults)
    values |= {key: None for key in _CAN_BE_NONE if table.get(key) is False}
    _settle_types(values, faults)
    for key, default in _READINGS.items():
        if key in table:
            values[key] = replace(default, **_inner(key, table[key], _READING_KEYS, faults))
    if "holding" in table:
        found = _inner("holding", table["holding"], _HOLDING_KEYS, faults)
        missing = [key for key in ("call", "id", "currency", "given") if found.get(key) is None]
        faults += [f"holding.{key}: required." for key in missing]
        values["holding"] = None if missing else Holding(**found)
    if "scheme" in table:
        values["scheme"] = _scheme(table["scheme"], faults)
    return values


def _scheme(says: object, faults: list[str]) -> Scheme | None:
    """Return the scheme that `says` names or describes, or add faults and return None."""
    if isinstance(says, str):
        if says not in SCHEMES:
            names = ", ".join(sorted(SCHEMES))
            faults.append(f"scheme: must be one of {names}, or a table that describes the scheme.")
        return SCHEMES.get(says)
    if not isinstance(says, dict):
        faults.append("scheme: must be a text or a table.")
        return None
    before = len(faults)
    values = {
        key: value
        for key, value in _inner("scheme", cast("object", says), _SCHEME_KEYS, faults).items()
        if value is not None
    }
    header = values.pop("signature_header", "")
    if not _HEADER.fullmatch(header):
        faults.append("scheme.signature_header: required: the name of a header.")
    if values.get("encoding", "hex") not in ("hex", "base64"):
        faults.append(f"scheme.encoding: must be {_ENCODING}.")
    message = values.get("message", "{body}")
    if "{id}" in message:
        faults.append("scheme.message: {id} is not a valid name here.")
    if ("time_label" in values) != ("{ts}" in message):
        faults.append("scheme.time_label: required if the message has {ts}, and only then.")
    if len(faults) > before:
        return None
    try:
        return Scheme(name="declared", signature_header=header.lower(), **values)
    except ValueError as error:
        faults.append(f"scheme.message: {error}.")
        return None


def _converted(
    given: Mapping[str, object], keys: Mapping[str, str], faults: list[str]
) -> dict[str, Any]:
    """Return the values that have the right type. Leave out each `false` that means "none"."""
    can_be_none = _CAN_BE_NONE if keys is _KEYS else keys
    left_out = {key for key in can_be_none if given.get(key) is False}
    chosen = {key: value for key, value in given.items() if key not in left_out}
    return parsers.converted(chosen, keys, faults, types=_TYPES)


def _settle_types(values: dict[str, Any], faults: list[str]) -> None:
    """Convert values that the file has as text or tables to the declaration's types."""
    minutes = values.pop("minutes", None)
    if minutes in range(1, _MINUTES_AT_MOST + 1):
        values["life"] = timedelta(minutes=minutes)
    elif minutes is not None:
        faults.append(f"minutes: must be {_MINUTES}.")
    if "pace" in values:
        values["pace"] = tuple(timedelta(seconds=seconds) for seconds in values["pace"])
    faults += [
        f"{key}: must be {_ANY}. Write a date as a text."
        for key in ("create_body", "close_body", "refund_body")
        if not _is_json(values.get(key, ""))
    ]
    if "headers" in values:
        faults += _header_faults(values["headers"])
        values["headers"] = tuple(values["headers"].items())
    taken = sorted(SETTINGS.intersection(values.get("needs", ())))
    faults += [f"needs: {name} is a setting of every provider, so leave it out." for name in taken]
    if "news" in values:
        try:
            values["news"] = {
                kind: None if word == "returned" else Dispute(word)
                for kind, word in values["news"].items()
            }
        except ValueError:
            faults.append(f"news: must be {_NEWS}.")


def _header_faults(headers: Mapping[str, str]) -> Iterator[str]:
    has_key = 'must contain "{secret}", the placeholder for the key.'
    if not any("{secret}" in value for value in headers.values()):
        yield f"headers: one header {has_key}"
    for name, value in headers.items():
        if name.lower() in _CARRIERS and "{secret}" not in value:
            yield f"headers.{name}: {has_key}"


def _inner(place: str, table: object, keys: Mapping[str, str], faults: list[str]) -> dict[str, Any]:
    """Return the values of an inner table; `false` means that responses lack the field."""
    if not isinstance(table, dict):
        faults.append(f"{place}: must be a table.")
        return {}
    says = cast("dict[str, Any]", table)
    unknown = [key for key in says if key not in keys]
    found: list[str] = [f"{key}: unknown; the keys are {', '.join(keys)}." for key in unknown]
    known = {key: value for key, value in says.items() if key in keys}
    values = _converted(known, keys, found)
    for key in [key for key, value in known.items() if value is False]:
        if key in _ALWAYS_READ:
            found.append(f"{key}: must be {keys[key]}.")
        else:
            values[key] = {} if key == "live" else None
    if values.get("unit", "minor") not in ("minor", "decimal"):
        found.append(f"unit: must be {_UNIT}.")
    faults += [f"{place}.{fault}" for fault in found]
    return values


def _is_json(value: object) -> bool:
    match value:
        case str() | bool():
            return True
        case int():
            return value in _INTEGERS
        case float():
            return math.isfinite(value)
        case list() | dict():
            inner = cast("list[object]", [*value.values()] if isinstance(value, dict) else value)
            return all(map(_is_json, inner))
        case _:
            return False
