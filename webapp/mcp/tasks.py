"""Tasks: calls that may wait for days without an open request, while the client polls.

A task is a run and has the run's id. A task has no other record, and no state except the run and
its questions. 2025-11-25: the client asks for a task, and `tasks/result` sends the question and
waits. 2026-07-28 (the extension `io.modelcontextprotocol/tasks`): a call that has to wait for a
person becomes a task automatically. `tasks/get` returns the question, and `tasks/update` brings the
client's answer.

No process waits between the client's requests. Once every question has an answer, the next poll
runs the body again, like a retry. A process may therefore die at any time, and any other process
continues.

Risks: a client reads another owner's task. A task is looked up by owner and id, and belongs to the
client that created it; an anonymous caller has no task. Another risk is that two polls come at the
same time and both run the body. Each process runs at most one body per task. If two processes run
the body, only the process that claims an outcome gets the outcome, as for any call. Cancelling and
finishing a task are compare-and-set operations on the run: only the first of them succeeds.
"""

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NoReturn, cast

import mcp_types as types
from mcp.server.context import HandlerResult
from mcp.shared.exceptions import MCPError
from msgspec.json import encode

from flows.elicitation import run as runs
from flows.elicitation.run import Run
from flows.elicitation.states import Elicitation
from flows.kinds.form import voting_of
from webapp.calls.call import Presenter
from webapp.calls.delivery import is_refunded
from webapp.calls.patience import store_bounded
from webapp.calls.presenter import name_at
from webapp.calls.running import Later
from webapp.http.exchange import ClientConnection
from webapp.identity.identity import Caller
from webapp.mcp.callers import TASKS, WITH_TASKS, Declared
from webapp.mcp.leg import PreparedLeg, Prepares, RunningBody, RunningTasks, TaskLeg
from webapp.mcp.presenters.choice import in_task_of
from webapp.mcp.presenters.in_task import InTask
from webapp.mcp.request_state import KEY
from webapp.mcp.results import MODERN, Result, in_revision, related_task, text_result
from webapp.mcp.task_state import TaskOffer, TaskState, fault_of
from webapp.mcp.tools import as_mapping, with_version
from webapp.records.ids import owner_of
from webapp.service import Service

