"""The APIs behind an access token: the few calls of GitHub and Slack that identify its person."""

import json
from http import HTTPStatus
from typing import Any, TypeAlias

from litestar import HttpMethod, Response, delete, get, route
from litestar.di import NamedDependency
from litestar.params import FromPath, RawBody

from webapp.http.parts import AnyRequest
from webapp.sandbox.authorization.client import basic_of, bearer_of, is_client
from webapp.sandbox.authorization.granted import AuthorizationGrants, Family
from webapp.sandbox.pages import NO_STORE
from webapp.sandbox.settings import Sandbox

READ_OR_WRITE = [HttpMethod.GET, HttpMethod.POST]
_SLACK = "/slack/api/auth"
Grants: TypeAlias = NamedDependency[AuthorizationGrants]
Settings: TypeAlias = NamedDependency[Sandbox]


# api.github.com: the calls that the sandbox simulates.


@get("/github/api/user", sync_to_thread=False)
def user(request: AnyRequest, grants: Grants, sandbox: Settings) -> Response[Any]:
    family = _github_family(request, grants)
    if family is None:
        return _github_problem(HTTPStatus.UNAUTHORIZED, "Bad credentials")
    person = family.person
    profile = {
        "id": person.number,
        "login": person.login,
        "name": person.name,
        "avatar_url": f"{sandbox.url}/sandbox.svg",
        "html_url": f"{sandbox.url}/sandbox.svg",
        "type": "User",
    }
    return Response(profile, headers=_with_scopes(family))


@get("/github/api/user/repos", sync_to_thread=False)
def repositories(request: AnyRequest, grants: Grants) -> Response[Any]:
    """List the person's repositories, private ones only with the scope `repo`."""
    family = _github_family(request, grants)
    if family is None:
        return _github_problem(HTTPStatus.UNAUTHORIZED, "Bad credentials")
    sees_private = "repo" in family.access_scopes
    seen = [one for one in family.person.repositories if sees_private or not one["private"]]
    return Response(seen, headers=_with_scopes(family))


@delete(
    "/github/api/applications/{client_id:str}/token",
    status_code=HTTPStatus.OK,
    sync_to_thread=False,
)
def delete_token(
    request: AnyRequest,
    *,
    client_id: FromPath[str],
    body: RawBody,
    grants: Grants,
    sandbox: Settings,
) -> Response[Any]:
    """Revoke a token of the calling client."""
    id, secret = basic_of(request.headers) or ("", "")
    if id != client_id or not is_client(id, secret, sandbox=sandbox):
        return _github_problem(HTTPStatus.UNAUTHORIZED, "Bad credentials")
    try:
        token = json.loads(body)["access_token"]
    except (ValueError, KeyError, TypeError, RecursionError):
        token = None
    if not isinstance(token, str):
        return _github_problem(HTTPStatus.UNPROCESSABLE_ENTITY, "access_token is missing")
    if grants.family_of(token) is None or not grants.revoke(token):
        return _github_problem(HTTPStatus.NOT_FOUND, "Not Found")
    return Response(None, status_code=HTTPStatus.NO_CONTENT, headers=NO_STORE)


# slack.com/api: the calls that the sandbox simulates. Failures have the status 200.


@route(f"{_SLACK}.test", http_method=READ_OR_WRITE, status_code=200, sync_to_thread=False)
def slack_test(request: AnyRequest, grants: Grants, sandbox: Settings) -> Response[Any]:
    """Return the person of the token."""
    family = grants.family_of(bearer_of(request.headers))
    if family is None:
        return Response({"ok": False, "error": "invalid_auth"}, headers=NO_STORE)
    login, number = family.person.login, family.person.number
    who = {
        "ok": True,
        "url": f"{sandbox.url}/slack/",
        "team": "Sandbox workspace",
        "team_id": "T0SANDBOX",
        "user": login if family.is_for_person else "sandbox-bot",
        "user_id": f"U{number}" if family.is_for_person else "U0SANDBOX",
    }
    return Response(who, headers=NO_STORE)


@route(f"{_SLACK}.revoke", http_method=READ_OR_WRITE, status_code=200, sync_to_thread=False)
def slack_revoke(request: AnyRequest, grants: Grants) -> Response[Any]:
    """Revoke the token of the call."""
    token = bearer_of(request.headers)
    if token is None or grants.family_of(token) is None:
        return Response({"ok": False, "error": "invalid_auth"}, headers=NO_STORE)
    return Response({"ok": True, "revoked": grants.revoke(token)}, headers=NO_STORE)


def _github_family(request: AnyRequest, grants: AuthorizationGrants) -> Family | None:
    return grants.family_of(bearer_of(request.headers, schemes=("bearer", "token")))


def _github_problem(status: HTTPStatus, message: str) -> Response[Any]:
    return Response({"message": message}, status_code=status, headers=NO_STORE)


def _with_scopes(family: Family) -> dict[str, str]:
    return {**NO_STORE, "x-oauth-scopes": ", ".join(family.access_scopes)}
