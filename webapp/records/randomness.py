"""Random bytes for nonces, taken from the system many at a time.

Asking the system lets other threads run, and the event loop then waits for them at every seal.
What could go wrong: a forked child would repeat its parent's nonces, so it begins afresh.
"""

import os
import secrets

_POOL_BYTES = 12 * 1024


class Randomness:
    """`secrets.token_bytes` from a pool; for one thread."""

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
