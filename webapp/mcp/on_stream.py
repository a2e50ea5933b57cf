"""Asking on the call's own stream, which stays open meanwhile (2025-11-25).

What the presenters have in common that send the client a request of their own and wait for its
answer and for the store together. What could go wrong: an answer that is none, of which the library
would say nothing to anybody. It is therefore read here as it came.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Coroutine
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, NoReturn, TypeVar

import anyio
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitRequestURLParams
from pydantic import BaseModel, field_validator

from webapp.call import Call
from webapp.group import RESULT, Part
from webapp.mcp.results import Result, busy_text, form_result, link_result, text_result
from webapp.presenter import Shown
from webapp.waiters import Waiter

T = TypeVar("T")
ACTIONS = ("accept", "decline", "cancel")
_log = logging.getLogger(__name__)


class Answer(BaseModel):
    """What a client answered: an action that is none of the three is a cancel."""

    action: str = "cancel"
    content: object = None

    @field_validator("action", mode="before")
    @classmethod
    def _one_of_the_three(cls, action: object) -> object:
        return action if action in ACTIONS else "cancel"


class OnStream:
    """Implements all of webapp.presenter.Presenter but `wait`."""

    def __init__(self, context: ServerRequestContext[Any, Any], *, modes: frozenset[str]) -> None:
        self._context = context
        self._modes = modes

    def can(self, mode: str) -> bool:
        return mode in self._modes

    def asks_in_client(self, kind: str) -> bool:
        return False

    def limit(self, kind: str, *, now: datetime, timeout: timedelta) -> datetime:
        return now + timeout

    def busy(self) -> Result:
        version = self._context.protocol_version
        return text_result(busy_text(), protocol_version=version, is_error=True)

    def carry(self, call: Call, state: object) -> object:
        return state

    async def _send(self, params: ElicitRequestFormParams | ElicitRequestURLParams) -> Answer:
        request: Any = _AnsweredByAnything(ElicitRequest(params=params))
        about = ServerMessageMetadata(related_request_id=self._context.request_id)
        return await self._context.session.send_request(request, Answer, metadata=about)

    @asynccontextmanager
    async def _asking(
        self, request: Coroutine[Any, Any, T], waiter: Waiter
    ) -> "AsyncGenerator[asyncio.Task[T | None]]":
        """The request on its way; its answer wakes the waiter, and None is an error's."""
        asking = asyncio.create_task(_answer_to(request))
        asking.add_done_callback(lambda _: waiter.wake(None))
        try:
            yield asking
        finally:
            asking.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait({asking})

    async def _link_instead(self, call: Call, shown: Shown, *, is_out: bool = False) -> NoReturn:
        """Give the link to a client that cannot be asked after all, or no longer by this process.

        The same call goes on. `is_out`: the client was asked, and has not answered.
        """
        part = Part(shown=shown, is_out=is_out)
        parts = await shown.group.stand(part, way=RESULT, is_urgent=False)
        version = self._context.protocol_version
        if call.kinds.policies.is_for_client_only(parts[0].shown.elicitation.kind):
            call.interrupt(form_result(parts[0].shown, protocol_version=version, is_error=True))
        call.interrupt(link_result(parts, protocol_version=version, is_error=True))


class _AnsweredByAnything:
    """A request whose result the library passes on as it is: it checks those of known methods."""

    method = ""

    def __init__(self, request: ElicitRequest) -> None:
        self.model_dump = request.model_dump


async def _answer_to(request: Awaitable[T]) -> T | None:
    try:
        return await request
    except MCPError as error:
        _log.warning("client.elicitation_failed", extra={"code": error.error.code})
        return None
