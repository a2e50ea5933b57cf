"""`elicit keys`: rotate the secret while servers run, and list what the old secrets still wrap.

Risks: a key is wrapped under a secret that a running process lacks, or a secret is removed that is
still needed. With a key file, every process sees a new secret before it is used. A secret is not
removed while it wraps a key in any store that was opened with the file. A store whose file is gone
also prevents the removal, and the error names that store. With ELICIT_SECRET, the command cannot
know the settings of other processes. The command therefore refuses to wrap keys under a secret that
no process of this store has loaded, and to retire a secret that still wraps one of the store's
keys.
"""

import argparse
import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from msgspec import Struct

from flows.crypto.tokens import MAXIMUM_LIFE, Ring
from flows.errors import StoreUnavailable, Unreadable, WeakSecret
from webapp.cli.arguments import commands_of
from webapp.cli.filters import add_filters, filters_in, show_filtered
from webapp.cli.resealing import is_under_way, reseal
from webapp.cli.table import Table, add_json, find_by_prefix
from webapp.command import (
    CommandRefused,
    must_be_unfenced,
    opened_store,
    settings_for,
    under_another_secret,
    warn_if_fenced,
)
from webapp.connecting import utc_now
from webapp.printing import print_text
from webapp.records.owners import count_wrapped, rewrap, was_served
from webapp.settings.key_file import KeyFile, SecretSetting, new_secret
from webapp.settings.key_usage import HasMoved, wrapped_in
from webapp.settings.settings import SECRET_NAMES, Settings, key_file_of
from webapp.stores import Store, without_password

ORDER = """\
To replace the secret while servers run, follow these steps in order:
  1. create one: elicit keys new
  2. set {name}=old,new everywhere, and restart: every process can then decrypt with both
  3. set {name}=new,old everywhere, and restart: from now on the new secret encrypts
  4. with the same setting, run: elicit keys rotate
  5. {days} days after step 3, run elicit keys retire OLD: it says whether {name}=new is enough"""

