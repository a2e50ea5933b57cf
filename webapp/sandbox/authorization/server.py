"""The authorization server: one implementation under three prefixes, with three sets of habits."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any, TypeAlias

from litestar import HttpMethod, Response, Router, get, post, route
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.params import RawBody

from webapp.http.parts import AnyRequest, provided
from webapp.sandbox.authorization.api import (
    READ_OR_WRITE,
    delete_token,
    repositories,
    slack_revoke,
    slack_test,
    user,
)
from webapp.sandbox.authorization.client import bearer_of
from webapp.sandbox.authorization.consent import Consent
from webapp.sandbox.authorization.faults import Faults
from webapp.sandbox.authorization.granted import AuthorizationGrants
from webapp.sandbox.authorization.habits import GITHUB, OIDC, SLACK, AuthorizationHabits
from webapp.sandbox.authorization.identity import SandboxIdentity
from webapp.sandbox.authorization.tokens import SandboxTokens
from webapp.sandbox.pages import NO_STORE, SandboxPages
from webapp.sandbox.settings import Sandbox

_READ = [HttpMethod.GET, HttpMethod.HEAD]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationServer:
    """A simulated provider, with its own codes and tokens."""

    grants: AuthorizationGrants
    consent: Consent
    tokens: SandboxTokens


Server: TypeAlias = NamedDependency[AuthorizationServer]
Identity: TypeAlias = NamedDependency[SandboxIdentity]


def authorization_parts(
    sandbox: Sandbox, *, clock: Callable[[], datetime], faults: Faults, pages: SandboxPages
) -> dict[str, Any]:
    """Return the dependencies of the routes by name."""
    identity = SandboxIdentity(sandbox=sandbox, clock=clock)
    parts: dict[str, Any] = {"identity": identity}
    for name, habits in (("oidc", OIDC), ("github", GITHUB), ("slack", SLACK)):
        grants = AuthorizationGrants(habits=habits, clock=clock)
        about: Any = {"sandbox": sandbox, "habits": habits, "grants": grants, "faults": faults}
        parts[f"{name}_grants"] = grants
        parts[name] = AuthorizationServer(
            grants=grants,
            consent=Consent(**about, pages=pages),
            tokens=SandboxTokens(**about, identity=identity),
        )
    return parts


def authorization_routes() -> list[Router]:
    """Return the routes below /oidc, /github and /slack, and their metadata under /.well-known."""
    return [
        Router(
            "/",
            route_handlers=[*_common(OIDC), metadata, keys, userinfo, revoke],
            dependencies=provided(server="oidc", identity="identity"),
        ),
        Router(
            "/",
            route_handlers=[*_common(GITHUB), user, repositories, delete_token],
            dependencies=provided(server="github", grants="github_grants", sandbox="sandbox"),
        ),
        Router(
            "/",
            route_handlers=[*_common(SLACK), slack_test, slack_revoke],
            dependencies=provided(server="slack", grants="slack_grants", sandbox="sandbox"),
        ),
    ]


def _common(habits: AuthorizationHabits) -> list[HTTPRouteHandler]:
    @route(habits.authorize, http_method=_READ, sync_to_thread=False)
    def ask(request: AnyRequest, server: Server) -> Response[Any]:
        return server.consent.ask(request)

    @post(habits.authorize, status_code=HTTPStatus.SEE_OTHER, sync_to_thread=False)
    def decide(request: AnyRequest, body: RawBody, server: Server) -> Response[Any]:
        return server.consent.decide(request, body)

    @post(habits.token, status_code=HTTPStatus.OK)
    async def give(request: AnyRequest, body: RawBody, server: Server) -> Response[Any]:
        return await server.tokens.give(request, body)

    return [ask, decide, give]


@get(
    ["/oidc/.well-known/openid-configuration", "/.well-known/oauth-authorization-server/oidc"],
    sync_to_thread=False,
)
def metadata(identity: Identity) -> Response[Any]:
    return Response(identity.metadata(), headers=NO_STORE)


@get("/oidc/jwks", sync_to_thread=False)
def keys(identity: Identity) -> Response[Any]:
    return Response(identity.keys(), headers=NO_STORE)


@route("/oidc/userinfo", http_method=READ_OR_WRITE, status_code=200, sync_to_thread=False)
def userinfo(request: AnyRequest, server: Server, identity: Identity) -> Response[Any]:
    """Return claims about the person (OpenID Connect Core, 5.3), with the errors of RFC 6750."""
    token = bearer_of(request.headers)
    family = server.grants.family_of(token)
    if family is None:
        challenge = "Bearer" if token is None else 'Bearer error="invalid_token"'
        return _challenged(HTTPStatus.UNAUTHORIZED, challenge)
    if "openid" not in family.access_scopes:
        return _challenged(HTTPStatus.FORBIDDEN, 'Bearer error="insufficient_scope"')
    return Response(identity.claims(family.person, scopes=family.access_scopes), headers=NO_STORE)


@post("/oidc/revoke", status_code=HTTPStatus.OK, sync_to_thread=False)
def revoke(request: AnyRequest, body: RawBody, server: Server) -> Response[Any]:
    return server.tokens.revoke(request, body)


def _challenged(status: HTTPStatus, challenge: str) -> Response[Any]:
    headers = {**NO_STORE, "www-authenticate": challenge}
    return Response({}, status_code=status, headers=headers)
