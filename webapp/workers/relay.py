"""A relay that passes a request to the worker that owns its session, over a private Unix socket.

Risks: another program connects and is treated as a worker. The socket is in a folder that no other
user can enter, and a connection without an envelope only receives a challenge that no other program
can answer, and is then closed.

The other worker's application sends a message only after this worker has passed the previous
message on to the client. The application therefore knows what was sent, as if the client were
connected to its own worker. If the client disconnects, the connection between the workers is
closed. A worker that is busy, for example with a tool that blocks its event loop, still owns its
sessions: the client is asked to retry. If a worker goes away before it answers, the session counts
as unknown. If the worker goes away later, the answer ends, and the client resumes its stream
(Last-Event-ID) or starts a new session.
"""

import asyncio
import logging
import os
import secrets
import socket
import stat
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from msgspec import DecodeError, Struct
from msgspec.msgpack import decode, encode

from flows.crypto.tokens import Ring
from webapp.http.exchange import ASGIApp, Exchange, Message, Receive, Scope, Send
from webapp.workers.envelope import CHALLENGE_BYTES, BadEnvelope, Envelope, Sealing

GREETING_SECONDS = 10.0
# longer than GREETING_SECONDS: the sending worker may be busy, and its client waits
_ENVELOPE_SECONDS = 60.0
_ENVELOPE_BYTES_AT_MOST = 512 * 1024
_FRAME_BYTES_AT_MOST = 256 * 1024 * 1024
_LENGTH = struct.Struct(">I")
_BACKLOG = 1024
_log = logging.getLogger(__name__)


class RelayUnusable(OSError):
    """Workers cannot reach each other on this machine. The message says how to fix it."""


class _Start(Struct, array_like=True, tag=1):
    status: int
    headers: list[tuple[bytes, bytes]]


class _Piece(Struct, array_like=True, tag=2):
    body: bytes
    has_more: bool


class _HandedOn(Struct, array_like=True, tag=3):
    """A receipt: the latest frame was passed on. `is_lost`: the client had disconnected."""

    is_lost: bool


_Frame: TypeAlias = _Start | _Piece | _HandedOn


class Busy(Exception):
    """The other worker listens but is too busy to answer. It has not seen the request."""


class _Gone(Exception):
    """The other end has closed the connection."""


