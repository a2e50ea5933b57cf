"""The bodies of tasks that run in this process, and their results.

Risks: the next poll repeats a body whose result was not stored. Every result, including errors, is
therefore stored in its run, except the error that the store was unavailable. A result that is too
long for a record stays in this process's memory, for a client that fetches it soon. Another risk is
a client that starts more bodies than this process can run. Each owner therefore has a limit.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import mcp_types as types
from mcp.server.context import HandlerResult
from mcp.shared.exceptions import MCPError
from msgspec.json import encode
from pydantic import BaseModel

from flows.elicitation import run as runs
from flows.errors import Cancelled, StoreUnavailable
from webapp.calls.call import RESULT_BYTES_AT_MOST, Call, Presenter
from webapp.mcp.leg import PreparedLeg
from webapp.mcp.results import MODERN, Result, text_result
from webapp.mcp.task_state import about, of_fault
from webapp.records.ids import owner_of
from webapp.service import Service

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
_log = logging.getLogger(__name__)


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
class AtWork:
    """A running body.

    `is_awaited`: a tasks/result request waits for the body as long as the person needs.
    """

    task: "asyncio.Task[None]"
    call: Call
    is_awaited: bool


class TaskLegs:
    """The task bodies of one served server in this process."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._at_work: dict[str, AtWork] = {}
        self._long = OrderedDict[str, str]()

    def long_result(self, run_id: str) -> str | None:
        """Return a result of this process that was too long for a record, or None."""
        return self._long.get(run_id)

    def of(self, run_id: str) -> AtWork | None:
        return self._at_work.get(run_id)

    def is_full(self, owner: str) -> bool:
        """Return True if the owner has the maximum number of running bodies."""
        theirs = [id for id, one in self._at_work.items() if not one.is_awaited]
        return sum(owner_of(id) == owner for id in theirs) >= AT_WORK_AT_MOST

    def begin(self, leg: PreparedLeg, *, is_awaited: bool = False) -> AtWork:
        """Start the body. Its run must be loaded and stored."""
        call = leg.call
        run_id = call.run.value.id

        async def store_result(outcome: HandlerResult | Exception) -> None:
            if not call.is_interrupted:
                await self._store_result(call, outcome)

        def remove(_: object) -> None:
            if self._at_work.get(run_id) is at_work:
                del self._at_work[run_id]

        task = self._service.running_tools.begin(call, leg.body, store_result)
        at_work = self._at_work[run_id] = AtWork(task=task, call=call, is_awaited=is_awaited)
        task.add_done_callback(remove)
        return at_work

    async def _store_result(self, call: Call, outcome: HandlerResult | Exception) -> None:
        result = _result_of(outcome)
        error_id = about(result).get("errorId")
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
            _log.warning("task.result_not_stored", extra={"run": gone})


def _result_of(outcome: HandlerResult | Exception) -> Result:
    match outcome:
        case MCPError():
            fault = outcome.error
            return _error(fault.message, **of_fault(fault.message, fault.code, fault.data))
        case Exception():
            _log.error("task.body_failed", exc_info=outcome)
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
