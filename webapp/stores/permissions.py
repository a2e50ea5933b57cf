"""Files that are this user's alone: whose they are, who else may open them, and their folder.

What could go wrong: another user of the machine puts a file there before us, or replaces it in a
folder that is open to all. So what holds keys and records is refused until it is put right.
"""

import os
import shlex
import stat
from contextlib import suppress
from pathlib import Path


class Exposed(OSError):
    """Somebody else could read or replace it; the message has the command that mends it."""


def must_be_private(path: Path) -> None:
    """Raises Exposed for a file, or the folder that it is in; OSError if it cannot be looked at.

    What does not exist is nobody else's.
    """
    for folder in {path.parent, Path(os.path.realpath(path)).parent}:
        _look_at_folder(folder)
    with suppress(FileNotFoundError):
        must_be_ours(path, path.stat())


def must_be_ours(path: Path, status: os.stat_result) -> None:
    """The same for a file that is open already."""
    if not stat.S_ISREG(status.st_mode):
        raise Exposed(f"{path} is no file; move away what stands there")
    if status.st_uid != os.geteuid():
        raise Exposed(f"{path} belongs to another user; {_own(path)}")
    if status.st_mode & 0o077:
        raise Exposed(f"{path} can be opened by others; chmod 600 {_quoted(path)}")


def _look_at_folder(folder: Path) -> None:
    try:
        status = folder.stat()
    except (FileNotFoundError, NotADirectoryError):
        return  # whoever opens the file says so
    if status.st_uid not in (os.geteuid(), 0):
        raise Exposed(
            f"the folder {folder} belongs to another user, who could replace what is in it; "
            f"{_own(folder)}"
        )
    if status.st_mode & 0o022:
        raise Exposed(
            f"others can replace what is in the folder {folder}; chmod go-w {_quoted(folder)}, or "
            "name a folder that does not exist yet: it is made for you alone"
        )


def _own(path: Path) -> str:
    return f"chown {os.geteuid()} {_quoted(path)}, if you trust what is in it"


def _quoted(path: Path) -> str:
    return shlex.quote(str(path.absolute()))
