"""The tool `elicitation_result`: how letters come from a chat whose client has no forms.

What could go wrong: the model answers for the person. It can pass on letters that the person read
on the page, and nothing else; and only the asker's own call is listened to, since knowing an id
gives nothing.
"""

from collections.abc import Mapping
from typing import Any

from flows.elicitation import Status
from flows.errors import NotPossible, TooManyAttempts
from webapp.elicitations import Elicitations
from webapp.identity import Caller
from webapp.ids import owner_of
from webapp.letters import Letters

NAME = "elicitation_result"
TOOL: dict[str, Any] = {
    "name": NAME,
    "description": (
        "Pass on the eight letters that the person reads on the page of a link. Ask the person to "
        "open the link and to tell you the letters; never make them up."
    ),
    "inputSchema": {
        "type": "object",
        "properties": {
            "elicitId": {"type": "string", "description": "From _meta.elicitationPending."},
            "code": {"type": "string", "description": "The eight letters."},
        },
        "required": ["elicitId", "code"],
    },
}
_UNKNOWN = "There is no such question of yours, or it is over."


async def pass_on(
    arguments: Mapping[str, Any], *, elicitations: Elicitations, letters: Letters, caller: Caller
) -> tuple[str, bool]:
    """A sentence for the model, and whether it is an error."""
    id, typed = arguments.get("elicitId"), arguments.get("code")
    if not isinstance(id, str) or not isinstance(typed, str):
        return "elicitId and code are both texts.", True
    if caller.owner is None or owner_of(id) != caller.owner:
        return _UNKNOWN, True
    asked = await elicitations.get(id)
    if asked is None or not asked.is_by_code:
        return _UNKNOWN, True
    try:
        told = await letters.confirm(id, typed)
    except NotPossible:
        return _UNKNOWN, True
    except TooManyAttempts as error:
        await elicitations.end(asked, Status.FAILED, why="the letters were wrong too often")
        return str(error), True
    return f"{told.value} Call the tool again with the same arguments when the person is done.", (
        told.name != "RIGHT"
    )
