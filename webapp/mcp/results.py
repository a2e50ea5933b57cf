"""Results that stand in for a tool's own, and the sentences in them."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias, cast

from flows.elicitation import Elicitation, Json
from flows.errors import ElicitError, Expired, InvalidAnswer, NotAccepted
from flows.form import FORM_KINDS, on_the_wire
from flows.gating import shown_arguments
from webapp.group import Part
from webapp.logs import mask
from webapp.presenter import Shown

Result: TypeAlias = dict[str, Any]
MODERN = "2026-07-28"
REQUIRES_INPUT = "This tool requires user input to continue"
RESULT_TOOL = "elicitation_result"
_HOW_TO_WAIT = f"{RESULT_TOOL} with elicitId and action wait, decline or cancel"


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


def link_result(
    parts: Sequence[Part], *, protocol_version: str, is_error: bool, has_result_tool: bool = False
) -> Result:
    """What the model gets when the person has a link to open, or several."""
    opening = f"{REQUIRES_INPUT}: the person has to do something in a browser."
    if all(part.is_out for part in parts):
        opening = "Still waiting for the person."
    links = "\n".join(_link_text(part.shown) for part in parts)
    by_tool = f", or {RESULT_TOOL} with its elicitId" if has_result_tool else ""
    facts = [_facts(part.shown, has_result_tool=has_result_tool) for part in parts]
    # One is what programs know; of several, the first.
    meta: dict[str, Any] = {"elicitationPending": facts[0]}
    if len(facts) > 1:
        meta["elicitationsPending"] = facts
    return text_result(
        f"{opening}\n{links}\nWhen they say that they are done, call this tool again with the same "
        f"arguments{by_tool}: it goes on from there. You cannot answer for them.",
        protocol_version=protocol_version,
        is_error=is_error,
        meta=meta,
    )


def _link_text(shown: Shown) -> str:
    return (
        f"What for: {shown.elicitation.asked.message}\n"
        f"Show the person this link, whole and unchanged: {shown.url}\n{_by_letters(shown)}"
        f"It works until {shown.elicitation.expires_at:%H:%M} UTC."
    )


def form_result(shown: Shown, *, protocol_version: str, is_error: bool) -> Result:
    """What the model gets when the client's form has no answer, and there is no page."""
    return text_result(
        "Nobody has answered yet what this tool asks in a form of the client's. What for: "
        f"{shown.elicitation.asked.message}\nCall this tool again with the same arguments until "
        f"{shown.elicitation.expires_at:%H:%M} UTC: the form is shown again. "
        "You cannot answer for the person.",
        protocol_version=protocol_version,
        is_error=is_error,
    )


def _by_letters(shown: Shown) -> str:
    if not shown.elicitation.is_by_code:
        return ""
    return (
        "The page shows the person eight letters. Ask for them, and pass them on with the tool "
        f"{RESULT_TOOL} (elicitId {shown.elicitation.id}): the page goes on then.\n"
    )


def _facts(shown: Shown, *, has_result_tool: bool) -> dict[str, Any]:
    elicitation = shown.elicitation
    by_tool = f", or {_HOW_TO_WAIT}" if has_result_tool else ""
    return {
        "elicitId": elicitation.id,
        # What the client called, and with what: not what its tool gives to another one.
        "tool": elicitation.asked.tool,
        "arguments": shown_arguments(_called_with(shown)),
        "message": elicitation.asked.message,
        "schema": _schema(elicitation),
        "mode": "url",
        "url": shown.url,
        "status": elicitation.status,
        "expiresAt": elicitation.expires_at.isoformat(),
        "instructions": (
            f"Show the link to the person; call the same tool again when done{by_tool}."
        ),
    }


def _called_with(shown: Shown) -> Mapping[str, Json]:
    given: object = json.loads(shown.arguments)
    return cast("Mapping[str, Json]", given) if isinstance(given, dict) else {}


def _schema(elicitation: Elicitation) -> dict[str, Any] | None:
    """What a form asks for; None where the answer is no form's."""
    terms = elicitation.asked.terms
    if elicitation.kind not in FORM_KINDS or not isinstance(terms, Mapping):
        return None
    return on_the_wire(cast("Mapping[str, Json]", terms["schema"]))


def busy_text() -> str:
    return (
        "Another call is waiting for this: the same tool was called again with the same "
        "arguments, and that call goes on. Nothing is lost."
    )


def error_result(error: ElicitError, *, protocol_version: str) -> Result:
    """What the model reads for the library's "Error executing tool": a sentence and a code."""
    meta: dict[str, Any] = {"errorId": error.name, "code": error.name, "status": error.http_status}
    meta["jsonrpcCode"] = error.code
    if isinstance(error, NotAccepted):
        meta["elicitId"] = error.elicitation_id
    if isinstance(error, InvalidAnswer):
        meta["details"] = list(error.details)
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
