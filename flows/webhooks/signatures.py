"""Webhook signatures: a verifier and a signer for all schemes that are declared as a Scheme.

Risks: the server acts on a forged, altered or replayed delivery. A Delivery is only created by
verification, and contains only what the signature covers, so it does not contain GitHub's unsigned
delivery id. Signatures are compared as text, so each MAC has exactly one valid spelling. A signed
id contains no full stop, otherwise its end could be read as the time (Standard Webhooks, Signature
scheme). Everybody knows an empty secret and a public key, so empty secrets are rejected, and public
keys are never used as MAC keys.
"""

import base64
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Final, Literal, final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from flows.errors import Unverified

BODY_BYTES_AT_MOST: Final = 256 * 1024
HEADER_CHARACTERS_AT_MOST: Final = 4096
SIGNATURES_AT_MOST: Final = 16
TOLERANCE: Final = timedelta(minutes=5)  # in both directions, because clocks can be fast or slow
PROOF: Final = object()  # only modules that verify use it; a test lists them

_FIELD = re.compile(r"\{(id|ts|body|url)\}")
_PART, _PARTS = re.compile(r"\{[^}]*\}"), frozenset({"{id}", "{ts}", "{body}", "{url}"})
_TIME = re.compile(r"[0-9]{1,11}")  # seconds; ASCII only, at most the year 5138
_ID = re.compile(r"[!-\-/-~]{1,255}")  # printable ASCII without spaces and full stops


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Delivery:
    """A verified webhook delivery.

    Only verification can create one.

    `id` stays the same when the sender repeats the delivery. `sent_at` is when this attempt was
    signed.
    """

    scheme: str
    id: str | None
    body: bytes
    sent_at: datetime | None
    proof: InitVar[object]

    def __post_init__(self, proof: object) -> None:
        if proof is not PROOF:
            raise TypeError("only verify() can create a Delivery")

    def __repr__(self) -> str:
        return f"Delivery({self.scheme!r}, id={self.id!r}, {len(self.body)} bytes)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """The way in which a sender signs its webhooks.

    A header value consists of parts split by `separator`, each with a label. Parts with unknown
    labels are ignored. `families` are the prefixes of all header names, in order of preference.
    """

    name: str
    signature_header: str
    signature_label: str = ""
    separator: str | None = None
    is_repeatable: bool = False  # the header may occur several times, as a list (RFC 9110, 5.3)
    time_label: str | None = None  # label of the time within the signature header
    time_header: str | None = None  # name of a separate time header
    id_header: str | None = None
    families: tuple[str, ...] = ("",)
    # template of the signed text, with {id} {ts} {body} {url}; values outside it are not trusted
    message: str = "{body}"
    encoding: Literal["hex", "base64"] = "hex"
    digest: str = "sha256"
    key: Literal["utf-8", "base64"] = "utf-8"
    key_prefix: str = ""  # the start of a secret's text that is not part of the key
    ed25519_label: str | None = None
    ed25519_key_prefix: str = "whpk_"

    def __post_init__(self) -> None:
        parts = _PART.findall(self.message)
        if parts.count("{body}") != 1 or not {*parts} <= _PARTS:
            raise ValueError(
                "message must contain {body} once, and can also contain {id}, {ts} and {url}"
            )
        has_time = self.time_label is not None or self.time_header is not None
        if has_time != ("{ts}" in self.message) or (self.id_header is None) == (
            "{id}" in self.message
        ):
            raise ValueError(
                "message must contain {ts} if the scheme reads a time, and {id} if it reads an id; "
                "otherwise it must not contain them"
            )


STANDARD_WEBHOOKS: Final = Scheme(
    name="standard-webhooks",
    signature_header="signature",
    signature_label="v1,",
    separator=" ",
    time_header="timestamp",
    id_header="id",
    families=("webhook-", "svix-"),
    message="{id}.{ts}.{body}",
    encoding="base64",
    key="base64",
    key_prefix="whsec_",
    ed25519_label="v1a,",
)


def verify(
    scheme: Scheme,
    *,
    body: bytes,
    headers: Sequence[tuple[str, str]],
    secrets: Sequence[str],
    now: datetime,
    url: str = "",
) -> Delivery:
    """Return the delivery if one of the secrets signed it and its signed time is close to now.

    `body` is the request body, byte for byte. `url` is our configured address, never the request's.
    Raises Unverified with the reason no_secret, no_url, too_large, missing_header,
    malformed_header, bad_signature, too_old or too_new.
    """
    keys = _keys(scheme, secrets)
    if "{url}" in scheme.message and not url:
        raise Unverified("no_url")
    if len(body) > BODY_BYTES_AT_MOST:
        raise Unverified("too_large")
    received = _read(scheme, headers)
    message = _message(scheme, {"id": received.id, "ts": received.time, "url": url}, body)
    if not _is_signed(scheme, received, keys=keys, message=message):
        raise Unverified("bad_signature")
    sent_at = datetime.fromtimestamp(int(received.time), UTC) if received.time else None
    if sent_at is not None and now - sent_at > TOLERANCE:
        raise Unverified("too_old")
    if sent_at is not None and sent_at - now > TOLERANCE:
        raise Unverified("too_new")
    return Delivery(
        scheme=scheme.name, id=received.id or None, body=body, sent_at=sent_at, proof=PROOF
    )


def sign(
    scheme: Scheme, *, body: bytes, id: str, secrets: Sequence[str], now: datetime
) -> list[tuple[str, str]]:
    """Return the headers to send with the body, signed with each of the secrets.

    Works for MAC schemes with an id header and a time header. Raises ValueError for other schemes
    and for an invalid secret.
    """
    if scheme.id_header is None or scheme.time_header is None or scheme.separator is None:
        raise ValueError(f"{scheme.name}: this scheme cannot sign outgoing webhooks")
    time = str(int(now.timestamp()))
    message = _message(scheme, {"id": id, "ts": time}, body)
    macs = list[str]()
    for secret in secrets:
        match _key(scheme, secret):
            case bytes() as key:
                macs.append(scheme.signature_label + _mac(scheme, key, message))
            case _:
                raise ValueError(f"{scheme.name}: a public key cannot sign; it only verifies")
    family = scheme.families[0]
    return [
        (family + scheme.id_header, id),
        (family + scheme.time_header, time),
        (family + scheme.signature_header, scheme.separator.join(macs)),
    ]


def header_once(headers: Sequence[tuple[str, str]], name: str, *, pattern: re.Pattern[str]) -> str:
    """Return the value of a header that occurs exactly once and matches the pattern."""
    return _only(_named(headers, name) or None, pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Received:
    """The parsed but not yet verified header values; "" if the scheme does not use a value."""

    macs: Sequence[str]
    ed25519: Sequence[str]
    time: str
    id: str


def _read(scheme: Scheme, headers: Sequence[tuple[str, str]]) -> _Received:
    # All headers of a delivery must come from the same family: families are never mixed.
    for family in scheme.families:
        if values := _named(headers, family + scheme.signature_header):
            break
    else:
        raise Unverified("missing_header")
    if len(values) > 1 and not scheme.is_repeatable:
        raise Unverified("malformed_header")
    parts = [part for value in values for part in _parts(scheme, value)]
    labels = (scheme.signature_label, scheme.ed25519_label, scheme.time_label)
    macs, ed25519, times = [
        [part.removeprefix(label) for part in parts if label is not None and part.startswith(label)]
        for label in labels
    ]
    if not 1 <= len(macs) + len(ed25519) <= SIGNATURES_AT_MOST:
        raise Unverified("malformed_header")
    time = id = ""
    if scheme.time_label is not None:
        time = _only(times, _TIME)
    if scheme.time_header is not None:
        time = header_once(headers, family + scheme.time_header, pattern=_TIME)
    if scheme.id_header is not None:
        id = header_once(headers, family + scheme.id_header, pattern=_ID)
    return _Received(macs=macs, ed25519=ed25519, time=time, id=id)


def _parts(scheme: Scheme, value: str) -> list[str]:
    if not value.isascii() or not 1 <= len(value) <= HEADER_CHARACTERS_AT_MOST:
        raise Unverified("malformed_header")
    parts = [value] if scheme.separator is None else value.split(scheme.separator)
    # A proxy may join repeated headers into one, with spaces between the parts.
    return [part.strip(" \t") for part in parts] if scheme.is_repeatable else parts


def _named(headers: Sequence[tuple[str, str]], name: str) -> list[str]:
    return [value for key, value in headers if key.lower() == name]


def _only(values: Sequence[str] | None, pattern: re.Pattern[str]) -> str:
    if values is None:
        raise Unverified("missing_header")
    if len(values) != 1 or not pattern.fullmatch(values[0]):
        raise Unverified("malformed_header")
    return values[0]


def _keys(scheme: Scheme, secrets: Sequence[str]) -> list[bytes | Ed25519PublicKey]:
    try:
        keys = [_key(scheme, secret) for secret in secrets]
    except ValueError:
        raise Unverified("no_secret") from None
    if not keys:
        raise Unverified("no_secret")
    return keys


def _key(scheme: Scheme, secret: str) -> bytes | Ed25519PublicKey:
    """Return the key in a secret's text. Raises ValueError if there is no valid key."""
    if scheme.ed25519_label is not None and secret.startswith(scheme.ed25519_key_prefix):
        return Ed25519PublicKey.from_public_bytes(
            _from_base64(secret.removeprefix(scheme.ed25519_key_prefix))
        )
    text = secret.removeprefix(scheme.key_prefix)
    key = _from_base64(text) if scheme.key == "base64" else text.encode()
    # HMAC pads keys with zeros, so a key of only zeros equals the empty key.
    if not key.strip(b"\0 \t\r\n"):
        raise ValueError(f"{scheme.name}: the secret is empty")
    return key


