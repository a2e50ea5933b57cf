"""The author's additions to a form: initial values of its fields, and a check of the answer.

Risks: the check is code and cannot be stored, but the answer may arrive in another process than the
one that asked, or after a restart. So a check and its model must be at the top level of a module:
the question stores their names, and any process that serves the tool finds them by these names.
"""

import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping
from types import CodeType
from typing import Any, Final, TypeAlias, TypeVar, cast

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError, to_jsonable_python

from flows.elicitation.misuse import must_run_when_called
from flows.elicitation.states import Json
from flows.errors import InvalidQuestion, InvalidSchema
from flows.schema.fields import fault_in
from flows.schema.schema import Refused, Schema, schema_of, with_content

T = TypeVar("T")
# A check returns its faults by field name. The name "" stands for the form itself. None: no faults.
Faults: TypeAlias = Mapping[str, str] | None
CheckOf: TypeAlias = Callable[[T], Awaitable[Faults] | Faults]
AnyCheck: TypeAlias = CheckOf[Any]
FAULT_CHARACTERS: Final = 300
_EXAMPLE: Final = 'return {"room": "This room is taken."}, or None if the answer is right'


def must_be_check(check: AnyCheck | None, schema: object) -> None:
    """Check that any process of the server can find `check` and the model by their names.

    Raises:
        InvalidQuestion: `check` or the model is not at the top level of a module.
    """
    if check is None:
        return
    named = f"check={getattr(check, '__name__', type(check).__name__)}"
    must_run_when_called(check, named)
    if isinstance(getattr(check, "__code__", None), CodeType):
        parameters = [*inspect.signature(check).parameters.values()]
        given = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        others = [p for p in parameters if p.default is p.empty and p.kind is p.KEYWORD_ONLY]
        needed = [p for p in given if p.default is p.empty]
        takes_any = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        if others or len(needed) > 1 or not (given or takes_any):
            raise InvalidQuestion(f"{named} must have one parameter, for the answer.")
    if name_of(check) is None or isinstance(check, type):
        raise InvalidQuestion(
            f"{named} must be a function at the top level of a module. The server may have to find "
            "it by its name in another process, or after a restart. Move it out of the tool, and "
            "let it depend on nothing but the answer."
        )
    if isinstance(schema, type) and name_of(schema) is None:
        raise InvalidQuestion(
            f"With check=, {schema.__name__} must be a class at the top level of a module. The "
            "server may have to find it by its name in another process, or after a restart."
        )


def name_of(found: object) -> str | None:
    """Return `module:name` of a function or class, or None if it cannot be found by a name."""
    module, name = getattr(found, "__module__", None), getattr(found, "__qualname__", None)
    if not (isinstance(module, str) and isinstance(name, str)) or "<" in name:
        return None
    loaded = sys.modules.get(module)
    if loaded is None:  # a file that was run without being imported
        return f"{module}:{name}"
    return f"{module}:{name}" if _within(loaded, name) == found else None


def found_at(name: str) -> Any:
    """Return the function or class that `name_of` gave this name, or None if it is not loaded.

    The module is never imported here, so a stored name cannot run new code.
    """
    module, _, path = name.partition(":")
    loaded = sys.modules.get(module)
    return None if loaded is None else _within(loaded, path)


def faults_of(returned: object, *, check: AnyCheck) -> dict[str, str]:
    """Return the faults that a check returned. Raises TypeError if they are not valid."""
    name = getattr(check, "__qualname__", "check")
    if returned is None:
        return {}
    if not isinstance(returned, Mapping):
        raise TypeError(f"{name} returned {type(returned).__name__}: {_EXAMPLE}.")
    faults = cast("Mapping[object, object]", returned)
    for field, message in faults.items():
        if not isinstance(field, str) or not isinstance(message, str) or not message.strip():
            raise TypeError(f"{name} returned a field without a sentence: {_EXAMPLE}.")
    return {str(field): str(message)[:FAULT_CHARACTERS] for field, message in faults.items()}


