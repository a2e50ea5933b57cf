"""The replacement of an author's own `run()` by `add_pages(server)`, which also serves pages.

Risks: the library's own server does not know the user of a connection, trusts forwarded headers,
and shares stdout with tools that print. Its runners are therefore replaced by our runners, which
serve the library's application like `elicit serve` and `elicit stdio`. Arguments of `run()` that
our runners cannot support are rejected by name.
"""

import contextlib
import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer

from webapp.command import CommandRefused, quieten, settings_for
from webapp.http.port import PortUnusable, bind
from webapp.mcp.callers import must_be_named
from webapp.mcp.tools import is_fastmcp
from webapp.printing import print_text
from webapp.server import MCP_PATH
from webapp.serving.announcing import announcement
from webapp.serving.finding import place_in
from webapp.serving.http_server import annex_of, serve_http
from webapp.serving.stdio_server import must_be_local, own_pages, redirect_stdio, serve_stdio
from webapp.settings.settings import DEFAULT_HOST, DEFAULT_PORT

_MCP_SERVER: type[Any] = MCPServer  # without the class's type parameter, which is not needed here
_SET_BY_SERVER = "the server of the pages sets this itself"
_HOSTS = "ELICIT_URL and ELICIT_ORIGINS set the allowed hosts and origins"
# Arguments of the libraries' runners that cannot be supported, with the reason.
_NOT_TAKEN: Mapping[str, str] = {
    "event_store": _SET_BY_SERVER,
    "transport_security": _HOSTS,
    "host_origin_protection": _HOSTS,
    "allowed_hosts": _HOSTS,
    "allowed_origins": _HOSTS,
    "uvicorn_config": _SET_BY_SERVER,
    "sockets": "use host= and port=",
}


def add_pages(server: Any) -> None:
    """Make the server's own `run()` serve the pages that its tools need.

    Settings are read from the environment when the server runs.

    Args:
        server: An MCPServer or a FastMCP server.

    Raises:
        TypeError: `server` is neither of the two.
        ValueError: The server has no name of its own.
    """
    if isinstance(server, Server):
        raise TypeError(
            "add_pages does not work with a low-level Server, because its author opens the "
            "streams that it runs on. Serve it with `elicit serve module:attribute` or `elicit "
            "stdio module:attribute`, or pass it to webapp.create_app."
        )
    if not isinstance(server, _MCP_SERVER) and not is_fastmcp(server):
        raise TypeError(
            "add_pages takes an MCPServer or a FastMCP server, but this is a "
            f"{type(server).__name__}. To make an ASGI application, use webapp.create_app."
        )
    must_be_named(server)
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    running = Running(server, _Maker.of(frame.f_back))
    runners = running.of_fastmcp() if is_fastmcp(server) else running.of_sdk()
    for name, runner in runners.items():
        setattr(server, name, runner)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Maker:
    """The author's code that holds the server: a module, or a factory function in it."""

    variables: Mapping[str, Any]
    function: str | None

    @classmethod
    def of(cls, frame: FrameType) -> "_Maker":
        is_module = frame.f_code.co_name == "<module>"
        return cls(variables=frame.f_globals, function=None if is_module else frame.f_code.co_name)

    def place_of(self, server: object) -> str:
        """Return the server's origin, the same text as for `elicit serve`."""
        named = (name for name, value in self.variables.items() if value is server)
        spec = self.variables.get("__spec__")
        return place_in(
            spec.name if spec is not None else str(self.variables.get("__name__")),
            self.variables.get("__file__"),
            next(named, None) or self.function or "mcp",
        )


