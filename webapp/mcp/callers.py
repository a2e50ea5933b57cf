"""The two sides of a call: the name of the served server, and the caller.

The caller is decided once for each request, by its token or connection.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser

from webapp.http.exchange import facts_of
from webapp.identity.access_tokens import subject_of
from webapp.identity.identity import Caller, Identity, Sender


def issuer_of(server: Any) -> str:
    """Return the issuer of subjects for a server whose access tokens name none."""
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
    """Return the caller of this request: the one that `sender_of` decided, with the client's name.

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
# Risks: two servers without a name use one store, and an approval of a tool of one server runs a
# tool of the other. A name is therefore required. The libraries do not report whether an author
# gave a name, so generated names are recognised by their form: "mcp-server" is the name of each
# MCPServer, and "FastMCP-1a2b" consists of the class and a suffix that differs in each process.

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
