"""`elicit serve`: an author's server, or the demo tools, over HTTP with the pages."""

import argparse
import asyncio
import contextlib
import os
import socket
from functools import partial
from pathlib import Path

from webapp.cli.arguments import port
from webapp.command import CommandRefused, own_command, quieten, settings_for
from webapp.demo.server import demo_server
from webapp.http.port import PortUnusable, bind
from webapp.printing import tell
from webapp.serving.announcing import announcement
from webapp.serving.finding import load, place_of
from webapp.serving.http_server import annex_of, loop_factory, serve_http
from webapp.serving.reloading import serve_anew
from webapp.settings.settings import DEFAULT_HOST, DEFAULT_PORT, DEFAULT_URL, Settings

DEMO = "the demo"  # what no path looks like


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Serve an MCP server together with the pages that its tools need. "
        "Settings are read from the environment; on your own machine none is needed."
    )
    parser.add_argument(
        "server",
        nargs="?",
        metavar="MODULE:ATTRIBUTE",
        help="where your server is, or the function that makes it, such as my_tools:mcp; left out: "
        "the demo tools",
    )
    parser.add_argument("--host", default=DEFAULT_HOST, help="default: %(default)s")
    parser.add_argument(
        "--port", type=port, default=DEFAULT_PORT, help="default: %(default)s; 0 takes a free one"
    )
    parser.add_argument(
        "--sandbox",
        action="store_true",
        help="with a sandbox beside it, on a port of its own, that plays the providers for your "
        "tools; the demo tools always have it",
    )
    parser.add_argument(
        "--reload",
        action="store_true",
        help="start anew when a file in this folder changes, on the same socket; calls that wait "
        "go on when they are made again",
    )
    parser.add_argument("--fd", type=int, help=argparse.SUPPRESS)  # of --reload, to itself
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    with contextlib.ExitStack() as stack:
        if options.fd is not None:
            listener = stack.enter_context(socket.socket(fileno=options.fd))
        else:
            listener = stack.enter_context(_bound(options.host, options.port))
        settings = settings_for(os.environ, host=options.host, port=listener.getsockname()[1])
        if options.reload:
            return _reload(options, settings, listener)
        return _serve(stack, options.server, settings, listener, has_sandbox=options.sandbox)


def _bound(host: str, port: int) -> socket.socket:
    """Raises Refused."""
    try:
        return bind(host, port)
    except PortUnusable as error:
        settings_for(os.environ, host=host, port=port)  # whatever is wrong with these comes first
        raise CommandRefused(str(error)) from error


def _reload(options: argparse.Namespace, settings: Settings, listener: socket.socket) -> int:
    if settings.store == "memory:":
        raise CommandRefused(
            "ELICIT_STORE: with --reload what is in memory: is lost at each change; name a file, "
            "or leave it out.",
            status=2,
        )
    arguments = ["serve", *([options.server] if options.server else []), "--host", options.host]
    if options.sandbox:
        arguments.append("--sandbox")
    return serve_anew(arguments, listener, folder=Path.cwd())


def _serve(
    stack: contextlib.ExitStack,
    name: str | None,
    settings: Settings,
    listener: socket.socket,
    *,
    has_sandbox: bool,
) -> int:
    # The demo has one, where only this machine reaches it.
    has_sandbox = has_sandbox or settings.has_sandbox or (name is None and settings.is_local)
    annex = stack.enter_context(annex_of(settings, listener)) if has_sandbox else None
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        server = demo_server(settings.url) if name is None else load(name, run=runner.run)
        quieten(log=settings.log)
        sandbox_url = None if annex is None else annex.sandbox.url
        lines = announcement(settings, server.name, sandbox_url=sandbox_url)
        if name is None:
            lines.append(_how_to_try(settings))
        ready = partial(tell, "\n".join(lines))
        place = DEMO if name is None else place_of(name)
        runner.run(serve_http(settings, server, listener, place=place, ready=ready, annex=annex))
    return 0


def _how_to_try(settings: Settings) -> str:
    at = "" if settings.url == DEFAULT_URL else f" --url {settings.url}"
    return f"  try      {own_command()} demo{at}   (in a second terminal)"
