"""Parsing of a JSON Schema within the flat subset that a form can show.

Everything outside the subset is refused with its JSON path, so that the author sees the error in
the code that asks, and a form never leaves out a rule that the server checks later. Texts that no
page shows or that a page would cut are refused too, and so are choices that look alike.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, cast

from flows.elicitation.states import Json
from flows.errors import InvalidSchema
from flows.question import MESSAGE_AT_MOST
from flows.schema.fields import (
    AUTOFILL,
    AUTOFILL_OF_FORMATS,
    FORMATS,
    TYPED,
    Field,
    Kind,
    Limits,
    Option,
    fault_in,
    why_no_pattern,
)
from flows.shown import looks_of

FIELDS_AT_MOST = 50
CHOICES_AT_MOST = 250
SCHEMA_BYTES_AT_MOST = 16 * 1024
# A title that a library generated from a class's name; forms do not show it.
_CLASS = re.compile(r"[\w\[\],]{1,64}")
_NAME = re.compile(r"[\w .:/@$-]{1,64}")
# Keywords that change nothing for the person who answers.
_SILENT = {
    *("$schema", "$id", "$comment", "$defs", "definitions"),
    *("examples", "deprecated", "readOnly", "additionalProperties"),
}
_OF_ALL = {"type", "title", "description", "default"}
_OF_CLASSES = {"title", "description"}
_OF_CHOICES = {"enum", "enumNames", "oneOf", "anyOf", "const"}
_OF_KIND: Mapping[Kind, set[str]] = {
    "string": {
        *("minLength", "maxLength", "pattern", "format", "autocomplete"),
        *("writeOnly", "x-visible"),
    },
    "number": {"minimum", "maximum", "writeOnly", "x-visible"},
    "integer": {
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        *("writeOnly", "x-visible"),
    },
    "boolean": set(),
    "choice": _OF_CHOICES | {"autocomplete"},
    "choices": {"items", "uniqueItems", "minItems", "maxItems"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaReading:
    """A parsed schema.

    `nullable` fields are required but may be null. In a form they are optional, and an empty one
    becomes null.
    """

    json: Mapping[str, Json]
    fields: tuple[Field, ...]
    nullable: frozenset[str]


def read(schema: Mapping[str, Json], *, is_a_models: bool = False) -> SchemaReading:
    """Parse a schema. Raises InvalidSchema with the JSON path of the unsupported part.

    `is_a_models`: the schema is that of a model, which validates the answers as well. Such a schema
    may contain rules that a form can only approximate.
    """
    try:
        text = json.dumps(schema, allow_nan=False, ensure_ascii=False)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError):
        refuse("$", "this is not JSON")
    if size > SCHEMA_BYTES_AT_MOST:
        refuse("$", f"the schema has {size} bytes, and can have at most {SCHEMA_BYTES_AT_MOST}")
    copied = json.loads(text)  # a copy that no other code can change
    schema = _without_class_texts(copied) if is_a_models else copied
    root = _inlined(schema, "$", schema)
    _must_have_no_texts(root, "$", "")
    _only(root, "$", {"type", "title", "properties", "required"})
    if root.get("type") != "object":
        refuse("$.type", "only an object can have fields: write type: object")
    properties = _mapping(root.get("properties", {}), "$.properties")
    if len(properties) > FIELDS_AT_MOST:
        refuse("$.properties", f"a form can have at most {FIELDS_AT_MOST} fields")
    required = _texts(root.get("required", []), "$.required")
    for name in set(required) - properties.keys():
        refuse("$.required", f"{name!r} is not one of the properties")
    fields: dict[str, Field] = {}
    clean: dict[str, Json] = {}
    nullable: set[str] = set()
    for name, value in properties.items():
        path = f"$.properties.{name}"
        if not _NAME.fullmatch(name):
            refuse(path, "a name has 1 to 64 letters, digits, spaces or . _ : / @ $ -")
        found = _inlined(_mapping(value, path), path, schema)
        found, can_be_null = _without_null(found, path, schema)
        if is_a_models:
            found = _roughly(found)
        if can_be_null and name in required:
            nullable.add(name)
        is_required = name in required and not can_be_null
        fields[name], clean[name] = _field(found, path, schema, name, is_required=is_required)
    required_fields = [name for name in properties if fields[name].is_required]
    return SchemaReading(
        json={
            "type": "object",
            "properties": clean,
            **({"required": required_fields} if required_fields else {}),
        },
        fields=tuple(fields.values()),
        nullable=frozenset(nullable),
    )


def refuse(path: str, why: str) -> NoReturn:
    error = InvalidSchema(
        f"The schema cannot be asked as a form: {path}: {why}. Change the schema in the code that "
        "asks: the same question fails every time."
    )
    error.path, error.why = path, why
    raise error


def _field(
    found: Mapping[str, Json],
    path: str,
    root: Mapping[str, Json],
    name: str,
    *,
    is_required: bool,
) -> tuple[Field, Mapping[str, Json]]:
    kind = _kind(found, path)
    _only(found, path, _OF_ALL | _OF_KIND[kind])
    description = _text(found, "description", path)
    if description is not None and len(description) > MESSAGE_AT_MOST:
        refuse(f"{path}.description", f"a page shows at most {MESSAGE_AT_MOST} characters")
    clean = {key: value for key, value in found.items() if key in _OF_ALL | _OF_KIND[kind]}
    clean["type"] = {"choice": "string", "choices": "array"}.get(kind, kind)
    if clean.get("default") is None:
        clean.pop("default", None)
    choices: tuple[Option, ...] = ()
    if kind == "choice":
        choices, chosen = _choices(found, path)
        clean = {key: value for key, value in clean.items() if key not in _OF_CHOICES}
        clean.update(chosen)
    elif kind == "choices":
        items = _inlined(_mapping(found.get("items"), f"{path}.items"), f"{path}.items", root)
        _only(items, f"{path}.items", {"type"} | _OF_CHOICES)
        if items.get("type", "string") != "string":
            refuse(f"{path}.items.type", "choices must be strings")
        choices, chosen = _choices(items, f"{path}.items")
        clean["items"] = {"type": "string", **chosen}
    elif kind == "integer":
        for key, instead, step in (
            ("exclusiveMinimum", "minimum", 1),
            ("exclusiveMaximum", "maximum", -1),
        ):
            if key in clean:
                clean[instead] = _number(clean.pop(key), f"{path}.{key}", whole=True) + step
    title = _text(found, "title", path)
    field = Field(
        name=name,
        title=title or name.replace("_", " ").strip().capitalize() or name,
        description=description,
        kind=kind,
        is_required=is_required,
        default=clean.get("default"),
        choices=choices,
        limits=_limits(clean, path, kind),
        autocomplete=_autofill(clean, path),
        is_secret=kind in TYPED
        and (clean.get("format") == "password" or clean.get("writeOnly") is True),
    )
    if "default" in clean and (fault := fault_in(field, field.default)):
        refuse(f"{path}.default", fault.removesuffix("."))
    return field, clean


def _autofill(clean: Mapping[str, Json], path: str) -> str | None:
    """Return the autofill token of a field: the author's, or that of the field's format."""
    token = _text(clean, "autocomplete", path)
    if token is None:
        return AUTOFILL_OF_FORMATS.get(str(clean.get("format")))
    section, _, rest = token.rpartition(" ")
    if rest not in AUTOFILL or section not in ("", "shipping", "billing"):
        why = f"{token!r} is not an autofill token about a person or an address, such as given-name"
        refuse(f"{path}.autocomplete", why)
    return token


def _roughly(found: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return an approximation: a Decimal becomes a number, exclusive bounds become inclusive."""
    branches = found.get("anyOf")
    if isinstance(branches, list) and [_type_of(one) for one in branches] == ["number", "string"]:
        number = cast("Mapping[str, Json]", branches[0])
        found = {**number, **{key: value for key, value in found.items() if key != "anyOf"}}
    rough = {key: value for key, value in found.items() if key != "multipleOf"}
    if rough.get("type") == "number":
        for key, instead in (
            ("exclusiveMinimum", "minimum"),
            ("exclusiveMaximum", "maximum"),
        ):
            if key in rough:
                rough[instead] = rough.pop(key)
        if isinstance(rough.get("default"), str):  # pydantic writes a Decimal as text
            rough["default"] = float(str(rough["default"]))
    return rough