METHODS: Final = frozenset({"tasks/get", "tasks/result", "tasks/update", "tasks/cancel"})
ID_CHARACTERS_AT_MOST: Final = 200
LOOKS_AGAIN: Final = timedelta(seconds=5)  # the longest wait for another process's change
AT_ONCE_SECONDS: Final = 1.0  # how long a poll waits for the body that it started
_SHOWN_AT_MOST: Final = 20_000
# The progress token belongs to the polling request, and not to the tool's call.
_PROGRESS: Final = "progressToken"
_UNKNOWN = (
    "You have no task with this id, or the task has expired. Call the tool again: it continues "
    "with its open questions."
)
_CANCELLED = "The task was cancelled. Call the tool again: it continues with its open questions."
_OTHER_VERSION = (
    "The server now has another version of this tool. Nothing was done; call the tool again."
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRequest:
    """A request about a task. `prepares` prepares a request of the task's call."""

    method: str
    params: Mapping[str, Any]
    declared: Declared
    caller: Caller
    version: str
    connection: ClientConnection | None
    later: Later
    prepares: Prepares

    @property
    def is_modern(self) -> bool:
        return self.version >= MODERN


class Tasks:
    """The tasks of one served server."""

    def __init__(self, service: Service, offer: TaskOffer, *, server: str) -> None:
        self._service = service
        self._offer = offer
        self._server = server
        self._running = RunningTasks(service)
        self._first_shown = OrderedDict[str, datetime]()
        self._seen_processing = OrderedDict[str, None]()  # payments that bodies saw as processing

    def task_leg_of(
        self, params: Mapping[str, Any], declared: Declared, caller: Caller
    ) -> TaskLeg | None:
        """Return the `TaskLeg` of a call's first request; None if the call cannot become a task."""
        if not self._offer.is_for(declared, lambda: caller):
            return None
        if not declared.is_modern:
            is_wanted = isinstance(params.get("task"), Mapping)
            presenter = self._presenter(declared, caller)
            return TaskLeg(presents=lambda _: presenter) if is_wanted else None
        if params.get("requestState") is not None:
            return None  # the call answers the tool's input request, so it cannot be a task

        def presents(usual: Presenter) -> Presenter:
            return in_task_of(
                declared,
                caller=caller,
                service=self._service,
                created=lambda call: self._created(call.run.value, version=MODERN),
                otherwise=usual,
            )

        return TaskLeg(presents=presents)

    async def create(self, prepared: PreparedLeg) -> Result:
        """Start the body of a call that asks to be a task, and return the task (2025-11-25).

        An identical call gets the same task while the task runs.
        """
        call = prepared.call
        run = await call.run.load()
        if not call.run.can_go_on:
            _refuse("The arguments are too long for a task. Call the tool without a task.")
        if run.finished_at is None and self._running.of(run.id) is None:
            if self._running.is_full(run.owner):
                _refuse("Too many of your tasks are running. Wait until some of them end.")
            run = await call.run.begin()
            self._running.begin(prepared)
        return self._created(run, version=WITH_TASKS)

    async def answer(
        self, request: TaskRequest, otherwise: Callable[[], Awaitable[HandlerResult]]
    ) -> HandlerResult:
        """Answer a request about a task. Raises MCPError, for example for an unknown task id.

        `otherwise` lets the library answer, if the server or the client does not use our tasks.
        """
        is_modern, method = request.is_modern, request.method
        of_other = "tasks/result" if is_modern else "tasks/update"
        if not self._offer.is_allowed or method == of_other:
            return await otherwise()
        if not request.declared.has_tasks:
            if not is_modern:
                return await otherwise()
            raise MCPError(
                types.MISSING_REQUIRED_CLIENT_CAPABILITY,
                f"To poll a task, the client must declare the extension {TASKS}.",
                {"requiredCapabilities": {"extensions": {TASKS: {}}}},
            )
        match method:
            case "tasks/get":
                return await self._get(request)
            case "tasks/cancel":
                return await self._cancel(request)
            case "tasks/update":
                return await self._update(request)
            case _:
                return await self._result(request)

    async def _get(self, request: TaskRequest) -> Result:
        state = await self._state(request)
        if not (state.has_ended or state.open):
            at_work = await self._go_on(request, state)
            if at_work is not None:
                await asyncio.wait({at_work.task}, timeout=AT_ONCE_SECONDS)
            state = await self._state(request)
        status = state.status(request.version)
        result = state.to_result(
            request.version, status=status, message=self._message(state, request)
        )
        if not request.is_modern:
            return result
        result["resultType"] = "complete"
        match status:
            case "input_required":
                result["inputRequests"] = await self._input_requests(state, request)
            case "completed":
                result["result"] = await self._delivered(state, request)
            case "failed":
                result["error"] = fault_of(await self._delivered(state, request))
            case _:
                pass
        return result

    async def _result(self, request: TaskRequest) -> Result:
        """Send the client the task's questions, wait for the task's result, and return it."""
        is_outrun = False  # True if a newer tasks/result request may ask the questions instead
        while not (state := await self._state(request)).has_ended:
            if self._service.is_draining:
                raise MCPError(
                    types.INTERNAL_ERROR, "The server is restarting. Send this request again."
                )
            at_work = self._running.of(state.run.id)
            if at_work is None and not state.open:
                at_work = await self._go_on(request, state)
            is_held = at_work is not None and at_work.is_awaited
            if at_work is not None and (is_outrun or not is_held):
                await asyncio.wait({at_work.task})
                is_outrun = False
            elif is_outrun or not state.open_here:
                await self._changes(state.run.id)  # another process or an approver is at work
                is_outrun = False
            else:
                answer = await self._held(state, request)
                if answer is not None:
                    return answer
                is_outrun = True
        if state.run.is_cancelled:
            result = text_result(_CANCELLED, protocol_version=WITH_TASKS, is_error=True)
        else:
            result = await self._delivered(state, request)
        if (fault := fault_of(result)) is not None:
            raise MCPError(fault["code"], fault["message"], fault.get("data"))
        return _about(result, state.run.id)

    async def _held(self, state: TaskState, request: TaskRequest) -> Result | None:
        """Run the body in a request that asks the person.

        Return the result with the link if the client showed nothing. Otherwise return None: the
        caller then reads the task's state again.
        """
        prepared = await self._prepare(
            request, state.run, TaskLeg(presents=_as_usual, brings=state.run.id)
        )
        if prepared is None:
            return None
        call, task = prepared.call, self._running.begin(prepared, is_awaited=True).task
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            if call.waiters:  # cancel only a body that still waits for an answer
                task.cancel()
            raise
        answer = call.answer
        if isinstance(answer, Exception):
            raise answer
        if answer == call.presenter.busy() or self._service.is_draining:
            return None
        is_link = call.is_interrupted and not call.is_repeated and isinstance(answer, dict)
        if is_link and not (await self._state(request)).open_here:
            return None  # the remaining questions are for others, who may take days
        # The client showed nothing: return the link, which the model passes on.
        return _about(cast("Result", answer), state.run.id) if is_link else None

    async def _update(self, request: TaskRequest) -> Result:
        """Apply the client's answers. Answers to questions that are not open are ignored."""
        responses = request.params.get("inputResponses")
        if not isinstance(responses, Mapping):
            _refuse("inputResponses must be a JSON object.")
        given = cast("Mapping[str, Any]", responses)
        state = await self._state(request)
        answers = [
            (n, one, as_mapping(given[self._key(n, one)]))
            for n, one in state.open_here
            if self._key(n, one) in given
        ]
        if answers and not state.has_ended:
            presenter = self._presenter(request.declared, request.caller)
            prepared = await self._prepare(
                request, state.run, TaskLeg(presents=lambda _: presenter)
            )
            if prepared is not None:
                for n, asked, response in answers:
                    shown_at = self._first_shown.get(asked.id, asked.created_at)
                    if not await presenter.apply_answer(
                        prepared.call, asked, response, shown_at=shown_at
                    ):
                        presenter.dismissed.add(name_at(n, asked.id))
                is_answered = not (await self._state(request)).open
                if is_answered or presenter.dismissed:
                    self._begin(prepared)
        return {"resultType": "complete"}

    async def _cancel(self, request: TaskRequest) -> Result:
        """Cancel the task and its body for the client. The task's questions stay open."""

        async def ended() -> list[Run]:
            run, now = await self._run(request), self._service.clock()
            return [] if run.finished_at is not None else [runs.cancel(run, now=now)]

        cancelled = list(await self._service.elicitations.write_rebuilt(ended))
        state = await self._state(request)
        if not cancelled and not request.is_modern:
            _refuse("This task has already ended: use tasks/result to get its result.")
        at_work = self._running.of(state.run.id)
        if cancelled and at_work is not None:
            at_work.task.cancel()
        if request.is_modern:
            return {"resultType": "complete"}
        return state.to_result(request.version, status="cancelled")

    async def _go_on(self, request: TaskRequest, state: TaskState) -> RunningBody | None:
        """Start the body if it can continue. Return the body that runs in this process, or None."""
        at_work = self._running.of(state.run.id)
        if at_work is not None or not self._may_go_on(state):
            return at_work
        presenter = self._presenter(request.declared, request.caller)
        prepared = await self._prepare(request, state.run, TaskLeg(presents=lambda _: presenter))
        return None if prepared is None else self._begin(prepared)

    def _may_go_on(self, state: TaskState) -> bool:
        elicitations = self._service.elicitations
        is_claimed = any(
            e.delivered_at is None and elicitations.is_claimed(e) for _, e in state.asked
        )
        if is_claimed or self._service.is_draining:
            return False
        # Run the body once for each processing payment: some tools do not wait for the payment.
        new_payments = [one.id for one in state.processing if one.id not in self._seen_processing]
        for id in new_payments:
            store_bounded(self._seen_processing, id, None, at_most=_SHOWN_AT_MOST)
        return bool(new_payments) or not state.processing

    def _begin(self, prepared: PreparedLeg) -> RunningBody | None:
        run = prepared.call.run.value
        at_work = self._running.of(run.id)
        if at_work is not None or self._running.is_full(run.owner):
            return at_work
        return self._running.begin(prepared)

    async def _prepare(self, request: TaskRequest, run: Run, task: TaskLeg) -> PreparedLeg | None:
        """Prepare a request of the task's call.

        If the tool now has another version, end the task and return None.
        """
        called = run.called
        if called is None or called.arguments is None:
            raise _unknown()
        meta = {k: v for k, v in as_mapping(request.params.get("_meta")).items() if k != _PROGRESS}
        params = {"name": called.tool, "arguments": json.loads(called.arguments), "_meta": meta}
        params = with_version(params, called.version)
        prepared = await request.prepares(params=params, task=task, run_id=run.id)
        found = await prepared.call.run.load()
        if found.id == run.id:
            return prepared
        gone = text_result(_OTHER_VERSION, protocol_version=MODERN, is_error=True)

        async def ended() -> list[Run]:
            current, now = await self._run(request), self._service.clock()
            finished = runs.finish(current, result=encode(gone).decode(), now=now)
            return [] if current.finished_at is not None else [finished]

        await self._service.elicitations.write_rebuilt(ended)
        return None

    async def _delivered(self, state: TaskState, request: TaskRequest) -> Result:
        """Return the task's result. Store the delivery once the client has received the result."""
        run = state.run
        service = self._service
        if await is_refunded(service.elicitations, service.kinds, run):
            raise _unknown()
        prepared = await self._prepare(request, run, TaskLeg(presents=_as_usual))
        assert run.result is not None
        if prepared is not None:
            await prepared.call.return_stored_result(run, run.result)
            service.running_tools.deliver(prepared.call, request.connection, later=request.later)
        return in_revision(json.loads(state.result), request.version)

    async def _input_requests(self, state: TaskState, request: TaskRequest) -> dict[str, Any]:
        """Return the requests for the client, by names that are unique within the task."""
        presenter = self._presenter(request.declared, request.caller)
        await self._service.links.prove()
        asked: dict[str, Any] = {}
        for n, one in state.open_here:
            if one.id not in self._first_shown:
                store_bounded(self._first_shown, one.id, state.now, at_most=_SHOWN_AT_MOST)
            asked[self._key(n, one)] = presenter.request(self._service, one, url=self._link(one))
        return asked

    def _message(self, state: TaskState, request: TaskRequest) -> str:
        """Return the status message with the links, for clients that show no questions."""
        presenter = self._presenter(request.declared, request.caller)
        lines: list[str] = []
        for _, one in state.open:
            voting = voting_of(one)
            asked = "the person" if voting is None else voting.approver
            line = f"Waiting for {asked}: {one.request.message}"
            if voting is not None:
                line += f" {voting.progress}".rstrip()
                line += f" The person can follow or withdraw the request: {self._link(one)}"
            elif presenter.client.has_page(one.kind):
                line += f" They answer at {self._link(one)}"
            lines.append(line)
        return "\n".join(lines)

    def _key(self, index: int, asked: Elicitation) -> str:
        """Return the question's name in the task. The name changes after each refused answer."""
        refused = self._service.kinds.rules.refused.get(asked.id)
        suffix = "" if refused is None else f"-{refused.times}"
        return f"{KEY}{name_at(index, asked.id)}{suffix}"

    def _link(self, asked: Elicitation) -> str:
        return self._service.links.of(asked, now=self._service.clock())

    async def _state(self, request: TaskRequest) -> TaskState:
        """Return the task's state. Raises MCPError if the caller has no such task any more."""
        run = await self._run(request)
        elicitations = self._service.elicitations
        found = [await elicitations.get(asking.elicitation_id) for asking in run.asked]
        asked = [(n, one) for n, one in enumerate(found) if one is not None]
        long_result = self._running.long_result(run.id)
        state = TaskState(run=run, asked=asked, now=self._service.clock(), long_result=long_result)
        if state.is_gone:
            raise _unknown()
        return state

    async def _run(self, request: TaskRequest) -> Run:
        id, caller = request.params.get("taskId"), request.caller
        is_id = isinstance(id, str) and len(id) <= ID_CHARACTERS_AT_MOST and id.isascii()
        if not is_id or caller.owner is None or owner_of(cast("str", id)) != caller.owner:
            raise _unknown()
        run = await self._service.elicitations.read(Run, owner=caller.owner, id=cast("str", id))
        called = None if run is None else run.called
        if run is None or called is None:
            raise _unknown()
        if (called.server, called.client) != (self._server, caller.client):
            raise _unknown()
        return run

    async def _changes(self, run_id: str) -> None:
        """Wait until the run changes, but only a few seconds."""
        waiters, now = self._service.elicitations.waiters, self._service.clock()
        with waiters.waiter(request_id=run_id, taker=None) as waiter:
            waiters.add(waiter, run_id)
            await waiter.changes(until=now + LOOKS_AGAIN, now=now)

    def _presenter(self, declared: Declared, caller: Caller) -> InTask:
        return in_task_of(declared, caller=caller, service=self._service, created=lambda _: {})

    def _created(self, run: Run, *, version: str) -> Result:
        _log.info("task.created", extra={"run": run.id})
        state = TaskState(run=run, asked=(), now=self._service.clock())
        task = state.to_result(version, status="working")
        return {"resultType": "task", **task} if version >= MODERN else {"task": task}


def _as_usual(presenter: Presenter) -> Presenter:
    return presenter


def _about(result: Result, run_id: str) -> Result:
    return {**result, "_meta": {**as_mapping(result.get("_meta")), **related_task(run_id)}}


def _unknown() -> MCPError:
    return MCPError(types.INVALID_PARAMS, _UNKNOWN)


def _refuse(why: str) -> NoReturn:
    raise MCPError(types.INVALID_PARAMS, why)
