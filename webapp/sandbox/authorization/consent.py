"""The consent page: who asks, for what, which made-up person answers, and their decision."""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from litestar import Response

from webapp.http.parts import AnyRequest
from webapp.sandbox.authorization.faults import REDIRECT_FAULTS, Faults, PlayedFault
from webapp.sandbox.authorization.granted import AuthorizationGrants
from webapp.sandbox.authorization.habits import AuthorizationHabits
from webapp.sandbox.authorization.parameters import Parameters
from webapp.sandbox.authorization.people import PEOPLE, person_of
from webapp.sandbox.authorization.requests import (
    AuthorizationRequest,
    ClientRedirect,
    NotRedirected,
    SentBack,
    read_request,
)
from webapp.sandbox.pages import NO_STORE, SandboxPages
from webapp.sandbox.settings import Sandbox

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
            return self.pages.trouble(_NOT_COMPLETE, "It came in a strange shape.")
        if not self.pages.is_ours(csrf, request=request, subject=self._here(request)):
            return self.pages.trouble(
                "This form is not from here",
                "It did not come from our page in this browser, or your browser keeps no cookies.",
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
        if fault is PlayedFault.DROP_ISS:
            redirect = redirect.said_by(None)
        elif fault is PlayedFault.WRONG_ISS:
            redirect = redirect.said_by(f"{self.sandbox.url}/somebody-else")
        headers = {**NO_STORE, "location": redirect.back(**parameters)}
        return Response(None, status_code=HTTPStatus.SEE_OTHER, headers=headers)

    def _here(self, request: AnyRequest) -> str:
        return f"{self.habits.authorize}?{_query(request)}"


def _query(request: AnyRequest) -> str:
    query: bytes = request.scope["query_string"]
    return query.decode("latin-1")
