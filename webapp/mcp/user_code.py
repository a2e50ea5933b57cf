"""The letters in the chat: a form of the client's where it has one, else a tool of ours."""

from collections.abc import Mapping
from typing import Any, cast

FIELD = "code"
LETTERS_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        FIELD: {
            "type": "string",
            "title": "The eight letters that the page shows",
            "minLength": 1,
            "maxLength": 64,
        }
    },
    "required": [FIELD],
}


def user_code_in(content: object) -> str:
    """What was typed; a client may send anything."""
    if not isinstance(content, Mapping):
        return ""
    typed = cast("Mapping[str, object]", content).get(FIELD)
    return typed if isinstance(typed, str) else ""
