"""The delivery of webhooks between provider and server.

Webhooks without an acknowledgement are stored and sent again. On our side, a wrapper can hold
webhooks back, so that they are in flight when the process behind it dies.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx

from webapp.http.exchange import ASGIApp, Message, Receive, Scope, Send

KIND_HEADER = "x-kind"
TIMES_RESENT = 2


class Post:
    """Receives webhooks from the sandbox and delivers each in a task of `group`.

    A real provider retries for days after a response other than 2xx. This class retries when a test
    calls `resend_webhooks`.
    """

    def __init__(self, client: httpx.AsyncClient, group: asyncio.TaskGroup) -> None:
        self._client = client
        self._group = group
        self._requests: dict[str, httpx.Request] = {}
        self._acknowledged: set[str] = set()
        self._in_flight: set[asyncio.Task[None]] = set()

    async def take(self, request: httpx.Request) -> httpx.Response:
        """Accept a webhook, which may be a copy, from the sandbox, and deliver it in a task."""
        event = json.loads(request.content)
        request.headers[KIND_HEADER] = event["type"]
        self._requests[event["id"]] = request
        self._send(event["id"], request)
        return httpx.Response(200)

    def resend_webhooks(self) -> None:
        """Send all webhooks again, the latest first and each several times."""
        for id, request in reversed(self._requests.items()):
            for _ in range(TIMES_RESENT):
                self._send(id, request)

    async def delivered(self) -> list[dict[str, Any]]:
        """Wait until no webhook is in flight.

        Return every event, and whether it was acknowledged.
        """
        while self._in_flight:
            await asyncio.wait(self._in_flight)
        return [
            {"event": json.loads(request.content), "is_acknowledged": id in self._acknowledged}
            for id, request in self._requests.items()
        ]

    def _send(self, id: str, request: httpx.Request) -> None:
        task = self._group.create_task(self._deliver(id, request))
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)

    async def _deliver(self, id: str, request: httpx.Request) -> None:
        try:
            reply = await self._client.send(request)
        except httpx.TransportError:
            return  # no server runs, or the server died before it answered
        if reply.is_success:
            self._acknowledged.add(id)


class HeldWebhooks:
    """A wrapper of the application that holds webhooks back and sends no response to them.

    The wrapper waits until `flying` webhooks have arrived, and reports that with `say`. It then
    passes the first webhook of kind `reads` to the application, and drops the response. No other
    webhook reaches the application.
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
    """Drop the response."""
