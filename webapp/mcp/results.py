"""Results that replace a tool's own result, and the sentences in them.

Waiting for a person is not an error: agent frameworks count errors, and end the run after a few.

Risks: a client checks each result against the tool's output schema, and a *pending result*, which
only carries a link, does not match the schema. Therefore every listed output schema also allows a
pending result (`schema_with_pending`), and a pending result has structured content that matches
(`with_structure`). Both apply to every client, because any client can get a link, and because a
gateway may list the tools for one client and call them for another.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from traceback import walk_tb
from typing import Any, TypeAlias, cast

from mcp import MCPError
from mcp_types import INTERNAL_ERROR

from flows.elicitation.run import REPEATED_FOR
from flows.elicitation.states import Elicitation, Json
from flows.elicitation.traits import traits_of
from flows.errors import ElicitError, Expired, InvalidAnswer, NobodyAsked, NotAccepted
from flows.kinds.form import approver_of, on_the_wire, voting_of
from flows.payments.events import ON_ITS_WAY
from webapp.calls.presenter import PresentedQuestion, Prompt
from webapp.calls.verbs import Raised
from webapp.importing import raised_at
from webapp.logs.masking import masked, masked_in_short

Result: TypeAlias = dict[str, Any]
_LIBRARIES = ("mcp.", "fastmcp.")
# The library's text if it hides the exception from the client.
_HIDDEN = re.compile(r"^Error executing tool \S+$")
_UNEXPLAINED = re.compile(r"\(\d+ sub-exceptions?\)$|^Error (executing|calling) tool \S+$")
MODERN = "2026-07-28"
REQUIRES_INPUT = "This tool requires user input to continue"
RESULT_TOOL = "elicitation_result"
ERROR_CHARACTERS_AT_MOST = 16 * 1024  # characters of each text
PENDING = "elicitationPending"
_PENDING_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {PENDING: {"type": "object"}},
    "required": [PENDING],
}
_WRAPPED = "x-fastmcp-wrap-result"
# Keywords of an output schema that describe the schema itself and not the result.
_OF_DOCUMENT = frozenset({"$schema", "$id", "$defs", "definitions"})
_OF_ROOT = _OF_DOCUMENT | {"type", "properties", "title", "description", "$comment"}
_ARGUMENTS_AT_MOST = 49
_VALUE_CHARACTERS = 400
_HOW_TO_WAIT = f"{RESULT_TOOL} with elicitId and action wait, decline or cancel"


def text_result(
    text: str,
    *,
    is_error: bool,
    protocol_version: str = "",
    meta: Mapping[str, Any] | None = None,
) -> Result:
    """Return a CallToolResult in its wire form.

    A presenter can omit `protocol_version`: `webapp.mcp.leg` converts its result later.
    """
    result: Result = {"content": [{"type": "text", "text": text}], "isError": is_error}
    if meta:
        result["_meta"] = dict(meta)
    return in_revision(result, protocol_version)


def link_result(parts: Sequence[Prompt], *, has_result_tool: bool = False) -> Result:
    """Return the pending result for the model if the person has one or more links to open."""
    opening = f"{REQUIRES_INPUT}: the person has to do something in a browser."
    if all(part.is_unanswered for part in parts):
        opening = "Still waiting for the person."
    approvers = [approver_of(part.shown.elicitation) for part in parts]
    if None not in approvers:
        opening = f"Waiting for {' and '.join(map(str, dict.fromkeys(approvers)))}."
    if all(part.shown.elicitation.progress == ON_ITS_WAY for part in parts):
        opening = "Still waiting for the payment, not for the person."
    error = _automatic_answer_error(parts)
    if error is not None:
        opening = f"{error} [{error.name}]"
    links = "\n".join(_link_text(part.shown) for part in parts)
    by_tool = f", or {RESULT_TOOL} with its elicitId" if has_result_tool else ""
    facts = [_facts(part.shown, has_result_tool=has_result_tool) for part in parts]
    # Programs read this entry. If there are several questions, it is about the first one.
    meta: dict[str, Any] = {PENDING: facts[0], **_meta_of(error)}
    if len(facts) > 1:
        meta["elicitationsPending"] = facts
    return text_result(
        f"{opening}\n{links}\n{_when(parts)}, call this tool again with the same "
        f"arguments{by_tool}: it continues. You cannot answer for them.",
        is_error=False,
        meta=meta,
    )


def _automatic_answer_error(parts: Sequence[Prompt]) -> NobodyAsked | None:
    """Return the error to report if the client answered one question automatically, or None."""
    ids = (part.shown.elicitation.id for part in parts if part.is_automatic)
    id = next(ids, None)
    return None if id is None else NobodyAsked(elicitation_id=id)


def _link_text(shown: PresentedQuestion) -> str:
    if shown.elicitation.progress == ON_ITS_WAY:
        return (
            f"What for: {shown.elicitation.request.message}\nThe person has paid by a method that "
            "takes time, such as a bank transfer: the payment is on its way. They have nothing "
            "more to do and must not pay again; do not show them the link.\nThe call waits for the "
            f"payment until {shown.elicitation.expires_at:%H:%M} UTC; a payment that arrives later "
            "is saved."
        )
    if (voting := voting_of(shown.elicitation)) is not None:
        progress = f"{voting.progress}\n" if voting.progress else ""
        return (
            f"What for: {shown.elicitation.request.message}\n{progress}"
            f"{voting.approver} decides: other people, who can take days. You cannot answer for "
            "them, and neither can the person. The person can follow or withdraw the request: "
            f"{shown.url}\n"
            f"The request waits until {shown.elicitation.expires_at:%Y-%m-%d %H:%M} UTC."
        )
    return (
        f"What for: {shown.elicitation.request.message}\n"
        f"Show the person this complete link, unchanged: {shown.url}\n{_with_user_code(shown)}"
        f"The link works until {shown.elicitation.expires_at:%H:%M} UTC."
    )


def form_result(part: Prompt) -> Result:
    """Return the result for the model if only the client can ask, and has not answered yet.

    The result is an error only if the client answered automatically: then nobody is being asked.
    """
    asked, error = part.shown.elicitation, _automatic_answer_error([part])
    opening = "Nobody has answered this tool's question in the client yet."
    if error is not None:
        opening = (
            f"{error} [{error.name}]\nOnly the client can ask this question here: tell the "
            "person that their client answers automatically, and that the server's operator can "
            "name it in ELICIT_CLIENTS."
        )
    return text_result(
        f"{opening} What for: {asked.request.message}\nCall this tool again with the same "
        f"arguments until {asked.expires_at:%H:%M} UTC: it is asked again. "
        "You cannot answer for the person.",
        is_error=error is not None,
        meta=_meta_of(error),
    )


def _when(parts: Sequence[Prompt]) -> str:
    asked = [part.shown.elicitation for part in parts]
    if all(one.progress == ON_ITS_WAY or approver_of(one) is not None for one in asked):
        return "Later"
    return "When the person says that they are done"


def _with_user_code(shown: PresentedQuestion) -> str:
    if not shown.elicitation.is_by_code:
        return ""
    return (
        "The page shows the person a code of eight letters. Ask for the code, and send it with "
        f"the tool {RESULT_TOOL} (elicitId {shown.elicitation.id}): the page then continues.\n"
    )


def _facts(shown: PresentedQuestion, *, has_result_tool: bool) -> dict[str, Any]:
    elicitation, approver = shown.elicitation, approver_of(shown.elicitation)
    by_tool = f", or {_HOW_TO_WAIT}" if has_result_tool else ""
    return {
        "elicitId": elicitation.id,
        # The client's own call. A tool's arguments for a nested tool are not shown here.
        "tool": elicitation.request.tool,
        "arguments": _in_short(_called_with(shown)),
        "message": elicitation.request.message,
        "schema": _schema(elicitation),
        "mode": "url",
        "url": shown.url,
        "status": elicitation.status,
        "expiresAt": elicitation.expires_at.isoformat(),
        "instructions": (
            f"Show the link to the person; call the same tool again when they are done{by_tool}."
            if approver is None
            else f"Waiting for {approver}; call the same tool again later{by_tool}."
        ),
        **({} if approver is None else {"approver": approver}),
    }


def _called_with(shown: PresentedQuestion) -> Mapping[str, Json]:
    given: object = json.loads(shown.arguments)
    return cast("Mapping[str, Json]", given) if isinstance(given, dict) else {}


def _in_short(arguments: Mapping[str, Json]) -> dict[str, Json]:
    """Return shortened arguments, by which the model recognises its call. The page shows all."""
    listed = [
        (_valid_unicode(name)[:_VALUE_CHARACTERS], value) for name, value in arguments.items()
    ]
    named = dict(listed[:_ARGUMENTS_AT_MOST])
    short: dict[str, Json] = {name: _cut(value) for name, value in named.items()}
    if len(named) < len(arguments):
        mark = "..."
        while mark in short:
            mark += "."
        short[mark] = f"and {len(arguments) - len(named)} more"
    return short


def _cut(value: Json) -> Json:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = _valid_unicode(text)
    if len(text) > _VALUE_CHARACTERS:
        return f"{text[:_VALUE_CHARACTERS]}... ({len(text)} characters in all)"
    return text if isinstance(value, str) else value


def _valid_unicode(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _schema(elicitation: Elicitation) -> dict[str, Any] | None:
    """Return the JSON schema of a form, or None if the answer does not come from a form."""
    terms = elicitation.request.terms
    fits = traits_of(elicitation.kind).fits_client_form
    if not fits or not isinstance(terms, Mapping):
        return None
    return on_the_wire(cast("Mapping[str, Json]", terms["schema"]))


def in_revision(result: Result, protocol_version: str) -> Result:
    """Return the result in the format of this protocol revision."""
    if "content" not in result:
        return result
    plain = {name: value for name, value in result.items() if name != "resultType"}
    return {**plain, "resultType": "complete"} if protocol_version >= MODERN else plain


def given_again(result: Result, *, until: datetime) -> Result:
    """Return a result that was sent before, with a note that nothing new was done."""
    given_at = until - REPEATED_FOR
    note = (
        f"This is the result of the same call of {given_at:%H:%M:%S} UTC, sent again in case it "
        "did not arrive: nothing new was bought or done. For a new result, repeat the call after "
        f"{until:%H:%M:%S} UTC, or use other arguments."
    )
    facts = {"givenAt": given_at.isoformat(), "newFrom": until.isoformat()}
    return {
        **result,
        "content": [*(result.get("content") or []), {"type": "text", "text": note}],
        "_meta": {**(result.get("_meta") or {}), "resultGivenAgain": facts},
    }


def related_task(id: str) -> dict[str, Any]:
    """Return the `_meta` entry that names the related task (2025-11-25)."""
    return {"io.modelcontextprotocol/related-task": {"taskId": id}}


def busy_result() -> Result:
    """Return the result of a call if a newer identical call has taken over the wait."""
    text = (
        "Another call is waiting for this: the same tool was called again with the same arguments, "
        "and that call continues. Nothing is lost: if its result does not arrive, call again."
    )
    return text_result(text, is_error=False)


def with_structure(result: Result) -> Result:
    """Add structured content to a pending result.

    The content matches the schema that `schema_with_pending` makes. Some clients pass the model
    only the structured content and not the text, so the content repeats the text's instructions.
    """
    if not is_final_result(result) or "structuredContent" in result:
        return result
    meta = cast("Mapping[str, Any]", result.get("_meta") or {})
    known = cast("Mapping[str, Any]", meta.get(PENDING, {}))
    pending = {**known, "instructions": result["content"][0]["text"]}
    return {**result, "structuredContent": {PENDING: pending}}


def schema_with_pending(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return an output schema that allows a pending result in addition to what `schema` allows.

    The properties stay at the root of the schema, where client libraries look for them.
    """
    if schema.get("type") != "object":
        own = {name: value for name, value in schema.items() if name not in _OF_DOCUMENT}
        root = {name: schema[name] for name in _OF_DOCUMENT if name in schema}
        return {**root, "anyOf": [own, _PENDING_SCHEMA]}
    root_keywords = {name for name in schema if name in _OF_ROOT or name.startswith("x-")}
    dropped = {"unevaluatedProperties"}
    # These two keywords apply to all properties that are not in the same schema object.
    if schema.get("properties"):
        dropped |= {"additionalProperties", "patternProperties"}
    rest = {name: schema[name] for name in schema if name not in root_keywords | dropped}
    widened: dict[str, Any] = {name: schema[name] for name in schema if name in root_keywords}
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        known = cast("Mapping[str, Any]", properties)
        own = {name: value for name, value in known.items() if name != PENDING}
        if schema.get(_WRAPPED) is True and "result" in own:
            # FastMCP's client reads only the key `result`, which a pending result does not have.
            own["result"] = {"anyOf": [own["result"], {"type": "null"}]}
        widened["properties"] = own
    return {**widened, "anyOf": [rest, _PENDING_SCHEMA]}


