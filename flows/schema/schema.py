"""A schema: the fields that a form asks for, and the conversion of form strings to a value.

A schema is within the elicitation subset of JSON Schema: one flat object of texts, numbers,
booleans and choices. Error messages never contain what a person typed: it may be a secret.
"""

import dataclasses
import json
import re
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Generic, TypeVar, cast, overload

import typing_extensions
from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from flows.elicitation.states import Json
from flows.errors import Failed, InvalidSchema
from flows.schema.advice import in_python, must_be_answerable, not_described, written_type
from flows.schema.fields import TYPED, Fault, Field, Kind, Limits, fault_in, looks_secret
from flows.schema.json_schema import SchemaReading, read

__all__ = [
    "CONTENT_BYTES_AT_MOST",
    "Fault",
    "Field",
    "Kind",
    "Limits",
    "Parsed",
    "Refused",
    "Schema",
    "check",
    "parse",
    "schema_of",
    "secrets_in",
    "strings_of",
    "with_content",
    "with_secrets",
]

T = TypeVar("T")
ONE_TEXT: Final = "Your answer"  # the title of the only field of `str`
T_co = TypeVar("T_co", covariant=True)
CONTENT_BYTES_AT_MOST = 16 * 1024
_INTEGER = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER = re.compile(r"[+-]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][+-]?[0-9]{1,3})?")
_MOMENT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2})(:[0-9.]{2,12})?([Zz]|[+-][0-9:]{5})?"
)
# Texts of these formats are not secrets, even on a page for secrets.
_SEEN_FORMATS = frozenset({"email", "uri", "date", "date-time"})
_WRAPPERS = (typing.Required, typing.NotRequired)


