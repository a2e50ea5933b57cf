"""Find changes by other openings of a PostgreSQL store: a notification names the records to read.

Risks: if a notification were part of the writing transaction, PostgreSQL would lock all commits of
the database against each other, so the notification is sent after the commit. The notification is
lost if its sender or a receiving connection ends too early. Each watch is therefore asked to read
its records again when the connection is back, and also every 15 seconds.
"""

import asyncio
import logging
import secrets
from collections.abc import Iterable, Sequence

from msgspec import DecodeError, ValidationError
from msgspec.json import decode, encode

from flows.errors import StoreUnavailable
from webapp.stores.lanes import Lanes, first
from webapp.stores.postgres_driver import ERRORS, PostgresConnection, record_of
from webapp.stores.postgres_server import Server
from webapp.stores.store import Record, Watch, Watches, WatchHint

_CHANNEL = "elicit"
_PAYLOAD_BYTES = 7_500  # the server's limit is 8,000
_PAYLOADS_AT_ONCE = 20
_NAMES_AT_ONCE = 1_000
_LOOK_SECONDS = 15.0
_LOOKS_A_CHECK = 2
_FIRST_WAIT_SECONDS = 0.05
_LAST_WAIT_SECONDS = 0.5
_EVERYTHING = "*"
_log = logging.getLogger(__name__)

_Name = tuple[str, str, str]


class PostgresChanges:
    """The notifications between this opening and others, which name the written records."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._opening = secrets.token_hex(8)
        self._watches = Watches()
        self._sending: Lanes[_Name] = Lanes(self._send, fit=first(_NAMES_AT_ONCE))
        self._reading: Lanes[_Name] = Lanes(self._read, fit=first(_NAMES_AT_ONCE))
        self._is_ended = False
        self._task: asyncio.Task[None] | None = None

    async def listen(self) -> None:
        """Start to receive notifications. Without this call, no watch is possible."""
        connection = await self._connect()
        self._task = asyncio.get_running_loop().create_task(self._listen(connection))

    def watch(self) -> Watch:
        """Return a new watch that misses no change from now on."""
        if self._task is None:
            raise ValueError("this opening of the store does not watch: open it with watches=True")
        return self._watches.open()

    def notify(self, records: Iterable[Record]) -> None:
        """Notify other openings about records that this one wrote."""
        for record in records:
            self._sending.put((record.owner, record.kind, record.id))

    async def aclose(self) -> None:
        """Send the remaining notifications, and end the watches."""
        self._is_ended = True
        await self._sending.finish()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._reading.finish()
        self._watches.end()

    async def _send(self, names: Sequence[_Name]) -> None:
        try:
            await self._server.fetch_again("notify", _payloads(self._opening, names))
        except StoreUnavailable as error:
            # The listeners have lost the server too, and will read their records again.
            _log.warning("store.notify_failed", extra={"why": error.why})

    async def _read(self, names: Sequence[_Name]) -> None:
        wanted = tuple(dict.fromkeys(names))
        if not self._watches:
            return
        try:
            rows = await self._server.fetch_again("read", *map(list, zip(*wanted, strict=True)))
        except StoreUnavailable:
            self._watches.notify(None)
            return
        self._watches.notify(*map(record_of, rows))

    def _on_notification(
        self, _connection: object, _process: int, _channel: str, payload: object
    ) -> None:
        if not self._watches or self._is_ended:
            return
        try:
            opening, names = decode(str(payload), type=tuple[str, list[_Name] | str])
        except (DecodeError, ValidationError):
            self._watches.notify(None)  # the payload may be from a newer version, in another format
            return
        if opening == self._opening:
            return
        if isinstance(names, str):
            self._watches.notify(None)
            return
        watches = tuple(self._watches)
        for name in names:
            if any(watch.wants(name[1], name[2]) for watch in watches):
                self._reading.put(name)

    async def _listen(self, connection: PostgresConnection) -> None:
        """Listen until cancelled, and reconnect when a connection is lost."""
        await self._until_lost(connection)
        wait = _FIRST_WAIT_SECONDS
        while True:
            await asyncio.sleep(wait)
            try:
                connection = await self._connect()
            except StoreUnavailable:
                wait = min(2 * wait, _LAST_WAIT_SECONDS)
                continue
            _log.info("store.changes_reconnected")
            self._watches.notify(None)
            await self._until_lost(connection)
            wait = _FIRST_WAIT_SECONDS

    async def _connect(self) -> PostgresConnection:
        connection = await self._server.listening()
        try:
            await connection.add_listener(_CHANNEL, self._on_notification)
        except ERRORS as error:
            connection.terminate()
            raise self._server.unavailable(error) from None
        return connection

    async def _until_lost(self, connection: PostgresConnection) -> None:
        """Wait until the connection is lost, and ask the watches to read again at intervals."""
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        looks = 0
        why = "the connection was closed"
        try:
            while not (lost.is_set() or connection.is_closed()):
                try:
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await lost.wait()
                except TimeoutError:
                    looks += 1
                    self._watches.notify(WatchHint.READ_AGAIN)
                    if looks % _LOOKS_A_CHECK == 0:
                        await connection.execute("SELECT 1")
        except ERRORS as error:
            why = self._server.unavailable(error).why
        finally:
            connection.terminate()
        _log.warning("store.changes_disconnected", extra={"why": why})


def _payloads(opening: str, names: Sequence[_Name]) -> list[str]:
    """Return payloads with the names. If there are too many names, one payload means "any"."""
    payloads: list[str] = []
    gathered: list[bytes] = []
    size = 0
    for name in dict.fromkeys(names):
        text = encode(name)
        if gathered and size + len(text) > _PAYLOAD_BYTES:
            payloads.append(_payload(opening, gathered))
            gathered, size = [], 0
        gathered.append(text)
        size += len(text) + 1
    payloads.append(_payload(opening, gathered))
    if len(payloads) > _PAYLOADS_AT_ONCE or size > _PAYLOAD_BYTES:
        return [encode((opening, _EVERYTHING)).decode()]
    return payloads


def _payload(opening: str, names: Sequence[bytes]) -> str:
    return f'["{opening}",[{b",".join(names).decode()}]]'