def _type_of(branch: Json) -> Json:
    return branch.get("type") if isinstance(branch, Mapping) else None


def _kind(found: Mapping[str, Json], path: str) -> Kind:
    named = found.get("type")
    if _OF_CHOICES & found.keys() and named in (None, "string"):
        return "choice"
    match named:
        case "string" | "number" | "integer" | "boolean":
            return cast("Kind", named)
        case "array":
            return "choices"
        case "object":
            refuse(f"{path}.type", "a form is flat, so a field cannot be an object")
        case None:
            refuse(path, "its JSON Schema has no type, perhaps because of a PlainValidator")
        case _:
            refuse(
                f"{path}.type", f"{named!r} is not one of string, number, integer, boolean, array"
            )


def _choices(found: Mapping[str, Json], path: str) -> tuple[tuple[Option, ...], Mapping[str, Json]]:
    """Return the choices from enum, const, oneOf or anyOf, and that keyword's clean schema."""
    spellings = [key for key in ("const", "enum", "oneOf", "anyOf") if key in found]
    if len(spellings) != 1:
        refuse(path, "write the choices in only one of enum, oneOf and anyOf")
    key = spellings[0]
    if key in {"const", "enum"}:
        listed = [found["const"]] if key == "const" else found["enum"]
        values = _texts(listed, f"{path}.{key}")
        names = _texts(found.get("enumNames", values), f"{path}.enumNames")
        if len(names) != len(values):
            refuse(f"{path}.enumNames", "enumNames needs one name for each value of enum")
        chosen: dict[str, Json] = {"enum": values}
        chosen |= {"enumNames": names} if "enumNames" in found else {}
    else:
        listed = found[key]
        if not isinstance(listed, list | tuple):
            refuse(f"{path}.{key}", "this must be a list")
        values, names = list[str](), list[str]()
        for index, one in enumerate(listed):
            here = f"{path}.{key}[{index}]"
            option = _mapping(one, here)
            _only(option, here, {"const", "title", "type"})
            value = option.get("const")
            if not isinstance(value, str):
                refuse(here, "a choice must be a `const` with a string, and can have a title")
            values.append(value)
            names.append(_text(option, "title", here) or value)
        chosen = {key: [{"const": v, "title": n} for v, n in zip(values, names, strict=True)]}
    if not 0 < len(values) <= CHOICES_AT_MOST or len(set(values)) != len(values):
        refuse(
            f"{path}.{key}", f"a field needs 1 to {CHOICES_AT_MOST} different strings as choices"
        )
    pairs = zip(values, names, strict=True)
    options = tuple(Option(value=value, title=name or value) for value, name in pairs)
    if len({looks_of(option.title) or "(empty)" for option in options}) != len(options):
        refuse(f"{path}.{key}", "two of the choices look alike: give each choice a different title")
    return options, chosen


