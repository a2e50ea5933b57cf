"""Local callers: a request is local only if the server verifies that its own user sent it."""

import asyncio
import json
import os
import pwd
import shutil
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from grp import getgrgid
from ipaddress import ip_address
from pathlib import Path
from sys import byteorder
from types import ModuleType, SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.local_peers import ME, ON_LINUX
from tests.support.serving import bound, serving_at
from webapp.http.address import plain_ip
from webapp.http.exchange import PEER_KEY, PROXIED_KEY, ASGIApp, Receive, Scope, Send
from webapp.identity import local_peer as locality
from webapp.identity.local_peer import LocalPeers, Peer, PeerConnection, uid_of_peer

HERE = "http://127.0.0.1:8765"
MY_NAME = pwd.getpwuid(ME).pw_name
USERS = {user.pw_name for user in pwd.getpwall()}
WEB_USER = "www-data" if "www-data" in USERS else "nobody"
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

AS_ROOT = pytest.mark.skipif(ME != 0, reason="needs root, to act as another user")
WITH_NGINX = pytest.mark.skipif(NGINX is None, reason="needs nginx")


def has_ipv6() -> bool:
    try:
        with bound("::1"):
            return True
    except OSError:
        return False


WITH_IPV6 = pytest.mark.skipif(not has_ipv6(), reason="needs ::1 on this machine")


def scope(**changes: Any) -> Scope:
    return {
        "type": "http",
        "http_version": "1.1",
        "headers": [(b"host", b"127.0.0.1:8765")],
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 8765),
        **changes,
    }


def why_not(
    seen: Scope, *, uid: int = 1000, peer: int | None = 1000, public_url: str = HERE
) -> str | None:
    return LocalPeers(uid=uid, public_url=public_url).why_not({PEER_KEY: Peer(uid=peer), **seen})


def test_rewritten_client_address_is_not_local() -> None:
    ends = PeerConnection(client=("127.0.0.1", 50000), server=("127.0.0.1", 8765))
    here = LocalPeers(uid=1000, public_url=HERE)
    for client, is_local in (("127.0.0.1", 50000), True), (("127.0.0.1", 0), False):
        noted = {PEER_KEY: Peer(uid=1000, connection=ends)}
        assert here.is_local({**scope(client=client), **noted}) is is_local
    mapped = scope(client=("::ffff:127.0.0.1", 50000), server=("::ffff:127.0.0.1", 8765))
    assert here.is_local({**mapped, PEER_KEY: Peer(uid=1000, connection=ends)})
    relayed = scope(client=("127.0.0.9", 50000))
    why = here.why_not({**relayed, PEER_KEY: Peer(uid=1000, connection=ends)})
    changed = "A proxy or middleware in front of this application changed the request's address."
    assert why == changed


def test_own_user_on_loopback_is_local() -> None:
    assert why_not(scope()) is None
    assert why_not(scope(http_version="2")) is None
    assert why_not(scope(headers=[(b"host", b"localhost:8765")])) is None
    mapped = scope(client=("::ffff:127.0.0.1", 50000), server=("::ffff:127.0.0.1", 8765))
    assert why_not(mapped) is None


def test_connection_without_peer_record_of_server_is_not_local() -> None:
    for note in (None, 1000, {"uid": 1000}):
        why = why_not(scope(**{PEER_KEY: note}))
        assert why is not None
        assert "with `elicit serve`" in why


def test_other_or_unknown_user_is_not_local() -> None:
    assert why_not(scope(), peer=1001) == "Another user of this machine opened the connection."
    assert why_not(scope(), peer=0) == "Another user of this machine opened the connection."
    unknown = "The operating system does not report which user opened the connection."
    assert why_not(scope(), peer=None) == unknown
    assert why_not(scope(), uid=0, peer=None) == unknown


def test_user_named_nobody_is_not_local() -> None:
    assert "nobody" in str(why_not(scope(), uid=65534, peer=65534))


@pytest.mark.parametrize(
    "name",
    [
        "Forwarded",
        "X-Forwarded-For",
        "x-forwarded-host",
        "X-Forwarded",
        "X_Forwarded_For",
        "X-Real-IP",
        "X-Client-IP",
        "X-Cluster-Client-IP",
        "X-Original-Forwarded-For",
        "X-Envoy-External-Address",
        "Via",
        "CF-Connecting-IP",
        "CF-Ray",
        "CDN-Loop",
        "True-Client-IP",
        "Fastly-Client-IP",
        "Fly-Client-IP",
        "Tailscale-User-Login",
        "X-Nginx-Proxy",
        "X-Scheme",
        "WL-Proxy-Client-IP",
        "Proxy-Client-IP",
        "DO-Connecting-IP",
        "X-Varnish",
        "X-Haproxy-Server-State",
        "Surrogate-Capability",
        "Max-Forwards",
    ],
)
def test_relayed_request_is_not_local(name: str) -> None:
    # finding: S6
    seen = scope(headers=[(b"host", b"127.0.0.1:8765"), (name.encode(), b"127.0.0.1")])
    assert "relay" in str(why_not(seen))


