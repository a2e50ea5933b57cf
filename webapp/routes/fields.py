"""What a form sent, and whether it was a form of ours."""

from http import HTTPStatus
from typing import Any

from litestar import Request, Response

from webapp.http.requests import Fields, cookies_of
from webapp.pages.views import NoCookie
from webapp.routes.answers import Answers
from webapp.service import Service


def refuse_form(
    fields: Fields,
    request: Request[Any, Any, Any],
    service: Service,
    answers: Answers,
    *,
    subject: str,
) -> Response[Any] | None:
    """The page for a form that did not come from our page about `subject` in this browser."""
    field, cookies = fields.get("csrf", []), cookies_of(request)
    if len(field) == 1 and service.browser.is_csrf(field[0], cookies, subject=subject):
        return None
    return answers.page(NoCookie(server=answers.server), status=HTTPStatus.FORBIDDEN)
