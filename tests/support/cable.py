"""A TCP proxy in front of a server, which a test can redirect, cut, freeze or unplug."""

import asyncio
import socket
from contextlib import suppress
from pathlib import Path
from typing import Self

_PIECE = 64 * 1024


class Cable:
    """A proxy from a loopback port to the socket of a server.

    New connections go to `leads_to`.
    """

    def __init__(self, leads_to: Path) -> None:
        self.leads_to = leads_to
        self.accepted = 0
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._server: asyncio.Server | None = None
        self._passing: set[asyncio.Task[None]] = set()
        self._filling: list[socket.socket] = []

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.mend()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()
        self._listener.close()

    async def mend(self) -> None:
        """Restore the proxy: accept connections and forward everything again."""
        for each in self._filling:
            each.close()
        self._filling.clear()
        self._is_open.set()
        if self._server is None:
            self._listener.listen(64)
            self._server = await asyncio.start_server(self._pass_on, sock=self._listener.dup())

    def freeze(self) -> None:
        """Accept connections but forward nothing, like a server that hangs."""
        self._is_open.clear()

    async def unplug(self) -> None:
        """Forward nothing and accept no connection, like a machine that is off."""
        self.freeze()
        assert self._server is not None
        self._server.close()
        self._server = None
        self._listener.listen(0)
        while True:  # until the accept queue is full
            waiting = socket.socket()
            waiting.setblocking(False)
            with suppress(BlockingIOError):
                waiting.connect(("127.0.0.1", self.port))
            self._filling.append(waiting)
            await asyncio.sleep(0)
            # TCP_INFO's state is 1 for an established connection.
            if waiting.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != 1:
                return

    async def cut(self) -> None:
        """Close every connection, and refuse new connections."""
        await self._stop()
        self._listener.close()

    async def cut_connections(self) -> None:
        """Close every connection, and accept new connections."""
        ended = tuple(self._passing)
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for each in self._filling:
            each.close()
        await self.cut_connections()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._passing.add(task)
        self.accepted += 1
        there = None
        try:
            await self._is_open.wait()
            back, there = await asyncio.open_unix_connection(str(self.leads_to))
            done, left = await asyncio.wait(
                {
                    asyncio.ensure_future(self._copy(reader, there)),
                    asyncio.ensure_future(self._copy(back, writer)),
                },
                return_when=asyncio.FIRST_COMPLETED,
            )
            for copying in left:
                copying.cancel()
            await asyncio.gather(*done, *left, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._passing.discard(task)
            writer.transport.abort()
            if there is not None:
                there.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await reader.read(_PIECE):
                await self._is_open.wait()
                writer.write(piece)
                await writer.drain()