def _limits(clean: Mapping[str, Json], path: str, kind: Kind) -> Limits:
    keys = {"string": ("minLength", "maxLength"), "choices": ("minItems", "maxItems")}
    bounds: list[float | None] = [None, None]
    for place, key in enumerate(keys.get(kind, ("minimum", "maximum"))):
        if key in clean:
            is_count = kind in keys
            bounds[place] = _number(clean[key], f"{path}.{key}", whole=is_count)
            if is_count and clean[key] < 0:  # type: ignore[operator]  # a number, as was read
                refuse(f"{path}.{key}", "this cannot be negative")
    least, most = bounds
    if least is not None and most is not None and least > most:
        refuse(path, f"no value is possible between {least} and {most}")
    pattern, form = _text(clean, "pattern", path), _text(clean, "format", path)
    if pattern is not None and (why := why_no_pattern(pattern)):
        refuse(f"{path}.pattern", why)
    if form is not None and form not in FORMATS:
        refuse(f"{path}.format", f"{form!r} is not one of {', '.join(sorted(FORMATS))}")
    return Limits(least=least, most=most, pattern=pattern, format=form)


def _without_null(
    found: Mapping[str, Json], path: str, root: Mapping[str, Json]
) -> tuple[Mapping[str, Json], bool]:
    """Return the schema without null (X of `Optional[X]`), and True if null was allowed."""
    named, branches = found.get("type"), found.get("anyOf")
    if isinstance(named, list | tuple) and len(named) == 2 and "null" in named:
        other = named[0] if named[1] == "null" else named[1]
        return {**found, "type": other}, True
    if isinstance(branches, list | tuple) and {"type": "null"} in branches:
        others = [branch for branch in branches if branch != {"type": "null"}]
        if [_type_of(one) for one in others] == ["number", "string"]:  # pydantic's Decimal
            return {**found, "anyOf": others}, True
        if len(others) != 1:
            refuse(f"{path}.anyOf", "a field can have only one type, and can be optional")
        inner = _inlined(_mapping(others[0], f"{path}.anyOf[0]"), f"{path}.anyOf[0]", root)
        outer = {key: value for key, value in found.items() if key != "anyOf"}
        if "description" in inner and "description" in outer:
            refuse(
                f"{path}.anyOf[0].description",
                "the field has a second, different description: write only one",
            )
        return {**inner, **outer}, True
    return found, False


