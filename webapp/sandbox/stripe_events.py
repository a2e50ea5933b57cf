"""What the sandbox's Stripe tells the server: signed events, and how badly they may arrive.

Real deliveries come twice, late, in another order or never. Which of these is to happen is said by
`Habits`. An event leaves in the background of the answer that caused it, so the server that runs
that answer also waits for it, or cancels it when it stops.
"""

import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeAlias

import httpx
import msgspec

from flows.elicitation import Json
from flows.signatures import STRIPE, sign

API_VERSION = "2026-10-28.endive"
RETRY_AFTER_SECONDS = (0.5, 2.0, 5.0)
Deliver: TypeAlias = Callable[[httpx.Request], Awaitable[httpx.Response]]
Pause: TypeAlias = Callable[[float], Awaitable[None]]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    id: str
    type: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How events arrive; by default each once, at once.

    `duplicates` are further copies of each. `reorder` holds an event until the next and sends that
    one first. `hold` keeps all until they are released; `drop` loses them.
    """

    duplicates: int = 0
    reorder: bool = False
    hold: bool = False
    drop: bool = False


def event(event_type: str, *, about: Json, now: datetime) -> Event:
    """An event about an object as it is at this moment."""
    id = f"evt_{secrets.token_hex(12)}"
    body = {
        "id": id,
        "object": "event",
        "api_version": API_VERSION,
        "created": int(now.timestamp()),
        "data": {"object": about},
        "livemode": False,
        "pending_webhooks": 1,
        "request": {"id": None, "idempotency_key": None},
        "type": event_type,
    }
    return Event(id=id, type=event_type, body=msgspec.json.encode(body))


class Deliveries:
    """Sends events to the one endpoint."""

    def __init__(
        self,
        *,
        url: str,
        secret: str,
        clock: Callable[[], datetime],
        deliver: Deliver,
        pause: Pause,
    ) -> None:
        self.habits = Habits()
        self._url = url
        self._secret = secret
        self._clock = clock
        self._deliver = deliver
        self._pause = pause
        self._held: list[Event] = []

    @property
    def held(self) -> int:
        return len(self._held)

    async def send(self, events: Sequence[Event]) -> None:
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

    def release(self) -> list[Event]:
        """What was held, in the order in which to send it; no more is held."""
        events, self._held = self._held, []
        self.habits = replace(self.habits, hold=False)
        return events[::-1] if self.habits.reorder else events

    async def post(self, events: Sequence[Event]) -> None:
        """Send them one after the other, whatever the habits about holding are."""
        for one in events:
            for _ in range(1 + self.habits.duplicates):
                await self._send(one)

    async def _send(self, one: Event) -> None:
        try:
            await self._try(one)
        except Exception:  # noqa: BLE001 - a task's edge: the answer is out already
            _log.exception("webhook.failed", extra={"event": one.id})

    async def _try(self, one: Event) -> None:
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

    def _request(self, one: Event) -> httpx.Request:
        """Signed anew for each try, since a signature holds for minutes only."""
        signature = sign(STRIPE, body=one.body, secret=self._secret, now=self._clock())
        headers = [
            ("content-type", "application/json; charset=utf-8"),
            ("user-agent", "elicit-sandbox"),
            *signature,
        ]
        return httpx.Request("POST", self._url, content=one.body, headers=headers)
