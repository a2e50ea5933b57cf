"""The ring of secrets, from which every other key is derived, and which wraps the data keys.

Risks: data is encrypted under a secret that another process does not have yet, or a secret is
removed while it still wraps a key. Each token and each wrapped key therefore contains its secret's
fingerprint, and a ring rereads the operator's secrets before it chooses a key.
"""

import hashlib
import secrets
from collections.abc import Callable, Sequence
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from flows.errors import Unreadable, WeakSecret

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
        """The newest fingerprint. It can change between reads: read it once for an operation."""
        return self.fingerprints[0]

    def derive(self, fingerprint: bytes, info: str) -> bytes:
        """Return a key of 32 bytes for one use. Raises KeyError if the ring has no such secret."""
        if fingerprint not in self._fingerprints and fingerprint not in self.fingerprints:
            raise KeyError(fingerprint)
        return self._derive(fingerprint, info)

    def derive_all(self, info: str) -> tuple[bytes, ...]:
        """Return the keys for one use that are derived from each secret, newest first."""
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
            raise WeakSecret("ELICIT_SECRET is empty; create a secret with: elicit keys new")
        for secret in secrets_newest_first:
            if len(secret) < SECRET_BYTES:
                raise WeakSecret(
                    f"A secret has {len(secret)} bytes and needs {SECRET_BYTES} at least; "
                    "create one with: elicit keys new"
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
