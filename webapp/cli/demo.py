"""`elicit demo`: a client that calls the tools of a running server, in webapp.demo.client."""

import argparse
import json
from typing import Any, cast

from webapp.command import CommandRefused
from webapp.demo.client import DemoCall, demonstrate
from webapp.settings.settings import DEFAULT_HOST, DEFAULT_PORT


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Call a tool of a running server as an MCP client would, print the link, wait until you "
        "are done in the browser, and print the tool's result. Without --tool: call each tool that "
        "needs no arguments; at the demo server, call the tools that ask for an account, a payment "
        "and a secret."
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="NAME=VALUE",
        help="an argument for the tool, converted to the type in the tool's schema; lists and "
        "objects in JSON",
    )
    parser.add_argument(
        "--args", metavar="JSON", type=_object, help="the arguments as one JSON object"
    )
    parser.add_argument(
        "--url",
        default=f"http://{DEFAULT_HOST}:{DEFAULT_PORT}",
        help="the server's address, with or without /mcp; default: %(default)s",
    )
    parser.add_argument(
        "--no-browser",
        dest="walks",
        action="store_true",
        help="answer on the pages over HTTP, as the person, instead of opening a browser; without "
        "--mode: on both protocol revisions",
    )
    parser.add_argument(
        "--mode",
        choices=("auto", "legacy", "2026-07-28"),
        help="the protocol revision; legacy is 2025-11-25; default: auto",
    )
    parser.add_argument("--tool", metavar="NAME", help="the tool to call")
    parser.set_defaults(run=_run)


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f'{text!r} is not a JSON object, such as {{"x": 1}}')
    return cast("dict[str, Any]", found)


def _run(options: argparse.Namespace) -> int:
    if options.tool is None and (options.words or options.args):
        raise CommandRefused("Arguments belong to one tool: name it with --tool.", status=2)
    asked = DemoCall(
        mode=options.mode,
        tool=options.tool,
        words=options.words,
        given=options.args or {},
        walks=options.walks,
    )
    return demonstrate(options.url, asked)
