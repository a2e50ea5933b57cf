"""The user code in the chat, entered in the client's form or with the result tool."""

from collections.abc import Mapping
from typing import Any, cast

FIELD = "code"
USER_CODE_SCHEMA: dict[str, Any] = {
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
    """Return the typed code, or an empty text. A client may send anything."""
    if not isinstance(content, Mapping):
        return ""
    typed = cast("Mapping[str, object]", content).get(FIELD)
    return typed if isinstance(typed, str) else ""