def error_result(error: ElicitError, *, protocol_version: str) -> Result:
    """Return the result for an error, with a sentence and a code for the model.

    This result replaces the library's "Error executing tool".
    """
    text = f"{error} [{error.name}]"
    meta = _meta_of(error)
    return text_result(text, protocol_version=protocol_version, is_error=True, meta=meta)


def _meta_of(error: ElicitError | None) -> dict[str, Any]:
    """Return the `_meta` entries of an error for programs."""
    if error is None:
        return {}
    meta: dict[str, Any] = {"errorId": error.name, "code": error.name, "status": error.http_status}
    meta["jsonrpcCode"] = error.jsonrpc_code
    if isinstance(error, NotAccepted):
        meta["elicitId"] = error.elicitation_id
    if isinstance(error, InvalidAnswer):
        meta["details"] = list(error.details)
    if isinstance(error, Expired) and error.ttl is not None:
        meta["ttl"] = int(error.ttl.total_seconds() * 1000)
    return meta


def cut_off(result: Result, hidden: Collection[str]) -> Result:
    """Mask and shorten the texts of an error result, which may quote the call's arguments."""
    content = cast("object", result.get("content"))
    if not isinstance(content, list):
        return result
    parts = [_part_cut_off(part, hidden) for part in cast("list[object]", content)]
    return {**result, "content": parts}


