"""The command line. The module with a command's name declares the arguments of that command.

The program starts in elicit_url.py. Only the module of the requested command is imported.
"""

import argparse
import gc
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

from webapp.cli.arguments import with_ids

COMMANDS = {
    "serve": "serve an MCP server together with the pages that its tools need",
    "stdio": "serve an MCP server on stdin and stdout, for a client that starts it",
    "demo": "call a demo tool as an MCP client, and wait for you to open its link",
    "connect": "connect the account that a tool waits for, where no browser reaches the pages",
    "pair": "print a bearer token for a client and an address for a browser that count as yours",
    "settings": "list what can be set, and what is",
    "doctor": "say what is wrong with settings, key and store",
    "backup": "copy the store and its key, while servers run",
    "restore": "put a backup back; no server may run",
    "move": "move the store to another place, each row checked",
    "vacuum": "give the room of what was erased back to the disk",
    "export": "tell all that is kept of one person, as JSON",
    "purge": "erase what is kept of one person",
    "audit": "verify the audit, sign how far it has come, and list one owner's entries",
    "keys": "make, replace and retire secrets",
    "api-keys": "make, list and revoke keys of the HTTP API",
    "show": "show what an id is about, with all that happened to it",
    "questions": "list what people were asked, and what became of it",
    "payments": "list payments, and refund them",
    "approvals": "list approvals, and end them",
    "clients": "list what clients did with what they were sent, and forget it",
    "pending": "list what people are asked now",
    "servers": "list the servers, or say that one has moved",
    "webhooks": "list the webhooks that came, and replay one",
    "events": "list what your addresses were told of, send it again, try one out",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Return 0, 1 if the command failed, or 2 if it was called wrongly."""
    given = with_ids(sys.argv[1:] if arguments is None else arguments)
    options = parser_for(given).parse_args(given)
    from flows.hooks import BadPlugin  # noqa: PLC0415 - not needed for --help
    from webapp.command import CommandRefused  # noqa: PLC0415 - as above

    try:
        status: int | None = options.run(options)
    except CommandRefused as refusal:
        return refusal.tell()
    except BadPlugin as error:
        return CommandRefused(str(error)).tell()
    except KeyboardInterrupt:
        return 130
    return status or 0


def parser_for(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser with the names of all commands and the arguments of the given one."""
    parser = argparse.ArgumentParser(
        prog="elicit",
        description="A tool awaits a person, who does something in a browser; then it goes on.",
    )
    parser.add_argument("--version", action="version", version=f"elicit-url {_version()}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, says in COMMANDS.items():
        command = commands.add_parser(name, help=says)
        if name in arguments[:1]:
            _module_of(name).declare(command)
    return parser


def _module_of(name: str) -> ModuleType:
    """Import the command's module with garbage collection off, which saves a tenth of the start."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return import_module(f"webapp.cli.{name.replace('-', '_')}")
    finally:
        if was_enabled:
            gc.enable()


def _version() -> str:
    try:
        return version("elicit-url")
    except PackageNotFoundError:
        return "(not installed)"