def test_request_from_configured_proxy_is_not_local() -> None:
    assert "proxy" in str(why_not(scope(**{PROXIED_KEY: True})))


@pytest.mark.parametrize("version", ["1.0", "0.9", None])
def test_old_http_version_is_treated_as_relay(version: str | None) -> None:
    assert "HTTP/1.0" in str(why_not(scope(http_version=version)))


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"host", b"evil.example")],
        [(b"host", b"127.0.0.1")],
        [(b"host", b"127.0.0.1:8766")],
        [(b"host", b"127.0.0.1:8765"), (b"host", b"127.0.0.1:8765")],
    ],
)
def test_foreign_host_is_not_local(headers: list[tuple[bytes, bytes]]) -> None:
    assert "host" in str(why_not(scope(headers=headers)))


def test_server_with_public_address_has_no_local_callers() -> None:
    seen = scope(headers=[(b"host", b"tools.example.com")])
    assert "public" in str(why_not(seen, public_url="https://tools.example.com"))


@pytest.mark.parametrize(
    "changes",
    [
        {"client": ("192.0.2.7", 50000)},
        {"client": ("::ffff:192.0.2.7", 50000)},
        {"client": None},
        {"client": ("testclient", 50000)},
        {"server": None},
        {"server": ("/run/elicit.sock", None)},
    ],
)
def test_remote_or_missing_client_address_is_not_local(changes: dict[str, Any]) -> None:
    assert why_not(scope(**changes)) is not None


@contextmanager
def pair(
    host: str, *, listen: str = "", uid: int = ME
) -> Iterator[tuple[socket.socket, PeerConnection]]:
    """Open a real connection made by a user. Yield the client's socket and the server's view."""
    family = socket.AF_INET6 if ":" in (listen or host) else socket.AF_INET
    with socket.create_server(
        (listen or host, 0), family=family, dualstack_ipv6=listen == "::"
    ) as listener:
        if uid != ME:
            os.seteuid(uid)  # the socket belongs to the user who creates it
        try:
            client = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        finally:
            if uid != ME:
                os.seteuid(ME)
        with client:
            client.connect((host, listener.getsockname()[1]))
            accepted, (address, port, *_) = listener.accept()
            with accepted:
                here = accepted.getsockname()
                yield (
                    client,
                    PeerConnection(
                        client=(plain_ip(address), port), server=(plain_ip(here[0]), here[1])
                    ),
                )


LOOKUPS = [uid_of_peer, locality._uid_of_kernel, locality._uid_in_tables]
PAIRS = [
    pytest.param("127.0.0.1", "", id="IPv4"),
    pytest.param("::1", "", id="IPv6", marks=WITH_IPV6),
    pytest.param("127.0.0.1", "::", id="IPv4 to both", marks=WITH_IPV6),
    pytest.param("::ffff:127.0.0.1", "::", id="IPv4 inside IPv6", marks=WITH_IPV6),
]


@ON_LINUX
@pytest.mark.parametrize("lookup", LOOKUPS)
@pytest.mark.parametrize(("host", "listen"), PAIRS)
def test_kernel_reports_user_of_own_connection(
    lookup: Callable[[PeerConnection], int | None], host: str, listen: str
) -> None:
    with pair(host, listen=listen) as (_, connection):
        assert lookup(connection) == ME


@ON_LINUX
@AS_ROOT
@pytest.mark.parametrize("lookup", LOOKUPS)
@pytest.mark.parametrize(("host", "listen"), PAIRS)
def test_kernel_reports_user_of_connection_of_other_user(
    lookup: Callable[[PeerConnection], int | None], host: str, listen: str
) -> None:
    with pair(host, listen=listen, uid=4321) as (_, connection):
        assert lookup(connection) == 4321


@ON_LINUX
@pytest.mark.parametrize("lookup", [uid_of_peer, locality._uid_in_tables])
def test_closing_connection_has_no_owner(
    lookup: Callable[[PeerConnection], int | None],
) -> None:
    # The kernel's tables show uid 0 for a closing connection. The server itself may run as uid 0.
    with pair("127.0.0.1") as (client, connection):
        client.shutdown(socket.SHUT_WR)
        assert lookup(connection) is None
        client.close()
        assert lookup(connection) is None