# This command's clock may differ from the clocks of the processes that create links.
_LEEWAY = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The secrets in use and the store. The secrets are in the setting `variable`, or in `file`."""

    ring: Ring
    store: Store
    place: str
    variable: str | None = None
    file: KeyFile | None = None

    @property
    def source(self) -> str:
        return str(self.file.path) if self.file is not None else str(self.variable)


T = TypeVar("T")
COLUMNS = ("fingerprint", "wraps", "state", "ceased_at", "source", "store")


class SecretRow(Struct, frozen=True, kw_only=True):
    """A secret, its source, and how many keys of the store it wraps.

    `state` is `newest`, `older` or `not here`. A key that a `not here` secret wraps cannot be
    opened.
    """

    fingerprint: str
    wraps: int
    state: str
    ceased_at: datetime | None
    source: str
    store: str


def declare(parser: argparse.ArgumentParser) -> None:
    add_command = commands_of(parser)
    new = add_command(
        "new",
        help="print a new secret for ELICIT_SECRET",
        description="Print a new secret for ELICIT_SECRET. If a secret is already in use, elicit "
        "keys rotate explains how to replace it.",
    )
    new.set_defaults(run=_new)
    rotating = add_command(
        "rotate",
        help="replace the secret while servers run",
        description="With a key file: create a new secret, put it first in the file, and encrypt "
        "the store's data keys with it; running processes see it at once. With "
        "ELICIT_SECRET: encrypt the store's data keys with the first secret of the "
        "list. You can interrupt the command and run it again.",
    )
    rotating.add_argument(
        "--anyway",
        action="store_true",
        help="use the secret even if no process of this store has loaded it (ELICIT_SECRET only)",
    )
    rotating.add_argument(
        "--after-leak",
        action="store_true",
        help="use this if somebody could have the secret and a copy of the store: also create new "
        "data keys and re-encrypt everything; run it twice, as the output says",
    )
    rotating.set_defaults(run=partial(_run, rotate), now=utc_now())
    listing = add_command(
        "list",
        help="list the secrets by their fingerprints",
        description="List the secrets by their fingerprints, newest first, and how many data keys "
        "of the store each one encrypts. Data keys of a secret that is not listed here "
        "cannot be decrypted.",
    )
    add_json(listing, of=SecretRow, says="one JSON array, with an object for each row")
    add_filters(listing, of=SecretRow)
    listing.set_defaults(run=_list)
    retiring = add_command(
        "retire",
        help="remove an old secret from the key file",
        description="Remove an old secret from the key file. The command refuses while the secret "
        "encrypts a data key in any store that was opened with the file. With "
        "ELICIT_SECRET: say whether the secret can be removed.",
    )
    retiring.add_argument(
        "fingerprint",
        metavar="FINGERPRINT",
        help="the fingerprint as elicit keys list shows it, or its unique beginning",
    )
    retiring.add_argument(
        "--anyway",
        action="store_true",
        help="retire the secret even if links and sessions that use it are still valid: they end",
    )
    retiring.set_defaults(run=partial(_run, retire), now=utc_now())


async def rotate(
    keys: Keys, *, now: datetime, anyway: bool = False, after_leak: bool = False
) -> list[str]:
    """Wrap every data key under the newest secret. With a key file, first create a new secret.

    With `after_leak`, create new data keys as well, and seal all data again. If an earlier rotation
    was interrupted, complete that rotation without another new secret. Raises CommandRefused.
    """
    lines = list[str]()
    newest = keys.ring.newest
    if after_leak and await is_under_way(keys.store, keys.ring):
        pass  # the newest secret was created for the rotation that was interrupted
    elif keys.file is not None:
        # Rewrap before the file changes: this checks that the store uses one of these secrets.
        result = await rewrap(store=keys.store, ring=keys.ring)
        if result.done:
            lines.append(
                f"A rotation to {newest.hex()} was interrupted and is now finished: "
                f"{_keys(result.done)} of {keys.place} encrypted again. For another new secret, "
                "run the command again."
            )
            return lines
        if keys.file.put_in_front(new_secret(), before=newest, now=now):
            lines.append(
                f"{keys.ring.newest.hex()} was created, and is the newest in {keys.source}."
            )
        else:
            lines.append(f"Another rotation has just created {keys.ring.newest.hex()}.")
    elif len(keys.ring.fingerprints) == 1:
        raise CommandRefused(f"{keys.source} holds one secret. {_order(keys)}")
    elif not anyway and not await was_served(keys.store, newest):
        raise CommandRefused(
            f"No process of this store has ever loaded {newest.hex()}, the first of {keys.source}: "
            f"running processes could no longer decrypt anything. {_order(keys)}\nIf nothing is "
            "running: elicit keys rotate --anyway"
        )
    wrapped = await rewrap(store=keys.store, ring=keys.ring)
    lines.append(
        f"{_keys(wrapped.done)} of {keys.place} encrypted again with {keys.ring.newest.hex()}."
    )
    if wrapped.lost:
        lines.append(f"{_keys(wrapped.lost)} left unchanged: no secret here decrypts them.")
    if after_leak:
        return lines + await _after_leak(keys, now=now)
    if keys.variable is not None:
        lines.append(
            f"Do not change {keys.variable} yet: leave the older secrets in it until "
            f"{MAXIMUM_LIFE.days} days after the newest one became the first."
        )
    return lines


async def _after_leak(keys: Keys, *, now: datetime) -> list[str]:
    done = await reseal(keys.store, keys.ring, now=now)
    lines = [f"New data keys: {done.made}. Records encrypted again: {done.sealed}."]
    if done.lost:
        lines.append(f"Records left unchanged, because no data key decrypts them: {done.lost}.")
    if done.until is not None:
        lines.append(
            "A process that has not loaded the new data keys yet can still encrypt with the old "
            f"ones. Run this command again after {done.until:%Y-%m-%d %H:%M:%S} UTC: it encrypts "
            "those records again and deletes the old data keys."
        )
    elif done.dropped:
        lines.append(f"Old data keys deleted: {done.dropped}.")
    _, *older = keys.ring.fingerprints
    if older and keys.file is not None:
        lines.append(
            "Links and sessions of the old secret are still valid. To end them all now: "
            + " and ".join(f"elicit keys retire {one.hex()} --anyway" for one in older)
        )
    elif older:
        lines.append(
            f"Links and sessions of the other secrets in {keys.variable} are still valid. To end "
            "them all, remove those secrets everywhere now, and restart."
        )
    return lines


async def list_keys(keys: Keys) -> Table[SecretRow]:
    """List each secret by its fingerprint, the newest first, with the number of keys it wraps."""
    counted, secrets = await count_wrapped(keys.store), _secrets(keys)
    here = keys.ring.fingerprints
    rows = [
        SecretRow(
            fingerprint=one.hex(),
            wraps=counted.get(one, 0),
            state="newest" if one == here[0] else "older" if one in here else "not here",
            ceased_at=secrets[one].ceased_at if one in secrets else None,
            source=keys.source,
            store=keys.place,
        )
        for one in (*here, *sorted(counted.keys() - set(here)))
    ]
    return Table(rows=rows, columns=COLUMNS, nothing="There is no secret.")


async def retire(keys: Keys, *, fingerprint: str, now: datetime, anyway: bool = False) -> list[str]:
    """Remove an old secret from the key file if no key needs it. Raises CommandRefused."""
    there = {one.hex(): one for one in keys.ring.fingerprints}
    found: bytes = find_by_prefix(
        fingerprint.lower(), there, what=f"secret of {keys.source}", shown_by="keys list"
    )
    if found == keys.ring.newest:
        raise CommandRefused(
            f"{found.hex()} is the newest secret, which encrypts; first run: elicit keys rotate"
        )
    counted = await count_wrapped(keys.store)
    if not counted:
        raise CommandRefused(
            f"{keys.place} is empty, so it is probably not the store of your server: set "
            "ELICIT_STORE to the server's value."
        )
    if counted[found]:
        raise CommandRefused(
            f"{found.hex()} still encrypts {_keys(counted[found])} of {keys.place}, which would be "
            "lost; first run: elicit keys rotate"
        )
    if keys.file is None:
        sentence = (
            f"{found.hex()} encrypts nothing in {keys.place}: remove it from {keys.variable} once "
            f"it has not been the first secret anywhere for {MAXIMUM_LIFE.days} days, the longest "
            "life of a link. If another store uses this secret, run this command for that store "
            "too."
        )
        return [sentence]
    await _must_be_unneeded(keys, keys.file, found)
    ceased_at = _secrets(keys)[found].ceased_at
    until = None if ceased_at is None else ceased_at + MAXIMUM_LIFE + _LEEWAY
    if not anyway and (until is None or now < until):
        when = f"until {until:%Y-%m-%d %H:%M} UTC" if until is not None else "still"
        raise CommandRefused(
            f"Links and sessions of {found.hex()} can be valid {when}. To end them now: elicit "
            f"keys retire {found.hex()} --anyway"
        )
    keys.file.take_out(found)
    return [f"{found.hex()} is removed from {keys.source}; it no longer decrypts anything."]


async def _must_be_unneeded(keys: Keys, file: KeyFile, found: bytes) -> None:
    """Check that no other store of the key file needs the secret.

    Raises CommandRefused if another store needs the secret or cannot be checked.
    """
    for address in file.stores():
        if address == keys.store.address:
            continue
        try:
            number = await wrapped_in(address, found)
        except StoreUnavailable as error:
            raise CommandRefused(
                f"{address} was opened with {keys.source} too, and the command cannot check "
                f"whether that store needs {found.hex()}: {error.why}",
                "If the password is missing (passwords are not stored): set ELICIT_STORE to the "
                "address with its password and run elicit keys list. If the list shows 0 for "
                f"{found.hex()}, remove the address from {file.notes}, and run this command again.",
            ) from error
        except HasMoved as moved:
            if moved.address in file.stores():
                continue
            raise CommandRefused(
                f"{address} has moved to {moved.address}, which could need {found.hex()} and was "
                "not opened with this key file yet: set ELICIT_STORE to the new address (with its "
                "password), run elicit keys list, and then this command again."
            ) from moved
        if number:
            raise CommandRefused(
                f"{found.hex()} still encrypts {_keys(number)} of {address}, which would be lost; "
                f"first, with ELICIT_STORE={address}, run: elicit keys rotate"
            )
        if number is None:
            raise CommandRefused(
                f"{address} is missing (deleted, moved, or on a disk that is not mounted) and "
                f"could need {found.hex()}. If the store is lost, remove its address from "
                f"{file.notes}"
            )


def _new(_: argparse.Namespace) -> None:
    print_text(new_secret().decode())


def _run(work: Callable[..., Awaitable[list[str]]], options: argparse.Namespace) -> None:
    given = {name: value for name, value in vars(options).items() if name != "run"}
    for line in asyncio.run(_on_keys(os.environ, partial(work, **given))):
        print_text(line)


def _list(options: argparse.Namespace) -> None:
    table = asyncio.run(_on_keys(os.environ, list_keys, changes=False))
    by = filters_in(vars(options).copy())
    show_filtered(table, by, of=SecretRow, as_json=options.as_json)


async def _on_keys(
    environment: Mapping[str, str], work: Callable[[Keys], Awaitable[T]], *, changes: bool = True
) -> T:
    variable = next((name for name in SECRET_NAMES if environment.get(name)), None)
    file = key_file_of(environment)
    if file is not None and not file.path.exists():
        raise CommandRefused(
            f"No secret exists yet: ELICIT_SECRET is not set, and {file.path} does not exist "
            "(`elicit serve` creates it)."
        )
    settings = settings_for(environment)
    try:
        ring = file.ring() if file is not None else settings.ring
        store_url = without_password(settings.store)
        async with opened_store(settings) as store:
            await must_be_unfenced(store) if changes else await warn_if_fenced(store)
            return await _refusing(
                work,
                Keys(ring=ring, store=store, place=store_url, variable=variable, file=file),
                settings,
            )
    except (OSError, WeakSecret) as error:
        raise CommandRefused(f"The key file cannot be used: {error}") from error


async def _refusing(work: Callable[[Keys], Awaitable[T]], keys: Keys, settings: Settings) -> T:
    try:
        return await work(keys)
    except Unreadable as error:
        raise under_another_secret(settings) from error
    except StoreUnavailable as error:
        raise CommandRefused(
            f"The store stopped answering: {error.why}. The steps so far are saved; run the "
            "command again."
        ) from error


def _secrets(keys: Keys) -> dict[bytes, SecretSetting]:
    return {s.fingerprint: s for s in keys.file.read()} if keys.file is not None else {}


def _order(keys: Keys) -> str:
    return ORDER.format(name=keys.variable, days=MAXIMUM_LIFE.days)


def _keys(number: int) -> str:
    return "1 key" if number == 1 else f"{number} keys"
