"""`elicit settings`: list each setting with its default, its purpose, and whether it is set.

Risks: a secret on a shared screen. The command therefore never prints a value.
"""

import argparse
import os
import re
import sys

from msgspec import Struct

from webapp.cli.filters import add_filters, filters_in, show_filtered
from webapp.cli.table import Table, add_json, show_facts
from webapp.command import CommandRefused
from webapp.printing import print_text, printed
from webapp.settings.settings import TABLE, unknown_names

COLUMNS = ("name", "is_set", "default", "says")
_LINK = re.compile(r"\[([^]]+)\]\(\.\./([^)]+)\)")


class SettingRow(Struct, frozen=True, kw_only=True):
    """A setting. `set_by` names the variables that set it; settings of providers have several."""

    name: str
    is_set: bool
    set_by: list[str]
    default: str
    says: str


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "List every setting with its default, whether it is set, and its purpose. No value is "
        "shown."
    )
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="show all settings whose names contain this"
    )
    add_json(parser, of=SettingRow, says="one JSON array, with an object for each row")
    add_filters(parser, of=SettingRow)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    name: str = options.name or ""
    wanted = name.upper()
    rows = [row for row in _rows() if wanted in row.name]
    if not rows:
        raise CommandRefused(
            f"No setting has {printed(name)} in its name: elicit settings lists all."
        )
    if options.name is None or options.as_json:
        table = Table(rows=rows, columns=COLUMNS, nothing="No setting matches.")
        by = filters_in(vars(options).copy())
        show_filtered(table, by, of=SettingRow, as_json=options.as_json)
    else:
        for number, row in enumerate(rows):
            print_text("\n" * (number > 0), end="")
            show_facts(row, as_json=False)
    unknown = unknown_names(os.environ)
    for sentence in unknown:
        print_text(f"elicit: {sentence}", out=sys.stderr)
    return 1 if unknown else 0


def _rows() -> list[SettingRow]:
    named = {row.name for row in TABLE}
    given = sorted(name for name, value in os.environ.items() if value.strip())
    rows = list[SettingRow]()
    for row in TABLE:
        set_by = [n for n in given if row.name == n or (n not in named and row.match(n))]
        rows.append(
            SettingRow(
                name=row.name,
                is_set=bool(set_by),
                set_by=set_by,
                default=row.shown_default.replace("`", ""),
                says=_LINK.sub(r"\1 (docs/\2)", row.says).replace("`", ""),
            )
        )
    return rows
