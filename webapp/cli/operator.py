"""`elicit operator`, `elicit pair`, and the functions that all operator commands share.

The shared functions run the work of a command on the store of the environment, and print its result
in the same way for every command. The work of a command is a function that returns sentences, a
table of rows, or one row.

Risks: a list omits rows that could not be read, and looks complete. The command therefore prints
the ids of such rows, and fails.

Risks: another person's data is exported or erased because a name matches two people. A person is
therefore identified by a unique prefix of the tag that lists show, or by the exact issuer and
subject.
"""

import argparse
import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct

from flows.crypto.tokens import Tokens
from flows.errors import StoreUnavailable, Unreadable
from flows.shown import counted
from webapp.cli.arguments import add_port
from webapp.cli.filters import add_filters, filters_in, show_filtered
from webapp.cli.table import Table, add_json, find_by_prefix, show_facts
from webapp.command import CommandRefused, connected, must_exist, quieten, settings_for
from webapp.connecting import utc_now
from webapp.identity.operators import link_address
from webapp.printing import print_text, printed
from webapp.records.owners import DATA_KEY, pages
from webapp.service import Service
from webapp.serving.announcing import pairing_of
from webapp.settings.settings import DEFAULT_PORT, Settings
from webapp.stores import Record

NAMED_AT_MOST = 5
OWNERS_SHOWN_BY = "questions list (or clients list, pending)"  # the lists with a column for owners
T = TypeVar("T")


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print an address that opens the operator's pages of the server on this machine, in one "
        "browser, for an hour. If people sign in, name the operators in ELICIT_OPERATORS instead."
    )
    add_port(parser, default=DEFAULT_PORT)
    parser.set_defaults(run=_print_address)


def _print_address(options: argparse.Namespace) -> None:
    settings = settings_for(os.environ, port=options.port)
    if not settings.is_local or settings.identity.issuer is not None:
        raise CommandRefused(
            "A one-time address works only for a local server without sign-in. Name the operators "
            "in ELICIT_OPERATORS (subjects of ELICIT_ISSUER, or a claim such as groups=ops), and "
            f"open {settings.url}/operator"
        )
    tokens = Tokens(settings.ring, origin=settings.url)
    print_text(f"  open     {link_address(tokens, url=settings.url, now=utc_now())}")
    print_text("The address works once, within ten minutes, while the server runs.")


def does(
    parser: argparse.ArgumentParser,
    work: Callable[..., Awaitable[Sequence[str]]],
    *,
    only_reads: bool = False,
) -> None:
    """Make the parser run `work`, whose arguments come from the options.

    With `only_reads`, the command refuses a missing store and does not create one. Commands made
    with `lists` and `shows` do the same.
    """
    parser.set_defaults(run=partial(_run, work, _say, only_reads=only_reads))


def lists(
    parser: argparse.ArgumentParser,
    work: Callable[..., Awaitable[Table[Any]]],
    *,
    of: type[Struct],
) -> None:
    """Make the parser run `work`, which returns a table that filters can narrow."""
    add_json(parser, of=of, says="one JSON array, with an object for each row")
    add_filters(parser, of=of)
    parser.set_defaults(run=partial(_run, work, partial(show_filtered, of=of)))


def shows(
    parser: argparse.ArgumentParser,
    work: Callable[..., Awaitable[Struct]],
    *,
    of: type[Struct],
    show: Callable[..., object] = show_facts,
) -> None:
    """Make the parser run `work`, which returns one row."""
    add_json(parser, of=of, says="one JSON object")
    parser.set_defaults(run=partial(_run, work, show))


def operate(
    environment: Mapping[str, str],
    work: Callable[[Service], Awaitable[T]],
    *,
    show: Callable[[T], object],
    only_reads: bool = True,
) -> None:
    """Run the work on the environment's store, and print the result. Raises CommandRefused."""
    quieten()
    settings = settings_for(environment)
    if only_reads:
        must_exist(settings, environment)
    given, unreadable = asyncio.run(_operate(settings, work))
    show(given)
    if unreadable:
        raise _not_all(unreadable)