class _Channel:
    """An exchange between two workers. `is_answer`: this end is the one that answers."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        key: bytes,
        is_answer: bool,
    ) -> None:
        self._reader, self._writer = reader, writer
        self._sealing = Sealing(key)
        self._is_answer = is_answer

    async def send(self, frame: _Frame) -> None:
        """Send a frame. Raises _Gone."""
        if self._writer.is_closing():  # other event loops (uvloop) raise different errors here
            raise _Gone
        _write(self._writer, self._sealing.seal(encode(frame), is_answer=self._is_answer))
        try:
            await self._writer.drain()
        except OSError as error:
            raise _Gone from error

    async def read(self) -> _Frame:
        """Read the next frame. Raises _Gone."""
        try:
            sealed = await _read(self._reader, at_most=_FRAME_BYTES_AT_MOST)
            plain = self._sealing.open(sealed, is_answer=not self._is_answer)
            frame: _Frame = decode(plain, type=_Start | _Piece | _HandedOn)
        except (OSError, EOFError, BadEnvelope, DecodeError) as error:
            raise _Gone from error
        return frame

    def close(self) -> None:
        self._writer.close()


class Relay:
    """This worker's connections to the other workers, whose sockets are in the same folder."""

    def __init__(
        self, app: ASGIApp, *, name: str, folder: Path, ring: Ring, greeting_seconds: float
    ) -> None:
        """`app` answers the requests for this worker's sessions."""
        self._app = app
        self._greeting_seconds = greeting_seconds
        self._name = name
        self._folder = folder
        self._ring = ring
        self._answering = set[asyncio.Task[None]]()
        self._begun = set[_Channel]()

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[None]:
        """Accept requests from the other workers within this block. Raises RelayUnusable."""
        path = self._folder / self._name
        try:
            listener = await asyncio.to_thread(_listener_at, path)
        except OSError as error:
            raise RelayUnusable(
                f"the folder {self._folder}, which the processes of this server use to connect to "
                f"each other, cannot be used ({error}): set XDG_RUNTIME_DIR to another folder"
            ) from error
        server = await asyncio.start_unix_server(self._accept, sock=listener)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            with suppress(OSError):
                path.parent.rmdir()  # succeeds for the last worker
            server.close()
            for task in tuple(self._answering):
                task.cancel()
            await asyncio.gather(*self._answering, return_exceptions=True)

    async def pass_on(self, to: str, scope: Scope, exchange: Exchange) -> bool:
        """Let worker `to` answer the request. Raises Busy.

        Return False if that worker is gone, or went away before it began to answer.
        """
        path = self._folder / to
        try:
            reader, writer = await asyncio.open_unix_connection(path)
        except ConnectionRefusedError:  # that worker was killed; its name is never reused
            path.unlink(missing_ok=True)
            return False
        except OSError:
            return False
        envelope = Envelope.of(scope)
        channel = _Channel(reader, writer, key=envelope.key, is_answer=False)

        async def passing(_: Scope, receive: Receive, __: Send) -> None:
            sending = asyncio.create_task(_send_body(receive, channel))
            try:
                await self._hand_on(exchange, channel)
            finally:
                sending.cancel()
                await asyncio.wait({sending})

        try:
            try:
                async with asyncio.timeout(self._greeting_seconds):
                    challenge = await reader.readexactly(CHALLENGE_BYTES)
            except TimeoutError:
                raise Busy from None
            _write(writer, envelope.seal(self._ring, to=to, challenge=challenge))
            await exchange.run(passing, scope)
        except (_Gone, OSError, EOFError):
            if exchange.status is None:
                return False
            with suppress(OSError):  # the client may be gone too
                await exchange.send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._begun.discard(channel)
            channel.close()
        return True

    def close_streams(self) -> None:
        """Close the streams that other workers answer, because this process ends.

        Clients resume these streams at another process.
        """
        for channel in tuple(self._begun):
            channel.close()

    async def _hand_on(self, exchange: Exchange, channel: _Channel) -> None:
        """Send the other worker's answer to the client. Raises _Gone; OSError if `send` fails."""
        while True:
            frame = await channel.read()
            if isinstance(frame, _Start):
                await exchange.send(
                    {
                        "type": "http.response.start",
                        "status": frame.status,
                        "headers": frame.headers,
                    }
                )
                self._begun.add(channel)
            elif isinstance(frame, _Piece):
                await exchange.send(
                    {
                        "type": "http.response.body",
                        "body": frame.body,
                        "more_body": frame.has_more,
                    }
                )
            taken = _HandedOn(is_lost=exchange.is_broken)
            if isinstance(frame, _Piece) and not frame.has_more:
                with suppress(_Gone):
                    await channel.send(taken)
                return
            await channel.send(taken)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._answering.add(task)
        try:
            await self._answer(reader, writer)
        except (_Gone, OSError):
            pass
        except Exception:  # noqa: BLE001 - the edge of a task
            _log.exception("relay.failed")
        finally:
            self._answering.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        challenge = secrets.token_bytes(CHALLENGE_BYTES)
        writer.write(challenge)
        try:
            async with asyncio.timeout(_ENVELOPE_SECONDS):
                sealed = await _read(reader, at_most=_ENVELOPE_BYTES_AT_MOST)
            envelope = Envelope.open(sealed, self._ring, to=self._name, challenge=challenge)
        except (BadEnvelope, TimeoutError) as error:
            _log.warning("relay.refused", extra={"why": str(error) or "no envelope came"})
            return
        except (OSError, EOFError) as error:
            if getattr(error, "partial", b""):  # a probe of `_sweep` sends no data
                _log.warning("relay.refused", extra={"why": "no envelope came"})
            return
        channel = _Channel(reader, writer, key=envelope.key, is_answer=True)
        exchange = _Exchange(channel)
        reading = asyncio.create_task(exchange.listen())
        try:
            await self._app(envelope.scope(), exchange.receive, exchange.send)
        finally:
            reading.cancel()
            await asyncio.wait({reading})


