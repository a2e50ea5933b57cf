"""Whom a request to the MCP endpoint is from, by the access token that it brought."""

from collections.abc import Mapping
from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken

from webapp.identity.bearer_auth import CheckedToken
from webapp.identity.identity import Identity, Sender, Subject


def subject_of(token: AccessToken | None, identity: Identity, *, issuer: str) -> Subject | None:
    """What a checked token says; `issuer` vouches for those that name none."""
    if token is None:
        return None
    claims = token.claims or {}
    subject = Subject(
        issuer=str(claims.get("iss") or issuer), subject=token.subject, client_id=token.client_id
    )
    if isinstance(token, CheckedToken):
        return subject
    return identity.as_on_our_pages(subject, claims)


def issuer_of(server: Any) -> str:
    """Who vouches for the subjects of a server whose access tokens name nobody."""
    return f"server:{server.name}"


def sender_of(scope: Mapping[str, Any], *, identity: Identity, issuer: str) -> Sender | None:
    """Who sent this request; None if that cannot be known any more."""
    user = scope.get("user")
    token = user.access_token if isinstance(user, AuthenticatedUser) else None
    return identity.sender(scope, subject=subject_of(token, identity, issuer=issuer))
