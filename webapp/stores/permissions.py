"""Checks that only this user can read a file or replace it: owner, mode, and folder.

Risks: another user of the machine creates a file before us, or replaces a file in a folder that
everybody can write to. Files with keys and records are therefore refused until that is fixed.
"""

import os
import shlex
import stat
from contextlib import suppress
from pathlib import Path


class Exposed(OSError):
    """Another user could read or replace the file. The message has the command that fixes it."""


def must_be_private(path: Path) -> None:
    """Check a file and its folder. Raises Exposed, or OSError if a check is not possible.

    A file that does not exist is accepted.
    """
    for folder in {path.parent, Path(os.path.realpath(path)).parent}:
        _look_at_folder(folder)
    with suppress(FileNotFoundError):
        must_be_ours(path, path.stat())


def must_be_ours(path: Path, status: os.stat_result) -> None:
    """Check a file that is open already. Raises Exposed."""
    if not stat.S_ISREG(status.st_mode):
        raise Exposed(f"{path} is not a regular file; move it to another place")
    if status.st_uid != os.geteuid():
        raise Exposed(f"{path} belongs to another user; {_own(path)}")
    if status.st_mode & 0o077:
        raise Exposed(f"{path} can be opened by other users; chmod 600 {_quoted(path)}")


def _look_at_folder(folder: Path) -> None:
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
