"""`elicit move`: move a store to another place, between any two kinds of store.

Risks: the secret stays behind, and the moved data cannot be opened. The command therefore says
which secret the new store needs, and records the new store's address in the key file.
"""

import argparse
import asyncio
import os
from collections import Counter
from contextlib import AbstractAsyncContextManager

from flows.errors import StoreUnavailable
from flows.shown import counted
from webapp.command import CommandRefused, store_refused, until_closed
from webapp.operations.rows import kind_word
from webapp.printing import print_text
from webapp.settings.settings import key_file_of
from webapp.stores import Store, holds_something, open_store
from webapp.stores.moving import Moved, NotMoved, move, moved_to, unfence
from webapp.stores.opening import is_postgres, is_shared

_VARIABLE = "env:"


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Move a store to another address, between any two kinds of store. Everybody on the machine "
        "can see the arguments of a command (ps). If an address contains a password, put the "
        "address into a variable and name the variable: elicit move env:ELICIT_STORE env:NEW_STORE."
    )
    parser.add_argument(
        "source",
        metavar="FROM",
        nargs="?",
        help="the current address, as in ELICIT_STORE, or env:NAME",
    )
    parser.add_argument(
        "target", metavar="TO", nargs="?", help="the new address, of an empty store, or env:NAME"
    )
    parser.add_argument(
        "--dry-run",
        dest="is_dry",
        action="store_true",
        help="say what would be moved or refused; move nothing",
    )
    parser.add_argument(
        "--unfence",
        metavar="ADDRESS",
        help="move nothing; let servers use the store at ADDRESS again: the old store of a move, "
        "or a copy of a PostgreSQL database; ADDRESS can be env:NAME",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    given = (options.source, options.target, options.unfence)
    match [each if each is None else _address_of(each) for each in given]:
        case str(source), str(target), None:
            work = _describe_move(source, target) if options.is_dry else _move(source, target)
        case None, None, str(address):
            work = _unfence(address)
        case _:
            raise CommandRefused(
                "Name both addresses (elicit move FROM TO), or use --unfence ADDRESS.", status=2
            )
    try:
        asyncio.run(work)
    except NotMoved as error:
        raise CommandRefused(str(error)) from error
    except StoreUnavailable as error:
        raise CommandRefused(
            f"The store stopped answering: {error.why}. Run the command again: it continues where "
            "it stopped."
        ) from error


def _address_of(argument: str) -> str:
    """Return the address itself, or the value of the named variable. Raises CommandRefused."""
    name = argument.removeprefix(_VARIABLE)
    if name == argument:
        return argument
    if not (address := os.environ.get(name)):
        raise CommandRefused(f"{argument}: {name} is not set; set it to the address.", status=2)
    return address


async def _move(source: str, target: str) -> None:
    await _must_hold_something(source)
    async with _opened(source) as old, _opened(target) as new:
        moved = await move(old, new)
        assert old.address is not None
        assert new.address is not None
        _report_moved(moved, old=old.address, new=new.address)
        await asyncio.to_thread(_report_secret, old.address, new.address)
    password = " (with its password)" if "@" in target else ""
    print_text(
        f"Set ELICIT_STORE to {new.address}{password} for every server, and restart them. They "
        f"answer 503 until then. To undo the move: elicit move --unfence {old.address}; that store "
        "lacks everything written from now on."
    )


def _report_moved(moved: Moved, *, old: str, new: str) -> None:
    if moved.was_before:
        print_text(f"{old} was moved before; {new} has {counted(moved.records, 'record')} now.")
    else:
        print_text(f"All of {old} is in {new}: {counted(moved.records, 'record')}, each compared.")


def _report_secret(old: str, new: str) -> None:
    """Say which secret the new store needs, and record the store's address in the key file."""
    key_file = key_file_of(os.environ)
    if key_file is None:
        print_text("The secret does not move: the servers need the current ELICIT_SECRET.")
    elif not key_file.path.exists() or old not in key_file.stores():
        print_text(
            f"The secret does not move, and {key_file.path} is not the key file of {old}: the "
            "servers need their current ELICIT_SECRET or key file."
        )
    else:
        key_file.note(new)
        print_text(
            f"Its key is {key_file.path}, which the new store uses too. A server that can be "
            "reached from other machines needs ELICIT_SECRET: set it to the content of that file."
        )


async def _describe_move(source: str, target: str) -> None:
    await _must_hold_something(source)
    is_there = await _holds_something(target)
    async with _opened(source) as store:
        if is_there or is_shared(target):  # opening a missing file would create it
            await _check_target(target, store, is_there=is_there)
        kinds = Counter([each.kind async for page in store.scan() for each in page])
        if why := await store.fenced():
            print_text(f"The store is fenced: {why}.")
    print_text(f"{counted(kinds.total(), 'record')} would be moved:")
    for kind, number in sorted(kinds.items()):
        print_text(f"  {number:>8}  {kind_word(kind)}")
    print_text("Nothing was moved.")


async def _check_target(target: str, source: Store, *, is_there: bool) -> None:
    """Open the target as a move would, and create its tables. Raises the errors of a move."""
    async with _opened(target) as new:
        if not is_there or await new.fenced() is not None:
            return
        why = await source.fenced()
        if new.address == source.address or why is None or moved_to(why) != new.address:
            raise NotMoved(f"{new.address} already has records. Name an empty store.")


async def _unfence(address: str) -> None:
    await _must_hold_something(address)
    async with _opened(address, accepts_server=True) as store:
        why = await unfence(store)
    if is_postgres(address):
        print_text("The server at that address can serve the store from now on.")
    if why is None:
        print_text("There was no fence.")
        return
    print_text(f"The fence is removed. It said: {why}.")
    print_text(
        "This store lacks everything written to the other one since. Serve only one of the two."
    )


async def _must_hold_something(address: str) -> None:
    """Raise CommandRefused if the address has no store. Opening the address would create one."""
    if not await _holds_something(address):
        raise CommandRefused("There is no store at the address that you named, or it is empty.")


async def _holds_something(address: str) -> bool:
    try:
        return await asyncio.to_thread(holds_something, address)
    except (StoreUnavailable, ValueError) as error:
        raise store_refused(error) from error


def _opened(address: str, *, accepts_server: bool = False) -> AbstractAsyncContextManager[Store]:
    return until_closed(open_store(address, watches=False, accepts_server=accepts_server))
