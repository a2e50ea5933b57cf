"""Connections as they are accepted: whose each is, also when its client is gone already."""

import asyncio
import os
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.users import AS_ROOT, NOBODY, PATIENCE_SECONDS
from tests.web.serving import bound
from tests.web.test_locality import ME, ON_LINUX
from webapp.accepting import Accepted, peer_of
from webapp.limits import Arrivals
from webapp.locality import Connection, Peer, uid_of_peer
from webapp.serving import Pages
from webapp.wire import Receive, Scope, Send


def transport(accepted: socket.socket) -> Any:
    known = {
        "socket": accepted,
        "peername": accepted.getpeername(),
        "sockname": accepted.getsockname(),
    }
    return cast("Any", SimpleNamespace(get_extra_info=known.get))


@ON_LINUX
def test_a_connection_that_stands_is_its_users() -> None:
    with bound("127.0.0.1") as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
            assert peer_of(transport(accepted)) == Peer(uid=ME)


@ON_LINUX
def test_a_connection_that_was_closed_meanwhile_is_nobodys() -> None:
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
def test_a_port_that_another_user_has_now_says_nothing_of_who_had_it_before() -> None:
    with bound("127.0.0.1") as listener:
        listener.listen()
        os.seteuid(NOBODY)
        try:
            client = socket.create_connection(listener.getsockname())
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
            assert uid_of_peer(Connection(client=ends, server=listener.getsockname())) == ME
            assert peer_of(before) == Peer(uid=None, is_gone=True)


def test_a_connection_from_elsewhere_is_not_looked_up() -> None:
    known = {"peername": ("192.0.2.7", 1), "sockname": ("192.0.2.1", 80)}
    assert peer_of(cast("Any", SimpleNamespace(get_extra_info=known.get))) is None
    in_the_file_system = {"peername": "", "sockname": "/tmp/socket"}  # noqa: S108
    assert peer_of(cast("Any", SimpleNamespace(get_extra_info=in_the_file_system.get))) is None


@asynccontextmanager
async def served(arrivals: Arrivals) -> AsyncGenerator[int]:
    """An app that reads each request to its end, on a port."""

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


async def heard(port: int, sent: bytes, *, until: bytes | None = None) -> bytes:
    """What is answered until that, or until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await (reader.read() if until is None else reader.readuntil(until))
    finally:
        writer.close()


WHOLE = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n"
HALF_BODY = b"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: 9\r\n\r\nhalf"


@pytest.mark.parametrize("half", [b"", b"GET / HT", WHOLE[:-2], HALF_BODY])
async def test_a_request_that_does_not_come_whole_is_not_waited_for(half: bytes) -> None:
    # finding: R10
    async with served(Arrivals(reading=timedelta(milliseconds=50))) as port:
        assert (await heard(port, half)).startswith(b"HTTP/1.1 408 Request Timeout\r\n")


async def test_a_second_request_of_a_connection_has_its_time_too() -> None:
    # finding: R10
    async with served(Arrivals(reading=timedelta(milliseconds=50))) as port:
        answer = await heard(port, WHOLE + b"GET / HT")
        assert b"HTTP/1.1 408 Request Timeout" in answer


async def test_there_are_so_many_connections_at_most() -> None:
    # finding: R10
    async with served(Arrivals(connections=1, own_user=0)) as port:
        _, first = await asyncio.open_connection("127.0.0.1", port)
        assert (await heard(port, b"")).startswith(b"HTTP/1.1 503 ")
        first.close()


@ON_LINUX
async def test_there_is_room_left_for_the_user_who_runs_the_server() -> None:
    # finding: R10
    async with served(Arrivals(connections=1, own_user=1)) as port:
        _, first = await asyncio.open_connection("127.0.0.1", port)
        answer = await heard(port, WHOLE, until=b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ")
        first.close()


def test_an_answer_that_takes_its_time_is_not_hurried() -> None:
    protocol: Any = object.__new__(Accepted)
    protocol.cycle = SimpleNamespace(response_complete=False, more_body=False)
    assert protocol._what_is_read() is None
