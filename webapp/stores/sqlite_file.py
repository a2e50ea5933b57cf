"""The file under an open store: whether it is still the one that was opened, and has room.

What could go wrong: somebody deletes or replaces the file while it is open. The system goes on
with what has no name any more, so every write succeeds, and all of it is gone with the process.
So after each commit and at each read the names are looked up again. That holds for the log and its
index beside it too: what is committed is in the log first.
"""

import logging
import os
import shutil
from pathlib import Path

from flows.errors import StoreUnavailable

FREE_BYTES_AT_LEAST = 32 * 1024 * 1024
SIDES = ("", "-wal", "-shm")
_log = logging.getLogger(__name__)

Identity = tuple[int, int]


class OpenedFile:
    """Made once SQLite has opened the file and its log; any thread may ask."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._names = tuple(f"{path}{side}" for side in SIDES)
        self._was = self._identities()
        self._is_noticed = False

    def is_of(self, before: Identity) -> bool:
        """Whether the file that stood there before the opening still does."""
        return self._was[0] == before

    def must_be_there(self) -> None:
        """Raises StoreUnavailable if another file, or none, has one of the names now.

        If they come back, as by a move that is undone, the store goes on.
        """
        for name, was in zip(self._names, self._was, strict=True):
            if identity_of(name) != was:
                why = (
                    f"the store's file {name} was deleted or replaced while it was open, so "
                    "nothing is kept any more: put it back, or stop the server, put a copy of "
                    "before there and start it again"
                )
                if not self._is_noticed:
                    self._is_noticed = True
                    _log.error("store.gone", extra={"why": why})
                raise StoreUnavailable(why)
        if self._is_noticed:
            self._is_noticed = False
            _log.warning("store.is_back", extra={"path": str(self.path)})

    def must_have_room(self) -> None:
        """Raises StoreUnavailable, or OSError."""
        free = shutil.disk_usage(self.path.parent).free
        if free < FREE_BYTES_AT_LEAST:
            raise StoreUnavailable(
                f"the disk of the store {self.path} has {free // 1024 // 1024} MiB left, and "
                f"{FREE_BYTES_AT_LEAST // 1024 // 1024} are needed: make room"
            )

    def _identities(self) -> tuple[Identity | None, ...]:
        return tuple(identity_of(name) for name in self._names)


def identity_of(path: str | Path) -> Identity | None:
    """What tells one file from another of the same name; None where there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - at every read and commit
    except OSError:
        return None
    return status.st_dev, status.st_ino
