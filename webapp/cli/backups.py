"""`elicit backup`, `elicit restore` and `elicit doctor`.

What could go wrong: a copy that lacks what was written last, since that is in a log beside the
file; a copy that nobody can open, since its key is elsewhere; a file that is put in place under a
server that has the old one open. So SQLite makes the copy, the key goes with it or it is said that
it does not, and nothing is put back while any process has the store open.
"""

import asyncio
import fcntl
import os
import secrets
import sqlite3
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path

from flows.errors import StoreUnavailable, Unreadable
from webapp.command import (
    LOOPBACK,
    CommandRefused,
    opened_store,
    quieten,
    settings_for,
    under_another_secret,
)
from webapp.records.owners import must_open_all, open_owners
from webapp.settings.key_file import KeyFile, data_folder
from webapp.settings.settings import DEFAULT_PORT, SECRET_NAMES, Settings
from webapp.stores.sqlite_file import SIDES

Say = Callable[[str], object]
_SQLITE = "sqlite:///"
# What a connection of SQLite's holds a lock on for as long as it has the file open (its os_unix.c).
_LOCKED_FROM, _LOCKED_BYTES = 0x40000002, 510


def back_up(environment: Mapping[str, str], target: Path, *, say: Say) -> int:
    """Copy the store, and the key file if that is used, while servers run; the exit status."""
    try:
        _back_up(settings_for(environment, host=LOOPBACK, port=DEFAULT_PORT), target, say=say)
    except (OSError, sqlite3.Error) as error:
        return CommandRefused(f"{target} cannot be made: {error}").tell()
    except CommandRefused as refusal:
        return refusal.tell()
    return 0


def restore(environment: Mapping[str, str], source: Path, *, now: datetime, say: Say) -> int:
    """Put a backup in the place of the store, which is kept aside; the exit status."""
    folder = data_folder(environment)
    try:
        store = _file_of(environment.get("ELICIT_STORE") or f"{_SQLITE}{folder / 'elicit.db'}")
        has_secret = any(environment.get(name) for name in SECRET_NAMES)
        try:
            if not source.is_file():
                raise CommandRefused(f"There is no file {source}.")
            _must_be_whole(source)
            if has_secret:
                say("The secret was not in it: the server opens it with the ELICIT_SECRET of then.")
            else:
                _put_key_back(KeyFile(folder / "key"), _key_beside(source), say=say)
            store.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _alone(store):
                draft = store.with_name(f"{store.name}.{secrets.token_hex(8)}")
                _copy(source, draft)
                if store.exists():
                    aside = store.with_name(f"{store.name}.before-{now:%Y%m%dT%H%M%S}")
                    for side in reversed(SIDES):
                        with suppress(FileNotFoundError):
                            Path(f"{store}{side}").rename(f"{aside}{side}")
                    say(f"What was there is kept as {aside}.")
                draft.replace(store)
            say(f"{store} is as it was when {source} was made. What was paid since is not in it.")
        except (OSError, sqlite3.Error) as error:
            raise CommandRefused(f"{source} cannot be put back: {error}") from error
    except CommandRefused as refusal:
        return refusal.tell()
    return 0


def examine(environment: Mapping[str, str], *, say: Say) -> int:
    """Say of settings, key and store whether they are well, and what to do; the exit status."""
    quieten()
    try:
        settings = settings_for(environment, host=LOOPBACK, port=DEFAULT_PORT)
        say(f"ok  settings  {settings.url}")
        key = settings.key_file.path if settings.key_file is not None else "ELICIT_SECRET"
        say(f"ok  key       {key}")
        asyncio.run(_examine_store(settings, say=say))
    except CommandRefused as refusal:
        for sentence in refusal.sentences:
            say(f"NO  {sentence}")
        return 1
    return 0


def _back_up(settings: Settings, target: Path, *, say: Say) -> None:
    store, key = _file_of(settings.store), _key_beside(target)
    if not store.is_file():
        raise CommandRefused(f"There is no store {store} yet.")
    for each in (target, key):
        if each.exists():
            raise CommandRefused(f"{each} is there already: name another file.")
    _copy(store, target)
    say(f"{target} has all of {store}.")
    if settings.key_file is None:
        say(
            "THE SECRET IS NOT IN IT. Nobody can open it without the ELICIT_SECRET of now: keep "
            "that, elsewhere."
        )
    else:
        _write(key, settings.key_file.path.read_bytes())
        say(f"{key} is its key: whoever has both can open everything. Keep both.")


async def _examine_store(settings: Settings, *, say: Say) -> None:
    async with opened_store(settings) as store:
        say(f"ok  opened    {settings.store}: this user's alone, each page readable")
        try:
            await must_open_all(store, settings.ring)
            await open_owners(store=store, ring=settings.ring)
            say("ok  secrets   open what is kept")
            await store.check()
            say("ok  writes    and there is room")
        except Unreadable as error:
            raise under_another_secret(settings) from error
        except StoreUnavailable as error:
            raise CommandRefused(error.why) from error
    if settings.store.startswith(_SQLITE):
        try:
            await asyncio.to_thread(_must_be_whole, _file_of(settings.store))
        except sqlite3.Error as error:
            raise CommandRefused(f"The store cannot be read: {error}") from error
        say("ok  whole     each index agrees with what it is of")


def _file_of(address: str) -> Path:
    path = address.removeprefix(_SQLITE)
    if path == address:
        raise CommandRefused(f"ELICIT_STORE: only a store in a file has this: {_SQLITE}...")
    return Path(path).absolute()


def _key_beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.key")


def _copy(source: Path, target: Path) -> None:
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
        _must_be_whole(target)
    except BaseException:
        target.unlink()
        raise


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _must_be_whole(path: Path) -> None:
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


def _put_key_back(file: KeyFile, key: Path, *, say: Say) -> None:
    if not key.exists():
        if not file.path.exists():
            raise CommandRefused(
                f"Neither {key} nor {file.path} is there, and nothing opens it without."
            )
        say(f"There is no {key}: the server opens it with {file.path}, if that is its key.")
    elif not file.path.exists():
        file.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(file.path, key.read_bytes())
        say(f"{file.path} is the key of then.")
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
