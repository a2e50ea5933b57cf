"""`elicit backup`: a copy of the store and of its key, while servers run.

What could go wrong: a copy that lacks what was written last, since that is in a log beside the
file; a copy that nobody can open, since its key is elsewhere. So SQLite makes the copy, and the key
goes with it or it is said that it does not.
"""

import argparse
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from webapp.command import CommandRefused, settings_for
from webapp.printing import tell

SQLITE = "sqlite:///"


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", type=Path, help="the file to write; the key goes to FILE.key"
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    try:
        _back_up(options.file)
    except (OSError, sqlite3.Error) as error:
        raise CommandRefused(f"{options.file} cannot be made: {error}") from error


def _back_up(target: Path) -> None:
    settings = settings_for(os.environ)
    store, key = file_of(settings.store), key_beside(target)
    if not store.is_file():
        raise CommandRefused(f"There is no store {store} yet.")
    for each in (target, key):
        if each.exists():
            raise CommandRefused(f"{each} is there already: name another file.")
    copy_whole(store, target)
    tell(f"{target} has all of {store}.")
    if settings.key_file is None:
        tell(
            "THE SECRET IS NOT IN IT. Nobody can open it without the ELICIT_SECRET of now: keep "
            "that, elsewhere."
        )
    else:
        write_private(key, settings.key_file.path.read_bytes())
        tell(f"{key} is its key: whoever has both can open everything. Keep both.")


def file_of(address: str) -> Path:
    path = address.removeprefix(SQLITE)
    if path == address:
        raise CommandRefused(f"ELICIT_STORE: only a store in a file has this: {SQLITE}...")
    return Path(path).absolute()


def key_beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.key")


def copy_whole(source: Path, target: Path) -> None:
    """All of it, also what is in its log, as one file of this user's alone."""
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    try:
        with (
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=rw", uri=True)) as one,
            closing(sqlite3.connect(target, isolation_level=None)) as other,
        ):
            other.execute("PRAGMA synchronous = FULL")
            one.backup(other)
            other.execute("PRAGMA journal_mode = DELETE")
        must_be_whole(target)
    except BaseException:
        target.unlink()
        raise


def write_private(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def must_be_whole(path: Path) -> None:
    """Raises Refused, or sqlite3.Error."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as connection:
        (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        tables = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'records'")
        is_ours = tables.fetchone() == (1,)
    if found != "ok":
        raise CommandRefused(
            f"{path} is damaged ({' '.join(str(found).split())}): put a backup back."
        )
    if not is_ours:
        raise CommandRefused(f"{path} is no store of ours.")
