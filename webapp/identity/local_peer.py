"""The user behind a loopback connection: the user who runs this server, or somebody else.

A loopback address proves nothing. A proxy, a tunnel, a container and another user of the machine
all connect from 127.0.0.1. The kernel is therefore asked for the owner of the socket, and every
request with signs of a relay is refused.

Known gap: a relay that runs as our own user, speaks HTTP/1.1, sends our Host and adds no header
looks like that user's browser. Everyone who can use the relay then counts as that user. Examples
are nginx configured for HTTP/1.1 (the default in recent releases), socat, `ssh -R`, and the port
relay of a rootless container that shares our network namespace and user. Only the user can start
such a relay, so it is a mistake and not an attack. A server that others can reach needs a sign-in.
For root the gap is larger, because every relay that root runs counts: run the server as a user of
its own. All programs of one user are one person here, even if people share an account. The uid is
that of the socket's creator, so a program can pass an open connection to another user.
"""

import importlib
import importlib.util
import re
import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from sys import byteorder
from types import ModuleType
from typing import Any, cast

from webapp.http.address import PublicAddress, plain_ip
from webapp.http.exchange import PEER_KEY, PROXIED_KEY, Facts, facts_of

# The uid that the kernel shows for users that have no uid in this namespace (overflowuid). Some
# services run under the same uid.
_NOBODY = 65534

