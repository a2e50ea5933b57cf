"""Serving from the command line: the socket, the server, the signals, trouble in plain words."""

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import sys
import traceback
from collections.abc import Generator, Mapping
from typing import Any

import uvicorn

from flows.errors import ElicitError, Unreadable
from webapp.app import open_app
from webapp.demo.server import demo_server
from webapp.served import find_server
from webapp.settings import BadSettings, Settings, read_settings
from webapp.stores import Store, open_store
from webapp.stores.store import StoreUnavailable

_GRACE_SECONDS = 3
_BACKLOG = 2048
# At INFO they log every address they ask for, and there are tokens in those.
TALKATIVE_LOGGERS = ("httpx", "httpx2", "httpcore", "httpcore2", "mcp")


def serve(name: str | None, *, environment: Mapping[str, str], host: str, port: int) -> int:
    """Serve the server of that name (None: the demo's) until a signal; the exit status."""
    listener, why_not = _bind(host, port)
    try:
        bound = listener.getsockname()[1] if listener is not None else port
        try:
            settings = read_settings(environment, host=host, port=bound)
        except BadSettings as error:
            return _refuse(*error.problems, status=2)
        if listener is None:
            return _refuse(why_not)
        try:
            server = demo_server(settings.url) if name is None else find_server(name)
        except (ImportError, TypeError) as error:
            return _refuse(str(error))
        except Exception:  # noqa: BLE001 - the author's module may raise anything, and it is shown
            traceback.print_exc()
            return _refuse(f"{name} could not be imported; what it raised stands above.")
        quieten()
        return asyncio.run(_serve(settings, server, listener, is_demo=name is None))
    finally:
        if listener is not None:
            listener.close()


def quieten(level: int = logging.WARNING) -> None:
    """Keep addresses out of the log, whatever a server's author configured for the root logger."""
    for logger in TALKATIVE_LOGGERS:
        logging.getLogger(logger).setLevel(level)
    logging.getLogger("mcp.server.mcpserver.server").addFilter(_is_no_answer)


def _is_no_answer(record: logging.LogRecord) -> bool:
    """False for a person's no and its like, which the library logs as a crash with a traceback."""
    error = record.exc_info[1] if record.exc_info else None
    while error is not None:
        if isinstance(error, ElicitError):
            return False
        error = error.__cause__
    return True


async def _serve(settings: Settings, server: Any, listener: socket.socket, *, is_demo: bool) -> int:
    try:
        store = await open_store(settings.store)
    except ValueError as error:
        return _refuse(f"ELICIT_STORE: {error}", status=2)
    except StoreUnavailable as error:
        return _refuse(f"The store cannot be opened: {error}")
    try:
        return await _serve_on(settings, server, listener, store, is_demo=is_demo)
    finally:
        await store.aclose()


async def _serve_on(
    settings: Settings, server: Any, listener: socket.socket, store: Store, *, is_demo: bool
) -> int:
    async with contextlib.AsyncExitStack() as stack:
        try:
            app = await stack.enter_async_context(open_app(settings, server, store=store))
        except Unreadable:
            return _refuse(
                f"{settings.store} was made under another secret: set ELICIT_SECRET to that one "
                "(or new,old), or set ELICIT_STORE to another store."
            )
        try:
            listener.listen(_BACKLOG)
        except OSError as error:
            return _refuse(_why_not_bound(error, *listener.getsockname()[:2]))
        config = uvicorn.Config(
            app,
            lifespan="off",
            proxy_headers=False,  # the guard alone reads forwarded headers
            server_header=False,
            access_log=False,
            log_config=None,
            log_level="warning",
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        running = _Server(config)
        stack.enter_context(running.stopped_by_signals())
        _announce(settings, server.name, is_demo=is_demo)
        await running.serve(sockets=[listener])
    return 0


class _Server(uvicorn.Server):
    """uvicorn that stops when told, and leaves it to us to end the process after the store."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    @contextlib.contextmanager
    def stopped_by_signals(self) -> Generator[None]:
        """Within it a signal ends the serving, also one that comes before the serving began."""
        loop = asyncio.get_running_loop()
        caught = (signal.SIGINT, signal.SIGTERM)
        for number in caught:
            loop.add_signal_handler(number, self._stop, number)
        try:
            yield
        finally:
            for number in caught:
                loop.remove_signal_handler(number)

    def _stop(self, number: int) -> None:
        # Calls that are held and pages that listen are cut off, which would be reported as errors.
        for logger in ("uvicorn.error", "mcp"):
            logging.getLogger(logger).setLevel(logging.CRITICAL)
        self.handle_exit(number, None)


def _bind(host: str, port: int) -> tuple[socket.socket | None, str]:
    """A socket with that port, not yet listening, or why there is none."""
    listener = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        if listener is not None:
            listener.close()
        return None, _why_not_bound(error, host, port)
    return listener, ""


def _why_not_bound(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"Port {port} of {host} is taken by another program; "
            "stop that one, or choose another with --port."
        )
    return f"Port {port} of {host} cannot be used: {error.strerror or error}."


def _announce(settings: Settings, name: str, *, is_demo: bool) -> None:
    lines = [
        f"{name} is served.",
        f"  address  {settings.url}",
        f"  MCP      {settings.url}/mcp",
        f"  store    {settings.store}",
        "  stop     Ctrl+C",
    ]
    if is_demo:
        at = "" if settings.url == "http://127.0.0.1:8765" else f" --url {settings.url}"
        lines.append(f"  try      .venv/bin/elicit demo{at}   (in a second terminal)")
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def _refuse(*sentences: str, status: int = 1) -> int:
    for sentence in sentences:
        sys.stderr.write(f"elicit: {sentence}\n")
    return status
