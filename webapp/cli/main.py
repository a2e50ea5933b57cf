"""The command line: `elicit serve`, `elicit stdio`, `elicit demo`, `elicit keys` and others.

It starts in elicit_url.py. Each command imports what it needs and no more.
"""

import argparse
import os
import secrets
import sys
from collections.abc import Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version

from webapp.cli.operator import (
    add_approvals,
    add_backup,
    add_doctor,
    add_payments,
    add_pending,
    add_restore,
    add_servers,
    add_webhooks,
    say,
    with_ids,
)

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8765
_SECRET_BYTES = 48


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns 0, 1 if it did not work, 2 if it was asked for wrongly."""
    given = sys.argv[1:] if arguments is None else arguments
    options = _parser().parse_args(with_ids(given))
    try:
        status: int = options.run(options)
    except KeyboardInterrupt:
        status = 130
    return status


def _serve(options: argparse.Namespace) -> int:
    from webapp.cli.serve import serve  # noqa: PLC0415 - by this command alone

    return serve(
        options.server,
        environment=os.environ,
        host=options.host,
        port=options.port,
        has_sandbox=options.sandbox or None,
    )


def _stdio(options: argparse.Namespace) -> int:
    from webapp.cli.stdio import serve_stdio  # noqa: PLC0415 - by this command alone

    return serve_stdio(options.server, environment=os.environ, port=options.port)


def _demo(options: argparse.Namespace) -> int:
    from webapp.demo.client import demonstrate  # noqa: PLC0415 - by this command alone

    return demonstrate(options.url, mode=options.mode, tool=options.tool, walks=options.no_browser)


def _connect(options: argparse.Namespace) -> int:
    from webapp.cli.connect import connect_here  # noqa: PLC0415 - by this command alone

    return connect_here(os.environ, provider=options.provider, port=options.port)


def _pair(options: argparse.Namespace) -> int:
    from webapp.cli.serve import pair  # noqa: PLC0415 - by this command alone

    return pair(os.environ, port=options.port)


def _new_key(_: argparse.Namespace) -> int:
    say(secrets.token_urlsafe(_SECRET_BYTES))
    return 0


def _rotate_keys(options: argparse.Namespace) -> int:
    from webapp.cli.keys import on_keys, rotate  # noqa: PLC0415
    from webapp.connecting import utc_now  # noqa: PLC0415 - by this command alone

    work = partial(rotate, now=utc_now(), anyway=options.anyway, after_leak=options.after_leak)
    return on_keys(os.environ, work, say=say)


def _list_keys(_: argparse.Namespace) -> int:
    from webapp.cli.keys import list_keys, on_keys  # noqa: PLC0415 - by this command alone

    return on_keys(os.environ, list_keys, say=say)


def _retire_key(options: argparse.Namespace) -> int:
    from webapp.cli.keys import on_keys, retire  # noqa: PLC0415
    from webapp.connecting import utc_now  # noqa: PLC0415 - by this command alone

    work = partial(retire, fingerprint=options.fingerprint, now=utc_now(), anyway=options.anyway)
    return on_keys(os.environ, work, say=say)


def _version() -> str:
    try:
        return version("elicit-url")
    except PackageNotFoundError:
        return "(not installed)"


def _port(text: str) -> int:
    port = int(text) if text.isascii() and text.isdecimal() else -1
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port (0 to 65535; 0 takes a free one)")
    return port


def _shared_port(text: str) -> int:
    port = _port(text)
    if port == 0:
        raise argparse.ArgumentTypeError(
            "0 would be another port for each process, and links must outlive the one that made "
            "them: name a port"
        )
    return port


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="elicit",
        description="A tool awaits a person, who does something in a browser; then it goes on.",
    )
    parser.add_argument("--version", action="version", version=f"elicit-url {_version()}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    serve = commands.add_parser(
        "serve",
        help="serve an MCP server together with the pages that its tools need",
        description="Serve an MCPServer or FastMCP server together with the pages that its tools "
        "need. Settings are read from the environment; on your own machine none is needed.",
    )
    serve.add_argument(
        "server",
        nargs="?",
        metavar="MODULE:ATTRIBUTE",
        help="where your server is, such as my_tools:mcp; left out: the demo tools",
    )
    serve.add_argument("--host", default=DEFAULT_HOST, help="default: %(default)s")
    serve.add_argument(
        "--port", type=_port, default=DEFAULT_PORT, help="default: %(default)s; 0 takes a free one"
    )
    serve.add_argument(
        "--sandbox",
        action="store_true",
        help="with a sandbox beside it, on a port of its own, that plays the providers for your "
        "tools; the demo tools always have it",
    )
    serve.set_defaults(run=_serve)

    stdio = commands.add_parser(
        "stdio",
        help="serve an MCP server on stdin and stdout, for a client that starts it",
        description="Serve an MCPServer or FastMCP server on stdin and stdout, as the command that "
        "an MCP client starts, and the pages that its tools need on a port of this machine. "
        "Several of these share one store: the first serves the pages for all, and when it ends "
        "another does. Settings are read from the environment; none is needed.",
    )
    stdio.add_argument(
        "server", metavar="MODULE:ATTRIBUTE", help="where your server is, such as my_tools:mcp"
    )
    stdio.add_argument(
        "--port",
        type=_shared_port,
        default=DEFAULT_PORT,
        help="of the pages, at 127.0.0.1; default: %(default)s",
    )
    stdio.set_defaults(run=_stdio)

    demo = commands.add_parser(
        "demo",
        help="call a demo tool as an MCP client, and wait for you to open its link",
        description="Call a tool of a running server as an MCP client would, print the link, wait "
        "until you are done in the browser, and print the tool's result.",
    )
    demo.add_argument(
        "--url",
        default=f"http://{DEFAULT_HOST}:{DEFAULT_PORT}",
        help="the server's address; default: %(default)s",
    )
    demo.add_argument(
        "--no-browser",
        action="store_true",
        help="walk the pages over HTTP instead of opening a browser; without --tool and --mode: "
        "each demo tool on both protocol revisions",
    )
    demo.add_argument(
        "--mode",
        choices=("auto", "legacy", "2026-07-28"),
        help="the protocol revision; legacy is 2025-11-25; default: auto",
    )
    demo.add_argument(
        "--tool",
        metavar="NAME",
        help="the tool to call; default: all three of an account, a payment and a secret",
    )
    demo.set_defaults(run=_demo)

    connecting = commands.add_parser(
        "connect",
        help="connect the account that a tool waits for, where no browser reaches the pages",
        description="Connect the account that a tool of yours waits for, by a code that you enter "
        "in any browser, on any device. For servers that you reach by a terminal only.",
    )
    connecting.add_argument(
        "provider",
        nargs="?",
        metavar="PROVIDER",
        help="such as github; else whichever a tool waits for",
    )
    connecting.add_argument(
        "--port",
        type=_port,
        default=DEFAULT_PORT,
        help="of the server, at 127.0.0.1, unless ELICIT_URL says otherwise; default: %(default)s",
    )
    connecting.set_defaults(run=_connect)

    pairing = commands.add_parser(
        "pair",
        help="print the key and the address for a client and a browser that count as yours",
        description="Print a key that your MCP client sends, and an address that makes a browser "
        "yours, once. They are needed only where this machine cannot tell whose programs connect "
        "(a container).",
    )
    pairing.add_argument(
        "--port",
        type=_port,
        default=DEFAULT_PORT,
        help="of the server, at 127.0.0.1, unless ELICIT_URL says otherwise; default: %(default)s",
    )
    pairing.set_defaults(run=_pair)

    add_doctor(commands.add_parser("doctor", help="say what is wrong with settings, key and store"))
    add_backup(commands.add_parser("backup", help="copy the store and its key, while servers run"))
    add_restore(commands.add_parser("restore", help="put a backup back; no server may run"))
    _add_keys(commands.add_parser("keys", help="make, replace and retire secrets"))
    add_payments(commands.add_parser("payments", help="list what was paid, and give it back"))
    add_approvals(commands.add_parser("approvals", help="list what tools may do unasked, end it"))
    add_pending(commands.add_parser("pending", help="list what people are asked now"))
    add_servers(commands.add_parser("servers", help="list what is served here, say that it moved"))
    add_webhooks(commands.add_parser("webhooks", help="list what providers told, and replay it"))
    return parser


def _add_keys(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    new = commands.add_parser(
        "new",
        help="print a new secret for ELICIT_SECRET",
        description="Print a new secret for ELICIT_SECRET. With one that is in use already: "
        "elicit keys rotate says in which order it is replaced.",
    )
    new.set_defaults(run=_new_key)
    rotate = commands.add_parser(
        "rotate",
        help="replace the secret, while processes serve",
        description="In local use: make a new secret, put it first in the key file, and wrap what "
        "the store keeps under it; running processes see it at once. With ELICIT_SECRET: wrap what "
        "the store keeps under the first secret of the list. It may be interrupted and run again.",
    )
    rotate.add_argument(
        "--anyway",
        action="store_true",
        help="also under a secret that no process of this store has had yet (ELICIT_SECRET only)",
    )
    rotate.add_argument(
        "--after-leak",
        action="store_true",
        help="somebody may have the secret and a copy of the store: also make new data keys and "
        "seal everything anew; run it twice, as it says",
    )
    rotate.set_defaults(run=_rotate_keys)
    listing = commands.add_parser(
        "list",
        help="list the secrets by their fingerprints",
        description="List the secrets by their fingerprints, newest first, and how many keys of "
        "the store each one wraps.",
    )
    listing.set_defaults(run=_list_keys)
    retire = commands.add_parser(
        "retire",
        help="take an old secret out of the key file",
        description="Take an old secret out of the key file. Refused while it wraps a key in any "
        "store that was opened with the file. With ELICIT_SECRET: say whether it could be taken "
        "out.",
    )
    retire.add_argument("fingerprint", metavar="FINGERPRINT", help="as elicit keys list shows it")
    retire.add_argument(
        "--anyway",
        action="store_true",
        help="also while links and sessions made under it may live: they end",
    )
    retire.set_defaults(run=_retire_key)
