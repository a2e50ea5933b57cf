"""Resuming of streams: a broken stream of 2025-11-25 continues after Last-Event-ID.

The library gives each event of a stream to a store, and replays the events after an id.

Risks: the library's replay checks neither the owner of the events nor whether they are still
stored, loses events that come during the replay, and never ends. The library therefore only checks
whether this caller may read the streams of this session. This module then sends the events itself:
only events of that session, in order, until the call's response, which ends the stream. Event ids
are random. An id of another session, or of an event that is no longer stored, is refused.

Events are in this process's memory, and end with their session. A stream is stored for five minutes
after its response. The total size of all streams is limited, and the oldest is dropped first.
"""

import asyncio
import json
import secrets
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Final
from weakref import WeakValueDictionary, finalize

from mcp.server.streamable_http import GET_STREAM_KEY, EventCallback, EventMessage, EventStore
from mcp_types import (
    INVALID_REQUEST,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCResponse,
    RequestId,
    jsonrpc_message_adapter,
)

from webapp.http.exchange import ASGIApp, ClientConnection, Message, Receive, Scope, Send

STORED_FOR: Final = timedelta(minutes=5)
EVENTS_AT_MOST: Final = 1000  # of a session
BYTES_AT_MOST: Final = 2 * 1024 * 1024  # of a session
BYTES_IN_ALL: Final = 64 * 1024 * 1024
READ_AT_MOST: Final = timedelta(minutes=30)  # by one request; the client may resume again
_EVENT_COSTS: Final = 300  # bytes added to the size of an event's text, for its overhead
_PING_SECONDS: Final = 15.0
_CALLS_AT_MOST: Final = 64
_REFUSED: Final = (
    "This stream cannot be resumed: no event with the id in Last-Event-ID is stored for this "
    "session. Make the call again: its result is stored."
)


@dataclass(slots=True, kw_only=True)
class _Event:
    id: str
    text: bytes  # empty for an event that only marks the start of a stream
    answers: RequestId | None  # id of the answered request, if the event is a response


@dataclass(slots=True, kw_only=True, eq=False)
class _Stream:
    """The events of one request, or of the session's own stream."""

    name: str
    events: list[_Event] = field(default_factory=list[_Event])
    bytes: int = 0
    ended_at: datetime | None = None
    is_dropped: bool = False
    reader: object = None  # the newest reader; an older reader stops
    waiting: list[asyncio.Future[None]] = field(default_factory=list[asyncio.Future[None]])

    @property
    def is_standalone(self) -> bool:
        return self.name.endswith(GET_STREAM_KEY)

    def wake(self) -> None:
        waiting, self.waiting = self.waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    def after(self, id: str) -> Sequence[_Event] | None:
        """Return the events after the event with this id, or None if that event is not stored."""
        for number, event in enumerate(self.events):
            if event.id == id:
                return list(islice(self.events, number + 1, None))
        return None


@dataclass(slots=True, kw_only=True)
class _Shelf:
    """The streams of one session, and their total size."""

    streams: dict[str, _Stream] = field(default_factory=dict[str, _Stream])
    events: int = 0
    bytes: int = 0


class _Session:
    """The streams of one session, and the callbacks for responses that are read later."""

    def __init__(self) -> None:
        self.shelf = _Shelf()
        self.has_ended = False
        self.wanted: OrderedDict[RequestId, Callable[[ClientConnection], None]] = OrderedDict()
        self.read: OrderedDict[RequestId, ClientConnection] = OrderedDict()

    def find(self, event_id: str) -> _Stream | None:
        streams = self.shelf.streams.values()
        return next((one for one in streams if one.after(event_id) is not None), None)


@dataclass(slots=True, kw_only=True)
class StreamRequest:
    """The HTTP request that the current task serves.

    The library's tasks of a session have the request that opened the session.
    """

    session: _Session | None
    connection: ClientConnection | None
    last_event_id: str | None = None
    found: _Stream | None = None
    is_refused: bool = False
    is_library_response: bool = False

    def end_session(self) -> None:
        """End all streams of the session, because its client deleted it."""
        if self.session is not None:
            self.session.has_ended = True
            for stream in self.session.shelf.streams.values():
                stream.wake()


