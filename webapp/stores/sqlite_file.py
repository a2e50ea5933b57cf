"""Check the file of a store: only this user can read it, it is not replaced, the disk has space.

Risks: somebody deletes or replaces the file while it is open. The operating system keeps the
deleted file until the process ends: every write succeeds, and then all records are gone. After each
commit and at each read, the server therefore checks that each file name still leads to the opened
file. This includes the log and its index, because commits are in the log first.

Risks: another user of the machine creates a file before us, or replaces a file in a folder that
everybody can write to. Files with keys and records are therefore refused until that is fixed.
"""

import logging
import os
import re
import shlex
import shutil
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from flows.errors import StoreUnavailable


class Exposed(OSError):
    """Another user could read or replace the file. The message has the command that fixes it."""


def must_be_private(path: Path) -> None:
    """Check a file and its folder. Raises Exposed, or OSError if a check is not possible.

    A file that does not exist is accepted.
    """
    for folder in {path.parent, Path(os.path.realpath(path)).parent}:
        _check_folder(folder)
    with suppress(FileNotFoundError):
        check_status(path, path.stat())


def check_status(path: Path, status: os.stat_result) -> None:
    """Check that this is a regular file that only this user can open. Raises Exposed."""
    if not stat.S_ISREG(status.st_mode):
        raise Exposed(f"{path} is not a regular file; move it to another place")
    if status.st_uid != os.geteuid():
        raise Exposed(f"{path} belongs to another user; {_own(path)}")
    if status.st_mode & 0o077:
        raise Exposed(f"{path} can be opened by other users; chmod 600 {_quoted(path)}")


def _check_folder(folder: Path) -> None:
    try:
        status = folder.stat()
    except (FileNotFoundError, NotADirectoryError):
        return  # opening the file reports the missing folder
    if status.st_uid not in (os.geteuid(), 0):
        raise Exposed(
            f"the folder {folder} belongs to another user, who could replace its files; "
            f"{_own(folder)}"
        )
    if status.st_mode & 0o022:
        raise Exposed(
            f"other users can replace the files in the folder {folder}; chmod go-w "
            f"{_quoted(folder)}, or name a folder that does not exist yet, and elicit creates it "
            "for you alone"
        )


def _own(path: Path) -> str:
    return f"chown {os.geteuid()} {_quoted(path)}, if you trust its content"


def _quoted(path: Path) -> str:
    return shlex.quote(str(path.absolute()))


FREE_BYTES_AT_LEAST = 32 * 1024 * 1024
# File systems on other machines. SQLite coordinates its processes with locks and an index of the
# log, which such file systems do not share, so two machines would overwrite each other's data.
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
    """The identity of the file and its log, as SQLite opened them. Any thread may use it."""

    def __init__(self, path: Path, *, sides: Sequence[str] = SIDES) -> None:
        """`sides` are the endings of the names to check, none for a database in memory."""
        self.path = path
        self._names = tuple(f"{path}{side}" for side in sides)
        self._was = identities_of(self._names)
        self._is_noticed = False

    def is_of(self, before: Identity) -> bool:
        """Return True if the opened file has the identity `before`, noted before the opening."""
        return self._was[0] == before

    def require_same_file(self) -> None:
        """Raise StoreUnavailable if a name now leads to another file or to no file.

        If the files come back, for example because a move is undone, the store continues.
        """
        found = identities_of(self._names)
        if found != self._was:
            pairs = zip(self._names, found, self._was, strict=True)
            name = next(name for name, now, was in pairs if now != was)
            why = (
                f"the store's file {name} was deleted or replaced while it was open, so the "
                "server can save nothing: put the file back, or stop the server, restore a "
                "backup and start it again"
            )
            if not self._is_noticed:
                self._is_noticed = True
                _log.error("store.gone", extra={"why": why})
            raise StoreUnavailable(why)
        if self._is_noticed:
            self._is_noticed = False
            _log.warning("store.is_back", extra={"path": str(self.path)})

    def must_have_space(self) -> None:
        """Raise StoreUnavailable if the disk is almost full. Raise OSError if the check fails."""
        free = shutil.disk_usage(self.path.parent).free
        if free < FREE_BYTES_AT_LEAST:
            raise StoreUnavailable(
                f"the disk of the store {self.path} has {free // 1024 // 1024} MiB left, and "
                f"{FREE_BYTES_AT_LEAST // 1024 // 1024} are needed: free some disk space"
            )


def must_be_of_this_machine(path: Path, *, mounts: Path = _MOUNTS) -> None:
    """Raise StoreUnavailable for a file that other machines could open as well.

    If the system has no list of mounts (Linux has one), nothing is refused.
    """
    try:
        table = mounts.read_text("utf-8", "surrogateescape")
    except OSError:
        return
    directory, found = path.resolve().parent, ("", "")
    for line in table.splitlines():
        # proc(5): ids, root, the mount point, options, then a hyphen, the type and the source.
        before, _, after = line.partition(" - ")
        point = _OCTAL.sub(lambda one: chr(int(one[1], 8)), before.split(" ")[4])
        # Use the innermost mount point. If several mounts are at it, the last one hides the others.
        if directory.is_relative_to(point) and len(point) >= len(found[0]):
            found = point, after.split(" ")[0]
    if found[1] in _NETWORK or _NETWORK_FUSE.fullmatch(found[1]):
        raise StoreUnavailable(
            f"the store {path} is on a network file system ({found[1]}, mounted at {found[0]}), "
            "where SQLite's locks do not work between processes, so records could be lost: set "
            "ELICIT_STORE to a file on a disk of this machine, or, for several machines, to a "
            "postgresql:// or valkey:// server"
        )


def identity_of(path: str | Path) -> Identity | None:
    """Return the identity of the file behind a name, or None if there is no file."""
    return identities_of((path,))[0]


def identities_of(paths: Iterable[str | Path]) -> list[Identity | None]:
    """Return the identity of the file behind each name, None for a name without a file."""
    found: list[Identity | None] = []
    for path in paths:
        try:
            status = os.stat(path)  # noqa: PTH116 - called at every read and commit
        except OSError:
            found.append(None)
        else:
            found.append((status.st_dev, status.st_ino))
    return found
