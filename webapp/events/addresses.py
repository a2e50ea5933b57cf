"""The addresses that receive events: their types, their secrets and the signed request.

Risks: a receiver accepts an event that somebody else made. Every address therefore has a secret
that cannot be guessed, with which events are signed. During a change of secrets, each event is
signed with the old and the new secret.
"""

import base64
import binascii
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

import httpx
import msgspec

from flows.webhooks.signatures import STANDARD_WEBHOOKS, sign
from webapp.records.values import OutgoingEvent

ADDRESSES_AT_MOST: Final = 8
SECRET_BYTES_AT_LEAST: Final = 24  # minimum and maximum: Standard Webhooks, Signature scheme
SECRET_BYTES_AT_MOST: Final = 64
TEST_TYPE: Final = "test"
# Maps the kind of a row and its new status to the event type.
TYPES: Final[Mapping[tuple[str, str], str]] = {
    **{
        ("elicitation", word): f"question.{word.replace(' ', '_')}"
        for word in (
            *("asked", "opened", "accepted", "declined", "denied", "cancelled", "expired"),
            *("failed", "superseded", "accepted late"),
        )
    },
    **{
        ("payment", word): f"payment.{word.replace(' ', '_')}"
        for word in (
            *("paid", "refund pending", "refunded", "refunded in part", "refund failed"),
            *("inquiry", "inquiry closed", "disputed", "disputed in part"),
            *("dispute lost", "dispute appealed", "dispute won"),
        )
    },
    **{
        ("account", word): f"account.{word}"
        for word in ("connected", "expiring", "lapsed", "disconnected")
    },
    **{("registration", word): f"registration.{word}" for word in ("refused", "accepted")},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EventAddress:
    """An address for events. `name` appears in settings, lists and metrics. `*` means all types."""

    name: str
    url: str = field(repr=False)  # the URL may contain a secret of the receiver
    secrets: tuple[str, ...] = field(repr=False)
    types: tuple[str, ...] = ("*",)

    def wants(self, event_type: str) -> bool:
        return any(fnmatchcase(event_type, pattern) for pattern in self.types)

    def request(self, event: OutgoingEvent, *, now: datetime) -> httpx.Request:
        """Return the request, signed with the current time. Retries have the same id."""
        body = body_of(event)
        signed = sign(
            STANDARD_WEBHOOKS, body=body, id=event.webhook_id, secrets=self.secrets, now=now
        )
        about = {"content-type": "application/json", "user-agent": "elicit-url"}
        return httpx.Request("POST", self.url, content=body, headers={**about, **dict(signed)})


class EventPlace(NamedTuple):
    """The ordering key of an event: the record that the event is about, and the address."""

    about: str
    address: str

    def __str__(self) -> str:
        """Return the prefix of the ids of all events with this key."""
        return f"{self.about}.{self.address}."


def place_of(id: str) -> EventPlace:
    """Return the ordering key in an event's id."""
    about, address, _, _ = id.rsplit(".", 3)
    return EventPlace(about, address)


def body_of(event: OutgoingEvent) -> bytes:
    """Return the request body, which is the same for each attempt."""
    content = {"type": event.type, "timestamp": event.happened_at, "data": event.facts}
    return msgspec.json.encode(content)


def new_secret() -> str:
    """Return a new random secret."""
    key = base64.b64encode(secrets.token_bytes(SECRET_BYTES_AT_LEAST)).decode()
    return STANDARD_WEBHOOKS.key_prefix + key


def is_secret(text: str) -> bool:
    """Return True if `text` is a long enough secret in the format of Standard Webhooks."""
    prefix = STANDARD_WEBHOOKS.key_prefix
    try:
        key = base64.b64decode(text.removeprefix(prefix), validate=True)
    except (binascii.Error, ValueError):
        return False
    return text.startswith(prefix) and SECRET_BYTES_AT_LEAST <= len(key) <= SECRET_BYTES_AT_MOST


def is_pattern(text: str) -> bool:
    """Return True if the pattern matches at least one event type."""
    return any(fnmatchcase(each, text) for each in TYPES.values())