@ON_LINUX
@pytest.mark.parametrize("lookup", [uid_of_peer, locality._uid_in_tables])
def test_nonexistent_connection_has_no_owner(
    lookup: Callable[[PeerConnection], int | None],
) -> None:
    with pair("127.0.0.1") as (_, there):
        for client, server in (
            (there.client, ("127.0.0.1", 1)),
            (("127.0.0.2", there.client[1]), there.server),
            (there.server, ("127.0.0.1", 1)),  # a server's address, not a client's
            (("::1", there.client[1]), ("::1", there.server[1])),
        ):
            assert lookup(PeerConnection(client=client, server=server)) is None


@ON_LINUX
def test_connection_without_process_has_no_owner() -> None:
    # The connection is not accepted yet: the kernel's tables show its server end as established,
    # with uid 0 because no process owns that end.
    with bound("127.0.0.1") as listener, socket.socket() as client:
        listener.listen()
        client.connect(listener.getsockname())
        waiting = PeerConnection(client=client.getpeername(), server=client.getsockname())
        assert uid_of_peer(waiting) is None
        assert locality._uid_in_tables(waiting) is None


TITLE = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"


def row(state: str = "01", *, uid: int = 1000, inode: int = 77, ipv6: bool = False) -> str:
    """Return a row of the table about 127.0.0.1:50000 and 127.0.0.1:8765."""
    packed = ip_address("::ffff:127.0.0.1" if ipv6 else "127.0.0.1").packed
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    address = "".join(f"{int.from_bytes(word, byteorder):08X}" for word in words)
    return (
        f"   0: {address}:C350 {address}:223D {state} 00000000:00000000 00:00000000 00000000"
        f" {uid:5}        0 {inode} 1 0000000000000000 20 4 30 10 -1\n"
    )


@pytest.mark.parametrize(
    ("rows", "rows6", "uid"),
    [
        ([row()], [], 1000),
        ([], [row(ipv6=True)], 1000),
        ([row("06", uid=0, inode=0), row()], [], 1000),
        ([row("06", uid=0, inode=0)], [], None),
        ([row("0A")], [], None),
        ([row(uid=0, inode=0)], [], None),
        ([row(), row(uid=1001, inode=78)], [], None),
        ([row()], [row(uid=1001, inode=78, ipv6=True)], None),
        ([row(), row()], [], 1000),  # the table changed while it was read
        ([], [], None),
        ([row()], None, 1000),
    ],
)
def test_connection_tables_are_trusted_only_if_unambiguous(
    tmp_path: Path, rows: list[str], rows6: list[str] | None, uid: int | None
) -> None:
    tables = (tmp_path / "tcp", tmp_path / "tcp6")
    for table, lines in zip(tables, (rows, rows6), strict=True):
        if lines is not None:
            table.write_text(TITLE + "".join(lines))
    connection = PeerConnection(client=("127.0.0.1", 50000), server=("127.0.0.1", 8765))
    assert locality._uid_in_tables(connection, tables=tables) == uid


def process(uid: int, *found: object) -> object:
    def net_connections(*, kind: str) -> list[object]:
        assert kind == "tcp"
        return list(found)

    return SimpleNamespace(
        net_connections=net_connections, uids=lambda: SimpleNamespace(effective=uid)
    )


def test_visible_processes_identify_user_on_other_systems() -> None:
    class DeniedError(Exception):
        pass

    def denied(**_: object) -> None:
        raise DeniedError

    def psutil(*processes: object) -> ModuleType:
        fake = SimpleNamespace(
            Error=DeniedError, CONN_ESTABLISHED="EST", process_iter=lambda: processes
        )
        return cast("ModuleType", fake)

    client, server = ("127.0.0.1", 50000), ("127.0.0.1", 8765)
    client_end = SimpleNamespace(status="EST", laddr=client, raddr=server)
    mapped = SimpleNamespace(status="EST", laddr=("::ffff:127.0.0.1", 50000), raddr=server)
    ending = SimpleNamespace(status="FIN", laddr=client, raddr=server)
    server_end = SimpleNamespace(status="EST", laddr=server, raddr=client)
    listening = SimpleNamespace(status="LISTEN", laddr=server, raddr=())
    hidden = SimpleNamespace(net_connections=denied)
    for processes, uid in (
        ([process(1000, listening, server_end), hidden, process(1001, client_end)], 1001),
        ([process(1001, mapped)], 1001),
        ([process(1001, client_end), process(1001, client_end)], 1001),
        ([process(1001, client_end), process(1002, client_end)], None),
        ([process(1001, ending), hidden], None),
    ):
        connection = PeerConnection(client=client, server=server)
        assert locality._uid_by_processes(connection, psutil(*processes)) == uid


def explaining_app(url: str) -> ASGIApp:
    """Return an app that tells each caller why the caller is not local."""
    own = LocalPeers(uid=ME, public_url=url)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            answer = json.dumps(own.why_not(scope)).encode()
            length = (b"content-length", str(len(answer)).encode())
            await send({"type": "http.response.start", "status": 200, "headers": [length]})
            await send({"type": "http.response.body", "body": answer})

    return app


