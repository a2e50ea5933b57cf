"""The nginx in front of the pods: a session is routed to the pod that has it.

The pods have addresses of this machine, and a fake DNS server resolves the names. Fake pods answer
with their names and so show nginx's routing. Real processes of this server show that sessions work
with this routing.
"""

import asyncio
import re
import socket
import struct
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import httpx
import pytest

from tests.deployment.files import manifest
from tests.deployment.fronts import changed, listens
from tests.deployment.tools import found
from tests.hosts.checks import PROMISES, Verdict
from tests.hosts.host import MODULE, SECRET, Served
from tests.support.cli import PROJECT, Server, serving
from tests.support.mcp_server import LEGACY, CutOffCaller
from tests.support.processes import ended, error_of, start
from tests.support.serving import free_port
from tests.support.shared_stores import STORES

NAMES = "svc.cluster.local"
ANY = f"elicit.default.{NAMES}"
ADDRESSES = {"elicit-0": "127.0.0.2", "elicit-1": "127.0.0.3"}
ID = "0123456789abcdef"


class Resolver(asyncio.DatagramProtocol):
    """A DNS server for these names.

    It answers queries for IPv4 addresses. The reply to any other query is empty (RFC 1035).
    """

    def __init__(self, names: Mapping[str, Sequence[str]]) -> None:
        self._names = names

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        labels, at = list[bytes](), 12
        while size := data[at]:
            labels.append(data[at + 1 : at + 1 + size])
            at += 1 + size
        question = data[12 : at + 5]
        response = self._names.get(b".".join(labels).decode(), ())
        flags = 0x8180 if response else 0x8183
        reply = data[:2] + struct.pack(">5H", flags, 1, len(response), 0, 0) + question
        for each in response:
            reply += b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 1, 4) + socket.inet_aton(each)
        self._transport.sendto(reply, address)


