"""The address of a PostgreSQL store: its hosts, and the errors that an operator sees.

Risks: an error shows a password. Errors therefore show addresses only as `without_password` returns
them, have no cause that shows the address, and leave out a library message that contains the
password.
"""

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from flows.errors import StoreUnavailable
from flows.shown import counted
from webapp.stores import postgres_driver as driver
from webapp.stores.opening import PASSWORDS, may_be_unescaped, without_password

SECONDS = 10.0
CONNECT_SECONDS = 8.0  # for all hosts; a caller that waits for a connection gives up after SECONDS
_PORT = "5432"
_LIKE = "postgresql://user:password@host:5432/database"
_WRITE = f"write {_LIKE}, and %-encode the characters : / @ ? # % in a password"
_HOST = re.compile(r"(?P<name>/.*|\[[^\]]+\]|[^:\[\]]+)(?::(?P<port>\d+))?")
# Options of the address that this module handles itself. The first one asks for a server that
# accepts writes, which a store always needs.
_TARGET, _PATIENCE = "target_session_attrs", "connect_timeout"
# TLS options for our own SSL context, which trusts the system's certificate authorities.
_MODE, _ROOT, _CERTIFICATE, _KEY = "sslmode", "sslrootcert", "sslcert", "sslkey"
_SYSTEM, _FULL = "system", "verify-full"
FENCED = "EL001"


class BadAddress(ValueError):
    """A wrong option of the address. The message shows no other part of the address."""


@dataclass(frozen=True, slots=True)
class Host:
    """A host of an address. Without a name, asyncpg reads the host from the address."""

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
    """The `url` and `options` for asyncpg, and the `seconds` to wait for each host."""

    url: str
    hosts: tuple[Host, ...]
    seconds: float
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


def parse_address(url: str) -> PostgresAddress:
    """Parse the address. Raises ValueError for a bad address, OSError for a file that it names."""
    if may_be_unescaped(url):
        raise ValueError
    parts = urlsplit(url)
    query = parse_qsl(parts.query, strict_parsing=bool(parts.query))
    options = dict(query)
    left_out, tls = {_TARGET, _PATIENCE}, dict[str, Any]()
    if options.get(_ROOT) == _SYSTEM:
        left_out |= {_MODE, _ROOT, _CERTIFICATE, _KEY}
        tls = {"ssl": _trusting_system(options)}
    parameters = [each for each in query if each[0] not in left_out]
    hosts = _hosts_of(parts.netloc.rpartition("@")[2], options)
    at_most = CONNECT_SECONDS if len(hosts) > 1 else SECONDS
    try:
        seconds = float(options.get(_PATIENCE) or 0)
    except ValueError:
        raise BadAddress(f"{_PATIENCE} must be a number of seconds, for example 5") from None
    return PostgresAddress(
        url=urlunsplit(parts._replace(query=urlencode(parameters))),
        hosts=hosts,
        seconds=min(seconds, at_most) if seconds > 0 else at_most,  # 0: no limit, as in libpq
        options=tls,
    )


def _trusting_system(options: Mapping[str, str]) -> ssl.SSLContext:
    """Return an SSL context with full verification, which sslrootcert=system requires in libpq."""
    if options.get(_MODE, _FULL) != _FULL:
        raise BadAddress(f"{_ROOT}={_SYSTEM} needs {_MODE}={_FULL}")
    context = ssl.create_default_context()
    if _CERTIFICATE in options:
        context.load_cert_chain(options[_CERTIFICATE], options.get(_KEY))
    return context


def _hosts_of(netloc: str, options: dict[str, str]) -> tuple[Host, ...]:
    named = [unquote(each) for each in netloc.split(",")] if netloc else []
    named = named or (options.get("host") or os.environ.get("PGHOST", "")).split(",")
    if len(named) < 2:
        return (Host(),)  # asyncpg finds the host, or a socket if no host is named
    ports = (options.get("port") or os.environ.get("PGPORT") or _PORT).split(",")
    if len(ports) not in (1, len(named)):
        raise ValueError
    hosts = list[Host]()
    for index, each in enumerate(named):
        found = _HOST.fullmatch(each)
        if found is None:
            raise ValueError
        port = found["port"] or ports[index % len(ports)]
        hosts.append(Host(found["name"].strip("[]"), str(int(port))))
    return tuple(hosts)


