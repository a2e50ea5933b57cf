"""The arguments of a call by `elicit demo`, converted by the tool's schema."""

import json
import shlex
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, cast

from mcp_types import Tool

from webapp.command import own_command

_TEXT = "string"
_IN_JSON = {
    _TEXT: (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


class WrongArguments(Exception):
    """The arguments are invalid for the tool. The message is shown on the terminal."""


def arguments_of(
    tool: Tool, words: Sequence[str], given: Mapping[str, Any], *, command: Sequence[str]
) -> dict[str, Any]:
    """Return the arguments in `given` together with the NAME=VALUE pairs of `words`.

    `command` has the words that the user typed before the name of the tool.

    Raises:
        WrongArguments: An argument is unknown, missing or of the wrong type.
    """
    known = _properties(tool)
    arguments = dict(given)
    for word in words:
        name, has_value, text = word.partition("=")
        if not has_value:
            raise WrongArguments(f"{word!r} is not an argument. Write NAME=VALUE.")
        arguments[name] = _value(tool, name, text, known.get(name))
    for name in arguments:
        if name not in known and tool.input_schema.get("additionalProperties") in (None, False):
            near = get_close_matches(name, known, n=1)
            perhaps = f" Perhaps {near[0]!r} is meant." if near else ""
            takes = f"Its arguments are {', '.join(known)}." if known else "It has no arguments."
            raise WrongArguments(
                f"The tool {tool.name!r} has no argument {name!r}.{perhaps} {takes}"
            )
    missing = [name for name in required_by(tool) if name not in arguments]
    if missing:
        raise WrongArguments(
            f"The tool {tool.name!r} needs {' and '.join(missing)}. Write: "
            f"{command_for(tool, command=command, given=arguments)}"
        )
    return arguments


def required_by(tool: Tool) -> list[str]:
    """Return the names of the tool's required arguments."""
    return [str(name) for name in _list(tool.input_schema.get("required"))]


def command_for(
    tool: Tool, *, command: Sequence[str], given: Mapping[str, Any] | None = None
) -> str:
    """Return the command that calls the tool, with a placeholder for each missing argument."""
    known, given = _properties(tool), given or {}
    words = [f"{name}={_written(value)}" for name, value in given.items()]
    places = [
        f"{name}={'|'.join(_types(known.get(name))).upper() or 'VALUE'}"
        for name in required_by(tool)
        if name not in given
    ]
    quoted = shlex.join([*command, "--tool", tool.name, *words])
    return " ".join([own_command(), quoted, *places])


def _properties(tool: Tool) -> Mapping[str, Any]:
    return _mapping(tool.input_schema.get("properties"))


def _value(tool: Tool, name: str, text: str, schema: object) -> Any:
    """Return the value of the text for this schema.

    Raises:
        WrongArguments: The text has the wrong type.
    """
    types = _types(schema)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    if not types or any(_is_of(value, each) for each in types if each != _TEXT):
        return value
    if _TEXT in types:
        return text
    raise WrongArguments(
        f"The argument {name!r} of the tool {tool.name!r} must be {' or '.join(types)}, "
        f"but {text!r} is not. Write lists and objects in JSON."
    )


def _is_of(value: object, type_name: str) -> bool:
    if isinstance(value, bool):  # Python counts booleans as numbers
        return type_name == "boolean"
    return isinstance(value, _IN_JSON[type_name])


def _types(schema: object) -> list[str]:
    """Return the names of the types that the schema permits, or none if it permits any type."""
    parts = _mapping(schema)
    choices = [_types(each) for name in ("anyOf", "oneOf") for each in _list(parts.get(name))]
    if choices:
        return [name for each in choices for name in each] if all(choices) else []
    named = parts.get("type")
    names = [named] if isinstance(named, str) else _list(named)
    known = [name for name in names if isinstance(name, str) and name in _IN_JSON]
    return known if len(known) == len(names) else []


def _mapping(value: object) -> Mapping[str, Any]:
    """Return the value if it is a mapping, else an empty mapping: a server may send any value."""
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def _list(value: object) -> Sequence[Any]:
    return cast("Sequence[Any]", value) if isinstance(value, list) else ()


def _written(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
