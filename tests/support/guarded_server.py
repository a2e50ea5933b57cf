"""Servers that verify the access tokens of their callers themselves."""

from collections.abc import Mapping
from typing import Any

from tests.support.mcp_server import new_server

TOKEN = {"authorization": "Bearer good"}


def new_guarded_server(library: str, *, subject: str | None) -> Any:
    """Return a server that accepts only the token `good`, with this subject or without one."""
    return guarded_by(library, {"sub": subject} if subject else {})


def guarded_by(library: str, claims: dict[str, str]) -> Any:
    """Return a server that accepts only the token `good`, which has these claims."""
    return guarded_by_tokens(library, {"good": claims})


def guarded_by_tokens(
    library: str,
    claims_by_token: dict[str, dict[str, str]],
    *,
    scopes: Mapping[str, list[str]] | None = None,
) -> Any:
    """Return a server that accepts these tokens with their claims and, for some, scopes."""
    scoped = scopes or {}
    if library == "fastmcp":
        from fastmcp.server.auth.providers.jwt import StaticTokenVerifier

        tokens: dict[str, dict[str, Any]] = {
            text: {"client_id": "client", "scopes": scoped.get(text, []), **claims_by_token[text]}
            for text in claims_by_token
        }
        return new_server(library, auth=StaticTokenVerifier(tokens))
    from mcp.server.auth.provider import AccessToken
    from mcp.server.auth.settings import AuthSettings

    class Verifier:
        async def verify_token(self, token: str) -> AccessToken | None:
            if (claims := claims_by_token.get(token)) is None:
                return None
            return AccessToken(
                token=token,
                client_id="client",
                scopes=scoped.get(token, []),
                subject=claims.get("sub"),
                claims=dict(claims),
            )

    return new_server(
        library,
        token_verifier=Verifier(),
        auth=AuthSettings(
            issuer_url="https://login.example.com",  # type: ignore[arg-type]
            resource_server_url="http://127.0.0.1/mcp",  # type: ignore[arg-type]
            validate_token_resource=False,
        ),
    )
