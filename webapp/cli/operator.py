"""What the commands of an operator have in common: work on the store of this environment.

Work says sentences, or gives a table of rows or one row, which are shown in one way for all.

What could go wrong: a list that leaves out what it could not read, and looks whole. So that is
told, and the command has failed.
"""

import argparse
import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct

from flows.errors import StoreUnavailable, Unreadable
from flows.payments.unresolved import UnresolvedPayment
from webapp.cli.filters import Filters, add_filters, filtered, filters_in
from webapp.cli.table import Table, add_json, show_facts, show_table
from webapp.command import CommandRefused, connected, must_exist, quieten, settings_for
from webapp.connecting import utc_now
from webapp.printing import printed, tell
from webapp.records.values import (
    KINDS,
    DoneOnce,
    EarlyEvent,
    Reconciliation,
    Standing,
    StoredWebhook,
)
from webapp.service import Service
from webapp.settings.settings import Settings
from webapp.stores import Record

OWNER_CHARACTERS = 6
NAMED_AT_MOST = 5
_KIND_WORDS = {
    KINDS[UnresolvedPayment]: "unresolved payment",
    KINDS[StoredWebhook]: "webhook",
    KINDS[EarlyEvent]: "early webhook",
    KINDS[Reconciliation]: "reconciliation of payments",
    KINDS[DoneOnce]: "result of once",
    KINDS[Standing]: "list of open questions",
}
T = TypeVar("T")


def does(
    parser: argparse.ArgumentParser,
    work: Callable[..., Awaitable[Sequence[str]]],
    *,
    only_reads: bool = False,
) -> None:
    """The command is this work, which gets the arguments by their names.

    A command that only reads refuses a missing store instead of making one, as those below do.
    """
    parser.set_defaults(run=partial(_run, work, _say, only_reads=only_reads))


def lists(
    parser: argparse.ArgumentParser,
    work: Callable[..., Awaitable[Table[Any]]],
    *,
    of: type[Struct],
) -> None:
    """The same of work that gives a table, of rows of that class, which options narrow."""
    add_json(parser, of=of, says="one JSON array, with an object for each")
    add_filters(parser, of=of)
    parser.set_defaults(run=partial(_run, work, partial(_list, of=of)))


def shows(
    parser: argparse.ArgumentParser,
    work: Callable[..., Awaitable[Struct]],
    *,
    of: type[Struct],
    show: Callable[..., object] = show_facts,
) -> None:
    """The same of work that gives one row."""
    add_json(parser, of=of, says="one JSON object")
    parser.set_defaults(run=partial(_run, work, show))


def operate(
    environment: Mapping[str, str],
    work: Callable[[Service], Awaitable[T]],
    *,
    show: Callable[[T], object],
    only_reads: bool = True,
) -> None:
    """Do the work on the store of that environment, and show what it gives. Raises Refused."""
    quieten()
    settings = settings_for(environment)
    if only_reads:
        must_exist(settings, environment)
    given, left_out = asyncio.run(_operate(settings, work))
    show(given)
    if left_out:
        raise _not_all(left_out)


def counted(records: int) -> str:
    return "1 record" if records == 1 else f"{records} records"


def kind_word(kind: str) -> str:
    """What an operator reads of a kind of record."""
    return _KIND_WORDS.get(kind, kind)


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
        tell(line)


def _list(table: Table[Any], *, of: type[Struct], by: Filters, as_json: bool) -> None:
    show_table(filtered(table, by, of=of, as_json=as_json), as_json=as_json, now=utc_now())


async def _operate(
    settings: Settings, work: Callable[[Service], Awaitable[T]]
) -> tuple[T, Sequence[Record]]:
    """What it gives, and what it could not read."""
    async with connected(settings) as service:
        try:
            rows = service.elicitations.rows
            left_out = rows.left_out = []
            if rows.chain is not None:
                rows.chain.by = "operator"
            return await work(service), left_out
        except Unreadable as error:
            raise CommandRefused(f"The store cannot be read: {error}") from error
        except StoreUnavailable as error:
            raise CommandRefused(f"The store cannot be read: {error.why}") from error


def _not_all(left_out: Sequence[Record]) -> CommandRefused:
    """Rows that were damaged, or put there by somebody else: the others are listed."""
    kinds = sorted({record.kind for record in left_out})
    ids = ", ".join(record.id.removeprefix(record.owner) for record in left_out[:NAMED_AT_MOST])
    more = ", ..." if len(left_out) > NAMED_AT_MOST else ""
    return CommandRefused(
        f"{counted(len(left_out))} of the store cannot be read ({', '.join(kinds)}: "
        f"{printed(ids)}{more}); what can be read stands above. A backup from before has them: "
        "elicit restore"
    )
