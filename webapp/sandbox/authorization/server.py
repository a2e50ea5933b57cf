"""The authorization server: one implementation under three prefixes, with three sets of habits."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from litestar import HttpMethod, MediaType, Response, Router, delete, get, post, route
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, RawBody

from webapp.http.parts import READ, AnyRequest, provided
from webapp.sandbox.authorization.granted import (
    PEOPLE,
    AuthorizationGrants,
    Family,
    SandboxPerson,
    basic_of,
    bearer_of,
    is_client,
    person_of,
)
from webapp.sandbox.authorization.habits import (
    GITHUB,
    OIDC,
    REDIRECT_FAULTS,
    SLACK,
    AuthorizationHabits,
    Faults,
    SimulatedFault,
)
from webapp.sandbox.authorization.requests import (
    AuthorizationRequest,
    ClientRedirect,
    NotRedirected,
    Parameters,
    SentBack,
    read_request,
)
from webapp.sandbox.authorization.tokens import SandboxIdentity, SandboxTokens
from webapp.sandbox.pages import NO_STORE, SandboxPages
from webapp.sandbox.settings import Sandbox

# The APIs behind an access token: the few calls of GitHub and Slack that identify its person.

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


# The APIs of an operator's simulated providers: each has one call, which identifies the person.
# The keys are made up and the same in every sandbox, so that tests can contain them.

_KEY = "sandbox-key-"


def sandbox_key(person: SandboxPerson) -> str:
    return _KEY + person.login


@get("/keys", sync_to_thread=False)
def keys_page(pages: NamedDependency[SandboxPages]) -> Response[Any]:
    keys = [(person, sandbox_key(person)) for person in PEOPLE]
    return pages.page("keys.html", {"keys": keys})


@get("/apis/{name:str}/me", sync_to_thread=False)
def me(
    request: AnyRequest,
    grants: NamedDependency[AuthorizationGrants],
    identity: NamedDependency[SandboxIdentity],
) -> Response[Any]:
    """Return the person of the API key in any header or parameter, or of the bearer token."""
    found = _keyed(request) or _of_token(request, grants, identity)
    if found is None:
        return Response({"error": "unknown key"}, status_code=HTTPStatus.UNAUTHORIZED)
    return Response(found, headers=NO_STORE)


def _keyed(request: AnyRequest) -> dict[str, Any] | None:
    basic = basic_of(request.headers)
    texts = [*request.headers.values(), *request.query_params.values(), *(basic or ())]
    sent = {text.rpartition(" ")[2] for text in texts}
    return next((_about(one) for one in PEOPLE if sandbox_key(one) in sent), None)


def _about(person: SandboxPerson) -> dict[str, Any]:
    return {"id": person.number, "login": person.login, "name": person.name}


def _of_token(
    request: AnyRequest, grants: AuthorizationGrants, identity: SandboxIdentity
) -> dict[str, Any] | None:
    token = bearer_of(request.headers)
    family = grants.family_of(token)
    if family is not None:
        return _about(family.person)
    claims = None if token is None else identity.claims_in(token)
    if claims is None:
        return None
    subject = claims["sub"]
    return {"id": subject, "login": claims.get("preferred_username", subject)}


# The consent page: who asks, for what, which made-up person answers, and their decision.

_NOT_COMPLETE = "This form is not complete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Consent:
    """The authorization endpoint of one authorization server."""

    sandbox: Sandbox
    habits: AuthorizationHabits
    grants: AuthorizationGrants
    faults: Faults
    pages: SandboxPages

    def ask(self, request: AnyRequest) -> Response[Any]:
        """Show the page. The server stores nothing about the request."""
        asked = self._read(request)
        if not isinstance(asked, AuthorizationRequest):
            return asked
        here, words = self._here(request), self.habits.scopes
        values = {
            "provider": self.habits.name,
            "client": self.sandbox.client_id,
            "place": urlsplit(asked.redirect.redirect_uri).netloc,
            "scopes": [(scope, words.get(scope, "")) for scope in asked.scopes],
            "user_scopes": [(scope, words.get(scope, "")) for scope in asked.user_scopes],
            "people": PEOPLE,
            "action": here,
        }
        return self.pages.form("consent.html", values, request=request, subject=here)

    def decide(self, request: AnyRequest, body: bytes) -> Response[Any]:
        """Redirect the browser back with a code, or with the person's refusal."""
        asked = self._read(request)
        if not isinstance(asked, AuthorizationRequest):
            return asked
        try:
            form = Parameters(body)
            decision, login, csrf = (form.get(name) for name in ("decision", "person", "csrf"))
        except ValueError:
            return self.pages.trouble(_NOT_COMPLETE, "Your browser sent it in an invalid format.")
        if not self.pages.is_valid_csrf(csrf, request=request, subject=self._here(request)):
            return self.pages.trouble(
                "This form is not valid here",
                "It is not from our page in this browser, or your browser does not store cookies.",
                status=HTTPStatus.FORBIDDEN,
            )
        person = person_of(login)
        if decision == "deny":
            description = "The person declined."
            return self._send_back(
                asked.redirect, error="access_denied", error_description=description
            )
        if decision != "approve" or person is None:
            return self.pages.trouble(_NOT_COMPLETE, "Choose a person and press a button.")
        return self._send_back(asked.redirect, code=self.grants.issue_code(asked, person=person))

    def _read(self, request: AnyRequest) -> AuthorizationRequest | Response[Any]:
        """Return the request, or the response to an invalid one."""
        query = _query(request)
        try:
            return read_request(query, sandbox=self.sandbox, habits=self.habits)
        except NotRedirected as err:
            return self.pages.trouble("We can't ask you this", str(err))
        except SentBack as err:
            return self._send_back(err.redirect, error=err.error, error_description=err.description)

    def _send_back(self, redirect: ClientRedirect, **parameters: str) -> Response[Any]:
        fault = self.faults.pop(REDIRECT_FAULTS)
        if fault is SimulatedFault.DROP_ISS:
            redirect = redirect.with_issuer(None)
        elif fault is SimulatedFault.WRONG_ISS:
            redirect = redirect.with_issuer(f"{self.sandbox.url}/somebody-else")
        headers = {**NO_STORE, "location": redirect.back(**parameters)}
        status = HTTPStatus.SEE_OTHER
        return Response(b"", status_code=status, media_type=MediaType.TEXT, headers=headers)

    def _here(self, request: AnyRequest) -> str:
        return f"{self.habits.authorize}?{_query(request)}"


def _query(request: AnyRequest) -> str:
    query: bytes = request.scope["query_string"]
    return query.decode("latin-1")


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
    """Return the routes below /oidc, /github, /slack, /apis and /keys, and the metadata."""
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
        Router(
            "/",
            route_handlers=[keys_page, me],
            dependencies=provided(grants="oidc_grants", identity="identity", pages="pages"),
        ),
    ]


def _common(habits: AuthorizationHabits) -> list[HTTPRouteHandler]:
    @route(habits.authorize, http_method=READ, sync_to_thread=False)
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
