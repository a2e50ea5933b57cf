"""Questions on the call's own stream, which stays open while the person answers (2025-11-25).

This is the common part of the presenters that send the client a request and wait for both the
client's answer and the store.

Risks: the client sends an invalid answer, which the library would drop silently. Answers are
therefore parsed here. Or the client shows the person nothing. After a time without an answer, the
person gets the link, and the request stays open for a late answer.

A call ends before its client gives up, and an identical call continues.

Risks between the two calls: a form that a person is filling in disappears, or a link that the
person has opened is shown again. A request that is open when its call ends is therefore passed to
the next call, and an accepted link is not shown again on this connection. An answer that comes
between calls settles its question, because the next call may get the link instead.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, ClassVar, NoReturn, TypeAlias, cast
from weakref import WeakKeyDictionary

import anyio
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import (
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    RequestParamsMeta,
)
from pydantic import BaseModel, field_validator

from flows.elicitation.states import Elicitation
from webapp.calls.call import Call
from webapp.calls.clients import AskedClient, Mode, Reaction
from webapp.calls.presenter import AUTOMATIC, RESULT, PresentedQuestion, Prompt
from webapp.deadline import Deadline
from webapp.elicitations.service import Elicitations
from webapp.elicitations.waiters import Waiter
from webapp.mcp.presenters.link import LinkInResult, pending_result
from webapp.mcp.results import Result, related_task

# The client's actions that count if they come between two calls. A dismissed question is asked
# again.
_COUNTS = ("accept", "decline")
_log_of_asks = logging.getLogger("webapp.mcp.asks")  # the name in the log lines of earlier versions


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAnswer:
    """A client's answer, `after` seconds after the client was asked."""

    action: str
    content: object = None
    after: float = 0.0


# Called with an answer that comes after its call has ended, or with None after an error.
Late: TypeAlias = Callable[[ClientAnswer | None], Awaitable[None]]
Asking: TypeAlias = asyncio.Task[ClientAnswer | None]


@dataclass(frozen=True, slots=True)
class _PassedOn:
    """A request that is still open at the client. The request ends when its question ends."""

    asking: Asking
    end: asyncio.TimerHandle
    on_answer: Callable[[Asking], None]  # callback for the answer


class ClientAsks:
    """The questions of one connection, by elicitation id."""

    def __init__(self) -> None:
        self._passed_on: dict[str, _PassedOn] = {}
        self._open: dict[str, Asking] = {}
        self._accepted: set[str] = set()
        self._given_up: set[str] = set()
        self._to_notify: set[str] = set()  # left open by a call: notify the client when they end
        self._works: set[asyncio.Task[None]] = set()

    def begin(self, id: str, ask: Callable[[], Coroutine[Any, Any, ClientAnswer | None]]) -> Asking:
        """Ask the client, or continue a request that an earlier call left open."""
        self._given_up.discard(id)
        passed_on = self._passed_on.pop(id, None)
        if passed_on is not None:
            passed_on.end.cancel()
            passed_on.asking.remove_done_callback(passed_on.on_answer)
            if not passed_on.asking.done() or _action_of(passed_on.asking) in _COUNTS:
                return passed_on.asking
        asking = self._open[id] = asyncio.create_task(ask())
        asking.add_done_callback(partial(self._closed, id))
        return asking

    def is_open(self, id: str) -> bool:
        """Return True if the client was asked this question and has not answered."""
        return id in self._open

    def _closed(self, id: str, asking: Asking) -> None:
        if self._open.get(id) is asking:
            del self._open[id]

    def leave(
        self, id: str, asking: Asking, *, life: timedelta, late: Late, is_to_newer: bool
    ) -> None:
        """Leave the request open for the next call.

        `late` handles an answer that comes before the next call. The request is cancelled after
        `life`. With `is_to_newer`, a newer identical call already waits for the answer.
        """
        if not is_to_newer:
            self.give_up(id)
        end = asyncio.get_running_loop().call_later(life.total_seconds(), asking.cancel)
        on_answer = partial(self._received, id, late)
        self._passed_on[id] = _PassedOn(asking, end, on_answer)
        self._to_notify.add(id)
        asking.add_done_callback(on_answer)

    def is_passed_on(self, id: str) -> bool:
        return id in self._passed_on

    def is_awaited(self, id: str) -> bool:
        """Return True if the client was asked, and a call still waits for its answer."""
        return id in self._open and id not in self._given_up

    def give_up(self, id: str) -> None:
        """Record that no call waits for the client's answer, although the client can still give it.

        The next call that asks this question waits for the answer again.
        """
        self._given_up.add(id)

    def accept(self, id: str) -> None:
        """Record that the client shows this link."""
        self._accepted.add(id)

    def has_accepted(self, id: str) -> bool:
        return id in self._accepted

    def _received(self, id: str, late: Late, asking: Asking) -> None:
        if id not in self._passed_on or asking.cancelled() or asking.exception() is not None:
            return  # the question has ended or a newer call waits for the answer
        work = asyncio.create_task(_logged(late(asking.result())))
        self._works.add(work)
        work.add_done_callback(self._works.discard)

    def end(self, id: str) -> None:
        """Drop a question that has ended and whose end the client knows."""
        self._to_notify.discard(id)
        self._accepted.discard(id)
        self._given_up.discard(id)
        if (passed_on := self._passed_on.pop(id, None)) is not None:
            passed_on.end.cancel()
            passed_on.asking.cancel()

    async def ended(self, elicitations: Elicitations) -> list[str]:
        """Return and drop questions that ended between calls. The caller notifies the client."""
        ended: list[str] = []
        for id in tuple(self._to_notify):
            found = await elicitations.get(id)
            if found is None or found.status.is_final:
                self.end(id)
                ended.append(id)
        return ended


