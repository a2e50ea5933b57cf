"""The MCP endpoint as a protected resource (RFC 9728, RFC 6750): whoever calls brings a token.

What could go wrong: a token taken from the address, where logs keep it; two headers that two
readers read differently; a caller told to give up a good token while the issuer is down. The tools
and webapp.mcp.attach find the caller where the library puts it (`get_access_token`). The token's
own text is not there: it was made for this server and must be passed on to nobody.
"""

import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import parse_qsl, urlsplit

from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.authentication import AuthCredentials

from flows.errors import Failed
from flows.oauth.access_token import BadBearer, Resource, Verified, key_id_of, verify
from webapp.deadline import Clock
from webapp.http.address import headers_of
from webapp.http.answer import problem, send_answer
from webapp.http.connection import ASGIApp, Receive, Scope, Send
from webapp.http.rate_limit import address_key
from webapp.identity.introspection import Introspection
from webapp.identity.issuer import Issuer

METADATA_PATH = "/.well-known/oauth-protected-resource"
RETRY_SECONDS = 30
_FIELDS_AT_MOST = 100
_STATUS = {
    "invalid_request": HTTPStatus.BAD_REQUEST,
    "insufficient_scope": HTTPStatus.FORBIDDEN,
}
_log = logging.getLogger(__name__)


class CheckedToken(AccessToken):
    """One that was checked here: its subject is what people are known by on our pages."""


class ProtectedResource:
    """Answers for the metadata, lets known callers through to `resource`, and all to the rest."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        issuer: Issuer,
        resource: Resource,
        name: str,
        clock: Clock,
        introspection: Introspection | None = None,
        root_path: str = "",
    ) -> None:
        """Without `introspection` a token that only its issuer can read is refused.

        `root_path` is the part of the resource's path where the application stands. The metadata is
        advertised there, where it is ours to answer; RFC 9728, 3.1 has it at the host's root, and
        whoever sends that here gets it too.

        Raises ValueError unless the resource is the issuer's and has a path of its own.
        """
        parts = urlsplit(resource.url)
        if resource.issuer != issuer.url or not parts.path.strip("/"):
            raise ValueError(f"{resource.url} cannot be protected by {issuer.url}")
        self._app = app
        self._issuer = issuer
        self._resource = resource
        self._clock = clock
        self._introspection = introspection
        whole = parts.path.rstrip("/")
        self._path = whole.removeprefix(root_path)
        self._metadata_paths = (METADATA_PATH, METADATA_PATH + self._path, METADATA_PATH + whole)
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
            verified = await self._verified(scope)
        except BadBearer as refusal:
            _tell(refusal)
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
        user = _user(verified, self._resource)
        scope = {**scope, "user": user, "auth": AuthCredentials(user.scopes)}
        known = auth_context_var.set(user)
        try:
            await self._app(scope, receive, send)
        finally:
            auth_context_var.reset(known)

    async def _verified(self, scope: Scope) -> Verified:
        verified = await self._whose(_token_of(scope), scope)
        missing = set(self._resource.scopes) - set(verified.scopes)
        if missing:
            raise BadBearer(
                "scope",
                error="insufficient_scope",
                expected=list(self._resource.scopes),
                came=list(verified.scopes),
            )
        return verified

    async def _whose(self, token: str, scope: Scope) -> Verified:
        try:
            key_id = key_id_of(token)
        except BadBearer as refusal:
            if refusal.reason != "opaque" or self._introspection is None:
                raise
            return await self._introspection.verified(token, sender=address_key(scope))
        keys = await self._issuer.keys(key_id)
        return verify(token, resource=self._resource, keys=keys, now=self._clock())

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
                detail="This document can be read only.",
                code="method_not_allowed",
                headers={"allow": "GET, HEAD"},
            )
            return
        headers, is_head = {"content-type": "application/json"}, scope["method"] == "HEAD"
        await send_answer(send, HTTPStatus.OK, self._metadata, headers, is_head=is_head)


def _tell(refusal: BadBearer) -> None:
    """One line: what was looked at, what was expected and what came; never the token."""
    about = {"why": refusal.reason, "expected": refusal.expected, "came": refusal.came}
    if refusal.reason == "opaque":
        about["do"] = (
            "have the issuer make JWT access tokens for this audience (RFC 9068), or set "
            "ELICIT_INTROSPECT=1"
        )
    level = logging.WARNING if refusal.expected is not None else logging.INFO
    _log.log(level, "bearer.refused", extra={k: v for k, v in about.items() if v is not None})


def _metadata(resource: Resource, *, name: str) -> dict[str, object]:
    """RFC 9728, 2. Programs that look at the root find the one resource that there is."""
    document: dict[str, object] = {
        "resource": resource.url,
        "authorization_servers": [resource.issuer],
        "bearer_methods_supported": ["header"],
        "resource_name": name,
    }
    if resource.advertised:
        document["scopes_supported"] = list(resource.advertised)
    return document


def _token_of(scope: Scope) -> str:
    """The one token, in its one place. Raises BadBearer."""
    headers = headers_of(scope, b"authorization")
    query = scope.get("query_string", b"").decode("latin-1")
    try:
        names = [key for key, _ in parse_qsl(query, True, max_num_fields=_FIELDS_AT_MOST)]
    except ValueError:
        raise BadBearer("too many parameters", error="invalid_request") from None
    if "access_token" in names:
        raise BadBearer("token in the address", error="invalid_request")
    if not headers:
        raise BadBearer("no token", error=None)
    if len(headers) > 1:
        raise BadBearer("several headers", error="invalid_request")
    scheme, _, token = headers[0].partition(" ")
    if scheme.lower() != "bearer":
        raise BadBearer("another scheme", error=None)
    return token.strip(" ")


def _user(verified: Verified, resource: Resource) -> AuthenticatedUser:
    return AuthenticatedUser(
        CheckedToken(
            token="",  # see above
            client_id=verified.client_id,
            scopes=list(verified.scopes),
            expires_at=int(verified.expires_at.timestamp()),
            resource=resource.url,
            subject=verified.subject,
            claims={"iss": verified.issuer},
        )
    )


async def _answer(
    scope: Scope,
    send: Send,
    status: HTTPStatus,
    *,
    detail: str,
    code: str,
    headers: Mapping[str, str],
) -> None:
    """A problem; a websocket, which nothing here speaks, is closed."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    body = problem(status, detail=detail, code=code)
    headers = {**headers, "content-type": "application/problem+json"}
    await send_answer(send, status, body, headers, is_head=scope["method"] == "HEAD")
