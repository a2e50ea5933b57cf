"""The authorisation server: one implementation under three prefixes, with three kinds of habits."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any

from litestar import HttpMethod, Request, Response, Router, delete, get, post, route
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, RawBody

from webapp.http.browser import Browser
from webapp.sandbox.authorization_api import GitHubApi, SlackApi
from webapp.sandbox.authorization_client import bearer_of
from webapp.sandbox.authorization_consent import Consent
from webapp.sandbox.authorization_faults import Faults
from webapp.sandbox.authorization_grants import Grants
from webapp.sandbox.authorization_habits import GITHUB, OIDC, SLACK, AuthorizationHabits
from webapp.sandbox.authorization_identity import SandboxIdentity
from webapp.sandbox.authorization_tokens import SandboxTokens
from webapp.sandbox.pages import NO_STORE, SandboxPages
from webapp.sandbox.settings import Sandbox

_READ = [HttpMethod.GET, HttpMethod.HEAD]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    """One of the three, with its own codes and tokens."""

    habits: AuthorizationHabits
    grants: Grants
    consent: Consent
    tokens: SandboxTokens


def authorization_router(
    sandbox: Sandbox,
    *,
    clock: Callable[[], datetime],
    faults: Faults,
    pages: SandboxPages,
    browser: Browser,
) -> Router:
    """Everything below /oidc, /github and /slack, and what /.well-known says of it."""
    identity = SandboxIdentity(sandbox=sandbox, clock=clock)

    def server(habits: AuthorizationHabits) -> _Server:
        grants = Grants(habits=habits, clock=clock)
        return _Server(
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
    github_api = GitHubApi(sandbox=sandbox, grants=github.grants)
    slack_api = SlackApi(sandbox=sandbox, grants=slack.grants)
    handlers = [
        *(handler for one in (oidc, github, slack) for handler in _common(one)),
        *_openid(oidc, identity),
        *_github(github_api),
        *_slack(slack_api),
    ]
    return Router("/", route_handlers=handlers)


def _common(server: _Server) -> list[HTTPRouteHandler]:
    @route(server.habits.authorize, http_method=_READ, sync_to_thread=False)
    def ask(request: Request[Any, Any, Any]) -> Response[Any]:
        return server.consent.ask(request)

    @post(server.habits.authorize, status_code=HTTPStatus.SEE_OTHER, sync_to_thread=False)
    def decide(request: Request[Any, Any, Any], body: RawBody) -> Response[Any]:
        return server.consent.decide(request, body)

    @post(server.habits.token, status_code=HTTPStatus.OK)
    async def give(request: Request[Any, Any, Any], body: RawBody) -> Response[Any]:
        return await server.tokens.give(request, body)

    return [ask, decide, give]


def _openid(server: _Server, identity: SandboxIdentity) -> list[HTTPRouteHandler]:
    @get(
        ["/oidc/.well-known/openid-configuration", "/.well-known/oauth-authorization-server/oidc"],
        sync_to_thread=False,
    )
    def metadata() -> Response[Any]:
        return Response(identity.metadata(), headers=NO_STORE)

    @get("/oidc/jwks", sync_to_thread=False)
    def keys() -> Response[Any]:
        return Response(identity.keys(), headers=NO_STORE)

    @route(
        "/oidc/userinfo",
        http_method=[HttpMethod.GET, HttpMethod.POST],
        status_code=HTTPStatus.OK,
        sync_to_thread=False,
    )
    def userinfo(request: Request[Any, Any, Any]) -> Response[Any]:
        return _userinfo(request, server.grants, identity)

    @post("/oidc/revoke", status_code=HTTPStatus.OK, sync_to_thread=False)
    def revoke(request: Request[Any, Any, Any], body: RawBody) -> Response[Any]:
        return server.tokens.revoke(request, body)

    return [metadata, keys, userinfo, revoke]


def _github(api: GitHubApi) -> list[HTTPRouteHandler]:
    @get("/github/api/user", sync_to_thread=False)
    def user(request: Request[Any, Any, Any]) -> Response[Any]:
        return api.user(request)

    @get("/github/api/user/repos", sync_to_thread=False)
    def repositories(request: Request[Any, Any, Any]) -> Response[Any]:
        return api.repositories(request)

    @delete(
        "/github/api/applications/{client_id:str}/token",
        status_code=HTTPStatus.OK,
        sync_to_thread=False,
    )
    def delete_token(
        request: Request[Any, Any, Any], *, client_id: FromPath[str], body: RawBody
    ) -> Response[Any]:
        return api.delete_token(request, client_id=client_id, body=body)

    return [user, repositories, delete_token]


def _slack(api: SlackApi) -> list[HTTPRouteHandler]:
    both = [HttpMethod.GET, HttpMethod.POST]

    @route(
        "/slack/api/auth.test",
        http_method=both,
        status_code=HTTPStatus.OK,
        sync_to_thread=False,
    )
    def test(request: Request[Any, Any, Any]) -> Response[Any]:
        return api.test(request)

    @route(
        "/slack/api/auth.revoke",
        http_method=both,
        status_code=HTTPStatus.OK,
        sync_to_thread=False,
    )
    def revoke(request: Request[Any, Any, Any]) -> Response[Any]:
        return api.revoke(request)

    return [test, revoke]


def _userinfo(
    request: Request[Any, Any, Any], grants: Grants, identity: SandboxIdentity
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
