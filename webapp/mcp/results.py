"""Results that stand in for a tool's own, and the sentences in them."""

from collections.abc import Collection, Mapping
from typing import Any, TypeAlias, cast

from flows.errors import ElicitError, Expired, NotAccepted
from webapp.logs import mask
from webapp.presenter import Shown

Result: TypeAlias = dict[str, Any]
MODERN = "2026-07-28"


def text_result(
    text: str, *, protocol_version: str, is_error: bool, meta: Mapping[str, Any] | None = None
) -> Result:
    """A CallToolResult as it stands on the wire."""
    result: Result = {"content": [{"type": "text", "text": text}], "isError": is_error}
    if protocol_version >= MODERN:
        result["resultType"] = "complete"
    if meta:
        result["_meta"] = dict(meta)
    return result


def link_text(shown: Shown, *, is_again: bool) -> str:
    """What the model reads when the person has a link to open."""
    message = shown.elicitation.asked.message
    opening = (
        "Still waiting for the person."
        if is_again
        else "This tool needs the person to do something in a browser."
    )
    return (
        f"{opening} What for: {message}\n"
        f"Show the person this link, whole and unchanged: {shown.url}\n{_by_letters(shown)}"
        f"It works until {shown.elicitation.expires_at:%H:%M} UTC. When they say that they are "
        "done, call this tool again with the same arguments: it goes on from there. "
        "You cannot answer for them."
    )


def _by_letters(shown: Shown) -> str:
    if not shown.elicitation.is_by_code:
        return ""
    return (
        "The page shows the person eight letters. Ask for them, and pass them on with the tool "
        f"elicitation_result (elicitId {shown.elicitation.id}): the page goes on then.\n"
    )


def link_meta(shown: Shown) -> dict[str, Any]:
    """The facts of a pending question for programs."""
    elicitation = shown.elicitation
    return {
        "elicitationPending": {
            "elicitId": elicitation.id,
            "message": elicitation.asked.message,
            "mode": "url",
            "url": shown.url,
            "status": elicitation.status,
            "expiresAt": elicitation.expires_at.isoformat(),
            "instructions": "Show the link to the person; call the same tool again when done.",
        }
    }


def busy_text() -> str:
    return (
        "Another call is waiting for this: the same tool was called again with the same "
        "arguments, and that call goes on. Nothing is lost."
    )


def error_result(error: ElicitError, *, protocol_version: str) -> Result:
    """What the model reads for the library's "Error executing tool": a sentence and a code."""
    meta: dict[str, Any] = {"errorId": error.name, "code": error.name, "status": error.http_status}
    if isinstance(error, NotAccepted):
        meta["elicitId"] = error.elicitation_id
    if isinstance(error, Expired) and error.ttl is not None:
        meta["ttl"] = int(error.ttl.total_seconds() * 1000)
    return text_result(
        f"{error} [{error.name}]", protocol_version=protocol_version, is_error=True, meta=meta
    )


def escaped(error: ElicitError | None) -> bool:
    """Whether this error left the tool: a frame of the serving library is in its traceback.

    An error that the tool caught, whether it went on or raised another one, has no such frame.
    """
    traceback = error.__traceback__ if error is not None else None
    while traceback is not None:
        module = str(traceback.tb_frame.f_globals.get("__name__", ""))
        if module.startswith(("mcp.", "fastmcp.")):
            return True
        traceback = traceback.tb_next
    return False


def masked(result: Result, hidden: Collection[str]) -> Result:
    """An error without what the person typed or a provider gave: some carry their arguments."""
    parts = cast("list[dict[str, Any]]", result.get("content") or [])
    return {**result, "content": [_masked(part, hidden) for part in parts]} if hidden else result


def _masked(part: dict[str, Any], words: Collection[str]) -> dict[str, Any]:
    text: object = part.get("text")
    if not isinstance(text, str):
        return part
    return {**part, "text": mask(text, words)}
