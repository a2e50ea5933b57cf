"""Where this server is found, and how a request names it.

Two spellings of one host must compare as equal and two hosts never do: case, default ports, the
short and the long form of an address, IPv4 inside IPv6. What has a second reading (a user name, a
zone, an escape) is no address at all.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Any
from urllib.parse import urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_AUTHORITY = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::(?P<port>[1-9][0-9]{0,4}))?"
)
PLAIN_PATH = re.compile(r"(/(?!\.{1,2}(?:/|$))[A-Za-z0-9._~-]+)*")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")  # as the last label of a host, it is an address
_ORIGIN = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#@\\]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """A host in lower case (addresses in their shortest form, without brackets) and its port."""

    host: str
    port: int | None

    @classmethod
    def parse(cls, text: str, *, scheme: str) -> "Authority | None":
        """Return None for anything but host[:port]."""
        match = _AUTHORITY.fullmatch(text)
        if match is None:
            return None
        host, port_text = match["host"].lower(), match["port"]
        port = _DEFAULT_PORTS.get(scheme) if port_text is None else int(port_text)
        if port is not None and port > 65535:
            return None
        if host.startswith("["):
            try:
                host = IPv6Address(host[1:-1]).compressed
            except ValueError:
                return None
        return cls(host=host, port=port)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicAddress:
    """Where this server is found, and the other names of the same place.

    `root_path` is the path of the address, without a slash at the end.
    """

    url: str
    scheme: str
    authority: Authority
    root_path: str
    aliases: frozenset[Authority]

    @classmethod
    def parse(cls, url: str) -> "PublicAddress":
        """Raise ValueError unless it is http or https, a host, perhaps a port, perhaps a path."""
        parts = urlsplit(url)
        authority = Authority.parse(parts.netloc, scheme=parts.scheme)
        if parts.scheme not in {"http", "https"} or authority is None:
            raise ValueError(f"{url!r} is not an address like https://tools.example.com")
        root_path = parts.path.rstrip("/")
        if not PLAIN_PATH.fullmatch(root_path) or parts.query or parts.fragment:
            raise ValueError(f"{url!r} must end after its host, port and a plain path")
        aliases = [
            Authority(host=host, port=authority.port) for host in ("127.0.0.1", "localhost", "::1")
        ]
        return cls(
            url=f"{parts.scheme}://{parts.netloc.lower()}{root_path}",
            scheme=parts.scheme,
            authority=authority,
            root_path=root_path,
            aliases=frozenset(aliases) - {authority} if _is_loopback(authority) else frozenset(),
        )

    @property
    def is_on_loopback(self) -> bool:
        """Only programs of this machine can use the address as it is written."""
        return _is_loopback(self.authority)

    def is_at(self, origin: str) -> bool:
        """Return True if a client could reach this server by this origin, in any spelling.

        A client of this machine reaches a server on loopback by any address of the machine's own.
        """
        parts = urlsplit(origin)
        host, port = parts.hostname or "", parts.port or _DEFAULT_PORTS.get(parts.scheme)
        if not self.is_on_loopback:
            return host == self.authority.host
        return port == self.authority.port and is_this_machine(host)

    def host_of(self, scope: Mapping[str, Any]) -> Authority | None:
        """Return what the one Host header names; None if it is missing, repeated or malformed."""
        hosts = headers_of(scope, b"host")
        return Authority.parse(hosts[0], scheme=self.scheme) if len(hosts) == 1 else None


def origin_of(text: str) -> tuple[str, Authority] | None:
    """Return the scheme and authority that an Origin header names; None if it names none."""
    match = _ORIGIN.fullmatch(text)
    if match is None:
        return None
    scheme = match["scheme"].lower()
    authority = Authority.parse(match["authority"], scheme=scheme)
    return None if authority is None else (scheme, authority)


def headers_of(scope: Mapping[str, Any], name: bytes) -> list[str]:
    """Return every value of a header, one for each time it was sent."""
    return [
        value.decode("latin-1").strip() for key, value in scope["headers"] if key.lower() == name
    ]


@lru_cache(maxsize=256)  # the same few addresses come with every request
def plain_ip(text: str) -> str:
    """Return an address in its shortest form, an IPv4 one inside IPv6 as IPv4; raise ValueError."""
    address = ip_address(text)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)


def is_this_machine(host: str) -> bool:
    """Return True for a name of loopback, and for what clients read as an address of it."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ip_address(plain_ip(host))
    except ValueError:
        return _NUMBER.fullmatch(host.rpartition(".")[2]) is not None  # 127.1, 0x7f000001
    return address.is_loopback or address.is_unspecified


def _is_loopback(authority: Authority) -> bool:
    if authority.host == "localhost" or authority.host.endswith(".localhost"):
        return True
    try:
        return ip_address(authority.host).is_loopback
    except ValueError:
        return False
