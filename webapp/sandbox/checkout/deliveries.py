"""The delivery of the sandbox's webhooks, for all providers.

Real webhooks arrive twice, late, out of order or never, and `DeliveryHabits` simulates that. An
event is sent in the background task of the response that caused it. So the server that runs the
response also waits for the event, or cancels it on shutdown.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, TypeAlias

import httpx
import msgspec
from litestar import Response
from litestar.background_tasks import BackgroundTask
from msgspec.structs import replace

from webapp.http.client import UNPACKED

RETRY_AFTER_SECONDS = (0.5, 2.0, 5.0)
_DUPLICATES_AT_MOST = 20
Deliver: TypeAlias = Callable[[httpx.Request], Awaitable[httpx.Response]]
Pause: TypeAlias = Callable[[float], Awaitable[None]]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxEvent:
    """A webhook event. `url` is its destination."""

    id: str
    type: str
    url: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """The sandbox's dependencies: the clock, the delivery of events, the pause before a retry."""

    clock: Callable[[], datetime]
    deliver: Deliver
    pause: Pause


class DeliveryHabits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The way in which events arrive. By default each event arrives once, without delay.

    `duplicates` are extra copies of each event. `reorder` holds an event until the next one
    has been sent. `hold` holds all events until they are released, and `drop` discards all events.
    """

    duplicates: Annotated[int, msgspec.Meta(ge=0, le=_DUPLICATES_AT_MOST)] = 0
    reorder: bool = False
    hold: bool = False
    drop: bool = False


class Deliveries:
    """A sender of events. `headers_of` makes the headers of an event for each attempt."""

    def __init__(
        self, outside: Outside, *, headers_of: Callable[[SandboxEvent], Sequence[tuple[str, str]]]
    ) -> None:
        self.habits = DeliveryHabits()
        self._outside = outside
        self._headers_of = headers_of
        self.latest: SandboxEvent | None = None  # the latest event, delivered or not
        self._arrived: list[SandboxEvent] = []
        self._held: list[SandboxEvent] = []

    def add(self, event: SandboxEvent) -> None:
        """Add an event, which leaves after the response to the request that caused it."""
        self._arrived.append(event)
        self.latest = event

    def behind(self, response: Response[Any]) -> Response[Any]:
        """Attach the new events to the response, as its background task."""
        response.background = BackgroundTask(self.send, self._new())
        return response

    async def send_new(self) -> None:
        """Send the new events now, for changes that no request caused."""
        await self.send(self._new())

    def _new(self) -> list[SandboxEvent]:
        changes, self._arrived = self._arrived, []
        return changes

    @property
    def held(self) -> int:
        return len(self._held)

    def release(self) -> list[SandboxEvent]:
        """Return the held events in the order to send them, and stop holding events."""
        events, self._held = self._held, []
        self.habits = replace(self.habits, hold=False)
        return events[::-1] if self.habits.reorder else events

    async def send(self, events: Sequence[SandboxEvent]) -> None:
        """Send, hold or drop the events, as the habits say."""
        if self.habits.drop:
            for one in events:
                _log.info("webhook.dropped", extra={"event": one.id})
        elif self.habits.hold:
            self._held += events
        elif self.habits.reorder:
            self._held += events
            if len(self._held) > 1:
                await self.post(self.release())
        else:
            await self.post(events)

    async def post(self, events: Sequence[SandboxEvent]) -> None:
        """Send the events one after the other, without holding or dropping any."""
        for one in events:
            for _ in range(1 + self.habits.duplicates):
                await self._send(one)

    async def _send(self, one: SandboxEvent) -> None:
        try:
            await self._try(one)
        except Exception:  # noqa: BLE001 - a task's edge: the response was already sent
            _log.exception("webhook.failed", extra={"event": one.id})

    async def _try(self, one: SandboxEvent) -> None:
        for seconds in (*RETRY_AFTER_SECONDS, None):
            try:
                reply = await self._outside.deliver(self.request_of(one))
            except httpx.HTTPError as error:
                answer = type(error).__name__
            else:
                answer = str(reply.status_code)
                if reply.is_success:
                    _log.info("webhook.sent", extra={"event": one.id, "event_type": one.type})
                    return
            _log.warning("webhook.refused", extra={"event": one.id, "answer": answer})
            if seconds is not None:
                await self._outside.pause(seconds)

    def request_of(self, one: SandboxEvent) -> httpx.Request:
        """Return the request that delivers the event, signed now."""
        general = [("user-agent", "elicit-sandbox"), *UNPACKED.items()]
        headers = [*general, *self._headers_of(one)]
        return httpx.Request("POST", one.url, content=one.body, headers=headers)
