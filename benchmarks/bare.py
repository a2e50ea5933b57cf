"""The baseline: the smallest durable writer that is honest, on SQLite with group commit.

A thread, a queue, a future for each write, the pragmas of our store; no compare-and-set, no keys,
no times, no seal. What our store costs is measured against this in the same run.
"""

import asyncio
import sqlite3
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

_WRITES_A_COMMIT = 256
_UPSERT = "INSERT INTO rows VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET blob = excluded.blob"


class BareWriter:
    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("PRAGMA secure_delete = ON")
        self._connection.execute("CREATE TABLE rows (id TEXT PRIMARY KEY, blob BLOB NOT NULL)")
        self._writes: SimpleQueue[tuple[asyncio.Future[None], tuple[str, bytes]] | None]
        self._writes = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    async def write(self, id: str, blob: bytes) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        self._writes.put((future, (id, blob)))
        await future

    def close(self) -> None:
        self._writes.put(None)
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        while True:
            futures: list[asyncio.Future[None]] = []
            rows: list[tuple[str, bytes]] = []
            while (write := self._writes.get()) is not None:
                futures.append(write[0])
                rows.append(write[1])
                if len(rows) == _WRITES_A_COMMIT or self._writes.empty():
                    break
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(_UPSERT, rows)
            self._connection.execute("COMMIT")
            self._loop.call_soon_threadsafe(_answer, futures)
            if write is None:
                return


def _answer(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
