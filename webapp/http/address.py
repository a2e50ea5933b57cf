"""The server's public address, hosts and origins in requests, and the operator's trusted hosts.

Two spellings of one host must compare equal, and two different hosts must not. Spellings differ in
case, default ports, short and long IP addresses, and IPv4 inside IPv6. An ambiguous address (with a
user name, a zone or an escape) is rejected.

Risks: an address chosen by somebody else matches a trusted host. The trusted hosts therefore only
apply to addresses that the operator has configured (issuer, providers, payment providers), never to
addresses from an author, a model or a client. Each entry is one port of one host or network.
"""

import ipaddress
import re
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Any
from urllib.parse import quote, unquote, urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_AUTHORITY = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::(?P<port>[1-9][0-9]{0,4}))?"
)
PLAIN_PATH = re.compile(r"(/(?!\.{1,2}(?:/|$))[A-Za-z0-9._~-]+)*")
# a host whose last label is a number is an IPv4 address
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")
_ORIGIN = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#@\\]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """A host in lower case (IP addresses in short form, without brackets) and its port."""

    host: str
    port: int | None

    @classmethod
    def parse(cls, text: str, *, scheme: str) -> "Authority | None":
        """Parse host[:port]. Return None for anything else."""
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
    """The public address of this server, and equivalent names for it.

    `root_path` is the path of the address, without a slash at the end.
    """

    url: str
    scheme: str
    authority: Authority
    root_path: str
    aliases: frozenset[Authority]
    is_on_loopback: bool  # only programs on this machine can use the address

    @classmethod
    def parse(cls, url: str) -> "PublicAddress":
        """Parse an http or https URL with optional port and path. Raises ValueError for others."""
        parts = urlsplit(url)
        authority = Authority.parse(parts.netloc, scheme=parts.scheme)
        if parts.scheme not in {"http", "https"} or authority is None:
            raise ValueError(f"{url!r} is not an address like https://tools.example.com")
        root_path = parts.path.rstrip("/")
        if not PLAIN_PATH.fullmatch(root_path) or parts.query or parts.fragment:
            raise ValueError(f"{url!r} must end after its host, port and a plain path")
        is_on_loopback = _is_loopback(authority)
        aliases = [
            Authority(host=host, port=authority.port) for host in ("127.0.0.1", "localhost", "::1")
        ]
        return cls(
            url=f"{parts.scheme}://{parts.netloc.lower()}{root_path}",
            scheme=parts.scheme,
            authority=authority,
            root_path=root_path,
            aliases=frozenset(aliases) - {authority} if is_on_loopback else frozenset(),
            is_on_loopback=is_on_loopback,
        )

    def is_at(self, origin: str) -> bool:
        """Return True if a client could reach this server by this origin, in any spelling.

        A client on this machine can reach a loopback server by any of the machine's addresses.
        """
        parts = urlsplit(origin)
        host, port = parts.hostname or "", parts.port or _DEFAULT_PORTS.get(parts.scheme)
        if not self.is_on_loopback:
            return host == self.authority.host
        return port == self.authority.port and is_this_machine(host)


def origin_of(text: str) -> tuple[str, Authority] | None:
    """Return the scheme and authority of an Origin header, or None if it is malformed."""
    match = _ORIGIN.fullmatch(text)
    if match is None:
        return None
    scheme = match["scheme"].lower()
    authority = Authority.parse(match["authority"], scheme=scheme)
    return None if authority is None else (scheme, authority)


@lru_cache(maxsize=256)  # few addresses, each with many requests
def plain_ip(text: str) -> str:
    """Return an IP address in short form, IPv4 inside IPv6 as IPv4. Raises ValueError."""
    address = ip_address(text)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)


