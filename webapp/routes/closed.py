"""What belongs to a person, asked for by somebody of whom it is not known who it is."""

from http import HTTPStatus
from typing import Any

from litestar import Request, Response

from webapp.pages.views import Closed, Theirs
from webapp.routes.answers import Answers
from webapp.routes.openers import sign_in_button, sign_in_targets, why_not_shown, with_cookie
from webapp.service import Service


def closed(
    request: Request[Any, Any, Any], service: Service, answers: Answers, *, of: Theirs
) -> Response[Any]:
    """The way on to it, or why there is none; its page has that very name."""
    cookie, cookies = with_cookie(request, service)
    view = Closed(
        server=answers.server,
        of=of,
        why=why_not_shown(service),
        sign_in=sign_in_button(service, back=f"/{of}", cookie=cookie),
        by_code=service.identity.binds_by_code,
    )
    targets = sign_in_targets(service)
    return answers.page(view, status=HTTPStatus.FORBIDDEN, form_targets=targets, cookies=cookies)