def _inlined(found: Mapping[str, Json], path: str, root: Mapping[str, Json]) -> Mapping[str, Json]:
    """Replace a `$ref` with its target, without the target's title, which names the class."""
    if "$ref" not in found:
        return found
    ref = found["$ref"]
    place = re.fullmatch(r"#/(\$defs|definitions)/([^/]+)", ref) if isinstance(ref, str) else None
    target = _mapping(root.get(place[1], {}), path).get(place[2]) if place else None
    if not isinstance(target, Mapping) or "$ref" in target:
        refuse(f"{path}.$ref", "this reference does not point to a part of this schema")
    _must_have_no_texts(target, path, ".$ref")
    own = {key: value for key, value in found.items() if key != "$ref"}
    return {k: v for k, v in target.items() if k not in {"title", "description"}} | own


def _must_have_no_texts(found: Mapping[str, Json], path: str, place: str) -> None:
    """Refuse a title or description of a whole schema, which no page shows."""
    for key in ("title", "description"):
        if key in found and (key == "description" or not _CLASS.fullmatch(str(found[key]))):
            where = f"{path}{place or f'.{key}'}"
            refuse(
                where, f"this {key} is not shown on the page: write it in the message or in a field"
            )


def _without_class_texts(schema: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return the schema of a model without the names and docstrings of its classes."""
    found = {key: value for key, value in schema.items() if key not in _OF_CLASSES}
    defined = found.get("$defs")
    if isinstance(defined, Mapping):
        found["$defs"] = {
            name: {key: value for key, value in one.items() if key not in _OF_CLASSES}
            for name, one in defined.items()
            if isinstance(one, Mapping)
        }
    return found


def _only(found: Mapping[str, Json], path: str, known: set[str]) -> None:
    for key in found:
        if key not in known | _SILENT and not key.startswith("x-"):
            refuse(f"{path}.{key}", f"a form does not support the keyword {key!r}")


def _mapping(value: Json, path: str) -> Mapping[str, Json]:
    if not isinstance(value, Mapping):
        refuse(path, "this must be an object")
    return value


def _texts(value: Json, path: str) -> list[str]:
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        refuse(path, "this must be a list of texts")
    return list(cast("Sequence[str]", value))


def _text(found: Mapping[str, Json], key: str, path: str) -> str | None:
    value = found.get(key)
    if value is not None and not isinstance(value, str):
        refuse(f"{path}.{key}", "this must be text")
    return value


def _number(value: Json, path: str, *, whole: bool) -> int | float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or (whole and not isinstance(value, int)):
        refuse(path, "this must be a whole number" if whole else "this must be a number")
    return cast("int | float", value)
