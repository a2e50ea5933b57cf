"""The end of each exchange is reported once and correctly, whatever the app and the client do."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.serving import serving
from webapp.http.exchange import (
    ASGIApp,
    ClientConnection,
    Message,
    Receive,
    Scope,
    Send,
    client_connection_of,
    exchange_of,
)

SSE = [(b"content-type", b"text/event-stream")]


def watched(app: ASGIApp) -> ASGIApp:
    """Wrap an app so that each of its requests runs in a watched exchange."""

    async def watching(scope: Scope, receive: Receive, send: Send) -> None:
        scope = {**scope}
        await exchange_of(scope, receive, send).run(app, scope)

    return watching


class Witness:
    """A wrapper of an app that records each client connection and how the connection ended."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.connections: list[ClientConnection] = []
        self.breaks = 0
        self.ends: asyncio.Queue[bool] = asyncio.Queue()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = client_connection_of(scope)
        if connection is not None:
            self.connections.append(connection)
            connection.on_broken(self._count)
            connection.on_end(self.ends.put_nowait)
        await self._app(scope, receive, send)

    async def end(self) -> bool:
        # If the end of the connection is never reported, the test fails and does not hang.
        async with asyncio.timeout(300):
            return await self.ends.get()

    def _count(self) -> None:
        self.breaks += 1


class Line:
    """The `receive` and `send` of one exchange, which behave like those of uvicorn."""

    def __init__(self, *requests: Message) -> None:
        self._requests = list(requests)
        self._over = asyncio.Event()
        self.sent: list[Message] = []
        self.receives = 0

    def lose(self) -> None:
        self._over.set()

    async def receive(self) -> Message:
        self.receives += 1
        if self._requests:
            return self._requests.pop(0)
        await self._over.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._over.set()


def get(**more: object) -> Scope:
    return {"type": "http", "http_version": "1.1", "method": "GET", "headers": [], **more}


def post() -> Scope:
    return get(method="POST", headers=[(b"content-length", b"4")])


def request(body: bytes = b"", *, more_body: bool = False) -> Message:
    return {"type": "http.request", "body": body, "more_body": more_body}


async def start(send: Send, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [*headers]})


async def body(send: Send, part: bytes = b"", *, more_body: bool = False) -> None:
    await send({"type": "http.response.body", "body": part, "more_body": more_body})


async def answers(scope: Scope, receive: Receive, send: Send) -> None:
    await start(send)
    await body(send, b"{}")


