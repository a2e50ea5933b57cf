"""Keys: a ring of secrets, from which every other key is derived, and which wraps the data keys.

What could go wrong: something is sealed under a secret that another process does not have yet, or
a secret goes while it still wraps somebody's key. So each key says which secret it is from.
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
    """Secrets, newest first: the newest seals, all open. Keys are derived by RFC 5869.

    `reread` makes it a living one: it returns the secrets if they are others than when it was last
    asked, else None, and raises nothing. It is asked before a key is chosen, so that what one
    process sealed under a secret a moment after it was made opens in another.
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
        """Of every secret, newest first; what was newest a moment ago may be no longer."""
        found = self._reread() if self._reread is not None else None
        if found is not None:
            self._hold(found)
        return self._fingerprints

    @property
    def newest(self) -> bytes:
        """Ask once for what is made in several steps: the next answer may be another one."""
        return self.fingerprints[0]

    def derive(self, fingerprint: bytes, info: str) -> bytes:
        """32 bytes for one use; KeyError if the ring has no such secret."""
        if fingerprint not in self._fingerprints and fingerprint not in self.fingerprints:
            raise KeyError(fingerprint)
        return self._derive(fingerprint, info)

    def derive_all(self, info: str) -> tuple[bytes, ...]:
        """The same of every secret, newest first."""
        return tuple(self._derive(fingerprint, info) for fingerprint in self.fingerprints)

    def wrap(self, owner: str, data_key: bytes) -> bytes:
        """Seal an owner's data key under the newest secret."""
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
            raise WeakSecret("There is no secret; make one with: elicit keys new")
        for secret in secrets_newest_first:
            if len(secret) < SECRET_BYTES:
                raise WeakSecret(
                    f"A secret has {len(secret)} bytes and needs {SECRET_BYTES} at least; "
                    "make one with: elicit keys new"
                )
        by_fingerprint = {fingerprint_of(secret): secret for secret in secrets_newest_first}

        @lru_cache(maxsize=256)
        def derive(fingerprint: bytes, info: str) -> bytes:
            hkdf = HKDF(algorithm=SHA256(), length=32, salt=None, info=info.encode())
            return hkdf.derive(by_fingerprint[fingerprint])

        self._fingerprints = tuple(by_fingerprint)
        self._derive = derive


def fingerprint_of(secret: bytes) -> bytes:
    """What names a secret in tokens and wrapped keys, and gives nothing of it away."""
    return hashlib.sha256(b"elicit-url fingerprint" + secret).digest()[:FINGERPRINT_BYTES]


def wrapped_under(wrapped: bytes) -> bytes:
    """The fingerprint of the secret that a data key was wrapped under."""
    return wrapped[:FINGERPRINT_BYTES]
