"""`elicit accounts import`: store accounts that another product connected.

Risks: tokens in the output or in the history of a shell. So tokens come from a file or from stdin
only, and no line of the output contains a value of the file.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

from webapp.cli.arguments import commands_of
from webapp.cli.operator import does
from webapp.command import CommandRefused
from webapp.oauth.importing import Import
from webapp.printing import print_text
from webapp.service import Service

SHOWN_AT_MOST = 50  # refused lines
_SAYS = {
    "imported": "imported",
    "replaced": "replaced",
    "unchanged": "unchanged",
    "kept": "left unchanged (already connected here)",
}


def declare(parser: argparse.ArgumentParser) -> None:
    add_command = commands_of(parser)
    words = "store accounts that another product connected, from JSON lines"
    one = add_command("import", help=words)
    one.add_argument(
        "file", metavar="FILE", help="a file with one account on each line; - is stdin"
    )
    one.add_argument(
        "--server",
        required=True,
        help="the name of the server or application that uses the accounts",
    )
    one.add_argument("--issuer", help="the issuer of the subjects, for lines without an issuer")
    one.add_argument(
        "--replace", action="store_true", help="replace accounts that are connected here already"
    )
    one.add_argument("--dry-run", action="store_true", help="check the lines, and write nothing")
    does(one, import_accounts)


async def import_accounts(
    service: Service, file: str, server: str, issuer: str | None, *, replace: bool, dry_run: bool
) -> list[str]:
    """Import the accounts of a file. Raises CommandRefused with a sentence for each bad line."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")  # noqa: ASYNC240
    except (OSError, UnicodeDecodeError) as error:
        raise CommandRefused(f"{file} cannot be read: {error}") from None
    about = Import(server=server, issuer=issuer, replaces=replace, is_dry=dry_run)
    done = await service.kinds.accounts.importing.run(text.split("\n"), about)
    counts = Counter[str](line.done for line in done)
    counted = [f"{counts[word]} {_SAYS[word]}" for word in _SAYS if counts[word]]
    summary = f"{'Dry run: ' if dry_run else ''}{', '.join(counted) or 'no account imported'}."
    if not counts["refused"]:
        return [summary]
    print_text(summary)
    refused = [line for line in done if line.done == "refused"]
    sentences = [f"Line {line.number}: {line.why}" for line in refused[:SHOWN_AT_MOST]]
    if len(refused) > SHOWN_AT_MOST:
        sentences.append(f"{len(refused) - SHOWN_AT_MOST} more lines are refused.")
    raise CommandRefused(*sentences)
