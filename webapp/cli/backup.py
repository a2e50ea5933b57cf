"""`elicit backup`, `elicit restore` and `elicit vacuum`: copies of the store, and its file.

A backup is made while servers run. Risks: a copy that cannot be opened because its key is
elsewhere. The key is therefore copied as well, or the command says that the key is missing. The
command stores the time of the backup, which `elicit doctor` checks.

A backup can be restored into a store of another kind. Risks: a file is replaced while a server has
the old file open, or a server starts with half of the data. The data is therefore written to a new
file, which replaces the old file only when it is complete and while SQLite's lock shows that no
process has the old file open. The old file is renamed. Any other store has to be empty, and is
fenced until all data is written. The key is written after the data and before a server can open the
store: a refused command leaves no key behind, and no server creates another key. If a step of
replacing a file fails, the earlier steps are undone.
"""

import argparse
import asyncio
import fcntl
import os
import secrets
import sqlite3
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import ExitStack, aclosing, contextmanager, suppress
from functools import partial
from pathlib import Path

from flows.crypto.tokens import Ring
from flows.errors import StoreUnavailable, Unreadable, WeakSecret
from flows.shown import counted
from webapp.command import (
    CommandRefused,
    must_be_unfenced,
    opened_store,
    quieten,
    settings_for,
    store_refused,
)
from webapp.connecting import utc_now
from webapp.printing import print_text
from webapp.records.high_water import MARK, STEP_BACK, restored
from webapp.records.owners import must_be_opened, note_backup
from webapp.settings.key_file import KeyFile
from webapp.settings.settings import Settings, key_file_of, store_of
from webapp.stores import Record, holds_something, open_store
from webapp.stores.backup_file import BackupFile, BadBackup, write_backup
from webapp.stores.moving import NotMoved, Scan, copy, fence_empty, half, open_whole
from webapp.stores.opening import SQLITE
from webapp.stores.sqlite_file import SIDES
from webapp.stores.store import Vacuums


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", type=Path, help="the file to write; the key goes to FILE.key"
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    quieten()
    settings, target = settings_for(os.environ), options.file
    try:
        is_empty = not holds_something(settings.store)
    except (StoreUnavailable, ValueError) as error:
        raise store_refused(error) from error
    if is_empty:
        raise CommandRefused("The store is still empty (ELICIT_STORE).")
    key = key_path_of(target)
    for each in (target, key):
        if each.exists():
            raise CommandRefused(f"{each} exists already: name another file.")
    try:
        rows = asyncio.run(_back_up(settings, target))
        print_text(f"{target} contains the whole store: {counted(rows, 'record')}.")
        if settings.key_file is None:
            print_text(
                "THE SECRET IS NOT IN THE BACKUP. Nobody can open it without the current "
                "ELICIT_SECRET: store that elsewhere."
            )
        else:
            write_private(key, settings.key_file.path.read_bytes())
            print_text(f"{key} is its key: anybody with both files can open everything. Keep both.")
    except OSError as error:
        raise CommandRefused(f"{target} cannot be created: {error}") from error


async def _back_up(settings: Settings, target: Path) -> int:
    async with opened_store(settings) as store:
        await must_be_unfenced(store)
        try:
            now = utc_now()
            rows = await write_backup(store, target, now=now)
            if await store.fenced() is None:  # a move may have begun in the meantime
                await note_backup(store, now)
        except StoreUnavailable as error:
            raise CommandRefused(f"The store cannot be read: {error.why}") from error
    return rows


def key_path_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.key")


