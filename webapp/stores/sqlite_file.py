"""The file under an open store: whether it is still the one that was opened, and has room.

What could go wrong: somebody deletes or replaces the file while it is open. The system goes on
with what has no name any more, so every write succeeds, and all of it is gone with the process.
So after each commit and at each read the names are looked up again. That holds for the log and its
index beside it too: what is committed is in the log first.
"""

import logging
import os
import re
import shutil
from pathlib import Path

from flows.errors import StoreUnavailable

FREE_BYTES_AT_LEAST = 32 * 1024 * 1024
# File systems on other machines. What SQLite keeps between processes beside its file (locks, the
# index of the log) is not shared over them, and two machines would write over each other.
_NETWORK = frozenset(
    {"9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs", "lustre"}
    | {"ncp", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "smb2", "smb3", "smbfs"}
)
_NETWORK_FUSE = re.compile(
    r"fuse\.(?:sshfs|s3.*|gcs.*|goofys|blobfuse2?|rclone|glusterfs|ceph.*|juicefs|moosefs|mfs"
    r"|davfs2?|curlftpfs|smbnetfs)"
)
_MOUNTS = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")
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


def must_be_of_this_machine(path: Path, *, mounts: Path = _MOUNTS) -> None:
    """Raises StoreUnavailable for a file that other machines could open as well.

    Where the system does not tell (it does on Linux), nothing is refused.
    """
    try:
        table = mounts.read_text("utf-8", "surrogateescape")
    except OSError:
        return
    place, found = path.resolve().parent, ("", "")
    for line in table.splitlines():
        # proc(5): ids, root, the mount point, options, then a hyphen, the type and the source.
        before, _, after = line.partition(" - ")
        point = _OCTAL.sub(lambda one: chr(int(one[1], 8)), before.split(" ")[4])
        # Of those that hold it the innermost, of equal ones the last, which lies over the others.
        if place.is_relative_to(point) and len(point) >= len(found[0]):
            found = point, after.split(" ")[0]
    if found[1] in _NETWORK or _NETWORK_FUSE.fullmatch(found[1]):
        raise StoreUnavailable(
            f"the store {path} is on a file system of other machines ({found[1]}, mounted at "
            f"{found[0]}), over which SQLite's processes do not see each other, so records could "
            "be lost: set ELICIT_STORE to a file on a disk of this machine, or, for several "
            "machines, to a postgresql:// or valkey:// server"
        )


def identity_of(path: str | Path) -> Identity | None:
    """What tells one file from another of the same name; None where there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - at every read and commit
    except OSError:
        return None
    return status.st_dev, status.st_ino
