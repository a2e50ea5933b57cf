"""The commands `elicit approvals`.

Like the command line itself it imports nothing of ours before that has checked whose it is.
"""

import argparse
import os
import re
from functools import partial

from webapp.cli_operator import say

# As `with_ids` leaves it, and with or without its owner's tag.
_ID = re.compile(r"(?:id:)?(?:[A-Za-z0-9_-]{20})?([A-Za-z0-9_-]{24})")


def add_approvals(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    listing = commands.add_parser(
        "list", help="list what people have allowed tools, the latest first"
    )
    listing.set_defaults(run=_list)
    revoke = commands.add_parser("revoke", help="end one: the next call asks again")
    revoke.add_argument("id", metavar="ID", type=_id, help="as elicit approvals list shows it")
    revoke.set_defaults(run=_revoke)
    clear = commands.add_parser("clear", help="end all, of everybody")
    clear.set_defaults(run=_clear)


def _list(_: argparse.Namespace) -> int:
    from webapp.operator import operate  # noqa: PLC0415 - only after the command line's check
    from webapp.operator_approvals import list_approvals  # noqa: PLC0415

    return operate(os.environ, list_approvals, say=say)


def _revoke(options: argparse.Namespace) -> int:
    from webapp.operator import operate  # noqa: PLC0415 - only after the command line's check
    from webapp.operator_approvals import revoke_approval  # noqa: PLC0415

    return operate(os.environ, partial(revoke_approval, id=options.id), say=say)


def _clear(_: argparse.Namespace) -> int:
    from webapp.operator import operate  # noqa: PLC0415 - only after the command line's check
    from webapp.operator_approvals import clear_approvals  # noqa: PLC0415

    return operate(os.environ, clear_approvals, say=say)


def _id(text: str) -> str:
    found = _ID.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no id: those have 24 letters, digits, - or _"
        )
    return found[1]