def is_this_machine(host: str) -> bool:
    """Return True for a loopback name, and for any text that clients read as a loopback address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ip_address(plain_ip(host))
    except ValueError:
        return _NUMBER.fullmatch(host.rpartition(".")[2]) is not None  # such as 127.1 or 0x7f000001
    return address.is_loopback or address.is_unspecified


def _is_loopback(authority: Authority) -> bool:
    if authority.host == "localhost" or authority.host.endswith(".localhost"):
        return True
    try:
        return ip_address(authority.host).is_loopback
    except ValueError:
        return False


_HTTPS = 443


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedHost:
    """A trusted host name, whatever its IP addresses are, or a trusted network."""

    port: int
    name: str | None = None
    network: ipaddress.IPv4Network | ipaddress.IPv6Network | None = None

    def is_of(self, host: str, port: int, addresses: Sequence[str]) -> bool:
        """Return True if the name matches, or if all addresses are in the network."""
        if port != self.port:
            return False
        if self.network is None:
            return host.lower().rstrip(".") == self.name
        network = self.network
        return bool(addresses) and all(ipaddress.ip_address(one) in network for one in addresses)


def read_trusted_host(text: str) -> TrustedHost:
    """Parse host:port, network:port, or either without port (443). Raises ValueError."""
    network, port = _split_network(text)
    if network is not None:
        return TrustedHost(port=port, network=network)
    authority = Authority.parse(text, scheme="https")
    if authority is None or authority.port is None:
        raise ValueError(text)
    return TrustedHost(port=authority.port, name=authority.host)


def _split_network(
    text: str,
) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network | None, int]:
    """Split off the port of a network or IP address. IPv6 with a port needs brackets."""
    host, port = text, _HTTPS
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = _port(rest.removeprefix(":")) if rest else _HTTPS
    elif text.count(":") == 1:
        host, _, port_text = text.partition(":")
        port = _port(port_text)
    try:
        return ipaddress.ip_network(host), port
    except ValueError:
        return None, port


def _port(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 0 < int(text) < 65536:
        raise ValueError(text)
    return int(text)


# The path below the host at which the application is mounted (ASGI's root_path).
#
# Frameworks change `path` differently: Starlette leaves it unchanged and sets root_path, Litestar
# strips the mount path and adds a slash. The path is therefore read from `raw_path`.
#
# Risks: one path is read in two ways. A proxy that blocks /tools/mcp must not be bypassed by
# /tools/tools/mcp. The code therefore never guesses from the path that a prefix was stripped. If
# the ASGI server reports a prefix in root_path, the request paths must still contain that prefix at
# their beginning. If a proxy strips a prefix, the operator sets the prefix in ELICIT_ROOT_PATH. The
# full path must begin with the path of ELICIT_URL.

_WELL_KNOWN = "/.well-known"
# Routing state of the outer framework, which a framework inside would mistake for its own state.
_OF_HOSTS = frozenset(
    {
        "app_root_path",
        "endpoint",
        "litestar_app",
        "path_params",
        "path_template",
        "route_handler",
        "router",
        "_ls_connection_state",
    }
)
_ROOT_PATH_HINT = "If a proxy removes this prefix, set ELICIT_ROOT_PATH="
# Scope key of the root path, for an author's application that is mounted there.
ROOT_KEY = "elicit.root_path"


class Misplaced(Exception):
    """A request for a path outside of this application.

    The message is for the operator.

    `is_mounted`: the host itself reports another mount path.
    """

    def __init__(self, why: str, *, is_mounted: bool) -> None:
        super().__init__(why)
        self.is_mounted = is_mounted


def written_path(scope: Mapping[str, Any]) -> str:
    """Return the path as the client sent it, or the quoted `path` if there is no `raw_path`."""
    raw: bytes | None = scope.get("raw_path")
    return quote(scope["path"]) if raw is None else raw.decode("latin-1")


def placed(
    scope: MutableMapping[str, Any], *, url: str, root_path: str, stripped: str
) -> MutableMapping[str, Any]:
    """Return the scope as if the application were at the root of its host.

    Raises Misplaced.

    `root_path` is the path of `url`, the public address. `stripped` is the prefix that a proxy
    removes.
    """
    raw: bytes | None = scope.get("raw_path")
    written = quote(scope["path"]) if raw is None else raw.decode("latin-1")
    reported: str = scope.get("app_root_path", scope.get("root_path", "")).rstrip("/")
    if reported and not (stripped or is_below(written, reported)):
        why = (
            f"The ASGI server reports root_path {reported}, but the request paths do not begin "
            f"with it. {_ROOT_PATH_HINT}{reported}."
        )
        raise Misplaced(why, is_mounted=False)
    full_path = stripped + written
    if full_path == root_path:
        path = "/"
    elif full_path.startswith(f"{root_path}/"):
        path = full_path.removeprefix(root_path)
    elif is_below(full_path, _WELL_KNOWN):
        path = full_path  # RFC 9728, 3.1: well-known path before the resource path
    else:
        raise Misplaced(_why(mount_of(scope), url=url, root_path=root_path), is_mounted=False)
    is_changed = scope.get("root_path") or unquote(written) != scope["path"]
    if is_changed and not root_path and (mount := mount_of(scope)):
        raise Misplaced(_why(mount, url=url, root_path=root_path), is_mounted=True)
    inside = {name: value for name, value in scope.items() if name not in _OF_HOSTS}
    inside |= {"path": unquote(path), "root_path": "", ROOT_KEY: root_path}
    if raw is not None:
        inside["raw_path"] = path.encode("latin-1")
    return inside


def rooted(scope: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Return the scope with root_path set, for an application that builds its own URLs."""
    root_path: str = scope.get(ROOT_KEY, "")
    if not root_path:
        return scope
    changed = {**scope, "root_path": root_path, "path": root_path + scope["path"]}
    if scope.get("raw_path") is not None:
        changed["raw_path"] = root_path.encode() + scope["raw_path"]
    return changed


def is_below(path: str, root: str) -> bool:
    """Return True if `path` equals `root` or is below it."""
    return path == root or path.startswith(f"{root}/")


def mount_of(scope: Mapping[str, Any]) -> str:
    """Return the mount path that the host reports by root_path or by a stripped path."""
    if scope.get("root_path"):
        return str(scope["root_path"]).rstrip("/")
    path, full_path = scope["path"].rstrip("/"), unquote(written_path(scope)).rstrip("/")
    is_off = path != full_path and full_path.endswith(path)
    return full_path.removesuffix(path).rstrip("/") if is_off else ""


def _why(mount: str, *, url: str, root_path: str) -> str:
    if not root_path:
        return (
            f"The application is served under {mount}, but ELICIT_URL ({url}) has no path. Set "
            f"ELICIT_URL to {url}{mount}."
        )
    if mount:
        return (
            f"The application is served under {mount}, but ELICIT_URL is {url}. Do one of these: "
            f"mount the application once, at {root_path}; set ELICIT_URL to the address that "
            "people open; or, if a proxy removes a part of the path, set uvicorn --root-path or "
            "ELICIT_ROOT_PATH to that part."
        )
    return (
        f"A request arrived without the path of ELICIT_URL ({url}). If a proxy removes "
        f"{root_path}, set uvicorn --root-path {root_path} or ELICIT_ROOT_PATH={root_path}. "
        "Otherwise configure the proxy to forward the full path (nginx: proxy_pass without a "
        "path)."
    )
