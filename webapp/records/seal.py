"""Seals: records bound to their row, under their owner's data key.

What could go wrong: bytes copied from one row to another, from one owner to another, or from an
older version under the number of a newer one. Each is part of the associated data, so none of them
opens. Not stopped: a whole row put back as it was, its number too. Whoever can write the store's
file can do that, and it opens, as nothing outside the row says how far it had come. Nor may a
nonce come twice: a forked child would repeat its parent's, so it begins afresh.
"""

import os
import secrets
from collections.abc import Callable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import Struct
from msgspec.structs import replace

from flows.crypto.vault import NONCE_BYTES
from flows.errors import Unreadable

_POOL_BYTES = 12 * 1024


class Row(Struct, frozen=True, kw_only=True):
    """Where sealed bytes stand; they open nowhere else."""

    owner: str
    kind: str
    id: str
    version: int

    def __bytes__(self) -> bytes:
        return f"row\x1f{self.owner}\x1f{self.kind}\x1f{self.id}\x1f{self.version}".encode()


class Locker:
    """Seals one owner's records under the newest of that owner's data keys; each of them opens.

    There are several only while everything is sealed anew, as one of them may be known.
    """

    __slots__ = ("_ciphers", "_random")

    def __init__(
        self, *data_keys_newest_first: bytes, random: Callable[[int], bytes] = secrets.token_bytes
    ) -> None:
        self._ciphers = [AESGCM(data_key) for data_key in data_keys_newest_first]
        self._random = random

    def seal(self, row: Row, plain: bytes) -> bytes:
        nonce = self._random(NONCE_BYTES)
        return nonce + self._ciphers[0].encrypt(nonce, plain, bytes(row))

    def open(self, row: Row, sealed: bytes) -> bytes:
        return self._open(row, sealed)[0]

    def sealed_anew(self, row: Row, sealed: bytes) -> bytes | None:
        """The same for the row's next version; None if the newest data key opens it."""
        plain, is_newest = self._open(row, sealed)
        return None if is_newest else self.seal(replace(row, version=row.version + 1), plain)

    def _open(self, row: Row, sealed: bytes) -> tuple[bytes, bool]:
        nonce, rest, about = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], bytes(row)
        for cipher in self._ciphers:
            try:
                return cipher.decrypt(nonce, rest, about), cipher is self._ciphers[0]
            except (InvalidTag, ValueError):
                continue
        raise Unreadable


class Randomness:
    """`secrets.token_bytes` from a pool; for one thread.

    Asking the system lets other threads run, and the event loop then waits for them at every seal.
    """

    def __init__(self) -> None:
        self._pool = b""
        self._used = 0
        os.register_at_fork(after_in_child=self._forget)

    def __call__(self, size: int) -> bytes:
        end = self._used + size
        if end > len(self._pool):
            self._pool, self._used, end = secrets.token_bytes(max(size, _POOL_BYTES)), 0, size
        piece = self._pool[self._used : end]
        self._used = end
        return piece

    def _forget(self) -> None:
        self._pool = b""
        self._used = 0
