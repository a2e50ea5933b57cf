"""What a client declared, and what it can be shown or asked within one call.

What could go wrong: a bridge passes on what the client behind it declares, and cannot do it itself.
Or it declares everything for itself, and the client behind it can do none of it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from mcp.server.context import ServerRequestContext
from mcp_types import ClientCapabilities

from flows.elicitation.calling_client import kept_name
from flows.elicitation.capabilities import MODES, modes_of
from webapp.mcp.results import MODERN
from webapp.settings.quotas import ListedClient

TASKS: Final = "io.modelcontextprotocol/tasks"
WITH_TASKS: Final = "2025-11-25"  # where they are a part of the protocol, not an extension
# A bridge's mark behind the name of the client that it brings.
# FastMCP's proxy declares all of these for itself; a program that uses its client, what it handles.
_PROXY_NAME: Final = "fastmcp"
_PROXY_DECLARES: Final = frozenset({"roots", "sampling", "elicitation"})
# What libraries call each program that gives itself no name: no identity of any of them.
LIBRARY_NAMES: Final = frozenset({"", "fastmcp", "mcp", "rmcp"})
_CAPABILITIES: Final = frozenset(
    {*("roots", "sampling", "elicitation", "tasks", "experimental", "extensions"), *MODES}
)
_VERSION_CHARACTERS: Final = 64  # that tell programs with one library's name apart
_BRIDGED: Final = re.compile(r" \(via mcp-remote [^()]*\)\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What it calls itself tells it from others as it was sent; see `kept_name`.

    `name` is without the mark of a bridge between, `release` its own version. `modes` are what it
    declared, but for what the operator says that it does not show.
    `is_reached`: whether a request of ours comes to it while a call of its own is open.
    """

    name: str | None
    release: str
    modes: frozenset[str]
    is_modern: bool
    is_reached: bool
    is_proxy: bool = False  # it declares for itself what the client behind it perhaps cannot do
    has_tasks: bool = False  # of the protocol: it can look in for what takes long
    capabilities: frozenset[str] = frozenset()  # by their names on the wire

    @property
    def apart(self) -> str | None:
        """Return what tells it from other programs whose library gives them the same name.

        None where its name is its own.
        """
        if (self.name or "") not in LIBRARY_NAMES:
            return None
        return ", ".join((self.release[:_VERSION_CHARACTERS], *sorted(self.capabilities)))

    @property
    def told_by(self) -> str:
        """Return by what its calls are told from those of other clients without a verified id."""
        return self.name or "" if self.apart is None else f"{self.name or ''}\n{self.apart}"

    @property
    def asks(self) -> bool:
        return "form" in self.modes and self.is_reached

    def shows(self, *, by_code: bool) -> bool:
        """Whether it shows links; with letters it must ask for them in the same call."""
        return "url" in self.modes and (self.asks or not by_code)

    @property
    def elicits(self) -> bool:
        """Whether it says that it shows or asks anything itself."""
        return "url" in self.modes or self.asks


def declared_by(
    context: ServerRequestContext[Any, Any],
    *,
    listed: Callable[[str | None, str], ListedClient | None],
) -> Declared:
    """`listed` is what the operator says of a client, by its name and its version."""
    params = context.session.client_params
    info = params.client_info if params is not None else None
    given, release = ("", "") if info is None else (info.name, kept_name(info.version))
    name = None if info is None else kept_name(_BRIDGED.sub("", given))
    is_modern = context.protocol_version >= MODERN
    modes = modes_of(context.session.client_capabilities)
    if is_modern and _BRIDGED.search(given):
        modes -= {"url"}  # it refuses url requests there, and the call fails
    known = listed(name, release)
    capabilities = _mapping(context.session.client_capabilities)
    return Declared(
        name=name,
        release=release,
        modes=modes if known is None else modes & known.draws,
        is_modern=is_modern,
        is_reached=is_modern or context.session.can_send_request,
        is_proxy=given == _PROXY_NAME and capabilities.keys() >= _PROXY_DECLARES,
        has_tasks=has_tasks(context.session.client_capabilities, context.protocol_version),
        capabilities=_CAPABILITIES
        & {*capabilities, *modes_of(context.session.client_capabilities)},
    )


def has_tasks(capabilities: object, protocol_version: str) -> bool:
    """Whether a client declares tasks, in the way of its revision; the others have none."""
    declared = _mapping(capabilities)
    if protocol_version >= MODERN:
        extensions: Any = declared.get("extensions")
        return isinstance(extensions, Mapping) and TASKS in extensions
    return protocol_version == WITH_TASKS and isinstance(declared.get("tasks"), Mapping)


def _mapping(capabilities: object) -> Mapping[str, Any]:
    """Return what a client declared, by its names on the wire."""
    declared: Any = capabilities
    if isinstance(capabilities, ClientCapabilities):
        declared = capabilities.model_dump(mode="json", by_alias=True, exclude_none=True)
    return cast("Mapping[str, Any]", declared if isinstance(declared, Mapping) else {})
