"""The arguments that a tool's body will receive, in the form that a person is shown.

Risks: a person approves some arguments, and the tool runs with others. A library drops arguments
that a tool does not declare, fills in defaults, and converts texts to numbers and dates. The
library's own validation therefore runs here, before the gate, and nobody is asked about a call that
the validation would refuse. A model may add arguments of its own, so arguments that the schema does
not allow are refused. Numbers that are not finite and lone surrogates are refused too, because no
page shows them correctly.

If a tool runs on another machine (behind a proxy), or is made from another tool, this module does
not know what happens to its arguments. They are shown as sent, with the defaults of the schema.
"""

import dataclasses
import inspect
import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any, Final, NoReturn, cast, get_type_hints

from pydantic import BaseModel, SecretBytes, SecretStr, ValidationError
from pydantic_core import to_json, to_jsonable_python

from flows.elicitation.states import Json
from flows.errors import InvalidArguments, InvalidQuestion
from flows.shown import must_be_flat
from webapp.mcp.messages import VALUES_AT_MOST, has_too_many_values

SHOWN_BYTES_AT_MOST: Final = 48 * 1024  # one record of the store has to hold them
OF_ITS_OWN: Final = "made by the tool itself"
LARGE_CHARACTERS: Final = 8 * 1024
_NAMED_AT_MOST = 5
_READ_AT_MOST = 1000
_NAME_CHARACTERS = 60
_WORDS_CHARACTERS = 500
_FIT_NO_PERSON = "Nobody was asked, and {tool} did not run: "


def received(
    given: Mapping[str, Any],
    *,
    tool: str,
    schema: Mapping[str, Any] | None,
    validate: Callable[[dict[str, Any]], Mapping[str, Any]] | None,
) -> dict[str, Json]:
    """Return the arguments to show, declared parameters first, in the schema's order.

    Raises InvalidArguments if the arguments are invalid or no page can show them.
    """
    properties = cast("Mapping[str, Any]", (schema or {}).get("properties", {}))
    try:
        _must_be_displayable(given)
        if schema is not None and not _admits_others(schema):
            _must_be_declared(given, list(properties))
        shown = (
            _as_sent(given, properties)
            if validate is None
            else _as_validated(given, properties, validate)
        )
        _must_be_displayable(shown)
    except (InvalidArguments, InvalidQuestion) as refused:
        raise not_shown(tool, str(refused)) from None
    except RecursionError:  # a text that the library parses as JSON, or a recursive type
        raise not_shown(
            tool, "its arguments are nested too deeply to show them to a person."
        ) from None
    return shown


def not_shown(tool: str, why: str) -> InvalidArguments:
    """Return the error for a call that no person can be asked about."""
    return InvalidArguments(_FIT_NO_PERSON.format(tool=_named(tool)) + why)


def must_fit(
    given: Mapping[str, Any],
    *,
    tool: str,
    schema: Mapping[str, Any] | None,
    validate: Callable[[dict[str, Any]], Mapping[str, Any]] | None,
) -> None:
    """Check large arguments before the library does, because its error lists all invalid values.

    Use this for calls with more than LARGE_CHARACTERS characters. The library validates smaller
    calls itself. Raises InvalidArguments.
    """
    properties = cast("Mapping[str, Any]", (schema or {}).get("properties", {}))
    # MCPServer parses a text as JSON if the parameter is not declared as a text.
    texts = {
        name: value.encode("utf-8", "replace")
        for name, value in given.items()
        if isinstance(value, str) and not _may_be_text(properties.get(name))
    }
    large = [name for name, value in texts.items() if has_too_many_values(value)]
    try:
        if large:
            _refuse(f"{_listed(large)} has more than {VALUES_AT_MOST:,} values. Send fewer.")
        if validate is not None:
            _validated(given, validate)
    except InvalidArguments as refused:
        raise InvalidArguments(f"{_named(tool)} did not run: {refused}") from None


def _validated(
    given: Mapping[str, Any], validate: Callable[[dict[str, Any]], Mapping[str, Any]]
) -> None:
    try:
        validate(dict(given))
    except ValidationError as error:
        raise InvalidArguments(_faults(error)) from None
    except Exception:  # noqa: BLE001 - the author's own validator; the library runs it again
        return


def _refuse(why: str) -> NoReturn:
    raise InvalidArguments(why)


def _may_be_text(about: object) -> bool:
    if not isinstance(about, Mapping):
        return True
    schema = cast("Mapping[str, Any]", about)
    kinds = cast("Iterable[Mapping[str, Any]]", schema.get("anyOf") or (schema,))
    return any(kind.get("type") not in ("array", "object") and "$ref" not in kind for kind in kinds)