def _part_cut_off(part: object, hidden: Collection[str]) -> object:
    if not isinstance(part, Mapping):
        return part
    block = cast("Mapping[str, object]", part)
    text = block.get("text")
    if not isinstance(text, str) or len(text) <= ERROR_CHARACTERS_AT_MOST:
        return block
    short = masked_in_short(text, hidden, at_most=ERROR_CHARACTERS_AT_MOST)
    return {**block, "text": short}


def is_final_result(result: Result) -> bool:
    """Return True for a body's final result: no error, no input request and no task."""
    is_complete = result.get("resultType", "complete") == "complete"
    return is_complete and "content" in result and not result.get("isError")


def without(raised: Exception, hidden: Collection[str]) -> Exception:
    """Return the body's exception, or an MCPError with its text shortened and `hidden` masked."""
    if isinstance(raised, MCPError):
        given = [raised.message, raised.data]
        text = masked_in_short(raised.message, hidden, at_most=ERROR_CHARACTERS_AT_MOST)
        message, data = text, masked(raised.data, hidden)
        return raised if [message, data] == given else MCPError(raised.code, message, data)
    text = str(raised)
    cleared = masked_in_short(text, hidden, at_most=ERROR_CHARACTERS_AT_MOST)
    return raised if cleared == text else MCPError(INTERNAL_ERROR, cleared)


