"""Whom a request to the MCP endpoint is from, by the access token that it brought."""

from collections.abc import Mapping
from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser

from webapp.identity.access_tokens import subject_of
from webapp.identity.identity import Identity, Sender


def issuer_of(server: Any) -> str:
    """Who vouches for the subjects of a server whose access tokens name nobody."""
    return f"server:{server.name}"


def sender_of(scope: Mapping[str, Any], *, identity: Identity, issuer: str) -> Sender | None:
    """Who sent this request; None if that cannot be known any more."""
    user = scope.get("user")
    subject = None
    if isinstance(user, AuthenticatedUser):
        subject = subject_of(user.access_token, identity, issuer=issuer)
    return identity.sender(scope, subject=subject)
