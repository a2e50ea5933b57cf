"""`elicit stdio`: an author's server on stdin and stdout, started by an MCP client."""

import argparse
import asyncio
import contextlib
import os

from webapp.cli.arguments import port
from webapp.cli.plugins import add_plugins, with_plugins
from webapp.command import quieten, settings_for
from webapp.serving.finding import load, place_of
from webapp.serving.stdio_server import must_be_local, own_pages, redirect_stdio, serve_stdio
from webapp.settings.settings import DEFAULT_PORT


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Serve an MCP server on stdin and stdout, as the command that an MCP client starts, and "
        "the pages that its tools need on a port of this machine. Several such processes share one "
        "store: the first one serves the pages for all, and when it ends, another one takes over. "
        "Settings are read from the environment; none is required."
    )
    parser.add_argument(
        "server",
        metavar="MODULE:ATTRIBUTE",
        help="your server, or the function that creates it, such as my_tools:mcp",
    )
    parser.add_argument(
        "--port",
        type=_shared_port,
        default=DEFAULT_PORT,
        help="the port of the pages, at 127.0.0.1; default: %(default)s",
    )
    parser.add_argument(
        "--sandbox",
        action="store_true",
        help="also run a sandbox that simulates the providers for your tools; each process then "
        "has its own pages and sandbox, on other ports if the usual ports are in use",
    )
    add_plugins(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    settings, own, annex = settings_for(os.environ, port=options.port), None, None
    settings = with_plugins(settings, options.plugin)
    must_be_local(settings)
    with contextlib.ExitStack() as stack:
        if options.sandbox or settings.has_sandbox:
            settings, own, annex = own_pages(stack, port=options.port)
            settings = with_plugins(settings, options.plugin)
        streams = redirect_stdio()
        with asyncio.Runner() as runner:
            server = load(options.server, run=runner.run)
            quieten(log=settings.log)
            module = place_of(options.server)
            runner.run(
                serve_stdio(
                    settings, server, streams, port=options.port, place=module, annex=annex, own=own
                )
            )
    return 0


def _shared_port(text: str) -> int:
    found = port(text)
    if found == 0:
        raise argparse.ArgumentTypeError(
            "0 would mean a different port for each process, but links have to outlive the process "
            "that created them: name a port"
        )
    return found
