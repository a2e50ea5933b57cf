"""The MCP endpoint as a protected resource: callers need a token (RFC 9728, RFC 6750).

Risks: logs store a token in the URL, two readers interpret two headers differently, or a caller
discards a valid token because the issuer is down. Tools and webapp.mcp.attach find the caller where
the MCP library stores it (`get_access_token`). The token's text is not stored there, because a
token for this server must not be passed on.
"""

import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import urlsplit

from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from starlette.authentication import AuthCredentials

from flows.errors import Failed
from flows.oauth.access_token import BadBearer
from webapp.http.exchange import ASGIApp, Receive, Scope, Send, problem, send_answer
from webapp.http.rate_limit import address_key
from webapp.identity.access_tokens import IssuerTokens, header_value, log_refusal

METADATA_PATH = "/.well-known/oauth-protected-resource"
RETRY_SECONDS = 30
_STATUS = {
    "invalid_request": HTTPStatus.BAD_REQUEST,
    "insufficient_scope": HTTPStatus.FORBIDDEN,
}
_log = logging.getLogger(__name__)


def protected(app: ASGIApp, *, tokens: IssuerTokens, name: str, root_path: str = "") -> ASGIApp:
    """Return an application that serves the metadata and protects the resource's path in `app`.

    `root_path` is the part of the resource's path where the application is mounted. The metadata is
    advertised below that path, where this application answers. RFC 9728, 3.1 puts the metadata at
    the host's root, and a proxy can forward that address here, too. Raises ValueError unless the
    resource has its own path.
    """
    resource = tokens.resource
    parts = urlsplit(resource.url)
    if not parts.path.strip("/"):
        raise ValueError(
            f"{resource.url} cannot be protected: it has no path of its own, such as /mcp"
        )
    full_path = parts.path.rstrip("/")
    path = full_path.removeprefix(root_path)
    metadata_paths = (METADATA_PATH, METADATA_PATH + path, METADATA_PATH + full_path)
    metadata_url = f"{parts.scheme}://{parts.netloc}{root_path}{METADATA_PATH}{path}"
    metadata = json.dumps(_metadata(tokens, name=name)).encode()

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        asked = "" if scope["type"] == "lifespan" else scope["path"]
        if asked == path or asked.startswith(f"{path}/"):
            try:
                token = await tokens.verify(_text_in(scope), sender=address_key(scope))
            except BadBearer as refusal:
                log_refusal(refusal)
                await _refuse(refusal, scope, send, tokens=tokens, metadata_url=metadata_url)
            except Failed as error:
                _log.warning("bearer.unchecked", extra={"why": str(error)})
                await _answer(
                    scope,
                    send,
                    HTTPStatus.SERVICE_UNAVAILABLE,
                    detail=str(error),
                    code="issuer_unavailable",
                    headers={"retry-after": str(RETRY_SECONDS)},
                )
            else:
                user = AuthenticatedUser(token)
                known = auth_context_var.set(user)
                try:
                    auth = AuthCredentials(user.scopes)
                    await app({**scope, "user": user, "auth": auth}, receive, send)
                finally:
                    auth_context_var.reset(known)
        elif scope["type"] == "http" and asked in metadata_paths:
            await _describe(scope, send, metadata)
        else:
            await app(scope, receive, send)

    return route


async def _refuse(
    refusal: BadBearer, scope: Scope, send: Send, *, tokens: IssuerTokens, metadata_url: str
) -> None:
    parameters = {"resource_metadata": metadata_url}
    if refusal.error is not None:
        parameters |= {"error": refusal.error, "error_description": str(refusal)}
    if tokens.advertised:
        parameters["scope"] = " ".join(tokens.advertised)
    challenge = "Bearer " + ", ".join(f'{name}="{value}"' for name, value in parameters.items())
    await _answer(
        scope,
        send,
        _STATUS.get(refusal.error or "", HTTPStatus.UNAUTHORIZED),
        detail=str(refusal),
        code=refusal.error or "token_required",
        headers={"www-authenticate": challenge},
    )


async def _describe(scope: Scope, send: Send, metadata: bytes) -> None:
    if scope["method"] not in ("GET", "HEAD"):
        await _answer(
            scope,
            send,
            HTTPStatus.METHOD_NOT_ALLOWED,
            detail="This document is read-only. Use GET or HEAD.",
            code="method_not_allowed",
            headers={"allow": "GET, HEAD"},
        )
        return
    headers, is_head = {"content-type": "application/json"}, scope["method"] == "HEAD"
    await send_answer(send, HTTPStatus.OK, metadata, headers, is_head=is_head)


def _metadata(tokens: IssuerTokens, *, name: str) -> dict[str, object]:
    """Return the metadata (RFC 9728, 2). All metadata paths return this same document."""
    document: dict[str, object] = {
        "resource": tokens.resource.url,
        "authorization_servers": [*tokens.resources],
        "bearer_methods_supported": ["header"],
        "resource_name": name,
    }
    if tokens.advertised:
        document["scopes_supported"] = list(tokens.advertised)
    return document


def _text_in(scope: Scope) -> str:
    """Return the token from the Authorization header. Raises BadBearer."""
    header = header_value(scope, b"authorization")
    if header is None:
        raise BadBearer("no token", error=None)
    scheme, _, text = header.partition(" ")
    if scheme.lower() != "bearer":
        raise BadBearer("another scheme", error=None)
    return text.strip(" ")


async def _answer(
    scope: Scope,
    send: Send,
    status: HTTPStatus,
    *,
    detail: str,
    code: str,
    headers: Mapping[str, str],
) -> None:
    """Send a problem document. A websocket is closed, because nothing here supports websockets."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    body = problem(status, detail=detail, code=code)
    headers = {**headers, "content-type": "application/problem+json"}
    await send_answer(send, status, body, headers, is_head=scope["method"] == "HEAD")
