"""`elicit connect`: connect an account that a tool waits for, from a terminal."""

import argparse
import asyncio
import os
import sys
from datetime import datetime, timedelta
from functools import partial

from msgspec import Struct

from flows.errors import ElicitError, StoreUnavailable, Unreadable
from webapp.cli.arguments import add_port
from webapp.cli.device_flow import (
    LONGEST_QUOTATION,
    Terminal,
    chosen,
    connect_by_code,
    open_questions,
    plain,
)
from webapp.cli.filters import add_filters, filtered, filters_in
from webapp.cli.operator import operate
from webapp.cli.table import Table, add_json, show_table
from webapp.command import CommandRefused, connected, quieten, settings_for, under_another_secret
from webapp.connecting import utc_now
from webapp.printing import tell
from webapp.records.ids import tail_of
from webapp.service import Service
from webapp.settings.settings import DEFAULT_PORT, Settings

COLUMNS = ("id", "provider", "tool", "server", "scopes", "account", "asked_at")


class WaitingRow(Struct, frozen=True, kw_only=True):
    """An account that a tool waits for. `account` is its name if the tool needs that account."""

    id: str
    provider: str
    tool: str
    server: str
    scopes: list[str]
    account: str | None
    asked_at: datetime


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Connect the account that your tool waits for. You enter a code in any browser, on any "
        "device. Use this for a server that you can reach only by a terminal."
    )
    parser.add_argument(
        "provider",
        nargs="?",
        metavar="PROVIDER",
        help="such as github; default: the provider that a tool waits for",
    )
    parser.add_argument(
        "--list",
        dest="only_lists",
        action="store_true",
        help="only list the accounts that tools wait for",
    )
    add_json(parser, of=WaitingRow, says="the list as one JSON array, with an object for each")
    add_filters(parser, of=WaitingRow)
    add_port(parser, default=DEFAULT_PORT)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.only_lists or options.as_json:
        by = filters_in(vars(options).copy())

        def show(table: Table[WaitingRow]) -> None:
            wanted = filtered(table, by, of=WaitingRow, as_json=options.as_json)
            show_table(wanted, as_json=options.as_json, now=utc_now())

        operate(os.environ, partial(list_waiting, provider=options.provider), show=show)
        return 0
    quieten()
    settings = settings_for(os.environ, port=options.port)
    return asyncio.run(_connect(settings, options.provider))


async def list_waiting(service: Service, *, provider: str | None) -> Table[WaitingRow]:
    """List the accounts that tools of this machine's own user wait for, oldest first."""
    rows = list[WaitingRow]()
    for one in await open_questions(service, provider=provider):
        terms = service.kinds.accounts.terms(one)
        rows.append(
            WaitingRow(
                id=tail_of(one),
                provider=terms.provider,
                tool=one.asked.tool,
                server=one.asked.server,
                scopes=list(terms.scopes),
                account=terms.account,
                asked_at=one.created_at,
            )
        )
    nothing = "None of your tools waits for an account."
    return Table(rows=rows, columns=COLUMNS, nothing=nothing)


async def _connect(settings: Settings, provider: str | None) -> int:
    terminal = Terminal(say=tell, choose=_choose, is_right=_is_right, pause=_pause)
    try:
        async with connected(settings) as service:
            waiting = await open_questions(service, provider=provider)
            if not waiting:
                raise CommandRefused(
                    "None of your tools waits for an account. Call the tool first, and leave it "
                    "waiting."
                )
            asked = await chosen(service, waiting, terminal)
            if asked is None:
                raise CommandRefused("You chose no account, so nothing was done.")
            is_connected = await connect_by_code(service, asked, terminal)
    except Unreadable as error:
        raise under_another_secret(settings) from error
    except StoreUnavailable as error:
        raise CommandRefused(plain(error.why, limit=LONGEST_QUOTATION)) from error
    except ElicitError as error:
        raise CommandRefused(plain(str(error), limit=LONGEST_QUOTATION)) from error
    return 0 if is_connected else 1


async def _choose(number: int) -> int | None:
    line = await _line(f"Which one? [1-{number}] ")
    return (
        int(line) if line.isascii() and line.isdigit() and len(line) <= len(str(number)) else None
    )


async def _is_right(question: str) -> bool:
    return (await _line(f"{question} [y/N] ")).lower() in ("y", "yes")


async def _line(prompt: str) -> str:
    """Return the line that the person types, or "" at the end of the input."""
    tell(prompt, end="")
    line: str = await asyncio.to_thread(sys.stdin.readline)
    return line.strip()


async def _pause(duration: timedelta) -> None:
    await asyncio.sleep(duration.total_seconds())
