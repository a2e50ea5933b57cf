"""Connections as they are accepted: whose each is, also when its client is gone already."""

import os
import socket
from types import SimpleNamespace
from typing import Any, cast

from tests.users import AS_ROOT, NOBODY
from tests.web.serving import bound
from tests.web.test_locality import ME, ON_LINUX
from webapp.accepting import peer_of
from webapp.locality import Connection, Peer, uid_of_peer


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
