"""`elicit restore`: a backup in the place of the store, which is kept aside.

What could go wrong: a file that is put in place under a server that has the old one open. So
nothing is put back while any process has the store open.
"""

import argparse
import fcntl
import os
import secrets
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from webapp.cli.backup import copy_whole, file_of, key_beside, must_be_whole, write_private
from webapp.command import CommandRefused
from webapp.connecting import utc_now
from webapp.printing import tell
from webapp.settings.key_file import KeyFile
from webapp.settings.settings import key_file_of, store_of
from webapp.stores.sqlite_file import SIDES

# What a connection of SQLite's holds a lock on for as long as it has the file open (its os_unix.c).
_LOCKED_FROM, _LOCKED_BYTES = 0x40000002, 510


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="as elicit backup made it")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    try:
        _restore(options.file)
    except (OSError, sqlite3.Error) as error:
        raise CommandRefused(f"{options.file} cannot be put back: {error}") from error


def _restore(source: Path) -> None:
    store, key_file = file_of(store_of(os.environ)), key_file_of(os.environ)
    if not source.is_file():
        raise CommandRefused(f"There is no file {source}.")
    must_be_whole(source)
    if key_file is None:
        tell("The secret was not in it: the server opens it with the ELICIT_SECRET of then.")
    else:
        _put_key_back(key_file, key_beside(source))
    store.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _alone(store):
        draft = store.with_name(f"{store.name}.{secrets.token_hex(8)}")
        copy_whole(source, draft)
        if store.exists():
            aside = store.with_name(f"{store.name}.before-{utc_now():%Y%m%dT%H%M%S}")
            for side in reversed(SIDES):
                with suppress(FileNotFoundError):
                    Path(f"{store}{side}").rename(f"{aside}{side}")
            tell(f"What was there is kept as {aside}.")
        draft.replace(store)
    tell(f"{store} is as it was when {source} was made. What was paid since is not in it.")


def _put_key_back(file: KeyFile, key: Path) -> None:
    if not key.exists():
        if not file.path.exists():
            raise CommandRefused(
                f"Neither {key} nor {file.path} is there, and nothing opens it without."
            )
        tell(f"There is no {key}: the server opens it with {file.path}, if that is its key.")
    elif not file.path.exists():
        file.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(file.path, key.read_bytes())
        tell(f"{file.path} is the key of then.")
    elif not {each.value for each in KeyFile(key).read()} <= {e.value for e in file.read()}:
        raise CommandRefused(
            f"{file.path} is another key than {key}: move it away first, and know that what was "
            "kept under it is opened by it alone."
        )


@contextmanager
def _alone(store: Path) -> Generator[None]:
    """Raises Refused while any process has the store open; none opens it within."""
    if not store.exists():
        yield
        return
    with store.open("r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, _LOCKED_BYTES, _LOCKED_FROM)
        except OSError as error:
            raise CommandRefused(f"{store} is open: stop every server of it first.") from error
        yield
