"""Responses: a page for people, problem details for programs (RFC 9457), and their headers."""

import logging
import secrets
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from datetime import timedelta
from http import HTTPStatus
from typing import Any

from babel import Locale
from litestar import MediaType, Request, Response
from litestar.exceptions import HTTPException
from litestar.status_codes import HTTP_500_INTERNAL_SERVER_ERROR

from flows.errors import ElicitError, InvalidToken, StoreUnavailable, TooManyAttempts
from webapp.http.browser import page_headers
from webapp.http.parts import Reply
from webapp.http.rate_limit import TooOften
from webapp.languages import ENGLISH, negotiated
from webapp.pages.renderer import Renderer
from webapp.pages.views import BadRequest, Ended, NotFound, TooFast, TooMany, Trouble, Unknown, View
from webapp.prices import Locales
from webapp.records.rows import Erased

RETRY_SECONDS = 30
# the framework's message if the client disconnects while the body is read
_LEFT = "client disconnected prematurely"
_log = logging.getLogger(__name__)
# Sentences of a page about a request that was refused.
_REFUSALS = {
    HTTPStatus.METHOD_NOT_ALLOWED: "This address is only for a button on one of our pages.",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "Your browser sent more data than this server accepts.",
}
_REFUSED = "The server could not process your browser's request."


class NotShown(Exception):
    """The viewer may not continue. `page` says why, and what would help."""

    def __init__(self, page: Response[Any]) -> None:
        super().__init__("This request is refused.")
        self.page = page


class Answers:
    """A renderer of responses for one server."""

    def __init__(self, *, pages: Renderer, server: str, has_tools: bool = True) -> None:
        """Create the renderer. Without `has_tools`, every viewer is a user of the application."""
        self.pages = pages
        self._has_tools = has_tools
        self.server = server
        self.language = pages.languages[0]
        self._locales = Locales()

    def for_request(self, request: Request[Any, Any, Any]) -> "Answers":
        """Return the renderer for this request, in the language that its browser asks for."""
        own = copy(self)
        own.language = negotiated(_accepted(request), self.pages.languages)
        return own

    def page(
        self,
        view: View,
        *,
        status: int = HTTPStatus.OK,
        form_targets: Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
        cookies: Sequence[str] = (),
        for_user: bool = False,
    ) -> Response[Any]:
        if for_user or not self._has_tools:
            view = replace(view, for_user=True)
        language = self.language if view.is_translated else ENGLISH
        return Reply(
            self.pages.render(view, language),
            sets=cookies,
            status_code=status,
            media_type=MediaType.HTML,
            headers={
                **page_headers(form_targets=form_targets),
                "content-language": language.tag,
                "vary": "accept-language",
                **(headers or {}),
            },
        )

    def locale(self, request: Request[Any, Any, Any]) -> Locale | None:
        """Return the locale in which prices are shown.

        Use the browser's locale only if its language is the page's language, because a German
        amount in an English sentence would be misread. Otherwise use the page's locale. Return None
        if the request has no Accept-Language header.
        """
        accepted = _accepted(request)
        if not accepted:
            return None
        asked = self._locales.best(accepted)
        own = self.language.locale
        return asked if asked is not None and asked.language == own.language else own

    def page_for_error(self, request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
        """Return the page for a request that failed."""
        server, page = self.server, self.for_request(request).page
        match error:
            case NotShown():
                return error.page
            case InvalidToken(reason="expired"):
                ended = Ended(server=server, ending="expired")
                return page(ended, status=HTTPStatus.GONE)
            case Erased():
                return page(Unknown(server=server, is_our_link=True), status=HTTPStatus.NOT_FOUND)
            case InvalidToken():
                unknown = Unknown(server=server, is_our_link=error.reason == "erased")
                return page(unknown, status=HTTPStatus.NOT_FOUND)
            case TooOften():
                return page(
                    TooFast(server=server, wait=timedelta(seconds=error.seconds)),
                    status=HTTPStatus.TOO_MANY_REQUESTS,
                    headers={"retry-after": str(error.seconds)},
                )
            case TooManyAttempts():
                return page(TooMany(server=server), status=HTTPStatus.TOO_MANY_REQUESTS)
            case HTTPException(status_code=HTTPStatus.NOT_FOUND):
                return page(NotFound(server=server), status=HTTPStatus.NOT_FOUND)
            case HTTPException(status_code=code) if code < HTTP_500_INTERNAL_SERVER_ERROR:
                problem = _REFUSALS.get(HTTPStatus(code), _REFUSED)
                view = BadRequest(server=server, problem=problem)
                return page(view, status=code, headers=error.headers)  # 405 lists allowed methods
            case _:
                trouble = Trouble(server=server, error_id=_logged(request, error))
        if isinstance(error, StoreUnavailable):
            again_in = {"retry-after": str(RETRY_SECONDS)}
            return page(trouble, status=HTTPStatus.SERVICE_UNAVAILABLE, headers=again_in)
        return page(trouble, status=HTTPStatus.INTERNAL_SERVER_ERROR)

    def problem_for_error(
        self, request: Request[Any, Any, Any], error: Exception
    ) -> Response[dict[str, Any]]:
        """Return problem details for a program whose request failed."""
        if isinstance(error, ElicitError) and error.http_status < HTTP_500_INTERNAL_SERVER_ERROR:
            return problem(error.http_status, detail=str(error), code=error.name)
        if isinstance(error, HTTPException) and error.status_code != HTTP_500_INTERNAL_SERVER_ERROR:
            response = problem(error.status_code, detail=HTTPStatus(error.status_code).phrase)
            response.headers.update(error.headers or {})  # 405 lists allowed methods
            return response
        error_id = _logged(request, error)
        if isinstance(error, StoreUnavailable):
            response = problem(error.http_status, detail=str(error), code=error.name)
        else:
            says = "Something went wrong on the server."
            response = problem(HTTPStatus.INTERNAL_SERVER_ERROR, detail=says, code=error_id)
        response.content["error_id"] = error_id
        return response

    def for_error(self, request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
        """Return the response to an error outside all routes.

        A browser gets a page, and a program gets problem details.
        """
        if "text/html" in request.headers.get("accept", ""):
            return self.page_for_error(request, error)
        return self.problem_for_error(request, error)


def _accepted(request: Request[Any, Any, Any]) -> str:
    return ", ".join(request.headers.getall("accept-language", []))


def see_other(url: str, *, cookies: Sequence[str] = ()) -> Response[Any]:
    return Reply(
        b"",
        sets=cookies,
        status_code=HTTPStatus.SEE_OTHER,
        media_type=MediaType.TEXT,
        headers={
            "location": url,
            "cache-control": "no-store",
            "referrer-policy": "no-referrer",
        },
    )


def problem(status: int, *, detail: str, code: str | None = None) -> Response[dict[str, Any]]:
    content = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": int(status)}
    return Response(
        {**content, "detail": detail, **({"code": code} if code else {})},
        status_code=status,
        media_type="application/problem+json",
        headers={"cache-control": "no-store", "x-content-type-options": "nosniff"},
    )


def _logged(request: Request[Any, Any, Any], error: Exception) -> str:
    # Log the route's template, never the path: the path contains a token.
    error_id = secrets.token_hex(6)
    route = getattr(request.route_handler, "name", None) or str(request.route_handler)
    if isinstance(error, HTTPException) and error.detail == _LEFT:
        _log.warning("request.aborted", extra={"route": route})
        return error_id
    _log.error("route.failed", exc_info=error, extra={"error_id": error_id, "route": route})
    return error_id
