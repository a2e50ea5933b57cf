"""`elicit vacuum`: shrink the database file after records were erased, while servers run."""

import argparse
import asyncio
import os
from pathlib import Path

from flows.errors import StoreUnavailable
from webapp.command import CommandRefused, opened_store, quieten, settings_for
from webapp.printing import tell
from webapp.settings.settings import Settings
from webapp.stores.opening import SQLITE
from webapp.stores.store import Vacuums

_MIB = 1024 * 1024


def declare(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_run)


def _run(_: argparse.Namespace) -> None:
    quieten()
    settings = settings_for(os.environ)
    before = _size(settings)
    asyncio.run(_vacuum(settings))
    after = _size(settings)
    if before is None or after is None:
        tell("The space of erased data is free again.")
    else:
        tell(f"The store's file had {before / _MIB:.1f} MiB, and has {after / _MIB:.1f} MiB now.")


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
