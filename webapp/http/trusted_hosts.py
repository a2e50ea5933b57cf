"""Hosts in the operator's own network that this server may call (`ELICIT_TRUSTED_HOSTS`).

Risks: an address chosen by somebody else matches a trusted host. The setting therefore only applies
to addresses that the operator has configured (issuer, providers, payment providers), never to
addresses from an author, a model or a client. Each entry is one port of one host or network.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from webapp.http.address import Authority

_HTTPS = 443


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedHost:
    """A trusted host name, with any address, or a trusted network."""

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
        host, _, said = text.partition(":")
        port = _port(said)
    try:
        return ipaddress.ip_network(host), port
    except ValueError:
        return None, port


def _port(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 0 < int(text) < 65536:
        raise ValueError(text)
    return int(text)
