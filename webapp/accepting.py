"""Connections as they are accepted: whose each of them is.

What could go wrong: a client closes as soon as it has sent, and whoever looks for the owner of its
socket later finds nobody, or another user's program that got the same port. So the kernel is asked
at once, and believed only if the accepted socket still stands after that: while it does, nobody
else can have the client's end.
"""

import asyncio
import socket
from typing import TYPE_CHECKING, Any

from webapp.locality import PEER_KEY, Peer, loopback_of, uid_of_peer
from webapp.wire import ASGIApp, Receive, Scope, Send

if TYPE_CHECKING:  # it stands for whichever parser is installed
    from uvicorn.protocols.http.h11_impl import H11Protocol as HTTPProtocol
else:
    from uvicorn.protocols.http.auto import AutoHTTPProtocol as HTTPProtocol

_ESTABLISHED = 1  # linux/tcp_states.h; the first byte of struct tcp_info


class Accepted(HTTPProtocol):
    """uvicorn's protocol; what is known of a connection stands in the scope of its requests."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        peer = peer_of(transport)
        if peer is not None:
            self.app = _noting(self.app, peer)


def peer_of(transport: asyncio.BaseTransport) -> Peer | None:
    """Whose connection it is; None for one that does not come from this machine."""
    ends = {
        "client": transport.get_extra_info("peername"),
        "server": transport.get_extra_info("sockname"),
    }
    if not all(isinstance(end, tuple) for end in ends.values()):
        return None  # a socket of the file system
    connection = loopback_of(ends)
    if connection is None:
        return None
    uid = uid_of_peer(connection)
    if not _still_stands(transport.get_extra_info("socket")):
        return Peer(uid=None, is_gone=True)
    return Peer(uid=uid)


def _still_stands(accepted: Any) -> bool:
    """Whether both ends are open; where the system does not tell, it is taken to be so."""
    if not hasattr(socket, "TCP_INFO"):
        return True
    with socket.fromfd(accepted.fileno(), socket.AF_INET, socket.SOCK_STREAM) as same:
        state = same.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    return state[0] == _ESTABLISHED


def _noting(app: ASGIApp, peer: Peer) -> ASGIApp:
    async def noting(scope: Scope, receive: Receive, send: Send) -> None:
        scope[PEER_KEY] = peer
        await app(scope, receive, send)

    return noting
