"""The returns from an author's service: by the browser, and by the service's own callback."""

from http import HTTPStatus
from typing import Any

from litestar import Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, RawBody
from msgspec import DecodeError
from msgspec.json import decode

from flows.elicitation.states import Completion, Json
from flows.errors import InvalidToken
from webapp.completion import RETURN_PARAMETER
from webapp.http.requests import query_of
from webapp.pages.builder import PageBuilder
from webapp.pages.views import Unknown
from webapp.pages.views_openers import SomeoneElse
from webapp.routes.answers import problem
from webapp.routes.page_request import PageRequest
from webapp.service import Service


@get("/return")
async def come_back(page: NamedDependency[PageRequest]) -> Response[Any]:
    """Complete the question when the browser that pressed Continue comes back.

    This GET changes the question, because a redirect is a GET. Scanners lack the browser's cookie.
    """
    service = page.service
    tokens = query_of(page.request).get(RETURN_PARAMETER, [])
    if len(tokens) != 1:
        raise InvalidToken("missing or repeated")
    elicitation = await service.completing.returned(tokens[0])
    server, decision = elicitation.asked.server, await page.access(elicitation)
    if not (page.is_bound(elicitation) and decision.is_open):
        other = SomeoneElse(server=server, other="browser")
        return page.answers.page(
            other, status=HTTPStatus.FORBIDDEN, for_user=elicitation.is_for_user
        )
    done = await service.completing.complete(elicitation.id, {})
    ended = await service.elicitations.get(elicitation.id)
    view = None if ended is None else await PageBuilder(service, ended, here="", csrf="").ended()
    if done is Completion.UNKNOWN or view is None:
        return page.answers.page(Unknown(server=server), status=HTTPStatus.NOT_FOUND)
    return page.answers.page(view, for_user=elicitation.is_for_user)


@post("/callback/url/{token:str}", status_code=HTTPStatus.OK)
async def called_back(
    token: FromPath[str], body: RawBody, service: NamedDependency[Service]
) -> Response[Any]:
    """Complete a question with the JSON object that the author's service sends."""
    try:
        content: dict[str, Json] = decode(body, type=dict[str, Any]) if body else {}
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return problem(HTTPStatus.BAD_REQUEST, detail="The body must be a JSON object.")
    done = await service.completing.called_back(token, content)
    if done is Completion.UNKNOWN:
        return problem(
            HTTPStatus.CONFLICT, detail="The person has not opened the link yet.", code=done
        )
    return Response({"completion": done}, headers={"cache-control": "no-store"})
