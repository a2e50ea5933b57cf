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
        "Print a bearer token for your MCP client, and a one-time address that pairs a browser "
        "with you. You need them only if the server cannot see which user's programs connect (in a "
        "container)."
    )
    add_port(parser, default=DEFAULT_PORT)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    settings = settings_for(os.environ, port=options.port)
    if not settings.is_local or settings.identity.issuer is not None:
        raise CommandRefused("Pairing is for local servers without sign-in only.")
    lines = [
        *pairing_of(settings),
        "The address works once, within ten minutes, while the server runs.",
    ]
    tell("\n".join(lines))
