"""A backup file: all rows of a store as lines of JSON, which any store can load.

The first line is a header. The last line has the number of rows and their hash. Sealed data stays
sealed.

Risks: a full disk or a kill leaves half a file that looks complete. The file therefore gets its
name only when all of it is on disk, and is read to its end before any row is used.
"""

import fcntl
import os
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import IO, TypeVar

import msgspec
from msgspec import Struct

from webapp.stores.store import RECORDS_AT_MOST, Record, Store

_LAYOUT_VERSION = 1
_DRAFT = ".elicit-backup-"
_LINE_BYTES_AT_MOST = 256 * 1024
T = TypeVar("T", bound=Struct)


class BadBackup(Exception):
    """The file is not a backup, or is incomplete. The message is a sentence for the operator."""


class _Head(Struct, frozen=True, kw_only=True):
    elicit_backup: int
    made_at: datetime


class _Foot(Struct, frozen=True, kw_only=True):
    rows: int
    sha256: str


class BackupFile:
    """A backup file, which is checked completely on opening. Raises BadBackup, or OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        head, *_ = self._lines()
        self.made_at = self._read(head, _Head).made_at

    async def scan(self) -> AsyncIterator[Sequence[Record]]:
        """Yield the rows in pages, as a store does."""
        page = list[Record]()
        lines = self._lines()
        next(lines)
        for line in lines:
            page.append(self._read(line, Record))
            if len(page) == RECORDS_AT_MOST:
                yield page
                page = []
        if page:
            yield page

    def _lines(self) -> Iterator[bytes]:
        """Yield the header line and each row. Raises BadBackup if the last line does not match."""
        digest, rows = sha256(), 0
        with self._path.open("rb") as file:
            line = file.readline(_LINE_BYTES_AT_MOST)
            if not line.startswith(b'{"elicit_backup":'):
                raise BadBackup(f"{self._path} is not a file made by elicit backup.")
            if self._read(line, _Head).elicit_backup != _LAYOUT_VERSION:
                raise BadBackup(
                    f"{self._path} was made by a newer version of elicit. Use that version."
                )
            while following := file.readline(_LINE_BYTES_AT_MOST):
                digest.update(line)
                rows += 1
                yield line
                line = following
        if not line.startswith(b'{"rows":'):
            raise BadBackup(f"{self._path} is incomplete: its end is missing. Make another backup.")
        if self._read(line, _Foot) != _Foot(rows=rows - 1, sha256=digest.hexdigest()):
            raise BadBackup(f"{self._path} is damaged. Make another backup.")

    def _read(self, line: bytes, what: type[T]) -> T:
        try:
            return msgspec.json.decode(line, type=what)
        except (msgspec.MsgspecError, ValueError) as error:
            raise BadBackup(f"{self._path} is damaged ({error}). Make another backup.") from error


async def write_backup(store: Store, path: Path, *, now: datetime) -> int:
    """Write all rows to a file that only this user can read. Return the number of rows.

    Raises FileExistsError, OSError.
    """
    _remove_drafts(path.parent)
    draft = path.with_name(f"{_DRAFT}{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # the lock ends with this process, even if killed
            rows = await _write(store, file, now=now)
            file.flush()
            os.fsync(file.fileno())
            os.link(draft, path)  # never replaces another file
    finally:
        os.unlink(draft)  # noqa: PTH108 - a blocking call, but in a command
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # otherwise a power cut could lose the name
    finally:
        os.close(folder)
    return rows


def _remove_drafts(folder: Path) -> None:
    """Remove the drafts of killed backups, which no process has locked."""
    for draft in folder.glob(f"{_DRAFT}*"):
        with suppress(OSError), draft.open("rb") as file:  # an OSError: locked, or another user's
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            draft.unlink()


async def _write(store: Store, file: IO[bytes], *, now: datetime) -> int:
    digest, rows = sha256(), 0

    def put(what: Struct) -> None:
        line = msgspec.json.encode(what) + b"\n"
        digest.update(line)
        file.write(line)

    put(_Head(elicit_backup=_LAYOUT_VERSION, made_at=now))
    async for page in store.scan():
        for record in page:
            put(record)
            rows += 1
    put(_Foot(rows=rows, sha256=digest.hexdigest()))
    return rows
