"""The connection to one Valkey server or to a cluster: pipelines, retries and failover.

Risks: a connection ends after a script was sent, and it is unknown whether the script ran. The
library's own retries are therefore off, and the caller receives an error that says that nothing is
acknowledged. Only a command that the server refused before doing anything is sent again: a script
that the server does not know (its cache was flushed, or it was restarted) is sent with its text,
and a command whose slot moved to another node of the cluster is sent to that node.

After a failover the address may lead to another server, and later to the previous one, which has
come back. Each new connection therefore identifies a standalone server by its replication
identifier and by the number of changes of that identifier. The server stores both, so its replicas
have them too. All connections lead to one server, and never to a server whose successor this
process has seen. In a cluster the nodes themselves agree on the primary of each slot.

A pipeline that writes ends with WAITAOF on the same connection. If `appendfsync` is `always`, the
server replies only when the data is on disk, and WAITAOF costs 0.05 ms. If somebody has changed
`appendfsync` since the start, WAITAOF still waits for the disk.
"""

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, cast
from weakref import WeakSet

from redis.asyncio import ConnectionPool, Redis, RedisCluster
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import (
    ConnectionError as LostConnection,
)
from redis.exceptions import (
    TimeoutError as TooLate,
)

from flows.errors import StoreUnavailable
from webapp.stores.valkey.address import ValkeyAddress
from webapp.stores.valkey.layout import (
    LAYOUT_KEY,
    LAYOUT_VERSION,
    SERVER_KEY,
    SHARDS_OF_A_CLUSTER,
    Command,
    key,
    with_script_text,
)

# A server that does not answer for longer than this counts as unavailable.
ANSWER_SECONDS = 10.0
FAILED = (RedisError, RedisClusterException, OSError)
_CONNECT_SECONDS = 5.0
_CANCEL_AGAIN_SECONDS = 0.2
_LEFT_AT_MOST = 4  # replaced clients, whose commands may be in progress
_NOTHING_DONE = (NoScriptError, MovedError, AskError, TryAgainError)

# The library raises several errors for a failed login.
_NOT_LET_IN = re.compile("authentication required|invalid username-password", re.IGNORECASE)
_ELSEWHERE = (
    RedisClusterException,
    MovedError,
    ReadOnlyError,
    ClusterError,
    LostConnection,
    TooLate,
    OSError,
)
_log = logging.getLogger(__name__)
_Client: TypeAlias = "Redis | RedisCluster"


class OneServer:
    """The server that all connections of a client lead to."""

    def __init__(self) -> None:
        self.moves = 0  # how often the server changed
        self.pool: ConnectionPool | None = None
        # The number of servers so far, and the replication identifier of the current server.
        self._used: tuple[int, str] | None = None
        self._connections: WeakSet[AbstractConnection] = WeakSet()

    async def meet(self, connection: AbstractConnection) -> None:
        """Log in, and check that the connection leads to the server in use or to its successor.

        Raises LostConnection for an older server.
        """
        await connection.on_connect()
        sections = ("replication", "cluster")
        info = cast("bytes", await self._ask(connection, "INFO", *sections)).decode()
        fields = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
        name = fields.get("master_replid", "")
        if fields.get("role") != "master" or fields.get("cluster_enabled") == "1" or not name:
            # A replica or a cluster node checks writes itself. A server without an identifier
            # cannot be compared.
            return
        found = cast("bytes | None", await self._ask(connection, "GET", SERVER_KEY)) or b"0 "
        number, _, noted = found.decode().partition(" ")
        now, used = (int(number), noted), self._used
        if used is not None and now != used and now[0] <= used[0]:
            why = (
                "another server has replaced it: stop the old server, or make it a replica of the "
                "new one (REPLICAOF)"
            )
            _log.error("store.older_server", extra={"server": name, "why": why})
            raise LostConnection(why)
        if noted != name:
            now = (now[0] + 1, name)
            await self._ask(connection, "SET", SERVER_KEY, f"{now[0]} {name}")
        if used is not None and now != used:
            _log.warning("store.other_server", extra={"server": name})
            self.moves += 1
            for other in self._connections:
                marked: Any = other  # most of the library's methods have no types
                marked.mark_for_reconnect()  # reconnects when its current command has ended
            self._connections.clear()
            if self.pool is not None:
                await self.pool.disconnect(inuse_connections=False)
        self._used = now
        self._connections.add(connection)

    async def _ask(self, connection: AbstractConnection, *command: str) -> object:
        await connection.send_command(*command)
        return cast("object", await connection.read_response())


