"""The two sides of a call: the name of the served server, the caller, and what its client declares.

The caller is decided once for each request, by its token or connection.

Risks: a bridge (such as mcp-remote or FastMCP's proxy) passes on what the client behind it
declares, but does not support it itself. Another bridge declares everything, although the client
behind it supports nothing. Such bridges are therefore recognised by their names and capabilities.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, cast

from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp_types import ClientCapabilities

from flows.elicitation.tool_call import MODES, modes_of, storable_name
from webapp.http.exchange import facts_of
from webapp.identity.access_tokens import subject_of
from webapp.identity.identity import Caller, Identity, Sender
from webapp.mcp.results import MODERN
from webapp.mcp.tools import Context, title_of
from webapp.settings.quotas import ListedClient


def issuer_of(server: Any) -> str:
    """Return the issuer of subjects for a server whose access tokens name no issuer."""
    return f"server:{server.name}"


def sender_of(scope: Mapping[str, Any], *, identity: Identity, issuer: str) -> Sender | None:
    """Return the sender of this request, or None if its connection has already ended."""
    user = scope.get("user")
    token = user.access_token if isinstance(user, AuthenticatedUser) else None
    subject = None if token is None else subject_of(token, identity, issuer=issuer)
    sender = identity.sender(scope, subject=subject)
    if sender is not None:
        facts_of(scope).caller = identity, token, sender.caller
    return sender


def caller_of(
    scope: Mapping[str, Any] | None, *, identity: Identity, issuer: str, client: str
) -> Caller:
    """Return the caller of this request. Use the decision of `sender_of` if there is one.

    `scope` is None for a call over stdio or from this process. `client` is the client's own name.
    """
    token = get_access_token()
    if scope is not None and (decided := facts_of(scope).caller) is not None:
        by, its_token, caller = decided
        if by is identity and its_token is token and isinstance(caller, Caller):
            return caller if caller.is_client_verified else replace(caller, client=client)
    subject = None if token is None else subject_of(token, identity, issuer=issuer)
    return identity.caller(scope, subject=subject, client=client)


# The name of a served server, which separates its approvals and secrets from another server's.
#
# Risks: two servers without a name use one store, and an approval for a tool of one server also
# allows a tool of the other. A name is therefore required. The libraries do not report whether an
# author gave a name, so generated names are recognised by their form: "mcp-server" is the name of
# each MCPServer, and "FastMCP-1a2b" consists of the class and a suffix that differs in each
# process.

# FastMCP's names for servers that it makes from an OpenAPI document or a FastAPI application.
_EVERYBODYS = frozenset({"mcp-server", "OpenAPI Server", "FastAPI"})
_CHANCE = re.compile(r"-[0-9a-f]{4}")


def must_be_named(server: Any) -> None:
    """Check that the author named the server. Raises ValueError if the library made the name up."""
    name, kind = str(server.name), type(server).__name__
    if name in _EVERYBODYS:
        why = "the default name of the library"
    elif name.startswith(kind) and _CHANCE.fullmatch(name.removeprefix(kind)):
        why = "a name that changes with each process"
    else:
        return
    raise ValueError(
        f"The server has no name of its own ({name!r} is {why}), but approvals are stored under "
        "the name of the server. Give it a name that none of your other servers has: "
        f'{kind}(name="...").'
    )


TASKS: Final = "io.modelcontextprotocol/tasks"
WITH_TASKS: Final = "2025-11-25"  # in this revision, tasks are not an extension
# FastMCP's proxy always declares these capabilities. A program with FastMCP's client declares only
# what the program handles.
_PROXY_NAME: Final = "fastmcp"
_PROXY_DECLARES: Final = frozenset({"roots", "sampling", "elicitation"})
# The names that libraries give to programs without a name. They identify no program.
LIBRARY_NAMES: Final = frozenset({"", "fastmcp", "mcp", "rmcp"})
_CAPABILITIES: Final = frozenset(
    {*("roots", "sampling", "elicitation", "tasks", "experimental", "extensions"), *MODES}
)
_VERSION_CHARACTERS: Final = 64  # the used part of the client's version, see `Declared.apart`
# The suffix that a bridge adds to the name of the client behind it.
_BRIDGED: Final = re.compile(r" \(via mcp-remote [^()]*\)\Z")


@dataclass(frozen=True, kw_only=True)
class Declared:
    """A client as it declares itself. `name` has the form that `storable_name` returns.

    `name` is without the suffix of a bridge. `release` is the client's own version. `modes` are the
    declared modes, without the modes that the client does not show according to the operator's
    settings. `is_reached`: the server can send the client a request while a call of the client is
    open.
    """

    name: str | None
    release: str
    modes: frozenset[str]
    is_modern: bool
    is_reached: bool
    is_proxy: bool = False  # a proxy may declare more than the client behind it supports
    has_tasks: bool = False  # the client supports the protocol's tasks: it can poll long calls
    capabilities: frozenset[str] = frozenset()  # by their names in the protocol
    title: str | None = None  # the client's own title for people, unverified

    @cached_property
    def apart(self) -> str | None:
        """The text that distinguishes programs to which a library gives the same name.

        The text is None if the client has a name of its own.
        """
        if (self.name or "") not in LIBRARY_NAMES:
            return None
        return ", ".join((self.release[:_VERSION_CHARACTERS], *sorted(self.capabilities)))

    @property
    def distinguishing_name(self) -> str:
        """The text by which the calls of unverified clients are distinguished."""
        return self.name or "" if self.apart is None else f"{self.name or ''}\n{self.apart}"

    @cached_property
    def asks(self) -> bool:
        return "form" in self.modes and self.is_reached

    def shows(self, *, by_code: bool) -> bool:
        """Return True if the client shows links. With `by_code`, it must also ask for the code."""
        return "url" in self.modes and (self.asks or not by_code)

    @property
    def elicits(self) -> bool:
        """True if the client declares that it shows links or asks questions itself."""
        return "url" in self.modes or self.asks


def declared_by(
    context: Context, *, listed: Callable[[str | None, str], ListedClient | None]
) -> Declared:
    """Return what the client declared. `listed` returns the operator's setting for a client."""
    params = context.session.client_params
    info = params.client_info if params is not None else None
    given, release = ("", "") if info is None else (info.name, storable_name(info.version))
    name = None if info is None else storable_name(_BRIDGED.sub("", given))
    is_modern = context.protocol_version >= MODERN
    modes = declared_modes = modes_of(context.session.client_capabilities)
    if is_modern and _BRIDGED.search(given):
        modes -= {"url"}  # in this revision, the bridge refuses url requests
    known = listed(name, release)
    capabilities = _named(context.session.client_capabilities)
    return Declared(
        name=name,
        release=release,
        modes=modes if known is None else modes & known.draws,
        is_modern=is_modern,
        is_reached=is_modern or context.session.can_send_request,
        is_proxy=given == _PROXY_NAME and capabilities.keys() >= _PROXY_DECLARES,
        has_tasks=has_tasks(capabilities, context.protocol_version),
        capabilities=_CAPABILITIES & {*capabilities, *declared_modes},
        title=title_of(None if info is None else info.title),
    )


def has_tasks(capabilities: Mapping[str, Any], protocol_version: str) -> bool:
    """Return True if the client declares tasks in the way of its protocol revision."""
    if protocol_version >= MODERN:
        extensions: Any = capabilities.get("extensions")
        return isinstance(extensions, Mapping) and TASKS in extensions
    return protocol_version == WITH_TASKS and isinstance(capabilities.get("tasks"), Mapping)


def _named(capabilities: object) -> Mapping[str, Any]:
    """Return the declared capabilities by their names in the protocol."""
    declared: Any = capabilities
    if isinstance(capabilities, ClientCapabilities):
        declared = capabilities.model_dump(mode="json", by_alias=True, exclude_none=True)
    return cast("Mapping[str, Any]", declared if isinstance(declared, Mapping) else {})
