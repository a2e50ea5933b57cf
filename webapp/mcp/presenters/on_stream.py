"""Asking on the call's own stream, which stays open meanwhile (2025-11-25).

What the presenters have in common that send the client a request of their own and wait for its
answer and for the store together. What could go wrong: an answer that is none, of which the library
would say nothing to anybody. It is therefore read here as it came.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, NoReturn, TypeVar

import anyio
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitRequestURLParams
from pydantic import BaseModel, field_validator

from flows.elicitation.states import Json
from webapp.calls.batch import RESULT
from webapp.calls.presenter import Leg, PresentedQuestion, Prompt
from webapp.deadline import Deadline
from webapp.elicitations.waiters import Waiter
from webapp.mcp.asks import ClientAsks
from webapp.mcp.results import Result, busy_text, form_result, link_result, text_result

T = TypeVar("T")
ACTIONS = ("accept", "decline", "cancel")
_log = logging.getLogger(__name__)


class ClientAnswer(BaseModel):
    """What a client answered: an action that is none of the three is a cancel."""

    action: str = "cancel"
    content: object = None

    @field_validator("action", mode="before")
    @classmethod
    def _one_of_the_three(cls, action: object) -> object:
        return action if action in ACTIONS else "cancel"


class OnStream:
    """Implements all of webapp.calls.presenter.Presenter but `wait`."""

    def __init__(
        self,
        context: ServerRequestContext[Any, Any],
        *,
        modes: frozenset[str],
        asks: ClientAsks,
        held_until: Deadline | None,
        is_error: bool,
    ) -> None:
        """`held_until` is None for a client that waits as long as it takes."""
        self._context = context
        self._modes = modes
        self._asks = asks
        self._held_until = held_until
        self._is_error = is_error

    def can(self, mode: str) -> bool:
        return mode in self._modes

    def asks_in_client(self, kind: str, arguments: Json) -> bool:
        return False

    def limit(self, kind: str, *, now: datetime, timeout: timedelta) -> datetime:
        return self._at_most(now + timeout, now=now)

    def busy(self) -> Result:
        version = self._context.protocol_version
        return text_result(busy_text(), protocol_version=version, is_error=True)

    def carry(self, call: Leg, state: object) -> object:
        return state

    async def _send(self, params: ElicitRequestFormParams | ElicitRequestURLParams) -> ClientAnswer:
        request: Any = _AnsweredByAnything(ElicitRequest(params=params))
        about = ServerMessageMetadata(related_request_id=self._context.request_id)
        return await self._context.session.send_request(request, ClientAnswer, metadata=about)

    @asynccontextmanager
    async def _asking(
        self, id: str, request: Callable[[], Coroutine[Any, Any, T]], waiter: Waiter
    ) -> "AsyncGenerator[asyncio.Task[T | None]]":
        """The request on its way; its answer wakes the waiter, and None is an error's."""

        def wake(_: object) -> None:
            waiter.wake(None)

        asking = self._asks.begin(id, lambda: _answer_to(request))
        asking.add_done_callback(wake)
        try:
            yield asking
        finally:
            asking.remove_done_callback(wake)
            if not self._asks.has_left(id):
                asking.cancel()
                with anyio.CancelScope(shield=True):
                    await asyncio.wait({asking})

    def _at_most(self, until: datetime, *, now: datetime) -> datetime:
        return until if self._held_until is None else min(until, self._held_until.at(now))

    async def _still_waiting(
        self, call: Leg, shown: PresentedQuestion, asking: "asyncio.Task[Any]"
    ) -> NoReturn:
        """End the call before its client gives up on it; what it was asked stays open for it."""
        asked = shown.elicitation
        self._asks.leave(asked.id, asking, life=asked.expires_at - call.now)
        part = Prompt(shown=shown, is_out=True)
        await call.links.prove()
        parts = await shown.group.park(part, way=RESULT, is_urgent=False)
        call.interrupt(self._still(call, parts))

    def _still(self, call: Leg, parts: Sequence[Prompt]) -> Result:
        version, is_error = self._context.protocol_version, self._is_error
        is_for_client_only = call.kinds.policies.is_for_client_only
        with_page = [p for p in parts if not is_for_client_only(p.shown.elicitation.kind)]
        if with_page:
            return link_result(with_page, protocol_version=version, is_error=is_error)
        return form_result(parts[0].shown, protocol_version=version, is_error=is_error)

    async def _unless_draining(
        self, call: Leg, shown: PresentedQuestion, *, is_out: bool = False
    ) -> None:
        """End the call with the link where this process ends, and cannot wait for an answer."""
        if call.is_draining:
            await self._link_instead(call, shown, is_out=is_out)

    async def _link_instead(
        self, call: Leg, shown: PresentedQuestion, *, is_out: bool = False
    ) -> NoReturn:
        """Give the link to a client that cannot be asked after all, or no longer by this process.

        The same call goes on. `is_out`: the client was asked, and has not answered.
        """
        part = Prompt(shown=shown, is_out=is_out)
        await call.links.prove()
        parts = await shown.group.park(part, way=RESULT, is_urgent=False)
        version = self._context.protocol_version
        if call.kinds.policies.is_for_client_only(parts[0].shown.elicitation.kind):
            call.interrupt(form_result(parts[0].shown, protocol_version=version, is_error=True))
        call.interrupt(link_result(parts, protocol_version=version, is_error=True))


class _AnsweredByAnything:
    """A request whose result the library passes on as it is: it checks those of known methods."""

    method = ""

    def __init__(self, request: ElicitRequest) -> None:
        self.model_dump = request.model_dump


async def _answer_to(request: Callable[[], Awaitable[T]]) -> T | None:
    try:  # made here: a call that ends before this begins leaves nothing behind
        return await request()
    except MCPError as error:
        _log.warning("client.elicitation_failed", extra={"code": error.error.code})
        return None
