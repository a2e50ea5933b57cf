"""What a client declared, and what it can be shown or asked within one call."""

from dataclasses import dataclass
from typing import Any

from mcp.server.context import ServerRequestContext

from flows.elicitation.calling_client import kept_name
from flows.elicitation.capabilities import modes_of
from webapp.mcp.results import MODERN


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What it calls itself tells it from others as it was sent; see `kept_name`.

    `is_reached`: whether a request of ours comes to it while a call of its own is open.
    """

    name: str | None
    modes: frozenset[str]
    is_modern: bool
    is_reached: bool

    @property
    def asks(self) -> bool:
        return "form" in self.modes and self.is_reached

    def shows(self, *, by_code: bool) -> bool:
        """Whether it shows links; with letters it must ask for them in the same call."""
        return "url" in self.modes and (self.asks or not by_code)

    def needs_result_tool(self, *, by_code: bool) -> bool:
        """Whether a question may have to wait for another call of the model's.

        Letters come by a form of the client's, or else by a tool.
        """
        return not (self.shows(by_code=by_code) if by_code else "url" in self.modes or self.asks)


def declared_by(context: ServerRequestContext[Any, Any]) -> Declared:
    info = context.session.client_params
    is_modern = context.protocol_version >= MODERN
    return Declared(
        name=kept_name(info.client_info.name) if info is not None else None,
        modes=modes_of(context.session.client_capabilities),
        is_modern=is_modern,
        is_reached=is_modern or context.session.can_send_request,
    )