_here: ContextVar[StreamRequest] = ContextVar("elicit_stream")


def when_read_later(request_id: RequestId, callback: Callable[[ClientConnection], None]) -> None:
    """Call `callback` when a client resumes this request's stream and gets the response.

    The request's own connection has broken. The callback gets the connection that carries the
    response.
    """
    here = _here.get(None)
    session = here.session if here is not None else None
    if session is None:
        return
    if (connection := session.read.get(request_id)) is not None:
        callback(connection)
        return
    session.wanted[request_id] = callback
    if len(session.wanted) > _CALLS_AT_MOST:
        session.wanted.popitem(last=False)


class Streams(EventStore):
    """The events of every session of one served server."""

    def __init__(self, *, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        # The session's tasks hold a reference to the session, so its events stay in memory as long
        # as the tasks run.
        self._sessions: WeakValueDictionary[str, _Session] = WeakValueDictionary()
        self._open: OrderedDict[_Stream, _Shelf] = OrderedDict()
        self._ended: OrderedDict[_Stream, _Shelf] = OrderedDict()
        self.bytes = 0

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Store an event. The library calls this for every message of a session."""
        id, now, shelf = secrets.token_urlsafe(16), self._clock(), self._shelf()
        if shelf is None:
            return id  # outside of `request`: nobody can resume
        stream = shelf.streams.get(stream_id)
        if stream is not None and (stream.ended_at is not None or message is None):
            self._drop(stream, shelf)  # the client reuses a request id: this is a new stream
            stream = None
        if stream is None:
            stream = shelf.streams[stream_id] = _Stream(name=stream_id)
            self._open[stream] = shelf
        event = _Event(
            id=id,
            text=b"" if message is None else _text_of(message),
            answers=message.id if isinstance(message, JSONRPCResponse | JSONRPCError) else None,
        )
        cost = len(event.text) + _EVENT_COSTS
        stream.events.append(event)
        stream.bytes += cost
        shelf.bytes += cost
        shelf.events += 1
        self.bytes += cost
        if event.answers is not None and not stream.is_standalone:
            stream.ended_at = now
            del self._open[stream]
            self._ended[stream] = shelf
        stream.wake()
        self._forget_oldest(shelf, now)
        return event.id

    async def replay_events_after(
        self, last_event_id: str, send_callback: EventCallback
    ) -> str | None:
        """Find the stream to replay, after the library has checked the caller.

        Events of a request's stream are sent later, by `_read`. Events of the session's own stream
        are sent here through the library's callback, and the stream's name is returned.
        """
        here = _here.get(None)
        session = here.session if here is not None else None
        if here is None or session is None or last_event_id != here.last_event_id:
            return None
        found = session.find(last_event_id)
        if found is None:
            here.is_refused = True
            return None
        if not found.is_standalone:
            here.found = found
            return None
        here.is_library_response = True
        for event in found.after(last_event_id) or ():
            message = jsonrpc_message_adapter.validate_json(event.text)
            await send_callback(EventMessage(message, event.id))
        return found.name

    @contextmanager
    def request(
        self, session_id: str | None, connection: ClientConnection | None
    ) -> Generator[StreamRequest]:
        """Store the events of a session while the library answers one of its requests.

        A request without `session_id` opens a session.
        """
        session = None if session_id is None else self._sessions.get(session_id)
        here = StreamRequest(session=session, connection=connection)
        token = _here.set(here)
        try:
            yield here
        finally:
            _here.reset(token)

    def opened(self, session_id: str, here: StreamRequest) -> None:
        """Note the id of the session that this request opened."""
        if here.session is not None:
            self._sessions[session_id] = here.session

    async def resume(
        self, app: ASGIApp, scope: Scope, receive: Receive, send: Send, here: StreamRequest
    ) -> None:
        """Answer a request with a Last-Event-ID, after the library has checked the caller."""
        held: list[Message] = []

        async def hold(message: Message) -> None:
            """Hold the messages of the library's response until the stream to send is known."""
            is_begun = message["type"] == "http.response.start"
            if is_begun and message["status"] != 200:
                here.is_library_response = True  # the library refused the caller
            held.append(message)
            if here.is_library_response:
                while held:
                    await send(held.pop(0))

        await app(scope, receive, hold)
        if here.found is not None and here.session is not None:
            await _read(here.session, here.found, here, receive, send, headers=dict(held[0]))
        elif here.is_refused:
            await _refuse(send)
        else:
            for message in held:
                await send(message)

    def _shelf(self) -> _Shelf | None:
        here = _here.get(None)
        if here is None:
            return None
        if here.session is None:
            here.session = _Session()
            finalize(here.session, self._forget, here.session.shelf)
        return here.session.shelf

    def _forget_oldest(self, shelf: _Shelf, now: datetime) -> None:
        while self._ended:
            oldest, its_shelf = next(iter(self._ended.items()))
            if oldest.ended_at is None or now < oldest.ended_at + STORED_FOR:
                break
            self._drop(oldest, its_shelf)
        while shelf.events > EVENTS_AT_MOST or shelf.bytes > BYTES_AT_MOST:
            self._drop(_first(shelf.streams), shelf)
        while self.bytes > BYTES_IN_ALL:
            self._drop(*next(iter((self._ended or self._open).items())))

    def _forget(self, shelf: _Shelf) -> None:
        for stream in tuple(shelf.streams.values()):
            self._drop(stream, shelf)

    def _drop(self, stream: _Stream, shelf: _Shelf) -> None:
        if shelf.streams.pop(stream.name, None) is None:
            return
        self._open.pop(stream, None)
        self._ended.pop(stream, None)
        shelf.bytes -= stream.bytes
        shelf.events -= len(stream.events)
        self.bytes -= stream.bytes
        stream.is_dropped = True
        stream.wake()


def _first(streams: Mapping[str, _Stream]) -> _Stream:
    """Return the stream to drop first: the oldest ended stream, or else the oldest stream."""
    return next((one for one in streams.values() if one.ended_at), next(iter(streams.values())))


async def _read(
    session: _Session,
    stream: _Stream,
    here: StreamRequest,
    receive: Receive,
    send: Send,
    *,
    headers: Message,
) -> None:
    """Send the events after the client's last event id, and all new events of the stream.

    Return after the response, at a disconnect, when a newer reader comes, or at the time limit.
    """
    assert here.last_event_id is not None
    stream.reader = me = object()
    stream.wake()
    await send({**headers, "status": 200})
    leaving = asyncio.create_task(_disconnected(receive))
    loop = asyncio.get_running_loop()
    last, ends_at = here.last_event_id, loop.time() + READ_AT_MOST.total_seconds()
    try:
        while not leaving.done():
            for event in stream.after(last) or ():
                if event.answers is not None and here.connection is not None:
                    _mark_read(session, event.answers, here.connection)
                await send(_body(_on_the_wire(event)))
                last = event.id
            has_ended = stream.ended_at is not None or stream.is_dropped or session.has_ended
            if has_ended or stream.reader is not me or loop.time() >= ends_at:
                break
            turn = loop.create_future()
            stream.waiting.append(turn)
            await asyncio.wait(
                {turn, leaving}, timeout=_PING_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if not turn.done():
                stream.waiting.remove(turn)
                await send(_body(b": ping\r\n\r\n"))
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        leaving.cancel()
        await asyncio.wait({leaving})


def _mark_read(session: _Session, request_id: RequestId, connection: ClientConnection) -> None:
    session.read[request_id] = connection
    if len(session.read) > _CALLS_AT_MOST:
        session.read.popitem(last=False)
    if (callback := session.wanted.pop(request_id, None)) is not None:
        callback(connection)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _refuse(send: Send) -> None:
    error = {"code": INVALID_REQUEST, "message": _REFUSED}
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _body(text: bytes) -> Message:
    return {"type": "http.response.body", "body": text, "more_body": True}


def _on_the_wire(event: _Event) -> bytes:
    name = b"event: message\r\n" if event.text else b""
    return b"id: " + event.id.encode() + b"\r\n" + name + b"data: " + event.text + b"\r\n\r\n"


def _text_of(message: JSONRPCMessage) -> bytes:
    return message.model_dump_json(by_alias=True, exclude_unset=True).encode()