def with_initial(schema: Schema[T], asked: object, initial: object) -> Schema[T]:
    """Return the schema with `initial` as the initial values of its fields.

    `asked` is the type or the JSON Schema of the question.

    Raises:
        InvalidQuestion: A value is not valid for its field, or the field is a secret.
    """
    if initial is None:
        return schema
    given = _as_content(schema, asked, initial)
    fields = {field.name: field for field in schema.fields}
    for name, value in given.items():
        if name not in fields:
            known = ", ".join(fields)
            raise InvalidQuestion(f"initial has the field {name!r}. The form has {known}.")
        if fields[name].is_secret:
            raise InvalidQuestion(
                f"initial has the field {name!r}, which is a secret: a secret is not shown again. "
                "Leave it out."
            )
        if value is not None and (fault := fault_in(fields[name], value)):
            raise InvalidQuestion(f"initial[{name!r}] is not valid: {fault}")
    content = {name: value for name, value in given.items() if value is not None}
    if schema.has_rules:
        _must_be_accepted(schema, content)
    try:
        return with_content(schema, given)
    except InvalidSchema as error:
        raise InvalidQuestion(f"initial is not valid: {error.why}.") from None


def _as_content(schema: Schema[Any], asked: object, initial: object) -> Mapping[str, Json]:
    if asked is str:
        (field,) = schema.fields
        if not isinstance(initial, str):
            raise InvalidQuestion(f"initial must be str, not {type(initial).__name__}.")
        return {field.name: initial}
    is_one = isinstance(asked, type) and isinstance(initial, asked)
    if not (is_one or isinstance(initial, Mapping)):
        expected = f"{asked.__name__} or a dict" if isinstance(asked, type) else "a dict"
        raise InvalidQuestion(f"initial must be {expected}, not {type(initial).__name__}.")
    try:
        if isinstance(initial, Mapping):
            written: object = to_jsonable_python(initial)
        else:
            adapter: TypeAdapter[Any] = TypeAdapter(cast("type[Any]", asked))
            written = adapter.dump_python(initial, mode="json", by_alias=True)
    except (PydanticSerializationError, ValueError) as error:
        raise InvalidQuestion("initial contains a value that is not JSON.") from error
    content = cast("Mapping[str, Json]", written)
    numbers = {field.name for field in schema.fields if field.kind == "number"}
    # JSON has no Decimal: pydantic writes a Decimal as text, but a form needs a number.
    return {
        name: float(value) if name in numbers and isinstance(value, str) else value
        for name, value in content.items()
    }


def _must_be_accepted(schema: Schema[Any], content: Mapping[str, Json]) -> None:
    """Raise InvalidQuestion if the model's validators refuse a value that `content` has."""
    try:
        schema.typed(content)
    except Refused as refused:
        names = {"", *content}
        found = [fault for fault in refused.faults if fault.path.partition(".")[0] in names]
        if found:
            where = f"initial[{found[0].path!r}]" if found[0].path else "initial"
            raise InvalidQuestion(f"{where} is not valid: {found[0].message}") from None
    except Exception as error:
        why = f"{type(error).__name__} in the model's validators"
        raise InvalidQuestion(f"initial could not be checked: {why}.") from error


def _within(module: object, path: str) -> object:
    found: object = module
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def typed_by(asked: object) -> Callable[[Json], object] | None:
    """Return the function that converts an answer to the type `asked`.

    Return None if no form can ask for this type. For `str`, the value of the only field is the
    answer.
    """
    if asked is str:
        return _only_value
    if not isinstance(asked, type):
        return None
    try:
        return schema_of(asked).typed
    except InvalidSchema:  # the author has changed the model since the question was asked
        return None


def _only_value(content: Json) -> Json:
    (value,) = cast("Mapping[str, Json]", content).values()
    return value
