"""What the sandbox's Stripe tells the server: signed events."""

import secrets
from collections.abc import Callable
from datetime import datetime

import msgspec

from flows.elicitation.states import Json
from webapp.sandbox import signing
from webapp.sandbox.deliveries import SandboxEvent

API_VERSION = "2026-10-28.endive"


def event(event_type: str, *, about: Json, url: str, now: datetime) -> SandboxEvent:
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
    return SandboxEvent(id=id, type=event_type, url=url, body=msgspec.json.encode(body))


def signer(
    secret: str, *, clock: Callable[[], datetime]
) -> Callable[[SandboxEvent], list[tuple[str, str]]]:
    """Signs an event anew for each try, since a signature holds for minutes only."""

    def headers_of(one: SandboxEvent) -> list[tuple[str, str]]:
        signature = signing.stripe(one.body, secret=secret, now=clock())
        return [("content-type", "application/json; charset=utf-8"), *signature]

    return headers_of
