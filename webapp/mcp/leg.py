"""A single request of a call, or the body of a task: how it runs, and the result its client gets.

Risks: a tool continues although its request was interrupted, or catches the exception that
interrupted the request. The result therefore depends on the state of the call, and not on what the
tool raised or returned.

Risks: the next poll repeats a body whose result was not stored. Every result, including errors, is
therefore stored in its run, except the error that the store was unavailable. A result that is too
long for a record stays in this process's memory, for a client that fetches it soon. Another risk is
a client that starts more bodies than this process can run. Each owner therefore has a limit.
"""

import asyncio
import logging
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, cast

import mcp_types as types
from mcp.server.context import CallNext, HandlerResult
from mcp.shared.exceptions import MCPError
from msgspec.json import encode
from pydantic import BaseModel

from flows.elicitation import run as runs
from flows.errors import Cancelled, ElicitError, NotAwaited, ResultNotStored, StoreUnavailable
from flows.question import asking
from webapp.calls.call import RESULT_BYTES_AT_MOST, Call, Presenter
from webapp.calls.replay import Replays
from webapp.calls.unasked import all_were_asked
from webapp.calls.verbs import Verbs
from webapp.logs.masking import masked
from webapp.mcp.before import ask_first, enter_call
from webapp.mcp.results import (
    MODERN,
    Result,
    cut_off,
    error_of_tool,
    error_result,
    given_again,
    in_revision,
    is_final_result,
    may_be_of_question,
    text_result,
    with_structure,
    without,
)
from webapp.mcp.task_state import meta_of, of_fault
from webapp.mcp.tool_mistakes import must_return_no_awaitable
from webapp.mcp.tools import Context, ServedTool
from webapp.records.ids import owner_of
from webapp.service import Service

