"""Tasks: which clients get one, and the state of a task, in the format of each revision."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, TypeAlias, cast

import mcp_types as types

from flows.elicitation.run import Run
from flows.elicitation.states import Elicitation, Status
from flows.elicitation.tool_call import modes_of
from flows.elicitation.traits import traits_of
from flows.payments.events import ON_ITS_WAY
from flows.payments.session import is_paid_otherwise
from webapp.calls.delivery import is_error
from webapp.identity.identity import Caller
from webapp.mcp.callers import TASKS, Declared, has_tasks
from webapp.mcp.results import MODERN, Result
from webapp.mcp.tools import as_mapping, low_level_of

# The server's offer of tasks: which clients get tasks, and how the server declares tasks in each
# protocol revision.
#
# Risks: a client without support for tasks sees a difference, or a client gets a task and shows its
# person nothing. So only a client that declares tasks, shows links and has an identity gets tasks.
# A caller that needs user codes in the chat gets no tasks, because a code can be typed only during
# an open call. If a server has its own tasks (for example from an extension of its library), this
# module offers none.


class TaskOffer:
    """The offer of tasks of one served server."""

    def __init__(self, server: Any, *, is_on: bool) -> None:
        self._server = server
        self._is_on = is_on

    @property
    def is_allowed(self) -> bool:
        """True if the operator allows tasks and the server has no tasks of its own."""
        has_own = low_level_of(self._server).get_request_handler("tasks/get") is not None
        return self._is_on and not has_own

    def is_for(self, declared: Declared, caller: Callable[[], Caller]) -> bool:
        """Return True if this client gets tasks.

        `caller` is called only if the server offers tasks and the client supports tasks and links.
        """
        shows = declared.has_tasks and "url" in declared.modes
        return shows and self.is_allowed and _has_name(caller())

    def promised(
        self, result: Result, params: Mapping[str, Any] | None, caller: Callable[[], Caller]
    ) -> Result:
        """Return the result of `initialize` or `server/discover`, and declare tasks if offered.

        At this point the client's declaration is only in `params`.
        """
        params = params or {}
        meta = as_mapping(params.get("_meta"))
        version = str(result.get("protocolVersion") or MODERN)
        key = types.CLIENT_CAPABILITIES_META_KEY
        declared = as_mapping(meta.get(key) if version >= MODERN else params.get("capabilities"))
        shows = has_tasks(declared, version) and "url" in modes_of(declared)
        if not (shows and self.is_allowed and _has_name(caller())):
            return result
        capabilities = dict(as_mapping(result.get("capabilities")))
        if version >= MODERN:
            capabilities["extensions"] = {
                **as_mapping(capabilities.get("extensions")),
                TASKS: {},
            }
        else:
            capabilities["tasks"] = {"cancel": {}, "requests": {"tools": {"call": {}}}}
        return {**result, "capabilities": capabilities}

    def listed(self, result: Result, declared: Declared, caller: Callable[[], Caller]) -> Result:
        """Return the result of tools/list. On 2025-11-25, mark each tool as callable as a task."""
        if declared.is_modern or not self.is_for(declared, caller):
            return result
        may_be = {"execution": {"taskSupport": "optional"}}
        return {**result, "tools": [{**may_be, **tool} for tool in result.get("tools", [])]}


def _has_name(caller: Caller) -> bool:
    return caller.owner is not None and caller.refusal is None and not caller.by_code


TaskStatus: TypeAlias = Literal["working", "input_required", "completed", "failed", "cancelled"]
# The poll interval grows with the age of the task.
LOOKS_AT_LEAST: Final = timedelta(seconds=5)
LOOKS_AT_MOST: Final = timedelta(minutes=1)
_OF_ITS_AGE: Final = 20
# A key in `_meta` of the result that is stored for a call that ended with a JSON-RPC error.
_FAULT: Final = "elicit.jsonrpcError"
_CANCELLED = (
    "The client cancelled the task. Its questions stay open until they expire: repeat the same "
    "call to continue."
)
_PAYMENT = "The payment is on its way. The person has nothing more to do."
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """A run at the time `now`, and its questions with their indexes in the run."""

    run: Run
    asked: Sequence[tuple[int, Elicitation]]
    now: datetime
    long_result: str | None = None  # a result that is too long for the run's record

    @property
    def result(self) -> str:
        """The task's result as JSON."""
        return self.long_result or self.run.result or ""

    @property
    def has_ended(self) -> bool:
        return self.run.finished_at is not None

    @property
    def is_gone(self) -> bool:
        """True if the task has ended and its result is no longer stored."""
        is_stored = self.run.result is not None and self.now < self.run.expires_at
        return self.has_ended and not self.run.is_cancelled and not is_stored

    @property
    def open(self) -> list[tuple[int, Elicitation]]:
        """The questions that somebody has yet to answer."""
        return [(n, one) for n, one in self._unsettled if one.progress != ON_ITS_WAY]

    @property
    def open_here(self) -> list[tuple[int, Elicitation]]:
        """The open questions that the client can ask its person.

        Questions for an approver are not included, because they are in the approver's inbox and a
        refusal in the client would count as the approver's.
        """
        return [(n, one) for n, one in self.open if not traits_of(one.kind).is_anothers]

    @property
    def processing(self) -> list[Elicitation]:
        return [one for _, one in self._unsettled if one.progress == ON_ITS_WAY]

    def status(self, protocol_version: str) -> TaskStatus:
        run = self.run
        if run.is_cancelled:
            return "cancelled"
        if self.has_ended:
            fails = _FAULT in self.result and fault_of(json.loads(self.result)) is not None
            if protocol_version < MODERN:  # on 2025-11-25 a tool's own error is a failure too
                fails = fails or is_error(self.result)
            return "failed" if fails else "completed"
        return "input_required" if self.open_here else "working"

    def to_result(self, protocol_version: str, *, status: TaskStatus, message: str = "") -> Result:
        """Return the task in the protocol's format."""
        run, is_modern = self.run, protocol_version >= MODERN
        age = max(self.now - run.created_at, timedelta())
        looks = min(max(age / _OF_ITS_AGE, LOOKS_AT_LEAST), LOOKS_AT_MOST)
        task: Result = {
            "taskId": run.id,
            "status": status,
            "createdAt": _written(run.created_at),
            "lastUpdatedAt": _written(self._moved_at),
            "ttlMs" if is_modern else "ttl": (run.expires_at - run.created_at) // _MILLISECOND,
            "pollIntervalMs" if is_modern else "pollInterval": looks // _MILLISECOND,
        }
        if status == "cancelled":
            message = _CANCELLED
        elif status == "working" and self.processing:
            message = f"{message}\n{_PAYMENT}" if message else _PAYMENT
        return {**task, "statusMessage": message} if message else task

    @property
    def _unsettled(self) -> list[tuple[int, Elicitation]]:
        return [
            (n, one)
            for n, one in self.asked
            if not one.status.is_final
            and not is_paid_otherwise(one.progress)  # the body does not wait and gets an error
            # An exchange with a provider may finish a little after the question's end.
            and (self.now < one.expires_at or one.status is Status.EXCHANGING)
        ]

    @property
    def _moved_at(self) -> datetime:
        asked = [one.settled_at or one.created_at for _, one in self.asked]
        return max([self.run.created_at, self.run.finished_at or self.run.created_at, *asked])


def of_fault(text: str, code: int, data: Any) -> dict[str, Any]:
    """Return the `_meta` of the stored result of a call that ended with a JSON-RPC error."""
    error = {"code": code, "message": text}
    return {_FAULT: error if data is None else {**error, "data": data}}


def fault_of(result: Result) -> dict[str, Any] | None:
    """Return the JSON-RPC error for which the result was stored, or None."""
    fault: dict[str, Any] | None = meta_of(result).get(_FAULT)
    return fault


def meta_of(result: Result) -> Mapping[str, Any]:
    """Return the result's `_meta`."""
    return cast("Mapping[str, Any]", result.get("_meta") or {})


def _written(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
