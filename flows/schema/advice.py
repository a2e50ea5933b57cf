"""Advice to authors about a model that no form can show, in terms of Python types.

Risks: a form accepts an answer that the model always refuses, for example because a browser sends
texts and the model expects members of an enum. Such a model is refused as well, when the tool is
registered.
"""

import dataclasses
import re
import typing
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal
from enum import Enum, Flag
from types import NoneType, UnionType
from typing import Any, Final, TypeGuard, cast

from pydantic import AliasChoices, PydanticUserError, TypeAdapter
from pydantic.fields import FieldInfo
from typing_extensions import is_typeddict

from flows.errors import InvalidSchema

# Types that a form can show. If one is refused, the reason is in its JSON Schema, not in the type.
_PLAIN: Final = (str, int, float, bool, Decimal, date, datetime)
_USE: Final = "use str, int, float, bool, Decimal, date, datetime, Literal[...] or an Enum"
_CHOOSE: Final = "use list[Literal[...]] or a list of an Enum, so that the person can choose"
_OR_NONE: Final = " | None"
# The JSON paths of errors in the value of a keyword. Another type would not help there.
_ABOUT_VALUES: Final = re.compile(
    r"\.(default|pattern|description|autocomplete|enumNames|min\w+|max\w+|exclusive\w+)$"
)


def in_python(asked: type[Any], error: InvalidSchema) -> InvalidSchema:
    """Return an error that names the Python field and its annotation instead of a JSON path."""
    about, why = asked.__name__, error.why
    fields = {name: found for name, *found in _fields_of(asked)}
    if error.path.startswith(("$.type", "$.items")) or not (fields or error.path == "$"):
        about, why = f"`{about}`", "it has no fields. Use a model with one field of this type"
    for shown, (name, hint) in fields.items():
        if (error.path + ".").startswith(f"$.properties.{shown}."):
            about = f"{asked.__name__}.{name}: `{written_type(hint)}`"
            is_of_value = _ABOUT_VALUES.search(error.path.removeprefix(f"$.properties.{shown}"))
            why = why if is_of_value else _advice(hint) or why
    return refusal(about, why)


def refusal(about: str, why: str) -> InvalidSchema:
    return InvalidSchema(
        f"{about} cannot be asked as a form: {why}. Change the schema in the code that asks: the "
        "same question fails every time."
    )


def not_described(asked: type[Any], error: Exception) -> InvalidSchema:
    """Return the error for a type for which pydantic cannot create a JSON Schema."""
    if name := getattr(error, "name", None) or _undefined_in(asked):
        return refusal(
            asked.__name__,
            f"{name} is not defined where the model is. Import or define it there, outside of "
            "`if TYPE_CHECKING`",
        )
    for _, name, hint in _fields_of(asked):
        try:
            TypeAdapter[Any](hint).json_schema()
        except (PydanticUserError, TypeError):
            return refusal(f"{asked.__name__}.{name}: `{written_type(hint)}`", _USE)
    if not _has_fields(asked):
        return refusal(asked.__name__, "it is no pydantic model, dataclass or TypedDict")
    return refusal(asked.__name__, str(error).partition("\n")[0].rstrip("."))


def must_be_answerable(asked: type[Any], core_schema: object) -> None:
    """Raise InvalidSchema if a field of the model refuses every value that a form can send."""
    for _, name, hint in _fields_of(asked):
        if why := next(_refused_in(_node_of(core_schema, name)), None):
            raise refusal(f"{asked.__name__}.{name}: `{written_type(hint)}`", why)


def _refused_in(node: object) -> Iterator[str]:
    """Yield advice for each part of a field's core schema that needs a value no form can send."""
    if isinstance(node, Mapping):
        found = cast("Mapping[str, Any]", node)
        if found.get("type") == "literal":
            values = cast("list[Any]", found["expected"])
            if not all(isinstance(one, str) for one in values):
                yield _texts_instead(values)
        if found.get("tz_constraint") == "naive":
            yield "use datetime or AwareDatetime, because a form sends times in UTC"
        if isinstance(found.get("validation_alias"), list) and _is_path(found["validation_alias"]):
            yield "an AliasPath cannot be asked for: give the field a name of its own"
        node = [value for key, value in found.items() if key not in ("metadata", "serialization")]
    if isinstance(node, list | tuple):
        for each in cast("Iterable[object]", node):
            yield from _refused_in(each)


def _is_path(alias: list[list[object] | str | int]) -> bool:
    """Return True if the first alias, which forms use, is a path of several parts."""
    return len(alias[0] if isinstance(alias[0], list) else alias) > 1


