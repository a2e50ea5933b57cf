"""The address of a PostgreSQL store: its hosts, and what an operator reads when one is not usable.

What could go wrong: a password in an error. So no error has more of an address than
`without_password` leaves, and none has a cause that shows it.
"""

import os
import re
import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from flows.errors import StoreUnavailable
from webapp.stores import postgres_driver as driver
from webapp.stores.opening import may_be_unescaped, without_password

SECONDS = 10.0
CONNECT_SECONDS = 8.0  # several hosts together; who waits for a connection gives up after SECONDS
_PORT = "5432"
_LIKE = "postgresql://user:password@host:5432/database"
_HOST = re.compile(r"(?P<name>/.*|\[[^\]]+\]|[^:\[\]]+)(?::(?P<port>\d+))?")
# Options of the address that are carried out here. The first asks for a server that takes writes,
# as a store always does.
_TARGET, _PATIENCE = "target_session_attrs", "connect_timeout"
FENCED = "EL001"


@dataclass(frozen=True, slots=True)
class Host:
    """One host of an address; without a name it is the one that asyncpg finds in the address."""

    name: str | None = None
    port: str = _PORT

    @property
    def options(self) -> dict[str, Any]:
        return {} if self.name is None else {"host": self.name, "port": int(self.port)}

    def __str__(self) -> str:
        name = f"[{self.name}]" if ":" in str(self.name) else self.name
        return f"{name}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresAddress:
    """`url` is what asyncpg is given; `seconds` is how long each host is waited for."""

    url: str
    hosts: tuple[Host, ...]
    seconds: float


def parse_address(url: str) -> PostgresAddress:
    """Raises ValueError for an address that cannot be read."""
    if may_be_unescaped(url):
        raise ValueError
    parts = urlsplit(url)
    query = parse_qsl(parts.query, strict_parsing=bool(parts.query))
    options = dict(query)
    kept = [each for each in query if each[0] not in (_TARGET, _PATIENCE)]
    hosts = _hosts_of(parts.netloc.rpartition("@")[2], options)
    at_most = CONNECT_SECONDS if len(hosts) > 1 else SECONDS
    seconds = float(options.get(_PATIENCE) or 0)
    return PostgresAddress(
        url=urlunsplit(parts._replace(query=urlencode(kept))),
        hosts=hosts,
        seconds=min(seconds, at_most) if seconds > 0 else at_most,  # 0: no limit, as in libpq
    )


def _hosts_of(netloc: str, options: dict[str, str]) -> tuple[Host, ...]:
    named = [unquote(each) for each in netloc.split(",")] if netloc else []
    named = named or (options.get("host") or os.environ.get("PGHOST", "")).split(",")
    if len(named) < 2:
        return (Host(),)  # asyncpg reads it, and finds sockets where none is named
    ports = (options.get("port") or os.environ.get("PGPORT") or _PORT).split(",")
    if len(ports) not in (1, len(named)):
        raise ValueError
    hosts = list[Host]()
    for place, each in enumerate(named):
        found = _HOST.fullmatch(each)
        if found is None:
            raise ValueError
        port = found["port"] or ports[place % len(ports)]
        hosts.append(Host(found["name"].strip("[]"), str(int(port))))
    return tuple(hosts)


def unavailable(error: Exception, *, url: str, name: str) -> StoreUnavailable:
    """The store's own error for the library's or the system's: what to do about it, no password."""
    if isinstance(error, StoreUnavailable):
        return error
    if getattr(error, "sqlstate", None) == FENCED:
        return StoreUnavailable(str(error))
    if isinstance(error, driver.WrongAddress) or type(error) is ValueError:
        return StoreUnavailable(
            f"{name} is no address that can be read: write {_LIKE}, with %-escapes for what a "
            "password has of : / @ ? # %"
        )
    what = f"the store {without_password(url)} {said(error, SECONDS)}"
    return StoreUnavailable(with_advice(what, error, name=name))


def said(error: Exception, seconds: float) -> str:
    if isinstance(error, TimeoutError):
        return f"did not answer within {seconds:g} seconds"
    if isinstance(error, StoreUnavailable):
        return f"is not used: {error.why}"
    # Each loop has words of its own for a refused connection.
    of_system = isinstance(error, ConnectionError) and error.errno
    text = os.strerror(of_system) if of_system else str(error)
    return f"is not usable: {text}".rstrip(".")


def with_advice(what: str, error: Exception, *, name: str) -> str:
    advice = next((says for kind, says in _ADVICE if isinstance(error, kind)), None)
    return what if advice is None else f"{what}. {name}: {advice}"


_LOOK_AT_ADDRESS = (
    "see that the server runs, that host and port are its own, and that a file which the address "
    "names is there"
)
# What to do about each, the narrower ones first.
_ADVICE: tuple[tuple[type[Exception], str], ...] = (
    (
        driver.WrongLogin,
        "put the right user and password in the address, or into PGPASSWORD or ~/.pgpass",
    ),
    (driver.NoDatabase, "make the database (createdb), or name another"),
    (
        driver.MayNot,
        "make its user the owner of the database, for it has to make tables",
    ),
    (
        driver.TooManyConnections,
        "let the server take more (max_connections), or put PgBouncer before it",
    ),
    (
        driver.NoFunction,
        "a newer version of this program has changed the tables: update this one",
    ),
    (
        driver.ReadOnly,
        "this server only follows another: name the one that takes writes",
    ),
    (
        ssl.SSLError,
        "set sslmode and sslrootcert in the address as the server's certificate asks",
    ),
    (TimeoutError, "look at the load of the server, and whether host and port are its own"),
    (OSError, _LOOK_AT_ADDRESS),
)


def severity(error: Exception) -> int:
    """0 for what is wrong with the whole address; the smaller, the more there is to do about it."""
    if isinstance(error, driver.WrongAddress) or type(error) is ValueError:
        return 0
    kinds = [kind for kind, _ in _ADVICE]
    return next((1 + place for place, kind in enumerate(kinds) if isinstance(error, kind)), 99)
