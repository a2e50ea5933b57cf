"""What an access token opens: GitHub's and Slack's few calls that tell whose it is."""

import json
from http import HTTPStatus
from typing import Any

from litestar import Request, Response

from webapp.sandbox.authorization_client import basic_of, bearer_of, is_client
from webapp.sandbox.authorization_grants import AuthorizationGrants, Family
from webapp.sandbox.pages import NO_STORE
from webapp.sandbox.settings import Sandbox


class GitHubApi:
    """api.github.com, as far as the sandbox has it."""

    def __init__(self, *, sandbox: Sandbox, grants: AuthorizationGrants) -> None:
        self._sandbox = sandbox
        self._grants = grants

    def user(self, request: Request[Any, Any, Any]) -> Response[Any]:
        family = self._family(request)
        if family is None:
            return _bad_credentials()
        person = family.person
        profile = {
            "id": person.number,
            "login": person.login,
            "name": person.name,
            "avatar_url": f"{self._sandbox.url}/people/{person.login}.png",
            "html_url": f"{self._sandbox.url}/people/{person.login}.png",
            "type": "User",
        }
        return Response(profile, headers=_with_scopes(family))

    def repositories(self, request: Request[Any, Any, Any]) -> Response[Any]:
        """Private ones for `repo` only."""
        family = self._family(request)
        if family is None:
            return _bad_credentials()
        sees_private = "repo" in family.access_scopes
        repositories = [
            repository
            for repository in family.person.repositories
            if sees_private or not repository["private"]
        ]
        return Response(repositories, headers=_with_scopes(family))

    def delete_token(
        self, request: Request[Any, Any, Any], *, client_id: str, body: bytes
    ) -> Response[Any]:
        """Revoke a token of the client's own."""
        id, secret = basic_of(request.headers) or ("", "")
        if id != client_id or not is_client(id, secret, sandbox=self._sandbox):
            return _bad_credentials()
        try:
            token = json.loads(body)["access_token"]
        except (ValueError, KeyError, TypeError, RecursionError):
            token = None
        if not isinstance(token, str):
            message = {"message": "access_token is missing"}
            return Response(message, status_code=HTTPStatus.UNPROCESSABLE_ENTITY, headers=NO_STORE)
        if self._grants.family_of(token) is None or not self._grants.revoke(token):
            message = {"message": "Not Found"}
            return Response(message, status_code=HTTPStatus.NOT_FOUND, headers=NO_STORE)
        return Response(None, status_code=HTTPStatus.NO_CONTENT, headers=NO_STORE)

    def _family(self, request: Request[Any, Any, Any]) -> Family | None:
        return self._grants.family_of(bearer_of(request.headers, schemes=("bearer", "token")))


class SlackApi:
    """slack.com/api, as far as the sandbox has it: failures are HTTP 200."""

    def __init__(self, *, sandbox: Sandbox, grants: AuthorizationGrants) -> None:
        self._sandbox = sandbox
        self._grants = grants

    def test(self, request: Request[Any, Any, Any]) -> Response[Any]:
        """`auth.test`: whose token this is."""
        family = self._grants.family_of(bearer_of(request.headers))
        if family is None:
            return Response({"ok": False, "error": "invalid_auth"}, headers=NO_STORE)
        login, number = family.person.login, family.person.number
        who = {
            "ok": True,
            "url": f"{self._sandbox.url}/slack/",
            "team": "Sandbox workspace",
            "team_id": "T0SANDBOX",
            "user": login if family.is_for_person else "sandbox-bot",
            "user_id": f"U{number}" if family.is_for_person else "U0SANDBOX",
        }
        return Response(who, headers=NO_STORE)

    def revoke(self, request: Request[Any, Any, Any]) -> Response[Any]:
        """`auth.revoke`: the token that it is called with."""
        token = bearer_of(request.headers)
        if token is None or self._grants.family_of(token) is None:
            return Response({"ok": False, "error": "invalid_auth"}, headers=NO_STORE)
        return Response({"ok": True, "revoked": self._grants.revoke(token)}, headers=NO_STORE)


def _with_scopes(family: Family) -> dict[str, str]:
    return {**NO_STORE, "x-oauth-scopes": ", ".join(family.access_scopes)}


def _bad_credentials() -> Response[Any]:
    message = {"message": "Bad credentials"}
    return Response(message, status_code=HTTPStatus.UNAUTHORIZED, headers=NO_STORE)
