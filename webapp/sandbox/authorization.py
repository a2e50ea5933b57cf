"""The authorisation server: one implementation under three prefixes, with three kinds of habits."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any, TypeAlias

from litestar import HttpMethod, Response, Router, delete, get, post, route
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, RawBody

from webapp.http.browser import Browser
from webapp.http.parts import AnyRequest, provided
from webapp.sandbox.authorization_api import GitHubApi, SlackApi
from webapp.sandbox.authorization_client import bearer_of
from webapp.sandbox.authorization_consent import Consent
from webapp.sandbox.authorization_faults import Faults
from webapp.sandbox.authorization_grants import AuthorizationGrants
from webapp.sandbox.authorization_habits import GITHUB, OIDC, SLACK, AuthorizationHabits
from webapp.sandbox.authorization_identity import SandboxIdentity
from webapp.sandbox.authorization_tokens import SandboxTokens
from webapp.sandbox.pages import NO_STORE, SandboxPages
from webapp.sandbox.settings import Sandbox

_READ = [HttpMethod.GET, HttpMethod.HEAD]
_BOTH = [HttpMethod.GET, HttpMethod.POST]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationServer:
    """One of the three, with its own codes and tokens."""

    habits: AuthorizationHabits
    grants: AuthorizationGrants
    consent: Consent
    tokens: SandboxTokens


Server: TypeAlias = NamedDependency[AuthorizationServer]
Identity: TypeAlias = NamedDependency[SandboxIdentity]
GitHub: TypeAlias = NamedDependency[GitHubApi]
Slack: TypeAlias = NamedDependency[SlackApi]


def authorization_parts(
    sandbox: Sandbox,
    *,
    clock: Callable[[], datetime],
    faults: Faults,
    pages: SandboxPages,
    browser: Browser,
) -> dict[str, Any]:
    """What the routes need, by name."""
    identity = SandboxIdentity(sandbox=sandbox, clock=clock)

    def server(habits: AuthorizationHabits) -> AuthorizationServer:
        grants = AuthorizationGrants(habits=habits, clock=clock)
        return AuthorizationServer(
            habits=habits,
            grants=grants,
            consent=Consent(
                sandbox=sandbox,
                habits=habits,
                grants=grants,
                faults=faults,
                pages=pages,
                browser=browser,
            ),
            tokens=SandboxTokens(
                sandbox=sandbox, habits=habits, grants=grants, identity=identity, faults=faults
            ),
        )

    oidc, github, slack = server(OIDC), server(GITHUB), server(SLACK)
    return {
        "oidc": oidc,
        "github": github,
        "slack": slack,
        "identity": identity,
        "github_api": GitHubApi(sandbox=sandbox, grants=github.grants),
        "slack_api": SlackApi(sandbox=sandbox, grants=slack.grants),
    }


def authorization_routes() -> list[Router]:
    """Everything below /oidc, /github and /slack, and what /.well-known says of it."""
    return [
        Router(
            "/",
            route_handlers=[*_common(OIDC), metadata, keys, userinfo, revoke],
            dependencies=provided(server="oidc", identity="identity"),
        ),
        Router(
            "/",
            route_handlers=[*_common(GITHUB), user, repositories, delete_token],
            dependencies=provided(server="github", api="github_api"),
        ),
        Router(
            "/",
            route_handlers=[*_common(SLACK), slack_test, slack_revoke],
            dependencies=provided(server="slack", api="slack_api"),
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


@route("/oidc/userinfo", http_method=_BOTH, status_code=HTTPStatus.OK, sync_to_thread=False)
def userinfo(request: AnyRequest, server: Server, identity: Identity) -> Response[Any]:
    return _userinfo(request, server.grants, identity)


@post("/oidc/revoke", status_code=HTTPStatus.OK, sync_to_thread=False)
def revoke(request: AnyRequest, body: RawBody, server: Server) -> Response[Any]:
    return server.tokens.revoke(request, body)


@get("/github/api/user", sync_to_thread=False)
def user(request: AnyRequest, api: GitHub) -> Response[Any]:
    return api.user(request)


@get("/github/api/user/repos", sync_to_thread=False)
def repositories(request: AnyRequest, api: GitHub) -> Response[Any]:
    return api.repositories(request)


@delete(
    "/github/api/applications/{client_id:str}/token",
    status_code=HTTPStatus.OK,
    sync_to_thread=False,
)
def delete_token(
    request: AnyRequest, *, client_id: FromPath[str], body: RawBody, api: GitHub
) -> Response[Any]:
    return api.delete_token(request, client_id=client_id, body=body)


@route("/slack/api/auth.test", http_method=_BOTH, status_code=HTTPStatus.OK, sync_to_thread=False)
def slack_test(request: AnyRequest, api: Slack) -> Response[Any]:
    return api.test(request)


@route("/slack/api/auth.revoke", http_method=_BOTH, status_code=HTTPStatus.OK, sync_to_thread=False)
def slack_revoke(request: AnyRequest, api: Slack) -> Response[Any]:
    return api.revoke(request)


def _userinfo(
    request: AnyRequest, grants: AuthorizationGrants, identity: SandboxIdentity
) -> Response[Any]:
    """OpenID Connect Core, 5.3; the errors are RFC 6750's."""
    token = bearer_of(request.headers)
    family = grants.family_of(token)
    if family is None:
        challenge = "Bearer" if token is None else 'Bearer error="invalid_token"'
        headers = {**NO_STORE, "www-authenticate": challenge}
        return Response({}, status_code=HTTPStatus.UNAUTHORIZED, headers=headers)
    if "openid" not in family.access_scopes:
        headers = {**NO_STORE, "www-authenticate": 'Bearer error="insufficient_scope"'}
        return Response({}, status_code=HTTPStatus.FORBIDDEN, headers=headers)
    return Response(identity.claims(family.person, scopes=family.access_scopes), headers=NO_STORE)