class Refused(Failed):
    """The author's own validation refused the answer. The message does not repeat `faults`."""

    def __init__(self, message: str, *, faults: Sequence[Fault]) -> None:
        self.faults: tuple[Fault, ...] = tuple(faults)
        super().__init__(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema(Generic[T_co]):
    """The fields that a form asks for; `json` is the JSON Schema without the author's validators.

    `typed` converts content that passed `check` to the tool's value. It raises Refused if the
    author's own validation fails, which can happen only if the schema `has_rules`.
    """

    json: Mapping[str, Json]
    fields: tuple[Field, ...]
    typed: Callable[[Json], T_co] = dataclasses.field(compare=False, repr=False)
    has_rules: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """The content of a posted form. It is valid only if there are no faults."""

    content: Mapping[str, Json] = dataclasses.field(repr=False)
    faults: tuple[Fault, ...] = ()


@overload
def schema_of(asked: type[T]) -> Schema[T]: ...
@overload
def schema_of(asked: Mapping[str, Json]) -> Schema[Mapping[str, Json]]: ...
def schema_of(asked: Any) -> Schema[Any]:
    """Return the schema of `str`, a pydantic model, a dataclass, a TypedDict or a JSON Schema.

    `str` is one field named "value".

    Raises:
        InvalidSchema: A flat form cannot ask for this; the message names the JSON path.
    """
    if isinstance(asked, Mapping):
        found = read(cast("Mapping[str, Json]", asked))
        return Schema(json=found.json, fields=found.fields, typed=_object)
    if asked is str:
        found = read(
            {
                "type": "object",
                "properties": {"value": {"type": "string", "title": ONE_TEXT}},
                "required": ["value"],
            }
        )
        return Schema(json=found.json, fields=found.fields, typed=_value)
    if not isinstance(asked, type):
        is_type = typing.get_origin(asked) is not None
        given = written_type(asked) if is_type else f"an instance of {type(asked).__name__}"
        raise InvalidSchema(
            "A schema must be str, a model, a dataclass, a TypedDict or a JSON Schema, not "
            f"{given}."
        )
    return _schema_of_type(cast("type[Any]", asked))


def with_secrets(schema: Schema[T]) -> Schema[T]:
    """Return the schema of a page for secrets, with `is_secret` set for each field.

    The secrets are the fields that are marked (SecretStr, `writeOnly`, the format `password`), and
    each text or number whose name or title asks for a secret. If no field is marked, every plain
    text is a secret. `x-visible` makes a field visible.

    Raises:
        InvalidSchema: A secret has a default, which would be in the author's code and in the
            stored record.
    """
    properties = dict(cast("Mapping[str, Mapping[str, Json]]", schema.json["properties"]))
    is_marked = any(field.is_secret for field in schema.fields)
    fields: list[Field] = []
    for field in schema.fields:
        shown = properties[field.name]
        is_plain = field.kind in TYPED and field.limits.format not in _SEEN_FORMATS
        is_secret = field.is_secret or (
            is_plain
            and shown.get("x-visible") is not True
            and (looks_secret(field) or (field.kind == "string" and not is_marked))
        )
        if is_secret:
            if field.default:
                raise InvalidSchema(
                    f"The field {field.name!r} is a secret, so it has no default: remove it."
                )
            described = {key: value for key, value in shown.items() if key != "default"}
            properties[field.name] = {**described, "writeOnly": True}
        default = None if is_secret else field.default
        fields.append(dataclasses.replace(field, is_secret=is_secret, default=default))
    return dataclasses.replace(
        schema, json={**schema.json, "properties": properties}, fields=tuple(fields)
    )


def with_content(schema: Schema[T], content: Mapping[str, Json]) -> Schema[T]:
    """Return the schema with `content` as the defaults of its fields. None removes a default.

    Raises:
        InvalidSchema: A value is not valid for its field, or the schema gets too large.
    """
    properties = dict(cast("Mapping[str, Mapping[str, Json]]", schema.json["properties"]))
    for name, value in content.items():
        properties[name] = {**properties[name], "default": value}  # `read` drops a None
    found = read({**schema.json, "properties": properties})
    return dataclasses.replace(schema, json=found.json, fields=found.fields)


def secrets_in(schema: Schema[Any], content: Json) -> list[str]:
    """Return the values of an answer's secret fields, as texts."""
    if not isinstance(content, Mapping):
        return []
    names = [field.name for field in schema.fields if field.is_secret]
    return [str(content[name]) for name in names if content.get(name) is not None]


def parse(schema: Schema[Any], fields: Mapping[str, Sequence[str]]) -> Parsed:
    """Read the strings of an HTML form, as the inverse of `strings_of`.

    An unticked box is False. Empty optional fields are left out.
    """
    content: dict[str, Json] = {}
    faults: list[Fault] = []
    for field in schema.fields:
        given = fields.get(field.input_name, ())
        if len(given) > 1 and field.kind != "choices":
            faults.append(
                Fault(path=field.name, message="The form was sent with this field more than once.")
            )
            continue
        value = _read(field, given)
        if value is not None:
            content[field.name] = value
    named = {fault.path for fault in faults}
    faults += [fault for fault in check(schema, content) if fault.path not in named]
    return Parsed(content=content, faults=tuple(faults))


def strings_of(schema: Schema[Any], content: Mapping[str, Json]) -> dict[str, list[str]]:
    """Return the strings of an HTML form with this content."""
    return {
        field.input_name: _written(field, content[field.name])
        for field in schema.fields
        if field.name in content
    }


def without_blanks(schema: Schema[Any], content: Json) -> Json:
    """Return the content without blank optional fields, which some programs send as null or ""."""
    if not isinstance(content, Mapping):
        return content
    optional = {field.name: field for field in schema.fields if not field.is_required}

    def is_blank(name: str, value: Json) -> bool:
        field = optional.get(name)
        return field is not None and (
            value is None or (value == "" and fault_in(field, "") is not None)
        )

    return {name: value for name, value in content.items() if not is_blank(name, value)}


def check(schema: Schema[Any], content: Json) -> tuple[Fault, ...]:
    """Return the faults of an answer in the order of the fields; none if it is valid."""
    if not isinstance(content, Mapping):
        return (Fault(path="", message="The answer must be an object."),)
    faults: list[Fault] = []
    for field in schema.fields:
        if field.name in content:
            message = fault_in(field, content[field.name])
        elif field.is_required:
            message = _missing(field)
        else:
            continue
        if message is not None:
            faults.append(Fault(path=field.name, message=message))
    known = {field.name for field in schema.fields}
    if any(name not in known for name in content):
        faults.append(Fault(path="", message="The answer has a field that was not asked for."))
    if not faults:
        size = len(json.dumps(content, ensure_ascii=False).encode())
        if size > CONTENT_BYTES_AT_MOST:
            message = (
                f"All answers together are too long: {size} bytes, {CONTENT_BYTES_AT_MOST} at most."
            )
            faults.append(Fault(path="", message=message))
    return tuple(faults)


def _missing(field: Field) -> str:
    match field.kind:
        case "choice" | "choices":
            return "Choose what applies."
        case "boolean":
            return "Answer yes or no."
        case _:
            return "Fill this in."


def _read(field: Field, given: Sequence[str]) -> Json:
    """Return a field's value, or None if it is empty.

    Text that cannot be parsed is returned as it is, and `check` reports it.
    """
    if field.kind == "choices":
        chosen = [_chosen(field, text) for text in given if text]
        may_be_none = not field.is_required and bool(field.limits.least)
        return None if may_be_none and not chosen else chosen
    text = given[0] if given else ""
    if field.kind == "boolean":
        return bool(text)
    if field.is_multiline:
        # A browser sends its line breaks as CRLF, whatever was pasted.
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not (field.is_lines or "\n" in text.strip()) or not text.strip():
        # Strip spaces: copied text often starts or ends with one, and keys and passwords rarely do.
        # Texts of several lines are not stripped, because a key in a file ends with a line break.
        text = text.strip()
    if not text:
        # If the person cleared a default, do not restore it.
        is_cleared = field.kind == "string" and bool(field.default)
        return "" if is_cleared and fault_in(field, "") is None else None
    match field.kind:
        case "choice":
            return _chosen(field, text)
        case "integer" if _INTEGER.fullmatch(text):
            return int(text)
        case "number" if _NUMBER.fullmatch(text):
            return float(text)
        case "string" if field.limits.format == "date-time":
            found = _MOMENT.fullmatch(text)
            return f"{found[1]}T{found[2]}{found[3] or ':00'}{found[4] or 'Z'}" if found else text
        case _:
            return text


def _chosen(field: Field, text: str) -> Json:
    """Return the choice with this number: forms send numbers because browsers change some texts."""
    is_number = text.isascii() and text.isdecimal() and len(text) < 6
    within = is_number and int(text) < len(field.choices)
    return field.choices[int(text)].value if within else 0


def _written(field: Field, value: Json) -> list[str]:
    values = [choice.value for choice in field.choices]
    match field.kind:
        case "boolean":
            return ["yes"] if value is True else []
        case "choice":
            return [str(values.index(cast("str", value)))]
        case "choices":
            return [str(values.index(one)) for one in cast("Sequence[str]", value)]
        case "number" | "integer":
            return [str(value)]
        case "string" if field.limits.format == "date-time":
            return [_moment(str(value))]
        case "string":
            return [str(value)]


def _moment(text: str) -> str:
    try:
        when = datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        return text
    return when.replace(tzinfo=None).isoformat()


def _schema_of_type(asked: type[T]) -> Schema[T]:
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(_readable(asked))
        described = adapter.json_schema()
    except (PydanticUserError, NameError, TypeError) as err:
        raise not_described(asked, err) from err
    try:
        found = read(described, is_a_models=True)
    except InvalidSchema as error:
        raise in_python(asked, error) from None
    must_be_answerable(asked, adapter.core_schema)
    return Schema(
        json=found.json,
        fields=found.fields,
        typed=_typed_by(adapter, found),
        has_rules=has_rules(adapter.core_schema),
    )


def _readable(asked: type[Any]) -> type[Any]:
    """Convert a TypedDict to the typing_extensions type, which pydantic needs before 3.12."""
    if sys.version_info >= (3, 12) or not typing.is_typeddict(asked):
        return asked
    annotated = typing.get_type_hints(asked, include_extras=True)
    hints = {
        name: typing.get_args(hint)[0] if typing.get_origin(hint) in _WRAPPERS else hint
        for name, hint in annotated.items()
    }
    # With postponed annotations, `__required_keys__` has all keys or none: read the annotations.
    required = {
        name
        for name, hint in annotated.items()
        if typing.get_origin(hint) is typing.Required
        or (name in asked.__required_keys__ and typing.get_origin(hint) is not typing.NotRequired)
    }
    make: Any = typing_extensions.TypedDict
    remade: type[Any] = make(
        asked.__name__,
        {
            name: typing.Required[hint] if name in required else typing.NotRequired[hint]
            for name, hint in hints.items()
        },
    )
    return remade


def _typed_by(adapter: TypeAdapter[T], found: SchemaReading) -> Callable[[Json], T]:
    def typed(content: Json) -> T:
        try:
            return adapter.validate_json(
                json.dumps({**dict.fromkeys(found.nullable), **_object(content)})
            )
        except ValidationError as err:
            faults = [_fault_of(error) for error in err.errors()]
        # Raise outside of `except`: pydantic's message contains the input, and a chained
        # exception would show it.
        about = ", ".join(sorted({fault.path for fault in faults} - {""})) or "as a whole"
        raise Refused(f"The tool does not accept this answer: {about}.", faults=faults)

    return typed


def _fault_of(error: ErrorDetails) -> Fault:
    """Return a fault with the author's own message or a fixed text, never with pydantic's message.

    Pydantic's message may contain the input.
    """
    path = ".".join(str(part) for part in error["loc"])
    reason = error.get("ctx", {}).get("error")
    is_authors = error["type"] in ("value_error", "assertion_error") and str(reason)
    return Fault(path=path, message=str(reason) if is_authors else "This is not valid.")


def _object(content: Json) -> Mapping[str, Json]:
    return cast("Mapping[str, Json]", content if isinstance(content, Mapping) else {})


def _value(content: Json) -> str:
    return cast("str", _object(content)["value"])


# Detection of types with rules that their JSON Schema does not express, such as validators.
#
# Risks: a validator is overlooked, so that a person reads "sent" and the tool then refuses the
# answer. So every type that this module does not recognize counts as a type with rules.

# Nodes of pydantic's core schema that a JSON Schema expresses and `fields` checks.
_PLAIN = frozenset(
    {
        *("definitions", "definition-ref", "model", "model-fields", "model-field"),
        *("typed-dict", "typed-dict-field", "dataclass", "dataclass-args", "dataclass-field"),
        *("default", "nullable", "str", "int", "float", "bool", "literal", "enum", "list"),
    }
)
_ASIDE = frozenset({"metadata", "serialization", "config", "cls", "default", "ref"})
# Rules that a form cannot check exactly: bounds, and changes to a text before its checks.
_TEXT = frozenset({"strip_whitespace", "to_lower", "to_upper"})
_CHANGED = tuple(f"str_{each}" for each in _TEXT)  # a model's configuration for all its texts
_ROUGH = {
    "str": _TEXT,
    "int": frozenset({"multiple_of"}),
    "float": frozenset({"gt", "lt", "multiple_of"}),
}
_CODE = ("custom_init", "post_init", "root_model", "missing", "default_factory")


def has_rules(core_schema: object) -> bool:
    """Return True if a TypeAdapter's core schema has rules that its JSON Schema lacks."""
    match core_schema:
        case Mapping():
            return _is_rule(cast("Mapping[str, Any]", core_schema))
        case list() | tuple():
            return any(map(has_rules, cast("list[object]", core_schema)))
        case _:
            return False


def _is_rule(node: Mapping[str, Any]) -> bool:
    kind = node.get("type")
    if isinstance(kind, str) and kind not in _PLAIN:
        return True
    if any(node.get(key) for key in _CODE):
        return True
    config = node.get("config")
    if isinstance(config, Mapping) and any(map(cast("Mapping[str, Any]", config).get, _CHANGED)):
        return True
    if not _ROUGH.get(kind or "", frozenset()).isdisjoint(node):
        return True
    return any(has_rules(value) for key, value in node.items() if key not in _ASIDE)
