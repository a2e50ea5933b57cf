"""The address of a Valkey server: the client's options, and a form without the password."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from webapp.stores.opening import may_be_unescaped

_TLS = {"redis": False, "valkey": False, "rediss": True, "valkeys": True}
_PORT = 6379
# TLS options: the trusted authorities, and our own certificate and key.
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_LIKE = (
    "valkey://user:password@host:6379/0, valkeys:// for TLS, or valkey:///run/valkey.sock?db=0 "
    "for a Unix socket; redis:// and rediss:// mean the same"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValkeyAddress:
    """The address `shown` without the password, and the `options` for the library's client."""

    shown: str
    database: int
    options: Mapping[str, Any] = field(repr=False)

    @property
    def is_encrypted(self) -> bool:
        return "ssl" in self.options

    @property
    def is_on_this_machine(self) -> bool:
        """True for a Unix socket or a loopback address."""
        host = str(self.options.get("host", "localhost"))
        return host in ("localhost", "::1") or host.startswith("127.")


def parse_address(url: str) -> ValkeyAddress:
    """Parse the address. Raises ValueError, whose message does not show the password."""
    if "#" in url:
        raise ValueError(f"{_scheme(url)}://... must not contain #: write # in a password as %23")
    if may_be_unescaped(url):
        raise ValueError(
            f"{_scheme(url)}://... has an @ after its host: write / in a password as %2F, ? as %3F "
            f"and @ as %40, as in {_LIKE}"
        )
    try:
        parts = urlsplit(url)
        port = parts.port
        query = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
    except ValueError:
        # The error could contain a part of the address, and so of the password.
        raise ValueError(
            f"{_scheme(url)}://... is not a valid server address: write {_LIKE}"
        ) from None
    options: dict[str, Any] = {}
    if parts.username:
        options["username"] = unquote(parts.username)
    if parts.password:
        options["password"] = unquote(parts.password)
    where, database = _host_and_database(parts, query)
    is_socket = not parts.hostname
    if is_socket:
        options["unix_socket_path"] = where
    else:
        options |= {"host": parts.hostname, "port": port or _PORT}
    if _TLS[parts.scheme]:
        if is_socket:
            raise ValueError(
                f"a Unix socket needs no TLS: write valkey:// instead of {parts.scheme}://"
            )
        options |= {"ssl": True, **{name: query.pop(name) for name in _FILES if name in query}}
    if query:
        raise ValueError(
            f"{parts.scheme}://... has unknown options: {', '.join(sorted(query))}. The "
            f"options are db, and for TLS {', '.join(_FILES)}"
        )
    shown = (
        f"{parts.scheme}://{where}?db={database}"
        if is_socket
        else f"{parts.scheme}://{where}/{database}"
    )
    return ValkeyAddress(shown=shown, database=database, options=options)


def _scheme(url: str) -> str:
    return url.partition(":")[0]


def _host_and_database(parts: SplitResult, query: dict[str, str]) -> tuple[str, int]:
    """Return the host and port, or the path of the socket, and the number of the database."""
    number = query.pop("db", "")
    path = unquote(parts.path)
    if parts.hostname:
        in_path = path.strip("/")
        if in_path and number:
            raise ValueError(f"{parts.scheme}://... names its database twice: remove ?db=")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        where, number = f"{host}:{parts.port or _PORT}", in_path or number
    else:
        if not path.strip("/") or path.strip("/").isdigit():
            raise ValueError(f"{parts.scheme}://... names no host and no socket: write {_LIKE}")
        where = path
    if not (number or "0").isdecimal():
        raise ValueError(f"{parts.scheme}://... does not end with a database number: write {_LIKE}")
    return where, int(number or "0")
