"""The signatures of webhook senders, each as its own documentation describes it.

Risks: a signer that shares code with our verifier has the same bugs, so the tests pass although no
real webhook would verify. So this module imports nothing from flows, and implements each scheme as
its vendor publishes it. The headers of a delivery are in the order in which they are signed.
"""

import base64
import hmac
from collections.abc import Sequence
from datetime import datetime
from typing import TypeAlias

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

Headers: TypeAlias = list[tuple[str, str]]


def stripe(body: bytes, *, secret: str, now: datetime) -> Headers:
    """Sign with the complete `whsec_` secret as the key (docs.stripe.com/webhooks/signature)."""
    time = _seconds(now)
    return [("Stripe-Signature", f"t={time},v1={_hex(secret, f'{time}.', body)}")]


def paddle(body: bytes, *, secret: str, now: datetime) -> Headers:
    time = _seconds(now)
    return [("Paddle-Signature", f"ts={time};h1={_hex(secret, f'{time}:', body)}")]


def standard_webhooks(body: bytes, *, secret: str, now: datetime, id: str) -> Headers:
    """Sign with a `whsec_` secret, or with the private key in a `whsk_` secret.

    Both contain base64. Only the first 32 bytes of a private key are used, because its public key
    can follow.
    """
    time = _seconds(now)
    message = _joined(f"{id}.{time}.", body)
    if secret.startswith("whsk_"):
        raw = base64.b64decode(secret.removeprefix("whsk_"))
        private = Ed25519PrivateKey.from_private_bytes(raw[:32])
        signature = "v1a," + base64.b64encode(private.sign(message)).decode()
    else:
        key = base64.b64decode(secret.removeprefix("whsec_"))
        signature = "v1," + _base64(key, message)
    return [("webhook-id", id), ("webhook-timestamp", time), ("webhook-signature", signature)]


def svix(body: bytes, *, secret: str, now: datetime, id: str) -> Headers:
    """Sign by Standard Webhooks with the former header names."""
    headers = standard_webhooks(body, secret=secret, now=now, id=id)
    return [(name.replace("webhook-", "svix-"), value) for name, value in headers]


def square(body: bytes, *, secret: str, url: str) -> Headers:
    """Sign a body for `url`, the notification address that the merchant set at Square."""
    mac = _base64(secret.encode(), _joined(url, body))
    return [("x-square-hmacsha256-signature", mac)]


def coinbase(body: bytes, *, secret: str) -> Headers:
    return [("X-CC-Webhook-Signature", _hex(secret, "", body))]


def github(body: bytes, *, secret: str) -> Headers:
    return [("X-Hub-Signature-256", f"sha256={_hex(secret, '', body)}")]


def mollie(body: bytes, *, secrets: Sequence[str]) -> Headers:
    """Return a header for each secret. During a rotation there are two."""
    return [("X-Mollie-Signature", f"sha256={_hex(secret, '', body)}") for secret in secrets]


def lemon_squeezy(body: bytes, *, secret: str) -> Headers:
    return [("X-Signature", _hex(secret, "", body))]


def _seconds(now: datetime) -> str:
    return str(int(now.timestamp()))


def _joined(before: str, body: bytes) -> bytes:
    return before.encode() + body


def _hex(secret: str, before: str, body: bytes) -> str:
    return hmac.digest(secret.encode(), _joined(before, body), "sha256").hex()


def _base64(key: bytes, message: bytes) -> str:
    return base64.b64encode(hmac.digest(key, message, "sha256")).decode()