class Running:
    """The replaced runners of one server."""

    def __init__(self, server: Any, maker: _Maker) -> None:
        self._server = server
        self._maker = maker

    def of_sdk(self) -> Mapping[str, Callable[..., Awaitable[None]]]:
        """Return the replacements of MCPServer's runners by name."""

        async def over_http(
            *,
            host: str = DEFAULT_HOST,
            port: int = 8000,
            streamable_http_path: str = MCP_PATH,
            **options: Any,
        ) -> None:
            await self._over_http(host, port, path=streamable_http_path, options=options)

        return {
            "run_stdio_async": self._over_stdio,
            "run_sse_async": _over_sse,
            "run_streamable_http_async": over_http,
        }

    def of_fastmcp(self) -> Mapping[str, Callable[..., Awaitable[None]]]:
        """Return the replacements of FastMCP's runners by name."""
        import fastmcp  # noqa: PLC0415 - an optional library
        from fastmcp.utilities.cli import log_server_banner  # noqa: PLC0415 - as above
        from fastmcp.utilities.logging import temporary_log_level  # noqa: PLC0415 - as above

        async def over_stdio(
            *, show_banner: bool = True, log_level: str | None = None, **_: Any
        ) -> None:
            with temporary_log_level(log_level):
                if show_banner:
                    log_server_banner(server=self._server)
                await self._over_stdio()

        async def over_http(
            *,
            show_banner: bool = True,
            transport: str = "http",
            host: str | None = None,
            port: int | None = None,
            log_level: str | None = None,
            path: str | None = None,
            stateless: bool | None = None,
            **options: Any,
        ) -> None:
            if transport == "sse":
                await _over_sse()
            usual = fastmcp.settings
            if stateless is not None:
                options.setdefault("stateless_http", stateless)
            with temporary_log_level(log_level):
                if show_banner:
                    log_server_banner(server=self._server)
                await self._over_http(
                    usual.host if host is None else host,
                    usual.port if port is None else port,
                    path=usual.streamable_http_path if path is None else path,
                    options=options,
                )

        return {"run_stdio_async": over_stdio, "run_http_async": over_http}

    async def _over_stdio(self) -> None:
        settings, own, annex = settings_for(os.environ), None, None
        must_be_local(settings)
        port = urlsplit(settings.url).port or DEFAULT_PORT
        with contextlib.ExitStack() as stack:
            if settings.has_sandbox:
                settings, own, annex = own_pages(stack, port=port)
            streams = stack.enter_context(_restored(redirect_stdio()))
            quieten(log=settings.log)
            await serve_stdio(
                settings,
                self._server,
                streams,
                port=port,
                place=self._place(),
                annex=annex,
                own=own,
                option="ELICIT_URL",
            )

    async def _over_http(self, host: str, port: int, *, path: str, options: dict[str, Any]) -> None:
        _must_be_taken(options, path=path)
        try:
            listener = bind(host, port, option="port= of run()")
        except PortUnusable as error:
            # raises the settings' own error if they do not allow this host or port
            settings_for(os.environ, host=host, port=port)
            raise CommandRefused(str(error)) from error
        with contextlib.ExitStack() as stack:
            stack.enter_context(listener)
            settings = settings_for(os.environ, host=host, port=listener.getsockname()[1])
            annex = (
                stack.enter_context(annex_of(settings, listener)) if settings.has_sandbox else None
            )
            sandbox_url = None if annex is None else annex.sandbox.url
            quieten(log=settings.log)
            lines = announcement(settings, self._server.name, sandbox_url=sandbox_url)
            await serve_http(
                settings,
                self._server,
                listener,
                place=self._place(),
                ready=partial(print_text, "\n".join(lines)),
                annex=annex,
                options=options,
            )

    def _place(self) -> str:
        return self._maker.place_of(self._server)


async def _over_sse(**_: Any) -> None:
    raise CommandRefused(
        "The pages cannot be served over the transport sse, which the protocol has deprecated. "
        "Use streamable-http."
    )


def _must_be_taken(options: dict[str, Any], *, path: str) -> None:
    """Raise CommandRefused for unsupported arguments. Falsy values count as not given."""
    if path.rstrip("/") != MCP_PATH:
        raise CommandRefused(
            f"run() was given the path {path!r}, but a server with pages always serves MCP at "
            f"{MCP_PATH}. Remove the argument."
        )
    for name, why in _NOT_TAKEN.items():
        if options.pop(name, None):
            raise CommandRefused(
                f"run() was given {name}=, which a server with pages does not support ({why}). "
                "Remove the argument, or serve webapp.create_app(...) with your own ASGI server."
            )


@contextlib.contextmanager
def _restored(streams: tuple[int, int]) -> Generator[tuple[int, int]]:
    """Restore the program's own stdin and stdout when the block ends."""
    try:
        yield streams
    finally:
        sys.stdout.flush()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
