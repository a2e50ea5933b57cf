"""Seals: records encrypted under their owner's data key, and bound to their row.

Risks: bytes are copied from one row to another, from one owner to another, or from an older version
to a newer one. Row, owner and version are associated data, so such bytes do not open. An attacker
who can write the store's file can still restore a complete old row together with its old version.
The old row opens, because its version is recorded nowhere else. A nonce repeats. A forked child
would repeat its parent's nonces, so the child starts with a new pool.
"""

import os
import secrets
from collections.abc import Callable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import Struct
from msgspec.structs import astuple, replace

from flows.crypto.vault import NONCE_BYTES
from flows.errors import Unreadable

_POOL_BYTES = 12 * 1024


class Row(Struct, frozen=True, kw_only=True):
    """The row of sealed bytes. The bytes open for no other row."""

    owner: str
    kind: str
    id: str
    version: int


# The associated data of a row, from its fields in their order.
_about = "row\x1f{}\x1f{}\x1f{}\x1f{}".format


class Locker:
    """A cipher for one owner's records. It seals with the newest data key and opens with any.

    There are several keys only after a key may have leaked, while all rows are sealed again.
    """

    __slots__ = ("_ciphers", "_random")

    def __init__(
        self, *data_keys_newest_first: bytes, random: Callable[[int], bytes] = secrets.token_bytes
    ) -> None:
        self._ciphers = [AESGCM(data_key) for data_key in data_keys_newest_first]
        self._random = random

    def seal(self, row: Row, plain: bytes) -> bytes:
        nonce = self._random(NONCE_BYTES)
        return nonce + self._ciphers[0].encrypt(nonce, plain, _about(*astuple(row)).encode())

    def open(self, row: Row, sealed: bytes) -> bytes:
        return self._open(row, sealed)[0]

    def sealed_anew(self, row: Row, sealed: bytes) -> bytes | None:
        """Return the bytes sealed with the newest key, for the row's next version.

        Return None if `sealed` is already sealed with the newest key.
        """
        plain, is_newest = self._open(row, sealed)
        return None if is_newest else self.seal(replace(row, version=row.version + 1), plain)

    def _open(self, row: Row, sealed: bytes) -> tuple[bytes, bool]:
        nonce, rest = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:]
        about = _about(*astuple(row)).encode()
        for cipher in self._ciphers:
            try:
                return cipher.decrypt(nonce, rest, about), cipher is self._ciphers[0]
            except (InvalidTag, ValueError):
                continue
        raise Unreadable


class Randomness:
    """Random bytes like `secrets.token_bytes`, from a pool. Use it in one thread only.

    Without the pool, each seal would make a system call, during which other threads run and the
    event loop waits for them.
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