class _Exchange:
    """The ASGI receive and send functions for a client that is connected to another worker."""

    def __init__(self, channel: _Channel) -> None:
        self._channel = channel
        self._received = asyncio.Queue[Message]()
        self._taken = asyncio.Queue[None]()
        self._is_lost = False

    async def listen(self) -> None:
        """Read frames until the other end closes."""
        try:
            while True:
                frame = await self._channel.read()
                if isinstance(frame, _Piece):
                    body: Message = {"type": "http.request", "body": frame.body}
                    self._received.put_nowait({**body, "more_body": frame.has_more})
                elif isinstance(frame, _HandedOn):
                    if frame.is_lost:
                        return
                    self._taken.put_nowait(None)
        except _Gone:
            pass
        finally:
            self._is_lost = True
            self._received.put_nowait({"type": "http.disconnect"})  # queue it before `send` returns
            self._taken.put_nowait(None)

    async def receive(self) -> Message:
        message = await self._received.get()
        if message["type"] == "http.disconnect":
            # put the disconnect back, so that later calls get it too
            self._received.put_nowait(message)
        return message

    async def send(self, message: Message) -> None:
        """Send a message and return when it was passed on or the client is gone.

        If the client is gone, no error is raised, as in uvicorn.
        """
        if self._is_lost:
            return
        frame = (
            _Start(status=message["status"], headers=_pairs(message.get("headers", ())))
            if message["type"] == "http.response.start"
            else _Piece(
                body=bytes(message.get("body", b"")), has_more=message.get("more_body", False)
            )
        )
        with suppress(_Gone):  # `listen` notices the lost connection too
            await self._channel.send(frame)
        await self._taken.get()


async def _send_body(receive: Receive, channel: _Channel) -> None:
    """Pass the client's body on. When the client disconnects, close the channel."""
    with suppress(_Gone):
        while (message := await receive())["type"] == "http.request":
            await channel.send(
                _Piece(body=message.get("body", b""), has_more=message.get("more_body", False))
            )
    channel.close()


def make_private(folder: Path) -> None:
    """Create the folder if it is missing. Raises OSError if other users can access it."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    if not is_own or status.st_mode & 0o077:
        raise PermissionError(f"{folder} is open to other users")


def _write(writer: asyncio.StreamWriter, piece: bytes) -> None:
    writer.write(_LENGTH.pack(len(piece)) + piece)


async def _read(reader: asyncio.StreamReader, *, at_most: int) -> bytes:
    """Read a length-prefixed piece. Raises EOFError, OSError, or BadEnvelope if too long."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > at_most:
        raise BadEnvelope("it is longer than any message of a worker")
    return await reader.readexactly(length)


def _pairs(headers: object) -> list[tuple[bytes, bytes]]:
    return [(bytes(name), bytes(value)) for name, value in headers]  # type: ignore[attr-defined]


def _listener_at(path: Path) -> socket.socket:
    """Return a socket whose file appears at `path` only when the socket listens. Raises OSError."""
    make_private(path.parent.parent)
    make_private(path.parent)
    _sweep(path.parent)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    unnamed = path.with_name(f".{path.name}")
    try:
        listener.bind(str(unnamed))
        listener.listen(_BACKLOG)
        unnamed.rename(path)
    except OSError:
        listener.close()
        unnamed.unlink(missing_ok=True)
        raise
    return listener


def _sweep(folder: Path) -> None:
    """Delete the sockets of killed processes.

    Skip names that begin with a dot: these sockets do not listen yet.
    """
    for path in folder.glob("[!.]*"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError:
                continue
