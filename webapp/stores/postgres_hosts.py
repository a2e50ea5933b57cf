"""The hosts of a PostgreSQL address, and the choice of the host that accepts writes.

Risk: a host accepts connections but never answers, and uses up the time of the other hosts. Each
host therefore has its own time limit.

Risk: a replaced primary comes back, and one deployment writes to two servers. The server of every
new connection is therefore compared with the last known server. A server's timeline grows with each
promotion, so a server with a smaller timeline was replaced. A different system identifier means a
different database cluster. All connections of an opened store lead to one server. If a new
connection leads to the successor of that server, the connections to the old server are closed.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any
from weakref import WeakSet

from flows.errors import StoreUnavailable
from webapp.stores import postgres_driver as driver
from webapp.stores.opening import without_password
from webapp.stores.postgres_address import (
    CONNECT_SECONDS,
    SECONDS,
    Host,
    parse_address,
    reason_of,
    severity,
    unavailable,
    with_advice,
)
from webapp.stores.postgres_driver import ERRORS, PostgresConnection, statements

# The time limit for one host before the others are queried too. A connect_timeout below this
# value replaces it.
_HOST_SECONDS = 3.0
_OF_A_HOST: tuple[type[Exception], ...] = (*ERRORS, ValueError, StoreUnavailable)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerIdentity:
    """The identity of a server.

    `None` means that the role of the address may not read the value.
    """

    system: str | None
    timeline: int | None
    started_at: datetime
    is_standby: bool
    is_read_only: bool = field(compare=False)

    def why_older(self, *, system: str | None, timeline: int | None) -> str | None:
        """Return why this server is older than the last server (`system`, `timeline`), or None."""
        if None not in (system, self.system) and system != self.system:
            return (
                f"it belongs to a different database cluster (system identifier {self.system}) "
                f"than the last server of this store ({system})"
            )
        if None not in (timeline, self.timeline) and int(self.timeline or 0) < int(timeline or 0):
            return (
                f"it is on timeline {self.timeline}, but the store has since been on timeline "
                f"{timeline}: another server was promoted and has replaced it. Stop the old "
                "server, or make it a standby of the new one (pg_rewind)"
            )
        return None


@dataclass(frozen=True, slots=True)
class _Answer:
    """The answer of one host: a connection to its server, or the reason why it is not used."""

    host: Host
    connection: PostgresConnection | None = None
    found: ServerIdentity | None = None
    error: Exception | None = None

    @property
    def rank(self) -> tuple[bool, int]:
        """The order of preference: a server that accepts writes, then the newest timeline."""
        if self.found is None:
            return (False, 0)
        return (not self.found.is_read_only, self.found.timeline or 0)


class Servers:
    """The server that an opened store uses, and every connection of the store that leads to it."""

    def __init__(self) -> None:
        self.used: ServerIdentity | None = None
        self.noted: ServerIdentity | None = None  # the server as noted in the table elicit_store
        self.host: Host | None = None
        self.is_pooled = False
        self._connections: WeakSet[PostgresConnection] = WeakSet()
        self._refused: set[tuple[Host, str]] = set()

    def why_refused(self, found: ServerIdentity) -> str | None:
        """Return why `found` must not replace the server in use, or None if it may."""
        if found.is_standby:
            return (
                "it is a standby and accepts no writes: put the address of the primary server here"
            )
        if (used := self.used) is None:
            return None
        return found.why_older(system=used.system, timeline=used.timeline)

    def refuse(self, host: Host, why: str) -> None:
        """Log an older server once. Behind a pooler, close all connections: they may lead to it."""
        if (host, why) not in self._refused:
            self._refused.add((host, why))
            _log.error("store.older_server", extra={"host": str(host), "why": why})
        if self.is_pooled:
            self.close_all()

    def add(self, answer: _Answer) -> None:
        """Use the answer's connection.

        If it leads to another server, close the connections to the former server.
        """
        found, used = answer.found, self.used
        if used is not None and found is not None and used != found:
            self.close_all()
            is_newer = used.timeline != found.timeline
            extra = {"host": str(answer.host), "timeline": found.timeline}
            _log.warning("store.promoted" if is_newer else "store.restarted", extra=extra)
        self.used, self.host = found, answer.host
        if answer.connection is not None:
            self._connections.add(answer.connection)

    def has_successor(self, answers: Sequence[_Answer]) -> bool:
        """Return True if an answer comes from a successor of the server in use."""
        used = self.used
        return used is not None and any(
            each.connection is not None and each.rank > (True, used.timeline or 0)
            for each in answers
        )

    def close_all(self) -> None:
        """Close all connections, so that statements in progress fail at once."""
        for connection in tuple(self._connections):
            connection.terminate()
        self._connections.clear()


class Connector:
    """A factory of connections to one address."""

    def __init__(self, url: str, *, name: str, servers: Servers) -> None:
        """Parse the address. `name` is the setting with the address. Raises StoreUnavailable."""
        self._url = url
        self.name = name
        self._servers = servers
        try:
            self._address = parse_address(url)
        except (ValueError, OSError) as error:
            raise unavailable(error, url=url, name=name) from None
        self._total_seconds = CONNECT_SECONDS if self.has_several_hosts else SECONDS
        # How long to wait for the host in use before the others are queried, and after that how
        # long to wait for an answer from a successor.
        self._patience_seconds = min(_HOST_SECONDS, self._address.seconds)

    @property
    def has_several_hosts(self) -> bool:
        return len(self._address.hosts) > 1

    async def connect(self, *, asks_all: bool = False, **options: Any) -> PostgresConnection:
        """Return a connection to the server in use, or to its successor.

        With `asks_all`, query every host of the address even if the server in use answers. Raises
        StoreUnavailable, which says for each host what was wrong with it.
        """
        answers = await self._ask(options, asks_all=asks_all)
        connection: PostgresConnection | None = None
        try:
            chosen = self._chosen(answers)
            connection = chosen.connection
            self._servers.add(chosen)
        finally:
            _close([each for each in answers if each.connection is not connection])
        for each in answers:
            self._refuse_if_older(each)
        assert connection is not None
        return connection

    def unavailable(self, error: Exception) -> StoreUnavailable:
        return unavailable(error, url=self._url, name=self.name)

    async def states(self) -> list[tuple[str, str | None]]:
        """Return a sentence about each host's server, and the fix if something is wrong."""
        answers = await self._ask({"statement_cache_size": 0}, asks_all=True)
        _close(answers)
        found = list[tuple[str, str | None]]()
        for host in self._address.hosts:
            where = f"{host}: " if self.has_several_hosts else ""
            answer = next((each for each in answers if each.host == host), _Answer(host))
            if answer.found is None:
                why = reason_of(answer.error or TimeoutError(), self._address.seconds)
                found.append(
                    (
                        f"{host} {why}",
                        "check that its server runs and that this machine can connect to it",
                    )
                )
            elif answer.found.is_standby:
                found.append((f"{where}it is a standby", None))
            elif (older := self._refuse_if_older(answer)) is not None:
                found.append((f"{where}{older}", "stop this server before a client writes to it"))
            else:
                timeline = answer.found.timeline or "(unknown: its role may not read it)"
                found.append((f"{where}it accepts writes, on timeline {timeline}", None))
        return found

    async def look(self) -> PostgresConnection | None:
        """Check which server the address leads to, and switch to a successor if there is one.

        Return a connection to that server, which the caller has to close, or None if no server can
        be used.
        """
        try:
            return await self.connect(
                asks_all=True, statement_cache_size=0, command_timeout=SECONDS
            )
        except StoreUnavailable:
            return None

    def _chosen(self, answers: Sequence[_Answer]) -> _Answer:
        # Another connection may have found a successor while these connections were opened.
        usable = [
            each
            for each in answers
            if each.connection is not None and not self._refuse_if_older(each)
        ]
        if not usable:
            raise self._unreachable(answers)
        systems = {each.found.system: each.host for each in usable if each.found is not None}
        if len(systems) > 1:
            of_each = ", ".join(f"{host}: {system}" for system, host in systems.items())
            raise StoreUnavailable(
                f"{self.name} names primary servers of different database clusters ({of_each}): "
                "name one primary server and its standbys"
            )
        return max(usable, key=lambda each: each.rank)

    def _refuse_if_older(self, answer: _Answer) -> str | None:
        """Return why the host's server may not be used, and log an older server."""
        found = answer.found
        why = None if found is None else self._servers.why_refused(found)
        if why is not None and found is not None and not found.is_standby:
            self._servers.refuse(answer.host, why)
        return why

    async def _ask(self, options: Mapping[str, Any], *, asks_all: bool) -> Sequence[_Answer]:
        """Query the host in use. If that host does not answer in time, query all others."""
        used, now = self._servers, asyncio.get_running_loop().time
        hosts = sorted(self._address.hosts, key=lambda each: each != used.host)
        end = now() + self._total_seconds
        asking = _Asking(lambda host: self._ask_host(host, options))
        try:
            if not asks_all and used.host in hosts:
                asking.ask(hosts[:1])
                await asking.wait(self._patience_seconds, until=asking.has_usable)
                hosts = [] if asking.has_usable() else hosts[1:]
            if hosts:
                asking.ask(hosts)
                # An older server may answer first, but a successor has to be used.
                found_it = partial(used.has_successor, asking.answers)
                await asking.wait(self._patience_seconds, until=found_it)
            await asking.wait(end - now(), until=asking.has_usable)
        finally:
            await asking.end()
        return asking.answers

    async def _ask_host(self, host: Host, options: Mapping[str, Any]) -> _Answer:
        """Connect to one host and identify its server."""
        connection = None
        try:
            async with asyncio.timeout(self._address.seconds):
                connection = await driver.connect(
                    self._address.url,
                    **{"timeout": SECONDS, **options, **host.options, **self._address.options},
                )
                found = await _identity_of(connection)
        except _OF_A_HOST as error:
            _close([_Answer(host, connection)])
            return _Answer(host, error=error)
        except BaseException:
            _close([_Answer(host, connection)])
            raise
        answer = _Answer(host, connection, found)
        if (why := self._refuse_if_older(answer)) is None:
            return answer
        connection.terminate()
        return _Answer(host, found=found, error=StoreUnavailable(why))

    def _unreachable(self, answers: Sequence[_Answer]) -> StoreUnavailable:
        """Return the error for an address without a usable host, with the fix."""
        errors: dict[Host, Exception] = {host: TimeoutError() for host in self._address.hosts}
        for each in answers:
            why = self._refuse_if_older(each)
            errors[each.host] = (
                (each.error or TimeoutError()) if why is None else StoreUnavailable(why)
            )
        first, seconds = min(errors.values(), key=severity), self._address.seconds
        if severity(first) == 0:
            return unavailable(first, url=self._url, name=self.name)
        shown = without_password(self._url)
        if self.has_several_hosts:
            of_each = [f"{host} {reason_of(error, seconds)}" for host, error in errors.items()]
            what = f"no server of the store {shown} can be used: {'; '.join(of_each)}"
        else:
            what = f"the store {shown} {reason_of(first, seconds)}"
        return StoreUnavailable(with_advice(what, first, name=self.name))