@ON_LINUX
@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("::1", marks=WITH_IPV6)])
async def test_own_program_is_local_to_real_server(host: str) -> None:
    async with serving_at(explaining_app, host=host) as url, httpx.AsyncClient() as client:
        assert (await client.get(url)).json() is None
        assert (await client.get(url)).json() is None  # over the same connection
        spoof = await client.get(url, headers={"X-Forwarded-For": "127.0.0.1"})
        assert "relay" in spoof.json()
        rebound = await client.get(url, headers={"Host": "evil.example"})
        assert "host" in rebound.json()


ASK = (
    'exec 3<>"/dev/tcp/127.0.0.1/$0";'
    'printf "GET / HTTP/1.1\r\nHost: 127.0.0.1:$0\r\nConnection: close\r\n\r\n" >&3; cat <&3'
)


async def asked_by(url: str, **user: Any) -> Any:
    """Return the response to a request of bash, which any user of the machine can run."""
    child = await asyncio.create_subprocess_exec(
        "bash",
        "-c",
        ASK,
        str(urlsplit(url).port),
        stdout=asyncio.subprocess.PIPE,
        cwd="/",
        **user,
    )
    answer, _ = await child.communicate()
    return json.loads(answer.rpartition(b"\r\n")[2])


@ON_LINUX
@AS_ROOT
async def test_other_user_of_machine_is_not_local_to_real_server() -> None:
    async with serving_at(explaining_app) as url:
        assert await asked_by(url) is None
        nobody = await asked_by(url, user="nobody", extra_groups=[])
        assert nobody == "Another user of this machine opened the connection."


CONFIGURATION = """
daemon off; user {user} {group}; worker_processes 1; pid {folder}/pid; error_log stderr;
events {{}}
http {{
access_log off; client_body_temp_path {folder}/1; proxy_temp_path {folder}/2;
fastcgi_temp_path {folder}/3; uwsgi_temp_path {folder}/4; scgi_temp_path {folder}/5;
server {{ listen 127.0.0.1:{port}; location / {{ {more} proxy_pass {url}; }} }}
}}
"""


@asynccontextmanager
async def nginx(folder: Path, url: str, *, user: str, more: str = "") -> AsyncIterator[str]:
    """Run nginx in front of a server, and yield nginx's URL. `more` is a line of configuration."""
    with bound("127.0.0.1") as listener:
        # nginx inherits this socket, as in an upgrade of nginx. So no port has to be guessed,
        # and the test does not have to wait for the start.
        listener.listen()
        port = listener.getsockname()[1]
        group = getgrgid(pwd.getpwnam(user).pw_gid).gr_name
        configuration = folder / "nginx.conf"
        configuration.write_text(
            CONFIGURATION.format(
                user=user, group=group, folder=folder, port=port, url=url, more=more
            )
        )
        assert NGINX is not None
        child = await asyncio.create_subprocess_exec(
            NGINX,
            "-e",
            "stderr",
            "-c",
            str(configuration),
            env={"NGINX": f"{listener.fileno()};"},
            pass_fds=[listener.fileno()],
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            child.terminate()
            await child.wait()


async def answer_through_nginx(folder: Path, *, user: str, more: str = "") -> Any:
    async with (
        serving_at(explaining_app) as url,
        nginx(folder, url, user=user, more=more) as front,
        httpx.AsyncClient() as client,
    ):
        return (await client.get(front, headers={"Host": "evil.example"})).json()


@ON_LINUX
@AS_ROOT
@WITH_NGINX
async def test_minimal_nginx_of_other_user_is_not_local(tmp_path: Path) -> None:
    assert await answer_through_nginx(tmp_path, user=WEB_USER) is not None
    (tmp_path / "second").mkdir()
    received = await answer_through_nginx(
        tmp_path / "second", user=WEB_USER, more="proxy_http_version 1.1;"
    )
    assert received == "Another user of this machine opened the connection."


@ON_LINUX
@WITH_NGINX
async def test_minimal_nginx_of_own_user_is_detected_by_http_1_0(
    tmp_path: Path,
) -> None:
    received = await answer_through_nginx(tmp_path, user=MY_NAME, more="proxy_http_version 1.0;")
    assert "HTTP/1.0" in received


@ON_LINUX
@WITH_NGINX
async def test_transparent_relay_of_own_user_is_local(tmp_path: Path) -> None:
    # The docstring of webapp/identity/local_peer.py documents this limitation. If this test fails,
    # the limitation is gone: change the text there.
    assert (
        await answer_through_nginx(tmp_path, user=MY_NAME, more="proxy_http_version 1.1;") is None
    )