@asynccontextmanager
async def raw(url: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        yield reader, writer
    finally:
        writer.close()


def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()


def reset(writer: asyncio.StreamWriter) -> None:
    """Reset the connection, as the kernel of a killed client does."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    writer.transport.abort()


def close_one_way(writer: asyncio.StreamWriter) -> None:
    """Close the sending half of the connection, which uvicorn treats as a disconnect."""
    writer.write_eof()


async def exchange(app: ASGIApp, line: Line | None = None, scope: Scope | None = None) -> Witness:
    """Let the app answer one request, by default a GET. Return the witness of the exchange."""
    line, witness = line or Line(request()), Witness(app)
    await watched(witness)(scope or get(), line.receive, line.send)
    return witness


@asynccontextmanager
async def served(app: ASGIApp) -> AsyncIterator[tuple[Witness, str]]:
    """Serve the app on a real server. Yield the witness and the URL."""
    witness = Witness(app)
    async with serving(watched(witness)) as url:
        yield witness, url


LEAVING = pytest.mark.parametrize("leave", [hang_up, reset, close_one_way])
HEAD_OF_GET = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"


async def test_completely_sent_json_response_is_delivered() -> None:
    async with served(answers) as (app, url), httpx.AsyncClient() as client:
        assert (await client.get(url)).json() == {}
        assert await app.end() is True
    assert app.breaks == 0


async def test_responses_without_body_are_delivered() -> None:
    async def empty(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, (b"content-length", b"0" if scope["method"] == "GET" else b"2"))
        await body(send, b"" if scope["method"] == "GET" else b"{}")

    async with served(empty) as (app, url), httpx.AsyncClient() as client:
        assert (await client.head(url)).content == b""
        assert await app.end() is True
        assert (await client.get(url)).content == b""
        assert await app.end() is True


async def test_stream_is_delivered_only_with_last_part() -> None:
    may_end = asyncio.Event()

    async def streams(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, *SSE)
        await body(send, b"data: 1\n\n", more_body=True)
        await may_end.wait()
        await body(send, b"data: 2\n\n")

    async with (
        served(streams) as (app, url),
        httpx.AsyncClient() as client,
        client.stream("GET", url) as response,
    ):
        events = response.aiter_lines()
        assert await anext(events) == "data: 1"
        assert app.ends.empty()
        may_end.set()
        assert [line async for line in events] == ["", "data: 2", ""]
        assert await app.end() is True


@LEAVING
async def test_disconnect_before_response_is_noticed_without_receive(
    leave: Callable[[asyncio.StreamWriter], None],
) -> None:
    entered, gone = asyncio.Event(), asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        connection = client_connection_of(scope)
        assert connection is not None
        connection.on_broken(gone.set)
        entered.set()
        await gone.wait()
        await answers(scope, receive, send)

    async with served(slow) as (app, url), raw(url) as (_, writer):
        writer.write(HEAD_OF_GET)
        await entered.wait()
        leave(writer)
        assert await app.end() is False
    assert app.connections[0].is_broken
    assert app.breaks == 1


@LEAVING
async def test_disconnect_during_event_stream_is_noticed(
    leave: Callable[[asyncio.StreamWriter], None],
) -> None:
    async def streams(scope: Scope, receive: Receive, send: Send) -> None:
        connection = client_connection_of(scope)
        assert connection is not None
        gone = asyncio.Event()
        connection.on_broken(gone.set)
        await start(send, *SSE)
        await body(send, b"data: 1\n\n", more_body=True)
        await gone.wait()
        await body(send, b"data: 2\n\n")

    async with served(streams) as (app, url), raw(url) as (reader, writer):
        writer.write(HEAD_OF_GET)
        await reader.readuntil(b"data: 1\n\n")
        leave(writer)
        assert await app.end() is False
    assert app.connections[0].is_broken


async def test_disconnect_after_posted_body_is_noticed() -> None:
    read, never = asyncio.Event(), asyncio.Event()

    async def reads(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["body"] == b"ping"
        read.set()
        await never.wait()

    async with served(reads) as (app, url), raw(url) as (_, writer):
        writer.write(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 4\r\n\r\nping")
        await read.wait()
        hang_up(writer)
        assert await app.end() is False
        never.set()


async def test_disconnect_during_upload_reaches_app_and_connection() -> None:
    began = asyncio.Event()
    last: list[Message] = []

    async def reads(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["more_body"]
        began.set()
        last.append(await receive())

    async with served(reads) as (app, url), raw(url) as (_, writer):
        writer.write(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 4\r\n\r\npi")
        await began.wait()
        hang_up(writer)
        assert await app.end() is False
    assert last == [{"type": "http.disconnect"}]
    assert app.connections[0].is_broken


async def test_two_exchanges_on_same_socket_have_separate_connections() -> None:
    entered, never = asyncio.Event(), asyncio.Event()

    async def holds_the_second(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/second":
            entered.set()
            await never.wait()
        await answers(scope, receive, send)

    async with served(holds_the_second) as (app, url), raw(url) as (reader, writer):
        writer.write(HEAD_OF_GET)
        await reader.readuntil(b"{}")
        assert await app.end() is True
        writer.write(b"GET /second HTTP/1.1\r\nHost: here\r\n\r\n")
        await entered.wait()
        hang_up(writer)
        assert await app.end() is False
        never.set()
    assert [connection.is_broken for connection in app.connections] == [False, True]


async def test_response_counts_as_lost_if_client_disconnects_before_last_byte() -> None:
    line = Line(request())

    async def answers_too_late(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send)
        await asyncio.sleep(0)  # the background task that reads `receive` starts
        line.lose()
        await body(send, b"{}")

    app = await exchange(answers_too_late, line)
    assert app.ends.get_nowait() is False
    assert app.connections[0].is_broken


async def test_disconnect_after_last_byte_is_no_loss() -> None:
    line = Line(request())

    async def goes_on(scope: Scope, receive: Receive, send: Send) -> None:
        await answers(scope, receive, send)
        line.lose()
        assert (await receive())["type"] == "http.request"
        assert (await receive())["type"] == "http.disconnect"

    app = await exchange(goes_on, line)
    assert app.ends.get_nowait() is True
    assert not app.connections[0].is_broken


async def test_send_refused_by_server_counts_as_loss() -> None:
    line = Line(request())

    async def refuses(message: Message) -> None:
        raise BrokenPipeError

    app = Witness(answers)
    with pytest.raises(BrokenPipeError):
        await watched(app)(get(), line.receive, refuses)
    assert app.ends.get_nowait() is False
    assert app.connections[0].is_broken


async def test_app_failing_before_last_byte_has_delivered_nothing() -> None:
    line = Line(request())

    async def fails(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send)
        await body(send, b"half", more_body=True)
        raise LookupError

    app = Witness(fails)
    with pytest.raises(LookupError):
        await watched(app)(get(), line.receive, line.send)
    assert app.ends.get_nowait() is False
    assert not app.connections[0].is_broken
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_app_failing_after_last_byte_has_delivered_response() -> None:
    line = Line(request())

    async def fails(scope: Scope, receive: Receive, send: Send) -> None:
        await answers(scope, receive, send)
        raise LookupError

    app = Witness(fails)
    with pytest.raises(LookupError):
        await watched(app)(get(), line.receive, line.send)
    assert app.ends.get_nowait() is True


async def test_app_returning_without_response_has_delivered_nothing() -> None:
    async def returns(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send)

    app = await exchange(returns)
    assert app.ends.get_nowait() is False


async def test_cancelled_app_has_delivered_nothing_and_leaves_no_task() -> None:
    entered = asyncio.Event()

    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        entered.set()
        await asyncio.Event().wait()

    line, app = Line(request()), Witness(waits)

    async def exchange() -> None:
        await watched(app)(get(), line.receive, line.send)

    task = asyncio.create_task(exchange())
    await entered.wait()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert app.ends.get_nowait() is False
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_second_cancel_does_not_leave_receive_task_running() -> None:
    has_ended = False

    async def ends_slowly() -> Message:
        nonlocal has_ended
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            has_ended = True
        raise AssertionError

    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.Event().wait()

    async def exchange() -> None:
        await watched(waits)(get(), ends_slowly, Line().send)

    task = asyncio.create_task(exchange())
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert has_ended


async def test_body_is_never_read_ahead_of_app() -> None:
    line = Line(request(b"pi", more_body=True), request(b"ng"))
    counts: list[int] = []

    async def reads(scope: Scope, receive: Receive, send: Send) -> None:
        for _ in range(2):
            await asyncio.sleep(0)
            counts.append(line.receives)
            await receive()
        await asyncio.sleep(0)
        counts.append(line.receives)
        await answers(scope, receive, send)

    await exchange(reads, line, post())
    assert counts == [0, 1, 3]


async def test_messages_pass_unchanged_both_ways() -> None:
    incoming = request(b"ping")
    outgoing: list[Message] = [
        {"type": "http.response.start", "status": 200, "headers": [], "trailers": True},
        {"type": "http.response.body", "body": b"{}"},
        {"type": "http.response.trailers", "headers": []},
    ]
    ends_seen: list[bool] = []

    async def echoes(scope: Scope, receive: Receive, send: Send) -> None:
        assert await receive() is incoming
        for message in outgoing:
            ends_seen.append(app.ends.empty())
            await send(message)

    line, app = Line(incoming), Witness(echoes)
    await watched(app)(post(), line.receive, line.send)
    assert all(sent is message for sent, message in zip(line.sent, outgoing, strict=True))
    assert ends_seen == [True, True, True]  # not ended yet: trailers follow the body
    assert app.ends.get_nowait() is True


async def test_every_receive_after_disconnect_returns_disconnect() -> None:
    line = Line(request())
    seen: list[str] = []

    async def listens(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        line.lose()
        first = asyncio.gather(receive(), receive())
        seen.extend(message["type"] for message in [*await first, await receive()])

    await exchange(listens, line)
    assert seen == ["http.disconnect"] * 3


async def test_failing_receive_raises_in_app_and_breaks_connection() -> None:
    async def fails() -> Message:
        raise ConnectionResetError

    async def listens(scope: Scope, receive: Receive, send: Send) -> None:
        for _ in range(2):
            with pytest.raises(ConnectionResetError):
                await receive()

    app = Witness(listens)
    await watched(app)(get(), fails, Line().send)
    assert app.connections[0].is_broken


async def test_raising_callback_is_logged_and_others_still_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reported: list[object] = []

    def fails(*_: bool) -> None:
        raise LookupError

    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        connection = client_connection_of(scope)
        assert connection is not None
        connection.on_broken(fails)
        connection.on_broken(lambda: reported.append("broken"))
        connection.on_end(fails)
        connection.on_end(reported.append)
        line.lose()
        await receive()
        await receive()

    line = Line(request())
    await exchange(waits, line)
    assert reported == ["broken", False]
    assert [record.message for record in caplog.records] == ["wire.callback_failed"] * 2


async def test_callback_registered_after_end_is_called_immediately() -> None:
    app = await exchange(answers)
    reported: list[object] = []
    app.connections[0].on_broken(lambda: reported.append("broken"))
    app.connections[0].on_end(reported.append)
    assert reported == [True]

    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await receive()

    line = Line(request())
    line.lose()
    app = await exchange(waits, line)
    reported.clear()
    app.connections[0].on_broken(lambda: reported.append("broken"))
    app.connections[0].on_end(reported.append)
    assert reported == ["broken", False]


def test_unwatched_request_has_no_connection() -> None:
    line, scope = Line(), get()
    exchange_of(scope, line.receive, line.send)
    for unwatched in (scope, get(), {"type": "lifespan"}):
        assert client_connection_of(unwatched) is None


async def test_pieces_counts_only_parts_sent_before_the_disconnect() -> None:
    line = Line(request())

    async def loses(scope: Scope, receive: Receive, send: Send) -> None:
        connection = client_connection_of(scope)
        assert connection is not None
        left = asyncio.Event()
        connection.on_broken(left.set)
        await start(send)
        await body(send, b"result", more_body=True)
        line.lose()
        await left.wait()
        await body(send, b"more", more_body=True)
        await body(send)

    async with asyncio.timeout(300):
        app = await exchange(loses, line)
    (connection,) = app.connections
    assert connection.is_broken
    assert connection.pieces == 1