@dataclass(slots=True, kw_only=True)
class Pod:
    """A fake pod that answers with its name. With `breaks` it closes the connection instead."""

    name: str
    breaks: bool = False
    asked: list[str] = field(default_factory=list[str])

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = re.search(r"(?i)\r\ncontent-length: (\d+)", head)
        body = (await reader.readexactly(int(length[1]) if length else 0)).decode()
        self.asked.append(f"{head}{body}")
        if not self.breaks:
            name = self.name.encode()
            writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n")
            writer.write(b"content-length: %d\r\n\r\n%s" % (len(name), name))
        writer.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The nginx in front, and the pods behind it."""

    front: httpx.AsyncClient
    pods: Mapping[str, Pod]

    async def post(self, session: str | None) -> httpx.Response:
        headers = {"mcp-session-id": session} if session else {}
        return await self.front.post("/mcp", content=b"a call", headers=headers)


@asynccontextmanager
async def fronted(
    folder: Path, *, front: int, pods: int, known: Collection[str], ready: Collection[str]
) -> AsyncIterator[None]:
    """Run nginx. DNS knows the `known` pods by name, and the service as the `ready` pods."""
    names = {f"{name}.elicit-pods.default.{NAMES}": [ADDRESSES[name]] for name in known}
    names[ANY] = [ADDRESSES[name] for name in ready]
    loop = asyncio.get_running_loop()
    resolver, _ = await loop.create_datagram_endpoint(
        lambda: Resolver(names), local_addr=("127.0.0.1", 0)
    )
    try:
        at = resolver.get_extra_info("sockname")[1]
        async with _nginx(folder, front=front, pods=pods, resolver=at):
            yield
    finally:
        resolver.close()


@asynccontextmanager
async def cluster(folder: Path, *, gone: frozenset[str] = frozenset()) -> AsyncIterator[Cluster]:
    """Run nginx and fake pods. The service's address is always the first pod's."""
    pods = {name: Pod(name=name) for name in ADDRESSES if name not in gone}
    port, front = free_port(), free_port()
    async with AsyncExitStack() as stack:
        for name, pod in pods.items():
            server = await asyncio.start_server(pod.answer, ADDRESSES[name], port)
            stack.callback(server.close)
        (first, *_) = pods
        at = fronted(folder, front=front, pods=port, known=[*pods], ready=[first])
        await stack.enter_async_context(at)
        client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{front}", timeout=300)
        yield Cluster(front=await stack.enter_async_context(client), pods=pods)


@asynccontextmanager
async def _nginx(folder: Path, *, front: int, pods: int, resolver: int) -> AsyncIterator[None]:
    own = {"/etc/nginx/conf.d": f"{folder}", ":8765;": f":{pods};"}
    own |= {"listen 8080;": f"listen 127.0.0.1:{front};", f"http://{ANY}": "http://$elicit_any"}
    own["kube-dns.kube-system.svc.cluster.local"] = f"127.0.0.1:{resolver}"
    files = manifest("ConfigMap", "elicit-front")["data"]
    site = changed(files["elicit.conf"], own)
    # nginx would resolve a fixed name with the system's resolver, which does not know our names.
    site = f"map $host $elicit_any {{ default {ANY}; }}\n{site}"
    (folder / "elicit.conf").write_text(site)
    (folder / "elicit.pass").write_text(files["elicit.pass"])
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/nginx.pid; user root; error_log {folder}/main.log;\n"
        "events { worker_connections 64; }\n"
        f"http {{ client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;\n"
        f"fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;\n"
        f"include {folder}/elicit.conf; }}\n"
    )
    command = (found("nginx"), "-p", str(folder), "-c", str(folder / "nginx.conf"))
    process = await start(*command, name="nginx", cwd=folder)
    try:
        await listens(front, lambda: error_of(process))
        yield
    finally:
        process.terminate()
        await ended(process)


async def test_session_is_routed_to_its_pod(tmp_path: Path) -> None:
    # parity: F14
    async with cluster(tmp_path) as here:
        for name in (*here.pods, *here.pods):
            assert (await here.post(f"s.{name}-{ID}")).text == name
        assert all("a call" in each for pod in here.pods.values() for each in pod.asked)


@pytest.mark.parametrize(
    "session", [None, "s", f"s.{ID}", f"s.elicit-1-{ID}.", f"s.elicit-1.evil.example-{ID}"]
)
async def test_request_without_valid_pod_name_goes_to_any_pod(
    tmp_path: Path, session: str | None
) -> None:
    async with cluster(tmp_path) as here:
        assert (await here.post(session)).text == "elicit-0"


@pytest.mark.parametrize("name", ["elicit-0", "elicit-7"])
async def test_session_of_missing_pod_is_answered_by_another_pod(tmp_path: Path, name: str) -> None:
    async with cluster(tmp_path, gone=frozenset({"elicit-0"})) as here:
        assert (await here.post(f"s.{name}-{ID}")).text == "elicit-1"
        assert here.pods["elicit-1"].asked[0].endswith("a call")


async def test_failed_request_without_session_is_not_repeated(tmp_path: Path) -> None:
    async with cluster(tmp_path) as here:
        here.pods["elicit-0"].breaks = True
        assert (await here.post(None)).status_code == 502
        assert [len(pod.asked) for pod in here.pods.values()] == [1, 0]


@asynccontextmanager
async def our_pods(
    folder: Path, *, store: str
) -> AsyncIterator[tuple[Served, Mapping[str, Server]]]:
    """Run two of our processes as pods, which share only their store."""
    port, front = free_port(), free_port()
    url, pods = f"http://127.0.0.1:{front}", dict[str, Server]()
    folder.chmod(0o700)  # noqa: ASYNC240 - one call
    async with AsyncExitStack() as stack:
        for name, address in ADDRESSES.items():
            runtime = stack.enter_context(TemporaryDirectory())
            settings = {
                "ELICIT_URL": url,
                "ELICIT_SECRET": SECRET,
                "ELICIT_STORE": store,
                "ELICIT_PROXIES": "127.0.0.1",
                "ELICIT_INSTANCE": name,
                "XDG_RUNTIME_DIR": runtime,
            }
            command = (f"{MODULE}:served", "--host", address)
            served = serving(*command, home=folder, cwd=PROJECT, port=port, extra=settings)
            pods[name] = await stack.enter_async_context(served)
        at = fronted(folder, front=front, pods=port, known=[*pods], ready=[*pods])
        await stack.enter_async_context(at)
        (first, *_) = pods.values()
        yield Served(url=url, process=first.process, log=str), pods


@pytest.mark.parametrize("store", STORES)
async def test_people_are_asked_through_proxy_by_any_pod(tmp_path: Path, store: str) -> None:
    async with (
        STORES[store](tmp_path) as address,
        our_pods(tmp_path, store=address) as (served, pods),
    ):
        for name in ("pages", "sessions", "resumption", "delivery"):
            (promise,) = [each for each in PROMISES if each.name == name]
            assert await promise.check(served) is Verdict.HOLDS
        async with served.browser() as http:
            callers, has = list[CutOffCaller](), set[str]()
            while has != set(ADDRESSES):  # nginx chooses the process that opens a session
                caller = CutOffCaller(http, f"{served.url}/mcp", LEGACY)
                caller.headers |= served.key
                await caller.connect()
                callers.append(caller)
                has.add(caller.headers["mcp-session-id"].split(".")[1][:8])
            pods["elicit-0"].process.terminate()
            await pods["elicit-0"].process.wait()
            for caller in callers:
                is_gone = ".elicit-0-" in caller.headers["mcp-session-id"]
                answer = await caller.call("nothing")
                assert answer.status_code == (404 if is_gone else 200)
