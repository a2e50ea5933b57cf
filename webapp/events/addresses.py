"""Addresses that are told of events: which types each wants, and a request that it can verify.

What could go wrong: a receiver that believes anybody. So there is no address without a secret, and
no secret that could be guessed; while one replaces another, each event is signed with both.
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
SECRET_BYTES_AT_LEAST: Final = 24  # and at most: Standard Webhooks, Signature scheme
SECRET_BYTES_AT_MOST: Final = 64
TEST_TYPE: Final = "test"
# By the kind of the row, and the word that it comes to.
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
    **{("account", word): f"account.{word}" for word in ("connected", "lapsed", "disconnected")},
    **{("registration", word): f"registration.{word}" for word in ("refused", "accepted")},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EventAddress:
    """`name` is what settings, lists and metrics call it; of its types `*` means all."""

    name: str
    url: str = field(repr=False)  # it may say what only its receiver knows
    secrets: tuple[str, ...] = field(repr=False)
    types: tuple[str, ...] = ("*",)

    def wants(self, event_type: str) -> bool:
        return any(fnmatchcase(event_type, pattern) for pattern in self.types)

    def request(self, event: OutgoingEvent, *, now: datetime) -> httpx.Request:
        """What is sent, signed now: an attempt has its own time, and the id of the one before."""
        body = body_of(event)
        signed = sign(
            STANDARD_WEBHOOKS, body=body, id=event.webhook_id, secrets=self.secrets, now=now
        )
        about = {"content-type": "application/json", "user-agent": "elicit-url"}
        return httpx.Request("POST", self.url, content=body, headers={**about, **dict(signed)})


class EventPlace(NamedTuple):
    """Where an event stands: what it is in order with, and for which address."""

    about: str
    address: str

    def __str__(self) -> str:
        """How the ids of all at that place begin."""
        return f"{self.about}.{self.address}."


def place_of(id: str) -> EventPlace:
    """Of an event's id."""
    about, address, _, _ = id.rsplit(".", 3)
    return EventPlace(about, address)


def body_of(event: OutgoingEvent) -> bytes:
    """The same at each attempt."""
    told = {"type": event.type, "timestamp": event.happened_at, "data": event.facts}
    return msgspec.json.encode(told)


def new_secret() -> str:
    """One that there was never before."""
    key = base64.b64encode(secrets.token_bytes(SECRET_BYTES_AT_LEAST)).decode()
    return STANDARD_WEBHOOKS.key_prefix + key


def is_secret(text: str) -> bool:
    """Whether it is one by Standard Webhooks, and long enough."""
    prefix = STANDARD_WEBHOOKS.key_prefix
    try:
        key = base64.b64decode(text.removeprefix(prefix), validate=True)
    except (binascii.Error, ValueError):
        return False
    return text.startswith(prefix) and SECRET_BYTES_AT_LEAST <= len(key) <= SECRET_BYTES_AT_MOST


def is_pattern(text: str) -> bool:
    """Whether there is a type that it is about."""
    return any(fnmatchcase(each, text) for each in TYPES.values())
