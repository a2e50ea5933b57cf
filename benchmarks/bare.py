"""The baselines: the smallest durable writers on SQLite with group commit.

A writer has a thread, a queue, a future for each write, and the pragmas of our store. The bare
writer has no compare-and-set, keys, times or encryption. The sealing writer encrypts each row, and
overwrites a row only with the row's next version. The cost of our store is measured against these
two writers in the same run.
"""

import asyncio
import sqlite3
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TypeAlias

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from webapp.records.owners import Randomness

_WRITES_A_COMMIT = 256
_NONCE_BYTES = 12
_Row: TypeAlias = tuple[str, bytes, int]
_Write: TypeAlias = tuple["asyncio.Future[None]", _Row]


class BareWriter:
    _upsert = (
        "INSERT INTO rows VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET blob = excluded.blob"
    )

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("PRAGMA secure_delete = ON")
        self._connection.execute(
            "CREATE TABLE rows (id TEXT PRIMARY KEY, blob BLOB NOT NULL, version INTEGER NOT NULL)"
        )
        self._writes: SimpleQueue[_Write | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    async def write(self, id: str, blob: bytes, version: int = 0) -> None:
        """Write a row. `version` is the number of earlier writes of the row."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._writes.put((future, (id, blob, version)))
        await future

    def close(self) -> None:
        self._writes.put(None)
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        while True:
            futures: list[asyncio.Future[None]] = []
            rows: list[_Row] = []
            while (write := self._writes.get()) is not None:
                futures.append(write[0])
                rows.append(write[1])
                if len(rows) == _WRITES_A_COMMIT or self._writes.empty():
                    break
            self._connection.execute("BEGIN IMMEDIATE")
            written = self._connection.executemany(self._upsert, rows)
            assert not rows or written.rowcount == len(rows), (
                "each write updates the version of the row that it read"
            )
            self._connection.execute("COMMIT")
            self._loop.call_soon_threadsafe(_answer, futures)
            if write is None:
                return


class SealingWriter(BareWriter):
    """A writer that binds each encrypted row to its id and version, and compares versions."""

    _upsert = """
        INSERT INTO rows VALUES (?, ?, ?) ON CONFLICT (id)
        DO UPDATE SET blob = excluded.blob, version = excluded.version
        WHERE version = excluded.version - 1
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._random = Randomness()
        self._cipher = AESGCM(self._random(32))

    async def write(self, id: str, blob: bytes, version: int = 0) -> None:
        nonce = self._random(_NONCE_BYTES)
        sealed = self._cipher.encrypt(nonce, blob, f"{id} {version}".encode())
        await super().write(id, nonce + sealed, version)


def _answer(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
