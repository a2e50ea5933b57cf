"""How the sandbox's webhooks leave, whichever provider they are of, and how badly they may arrive.

Real deliveries come twice, late, in another order or never. Which of these is to happen is said by
`DeliveryHabits`. An event leaves in the background of the answer that caused it, so the server that
runs that answer also waits for it, or cancels it when it stops.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, TypeAlias

import httpx
import msgspec

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
class DeliveryHabits:
    """How events arrive; by default each once, at once.

    `duplicates` are further copies of each. `reorder` holds an event until the next and sends that
    one first. `hold` keeps all until they are released; `drop` loses them.
    """

    duplicates: int = 0
    reorder: bool = False
    hold: bool = False
    drop: bool = False


class Wish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a test or a demo may ask of the deliveries; what is not named stays as it is."""

    duplicates: Annotated[int, msgspec.Meta(ge=0, le=_DUPLICATES_AT_MOST)] | None = None
    reorder: bool | None = None
    hold: bool | None = None
    drop: bool | None = None
    release: bool = False


class Deliveries:
    """Sends events; `headers_of` says with which headers, anew for each try."""

    def __init__(
        self,
        *,
        headers_of: Callable[[SandboxEvent], Sequence[tuple[str, str]]],
        deliver: Deliver,
        pause: Pause,
    ) -> None:
        self.habits = DeliveryHabits()
        self._headers_of = headers_of
        self._deliver = deliver
        self._pause = pause
        self._news: list[SandboxEvent] = []
        self._held: list[SandboxEvent] = []

    def add(self, event: SandboxEvent) -> None:
        """It happened, and leaves with the answer to whoever caused it."""
        self._news.append(event)

    def changes(self) -> list[SandboxEvent]:
        """The events since this was asked last."""
        changes, self._news = self._news, []
        return changes

    @property
    def held(self) -> int:
        return len(self._held)

    def change(self, wish: Wish) -> list[SandboxEvent]:
        """Take on other habits; what was held and is to leave now comes back."""
        named = {
            name: value
            for name in ("duplicates", "reorder", "hold", "drop")
            if (value := getattr(wish, name)) is not None
        }
        self.habits = replace(self.habits, **named)
        return self._release() if wish.release else []

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
                await self.post(self._release())
        else:
            await self.post(events)

    async def post(self, events: Sequence[SandboxEvent]) -> None:
        """Send them one after the other, whatever the habits about holding are."""
        for one in events:
            for _ in range(1 + self.habits.duplicates):
                await self._send(one)

    def _release(self) -> list[SandboxEvent]:
        """What was held, in the order in which to send it; no more is held."""
        events, self._held = self._held, []
        self.habits = replace(self.habits, hold=False)
        return events[::-1] if self.habits.reorder else events

    async def _send(self, one: SandboxEvent) -> None:
        try:
            await self._try(one)
        except Exception:  # noqa: BLE001 - a task's edge: the answer is out already
            _log.exception("webhook.failed", extra={"event": one.id})

    async def _try(self, one: SandboxEvent) -> None:
        for seconds in (*RETRY_AFTER_SECONDS, None):
            try:
                reply = await self._deliver(self._request(one))
            except httpx.HTTPError as error:
                answer = type(error).__name__
            else:
                answer = str(reply.status_code)
                if reply.is_success:
                    _log.info("webhook.sent", extra={"event": one.id, "event_type": one.type})
                    return
            _log.warning("webhook.refused", extra={"event": one.id, "answer": answer})
            if seconds is not None:
                await self._pause(seconds)

    def _request(self, one: SandboxEvent) -> httpx.Request:
        general = [("user-agent", "elicit-sandbox"), *UNPACKED.items()]
        headers = [*general, *self._headers_of(one)]
        return httpx.Request("POST", one.url, content=one.body, headers=headers)
