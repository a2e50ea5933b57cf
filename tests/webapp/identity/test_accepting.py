"""Accepted connections: which user opened each of them, and limits on their number and time."""

import asyncio
import os
import socket
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import uvloop
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from tests.support.clock import Clock
from tests.support.hand_loop import HandLoop
from tests.support.local_peers import ME, ON_LINUX
from tests.support.serving import bound
from tests.support.users import AS_ROOT, NOBODY, PATIENCE_SECONDS
from webapp.http.exchange import Receive, Scope, Send
from webapp.identity.accepting import (
    HEAD_BYTES_AT_MOST,
    LINGER_SECONDS,
    Accepted,
    Arriving,
    FastProtocol,
    peer_of,
)
from webapp.identity.local_peer import Peer, PeerConnection, uid_of_peer
from webapp.limits import Arrivals
from webapp.serving.http_server import Pages, loop_factory
from webapp.settings.settings import read_settings


@pytest.fixture(params=[H11Protocol, FastProtocol])
def protocol(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the test with each HTTP parser that a served process can use."""
    made = type("Accepted", (Arriving, request.param), {})
    monkeypatch.setattr("webapp.serving.http_server.Accepted", made)
    return made


def transport(accepted: socket.socket) -> Any:
    known = {
        "socket": accepted,
        "peername": accepted.getpeername(),
        "sockname": accepted.getsockname(),
    }
    return cast("Any", SimpleNamespace(get_extra_info=known.get, is_closing=lambda: False))


@ON_LINUX
def test_open_connection_belongs_to_its_user() -> None:
    with bound("127.0.0.1") as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
            peer = peer_of(transport(accepted))
            assert peer == Peer(uid=ME)
            assert peer.connection == PeerConnection(
                client=accepted.getpeername(), server=accepted.getsockname()
            )


@ON_LINUX
def test_connection_closed_before_accept_has_no_user() -> None:
    # finding: R1
    with bound("127.0.0.1") as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()) as client:
            accepted, _ = listener.accept()
        with accepted:
            client.close()
            assert peer_of(transport(accepted)) == Peer(uid=None, is_gone=True)


@ON_LINUX
@AS_ROOT
@pytest.mark.parametrize("tells_state", [True, False])
def test_port_reused_by_other_user_does_not_identify_earlier_connection(
    monkeypatch: pytest.MonkeyPatch, *, tells_state: bool
) -> None:
    # finding: S16
    if not tells_state:
        monkeypatch.delattr(socket, "TCP_INFO")  # as on macOS
    with bound("127.0.0.1") as listener:
        listener.listen()
        "name".encode("idna")  # load this codec now: after seteuid, its file cannot be read
        os.seteuid(NOBODY)
        try:  # connect from an address whose ports no other test uses
            client = socket.create_connection(
                listener.getsockname(), source_address=("127.16.16.16", 0)
            )
        finally:
            os.seteuid(ME)
        accepted, _ = listener.accept()
        before, ends = transport(accepted), client.getsockname()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.close()
        with accepted, socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(ends)
            again.connect(listener.getsockname())
            assert uid_of_peer(PeerConnection(client=ends, server=listener.getsockname())) == ME
            assert peer_of(before) == Peer(uid=None, is_gone=True)


@ON_LINUX
def test_open_connection_belongs_to_its_user_without_tcp_info(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # finding: S16
    monkeypatch.delattr(socket, "TCP_INFO")
    test_open_connection_belongs_to_its_user()


async def test_user_of_connection_is_looked_up_before_data_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # finding: S16
    is_searched = threading.Event()

    def uid_of(connection: PeerConnection) -> int:
        is_searched.set()
        return ME

    monkeypatch.setattr("webapp.identity.accepting.is_peer_lookup_fast", lambda: False)
    monkeypatch.setattr("webapp.identity.accepting.uid_of_peer", uid_of)
    async with served(Arrivals()) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await asyncio.to_thread(is_searched.wait, PATIENCE_SECONDS)
        writer.close()


def test_remote_connection_is_not_looked_up() -> None:
    known = {"peername": ("192.0.2.7", 1), "sockname": ("192.0.2.1", 80)}
    assert peer_of(cast("Any", SimpleNamespace(get_extra_info=known.get))) is None
    in_the_file_system = {"peername": "", "sockname": "/tmp/socket"}  # noqa: S108
    assert peer_of(cast("Any", SimpleNamespace(get_extra_info=in_the_file_system.get))) is None


@asynccontextmanager
async def served(arrivals: Arrivals) -> AsyncGenerator[int]:
    """Serve an app that reads each request to its end, and yield the port."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (message := await receive()).get("more_body"):
            pass
        if message["type"] != "http.disconnect":
            head = [(b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 200, "headers": head})
            await send({"type": "http.response.body"})

    with bound("127.0.0.1") as listener:
        listener.listen()
        pages = Pages(app, arrivals=arrivals)
        serving = asyncio.create_task(pages.serve(sockets=[listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            pages.stop()
            await serving


async def bytes_received(port: int, sent: bytes, *, until: bytes | None = None) -> bytes:
    """Send the bytes, and return the response up to `until` or until the connection closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await (reader.read() if until is None else reader.readuntil(until))
    finally:
        writer.close()


class Sent:
    """A fake transport of a connection from another machine. `answer` records the response."""

    def __init__(self) -> None:
        self.answer, self.is_closed, self.is_paused = b"", False, False
        self.write = self._write
        self.protocol: Any = None

    def get_extra_info(self, name: str) -> Any:
        return {"peername": ("192.0.2.7", 1), "sockname": ("192.0.2.1", 80)}.get(name)

    def _write(self, data: bytes) -> None:
        self.answer += data

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def get_protocol(self) -> Any:
        return self.protocol

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


def begun(protocol: Any, app: Any) -> tuple[Any, Sent]:
    sent = Sent()
    arriving = protocol(config=Config(app), server_state=ServerState(), app_state={})
    arriving.connection_made(sent)
    return arriving, sent


WHOLE = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n"
HALF_BODY = b"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: 9\r\n\r\nhalf"


async def answering(scope: Scope, receive: Receive, send: Send) -> None:
    head = [(b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body"})


async def answered(arriving: Any, sent: Sent) -> bytes:
    """Send a complete request on the connection, and return the bytes of its response."""
    before = len(sent.answer)
    arriving.data_received(WHOLE)
    while len(sent.answer) == before:  # noqa: ASYNC110 - the protocol has no event for this
        await asyncio.sleep(0)
    return sent.answer[before:]


async def test_stopping_server_answers_request_on_recently_used_connection(
    protocol: Any,
) -> None:
    arriving, sent = begun(protocol, answering)
    await answered(arriving, sent)
    arriving.shutdown()
    assert not sent.is_closing()
    assert (await answered(arriving, sent)).startswith(b"HTTP/1.1 200 ")
    assert sent.is_closing()
    arriving.connection_lost(None)


@pytest.mark.parametrize("is_used", [True, False])
def test_stopping_server_closes_idle_connection(protocol: Any, *, is_used: bool) -> None:
    clock = Clock()
    loop = HandLoop(clock)

    async def stop() -> None:
        arriving, sent = begun(protocol, answering)
        if is_used:
            await answered(arriving, sent)
        arriving.shutdown()
        assert not sent.is_closing()
        await asyncio.sleep(LINGER_SECONDS)
        assert sent.is_closing()
        arriving.connection_lost(None)

        late, sent = begun(protocol, answering)
        await asyncio.sleep(LINGER_SECONDS)
        late.shutdown()
        assert sent.is_closing()
        late.connection_lost(None)

    try:
        loop.run_until_complete(stop())
    finally:
        loop.close()


@pytest.mark.usefixtures("protocol")
@pytest.mark.parametrize("half", [b"", b"GET / HT", WHOLE[:-2], HALF_BODY])
async def test_incomplete_request_times_out(half: bytes) -> None:
    # finding: R10
    async with served(Arrivals(reading=timedelta(milliseconds=50))) as port:
        assert (await bytes_received(port, half)).startswith(b"HTTP/1.1 408 Request Timeout\r\n")


@pytest.mark.usefixtures("protocol")
async def test_second_request_on_connection_times_out_separately() -> None:
    # finding: R10
    async with served(Arrivals(reading=timedelta(milliseconds=50))) as port:
        answer = await bytes_received(port, WHOLE + b"GET / HT")
        assert b"HTTP/1.1 408 Request Timeout" in answer


@pytest.mark.usefixtures("protocol")
async def test_number_of_connections_is_limited() -> None:
    # finding: R10
    # finding: XV8
    async with served(Arrivals(connections=1, own_user=0)) as port:
        _, first = await asyncio.open_connection("127.0.0.1", port)
        head, _, body = (await bytes_received(port, b"")).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: 30" in head
        assert f"\r\ncontent-length: {len(body)}\r\n".encode() in head
        assert b"as many open connections as it allows. Try again" in body
        first.close()


# finding: XV7
@pytest.mark.parametrize(("begins", "is_late"), [(b"", False), (b"GET / HT", True), (b"\r", True)])
def test_idle_connection_outlives_head_timeout_and_started_head_does_not(
    protocol: Any, *, begins: bytes, is_late: bool
) -> None:
    loop = HandLoop(Clock())

    async def wait() -> None:
        config = Config(answering, timeout_keep_alive=75)
        sent = Sent()
        arriving = protocol(config=config, server_state=ServerState(), app_state={})
        sent.protocol = arriving
        arriving.connection_made(sent)
        await answered(arriving, sent)
        if begins:
            arriving.data_received(begins)
        await asyncio.sleep(74)  # on a manual clock
        assert sent.is_closed == is_late
        assert sent.answer.count(b"HTTP/1.1 4") == is_late
        await asyncio.sleep(2)
        assert sent.is_closed
        arriving.connection_lost(None)

    try:
        loop.run_until_complete(wait())
    finally:
        loop.close()


async def test_idle_connection_outlasts_the_limits_of_clients_and_named_proxies() -> None:
    # finding: XV7
    alone = read_settings({"ELICIT_STORE": "memory:", "ELICIT_SECRET": "a" * 32})
    public = {"ELICIT_URL": "https://tools.example.com", "ELICIT_PROXIES": "10.0.0.5"}
    behind = read_settings({"ELICIT_STORE": "memory:", "ELICIT_SECRET": "a" * 32, **public})
    # httpx and the MCP SDK for Python reuse a connection that was idle for 5 s.
    assert httpx.Limits().keepalive_expiry == 5
    assert Pages(answering, arrivals=alone.arrivals).config.timeout_keep_alive == 10
    # The defaults of nginx (keepalive_timeout) and AWS ALB are 60 s.
    assert Pages(answering, arrivals=behind.arrivals).config.timeout_keep_alive > 60


@pytest.mark.usefixtures("protocol")
@ON_LINUX
async def test_connections_are_reserved_for_user_who_runs_server() -> None:
    # finding: R10
    async with served(Arrivals(connections=1, own_user=1)) as port:
        _, first = await asyncio.open_connection("127.0.0.1", port)
        answer = await bytes_received(port, WHOLE, until=b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ")
        first.close()


def test_slow_response_has_no_read_timeout() -> None:
    protocol: Any = object.__new__(Accepted)
    protocol.cycle = SimpleNamespace(response_complete=False, more_body=False)
    protocol.pipeline, protocol._reading, protocol._timer = [], ("body", protocol.cycle), None
    protocol._update_timer()
    assert protocol._reading is None


async def test_endless_head_is_refused(protocol: Any) -> None:
    # finding: P1
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("it has not come whole")

    arriving, sent = begun(protocol, app)
    arriving.data_received(b"GET /" + b"a" * 10)
    piece = b"a" * 4096
    pieces = 0
    while not sent.is_closed:
        arriving.data_received(piece)
        pieces += 1
    assert pieces <= HEAD_BYTES_AT_MOST // len(piece) + 1
    assert sent.answer.startswith(b"HTTP/1.1 400 ")
    arriving.connection_lost(None)


@pytest.mark.parametrize(
    "head",
    [
        b"GET http://evil.example/mcp HTTP/1.1\r\nhost: here\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: here\r\n" + b"x: y\r\n" * HEAD_BYTES_AT_MOST + b"\r\n",
        b"GET / HTTP/1.1\r\nhost: here\r\nx: " + b"y" * HEAD_BYTES_AT_MOST + b"\r\n\r\n",
    ],
)
async def test_complete_but_too_large_head_is_refused(head: bytes) -> None:
    # finding: P1
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("it was let in")

    arriving, sent = begun(type("Accepted", (Arriving, FastProtocol), {}), app)
    arriving.data_received(head)
    assert sent.answer.startswith(b"HTTP/1.1 400 ")
    assert sent.is_closed
    arriving.connection_lost(None)


async def test_trailers_after_body_are_not_headers(protocol: Any) -> None:
    # finding: P1
    seen = asyncio.Queue[list[tuple[bytes, bytes]]]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        seen.put_nowait(list(scope["headers"]))

    arriving, _ = begun(protocol, app)
    arriving.data_received(b"POST / HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n")
    arriving.data_received(b"2\r\nab\r\n0\r\nforwarded: for=127.0.0.1\r\n\r\n")
    async with asyncio.timeout(PATIENCE_SECONDS):
        names = [name for name, _ in await seen.get()]
    assert names == [b"host", b"transfer-encoding"]
    arriving.connection_lost(None)


async def test_pipelined_request_waiting_for_earlier_response_has_no_timeout(protocol: Any) -> None:
    # finding: P1
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.Event().wait()

    arriving, sent = begun(protocol, app)
    arriving.data_received(WHOLE + HALF_BODY)
    assert sent.is_paused
    assert arriving._timer is None
    arriving.connection_lost(None)


def test_faster_parser_and_loop_are_used_if_installed() -> None:
    # finding: P1
    assert issubclass(Accepted, FastProtocol)
    assert loop_factory() is uvloop.new_event_loop
