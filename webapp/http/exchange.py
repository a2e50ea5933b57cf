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

    __slots__ = ("_peer", "_read", "headers", "judged")

    def __init__(self, scope: Mapping[str, Any]) -> None:
        pairs = [(name, value) for name, value in scope["headers"]]
        self.headers: dict[bytes, list[str]] = {}
        for name, value in pairs:
            self.headers.setdefault(name.lower(), []).append(value.decode("latin-1").strip())
        self.judged: tuple[object, str | None] | None = None
        ends = [tuple(end) if (end := scope.get(key)) else None for key in ("client", "server")]
        self._read = (pairs, *ends, scope.get("http_version"), scope.get(PROXIED_KEY))
        self._peer = scope.get(PEER_KEY)

    def is_of(self, scope: Mapping[str, Any]) -> bool:
        """Return True if everything that these facts were read from is the same in the scope."""
        get = scope.get
        read = (scope["headers"], get("client"), get("server"), get("http_version"))
        return self._read == (*read, get(PROXIED_KEY)) and self._peer is get(PEER_KEY)

    def host(self, *, scheme: str) -> Authority | None:
        """Return the authority in the Host header; None if missing, repeated or malformed."""
        hosts = self.headers.get(b"host", [])
        return Authority.parse(hosts[0], scheme=scheme) if len(hosts) == 1 else None


def exchange_of(scope: Mapping[str, Any]) -> Exchange:
    """Return the facts of this request: those that the edge read, or new ones if they differ."""
    found = scope.get(_KEY)
    return found if type(found) is Exchange and found.is_of(scope) else Exchange(scope)


def note_exchange(scope: MutableMapping[str, Any]) -> Exchange:
    """Read the facts of this request and store them in the scope for the layers behind."""
    scope[_KEY] = exchange = Exchange(scope)
    return exchange
