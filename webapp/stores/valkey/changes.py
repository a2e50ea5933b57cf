"""Find changes by other openings of a Valkey store: a message names the records to read.

Risks: a message that is published while the connection is down is lost without an error. Watchers
are therefore asked to read their records again when the connection is back, and every 15 seconds,
because a cluster may lose a message between its nodes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, cast

from msgspec import DecodeError, msgpack
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as LostConnection

from webapp.stores.lanes import Gathering, first
from webapp.stores.store import Record, Watch, Watches, WatchHint
from webapp.stores.valkey.server import FAILED, ValkeyServer, stop

LOOK_AGAIN_SECONDS = 15.0
_SILENCE_SECONDS = 5.0  # after this time without a message, send a PING
_TRY_AGAIN_SECONDS = 0.2
_NAMES_AT_ONCE = 1000
_decode = msgpack.Decoder(tuple[str, list[str]]).decode


class ValkeyChanges:
    """A subscription that lasts as long as the store is open, even without watches."""

    def __init__(
        self,
        server: ValkeyServer,
        *,
        channel: str,
        opening: str,
        read: Callable[[Sequence[str]], Awaitable[Sequence[Record | None]]],
    ) -> None:
        """`read` returns the records with the given names, or None for each missing one."""
        self._server = server
        self._channel = channel
        self._opening = opening
        self._read_records = read
        self._names: Gathering[str] = Gathering(self._read, fit=first(_NAMES_AT_ONCE))
        self._watches = Watches()
        self._task: asyncio.Task[None] | None = None
        self._connection: AbstractConnection | None = None
        self._loop = asyncio.get_running_loop()
        self._next_look = self._loop.call_later(LOOK_AGAIN_SECONDS, self._look_again)

    async def start(self) -> None:
        """Subscribe to the channel. Raises the library's own errors."""
        self._connection = await self._subscribed()
        self._task = asyncio.create_task(self._listen(self._connection))

    def watch(self) -> Watch:
        """Return a new watch that misses no change from now on."""
        return self._watches.open()

    async def aclose(self) -> None:
        """End the watches and the subscription."""
        self._next_look.cancel()
        self._watches.end()
        if self._task is not None:
            await stop(self._task)
        if self._connection is not None:
            await self._connection.disconnect(nowait=True)
        await self._names.finish()

    async def _listen(self, connection: AbstractConnection) -> None:
        while True:
            with suppress(*FAILED):
                await self._receive(connection)
            await connection.disconnect(nowait=True)
            connection = self._connection = await self._subscribed_again()
            self._watches.notify(None)

    async def _subscribed(self) -> AbstractConnection:
        connection = self._server.new_connection()
        try:
            await connection.send_command("SUBSCRIBE", self._channel)
            await connection.read_response()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection

    async def _subscribed_again(self) -> AbstractConnection:
        while True:
            with suppress(*FAILED):
                return await self._subscribed()
            await asyncio.sleep(_TRY_AGAIN_SECONDS)

    async def _receive(self, connection: AbstractConnection) -> None:
        """Receive published messages. Raises LostConnection if the server is gone."""
        is_asked, moves = False, self._server.one.moves
        while True:
            answer = cast("Any", await connection.read_response(timeout=_SILENCE_SECONDS))
            if self._server.one.moves != moves:
                raise LostConnection("the store is at another server")
            if answer is None:
                if is_asked:
                    raise LostConnection("the server does not answer")
                await connection.send_command("PING")
            elif answer[0] == b"message":
                self._on_message(answer[2])
            is_asked = answer is None

    def _on_message(self, message: bytes) -> None:
        if not (watches := tuple(self._watches)):
            return
        try:
            opening, names = _decode(message)
        except DecodeError:
            names = []  # the message may be from a newer version
        else:
            if opening == self._opening:
                return
        if not names or len(names) > _NAMES_AT_ONCE:  # a watcher then reads all its records once
            self._watches.notify(None)
            return
        for name in names:
            *_, kind, id = ("", *name.split("\0"))
            if any(watch.wants(kind, id) for watch in watches):
                _ = self._names.put(name)

    async def _read(self, names: Sequence[str]) -> Sequence[None]:
        try:
            for record in await self._read_records(list(dict.fromkeys(names))):
                if record is not None:
                    self._watches.notify(record)
        except Exception:  # noqa: BLE001 - end of the task: the watchers read again
            self._watches.notify(None)
        return [None] * len(names)

    def _look_again(self) -> None:
        self._next_look = self._loop.call_later(LOOK_AGAIN_SECONDS, self._look_again)
        self._watches.notify(WatchHint.READ_AGAIN)