def unavailable(error: Exception, *, url: str, name: str) -> StoreUnavailable:
    """Return a StoreUnavailable for an error of the library or the system, without a password."""
    if isinstance(error, StoreUnavailable):
        return error
    if getattr(error, "sqlstate", None) == FENCED:
        return StoreUnavailable(str(error))
    if _is_of_address(error):
        if (reason := _reason(error, url)) is None:
            return StoreUnavailable(f"{name} is not a valid address: {_WRITE}")
        system = f". {_ROOT}={_SYSTEM} means the certificate authorities that this machine trusts"
        return StoreUnavailable(
            f"{name}: {reason}{system if 'certificate' in reason else ''}. {_WRITE.capitalize()}"
        )
    what = f"the store {without_password(url)} {reason_of(error, SECONDS)}"
    return StoreUnavailable(with_advice(what, error, name=name))


def _is_of_address(error: Exception) -> bool:
    return isinstance(error, driver.WrongAddress) or type(error) in (ValueError, BadAddress)


def _reason(error: Exception, url: str) -> str | None:
    """Return the library's message about the address, or None if a password is in the message."""
    text = str(error).partition("\n")[0].rstrip(".")
    if not text or may_be_unescaped(url):
        return None
    parts = urlsplit(url)
    _, _, of_user = parts.netloc.rpartition("@")[0].partition(":")
    hidden = [of_user, *(value for name, value in parse_qsl(parts.query) if name in PASSWORDS)]
    hidden += [unquote(each) for each in hidden]
    return None if any(each and each in text for each in hidden) else text


def reason_of(error: Exception, seconds: float) -> str:
    if isinstance(error, TimeoutError):
        return f"did not answer within {counted(seconds, 'second')}"
    if isinstance(error, StoreUnavailable):
        return f"cannot be used: {error.why}"
    # Each event loop has its own message for a refused connection.
    of_system = isinstance(error, ConnectionError) and error.errno
    text = os.strerror(of_system) if of_system else str(error)
    return f"is not usable: {text}".rstrip(".")


def with_advice(what: str, error: Exception, *, name: str) -> str:
    advice = next((says for kind, says in _ADVICE if isinstance(error, kind)), None)
    return what if advice is None else f"{what}. {name}: {advice}"


_LOOK_AT_ADDRESS = (
    "check that the server runs, that the host and port in the address are correct, and that each "
    "file named in the address exists"
)
# Advice for each error. More specific errors come first.
_ADVICE: tuple[tuple[type[Exception], str], ...] = (
    (
        driver.WrongLogin,
        "put the correct user and password in the address, in PGPASSWORD or in ~/.pgpass",
    ),
    (driver.NoDatabase, "create the database (createdb), or name another one in the address"),
    (
        driver.MayNot,
        "make the user in the address the owner of the database, because it has to create tables",
    ),
    (
        driver.TooManyConnections,
        "raise max_connections on the server, or put PgBouncer in front of it",
    ),
    (
        driver.NoFunction,
        "a newer version of elicit has changed the tables: update elicit on this machine",
    ),
    (
        driver.ReadOnly,
        "this server is a read-only standby: put the address of the primary server here",
    ),
    (
        ssl.SSLError,
        "set sslmode and sslrootcert in the address to match the server's certificate",
    ),
    (
        TimeoutError,
        "check the load of the server, and that the host and port in the address are correct",
    ),
    (OSError, _LOOK_AT_ADDRESS),
)


def severity(error: Exception) -> int:
    """Return the rank of an error: 0 for a bad address, then lower for more specific advice."""
    if _is_of_address(error):
        return 0
    kinds = [kind for kind, _ in _ADVICE]
    return next((1 + index for index, kind in enumerate(kinds) if isinstance(error, kind)), 99)
