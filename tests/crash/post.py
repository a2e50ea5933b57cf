"""The post between provider and server: what was not acknowledged is kept, and brought again.

And the door on our side, at which webhooks can be held up, so that they are on their way still
when the process behind it dies.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx

from webapp.http.connection import ASGIApp, Message, Receive, Scope, Send

KIND_HEADER = "x-kind"
TIMES_AGAIN = 2


class Post:
    """Takes webhooks from the sandbox and carries them, each in a task of `group`.

    A provider goes on for days where it gets no 2xx; this one when it is told to.
    """

    def __init__(self, client: httpx.AsyncClient, group: asyncio.TaskGroup) -> None:
        self._client = client
        self._group = group
        self._letters: dict[str, httpx.Request] = {}
        self._acknowledged: set[str] = set()
        self._carrying: set[asyncio.Task[None]] = set()

    async def take(self, request: httpx.Request) -> httpx.Response:
        """For the sandbox it is sent with this; a copy is another letter with the same event."""
        event = json.loads(request.content)
        request.headers[KIND_HEADER] = event["type"]
        self._letters[event["id"]] = request
        self._send(event["id"], request)
        return httpx.Response(200)

    def bring_again(self) -> None:
        """All that there ever was, the latest first and each more than once."""
        for id, request in reversed(self._letters.items()):
            for _ in range(TIMES_AGAIN):
                self._send(id, request)

    async def carried(self) -> list[dict[str, Any]]:
        """Every event, and whether it was acknowledged, once nothing is on its way."""
        while self._carrying:
            await asyncio.wait(self._carrying)
        return [
            {"event": json.loads(request.content), "is_acknowledged": id in self._acknowledged}
            for id, request in self._letters.items()
        ]

    def _send(self, id: str, request: httpx.Request) -> None:
        task = self._group.create_task(self._carry(id, request))
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)

    async def _carry(self, id: str, request: httpx.Request) -> None:
        try:
            reply = await self._client.send(request)
        except httpx.TransportError:
            return  # nobody is there, or whoever was has died over it
        if reply.is_success:
            self._acknowledged.add(id)


class Door:
    """The application, behind a door at which webhooks are held up and none is answered.

    Once `flying` of them are there, one of the kind `reads` is let in; the server says so then.
    """

    def __init__(
        self, app: ASGIApp, *, reads: str, flying: int, say: Callable[[str], None]
    ) -> None:
        self._app = app
        self._reads = reads
        self._flying = flying
        self._say = say
        self._came = 0
        self._is_let_in = False
        self._all_there = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/webhooks/"):
            await self._app(scope, receive, send)
            return
        self._came += 1
        kind = dict(scope["headers"]).get(KIND_HEADER.encode(), b"").decode()
        is_chosen = kind == self._reads and not self._is_let_in
        self._is_let_in |= is_chosen
        if self._came == self._flying:
            self._say("webhooks in flight")
            self._all_there.set()
        if is_chosen:
            await self._all_there.wait()
            await self._app(scope, receive, _unsent)
            self._say("webhook unanswered")
        await asyncio.Event().wait()


async def _unsent(_: Message) -> None:
    """The answer is not given."""
