"""`elicit serve`: an author's server, or the demo tools, over HTTP with the pages."""

import argparse
import asyncio
import contextlib
import os
from functools import partial

from webapp.cli.arguments import port
from webapp.command import CommandRefused, own_command, quieten, settings_for
from webapp.demo.server import demo_server
from webapp.http.port import PortUnusable, bind
from webapp.printing import tell
from webapp.serving.announcing import announcement
from webapp.serving.finding import load, place_of
from webapp.serving.http_server import annex_of, loop_factory, serve_http
from webapp.settings.settings import DEFAULT_HOST, DEFAULT_PORT, DEFAULT_URL, Settings

DEMO = "the demo"  # what no path looks like


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Serve an MCPServer or FastMCP server together with the pages that its tools need. "
        "Settings are read from the environment; on your own machine none is needed."
    )
    parser.add_argument(
        "server",
        nargs="?",
        metavar="MODULE:ATTRIBUTE",
        help="where your server is, such as my_tools:mcp; left out: the demo tools",
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
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    with contextlib.ExitStack() as stack:
        return _serve_bound(
            stack, options.server, host=options.host, port=options.port, has_sandbox=options.sandbox
        )


def _serve_bound(
    stack: contextlib.ExitStack, name: str | None, *, host: str, port: int, has_sandbox: bool
) -> int:
    try:
        listener = stack.enter_context(bind(host, port))
    except PortUnusable as error:
        settings_for(os.environ, host=host, port=port)  # whatever is wrong with these comes first
        raise CommandRefused(str(error)) from error
    settings = settings_for(os.environ, host=host, port=listener.getsockname()[1])
    # The demo has one, where only this machine reaches it.
    has_sandbox = has_sandbox or (name is None and settings.is_local)
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