def _node_of(core_schema: object, name: str) -> object:
    """Return the core schema of the first field with this name, or None."""
    if isinstance(core_schema, Mapping):
        found = cast("Mapping[str, Any]", core_schema)
        if found.get("type") == "dataclass-field" and found.get("name") == name:
            return found
        fields = found.get("fields")
        if isinstance(fields, Mapping) and name in fields:
            return cast("Mapping[str, object]", fields)[name]
        core_schema = [found[key] for key in ("schema", "fields") if key in found]
    if isinstance(core_schema, list | tuple):
        each = (_node_of(one, name) for one in cast("Iterable[object]", core_schema))
        return next((one for one in each if one is not None), None)
    return None


def _fields_of(asked: type[Any]) -> list[tuple[str, str, Any]]:
    """Return the name in the form, the name in Python and the annotation of each field."""
    found = getattr(asked, "__pydantic_fields__", None)
    if isinstance(found, dict):
        fields = cast("dict[str, FieldInfo]", found)
        return [(_alias(name, field), name, field.annotation) for name, field in fields.items()]
    try:
        hints = typing.get_type_hints(asked)
    except (NameError, TypeError):
        return []
    return [(name, name, hint) for name, hint in hints.items()]


def _alias(name: str, field: FieldInfo) -> str:
    alias = field.validation_alias
    if isinstance(alias, AliasChoices):
        alias = next((one for one in alias.choices if isinstance(one, str)), None)
    return alias if isinstance(alias, str) else name


def _undefined_in(asked: type[Any]) -> str | None:
    """Return the first name in an annotation that is not defined, or None."""
    try:
        typing.get_type_hints(asked)
    except NameError as error:
        return error.name
    except TypeError:
        pass
    return None


def _advice(hint: Any) -> str | None:
    """Return advice for an annotation that no form can show, or None if a form can show it."""
    inner = [one for one in typing.get_args(hint) if one is not NoneType]
    origin = typing.get_origin(hint) or hint
    if origin in (typing.Union, UnionType):
        if len(inner) == 1:
            return _advice(inner[0])
        if all(map(_has_fields, inner)):
            return "ask which of them first, and then ask for its fields in a second form"
        return "a field has one type, with or without `| None`"
    if origin is typing.Literal:
        values = list(typing.get_args(hint))
        return None if all(isinstance(one, str) for one in values) else _texts_instead(values)
    if not _is_class(origin):
        return _USE
    if issubclass(origin, Enum):
        return _advice_for_enum(origin)
    if _has_fields(origin):
        return f"a form is flat: write the fields of {origin.__name__} into the model itself"
    return _advice_for_class(origin, inner)


def _advice_for_class(origin: type[Any], inner: list[Any]) -> str | None:
    if issubclass(origin, Mapping):
        return "a form is flat: use one field for each key"
    if issubclass(origin, Iterable) and not issubclass(origin, str | bytes | bytearray):
        parts = [one for one in inner if one is not Ellipsis]
        if issubclass(origin, tuple) and parts and Ellipsis not in inner:
            return "a form is flat: use one field for each part"
        is_of_choices = parts and (
            typing.get_origin(parts[0]) is typing.Literal
            or (isinstance(parts[0], type) and issubclass(parts[0], Enum))
        )
        advice = _advice(parts[0]) if is_of_choices else _CHOOSE
        return advice and advice.removesuffix(_OR_NONE)
    return None if origin in _PLAIN else _USE


def _advice_for_enum(found: type[Enum]) -> str | None:
    members = list(found)
    if not members:
        return f"{found.__name__} has no members"
    wrong = [one for one in members if not isinstance(one.value, str)]
    if not wrong:
        return None
    if issubclass(found, Flag):
        return _CHOOSE
    name = wrong[0].name
    return f"the value of each member must be a text, as in {name} = {name.lower()!r}"


def _texts_instead(values: list[Any]) -> str:
    """Return advice for a Literal with values that are not texts: the Literal to write instead."""
    if all(isinstance(one, bool) for one in values):
        return "use bool"
    texts = [one.value if isinstance(one, Enum) else one for one in values if one is not None]
    written = ", ".join(repr(one.decode() if isinstance(one, bytes) else str(one)) for one in texts)
    optional = _OR_NONE if None in values else ""
    return f"each choice must be a text: write Literal[{written}]{optional}"


def _is_class(found: object) -> TypeGuard[type[Any]]:
    return isinstance(found, type)


def _has_fields(found: object) -> bool:
    if not _is_class(found) or getattr(found, "__pydantic_root_model__", False):
        return False
    return (
        hasattr(found, "__pydantic_fields__")
        or dataclasses.is_dataclass(found)
        or is_typeddict(found)
        or hasattr(found, "_fields")
    )


def written_type(hint: Any) -> str:
    """Return an annotation as an author writes it: `list[str]`, `int | None`."""
    if isinstance(hint, type) and typing.get_origin(hint) is None:
        return hint.__name__
    return re.sub(r"\b(?:[a-z_]+\.)+", "", str(hint))
