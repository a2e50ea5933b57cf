"""Lists of all commands: columns on a terminal, fields in a pipe, JSON for a program.

On a terminal there is a header, ids have the shortest unique length, times are ages, and text that
is too long for the line is cut. In a pipe the same columns are complete and separated by tabs,
without a header, and times are exact. `--json` prints one array with an object for each row. The
fields have the names of the row class's fields, which docs/reference/commands.md explains.

Risks: text from a tool, a provider or a model contains terminal control characters, or a line break
that makes one row look like two. A cell therefore has no control characters and no line breaks, and
JSON has only ASCII characters.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar, cast

import msgspec
from msgspec import Struct
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from webapp.command import CommandRefused
from webapp.operations.rows import CANDIDATES_NAMED, FORMER_FIELDS, text_of
from webapp.printing import print_text, printed

SHORTEST_ID = 8  # most ids begin with an 8-character timestamp
NARROWEST = 6  # minimum characters of a cell that is cut
_GAP = "  "
_AGES = (
    (365 * 86400, "year", "years"),
    (30 * 86400, "month", "months"),
    (86400, "day", "days"),
    (3600, "h", "h"),
    (60, "min", "min"),
)

R = TypeVar("R", bound=Struct)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Generic[R]):
    """The rows, the fields that become columns, and the sentence to print if there are no rows.

    `ids` are further ids from which a short id has to differ.
    """

    rows: Sequence[R]
    columns: Sequence[str]
    nothing: str
    ids: Sequence[str] = ()


def add_json(parser: argparse.ArgumentParser, *, of: type[Struct], says: str) -> None:
    """Add the option `--json`. `of` is the class of the rows."""
    parser.add_argument("--json", dest="as_json", action="store_true", help=says)
    parser.set_defaults(of=of)


def show_table(table: Table[R], *, as_json: bool, now: datetime) -> None:
    """Print the table as columns, as tab-separated fields, or as JSON."""
    if as_json:
        print_text(as_ascii([msgspec.to_builtins(row) for row in table.rows]))
        return
    if not table.rows:
        print_text(table.nothing, out=sys.stderr)
    for line in lines_of(table, width=terminal_width(), now=now):
        print_text(line)


def show_facts(row: Struct, *, as_json: bool) -> None:
    """Print the fields of one row: one field a line, and texts with several lines last."""
    if as_json:
        print_text(as_ascii(msgspec.to_builtins(row)))
        return
    values = _values(row)
    inner = {name: value for name, value in values.items() if _is_of_rows(value)}
    facts = _texts_of({name: value for name, value in values.items() if name not in inner})
    padded = max(map(len, facts), default=0)
    for name, text in sorted(facts.items(), key=lambda fact: "\n" in fact[1]):
        print_text(f"\n{text}" if "\n" in text else f"{name:{padded}}  {printed(text)}")
    for name, rows in inner.items():
        for number, each in enumerate(rows, 1):
            print_text(f"\n{name} {number}")
            about = _texts_of(each)
            padded = max(map(len, about), default=0)
            for field, text in about.items():
                print_text(f"  {field:{padded}}  {printed(' '.join(text.split()))}")


def _texts_of(values: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: text_of(value) for name, value in values.items() if value not in (None, {}, [], ())
    }


def _is_of_rows(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, Mapping) for each in cast("list[object]", value)
    )


def lines_of(
    table: Table[R], *, width: int | None, now: datetime, is_exact: bool = False
) -> list[str]:
    """Return the lines of the table. `width` is None for a pipe; `is_exact` prints no ages."""
    rows = [_values(row) for row in table.rows]
    if width is None:
        return ["\t".join(printed(text_of(row[name])) for name in table.columns) for row in rows]
    if not rows:
        return []
    short = shortened([*table.ids, *(str(row["id"]) for row in rows if row.get("id"))])
    since = None if is_exact else now
    body = [[_cell(name, row[name], short, since) for name in table.columns] for row in rows]
    heads = [_head(name) for name in table.columns]
    times = {name for row in rows for name in row if isinstance(row[name], datetime)}
    grid = Grid.grid(padding=(0, len(_GAP), 0, 0))
    for name, column in zip(table.columns, zip(heads, *body, strict=True), strict=True):
        widest = max(map(cell_len, column))
        is_whole = name == "id" or name in times
        grid.add_column(no_wrap=is_whole, min_width=None if is_whole else min(widest, NARROWEST))
    for row in [heads, *body]:
        grid.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in row))
    lines = Console(width=width, color_system=None).render_lines(grid, pad=False)
    return ["".join(segment.text for segment in line).rstrip() for line in lines]


def shortened(ids: Iterable[str]) -> Mapping[str, str]:
    """Return for each id a short prefix that no other id begins with."""
    ordered = sorted(set(ids))
    found = dict[str, str]()
    for number, id in enumerate(ordered):
        neighbours = [*ordered[max(number - 1, 0) : number], *ordered[number + 1 : number + 2]]
        length = SHORTEST_ID
        while any(other.startswith(id[:length]) for other in neighbours):
            length += 1
        # Do not shorten an id that looks like an option.
        found[id] = id if id.startswith("-") else id[:length]
    return found


def find_by_prefix(given: str, rows: Mapping[str, T], *, what: str, shown_by: str) -> T:
    """Return the row with this id or unique prefix. Raises CommandRefused."""
    if given in rows:
        return rows[given]
    meant = sorted(id for id in rows if id.startswith(given))
    if not meant:
        raise CommandRefused(f"There is no {what} {printed(given)}: elicit {shown_by} shows them.")
    if len(meant) > 1:
        short = shortened(rows)
        named = ", ".join(short[id] for id in meant[:CANDIDATES_NAMED])
        more = ", ..." if len(meant) > CANDIDATES_NAMED else ""
        raise CommandRefused(
            f"{len(meant)} ids begin with {printed(given)}: {named}{more}. Write one of them."
        )
    return rows[meant[0]]


def age(moment: datetime, now: datetime) -> str:
    """Return how long ago the moment was, or how soon it comes."""
    seconds = (now - moment).total_seconds()
    for unit, one, several in _AGES:
        count = int(abs(seconds) // unit)
        if count:
            words = f"{count} {one if count == 1 else several}"
            return f"{words} ago" if seconds > 0 else f"in {words}"
    return "just now" if seconds >= 0 else "in seconds"


def as_ascii(value: object) -> str:
    """Return the value as JSON in ASCII, without terminal control characters."""
    return json.dumps(value, indent=2).replace("\x7f", "\\u007f")


def terminal_width() -> int | None:
    """Return the terminal's width in columns, or None if the output is not a terminal."""
    if sys.stdout is None or not sys.stdout.isatty():
        return None
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdecimal() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except OSError:
        return 80


def _values(row: Struct) -> dict[str, Any]:
    names = (name for name in row.__struct_fields__ if name not in FORMER_FIELDS)
    return {name: getattr(row, name) for name in names}


def _head(name: str) -> str:
    """Return the head of a column: `is_live` becomes LIVE, `paid_at` becomes PAID."""
    return name.removeprefix("is_").removesuffix("_at").replace("_", " ").upper()


def _cell(name: str, value: Any, short: Mapping[str, str], now: datetime | None) -> str:
    """Return a field as text for a terminal. Without `now`, a time is exact instead of an age."""
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}" if now is None else age(value, now)
    text = " ".join(printed(text_of(value)).split())
    return (short.get(text, text) if name == "id" else text) or "-"