_LONE_SURROGATE = (
    "The result of this tool contains half a character (a lone surrogate), which no message can "
    "contain. The tool may already have done its work. Its author has to encode the text, for "
    "example with text.encode(errors='replace').decode()."
)
# The repr of a coroutine, an async generator, a task, a gather or a question.
_REPR = re.compile(
    r"<(?:(?:coroutine|async_generator) object |Task \w+ name='[^']*' coro=<)([^\s()]+)"
    r"|<_(Gathering)Future pending|<Question of the kind \w+ at ([^,>]+), not asked: await it>"
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
    context: Context,
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
    if error is None and own.get("resultType") == "input_required":
        await call.go_on()
        state = call.presenter.carry(call, own.get("requestState"))
        # The client and the model read the tool's own input requests, so remove secrets.
        own = {**own, "inputRequests": _cleared(own.get("inputRequests"), call)}
        return {**own, "requestState": state} if state is not None else own
    if error is None and own.get("isError") and verbs is not None:
        error = error_of_tool(verbs.raised, own)
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
    has_raised = may_be_of_question(verbs.raised, own)
    if (has_raised or is_final_result(own)) and not call.is_interrupted:
        await all_were_asked(unasked, tool=call.tool.tool, has_raised=has_raised)
        _must_be_no_awaitable(own, tool)
    return verbs, own


def _must_be_no_awaitable(result: Result, tool: ServedTool | None) -> None:
    """Check that a result's text is not the repr of a question or coroutine that was not awaited.

    A tool may print the repr of a coroutine on purpose, for example from another program. Such a
    repr is therefore an error only if the code of this tool calls the function.

    Raises:
        NotAsked: The text has the repr of a question, or of a coroutine of such a function.
        InvalidUse: The tool is an async generator, which the library does not run.
    """
    texts = [str(part.get("text", "")) for part in result.get("content") or ()]
    for found in (match for text in texts for match in _REPR.finditer(text)):
        name, is_gathered, question = found.groups()
        if question is not None:
            raise NotAwaited(question)
        for function in () if tool is None else tool.functions:
            must_return_no_awaitable(function, name, is_gathered=is_gathered is not None)


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
        if error.place is not None:  # a mistake of the tool's author, who reads the log
            about = {"tool": call.tool.tool, "code": error.name, "why": str(error)}
            _log.error("tool.misused_verb", extra=about)
        if isinstance(error, Cancelled | StoreUnavailable | ResultNotStored):
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


def _cleared(content: Any, call: Call) -> Any:
    """Return a tool's output without the secrets and access tokens of this call."""
    if not call.used.hidden:
        return content
    cleared = masked(content, call.used.hidden, is_quoting=False)
    if cleared != content:
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


AT_WORK_AT_MOST: Final = 20  # bodies per owner in this process
LONG_BYTES_AT_MOST: Final = 16 * 1024 * 1024  # of all results that are too long for a record
_TOO_LONG = (
    "The tool is done, but its result of {size} bytes is not stored any more: a result of more "
    "than {limit} bytes is deleted if the client does not fetch it soon. Request a smaller "
    "result, or call the tool without a task."
)
_ASKS_ITSELF = (
    "This tool sends its own requests to the client, which is not possible in a task. Call the "
    "tool without a task."
)
_log_of_tasks = logging.getLogger(
    "webapp.mcp.task_legs"
)  # the name in the log lines of earlier versions


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLeg:
    """The way to present the questions of a request for a task.

    `presents` receives the call's usual presenter and returns the presenter to use. `brings` is the
    id of the task, if the request waits for the task's result.
    """

    presents: Callable[[Presenter], Presenter]
    brings: str | None = None


class Prepares(Protocol):
    """Prepares a request of a task's call for the caller of the current HTTP request."""

    def __call__(
        self, *, params: dict[str, Any], task: TaskLeg, run_id: str
    ) -> Awaitable[PreparedLeg]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningBody:
    """A running body.

    `is_awaited`: a tasks/result request waits for the body as long as the person needs.
    """

    task: "asyncio.Task[None]"
    call: Call
    is_awaited: bool


class RunningTasks:
    """The task bodies of one served server in this process."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._at_work: dict[str, RunningBody] = {}
        self._long = OrderedDict[str, str]()

    def long_result(self, run_id: str) -> str | None:
        """Return a result of this process that was too long for a record, or None."""
        return self._long.get(run_id)

    def of(self, run_id: str) -> RunningBody | None:
        return self._at_work.get(run_id)

    def is_full(self, owner: str) -> bool:
        """Return True if the owner has the maximum number of running bodies."""
        unawaited = [id for id, one in self._at_work.items() if not one.is_awaited]
        return sum(owner_of(id) == owner for id in unawaited) >= AT_WORK_AT_MOST

    def begin(self, prepared: PreparedLeg, *, is_awaited: bool = False) -> RunningBody:
        """Start the body. The call's run must already be loaded and stored."""
        call = prepared.call
        run_id = call.run.value.id

        async def store_result(outcome: HandlerResult | Exception) -> None:
            if not call.is_interrupted:
                await self._store_result(call, outcome)

        def remove(_: object) -> None:
            if self._at_work.get(run_id) is at_work:
                del self._at_work[run_id]

        task = self._service.running_tools.begin(call, prepared.body, store_result)
        at_work = self._at_work[run_id] = RunningBody(task=task, call=call, is_awaited=is_awaited)
        task.add_done_callback(remove)
        return at_work

    async def _store_result(self, call: Call, outcome: HandlerResult | Exception) -> None:
        result = _result_of(outcome)
        error_id = meta_of(result).get("errorId")
        if error_id == StoreUnavailable.name:
            return  # store nothing: the next poll runs the body again
        if error_id == Cancelled.name:
            await call.run.change(lambda run: runs.cancel(run, now=call.clock()))
            return
        text = encode(result).decode()
        size = len(encode(text))
        if size > RESULT_BYTES_AT_MOST:
            why = _TOO_LONG.format(size=size, limit=RESULT_BYTES_AT_MOST)
            self._hold(call.run.value.id, text)
            text = encode(_error(why)).decode()
        await call.keep(text)

    def _hold(self, run_id: str, text: str) -> None:
        self._long[run_id] = text
        while sum(map(len, self._long.values())) > LONG_BYTES_AT_MOST:
            gone, _ = self._long.popitem(last=False)
            _log_of_tasks.warning("task.result_not_stored", extra={"run": gone})


def _result_of(outcome: HandlerResult | Exception) -> Result:
    match outcome:
        case MCPError():
            fault = outcome.error
            return _error(fault.message, **of_fault(fault.message, fault.code, fault.data))
        case Exception():
            _log_of_tasks.error("task.body_failed", exc_info=outcome)
            text = str(outcome)
            return _error(text, **of_fault(text, types.INTERNAL_ERROR, None))
        case BaseModel():
            return outcome.model_dump(mode="json", by_alias=True, exclude_none=True)
        case _:
            result = dict(outcome or {})
            is_asking = result.get("resultType") == "input_required"
            return _error(_ASKS_ITSELF) if is_asking else result


def _error(text: str, **meta: Any) -> Result:
    return text_result(text, protocol_version=MODERN, is_error=True, meta=meta)
