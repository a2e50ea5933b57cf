"""The pages of a link: start, go on, decline, what became of it.

A GET changes nothing, since link scanners open links. Whoever opens is checked before any detail is
shown and again before anything is done.
"""

from datetime import datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlsplit

from litestar import HttpMethod, Request, Response, post, route
from litestar.di import NamedDependency
from litestar.params import FromPath, RawBody

from flows.elicitation import Elicitation, Status
from flows.errors import InvalidToken, NotPossible
from flows.tokens import Purpose
from webapp.kinds import FLOWS
from webapp.outbound import Outbound
from webapp.pages import (
    BeforeOpener,
    Done,
    Ended,
    Ending,
    Late,
    NoCookie,
    StartUrl,
    View,
    Waiting,
)
from webapp.routes.answers import Answers
from webapp.service import Service

_ENDINGS: dict[Status, Ending] = {
    Status.DECLINED: "declined",
    Status.DENIED: "denied",
    Status.CANCELLED: "cancelled",
    Status.EXPIRED: "expired",
    Status.FAILED: "failed",
    Status.SUPERSEDED: "superseded",
}


@route("/e/{token:str}", http_method=[HttpMethod.GET, HttpMethod.HEAD])
async def show(
    request: Request[Any, Any, Any],
    token: FromPath[str],
    service: NamedDependency[Service],
    answers: NamedDependency[Answers],
) -> Response[Any]:
    """What this link is about, or what became of it."""
    elicitation = await elicitation_of(token, service)
    refused = _refuse_opener(elicitation, request, service, answers)
    if refused is not None:
        return refused
    cookie = service.browser.cookie_of(request.cookies)
    headers: dict[str, str] = {}
    if cookie is None:
        cookie = service.browser.fresh()
        headers["set-cookie"] = service.browser.set_cookie(cookie)
    now = service.clock()
    here = f"/e/{token}"
    csrf = service.browser.csrf(cookie, subject=elicitation.id)
    view = ending_view(elicitation, server=elicitation.asked.server, now=now)
    if view is None and service.completing.is_bound(elicitation, request.cookies):
        view = _waiting(elicitation, here=here, csrf=csrf, now=now)
    elif view is None:
        host = urlsplit(service.public_url).netloc
        view = _start(elicitation, here=here, csrf=csrf, now=now, host=host)
    return answers.page(view, form_targets=_form_targets(elicitation), headers=headers)


@post("/e/{token:str}", status_code=HTTPStatus.SEE_OTHER)
async def go_on(
    request: Request[Any, Any, Any],
    *,
    token: FromPath[str],
    body: RawBody,
    service: NamedDependency[Service],
    answers: NamedDependency[Answers],
    outbound: NamedDependency[Outbound],
) -> Response[Any]:
    """Begin an attempt in this browser and send it on its way."""
    elicitation = await elicitation_of(token, service)
    refused = _refuse_opener(elicitation, request, service, answers) or _refuse_form(
        elicitation, request, body, service, answers
    )
    if refused is not None:
        return refused
    cookie = service.browser.cookie_of(request.cookies) or ""
    try:
        elicitation = await service.elicitations.open_attempt(
            elicitation.id, browser=service.browser.hash(cookie)
        )
        departure = await outbound.run(FLOWS[elicitation.kind].begin(elicitation))
        if not elicitation.asked.waits:
            await service.elicitations.settle(elicitation.id, Status.ACCEPTED, content={})
    except NotPossible:
        return see_other(f"/e/{token}")
    return see_other(departure.url)


@post("/e/{token:str}/decline", status_code=HTTPStatus.SEE_OTHER)
async def decline(
    request: Request[Any, Any, Any],
    *,
    token: FromPath[str],
    body: RawBody,
    service: NamedDependency[Service],
    answers: NamedDependency[Answers],
) -> Response[Any]:
    """Say no: the tool ends, the link is dead."""
    elicitation = await elicitation_of(token, service)
    refused = _refuse_opener(elicitation, request, service, answers) or _refuse_form(
        elicitation, request, body, service, answers
    )
    if refused is not None:
        return refused
    await service.elicitations.end(elicitation, Status.DECLINED)
    return see_other(f"/e/{token}")


async def elicitation_of(token: str, service: Service) -> Elicitation:
    """Raises InvalidToken."""
    claims = service.links.read(token, purpose=Purpose.LINK, now=service.clock())
    elicitation = await service.elicitations.get(claims.id)
    if elicitation is None:
        raise InvalidToken("erased")
    return elicitation


def see_other(url: str) -> Response[Any]:
    return Response(
        None,
        status_code=HTTPStatus.SEE_OTHER,
        headers={
            "location": url,
            "cache-control": "no-store",
            "referrer-policy": "no-referrer",
        },
    )


def ending_view(elicitation: Elicitation, *, server: str, now: datetime) -> View | None:
    """What became of it; None while it is going on."""
    status = elicitation.status
    if status is Status.ACCEPTED:
        return Late(server=server) if elicitation.is_late else Done(server=server)
    if not status.is_final and now >= elicitation.expires_at:
        status = Status.EXPIRED
    return Ended(server=server, ending=_ENDINGS[status]) if status in _ENDINGS else None


def _form_targets(elicitation: Elicitation) -> list[str]:
    """Browsers hold every redirect after a form to `form-action`, also a service's own ones."""
    return sorted({"https:"} | {origin.partition("//")[0] for origin in elicitation.asked.origins})


def _start(elicitation: Elicitation, *, here: str, csrf: str, now: datetime, host: str) -> StartUrl:
    asked = elicitation.asked
    return StartUrl(
        server=asked.server,
        host=host,
        tool=asked.tool,
        message=asked.message,
        origins=asked.origins,
        asked_at=elicitation.created_at,
        now=now,
        expires_at=elicitation.expires_at,
        continue_action=here,
        decline_action=f"{here}/decline",
        csrf=csrf,
        client=asked.client,
    )


def _waiting(elicitation: Elicitation, *, here: str, csrf: str, now: datetime) -> Waiting:
    return Waiting(
        server=elicitation.asked.server,
        origins=elicitation.asked.origins,
        status=elicitation.status,
        now=now,
        expires_at=elicitation.expires_at,
        live_url=f"{here}/live",
        here_url=here,
        again_action=here,
        decline_action=f"{here}/decline",
        csrf=csrf,
    )


def _refuse_opener(
    elicitation: Elicitation,
    request: Request[Any, Any, Any],
    service: Service,
    answers: Answers,
) -> Response[Any] | None:
    why = service.identity.why_may_not_open(elicitation, request.scope)
    if why is None:
        return None
    view = BeforeOpener(server=elicitation.asked.server, kind="url", why=why)
    return answers.page(view, status=HTTPStatus.FORBIDDEN)


def _refuse_form(
    elicitation: Elicitation,
    request: Request[Any, Any, Any],
    body: bytes,
    service: Service,
    answers: Answers,
) -> Response[Any] | None:
    """A form that did not come from our page in this browser."""
    cookie = service.browser.cookie_of(request.cookies)
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=10)
    except ValueError:  # more fields than our form has
        fields = {}
    field = fields.get("csrf", [])
    if (
        cookie is not None
        and len(field) == 1
        and service.browser.is_csrf(field[0], cookie, subject=elicitation.id)
    ):
        return None
    return answers.page(NoCookie(server=answers.server), status=HTTPStatus.FORBIDDEN)