_NAMES_CACHED_AT_MOST = 1024  # bytes of a request's header names; longer ones are not cached
_RELAYED = re.compile(
    r"forwarded|via|cdn-loop|max-forwards|surrogate-.*|x-(url-)?scheme"
    r"|([a-z0-9]+-)*(client|connecting|real)-ip"
    r"|x-(forwarded|original|envoy|azure|arr|amzn|cloud-trace|ngrok|tunnel|vercel|nf|appengine"
    r"|nginx|varnish|haproxy)(-.*)?"
    r"|x-(real|client|remote|cluster-client|originating|proxyuser|true-client)-(ip|addr|host)"
    r"|(cf|fastly|fly|tailscale|akamai|ngrok)-.*"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerConnection:
    """The two ends of a connection as this server sees them, each a plain address and a port."""

    client: tuple[str, int]
    server: tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """The owner of a connection.

    `is_gone` is True if the connection ended before the owner was known. `connection` is the
    connection that was checked, if it was a socket. `judged` is the last decision of LocalPeers
    about this connection, and what the decision depends on.
    """

    uid: int | None
    is_gone: bool = False
    connection: PeerConnection | None = field(default=None, compare=False)
    judged: list[object] = field(default_factory=list[object], compare=False, repr=False)


def uid_of_peer(connection: PeerConnection) -> int | None:
    """Return the uid that owns the client's socket, or None if the uid is uncertain.

    A peer in another network namespace has no socket here, and a closed socket has no owner.
    """
    if hasattr(socket, "AF_NETLINK"):
        try:
            return _uid_of_kernel(connection)
        except OSError:
            return _uid_in_tables(connection)
    try:
        psutil = importlib.import_module("psutil")
    except ImportError:
        return None
    return _uid_by_processes(connection, psutil)


def loopback_of(scope: Mapping[str, Any]) -> PeerConnection | None:
    """Return the two ends of a connection that comes from this machine, else None."""
    connection = _connection_of(scope)
    if connection is None or not _is_loopback(connection.client[0]):
        return None
    return connection


def can_tell_users() -> bool:
    """Return True if this machine can say which user made a connection."""
    return is_peer_lookup_fast() or importlib.util.find_spec("psutil") is not None


def is_peer_lookup_fast() -> bool:
    """Return True if the system has a call or a table for sockets, not only a list of processes."""
    return hasattr(socket, "AF_NETLINK") or any(table.exists() for table in _TABLES)


class LocalPeers:
    """The check whether a request comes from the user who runs this server."""

    def __init__(self, *, uid: int, public_url: str) -> None:
        """Raise ValueError for an invalid address."""
        self._uid = uid
        self._address = PublicAddress.parse(public_url)
        self._hosts = frozenset({self._address.authority, *self._address.aliases})

    @property
    def are_only(self) -> bool:
        """True if the public address is on this machine, so that no other machine can reach it."""
        return self._address.is_on_loopback

    def is_local(self, scope: Mapping[str, Any]) -> bool:
        """Return True if the request comes from a program of our own user on this machine."""
        return self.why_not(scope) is None

    def why_not(self, scope: Mapping[str, Any]) -> str | None:
        """Return a sentence that says why the request is not local, or None if it is."""
        facts = facts_of(scope)
        if facts.judged is None or facts.judged[0] is not self:
            facts.judged = (self, self._relay(scope, facts) or self._why_not_own_user(scope))
        return facts.judged[1]

    def is_another_user(self, scope: Mapping[str, Any]) -> bool:
        """Return True if another user of this machine certainly made the connection."""
        return self.uid(scope) not in (None, self._uid)

    def uid(self, scope: Mapping[str, Any]) -> int | None:
        """Return the uid of the user who made the connection, or None if it is uncertain.

        Only the uid that was stored when the connection was accepted counts. A later check could
        find another user's socket, because a client may close its connection as soon as it has sent
        the request. Another server may also have put another client's address into the scope.
        """
        peer = scope.get(PEER_KEY)
        if not isinstance(peer, Peer) or loopback_of(scope) is None:
            return None
        return peer.uid

    def is_gone(self, scope: Mapping[str, Any]) -> bool:
        """Return True if the connection ended before its owner was known."""
        peer = scope.get(PEER_KEY)
        return isinstance(peer, Peer) and peer.is_gone

    def _relay(self, scope: Mapping[str, Any], facts: Facts) -> str | None:
        """Return a sentence about a sign of a relay in the request, or None."""
        if scope.get(PROXIED_KEY):
            return "The request came through a configured proxy."
        names = tuple(facts.headers)
        is_short = sum(map(len, names)) <= _NAMES_CACHED_AT_MOST
        if (header := (_cached_relaying if is_short else _relaying)(names)) is not None:
            return f"The request came through a proxy or relay: it has the header {header}."
        # A minimal nginx configuration that runs as our own user uses HTTP/1.0.
        if scope.get("http_version") in {None, "0.9", "1.0"}:
            return "The request uses HTTP/1.0, which relays use and browsers do not."
        if not self._address.is_on_loopback:
            return "This server's public address can be reached from other machines."
        if facts.host(scheme=self._address.scheme) not in self._hosts:
            return "The request names another host than this server's."
        return None

    def _why_not_own_user(self, scope: Mapping[str, Any]) -> str | None:
        """Return a sentence that says why the connection is not our own user's, or None.

        The later requests of a connection use the decision about its first request.
        """
        peer = scope.get(PEER_KEY)
        if not isinstance(peer, Peer):
            return self._why_not_peer(scope, peer)
        about = [self, *(tuple(scope.get(end) or ()) for end in ("client", "server"))]
        if peer.judged[1:] != about:
            peer.judged[:] = [self._why_not_peer(scope, peer), *about]
        return cast("str | None", peer.judged[0])

    def _why_not_peer(self, scope: Mapping[str, Any], peer: object) -> str | None:
        connection = _connection_of(scope)
        if connection is None:
            return "The connection has no IP addresses, as with a Unix socket or a test client."
        if not _is_loopback(connection.client[0]):
            return "The request comes from another machine."
        if self._uid == _NOBODY:
            return "This server runs as the user `nobody`, which other programs can also run as."
        if not isinstance(peer, Peer):
            return (
                "The ASGI server does not report which user opened the connection. Start the "
                "application with `elicit serve` or uvicorn.run(app, http=webapp.Accepted)."
            )
        if peer.connection not in (None, connection):
            return (
                "A proxy or middleware in front of this application changed the request's address."
            )
        if peer.uid is None:
            return "The operating system does not report which user opened the connection."
        if peer.uid != self._uid:
            return "Another user of this machine opened the connection."
        return None


def _relaying(names: tuple[bytes, ...]) -> str | None:
    """Return the first of these headers that relays add, or None."""
    # Some servers pass names in CGI's spelling.
    headers = (name.decode("latin-1").replace("_", "-") for name in names)
    return next((header for header in headers if _RELAYED.fullmatch(header)), None)


# Clients send the same few names with each request.
_cached_relaying = lru_cache(maxsize=256)(_relaying)


@lru_cache(maxsize=256)
def _is_loopback(address: str) -> bool:
    return ip_address(address).is_loopback


def _connection_of(scope: Mapping[str, Any]) -> PeerConnection | None:
    client, server = scope.get("client"), scope.get("server")
    if not client or not server or server[1] is None:
        return None
    try:
        return PeerConnection(
            client=(plain_ip(client[0]), client[1]), server=(plain_ip(server[0]), server[1])
        )
    except ValueError:
        return None


# Linux: struct inet_diag_req_v2 and inet_diag_msg (linux/inet_diag.h), after struct nlmsghdr. Ports
# and addresses are in network byte order, everything else in the machine's.
_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST = 1
_ANY_COOKIE = 0xFFFFFFFF
_HEADER = struct.Struct("=IHHII")
_WANTED = struct.Struct("=BBBBI")
_ENDS = struct.Struct("!HH16s16s")
_SOCKET = struct.Struct("=III")
_STATE = struct.Struct("=BBBB")
_OWNER = struct.Struct("=IIIII")
_ESTABLISHED = 1


def _uid_of_kernel(connection: PeerConnection) -> int | None:
    """Return the uid of one socket, which takes tens of microseconds.

    Raises OSError if the kernel does not report the socket.

    The tables of /proc have the same data, but the kernel walks its whole hash table for each read
    and blocks the event loop for milliseconds.
    """
    client, server = (ip_address(end[0]).packed for end in (connection.client, connection.server))
    family = socket.AF_INET if len(client) == 4 else socket.AF_INET6
    wanted = (
        _WANTED.pack(family, socket.IPPROTO_TCP, 0, 0, 1 << _ESTABLISHED)
        + _ENDS.pack(connection.client[1], connection.server[1], client, server)
        + _SOCKET.pack(0, _ANY_COOKIE, _ANY_COOKIE)
    )
    kind = (
        socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    )  # the answer is ready when send returns
    with socket.socket(socket.AF_NETLINK, kind, _SOCK_DIAG) as kernel:
        length = _HEADER.size + len(wanted)
        kernel.send(_HEADER.pack(length, _SOCK_DIAG_BY_FAMILY, _REQUEST, 1, 0) + wanted)
        answer, (sender, _) = kernel.recvfrom(4096)
    if sender != 0 or _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        raise OSError("the kernel does not know this socket")
    state = _STATE.unpack_from(answer, _HEADER.size)[1]
    ends_at = _HEADER.size + _STATE.size
    ports = _ENDS.unpack_from(answer, ends_at)[:2]
    _, _, _, uid, inode = _OWNER.unpack_from(answer, ends_at + _ENDS.size + _SOCKET.size)
    # The kernel can return a listener that would accept the connection, and shows the uid of root
    # for a socket without a process.
    is_certain = (
        state == _ESTABLISHED and ports == (connection.client[1], connection.server[1]) and inode
    )
    return uid if is_certain else None


_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def _uid_in_tables(connection: PeerConnection, *, tables: tuple[Path, ...] = _TABLES) -> int | None:
    """Return the uid from the tables of all sockets, for a sandbox that forbids netlink."""
    rows = set[tuple[bytes, bytes]]()
    for table in tables:
        try:
            text = table.read_bytes()
        except OSError:  # a kernel without IPv6 has only one table
            continue
        for needle in _needles(connection):
            at = text.find(needle)
            while at >= 0:
                # local, remote, state, queues, timer, retransmits, uid, timeout, inode
                fields = text[at : text.find(b"\n", at)].split()
                rows.add((fields[6], fields[8]))
                at = text.find(needle, at + 1)
    if len(rows) != 1:
        return None
    uid, inode = rows.pop()
    return None if inode == b"0" else int(uid)


def _needles(connection: PeerConnection) -> Iterator[bytes]:
    """Yield the start of a matching row, in state ESTABLISHED; IPv4 may be mapped into IPv6.

    Any other state proves nothing: a closing socket has lost its owner and shows uid 0.
    """
    ends = (connection.client, connection.server)
    addresses = [ip_address(address) for address, _ in ends]
    forms = [[address.packed for address in addresses]]
    if addresses[0].version == 4:
        forms.append([IPv6Address(f"::ffff:{address}").packed for address in addresses])
    for form in forms:
        # Each 32-bit word is printed as a number in the machine's byte order.
        words = [
            "".join(
                f"{int.from_bytes(packed[at : at + 4], byteorder):08X}"
                for at in range(0, len(packed), 4)
            )
            for packed in form
        ]
        row = " ".join(f"{word}:{port:04X}" for word, (_, port) in zip(words, ends, strict=True))
        yield f" {row} 01 ".encode()


def _uid_by_processes(connection: PeerConnection, psutil: ModuleType) -> int | None:
    """Return the uid that owns the client's socket, searching only processes that we may read."""
    uids = set[int]()
    for process in psutil.process_iter():
        try:
            uids.update(
                process.uids().effective
                for found in process.net_connections(kind="tcp")
                if found.status == psutil.CONN_ESTABLISHED
                and _is_end(found.laddr, connection.client)
                and _is_end(found.raddr, connection.server)
            )
        except psutil.Error:  # the process has ended, or we may not read it
            continue
    return uids.pop() if len(uids) == 1 else None


def _is_end(found: tuple[str, int], end: tuple[str, int]) -> bool:
    return bool(found) and (plain_ip(found[0]), found[1]) == end
