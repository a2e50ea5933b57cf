"""Filters for lists: the options of every list that select rows and limit their number.

Risks: a list that was cut looks complete. The number of rows beyond a limit is therefore printed on
standard error. In a pipe and in JSON there is no default limit.
"""

import argparse
import sys
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from webapp.cli.table import R, Table, show_table, terminal_width
from webapp.command import CommandRefused
from webapp.connecting import utc_now
from webapp.operations.rows import is_within, matches, moment_of, text_of
from webapp.printing import print_text

ON_A_TERMINAL: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """The conditions for rows: `where` for the text of fields, `since` and `until` for the time."""

    where: tuple[tuple[str, str], ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    limit: int | None = None


def add_filters(parser: argparse.ArgumentParser, *, of: type[Struct]) -> None:
    """Add the options that every list has."""
    fields = ", ".join(of.__struct_fields__)
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        type=_where,
        metavar="FIELD=VALUE",
        help="only rows whose field has this value, where * matches anything; if repeated, all "
        f"conditions have to match. The fields are {fields}",
    )
    moment = "a time in UTC, such as 2026-03-01T03:12, or an age, such as 90min, 12h or 7d"
    parser.add_argument("--since", type=_moment, metavar="TIME", help=f"only rows from {moment}")
    parser.add_argument(
        "--until",
        type=_moment,
        metavar="TIME",
        help="only rows from before a time, in the same formats as --since",
    )
    parser.add_argument(
        "--limit",
        type=_limit,
        metavar="N",
        help=f"the maximum number of rows; default: {ON_A_TERMINAL} on a terminal, and 0 (all) in "
        "a pipe and with --json",
    )


def filters_in(given: dict[str, Any]) -> Filters:
    """Remove the filters from the given options and return them."""
    return Filters(
        where=tuple(given.pop("where")),
        since=given.pop("since"),
        until=given.pop("until"),
        limit=given.pop("limit"),
    )


def show_filtered(table: Table[R], by: Filters, *, of: type[Struct], as_json: bool = False) -> None:
    """Print the wanted rows of the table. Raises CommandRefused, as `filtered` does."""
    show_table(filtered(table, by, of=of, as_json=as_json), as_json=as_json, now=utc_now())


def filtered(table: Table[R], by: Filters, *, of: type[Struct], as_json: bool) -> Table[R]:
    """Return the table with the wanted rows, and report how many others a limit removed.

    Raises:
        CommandRefused: A field does not exist, or the rows have no time.
    """
    unknown = [name for name, _ in by.where if name not in of.__struct_fields__]
    if unknown:
        fields = ", ".join(of.__struct_fields__)
        raise CommandRefused(f"--where: there is no field {unknown[0]}: {fields}", status=2)
    time = next((name for name in of.__struct_fields__ if _is_time(of, name)), None)
    if time is None and (by.since or by.until):
        raise CommandRefused("--since, --until: these rows have no time.", status=2)
    rows = [
        row
        for row in table.rows
        if all(matches(text_of(getattr(row, name)), value) for name, value in by.where)
        and (time is None or is_within(getattr(row, time), since=by.since, until=by.until))
    ]
    limit = by.limit
    if limit is None:
        limit = ON_A_TERMINAL if terminal_width() is not None and not as_json else 0
    shown = rows[:limit] if limit else rows
    if len(shown) < len(rows):
        print_text(f"{len(shown)} of {len(rows)} are shown: --limit 0 shows all.", out=sys.stderr)
    nothing = "No row matches these filters." if table.rows else table.nothing
    ids = [*table.ids, *(str(getattr(row, "id", "")) for row in table.rows)]
    return replace(table, rows=shown, nothing=nothing, ids=[id for id in ids if id])


def _is_time(of: type[Struct], name: str) -> bool:
    hint = str(of.__annotations__.get(name, ""))
    return "datetime" in hint


def _where(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not FIELD=VALUE, such as status=failed")
    return name.strip(), value.strip()


def _moment(text: str) -> datetime:
    try:
        return moment_of(text, now=utc_now())
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _limit(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rows; 0 means all")
    return int(text)
