"""The facts of one HTTP exchange, which the edge reads once and every layer behind it uses.

Risks: the facts belong to another request, because another application put them into the scope, or
a layer in between changed the request. The facts of a scope are therefore used only if everything
that they were read from is still in the scope, unchanged. Otherwise the scope is read again.
"""

from collections.abc import Mapping, MutableMapping
from typing import Any

from webapp.http.address import Authority

# The scope key of the owner of the connection, see webapp.identity.local_peer.
PEER_KEY = "elicit.peer"
# Set in the scope of a request that a configured proxy passed on: such a request does not come from
# this machine's user.
PROXIED_KEY = "elicit.proxied"
_KEY = "elicit.exchange"


class Exchange:
    """The facts of a request.

    `headers` has the values of each header, by its name in lower case. `judged` is for
    webapp.identity.local_peer: who decided if the sender is local, and the decision.
    """

    __slots__ = ("headers", "judged", "peer", "read")

    def __init__(self, scope: Mapping[str, Any]) -> None:
        pairs = [(name, value) for name, value in scope["headers"]]
        self.headers: dict[bytes, list[str]] = {}
        for name, value in pairs:
            self.headers.setdefault(name.lower(), []).append(value.decode("latin-1").strip())
        self.judged: tuple[object, str | None] | None = None
        ends = [tuple(end) if (end := scope.get(key)) else None for key in ("client", "server")]
        # Everything that the facts were read from.
        self.read = (pairs, *ends, scope.get("http_version"), scope.get(PROXIED_KEY))
        self.peer = scope.get(PEER_KEY)

    def host(self, *, scheme: str) -> Authority | None:
        """Return the authority in the Host header; None if missing, repeated or malformed."""
        hosts = self.headers.get(b"host", [])
        return Authority.parse(hosts[0], scheme=scheme) if len(hosts) == 1 else None


def exchange_of(scope: Mapping[str, Any]) -> Exchange:
    """Return the facts of this request: those that the edge read, or new ones if they differ."""
    found, get = scope.get(_KEY), scope.get
    if type(found) is Exchange and found.peer is get(PEER_KEY):
        ends = get("client"), get("server")
        if found.read == (scope["headers"], *ends, get("http_version"), get(PROXIED_KEY)):
            return found
    return Exchange(scope)


def note_exchange(scope: MutableMapping[str, Any]) -> Exchange:
    """Read the facts of this request and store them in the scope for the layers behind."""
    scope[_KEY] = exchange = Exchange(scope)
    return exchange
