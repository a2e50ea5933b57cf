"""Hosts: programs that serve the tested application, and the nginx in front of some of them.

The tests open a listening socket first, and then start a host that inherits the socket. A request
that arrives early waits until the host has started, so no test has to poll.
"""

import asyncio
import os
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import httpx

from flows.crypto.tokens import Ring, Tokens
from tests.hosts.nginx import log_of, nginx
from tests.support.cli import PROJECT, environment_of
from tests.support.leaks import LEAKS
from tests.support.mcp_server import Person, ServerEnv, new_browser
from tests.support.processes import error_of, killed, start
from tests.support.programs import running
from tests.support.serving import bound, free_port
from webapp.connecting import utc_now
from webapp.identity.sessions import address_of, key_of

SECRET = "s" * 44
MODULE = "tests.hosts.shop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A running host: its public address and its process."""

    url: str
    process: Process
    log: Callable[[], str]  # returns the host's log until now
    proxy_log: Callable[[], str] = str  # returns the log of a proxy in front of the host

    @property
    def key(self) -> dict[str, str]:
        """The authorization header that the operator's MCP client sends."""
        return {"authorization": f"Bearer {key_of(Ring([SECRET.encode()]))}"}

    @property
    def calls(self) -> ServerEnv:
        """An environment that connects clients to the host.

        Its `service` is None, because the service runs in the host's process.
        """
        return ServerEnv(url=self.url, service=None, settings=None, posts=None)  # type: ignore[arg-type]

    @asynccontextmanager
    async def browser(self) -> AsyncIterator[httpx.AsyncClient]:
        async with new_browser() as browser:
            yield browser

    @asynccontextmanager
    async def person(self) -> AsyncIterator[Person]:
        """Provide the server's operator, with a paired browser."""
        tokens = Tokens(Ring([SECRET.encode()]), origin=self.url)
        async with self.browser() as browser:
            person = Person(browser)
            paired = await person.press(address_of(tokens, url=self.url, now=utc_now()))
            assert paired.status == 200, paired.text
            yield person


class Host(Protocol):
    """A way to serve the application: a row of `HOSTS` in table.py."""

    @property
    def name(self) -> str: ...
    @property
    def says(self) -> str:
        """The author's command or code to start the host, as a line of Markdown."""
        ...

    @property
    def own(self) -> Mapping[str, str]:
        """The promises that do not hold for this host. Maps their names to notes for the table."""
        ...

    def served(
        self, folder: Path, *, extra: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[Served]:
        """Serve `tests.hosts.shop` with the settings in `extra`.

        {origin} in the value of a setting is replaced by the host's origin.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedHost:
    """A host that inherits its listening socket from the test.

    Attributes:
        command: The command that starts the host. {fd} is replaced by the socket's number, {app} by
            the application, and {root_path} by the part of the path that nginx strips.
        path: The path of the server's public URL.
        proxy: None if there is no nginx in front of the host. `keeps` forwards the path unchanged.
            `takes off` strips the start of the path.
        taken: The start of the path that nginx strips; None strips the whole `path`.
    """

    name: str
    says: str
    command: Sequence[str]
    app: str = "app"
    path: str = ""
    proxy: str | None = None
    taken: str | None = None
    own: Mapping[str, str] = field(default_factory=dict[str, str])

    @asynccontextmanager
    async def served(
        self, folder: Path, *, extra: Mapping[str, str] | None = None
    ) -> AsyncIterator[Served]:
        with bound("127.0.0.1") as listener:
            listener.listen(128)
            port = listener.getsockname()[1]
            front = free_port() if self.proxy else port
            url = f"http://127.0.0.1:{front}{self.path}"
            async with self._started(listener, url=url, folder=folder, extra=extra) as served:
                listener.close()  # only the host has the socket, so it closes with the host
                if self.proxy is None:
                    yield served
                    return
                async with nginx(folder, front, port, path=self.path, takes_off=self._taken):
                    yield replace(served, proxy_log=lambda: log_of(folder))

    @property
    def _taken(self) -> str:
        return (self.taken or self.path) if self.proxy == "takes off" else ""

    @asynccontextmanager
    async def _started(
        self, listener: socket.socket, *, url: str, folder: Path, extra: Mapping[str, str] | None
    ) -> AsyncIterator[Served]:
        origin = url.removesuffix(self.path)
        settings = {
            "ELICIT_URL": url,
            "ELICIT_SECRET": SECRET,
            "ELICIT_STORE": f"sqlite:///{folder}/store.db",
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
            **{name: value.replace("{origin}", origin) for name, value in (extra or {}).items()},
        }
        folder.chmod(0o700)  # noqa: ASYNC240 - one call
        app = f"{MODULE}:{self.app}"
        words = {"fd": listener.fileno(), "app": app, "root_path": self._taken}
        written = LEAKS.listen(f"the log of {self.name}")
        process = await start(
            *(word.format(**words) for word in self.command if word.format(**words)),
            name=self.name,
            stdout=written.fileno(),
            cwd=PROJECT,
            env=environment_of(folder, settings),
            pass_fds=[listener.fileno()],
        )
        try:
            yield Served(url=url, process=process, log=lambda: written.text() + error_of(process))
        finally:
            if process.returncode is None:
                process.terminate()
            await _ended(process)
            written.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHost:
    """A program that opens its own port and reports when it serves requests.

    {port} in `command` is replaced by the port.
    """

    name: str
    says: str
    command: Sequence[str]
    own: Mapping[str, str] = field(default_factory=dict[str, str])

    @asynccontextmanager
    async def served(
        self, folder: Path, *, extra: Mapping[str, str] | None = None
    ) -> AsyncIterator[Served]:
        port = free_port()
        command = [word.format(port=port) for word in self.command]
        settings = {"ELICIT_SECRET": SECRET, "ELICIT_URL": f"http://127.0.0.1:{port}"}
        settings["ELICIT_STORE"] = f"sqlite:///{folder}/store.db"
        named = {k: v.format(origin=settings["ELICIT_URL"]) for k, v in (extra or {}).items()}
        more = {**settings, **named}
        async with running(*command, home=folder, cwd=PROJECT, extra=more) as program:
            process, output = program.process, program.output
            yield Served(url=program.url, process=process, log=lambda: output + error_of(process))


async def _ended(process: Process) -> None:
    """Wait until the process ends, so that its last output is read."""
    try:
        async with asyncio.timeout(300):
            await process.wait()
    finally:
        await killed(process)