class ValkeyServer:
    """A redis-py client. In a cluster, the client knows which node has which slot."""

    def __init__(
        self,
        address: ValkeyAddress,
        client: _Client,
        *,
        answer_seconds: float,
        options: Mapping[str, Any],
    ) -> None:
        """`options` are the arguments of a cluster client."""
        self.address = address
        self._client = client
        self._answer_seconds = answer_seconds
        self._options = options
        self.one = OneServer()
        self._finding: asyncio.Task[None] | None = None
        self._replaced: list[RedisCluster] = []  # replaced clients; their commands complete

    @classmethod
    async def connect(
        cls, address: ValkeyAddress, *, answer_seconds: float = ANSWER_SECONDS
    ) -> "ValkeyServer":
        """Connect, and detect a cluster. Raises the library's own errors."""
        options: dict[str, Any] = {
            **address.options,
            "protocol": 2,  # RESP3 has no advantage here, and some servers lack it
            "socket_timeout": answer_seconds,
            "socket_connect_timeout": min(_CONNECT_SECONDS, answer_seconds),
        }
        one = OneServer()
        client = Redis(
            db=address.database,
            retry=Retry(NoBackoff(), 0),
            redis_connect_func=one.meet,
            **options,
        )
        server = cls(address, client, answer_seconds=answer_seconds, options=options)
        server.one, one.pool = one, client.connection_pool
        try:
            (info,) = await server.ask_each("INFO", "cluster")
            if info.get("cluster_enabled"):
                await server.aclose()
                cluster = await _cluster(options)
                server = cls(address, cluster, answer_seconds=answer_seconds, options=options)
        except BaseException:
            await server.aclose()
            raise
        return server

    @property
    def is_cluster(self) -> bool:
        return isinstance(self._client, RedisCluster)

    def node_of(self, command: Command) -> str:
        """Return the name of the node that executes the command, or "" for a single server."""
        if isinstance(self._client, RedisCluster):
            of_script = command[0] == "EVALSHA"
            with suppress(RedisClusterException):  # no node has this slot at the moment
                node = self._client.get_node_from_key(str(command[3 if of_script else 1]))
                return "" if node is None else str(node.name)
        return ""

    async def run(
        self, commands: Sequence[Command], *, durable: Sequence[int] | None = None
    ) -> list[Any]:
        """Send all commands, and return an answer or a StoreUnavailable for each.

        When this method returns, the changes in the shards `durable` are on disk. If the server
        cannot confirm that, every answer is a StoreUnavailable.
        """
        try:
            answers = await self._pipeline(commands, durable)
            again = [n for n, answer in enumerate(answers) if isinstance(answer, _NOTHING_DONE)]
            if again:
                await self._find_nodes(answers, waits=True)
                answered = await self._pipeline(
                    [with_script_text(commands[n]) for n in again], durable, is_redirected=True
                )
                for n, answer in zip(again, answered, strict=True):
                    answers[n] = answer
        except FAILED as error:
            answers = [error] * len(commands)
        await self._find_nodes(answers)
        return [
            unavailable(self.address, answer) if isinstance(answer, FAILED) else answer
            for answer in answers
        ]

    async def ask_each(self, *command: str) -> list[Any]:
        """Return the answers of all servers that accept writes."""
        client: Any = self._client  # most of the library's methods have no types
        if self.is_cluster:
            return [
                await client.execute_command(*command, target_nodes=node)
                for node in client.get_primaries()
            ]
        return [await client.execute_command(*command)]

    def new_connection(self) -> AbstractConnection:
        """Return a new connection that is not yet connected and not in the client's pool."""
        client: Any = self._client
        if self.is_cluster:
            # choose at random, so that a later try avoids a dead node
            node = client.get_random_primary_node()
            connection: AbstractConnection = node.connection_class(**node.connection_kwargs)
        else:
            connection = client.connection_pool.make_connection()
        return connection

    async def aclose(self) -> None:
        if self._finding is not None:
            await stop(self._finding)
        for client in (*self._replaced, self._client):
            await client.aclose()

    async def _pipeline(
        self,
        commands: Sequence[Command],
        durable: Sequence[int] | None,
        *,
        is_redirected: bool = False,
    ) -> list[Any]:
        wait = ("WAITAOF", 1, 0, int(self._answer_seconds * 500))
        client = self._client
        if isinstance(client, RedisCluster):
            _ = await client.initialize()
            waiting = {client.get_node_from_key(key(shard, "fence")) for shard in durable or ()}
            cluster = client.pipeline()
            for command in commands:
                _ = cluster.execute_command(*command)
            for node in waiting:
                _ = cluster.execute_command(*wait, target_nodes=node)
            answers = await cluster.execute(raise_on_error=False, allow_redirections=is_redirected)
        else:
            alone: Any = client.pipeline(transaction=False)
            for command in commands if not durable else (*commands, wait):
                alone.execute_command(*command)
            answers = await alone.execute(raise_on_error=False)
        for waited in answers[len(commands) :]:
            if isinstance(waited, BaseException):
                raise waited
            if waited[0] < 1:
                raise TooLate("its disk has not confirmed the write (WAITAOF)")
        return answers[: len(commands)]

    async def _find_nodes(self, answers: Sequence[object], *, waits: bool = False) -> None:
        """Refresh the client's list of nodes if an answer shows that a primary may have changed."""
        client = self._client
        is_of_replica = any(map(_is_of_replica, answers))
        with suppress(*FAILED):
            if not isinstance(client, RedisCluster):
                if is_of_replica:  # after a failover the address may lead to another server
                    await client.connection_pool.disconnect(inuse_connections=False)
            elif is_of_replica or any(isinstance(answer, _ELSEWHERE) for answer in answers):
                if self._finding is None or self._finding.done():
                    self._finding = asyncio.create_task(self._refresh_nodes(client))
                if waits:
                    await asyncio.shield(self._finding)

    async def _refresh_nodes(self, client: RedisCluster) -> None:
        """Ask all nodes at once for the slots, and use the first answer.

        The library asks one node after another, so a silent node would delay every caller. Commands
        in progress on the former client complete.
        """
        places = {(self._options["host"], self._options["port"])}
        places |= {(node.host, node.port) for node in client.get_nodes()}
        asked = [
            asyncio.create_task(_cluster({**self._options, "host": host, "port": port}))
            for host, port in places
        ]
        found: RedisCluster | None = None
        try:
            for answer in asyncio.as_completed(asked):
                with suppress(*FAILED):
                    found = await answer
                    break
        finally:
            for task in asked:
                task.cancel()
            for other in await asyncio.gather(*asked, return_exceptions=True):
                if isinstance(other, RedisCluster) and other is not found:
                    await other.aclose()
        if found is not None:
            self._client = found
            self._replaced.append(client)
        while len(self._replaced) > _LEFT_AT_MOST:
            await self._replaced.pop(0).aclose()


