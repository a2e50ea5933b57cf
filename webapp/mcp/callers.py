"""The sender of a request to the MCP endpoint, by the access token of the request."""

from collections.abc import Mapping
from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser

from webapp.identity.access_tokens import subject_of
from webapp.identity.identity import Identity, Sender


def issuer_of(server: Any) -> str:
    """Return the issuer of subjects for a server whose access tokens name none."""
    return f"server:{server.name}"


def sender_of(scope: Mapping[str, Any], *, identity: Identity, issuer: str) -> Sender | None:
    """Return the sender of this request, or None if its connection has already ended."""
    user = scope.get("user")
    subject = None
    if isinstance(user, AuthenticatedUser):
        subject = subject_of(user.access_token, identity, issuer=issuer)
    return identity.sender(scope, subject=subject)
