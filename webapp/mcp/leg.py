"""A single request of a call: its body, and the result that its client gets.

Risks: a tool continues although its request was interrupted, or catches the exception that
interrupted the request. The result therefore depends on the state of the call, and not on what the
tool raised or returned.
"""

import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from msgspec.json import encode
from pydantic import BaseModel

from flows.errors import Cancelled, ElicitError, ResultNotKept, StoreUnavailable
from flows.question import asking
from webapp.calls.call import Call
from webapp.calls.replay import Replays
from webapp.calls.unasked import all_were_asked
from webapp.calls.verbs import Verbs
from webapp.logs.masking import masked
from webapp.mcp.before import ask_first, enter_call
from webapp.mcp.results import (
    Result,
    cut_off,
    error_result,
    escaped,
    given_again,
    in_revision,
    is_final_result,
    text_result,
    with_structure,
    without,
)
from webapp.mcp.tools import ServedTool

_LONE_SURROGATE = (
    "The result of this tool contains half a character (a lone surrogate), which no message can "
    "contain. The tool may already have done its work. Its author has to encode the text, for "
    "example with text.encode(errors='replace').decode()."
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedLeg:
    """A request of a call whose body has not run yet."""

    call: Call
    body: Callable[[], Coroutine[Any, Any, HandlerResult]]


async def run_request(
    call: Call,
    *,
    server: Any,
    tool: ServedTool | None,
    context: ServerRequestContext[Any, Any],
    call_next: CallNext,
    replays: Replays | None = None,
) -> HandlerResult:
    """Run the body of a request and return the result for its client.

    With `replays`, the body runs again after each question.
    """
    call.begin()
    own: Result = {}
    error: ElicitError | None = None
    verbs: Verbs | None = None
    body = partial(_run_body, server=server, tool=tool, run=partial(call_next, context))
    try:
        if replays is None:
            verbs, own = await body(Verbs(call))
        else:
            functions = () if tool is None else tool.functions
            verbs, own = await replays.run(call, functions, body)
    except ElicitError as refused:  # raised outside the body: a tool's own errors are results
        error = refused
    except BaseException as raised:
        # A task group may wrap the interruption, or a bare `except` in the tool may hide it. So the
        # state of the call decides, not the exception.
        if not call.is_interrupted:
            await call.finish()
            if isinstance(raised, Exception):
                cleared = without(raised, call.used.hidden)
                raise cleared from (raised.__cause__ if cleared is raised else None)
            raise
    if call.is_interrupted:
        return await _interrupted(call, tool, protocol_version=context.protocol_version)
    if error is None and _is_input_required(own):
        await call.go_on()
        state = call.presenter.carry(call, own.get("requestState"))
        # The client and the model read the tool's own input requests, so remove secrets.
        own = {**own, "inputRequests": _cleared(own.get("inputRequests"), call)}
        return {**own, "requestState": state} if state is not None else own
    if error is None and own.get("isError") and verbs is not None:
        error = verbs.last_error if escaped(verbs.last_error) else None
    result = await _finished(call, own, error, protocol_version=context.protocol_version)
    if replays is not None:
        replays.ended(call)
    return result


async def _run_body(
    verbs: Verbs,
    *,
    server: Any,
    tool: ServedTool | None,
    run: Callable[[], Awaitable[HandlerResult]],
) -> tuple[Verbs, Result]:
    call = verbs.call
    with asking(verbs) as unasked:
        enter_call(verbs, server, tool)
        await ask_first(verbs, tool, name=call.tool.tool, arguments=call.tool.arguments)
        own = wire_form(await run())
    if not call.is_interrupted and is_final_result(own):
        await all_were_asked(unasked, tool=call.tool.tool)
    return verbs, own


async def _interrupted(
    call: Call, tool: ServedTool | None, *, protocol_version: str
) -> HandlerResult:
    """Return the presenter's answer as the result, whatever the body did afterwards."""
    await call.presenter.apply_client_answers(call)
    await call.finish()
    if isinstance(call.answer, Exception):
        raise call.answer
    answer = in_revision(_as_result(call.answer), protocol_version)
    if tool is not None and tool.has_output_schema and not call.is_repeated:
        answer = with_structure(answer)
    until = call.repeats_until
    return answer if until is None else given_again(answer, until=until)


async def _finished(
    call: Call, own: Result, error: ElicitError | None, *, protocol_version: str
) -> HandlerResult:
    """Return the result of a body that ended, or the result for `error` if it is not None."""
    if error is not None:
        own = error_result(error, protocol_version=protocol_version)
        if isinstance(error, Cancelled | StoreUnavailable | ResultNotKept):
            if isinstance(error, StoreUnavailable):
                _log.warning("store.unavailable", extra={"why": error.why})
            await call.finish()  # an identical call continues the run
            return own
    if own.get("isError"):
        own = masked(cut_off(own, call.used.hidden), call.used.hidden)
    else:
        own = _cleared(own, call)
    try:
        text = encode(own).decode()
    except UnicodeEncodeError:
        own = text_result(_LONE_SURROGATE, protocol_version=protocol_version, is_error=True)
        text = encode(own).decode()
    await call.finish(lambda: text, is_error=bool(own.get("isError")))
    return own


def _cleared(said: Any, call: Call) -> Any:
    """Return a tool's output without the secrets and access tokens of this call."""
    cleared = masked(said, call.used.hidden, is_quoting=False)
    if cleared != said:
        _log.warning("result.cleared", extra={"tool": call.tool.tool})
    return cleared


def wire_form(result: HandlerResult) -> Result:
    if isinstance(result, BaseModel):
        return result.model_dump(mode="json", by_alias=True, exclude_none=True)
    return dict(result or {})


def _as_result(answer: object) -> Result:
    if not isinstance(answer, dict):
        raise TypeError(f"a presenter answered with {type(answer).__name__}")
    return cast("Result", answer)


def _is_input_required(result: Mapping[str, Any]) -> bool:
    return result.get("resultType") == "input_required"
