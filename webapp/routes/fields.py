"""What a form sent, and whether it was a form of ours."""

from http import HTTPStatus
from typing import Any, TypeAlias
from urllib.parse import parse_qs

from litestar import Request, Response

from webapp.routes.answers import Answers
from webapp.service import Service
from webapp.views import NoCookie

Fields: TypeAlias = dict[str, list[str]]
_FIELDS_AT_MOST = 1000


def fields_of(body: bytes) -> Fields:
    """What a form sent; nothing if it has more fields than any form of ours."""
    try:
        return parse_qs(
            body.decode("utf-8", "replace"),
            keep_blank_values=True,
            max_num_fields=_FIELDS_AT_MOST,
        )
    except ValueError:
        return {}


def refuse_form(
    fields: Fields,
    request: Request[Any, Any, Any],
    service: Service,
    answers: Answers,
    *,
    subject: str,
) -> Response[Any] | None:
    """The page for a form that did not come from our page about `subject` in this browser."""
    cookie = service.browser.cookie_of(request.cookies)
    field = fields.get("csrf", [])
    if (
        cookie is not None
        and len(field) == 1
        and service.browser.is_csrf(field[0], cookie, subject=subject)
    ):
        return None
    return answers.page(NoCookie(server=answers.server), status=HTTPStatus.FORBIDDEN)
