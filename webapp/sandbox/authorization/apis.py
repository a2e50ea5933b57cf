"""The APIs of an operator's simulated providers, and the page of their API keys.

Each API has one call, which says whose account it is. The keys are made up and the same in every
sandbox, so that a test can write them down.
"""

from http import HTTPStatus
from typing import Any

from litestar import Response, get
from litestar.di import NamedDependency

from webapp.http.parts import AnyRequest
from webapp.sandbox.authorization.client import basic_of, bearer_of
from webapp.sandbox.authorization.granted import PEOPLE, AuthorizationGrants, SandboxPerson
from webapp.sandbox.authorization.identity import SandboxIdentity
from webapp.sandbox.pages import NO_STORE, SandboxPages

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
    """Return whose key or access token the request contains, wherever the request carries it."""
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
