"""The command line. A command's module declares its arguments.

The program starts in elicit_url.py. Only the module of the requested command is imported.
"""

import argparse
import gc
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from webapp.cli.arguments import sentence_of, with_ids

COMMANDS = {
    "serve": "serve an MCP server together with the pages that its tools need",
    "stdio": "serve an MCP server on stdin and stdout, for a client that starts it",
    "demo": "call a demo tool as an MCP client, and wait for you to open its link",
    "connect": "connect the account that a tool waits for, if no browser can open the pages",
    "pair": "print a bearer token for your MCP client and an address that pairs your browser",
    "operator": "print a one-time address that opens the operator's pages",
    "settings": "list the settings, and which are set",
    "doctor": "check the settings, the store and the providers, and say how to fix what is wrong",
    "backup": "back up the store and its key while servers run",
    "restore": "restore a backup into an empty store, or into a SQLite file that no server uses",
    "move": "move the store to another address, checking each row",
    "vacuum": "shrink the database file",
    "export": "export one person's data",
    "purge": "erase one person's data",
    "audit": "verify the audit, sign its current state, and list one owner's entries",
    "keys": "create, replace and retire secrets",
    "api-keys": "create, list and revoke keys of the HTTP API",
    "show": "show what an id refers to, and its history",
    "questions": "list questions and their outcomes",
    "payments": "list payments, and refund them",
    "accounts": "import accounts that another product connected",
    "approvals": "list approvals, and revoke them",
    "clients": "list how clients handled forms and links, and forget what a client did",
    "pending": "list open questions",
    "servers": "list the servers, or record that one has moved",
    "webhooks": "list incoming webhooks, and replay one",
    "events": "list the events that your addresses received, send them again, test an address",
    "notify": "send a test message to the people whom [notify] names",
}
# Commands in the module of another command, which has a function `declare_NAME` for each.
_MODULES = {
    "restore": "backup",
    "vacuum": "backup",
    "notify": "events",
    "pair": "operator",
    "pending": "questions",
    "show": "questions",
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
        return refusal.print_sentences()
    except BadPlugin as error:
        return CommandRefused(str(error)).print_sentences()
    except KeyboardInterrupt:
        return 130
    return status or 0


def parser_for(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser with the names of all commands and the arguments of the given one."""
    parser = argparse.ArgumentParser(
        prog="elicit",
        description="Serve MCP tools that ask people by links, and manage what they asked.",
    )
    parser.add_argument("--version", action="version", version=f"elicit-url {_version()}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, says in COMMANDS.items():
        command = commands.add_parser(name, help=says, description=sentence_of(says))
        if name in arguments[:1]:
            _declaration_of(name)(command)
    return parser


def module_of(name: str) -> str:
    """Return the name of the module that declares a command."""
    return f"webapp.cli.{_MODULES.get(name, name).replace('-', '_')}"


def _declaration_of(name: str) -> Callable[[argparse.ArgumentParser], Any]:
    """Import the command's module with garbage collection off, which saves a tenth of the start."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        module = import_module(module_of(name))
        declare: Callable[[argparse.ArgumentParser], Any] = getattr(
            module, f"declare_{name}" if name in _MODULES else "declare"
        )
        return declare
    finally:
        if was_enabled:
            gc.enable()


def _version() -> str:
    try:
        return version("elicit-url")
    except PackageNotFoundError:
        return "(not installed)"