@lru_cache(maxsize=1000)
def echo_of(function: Callable[..., Any]) -> Any:
    """Return FastMCP's validation for this function, with a body that returns its arguments."""
    from fastmcp.server.dependencies import (  # noqa: PLC0415 - an optional library
        without_injected_parameters,
    )
    from fastmcp.utilities.types import get_cached_typeadapter  # noqa: PLC0415 - as above

    asked = without_injected_parameters(function)
    signature = inspect.signature(asked)

    def echo(*args: Any, **kwargs: Any) -> dict[str, Any]:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)

    try:
        hints = get_type_hints(asked, include_extras=True)
    except Exception:  # noqa: BLE001 - a functools.partial has no hints
        hints = {}
    kinds = {
        name: hints.get(name, parameter.annotation)
        for name, parameter in signature.parameters.items()
        if name in hints or parameter.annotation is not inspect.Parameter.empty
    }
    vars(echo)["__signature__"] = signature.replace(return_annotation=inspect.Signature.empty)
    echo.__annotations__ = kinds
    return get_cached_typeadapter(echo)


def validated_by(
    function: Callable[..., Any], *, is_strict: bool
) -> Callable[[dict[str, Any]], Mapping[str, Any]]:
    """Return FastMCP's validation of a function's arguments, without running the function."""

    def validate(given: dict[str, Any]) -> Mapping[str, Any]:
        adapter = echo_of(function)
        if is_strict:
            return cast("dict[str, Any]", adapter.validate_json(to_json(given), strict=True))
        return cast("dict[str, Any]", adapter.validate_python(given))

    return validate


def _must_be_displayable(given: object) -> None:
    """Check that a page can show the value. Raises InvalidArguments or InvalidQuestion."""
    must_be_flat(given)
    try:
        text = json.dumps(given, allow_nan=False, ensure_ascii=False, default=str)
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidArguments(
            "an argument contains half a character (a lone surrogate), which no page can show."
        ) from None
    except ValueError:
        raise InvalidArguments("an argument is NaN or infinite, which no page can show.") from None
    if size > SHOWN_BYTES_AT_MOST:
        raise InvalidArguments(
            f"its arguments have {size} bytes, but a page can show at most {SHOWN_BYTES_AT_MOST}. "
            "Call it with shorter arguments."
        )


def _admits_others(schema: Mapping[str, Any]) -> bool:
    """Return True if the schema allows undeclared arguments. By default a library drops them."""
    others = schema.get("additionalProperties")
    return others is True or isinstance(others, Mapping) or bool(schema.get("patternProperties"))


def _must_be_declared(given: Mapping[str, Any], declared: list[str]) -> None:
    unknown = [name for name in given if name not in declared]
    if unknown:
        takes = _listed(declared) if declared else "nothing"
        raise InvalidArguments(
            f"it has no argument {_listed(unknown)}. It accepts {takes}: remove the others."
        )


def _as_sent(given: Mapping[str, Any], properties: Mapping[str, Any]) -> dict[str, Json]:
    shown: dict[str, Json] = {}
    for name, about in properties.items():
        if name in given:
            shown[name] = given[name]
        elif isinstance(about, Mapping) and "default" in about:
            shown[name] = cast("Json", about["default"])
    return shown | {name: value for name, value in given.items() if name not in shown}


def _as_validated(
    given: Mapping[str, Any],
    properties: Mapping[str, Any],
    validate: Callable[[dict[str, Any]], Mapping[str, Any]],
) -> dict[str, Json]:
    try:
        # Validate twice: if a value is different each time (the time, a random number), the body
        # would get another value than the one that is shown.
        first, second = validate(dict(given)), validate(dict(given))
    except ValidationError as error:
        raise InvalidArguments(_faults(error)) from None
    except Exception as error:  # noqa: BLE001 - the author's own validator may raise anything
        raise InvalidArguments(
            f"its arguments could not be validated ({type(error).__name__})."
        ) from None
    ordered = [name for name in properties if name in first]
    names = [*ordered, *(name for name in first if name not in properties)]
    return {name: _shown(first[name], second.get(name), given.get(name, _NONE)) for name in names}


_NONE: Final = object()


