"""The secrets from which all other keys are derived, and the tokens that leave the process.

A token is itsdangerous' HMAC-SHA256 (salt = purpose, key derivation "hmac") over AES-256-GCM. The
outer signature rejects invalid tokens before anything is decrypted. It also makes sure that a token
can be decrypted with one key only (key commitment).
Compare tokens by their content: base64 can write the same bytes in several ways, so two different
texts can be the same token.

Risks: data is encrypted under a secret that another process does not have yet, or a secret is
removed while it still wraps a key. Each token and each wrapped key therefore contains its secret's
fingerprint, and a ring rereads the operator's secrets before it chooses a key.
"""

import base64
import binascii
import hashlib
import secrets
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from itsdangerous import BadSignature, Signer

from flows.errors import InvalidToken, Unreadable, WeakSecret

SECRET_BYTES = 32
NONCE_BYTES = 12
FINGERPRINT_BYTES = 4


class Ring:
    """The secrets, newest first: the newest encrypts, all decrypt.

    Keys are derived by RFC 5869.

    `reread` updates the ring: it returns the secrets if they have changed since the last call, else
    None, and never raises. It is called before a key is chosen, so that data encrypted under a new
    secret in one process can be decrypted in another.
    """

    __slots__ = ("_derive", "_fingerprints", "_reread")

    def __init__(
        self,
        secrets_newest_first: Sequence[bytes],
        *,
        reread: Callable[[], Sequence[bytes] | None] | None = None,
    ) -> None:
        self._reread = reread
        self._hold(secrets_newest_first)

    def __repr__(self) -> str:
        return f"Ring({len(self._fingerprints)} secrets ***)"

    @property
    def fingerprints(self) -> tuple[bytes, ...]:
        """The fingerprints of all secrets, newest first. The newest can change between reads."""
        found = self._reread() if self._reread is not None else None
        if found is not None:
            self._hold(found)
        return self._fingerprints

    @property
    def newest(self) -> bytes:
        """The newest fingerprint. It can change between reads: read it once per operation."""
        return self.fingerprints[0]

    def derive(self, fingerprint: bytes, info: str) -> bytes:
        """Return a key of 32 bytes for one use. Raises KeyError if the ring has no such secret."""
        if fingerprint not in self._fingerprints and fingerprint not in self.fingerprints:
            raise KeyError(fingerprint)
        return self._derive(fingerprint, info)

    def derive_all(self, info: str) -> tuple[bytes, ...]:
        """Derive one key for this use from each secret. Return the keys, newest secret first."""
        return tuple(self._derive(fingerprint, info) for fingerprint in self.fingerprints)

    def wrap(self, owner: str, data_key: bytes) -> bytes:
        """Encrypt an owner's data key under the newest secret."""
        newest = self.newest
        nonce = secrets.token_bytes(NONCE_BYTES)
        cipher = AESGCM(self.derive(newest, f"wrap {owner}"))
        return newest + nonce + cipher.encrypt(nonce, data_key, owner.encode())

    def unwrap(self, owner: str, wrapped: bytes) -> bytes:
        fingerprint = wrapped_under(wrapped)
        nonce = wrapped[FINGERPRINT_BYTES : FINGERPRINT_BYTES + NONCE_BYTES]
        try:
            cipher = AESGCM(self.derive(fingerprint, f"wrap {owner}"))
            return cipher.decrypt(nonce, wrapped[FINGERPRINT_BYTES + NONCE_BYTES :], owner.encode())
        except (KeyError, InvalidTag, ValueError):
            raise Unreadable from None

    def _hold(self, secrets_newest_first: Sequence[bytes]) -> None:
        if not secrets_newest_first:
            raise WeakSecret("ELICIT_SECRET is empty. Create a secret with: elicit keys new")
        for secret in secrets_newest_first:
            if len(secret) < SECRET_BYTES:
                raise WeakSecret(
                    f"A secret in ELICIT_SECRET has {len(secret)} bytes, and needs at least "
                    f"{SECRET_BYTES}. Create one with: elicit keys new"
                )
        by_fingerprint = {fingerprint_of(secret): secret for secret in secrets_newest_first}

        @lru_cache(maxsize=256)
        def derive(fingerprint: bytes, info: str) -> bytes:
            hkdf = HKDF(algorithm=SHA256(), length=32, salt=None, info=info.encode())
            return hkdf.derive(by_fingerprint[fingerprint])

        self._fingerprints = tuple(by_fingerprint)
        self._derive = derive


def fingerprint_of(secret: bytes) -> bytes:
    """Return the short hash that names a secret in tokens and wrapped keys without revealing it."""
    return hashlib.sha256(b"elicit-url fingerprint" + secret).digest()[:FINGERPRINT_BYTES]


def wrapped_under(wrapped: bytes) -> bytes:
    """Return the fingerprint of the secret that wraps a data key."""
    return wrapped[:FINGERPRINT_BYTES]


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
            raise ValueError(f"a token can be valid for at most {MAXIMUM_LIFE.days} days")
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
