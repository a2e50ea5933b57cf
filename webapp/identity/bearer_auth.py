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
from flows.oauth.access_token import BadBearer, Resource
from webapp.http.answer import problem, send_answer
from webapp.http.connection import ASGIApp, Receive, Scope, Send
from webapp.http.rate_limit import address_key
from webapp.identity.access_tokens import IssuerTokens, log_refusal, one_in

METADATA_PATH = "/.well-known/oauth-protected-resource"
RETRY_SECONDS = 30
_STATUS = {
    "invalid_request": HTTPStatus.BAD_REQUEST,
    "insufficient_scope": HTTPStatus.FORBIDDEN,
}
_log = logging.getLogger(__name__)


class ProtectedResource:
    """Middleware that serves the metadata and checks the tokens of requests for `resource`."""

    def __init__(
        self, app: ASGIApp, *, tokens: IssuerTokens, name: str, root_path: str = ""
    ) -> None:
        """`root_path` is the part of the resource's path where the application is mounted.

        The metadata is advertised below that path, where this application answers. RFC 9728, 3.1
        puts the metadata at the host's root, and a proxy can forward that address here, too. Raises
        ValueError unless the resource has its own path.
        """
        resource = tokens.resource
        parts = urlsplit(resource.url)
        if not parts.path.strip("/"):
            raise ValueError(
                f"{resource.url} cannot be protected: it has no path of its own, such as /mcp"
            )
        self._app = app
        self._tokens = tokens
        self._resource = resource
        full_path = parts.path.rstrip("/")
        self._path = full_path.removeprefix(root_path)
        self._metadata_paths = (
            METADATA_PATH,
            METADATA_PATH + self._path,
            METADATA_PATH + full_path,
        )
        origin = f"{parts.scheme}://{parts.netloc}"
        self._metadata_url = f"{origin}{root_path}{METADATA_PATH}{self._path}"
        self._metadata = json.dumps(_metadata(resource, name=name)).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
        elif scope["path"] == self._path or scope["path"].startswith(f"{self._path}/"):
            await self._admit(scope, receive, send)
        elif scope["type"] == "http" and scope["path"] in self._metadata_paths:
            await self._describe(scope, send)
        else:
            await self._app(scope, receive, send)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            token = await self._tokens.whose(_text_in(scope), sender=address_key(scope))
        except BadBearer as refusal:
            log_refusal(refusal)
            await self._refuse(refusal, scope, send)
            return
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
            return
        user = AuthenticatedUser(token)
        scope = {**scope, "user": user, "auth": AuthCredentials(user.scopes)}
        known = auth_context_var.set(user)
        try:
            await self._app(scope, receive, send)
        finally:
            auth_context_var.reset(known)

    async def _refuse(self, refusal: BadBearer, scope: Scope, send: Send) -> None:
        said = {"resource_metadata": self._metadata_url}
        if refusal.error is not None:
            said |= {"error": refusal.error, "error_description": str(refusal)}
        if self._resource.advertised:
            said["scope"] = " ".join(self._resource.advertised)
        challenge = "Bearer " + ", ".join(f'{name}="{value}"' for name, value in said.items())
        await _answer(
            scope,
            send,
            _STATUS.get(refusal.error or "", HTTPStatus.UNAUTHORIZED),
            detail=str(refusal),
            code=refusal.error or "token_required",
            headers={"www-authenticate": challenge},
        )

    async def _describe(self, scope: Scope, send: Send) -> None:
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
        await send_answer(send, HTTPStatus.OK, self._metadata, headers, is_head=is_head)


def _metadata(resource: Resource, *, name: str) -> dict[str, object]:
    """Return the metadata (RFC 9728, 2), which is the same at the root: there is one resource."""
    document: dict[str, object] = {
        "resource": resource.url,
        "authorization_servers": [resource.issuer],
        "bearer_methods_supported": ["header"],
        "resource_name": name,
    }
    if resource.advertised:
        document["scopes_supported"] = list(resource.advertised)
    return document


def _text_in(scope: Scope) -> str:
    """Return the token from the Authorization header. Raises BadBearer."""
    header = one_in(scope, b"authorization")
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
