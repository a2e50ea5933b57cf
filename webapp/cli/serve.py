"""`elicit serve`: serve an author's server, or the demo tools, and the pages by HTTP."""

import argparse
import asyncio
import contextlib
import os
import socket
from functools import partial
from pathlib import Path
from typing import Any

from webapp.calls.replay import Replays
from webapp.cli.arguments import port
from webapp.cli.plugins import add_plugins, with_plugins
from webapp.command import CommandRefused, own_command, quieten, settings_for
from webapp.demo.server import demo_server
from webapp.http.port import PortUnusable, bind, listen, with_owner
from webapp.printing import print_text
from webapp.serving.announcing import announcement
from webapp.serving.finding import load, place_of
from webapp.serving.http_server import annex_of, loop_factory, serve_http
from webapp.serving.reloading import THIS_PROGRAM, serve_again
from webapp.serving.supervising import Parent, supervise
from webapp.settings.settings import DEFAULT_HOST, DEFAULT_PORT, DEFAULT_URL, Settings
from webapp.workers.relay import make_private

DEMO = "the demo"  # stored in place of a path; no path equals it


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Serve an MCP server together with the pages that its tools need. "
        "Settings are read from the environment; on your own machine none is needed."
    )
    parser.add_argument(
        "server",
        nargs="?",
        metavar="MODULE:ATTRIBUTE",
        help="your server, or the function that creates it, such as my_tools:mcp; a module with "
        "one server needs no :ATTRIBUTE; default: the server that ELICIT_SERVER names, or the demo "
        "tools",
    )
    parser.add_argument("--host", default=DEFAULT_HOST, help="default: %(default)s")
    parser.add_argument(
        "--port", type=port, default=DEFAULT_PORT, help="default: %(default)s; 0 means a free one"
    )
    parser.add_argument(
        "--sandbox",
        action="store_true",
        help="also run a sandbox that simulates the providers for your tools, on the port after "
        "--port, or on a free port if that one is in use; the demo tools always have it",
    )
    add_plugins(parser)
    parser.add_argument(
        "--reload",
        action="store_true",
        help="restart when a file in this folder changes, on the same socket; waiting calls resume "
        "when the client repeats them",
    )
    parser.add_argument(
        "--replay",
        action="store_true",
        help="for development: run each tool again after each question, as some clients do, and "
        "print how often its lines ran, and which side effects outside elicit.once were repeated",
    )
    parser.add_argument(
        "--workers",
        type=number_of_workers,
        default=1,
        metavar="N",
        help="the number of worker processes, on one socket and one store; a worker that dies is "
        "replaced, and SIGHUP restarts the workers one by one",
    )
    # Options that --reload and --workers pass to the processes that they start.
    parser.add_argument("--fd", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--parent-fd", type=int, help=argparse.SUPPRESS)
    parser.set_defaults(run=_run)


def number_of_workers(text: str) -> int:
    found = int(text) if text.isascii() and text.isdecimal() and len(text) < 4 else 0
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of workers (1 to 999)")
    return found


def _run(options: argparse.Namespace) -> int:
    for name in ("replay", "reload"):
        if options.workers > 1 and getattr(options, name):
            raise CommandRefused(f"--{name} uses one process: leave out --workers.", status=2)
    with contextlib.ExitStack() as stack:
        if options.fd is not None:
            listener = stack.enter_context(socket.socket(fileno=options.fd))
        else:
            listener = stack.enter_context(_bound(options))
        settings = with_plugins(
            settings_for(os.environ, host=options.host, port=listener.getsockname()[1]),
            options.plugin,
        )
        if options.reload:
            return _reload(options, settings, listener)
        if options.workers > 1:
            return _supervise(stack, options, settings, listener)
        parent = None
        if options.parent_fd is not None:
            parent = stack.enter_context(Parent(options.parent_fd))
        return _serve(stack, options, settings, listener, parent=parent)


def _name(options: argparse.Namespace, settings: Settings) -> str | None:
    """Return the name of the author's server, or None if the demo is served."""
    return settings.server if options.server is None else options.server


def _load(options: argparse.Namespace, settings: Settings, runner: asyncio.Runner) -> Any:
    """Return the server to serve: the author's, or the demo.

    Raises CommandRefused. The message names ELICIT_SERVER if the name comes from that setting.
    """
    name = _name(options, settings)
    try:
        return demo_server(settings.url) if name is None else load(name, run=runner.run)
    except CommandRefused as error:
        if options.server is not None:
            raise
        sentences = (f"ELICIT_SERVER: {sentence}" for sentence in error.sentences)
        raise CommandRefused(*sentences, status=error.status) from error


def _bound(options: argparse.Namespace) -> socket.socket:
    """Return a bound socket.

    Raises CommandRefused if the port is taken, but reports errors in the settings or the module
    first.
    """
    host, port = options.host, options.port
    try:
        return bind(host, port)
    except PortUnusable as error:
        settings = settings_for(os.environ, host=host, port=port)
        with asyncio.Runner() as runner:
            _load(options, settings, runner)
            refusal = runner.run(with_owner(error, host, port, url=settings.url))
        raise CommandRefused(str(refusal)) from error


def _reload(options: argparse.Namespace, settings: Settings, listener: socket.socket) -> int:
    if settings.store == "memory:":
        raise CommandRefused(
            "ELICIT_STORE: with --reload, memory: loses its data at each change; set a file, or "
            "unset it.",
            status=2,
        )
    arguments = _again(options)
    arguments += [f"--{name}" for name in ("sandbox", "replay") if getattr(options, name)]
    return serve_again(arguments, listener, folder=Path.cwd())


def _again(options: argparse.Namespace) -> list[str]:
    """Return the arguments for another process of this command."""
    plugins = [word for name in options.plugin for word in ("--plugin", name)]
    server = [options.server] if options.server else []
    return ["serve", *server, "--host", options.host, *plugins]


def _supervise(
    stack: contextlib.ExitStack,
    options: argparse.Namespace,
    settings: Settings,
    listener: socket.socket,
) -> int:
    if settings.store == "memory:":
        raise CommandRefused(
            "ELICIT_STORE: with --workers, memory: cannot be shared between processes; set a "
            "file or a server, or unset it.",
            status=2,
        )
    try:
        make_private(settings.processes.folder(settings.uid))
        listen(listener)
    except OSError as error:
        raise CommandRefused(
            f"XDG_RUNTIME_DIR: the workers cannot reach each other ({error}). Set it to a folder "
            "that only your user can enter."
        ) from error
    except PortUnusable as error:
        raise CommandRefused(str(error)) from error
    annex = None
    if _has_sandbox(options, settings):
        annex = stack.enter_context(annex_of(settings, listener))
    if settings.telemetry.metrics:
        from webapp.telemetry.metrics import counted_together  # noqa: PLC0415 - an optional dependency

        stack.enter_context(counted_together())
    quieten(log=settings.log)
    command = [*THIS_PROGRAM, *_again(options)]
    with asyncio.Runner() as runner:
        return runner.run(
            supervise(command, listener, settings=settings, number=options.workers, annex=annex)
        )


def _has_sandbox(options: argparse.Namespace, settings: Settings) -> bool:
    """Return True if the server has a sandbox. The demo on this machine always has one."""
    is_demo = _name(options, settings) is None
    return options.sandbox or settings.has_sandbox or (is_demo and settings.is_local)


def _serve(
    stack: contextlib.ExitStack,
    options: argparse.Namespace,
    settings: Settings,
    listener: socket.socket,
    *,
    parent: Parent | None = None,
) -> int:
    name = _name(options, settings)
    annex, sandbox = None, None if parent is None else parent.sandbox
    if parent is None and _has_sandbox(options, settings):
        annex = stack.enter_context(annex_of(settings, listener))
        sandbox = annex.sandbox
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        server = _load(options, settings, runner)
        quieten(log=settings.log)
        sandbox_url = None if sandbox is None else sandbox.url
        lines = announcement(settings, server.name, sandbox_url=sandbox_url)
        if name is None:
            lines.append(_how_to_try(settings))
        ready = partial(print_text, "\n".join(lines)) if parent is None else parent.ready(lines)
        module = DEMO if name is None else place_of(name)
        runner.run(
            serve_http(
                settings,
                server,
                listener,
                place=module,
                ready=ready,
                annex=annex,
                sandbox=sandbox,
                replays=Replays(lambda call: print_text(str(call))) if options.replay else None,
            )
        )
    return 0


def _how_to_try(settings: Settings) -> str:
    at = "" if settings.url == DEFAULT_URL else f" --url {settings.url}"
    return f"  try      {own_command()} demo{at}   (in a second terminal)"