def write_private(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink()  # a server refuses half a key, and a restore would not replace it
        raise


# `elicit restore`

# The byte range that SQLite locks for as long as a connection has the file open (its os_unix.c).
_LOCKED_FROM, _LOCKED_BYTES = 0x40000002, 510


def declare_restore(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="a file that elicit backup created")
    parser.set_defaults(run=_run_restore)


def _run_restore(options: argparse.Namespace) -> None:
    quieten()
    source, address = options.file, store_of(os.environ)
    if not source.is_file():
        raise CommandRefused(f"{source} does not exist.")
    try:
        backup = BackupFile(source)
        key_file = key_file_of(os.environ)
        if key_file is not None:
            _must_be_one_key(key_file, key_path_of(source))
        asyncio.run(_must_open(backup, source, key_file))
        if key_file is None:
            print_text(
                "The backup does not contain the secret: the server needs the ELICIT_SECRET from "
                "the time of the backup."
            )
        elif not (key := key_path_of(source)).exists():
            print_text(f"{key} does not exist: the server uses {key_file.path}.")
        is_key_new = key_file is not None and not key_file.path.exists()
        restore_key = partial(_restore_key, key_file, key_path_of(source))
        if address.startswith(SQLITE):
            path = Path(address.removeprefix(SQLITE)).absolute()
            _write_to_file(backup, source, path, restore_key=restore_key)
        else:
            asyncio.run(_write_to_store(backup, source, address, restore_key=restore_key))
    except (BadBackup, NotMoved, ValueError) as error:
        raise CommandRefused(str(error)) from error
    except StoreUnavailable as error:
        raise CommandRefused(
            f"The store stopped answering: {error.why}. Run the command again."
        ) from error
    except (OSError, WeakSecret, sqlite3.Error) as error:
        raise CommandRefused(f"{source} cannot be restored: {error}") from error
    if key_file is not None and is_key_new:
        print_text(f"{key_file.path} is the key from the time of the backup.")
    print_text(f"The store is restored to its state at {backup.made_at:%Y-%m-%d %H:%M} UTC.")
    print_text(
        "Later payments are missing: once a server runs, it asks the payment providers about them. "
        "docs/how-to/stores.md lists what else to check."
    )


async def _must_open(backup: BackupFile, source: Path, key_file: KeyFile | None) -> None:
    """Raise CommandRefused if the secrets of the future server cannot open the backup."""
    if key_file is None:
        ring, is_from = settings_for(os.environ).ring, "ELICIT_SECRET"
    else:
        key = next((one for one in (key_path_of(source), key_file.path) if one.exists()), None)
        if key is None:
            return
        ring, is_from = Ring([each.value for each in KeyFile(key).read()]), str(key)
    try:
        await must_be_opened(backup.scan(), ring)
    except Unreadable as error:
        raise CommandRefused(
            f"{is_from} does not decrypt {source}, which was encrypted with another secret. Set "
            "ELICIT_SECRET to the secret from the time of the backup (or new,old), or use its key "
            "file. Nothing was changed.",
            status=2,
        ) from error


def _write_to_file(
    backup: BackupFile, source: Path, store: Path, *, restore_key: Callable[[ExitStack], None]
) -> None:
    """Write the backup to a new file, rename the current file, and put the new one in its place."""
    store.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = store.with_name(f"{store.name}.{secrets.token_hex(8)}")
    aside = store.with_name(f"{store.name}.before-{utc_now():%Y%m%dT%H%M%S}")
    with _alone(store), ExitStack() as undo:
        for side in SIDES:
            undo.callback(Path(f"{draft}{side}").unlink, missing_ok=True)
        asyncio.run(_write_to_store(backup, source, f"{SQLITE}{draft}"))
        restore_key(undo)
        for side in reversed(SIDES):
            with suppress(FileNotFoundError):
                renamed = Path(f"{store}{side}").rename(f"{aside}{side}")
                undo.callback(renamed.rename, f"{store}{side}")
        draft.replace(store)
        undo.pop_all()
    if aside.exists():
        print_text(f"The previous store is saved as {aside}.")


async def _write_to_store(
    backup: BackupFile,
    source: Path,
    address: str,
    *,
    restore_key: Callable[[ExitStack], None] | None = None,
) -> None:
    """Copy the backup to an empty store, or continue a copy that was interrupted."""
    words = half(str(source), f"elicit restore {source}")
    try:
        opened = await open_store(address, watches=False)
    except (StoreUnavailable, ValueError) as error:
        raise store_refused(error) from error
    async with aclosing(opened) as store:
        if store.address is None:
            raise ValueError(
                "ELICIT_STORE: the store memory: is lost when its process ends; set another store."
            )
        if await store.fenced() != words:
            await fence_empty(store, words)
        await copy(await _marked(backup), store, behind=words)
        undo = ExitStack()
        if restore_key is not None:
            restore_key(undo)
        try:
            await open_whole(store, words)
        except NotMoved:
            undo.close()  # not after other errors: servers may already use the store and its key
            raise


async def _marked(backup: BackupFile) -> Scan:
    """Return the backup's rows with a mark that tells servers that the store was restored."""
    marks = [each async for page in backup.scan() for each in page if each.kind == MARK]
    made_at, now = backup.made_at, utc_now()
    mark = restored(marks[0] if marks else None, made_at=made_at, now=now)

    async def scan() -> AsyncIterator[Sequence[Record]]:
        yield mark
        async for page in backup.scan():
            yield [each for each in page if each.kind not in (MARK, STEP_BACK)]

    return scan


def _must_be_one_key(file: KeyFile, key: Path) -> None:
    """Raise CommandRefused if no key exists, or the server's key lacks the backup's secrets."""
    if not key.exists():
        if not file.path.exists():
            raise CommandRefused(
                f"Neither {key} nor {file.path} exists, and the backup cannot be decrypted without "
                "one of them."
            )
    elif file.path.exists() and not _values(KeyFile(key)) <= _values(file):
        raise CommandRefused(
            f"{file.path} holds another key than {key}. First move {file.path} to a safe place: "
            "no other key decrypts the data that was encrypted with it."
        )


def _values(file: KeyFile) -> set[bytes]:
    return {each.value for each in file.read()}


def _restore_key(file: KeyFile | None, key: Path, undo: ExitStack) -> None:
    """Write the backup's key to the key file if there is none. `undo` removes it again."""
    if file is None or file.path.exists():
        return
    file.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(file.path, key.read_bytes())
    undo.callback(file.path.unlink)


@contextmanager
def _alone(store: Path) -> Generator[None]:
    """Lock out other processes. Raises CommandRefused if another process has it open."""
    if not store.exists():
        yield
        return
    with store.open("r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, _LOCKED_BYTES, _LOCKED_FROM)
        except OSError as error:
            raise CommandRefused(f"{store} is open: stop every server of it first.") from error
        yield


# `elicit vacuum`

_MIB = 1024 * 1024


def declare_vacuum(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_run_vacuum)


def _run_vacuum(_: argparse.Namespace) -> None:
    quieten()
    settings = settings_for(os.environ)
    before = _size(settings)
    asyncio.run(_vacuum(settings))
    after = _size(settings)
    if before is None or after is None:
        print_text("The space of erased data is free again.")
    else:
        print_text(
            f"The store's file had {before / _MIB:.1f} MiB, and has {after / _MIB:.1f} MiB now."
        )


async def _vacuum(settings: Settings) -> None:
    async with opened_store(settings) as store:
        if not isinstance(store, Vacuums):
            raise CommandRefused("This store does not reserve the space of erased data.")
        try:
            await store.vacuum()
        except StoreUnavailable as error:
            raise CommandRefused(error.why) from error


def _size(settings: Settings) -> int | None:
    """Return the size of the store's file, or None if the store is not a local file."""
    path = Path(settings.store.removeprefix(SQLITE))
    if not settings.store.startswith(SQLITE) or not path.is_file():
        return None
    return path.stat().st_size