def _shown(value: object, again: object, sent: object) -> Json:
    """Return the body's value as JSON, or the sent value if the body's value cannot be shown.

    `again` is the result of a second validation, which has to be the same.
    """
    plain = _same(value, again)
    if plain is not None:
        return cast("Json", json.loads(plain))
    parts, others = _parts(value), _parts(again)
    if parts is None or others is None or parts.keys() != others.keys():
        return OF_ITS_OWN if sent is _NONE else cast("Json", sent)
    given = cast("Mapping[str, object]", sent if isinstance(sent, Mapping) else {})
    shown = {
        name: _shown(part, others[name], given.get(name, _NONE)) for name, part in parts.items()
    }
    if _keeps_more(value):
        return {"as the tool stores it": shown, "as it was sent": cast("Json", sent)}
    return shown


def _parts(value: object) -> dict[str, object] | None:
    match value:
        case BaseModel():
            return {**vars(value), **(value.model_extra or {})}
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
        case _:
            return None


def _same(one: object, other: object) -> str | None:
    """Return the JSON of both values, or None if they differ or cannot be converted to JSON."""
    try:
        text = json.dumps(as_json(one))
        return text if text == json.dumps(as_json(other)) else None
    except _NotShownError:
        return None


def _faults(error: ValidationError) -> str:
    """Describe the invalid values, without the values themselves, which may be secret."""
    # reading a single error makes pydantic build all errors
    if (count := error.error_count()) > _READ_AT_MOST:
        return f"{count} of their values are invalid. Call it with arguments that match its schema."
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    texts = [
        f"{'.'.join(map(str, one['loc'])) or 'arguments'}: {one['msg']}"
        for one in faults[:_NAMED_AT_MOST]
    ]
    return "; ".join(texts)[:_WORDS_CHARACTERS] + ". Call it with arguments that match its schema."


class _NotShownError(Exception):
    """The value has a type of the author's own that cannot be converted to JSON."""


def as_json(value: Any) -> Json:
    """Return a value of the body as JSON, including fields that its type omits from dumps.

    Raises _NotShownError if the value has a type that cannot be converted.
    """
    if _keeps_more(value):
        raise _NotShownError
    return _plain(value)


def _plain(value: Any) -> Json:  # noqa: C901 - one line for each type
    match value:
        case Enum():
            return as_json(value.value)
        case None | bool() | int() | float() | str():
            return value
        case Decimal():
            return str(value) if value.is_finite() else float(value)
        case SecretStr() | SecretBytes():
            return as_json(value.get_secret_value())
        case BaseModel():
            return as_json(_parts(value))
        case Mapping():
            each_of = cast("Mapping[object, object]", value)
            pairs = [(_key(name), as_json(each)) for name, each in each_of.items()]
            if len(dict(pairs)) < len(pairs):
                raise _NotShownError
            return dict(pairs)
        case list() | tuple() | deque():
            return [as_json(each) for each in cast("Iterable[object]", value)]
        case AbstractSet():
            members = cast("AbstractSet[object]", value)
            return sorted((as_json(each) for each in members), key=json.dumps)
        case bytes():
            return value.decode("utf-8", "backslashreplace")
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return as_json(_parts(value))
        case _:
            return _known(value)


def _keeps_more(value: object) -> bool:
    """Return True if the value may contain more than its fields show.

    The sent value is then shown as well.
    """
    match value:
        case Enum():
            return False
        case BaseModel():
            return bool(value.__pydantic_private__)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            declared = {one.name for one in dataclasses.fields(value)}
            passed_on = [one.type for one in vars(type(value))["__dataclass_fields__"].values()]
            is_passed_on = any("InitVar" in str(one) for one in passed_on)
            return is_passed_on or bool(set(getattr(value, "__dict__", ())) - declared)
        case str() | int() | float() | bytes() | list() | tuple() | Mapping() | AbstractSet():
            return bool(getattr(cast("object", value), "__dict__", None))
        case _:
            return False


def _key(name: object) -> str:
    plain = as_json(name)
    return plain if isinstance(plain, str) else json.dumps(plain)


def _known(value: object) -> Json:
    """Return a date, address or identifier as the text or number that pydantic writes for it."""
    try:
        plain = to_jsonable_python(value)
    except Exception as error:
        raise _NotShownError from error
    if not isinstance(plain, str | int | float):
        raise _NotShownError
    return plain


def _listed(names: list[str]) -> str:
    listed = ", ".join(map(_named, names[:_NAMED_AT_MOST]))
    others = len(names) - _NAMED_AT_MOST
    return listed if others <= 0 else f"{listed} and {others} more"


def _named(name: str) -> str:
    return json.dumps(name[:_NAME_CHARACTERS], ensure_ascii=True)