def explained(raised: Exception) -> Exception:
    """Return an MCPError with the message and the source line of a verb's error.

    Return `raised` unchanged if no verb's error caused it.

    A prompt or a resource cannot ask questions. The library alone would report only "Error reading
    resource", without this reason.
    """
    error: BaseException | None = raised
    while error is not None and not isinstance(error, ElicitError):
        modules = [frame.f_globals.get("__name__") for frame, _ in walk_tb(error.__traceback__)]
        is_librarys = str(modules[-1] if modules else "").startswith(("mcp.", "fastmcp."))
        # An author who raises an error of their own has chosen what the client reads.
        error = (error.__cause__ or error.__context__) if is_librarys else None
    if error is None:
        return raised
    place = error.place or raised_at(error)
    place = place.replace("\\", "/").rpartition("/")[2]  # clients read it: omit the folder
    return MCPError(error.jsonrpc_code, f"{error} The code is at {place}.")


def error_of_tool(raised: Sequence[Raised], own: Result) -> ElicitError | None:
    """Return the verb's error that ended the tool, or None if `own` is about another error.

    An error that the tool caught is not returned, even if the tool raised another error.
    """
    for one in reversed(raised):
        if _passed(one.error, _LIBRARIES):
            return one.error
    # A task group raises a group, which the library hides or describes without its errors.
    if not _has_text(own, _UNEXPLAINED):
        return None
    left = (
        one.error for one in raised if one.has_ended_its_task or _passed(one.error, ("anyio.",))
    )
    return next(left, None)


def may_be_of_question(raised: Sequence[Raised], own: Result) -> bool:
    """Return True if no verb ended the tool, and its exception may be about a question."""
    is_error = bool(own.get("isError")) and error_of_tool(raised, own) is None
    return is_error and _has_text(own, _HIDDEN)


def _has_text(own: Result, pattern: re.Pattern[str]) -> bool:
    return any(pattern.search(str(one.get("text"))) for one in own.get("content") or ())


def _passed(error: ElicitError, packages: tuple[str, ...]) -> bool:
    """Return True if the error's traceback has frames of these packages."""
    frames = (frame for frame, _ in walk_tb(error.__traceback__))
    return any(str(frame.f_globals.get("__name__", "")).startswith(packages) for frame in frames)
