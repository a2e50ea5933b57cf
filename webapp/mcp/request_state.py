"""The library's own requestState, sealed with keys that all our processes share.

Risks: by default each process creates its own key, so another process refuses the next request of a
call. And the default lifetime is ten minutes, while a person may take longer. So the library gets
shared keys and a longer lifetime.
"""

from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from typing import Any

from mcp.server.lowlevel import Server
from mcp.server.request_state import (
    AESGCMRequestStateCodec,
    InvalidRequestState,
    RequestStateBoundary,
    RequestStateCodec,
    RequestStateSecurity,
)

from flows.question import TIMEOUT_AT_MOST


def share_request_state(
    server: Any, parts: list[object], keys: Callable[[], tuple[bytes, ...]]
) -> None:
    """Give the library's RequestStateBoundary keys that all processes share, and a longer lifetime.

    A boundary that the author configured stays. A boundary that looks like the library's default is
    replaced, and the new one still opens states that the replaced one has sealed.
    """
    if getattr(server, "_request_state_security", None) is not None:
        return  # FastMCP sets this attribute if the author configured a boundary
    if isinstance(server, Server) and not any(isinstance(p, RequestStateBoundary) for p in parts):
        # A low-level server has no boundary by default, so add one. It comes after the tracing
        # middleware, so that spans show the sealed state, as with the other kinds of servers.
        at = sum(type(part).__name__ == "OpenTelemetryMiddleware" for part in parts[:1])
        default = RequestStateSecurity.ephemeral()
        parts.insert(at, RequestStateBoundary(default, default_audience=server.name))
    for index, part in enumerate(parts):
        if isinstance(part, RequestStateBoundary):
            # There is no public way to read the boundary's configuration.
            theirs = part._security  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            if _looks_default(theirs):
                security = RequestStateSecurity(
                    codec=Shared(keys, theirs=theirs.codec),
                    ttl=(TIMEOUT_AT_MOST + timedelta(days=1)).total_seconds(),
                )
                parts[index] = RequestStateBoundary(security, default_audience=server.name)


class Rotating:
    """The library's codec, with keys that may change between uses."""

    def __init__(self, keys: Callable[[], tuple[bytes, ...]]) -> None:
        self._keys = keys
        self._codecs = lru_cache(maxsize=1)(AESGCMRequestStateCodec)

    def seal(self, payload: bytes) -> str:
        return self._codecs(self._keys()).seal(payload)

    def unseal(self, token: str) -> bytes:
        return self._codecs(self._keys()).unseal(token)


class Shared(Rotating):
    """A codec that also opens with the former keys of the boundary."""

    def __init__(self, keys: Callable[[], tuple[bytes, ...]], *, theirs: RequestStateCodec) -> None:
        super().__init__(keys)
        self._theirs = theirs.boundary_codec if isinstance(theirs, Shared) else theirs

    @property
    def boundary_codec(self) -> RequestStateCodec:
        return self._theirs

    def unseal(self, token: str) -> bytes:
        try:
            return super().unseal(token)
        except InvalidRequestState:
            return self._theirs.unseal(token)


def _looks_default(security: RequestStateSecurity) -> bool:
    default = RequestStateSecurity.ephemeral()
    return isinstance(security.codec, Shared) or (
        security.ttl == default.ttl
        and security.audience is None
        and security.bind_principal is default.bind_principal
        and type(security.codec) is type(default.codec)
    )
