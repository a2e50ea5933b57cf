"""Tokens that leave the process: encrypted, signed, time-limited, and for one purpose each.

A token is itsdangerous' HMAC-SHA256 (salt = purpose, key derivation "hmac") over AES-256-GCM. The
outer signature rejects invalid tokens before anything is decrypted, and commits to the key.
Compare tokens by their content: base64 can write the same bytes in several ways, so two different
texts can be the same token.
"""

import base64
import binascii
import hashlib
import secrets
import struct
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from itsdangerous import BadSignature, Signer

from flows.crypto.vault import FINGERPRINT_BYTES, NONCE_BYTES, Ring
from flows.errors import InvalidToken

MAXIMUM_TEXT_BYTES = 2048
MAXIMUM_LIFE = timedelta(days=31)
_VERSION = 1
_EPOCH = datetime(2020, 1, 1, tzinfo=UTC)
_ENVELOPE = struct.Struct(">BH")  # version, day of creation
_CLAIMS = struct.Struct(">BHQ16s")  # purpose, attempt, expiry in milliseconds, origin digest


class Purpose(StrEnum):
    LINK = "link"
    STATE = "state"
    RETURN = "return"
    CALLBACK = "callback"
    RUN = "run"
    SESSION = "session"
    SIGNIN = "signin"
    PAIR = "pair"
    AUTHOR = "author"
    PAGE = "page"
    OPERATOR_LINK = "operator link"
    OPERATOR = "operator"


_PURPOSES = tuple(Purpose)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """The content of a token. `id` names a row and starts with its owner's tag."""

    purpose: Purpose
    id: str
    expires_at: datetime
    attempt: int = 0
    rest: str = ""


class Tokens:
    """The factory and reader for the tokens of one public origin."""

    __slots__ = ("_cipher", "_origin", "_ring", "_signer")

    def __init__(self, ring: Ring, *, origin: str) -> None:
        self._ring = ring
        self._origin = hashlib.sha256(origin.encode()).digest()[:16]

        @lru_cache(maxsize=64)
        def signer(fingerprint: bytes, purpose: Purpose, day: int) -> Signer:
            return Signer(
                ring.derive(fingerprint, f"sign {purpose} {day}"),
                salt=f"elicit-url {purpose}",
                key_derivation="hmac",
                digest_method=hashlib.sha256,
            )

        @lru_cache(maxsize=64)
        def cipher(fingerprint: bytes, purpose: Purpose, day: int) -> AESGCM:
            return AESGCM(ring.derive(fingerprint, f"seal {purpose} {day}"))

        self._signer = signer
        self._cipher = cipher

    def mint(self, claims: Claims, *, now: datetime) -> str:
        """Return a token of 100 to 300 characters that is safe in a path.

        Raises ValueError if the token would be valid for longer than 31 days.
        """
        if claims.expires_at - now > MAXIMUM_LIFE:
            raise ValueError(f"a token lives {MAXIMUM_LIFE.days} days at most")
        day = (now - _EPOCH).days
        plain = (
            _CLAIMS.pack(
                _PURPOSES.index(claims.purpose),
                claims.attempt,
                int(claims.expires_at.timestamp() * 1000),
                self._origin,
            )
            + f"{claims.id}\n{claims.rest}".encode()
        )
        newest = self._ring.newest  # read once: secrets may be rotated between two reads
        header = _ENVELOPE.pack(_VERSION, day) + newest
        nonce = secrets.token_bytes(NONCE_BYTES)
        sealed = self._cipher(newest, claims.purpose, day).encrypt(nonce, plain, header)
        body = base64.urlsafe_b64encode(header + nonce + sealed).rstrip(b"=")
        return self._signer(newest, claims.purpose, day).sign(body).decode()

    def read(self, text: str, *, purpose: Purpose, now: datetime) -> Claims:
        """Return the token's content if it is valid for this purpose, origin and time.

        Raises InvalidToken.
        """
        if len(text) > MAXIMUM_TEXT_BYTES or not text.isascii():
            raise InvalidToken("size")
        body, dot, _ = text.rpartition(".")
        try:
            blob = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
            version, day = _ENVELOPE.unpack_from(blob)
        except (binascii.Error, ValueError, struct.error):
            raise InvalidToken("malformed") from None
        today = (now - _EPOCH).days
        if not dot or version != _VERSION or not today - MAXIMUM_LIFE.days - 1 <= day <= today + 1:
            raise InvalidToken("malformed")
        header = blob[: _ENVELOPE.size + FINGERPRINT_BYTES]
        fingerprint = header[_ENVELOPE.size :]
        if fingerprint not in self._ring.fingerprints:
            raise InvalidToken("unknown key")
        try:
            self._signer(fingerprint, purpose, day).unsign(text)
            nonce, sealed = blob[len(header) :][:NONCE_BYTES], blob[len(header) + NONCE_BYTES :]
            plain = self._cipher(fingerprint, purpose, day).decrypt(nonce, sealed, header)
        except (BadSignature, InvalidTag, ValueError):
            raise InvalidToken("forged") from None
        number, attempt, expiry, origin = _CLAIMS.unpack_from(plain)
        id, _, rest = plain[_CLAIMS.size :].decode().partition("\n")
        if _PURPOSES[number] is not purpose:
            raise InvalidToken("purpose")
        if not secrets.compare_digest(origin, self._origin):
            raise InvalidToken("origin")
        expires_at = datetime.fromtimestamp(expiry / 1000, UTC)
        if now >= expires_at:
            raise InvalidToken("expired")
        return Claims(purpose=purpose, id=id, expires_at=expires_at, attempt=attempt, rest=rest)
