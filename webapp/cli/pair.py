"""`elicit pair`: print a token for a client and an address for a browser of this user."""

import argparse
import os

from webapp.cli.arguments import add_port
from webapp.command import CommandRefused, settings_for
from webapp.printing import tell
from webapp.serving.announcing import pairing_of
from webapp.settings.settings import DEFAULT_PORT


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print a bearer token for your MCP client, and an address that makes a browser yours, "
        "once. They are needed only where this machine cannot tell whose programs connect (a "
        "container)."
    )
    add_port(parser, default=DEFAULT_PORT)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    settings = settings_for(os.environ, port=options.port)
    if not settings.is_local or settings.identity.issuer is not None:
        raise CommandRefused("Where people sign in, or beyond this machine, nothing is paired.")
    lines = [*pairing_of(settings), "The address works once, for ten minutes, while it serves."]
    tell("\n".join(lines))
