"""`elicit doctor`: whether settings, key and store are well, and what to do where they are not."""

import argparse
import asyncio
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from flows.errors import StoreUnavailable, Unreadable
from webapp.command import (
    CommandRefused,
    opened_store,
    quieten,
    settings_for,
    under_another_secret,
)
from webapp.printing import tell
from webapp.records.owners import must_be_servable, open_owners
from webapp.settings.settings import Settings
from webapp.stores.opening import SQLITE


def declare(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_run)


def _run(_: argparse.Namespace) -> int:
    quieten()
    try:
        settings = settings_for(os.environ)
        tell(f"ok  settings  {settings.url}")
        key = settings.key_file.path if settings.key_file is not None else "ELICIT_SECRET"
        tell(f"ok  key       {key}")
        asyncio.run(_examine_store(settings))
    except CommandRefused as refusal:
        for sentence in refusal.sentences:
            tell(f"NO  {sentence}")
        return 1
    return 0


async def _examine_store(settings: Settings) -> None:
    async with opened_store(settings) as store:
        tell(f"ok  opened    {settings.store}: this user's alone, each page readable")
        try:
            await must_be_servable(store, settings.ring)
            await open_owners(store=store, ring=settings.ring)
            tell("ok  secrets   open what is kept")
            await store.check()
            tell("ok  writes    and there is room")
        except Unreadable as error:
            raise under_another_secret(settings) from error
        except StoreUnavailable as error:
            raise CommandRefused(error.why) from error
    if settings.store.startswith(SQLITE):
        try:
            await asyncio.to_thread(_must_be_whole, Path(settings.store.removeprefix(SQLITE)))
        except sqlite3.Error as error:
            raise CommandRefused(f"The store cannot be read: {error}") from error
        tell("ok  whole     each index agrees with what it is of")


def _must_be_whole(path: Path) -> None:
    """Raises Refused, or sqlite3.Error."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as connection:
        (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        raise CommandRefused(
            f"{path} is damaged ({' '.join(str(found).split())}): put a backup back."
        )
