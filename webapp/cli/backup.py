"""`elicit backup`: copy the store and its key while servers run.

Risks: a copy that cannot be opened because its key is elsewhere. The key is therefore copied as
well, or the command says that the key is missing. The command stores the time of the backup, which
`elicit doctor` checks.
"""

import argparse
import asyncio
import os
from pathlib import Path

from flows.errors import StoreUnavailable
from webapp.cli.operator import counted
from webapp.command import (
    CommandRefused,
    must_be_unfenced,
    opened_store,
    quieten,
    settings_for,
    store_refused,
)
from webapp.connecting import utc_now
from webapp.printing import tell
from webapp.records.owners import note_backup
from webapp.settings.settings import Settings
from webapp.stores import holds_something
from webapp.stores.backup_file import write_backup


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
        tell(f"{target} contains the whole store: {counted(rows)}.")
        if settings.key_file is None:
            tell(
                "THE SECRET IS NOT IN THE BACKUP. Nobody can open it without the current "
                "ELICIT_SECRET: store that elsewhere."
            )
        else:
            write_private(key, settings.key_file.path.read_bytes())
            tell(f"{key} is its key: anybody with both files can open everything. Keep both.")
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
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
