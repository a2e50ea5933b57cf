"""The consent page: who asks, for what, which made-up person says so, and their yes or no.

What could go wrong: a page elsewhere that presses Approve in somebody's name. The form carries a
field that only this page, in this browser and for this very request, was given.
"""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from litestar import Request, Response

from webapp.http.browser import Browser
from webapp.http.requests import cookies_of
from webapp.sandbox.authorization_faults import REDIRECT_FAULTS, Faults, PlayedFault
from webapp.sandbox.authorization_grants import AuthorizationGrants
from webapp.sandbox.authorization_habits import AuthorizationHabits
from webapp.sandbox.authorization_requests import (
    AuthorizationRequest,
    NotRedirected,
    RequestWay,
    SentBack,
    read_request,
)
from webapp.sandbox.pages import NO_STORE, SandboxPages
from webapp.sandbox.parameters import Parameters
from webapp.sandbox.people import PEOPLE, person_of
from webapp.sandbox.settings import Sandbox

_NO_REQUEST = "We can't ask you this"


class Consent:
    """The authorisation endpoint of one authorisation server."""

    def __init__(
        self,
        *,
        sandbox: Sandbox,
        habits: AuthorizationHabits,
        grants: AuthorizationGrants,
        faults: Faults,
        pages: SandboxPages,
        browser: Browser,
    ) -> None:
        self._sandbox = sandbox
        self._habits = habits
        self._grants = grants
        self._faults = faults
        self._pages = pages
        self._browser = browser

    def ask(self, request: Request[Any, Any, Any]) -> Response[Any]:
        """Show the page; nothing is kept of the request."""
        try:
            asked = self._read(request)
        except NotRedirected as err:
            return self._pages.trouble(_NO_REQUEST, str(err))
        except SentBack as err:
            return self._send_back(err.way, error=err.error, error_description=err.description)
        cookie = self._browser.cookie_of(cookies_of(request))
        is_new = cookie is None
        cookie = cookie or self._browser.fresh()
        return self._page(
            asked,
            action=f"{self._habits.authorize}?{_query(request)}",
            csrf=self._browser.csrf(cookie, subject=self._subject(request)),
            sets=self._browser.set_cookies(cookie) if is_new else (),
        )

    def decide(self, request: Request[Any, Any, Any], body: bytes) -> Response[Any]:
        """Send the browser back with a code or with the person's no."""
        try:
            asked = self._read(request)
            form = Parameters(body)
            decision, login, csrf = (form.get(name) for name in ("decision", "person", "csrf"))
        except SentBack as err:
            return self._send_back(err.way, error=err.error, error_description=err.description)
        except NotRedirected as err:
            return self._pages.trouble(_NO_REQUEST, str(err))
        except ValueError:
            return self._pages.trouble("This form is not complete", "It came in a strange shape.")
        if not self._browser.is_csrf(
            csrf or "", cookies_of(request), subject=self._subject(request)
        ):
            return self._pages.trouble(
                "This form is not from here",
                "It did not come from our page in this browser, or your browser keeps no cookies.",
                status=HTTPStatus.FORBIDDEN,
            )
        person = person_of(login)
        if decision == "deny":
            description = "The person said no."
            return self._send_back(asked.way, error="access_denied", error_description=description)
        if decision != "approve" or person is None:
            return self._pages.trouble(
                "This form is not complete", "Choose a person and press a button."
            )
        return self._send_back(asked.way, code=self._grants.issue_code(asked, person=person))

    def _read(self, request: Request[Any, Any, Any]) -> AuthorizationRequest:
        return read_request(_query(request), sandbox=self._sandbox, habits=self._habits)

    def _page(
        self, asked: AuthorizationRequest, *, action: str, csrf: str, sets: Sequence[str]
    ) -> Response[Any]:
        words = self._habits.scopes
        values = {
            "provider": self._habits.name,
            "client": self._sandbox.client_id,
            "place": urlsplit(asked.way.redirect_uri).netloc,
            "scopes": [(scope, words.get(scope, "")) for scope in asked.scopes],
            "user_scopes": [(scope, words.get(scope, "")) for scope in asked.user_scopes],
            "people": PEOPLE,
            "action": action,
            "csrf": csrf,
        }
        return self._pages.page("consent.html", values, sets=sets)

    def _send_back(self, way: RequestWay, **parameters: str) -> Response[Any]:
        fault = self._faults.take(REDIRECT_FAULTS)
        if fault is PlayedFault.DROP_ISS:
            way = way.said_by(None)
        elif fault is PlayedFault.WRONG_ISS:
            way = way.said_by(f"{self._sandbox.url}/somebody-else")
        headers = {**NO_STORE, "location": way.back(**parameters)}
        return Response(None, status_code=HTTPStatus.SEE_OTHER, headers=headers)

    def _subject(self, request: Request[Any, Any, Any]) -> str:
        return f"{self._habits.authorize}?{_query(request)}"


def _query(request: Request[Any, Any, Any]) -> str:
    query: bytes = request.scope["query_string"]
    return query.decode("latin-1")
