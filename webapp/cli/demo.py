"""`elicit demo`: a client that calls the demo's tools, in webapp.demo.client."""

import argparse

from webapp.demo.client import demonstrate
from webapp.settings.settings import DEFAULT_HOST, DEFAULT_PORT


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Call a tool of a running server as an MCP client would, print the link, wait until you "
        "are done in the browser, and print the tool's result."
    )
    parser.add_argument(
        "--url",
        default=f"http://{DEFAULT_HOST}:{DEFAULT_PORT}",
        help="the server's address; default: %(default)s",
    )
    parser.add_argument(
        "--no-browser",
        dest="walks",
        action="store_true",
        help="walk the pages over HTTP instead of opening a browser; without --tool and --mode: "
        "each demo tool on both protocol revisions",
    )
    parser.add_argument(
        "--mode",
        choices=("auto", "legacy", "2026-07-28"),
        help="the protocol revision; legacy is 2025-11-25; default: auto",
    )
    parser.add_argument(
        "--tool",
        metavar="NAME",
        help="the tool to call; default: all three of an account, a payment and a secret",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    return demonstrate(options.url, mode=options.mode, tool=options.tool, walks=options.walks)