class ConnectionAsks:
    """The questions on each connection of one server, while the library holds the connection."""

    def __init__(self) -> None:
        self._asks: WeakKeyDictionary[object, ClientAsks] = WeakKeyDictionary()

    def of(self, context: ServerRequestContext[Any, Any]) -> ClientAsks:
        # The library makes a session for each request and has no public name for the connection.
        connection = getattr(context.session, "_connection", context.session)
        asks = self._asks.get(connection)
        if asks is None:
            asks = self._asks[connection] = ClientAsks()
        return asks


def _action_of(asking: Asking) -> str | None:
    if asking.cancelled() or asking.exception() is not None:
        return None
    answer = asking.result()
    return None if answer is None else answer.action


async def _logged(work: Awaitable[None]) -> None:
    try:
        await work
    except Exception:  # noqa: BLE001 - a task's edge
        _log_of_asks.exception("client.late_answer_lost")


ACTIONS = ("accept", "decline", "cancel")
_log = logging.getLogger(__name__)


class _Answered(BaseModel):
    """A client's answer. An action other than accept, decline or cancel counts as cancel."""

    action: str = "cancel"
    content: object = None

    @field_validator("action", mode="before")
    @classmethod
    def _one_of_the_three(cls, action: object) -> object:
        return action if action in ACTIONS else "cancel"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class OnStream:
    """The base of stream presenters. Its subclasses implement `wait` of choice.Shows.

    `mode` is the way in which the presenter sends a question to the client.
    """

    mode: ClassVar[Mode]
    context: ServerRequestContext[Any, Any]
    client: AskedClient
    in_result: LinkInResult
    asks: ClientAsks
    held_until: Deadline | None  # None for a client that waits as long as needed
    task_id: str | None

    def limit(self, kind: str, *, now: datetime, timeout: timedelta) -> datetime:
        return self._at_most(now + timeout, now=now)

    async def _send(
        self, call: Call, params: ElicitRequestFormParams | ElicitRequestURLParams
    ) -> ClientAnswer:
        if self.task_id is not None:
            about_task = cast("RequestParamsMeta", related_task(self.task_id))
            params = params.model_copy(update={"meta": about_task})
        request: Any = _AnsweredByAnything(ElicitRequest(params=params))
        about = ServerMessageMetadata(related_request_id=self.context.request_id)
        ticks = call.elicitations.ticks
        sent_at = ticks()
        given = await self.context.session.send_request(request, _Answered, metadata=about)
        return ClientAnswer(action=given.action, content=given.content, after=ticks() - sent_at)

    async def _uses_link(self, asked: Elicitation) -> bool:
        """Return True if the person gets the link and the client is not asked again.

        Return False for a task, because a request for the task's result waits in any case, and the
        task's status message has the link.
        """
        if self.task_id is not None:
            return False
        if not self.client.has_page(asked.kind) or self.asks.has_accepted(asked.id):
            return False
        if self.asks.is_passed_on(asked.id) and await self.client.has_answered(asked, self.mode):
            return False
        # The client was asked on this connection, and another call still waits for the answer.
        if self.asks.is_open(asked.id):
            return True
        return await self.client.needs_link(asked, self.mode)

    async def _by_link(
        self, call: Call, shown: PresentedQuestion, waiter: Waiter
    ) -> Elicitation | None:
        """Return the link in the call's result. Wait first if the person may be answering already.

        If the client was asked so lately that nobody can have read the question, the model made
        several calls at the same time. This call then waits for the client's answer first.
        """
        asked = shown.elicitation
        is_asked_now = self.asks.is_awaited(asked.id) and self.client.was_just_asked(asked)
        shown = replace(shown, is_again=is_asked_now or self.client.has_link(asked.id))
        try:
            return await self.in_result.wait(call, shown, waiter)
        except asyncio.CancelledError:
            if self._is_given_up:
                self.asks.give_up(asked.id)
            raise

    async def _answer_deadline(self, call: Call, asked: Elicitation) -> Deadline | None:
        """Return the time until which the client has to answer.

        After that, the result has the link.

        Return None if there is no deadline: the client was seen to let people answer, no page can
        answer this kind, or the request belongs to a task, where no model would read the link.
        """
        if self.task_id is not None:
            return None
        if not self.client.has_page(asked.kind) or await self.client.has_answered(asked, self.mode):
            return None
        return Deadline(self.client.silence, ticks=call.elicitations.ticks)

    @asynccontextmanager
    async def _asking(
        self,
        call: Call,
        asked: Elicitation,
        request: Callable[[], Coroutine[Any, Any, ClientAnswer]],
        waiter: Waiter,
    ) -> "AsyncGenerator[Asking]":
        """Yield the request to the client as a task. Its result is the answer, or None on an error.

        The answer wakes the waiter. The request stays open if the client gives the call up or if
        another question ends the call, because the person may still answer.
        """

        def wake(_: object) -> None:
            waiter.wake(None)

        id = asked.id
        asking = self.asks.begin(id, lambda: _answer_to(request))
        self.client.sent(asked, now=call.clock())
        asking.add_done_callback(wake)
        try:
            yield asking
        except asyncio.CancelledError:
            if self._is_given_up or call.is_interrupted:
                self._leave(call, asked, asking)
            if self._is_given_up and not asking.done():
                await self.client.drew_nothing(asked, self.mode, Reaction.GAVE_UP)
            raise
        finally:
            asking.remove_done_callback(wake)
            if not self.asks.is_passed_on(id):
                asking.cancel()
                with anyio.CancelScope(shield=True):
                    await asyncio.wait({asking})

    @property
    def _is_given_up(self) -> bool:
        """True if the client has cancelled the call. False if this process is shutting down."""
        outbound = getattr(self.context.session, "_request_outbound", None)
        cancelled = getattr(outbound, "cancel_requested", None)
        return cancelled is not None and bool(cancelled.is_set())

    def _leave(
        self, call: Call, asked: Elicitation, asking: Asking, *, is_to_newer: bool = False
    ) -> None:
        """Leave the client's request open when the call ends, so that a late answer counts."""
        late, life = partial(self._receive_late, call, asked), asked.expires_at - call.clock()
        self.asks.leave(asked.id, asking, life=life, late=late, is_to_newer=is_to_newer)

    def _leave_to_newer(self, call: Call, current: Elicitation, asking: Asking) -> None:
        """Leave the request open if a newer identical call or another question ended this call."""
        is_the_bodys_end = call.has_ended and not call.is_interrupted
        if not (current.status.is_final or is_the_bodys_end):
            self._leave(call, current, asking, is_to_newer=not call.is_interrupted)

    async def _receive_late(
        self, call: Call, asked: Elicitation, answer: ClientAnswer | None
    ) -> None:
        if answer is None or self._is_automatic(asked, answer):
            return
        is_valid = await self._settle_late(call, asked, answer)
        await self._note(asked, answer, is_valid=is_valid)

    async def _settle_late(self, call: Call, asked: Elicitation, answer: ClientAnswer) -> bool:
        """Act on an answer that came after its call had ended. Return False if it is invalid."""
        raise NotImplementedError

    async def _note(self, asked: Elicitation, answer: ClientAnswer, *, is_valid: bool) -> None:
        """Record how the client answered, after the answer was processed."""
        await self.client.answered(
            asked, self.mode, after=answer.after, content=answer.content, is_valid=is_valid
        )

    def _is_automatic(self, asked: Elicitation, answer: ClientAnswer) -> bool:
        return self.client.is_automatic(
            asked, self.mode, answer.action, answer.content, after=answer.after
        )

    async def _must_be_somebodys(
        self, call: Call, shown: PresentedQuestion, answer: ClientAnswer
    ) -> None:
        """End the call with the link if no person can have given this answer."""
        asked = shown.elicitation
        if not self._is_automatic(asked, answer):
            return
        await self.client.drew_nothing(asked, self.mode, Reaction.AT_ONCE)
        part = Prompt(shown=shown, is_unanswered=True, is_automatic=True)
        await call.links.prove()
        parts = await shown.group.collect_prompts(part, ending=AUTOMATIC, is_urgent=True)
        call.interrupt(self._still(call, parts))

    def _at_most(self, until: datetime, *, now: datetime) -> datetime:
        return until if self.held_until is None else min(until, self.held_until.at(now))

    def _stops(self, shown: PresentedQuestion, asking: Asking | None) -> bool:
        """Return True if the wait has to stop.

        The wait stops if the client has answered, or if any answer in the group is automatic.
        """
        return (asking is not None and asking.done()) or shown.group.has_automatic_answer

    @property
    def _is_held_enough(self) -> bool:
        return self.held_until is not None and self.held_until.has_ended

    async def _still_waiting(
        self, call: Call, shown: PresentedQuestion, asking: Asking
    ) -> NoReturn:
        """End the call before its client gives up, and leave the client's request open."""
        self._leave(call, shown.elicitation, asking)
        part = Prompt(shown=shown, is_unanswered=True)
        await call.links.prove()
        parts = await shown.group.collect_prompts(part, ending=RESULT, is_urgent=False)
        call.interrupt(self._still(call, parts))

    def _still(self, call: Call, parts: Sequence[Prompt]) -> Result:
        return pending_result(call, parts, self.client)

    async def _unless_draining(
        self, call: Call, shown: PresentedQuestion, *, is_out: bool = False
    ) -> None:
        """End the call with the link if this process is shutting down."""
        if call.is_draining:
            await self._link_instead(call, shown, is_out=is_out)

    async def _link_instead(
        self, call: Call, shown: PresentedQuestion, *, is_out: bool = False
    ) -> NoReturn:
        """End the call with the link, because the client or this process cannot ask the person.

        An identical call continues. `is_unanswered`: the client was asked and has not answered.
        """
        part = Prompt(shown=shown, is_unanswered=is_out)
        await call.links.prove()
        parts = await shown.group.collect_prompts(part, ending=RESULT, is_urgent=False)
        call.interrupt(pending_result(call, parts, self.client))


class _AnsweredByAnything:
    """A request whose result the library does not validate, because its method is unknown."""

    method = ""

    def __init__(self, request: ElicitRequest) -> None:
        self.model_dump = request.model_dump


async def _answer_to(request: Callable[[], Awaitable[ClientAnswer]]) -> ClientAnswer | None:
    try:  # create the coroutine here: a cancelled task must not leave it unawaited
        return await request()
    except MCPError as error:
        _log.warning("client.elicitation_failed", extra={"code": error.error.code})
        return None