async def stop(task: asyncio.Task[Any]) -> None:
    """Cancel a task that uses the library, and wait until the task has ended.

    On Python 3.11 the library's `asyncio.wait_for` loses a cancellation that comes in the moment in
    which a command was sent. The task is therefore cancelled again.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_CANCEL_AGAIN_SECONDS)


async def _cluster(options: Mapping[str, Any]) -> RedisCluster:
    """Return a client that has read the list of nodes from this node."""
    client = RedisCluster(retry=Retry(NoBackoff(), 0), **options)
    try:
        return await client.initialize()
    except BaseException:
        await client.aclose()
        raise


def _is_of_replica(answer: object) -> bool:
    """Return True for an error that a replica sends to a command that writes.

    The library has no class for the error that WAITAOF returns on a replica.
    """
    return isinstance(answer, ReadOnlyError) or (
        isinstance(answer, ResponseError) and "replica instances" in str(answer)
    )


def unavailable(address: ValkeyAddress, error: BaseException) -> StoreUnavailable:
    """Return a StoreUnavailable, with the fix, for an error of the library or the system."""
    shown, text = address.shown, str(error)
    if isinstance(error, AuthenticationError) or _NOT_LET_IN.search(text):
        why = (
            f"the store {shown} refuses the user or password ({text}): put the correct user and "
            "password in ELICIT_STORE, for example valkey://user:password@host:6379/0"
        )
    elif "DB index" in text:
        why = (
            f"the store {shown} has no database {address.database}: end ELICIT_STORE with /0, or "
            "with a number below the server's setting `databases`"
        )
    elif isinstance(error, NoPermissionError):
        why = (
            f"the store {shown} does not give its user the needed permissions ({text}): allow the "
            "keys and channels elicit:*, and the commands listed in docs/how-to/stores.md"
        )
    elif isinstance(error, ClusterError | TryAgainError):
        why = f"the cluster of the store {shown} is being resharded or has lost a server: {text}"
    elif isinstance(error, ResponseError):
        why = f"the store {shown} refused a command: {text}"
    else:
        other, scheme = ("no TLS", "valkey://") if address.is_encrypted else ("TLS", "valkeys://")
        why = (
            f"the store {shown} cannot be reached ({text}): check that its server runs and that "
            f"the address in ELICIT_STORE is correct. If the server uses {other}, the address "
            f"begins with {scheme}"
        )
    refusal = StoreUnavailable(why)
    refusal.__cause__ = error
    return refusal


# The checks of a Valkey server before it is used: would it lose acknowledged data?
#
# A managed service may forbid CONFIG. The check then uses only INFO, which says whether there is an
# append-only log and which keys are evicted. INFO does not say how often the log is written to
# disk. Each write waits for the disk anyway, for up to a second with `everysec`.

_OLDEST = (7, 2)
_SET_THIS = "set this in the Valkey server's configuration, or ask its operator to set it: "


async def check_server(server: ValkeyServer) -> None:
    """Check the server. Raises StoreUnavailable if it can lose data. The message has the fix."""
    shown = server.address.shown
    for info in await server.ask_each("INFO"):
        check_info(shown, info)
    try:
        configured = await server.ask_each("CONFIG GET", "append*")
    except ResponseError:  # CONFIG is forbidden or renamed
        return
    for config in configured:
        if (often := config.get("appendfsync")) not in (None, "always"):
            raise StoreUnavailable(
                f"the store {shown} can lose the writes of the last second, because its "
                f"appendfsync is {often}: {_SET_THIS}appendfsync always"
            )


def check_info(shown: str, info: Mapping[str, Any]) -> None:
    """Check the answer of INFO. Raises StoreUnavailable if the server may lose data."""
    version = str(info.get("redis_version", "0"))
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < _OLDEST:
        raise StoreUnavailable(
            f"the store {shown} has version {version}, which cannot confirm that a write is on "
            "disk: use Valkey, or Redis 7.2 or newer"
        )
    if info.get("role") != "master":
        raise StoreUnavailable(
            f"the store {shown} is a read-only replica: set ELICIT_STORE to the address of its "
            "primary"
        )
    if not info.get("aof_enabled"):
        raise StoreUnavailable(
            f"the store {shown} loses all data when its server stops: {_SET_THIS}appendonly yes "
            "and appendfsync always"
        )
    policy = str(info.get("maxmemory_policy", ""))
    # `volatile-` policies evict only keys with a time to live, and our keys have none.
    if policy.startswith("allkeys"):
        raise StoreUnavailable(
            f"the store {shown} deletes saved records when its memory is full ({policy}): "
            f"{_SET_THIS}maxmemory-policy noeviction"
        )


async def shards_of(server: ValkeyServer) -> int:
    """Return the store's number of shards. If the store is new, set that number first."""
    shards = SHARDS_OF_A_CLUSTER if server.is_cluster else 1
    layout = f"{LAYOUT_VERSION} {shards}"
    created, found = await server.run([("SET", LAYOUT_KEY, layout, "NX"), ("GET", LAYOUT_KEY)])
    for answer in (created, found):
        if isinstance(answer, StoreUnavailable):
            raise answer
    version, _, count = found.decode().partition(" ")
    if version != str(LAYOUT_VERSION) or not count.isdecimal():
        raise StoreUnavailable(
            f"the store {server.address.shown} has layout {found.decode()!r}, written by a newer "
            f"version of elicit; this version can read layouts up to {LAYOUT_VERSION}: update "
            "elicit"
        )
    return int(count)