def _run(
    work: Callable[..., Awaitable[T]],
    show: Callable[..., object],
    options: argparse.Namespace,
    *,
    only_reads: bool = True,
) -> None:
    given = dict(vars(options))
    how = {name: given.pop(name) for name in ("as_json",) if name in given}
    if "where" in given:
        how["by"] = filters_in(given)
    for name in ("run", "of"):
        given.pop(name, None)
    operate(os.environ, partial(work, **given), show=partial(show, **how), only_reads=only_reads)


def _say(lines: Sequence[str]) -> None:
    for line in lines:
        print_text(line)


async def _operate(
    settings: Settings, work: Callable[[Service], Awaitable[T]]
) -> tuple[T, Sequence[Record]]:
    """Return the result of the work, and the records that could not be read."""
    async with connected(settings) as service:
        try:
            rows = service.elicitations.rows
            unreadable = rows.unreadable = []
            if rows.chain is not None:
                rows.chain.by = "operator"
            return await work(service), unreadable
        except Unreadable as error:
            raise CommandRefused(f"The store cannot be read: {error}") from error
        except StoreUnavailable as error:
            raise CommandRefused(f"The store cannot be read: {error.why}") from error


def _not_all(unreadable: Sequence[Record]) -> CommandRefused:
    """Return the error for rows that could not be read. The other rows were listed."""
    kinds = sorted({record.kind for record in unreadable})
    ids = ", ".join(record.id.removeprefix(record.owner) for record in unreadable[:NAMED_AT_MOST])
    more = ", ..." if len(unreadable) > NAMED_AT_MOST else ""
    return CommandRefused(
        f"{counted(len(unreadable), 'record')} of the store cannot be read ({', '.join(kinds)}: "
        f"{printed(ids)}{more}); the output above has all others. To recover them, restore an "
        "earlier backup: elicit restore"
    )


def add_owner(parser: argparse.ArgumentParser, *, is_required: bool = True) -> None:
    parser.add_argument(
        "--owner",
        metavar="WHO",
        required=is_required,
        help="the owner as lists show it, or its unique beginning; or issuer and subject, such as "
        "https://login.example.com#ann",
    )


async def owner_of(service: Service, who: str) -> str:
    """Return the tag of the person. Raises CommandRefused if no person or several match."""
    store = service.elicitations.store
    issuer, mark, subject = who.rpartition("#")
    if mark:
        owner = service.elicitations.owners.tag(issuer=issuer, subject=subject)
        if await service.elicitations.owners.has(owner):
            return owner
        raise CommandRefused("Nothing was ever stored for that subject of that issuer.")
    there = {each.owner: each.owner async for page in pages(store, DATA_KEY) for each in page}
    return find_by_prefix(who, there, what="owner", shown_by=OWNERS_SHOWN_BY)


async def records_of(service: Service, owner: str) -> AsyncIterator[Sequence[Record]]:
    """Yield all records of the owner, of every kind."""
    async for page in service.elicitations.store.scan():
        if of_owner := [each for each in page if each.owner == owner]:
            yield of_owner


# `elicit pair`


def declare_pair(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print a bearer token for your MCP client, and a one-time address that pairs a browser "
        "with you. You need them only if the server cannot see which user's programs connect (in a "
        "container)."
    )
    add_port(parser, default=DEFAULT_PORT)
    parser.set_defaults(run=_run_pair)


def _run_pair(options: argparse.Namespace) -> None:
    settings = settings_for(os.environ, port=options.port)
    if not settings.is_local or settings.identity.issuer is not None:
        raise CommandRefused("Pairing is for local servers without sign-in only.")
    lines = [
        *pairing_of(settings),
        "The address works once, within ten minutes, while the server runs.",
    ]
    print_text("\n".join(lines))