class _Asking:
    """Several hosts that are queried at once."""

    def __init__(self, ask: Callable[[Host], Coroutine[Any, Any, _Answer]]) -> None:
        self._ask = ask
        self._asked: set[asyncio.Task[_Answer]] = set()
        self.answers: list[_Answer] = []

    def ask(self, hosts: Sequence[Host]) -> None:
        self._asked |= {asyncio.create_task(self._ask(host)) for host in hosts}

    def has_usable(self) -> bool:
        return any(each.connection is not None for each in self.answers)

    async def wait(self, seconds: float, *, until: Callable[[], bool]) -> None:
        """Collect answers for this many seconds, or until `until()` is true."""
        now = asyncio.get_running_loop().time
        end = now() + seconds
        while self._asked and not until() and (remaining := end - now()) > 0:
            done, self._asked = await asyncio.wait(
                self._asked, timeout=remaining, return_when=asyncio.FIRST_COMPLETED
            )
            self.answers += [task.result() for task in done]

    async def end(self) -> None:
        """Stop all queries. Connections that are already open are added to the answers."""
        for task in self._asked:
            task.cancel()
        for found in await asyncio.gather(*self._asked, return_exceptions=True):
            if isinstance(found, _Answer):
                self.answers.append(found)


async def _identity_of(connection: PostgresConnection) -> ServerIdentity:
    for statement in ("identity", "identity_without_timeline"):
        try:
            row = await connection.fetchrow(statements()[statement])
        except driver.UNREADABLE:  # the role may not read the value, or the server does not have it
            continue
        return ServerIdentity(
            system=row["system"],
            timeline=None if row["timeline"] is None else int(row["timeline"], 16),
            started_at=row["started_at"],
            is_standby=row["is_standby"],
            is_read_only=row["is_read_only"],
        )
    raise StoreUnavailable("its user may not check whether the server is a standby")


def _close(answers: Iterable[_Answer]) -> None:
    for each in answers:
        if each.connection is not None:
            each.connection.terminate()
