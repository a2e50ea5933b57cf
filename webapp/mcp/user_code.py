"""The letters in the chat: a form of the client's where it has one, else a tool of ours."""

from collections.abc import Mapping
from typing import Any, cast

from flows.elicitation.states import Elicitation, Status
from flows.errors import NotPossible, TooManyAttempts
from webapp.elicitations.service import Elicitations
from webapp.identity.user_codes import TypedCode, UserCodes

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


async def told_user_code(
    user_codes: UserCodes, elicitations: Elicitations, asked: Elicitation, typed: str
) -> TypedCode:
    """What the letters come to; wrong too often ends what they are for.

    Raises NotPossible, TooManyAttempts.
    """
    try:
        return await user_codes.confirm(asked.id, typed)
    except TooManyAttempts:
        await elicitations.end(asked, Status.FAILED, why="the letters were wrong too often")
        raise


async def typed_user_code(
    user_codes: UserCodes, elicitations: Elicitations, asked: Elicitation, typed: str
) -> str | None:
    """None if there is nothing more to type: they were right, or it is over. Else what to say."""
    try:
        told = await told_user_code(user_codes, elicitations, asked, typed)
    except (NotPossible, TooManyAttempts):
        return None
    return None if told is TypedCode.RIGHT else told.value
