"""How the sandbox's webhooks leave, whichever provider they are of, and how badly they may arrive.

Real deliveries come twice, late, in another order or never. Which of these is to happen is said by
`DeliveryHabits`. An event leaves in the background of the answer that caused it, so the server that
runs that answer also waits for it, or cancels it when it stops.
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
    """`url` is where it goes; `body` what it says."""

    id: str
    type: str
    url: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What the sandbox has not of itself: the time, who carries its events, and how it waits."""

    clock: Callable[[], datetime]
    deliver: Deliver
    pause: Pause


class DeliveryHabits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How events arrive; by default each once, at once.

    `duplicates` are further copies of each. `reorder` holds an event until the next and sends that
    one first. `hold` keeps all until they are released; `drop` loses them.
    """

    duplicates: Annotated[int, msgspec.Meta(ge=0, le=_DUPLICATES_AT_MOST)] = 0
    reorder: bool = False
    hold: bool = False
    drop: bool = False


class Deliveries:
    """Sends events; `headers_of` says with which headers, anew for each try."""

    def __init__(
        self, outside: Outside, *, headers_of: Callable[[SandboxEvent], Sequence[tuple[str, str]]]
    ) -> None:
        self.habits = DeliveryHabits()
        self._outside = outside
        self._headers_of = headers_of
        self.latest: SandboxEvent | None = None  # that has happened, sent or not
        self._news: list[SandboxEvent] = []
        self._held: list[SandboxEvent] = []

    def add(self, event: SandboxEvent) -> None:
        """It happened, and leaves with the answer to whoever caused it."""
        self._news.append(event)
        self.latest = event

    def behind(self, response: Response[Any]) -> Response[Any]:
        """The answer, with the events that it caused leaving behind it."""
        changes, self._news = self._news, []
        response.background = BackgroundTask(self.send, changes)
        return response

    @property
    def held(self) -> int:
        return len(self._held)

    def release(self) -> list[SandboxEvent]:
        """What was held, in the order in which to send it; no more is held."""
        events, self._held = self._held, []
        self.habits = replace(self.habits, hold=False)
        return events[::-1] if self.habits.reorder else events

    async def send(self, events: Sequence[SandboxEvent]) -> None:
        """Send, hold or lose them, as the habits are."""
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
        """Send them one after the other, whatever the habits about holding are."""
        for one in events:
            for _ in range(1 + self.habits.duplicates):
                await self._send(one)

    async def _send(self, one: SandboxEvent) -> None:
        try:
            await self._try(one)
        except Exception:  # noqa: BLE001 - a task's edge: the answer is out already
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
        """How it is sent, signed now."""
        general = [("user-agent", "elicit-sandbox"), *UNPACKED.items()]
        headers = [*general, *self._headers_of(one)]
        return httpx.Request("POST", one.url, content=one.body, headers=headers)
