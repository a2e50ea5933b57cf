"""`elicit demo --tool NAME` with arguments, without a server."""

import json
from typing import Any

import pytest
from mcp_types import Tool

from webapp.command import own_command
from webapp.demo.arguments import WrongArguments, arguments_of

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "repo": {"type": "string"},
        "number": {"type": "integer"},
        "ratio": {"type": "number"},
        "force": {"type": "boolean"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "labels": {"type": "array", "items": {"type": "string"}},
        "color": {"anyOf": [{"$ref": "#/$defs/Color"}, {"type": "null"}]},
        "any": {},
        "odd": {"type": "decimal"},
    },
    "required": ["repo", "number"],
}
MERGE = Tool(name="merge", input_schema=SCHEMA)
NEEDED = {"repo": "a/b", "number": 3}


def of(*words: str, given: dict[str, Any] | None = None) -> dict[str, object]:
    return arguments_of(MERGE, words, given or {}, command=("demo",))


# finding: XA5
@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("repo=a/b", "a/b"),
        ("repo=3", "3"),
        ("repo=a=b", "a=b"),
        ("repo=", ""),
        ("number=-4", -4),
        ("ratio=2", 2),
        ("ratio=2.5", 2.5),
        ("force=true", True),
        ("note=null", None),
        ("note=3", "3"),
        ('labels=["a", "b"]', ["a", "b"]),
        ("color=red", "red"),
        ("any=[1]", [1]),
        ("any=word", "word"),
        ("odd=[1]", [1]),
    ],
)
def test_argument_is_parsed_by_its_schema_type(word, value):
    name = word.partition("=")[0]
    assert of(*(f"{k}={json.dumps(v).strip(chr(34))}" for k, v in NEEDED.items()), word) == {
        **NEEDED,
        name: value,
    }


@pytest.mark.parametrize(
    "word", ["number=three", "number=true", "number=1.5", "force=1", "force=True", "labels=a,b"]
)
def test_value_of_wrong_type_is_refused_with_accepted_type(word):
    name, _, text = word.partition("=")
    with pytest.raises(WrongArguments) as refused:
        of(word, given=NEEDED)
    kind = SCHEMA["properties"][name]["type"]
    assert f"The argument {name!r} of the tool 'merge' must be {kind}, but {text!r}" in str(
        refused.value
    )


def test_word_argument_overrides_json_argument():
    assert of("number=4", given=NEEDED) == {"repo": "a/b", "number": 4}


def test_missing_argument_error_shows_command_to_type():
    with pytest.raises(WrongArguments) as refused:
        arguments_of(MERGE, ["repo=a b"], {}, command=("demo", "--no-browser"))
    assert str(refused.value) == (
        "The tool 'merge' needs number. Write: "
        f"{own_command()} demo --no-browser --tool merge 'repo=a b' number=INTEGER"
    )


def test_unknown_argument_error_suggests_nearest_and_lists_all():
    with pytest.raises(WrongArguments) as refused:
        of("numbr=3", given=NEEDED)
    assert str(refused.value) == (
        "The tool 'merge' has no argument 'numbr'. Perhaps 'number' is meant. "
        "Its arguments are repo, number, ratio, force, note, labels, color, any, odd."
    )


def test_tool_with_open_schema_accepts_any_argument_name():
    tool = Tool(name="any", input_schema={"type": "object", "additionalProperties": True})
    assert arguments_of(tool, ["x=1"], {}, command=("demo",)) == {"x": 1}


def test_word_without_equals_sign_is_refused():
    with pytest.raises(WrongArguments, match=r"'merge' is not an argument\. Write NAME=VALUE"):
        of("merge")


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": [], "required": 5},
        {"properties": {"x": 5}, "required": ["x"]},
        {"properties": {"x": {"type": [5, None], "anyOf": 5}}},
        {"properties": {"x": {"oneOf": [{"anyOf": [{}, 5]}]}}, "required": None},
    ],
)
def test_invalid_schema_passes_argument_to_server_unchanged(schema):
    tool = Tool(name="odd", input_schema={"additionalProperties": True, **schema})
    assert arguments_of(tool, ["x=word"], {}, command=("demo",)) == {"x": "word"}
