"""A request of a browser: its cookies, form and time, and the server's parts that handle it.

Risks: a form from another site or another browser. So call `must_be_form_about` before a form
changes anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl

from litestar.di import NamedDependency

from flows.crypto.tokens import Purpose
from flows.elicitation.flow import CallbackParams
from flows.elicitation.states import Elicitation
from flows.errors import InvalidToken
from webapp.http.browser import Fields, cookies_of, parsed, query_of
from webapp.http.exchange import Scope
from webapp.http.parts import AnyRequest, part
from webapp.identity.identity import AccessDecision, Viewer
from webapp.pages.views import NoCookie
from webapp.routes.answers import Answers, NotShown
from webapp.service import Service

_PARAMETERS_AT_MOST = 50
_service, _answers = part("service"), part("answers")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """A request of a browser. `cookie` is the browser's binding cookie, or a new one."""

    service: Service
    answers: Answers
    request: AnyRequest
    cookies: Mapping[str, str]
    cookie: str
    form: Fields
    now: datetime

    @property
    def scope(self) -> Mapping[str, Any]:
        return self.request.scope

    @property
    def new_cookies(self) -> tuple[str, ...]:
        """The cookies to set together with a page that has a form."""
        browser = self.service.browser
        if browser.cookie_of(self.cookies) is None:
            return browser.set_cookies(self.cookie)
        return browser.marks(self.cookie, self.cookies)

    def last(self, name: str) -> str:
        """Return the last value of a query parameter, or an empty string."""
        return query_of(self.request).get(name, [""])[-1]

    def is_ticked(self, name: str) -> bool:
        return self.form.get(name) == ["1"]

    def callback_params(self) -> CallbackParams:
        """Return the parameters with which a provider redirects the browser back.

        Raises:
            InvalidToken: There are too many parameters.
        """
        text = self.scope["query_string"].decode("ascii", "replace")
        try:
            pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_PARAMETERS_AT_MOST)
        except ValueError:
            raise InvalidToken("too many parameters") from None
        return CallbackParams(parameters=tuple(pairs))

    def csrf(self, subject: str) -> str:
        """Return the hidden CSRF field of a form about `subject` in this browser."""
        return self.service.browser.csrf(self.cookie, subject=subject)

    def must_be_form_about(self, subject: str) -> None:
        """Check that the form is from our page about `subject` in this browser.

        Raises:
            NotShown: The form is from elsewhere or an earlier visit, or the browser has no cookies.
        """
        field = self.form.get("csrf", [])
        is_valid = self.service.browser.is_csrf
        if len(field) != 1 or not is_valid(field[0], self.cookies, subject=subject):
            view = NoCookie(
                server=self.answers.server,
                again_url=_page_of(self.scope["path"]),
                has_cookie=self.service.browser.cookie_of(self.cookies) is not None,
            )
            raise NotShown(self.answers.page(view, status=HTTPStatus.FORBIDDEN))

    async def viewer(self) -> Viewer | None:
        """Return the person at this browser, or None if unknown."""
        return await self.service.identity.viewer(self.scope, self.cookies)

    async def access(self, elicitation: Elicitation) -> AccessDecision:
        """Return the decision whether this browser may open the elicitation, with the reason."""
        return await self.service.identity.access(elicitation, self.scope, self.cookies)

    def is_bound(self, elicitation: Elicitation) -> bool:
        """Return True if this browser began the elicitation's latest attempt."""
        attempt, browser = elicitation.attempt, self.service.browser
        return attempt is not None and browser.is_same(attempt.browser, self.cookies)


def _page_of(path: str) -> str:
    """Return the page whose form was sent to this path: a question, or a personal page."""
    parts = path.split("/")
    return "/".join(parts[:3] if parts[1] == "e" else parts[:2])


CurrentPage: TypeAlias = NamedDependency[PageRequest]


async def page_request(request: AnyRequest) -> PageRequest:
    """Create a PageRequest, as a dependency of the framework."""
    service: Service = _service(request)
    cookies, browser = cookies_of(request), service.browser
    return PageRequest(
        service=service,
        answers=_answers(request).for_request(request),
        request=request,
        cookies=cookies,
        cookie=browser.cookie_of(cookies) or browser.fresh(),
        form=parsed(await request.body()) if request.method == "POST" else {},
        now=service.clock(),
    )


# The server's own token in a browser's request, which identifies the browser for rate limits.
#
# Risks: a rate limit on an address blocks people for the requests of others at the same address,
# for example in an office or behind a proxy. A request with a valid sealed token is therefore
# counted by its token. A request with an invalid token, or without one, is counted by its address.

_IN_PATHS: Final = (("/e/", Purpose.LINK), ("/callback/url/", Purpose.CALLBACK))
_IN_QUERIES: Final = (("state", Purpose.STATE), ("elicitation", Purpose.RETURN))
_COOKIES_BYTES_AT_MOST: Final = 8192  # our cookies are shorter; parsing more is too expensive


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    scope: Scope


def credential_of(service: Service, scope: Scope) -> str | None:
    """Return the name of this request's valid link, return token or session, or None."""
    request, path = _Request(scope=scope), scope["path"]
    tried = [
        (path.removeprefix(begins).partition("/")[0], purpose)
        for begins, purpose in _IN_PATHS
        if path.startswith(begins)
    ]
    query = query_of(request)
    tried += [(text, purpose) for name, purpose in _IN_QUERIES for text in query.get(name, [])[:1]]
    for text, purpose in tried:
        try:
            claims = service.links.read(text, purpose=purpose, now=service.clock())
        except InvalidToken:
            continue
        return f"link {claims.id}"
    if sum(len(value) for name, value in scope["headers"] if name == b"cookie") > (
        _COOKIES_BYTES_AT_MOST
    ):
        return None
    return service.identity.sessions.named(cookies_of(request))