def _from_base64(text: str) -> bytes:
    # Some senders show their keys without padding, and their own libraries accept such keys.
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)


# Splits a message template. Every second item is a field name.
_words = cache(_FIELD.split)


def _message(scheme: Scheme, values: Mapping[str, str], body: bytes) -> bytes:
    return b"".join(
        [
            word.encode() if index % 2 == 0 else body if word == "body" else values[word].encode()
            for index, word in enumerate(_words(scheme.message))
        ]
    )


def _mac(scheme: Scheme, key: bytes, message: bytes) -> str:
    mac = hmac.digest(key, message, scheme.digest)
    return mac.hex() if scheme.encoding == "hex" else base64.b64encode(mac).decode()


def _is_signed(
    scheme: Scheme, received: _Received, *, keys: Sequence[bytes | Ed25519PublicKey], message: bytes
) -> bool:
    is_signed = False
    for key in keys:  # never stop at a match: the duration would reveal it
        if isinstance(key, bytes):
            expected = _mac(scheme, key, message)
            for mac in received.macs:
                is_signed |= hmac.compare_digest(expected, mac)
        else:
            for signature in received.ed25519:
                is_signed |= _is_signed_by(key, signature, message)
    return is_signed


def _is_signed_by(key: Ed25519PublicKey, signature: str, message: bytes) -> bool:
    try:
        raw = base64.b64decode(signature, validate=True)
        key.verify(raw, message)
    except (InvalidSignature, ValueError):
        return False
    return base64.b64encode(raw).decode() == signature
