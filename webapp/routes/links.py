"""The pages of a link: start, go on, decline, what became of it.

A GET changes nothing, since link scanners open links. Whoever opens is checked before any detail is
shown and again before anything is done.
"""

import logging
import secrets
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from babel import Locale
from litestar import HttpMethod, Request, Response, post, route
from litestar.di import NamedDependency
from litestar.params import FromPath, RawBody

from flows.crypto.tokens import Purpose
from flows.elicitation.proof import OnPage
from flows.elicitation.states import Elicitation, Status
from flows.elicitation.traits import traits_of
from flows.errors import Failed, InvalidToken, NotAllowed, NotConfigured, NotPossible
from flows.schema.schema import Fault, parse
from webapp.http.requests import Fields, cookies_of, parsed, query_of
from webapp.kinds.page_kind import PageKind, has_rules
from webapp.kinds.rules import Rules
from webapp.pages.builder import PageBuilder
from webapp.pages.form import form_of
from webapp.pages.views import ProviderTrouble
from webapp.routes.answers import Answers, see_other
from webapp.routes.fields import refuse_form
from webapp.routes.openers import pace, refuse_opener, with_cookie
from webapp.routes.redirect import depart, trouble_of
from webapp.service import Service

_TICKS = ("remember", "all_clients")  # the boxes beside a yes
_log = logging.getLogger(__name__)


@route("/e/{token:str}", http_method=[HttpMethod.GET, HttpMethod.HEAD])
async def show(
    request: Request[Any, Any, Any],
    token: FromPath[str],
    service: NamedDependency[Service],
    answers: NamedDependency[Answers],
) -> Response[Any]:
    """What this link is about, or what became of it."""
    elicitation = await elicitation_of(token, service)
    refused = await refuse_opener(elicitation, request, service, answers, here=f"/e/{token}")
    if refused is not None:
        return refused
    cookie, cookies = with_cookie(request, service)
    shown = _shown(service, elicitation, token=token, cookie=cookie, locale=answers.locale(request))
    view = await shown.view(is_bound=service.completing.is_bound(elicitation, cookies_of(request)))
    cookies += await service.identity.kept_up(cookies_of(request))
    return answers.page(view, form_targets=_form_targets(elicitation), cookies=cookies)


@post("/e/{token:str}", status_code=HTTPStatus.SEE_OTHER)
async def go_on(
    request: Request[Any, Any, Any],
    *,
    token: FromPath[str],
    body: RawBody,
    service: NamedDependency[Service],
    answers: NamedDependency[Answers],
) -> Response[Any]:
    """Begin an attempt in this browser and send it on its way, or take what was typed."""
    elicitation, fields = await elicitation_of(token, service), parsed(body)
    refused = await _refuse(elicitation, request, fields, service, answers, token=token)
    if refused is not None:
        return refused
    attempt = elicitation.attempt
    known = None if attempt is None else attempt.browser
    cookie = service.browser.cookie_of(cookies_of(request), known=known) or ""
    typed = service.kinds.on_page(elicitation.kind)
    if typed is not None:
        shown = _shown(service, elicitation, token=token, cookie=cookie)
        rules = service.kinds.rules
        return await _take_answer(
            elicitation, shown, fields, typed, answers, rules=rules, token=token
        )
    try:
        return see_other(
            await depart(
                service, elicitation, cookie=cookie, switches=fields.get("switch") == ["1"]
            )
        )
    except NotPossible:
        return see_other(f"/e/{token}")
    except (Failed, NotConfigured) as error:
        return _trouble(error, elicitation, cookie, service, answers, token=token)


@post("/e/{token:str}/allow", status_code=HTTPStatus.SEE_OTHER)
async def allow(
    request: Request[Any, Any, Any],
    *,
    token: FromPath[str],
    body: RawBody,
    service: NamedDependency[Service],
    answers: NamedDependency[Answers],
) -> Response[Any]:
    """Let the tool use the account that is connected already."""
    elicitation = await elicitation_of(token, service)
    refused = await _refuse(elicitation, request, parsed(body), service, answers, token=token)
    if refused is not None:
        return refused
    if traits_of(elicitation.kind).gives == "account":
        account = query_of(request).get("account", [""])[-1]
        try:
            await service.kinds.accounts.share(elicitation, account=account)
        except Failed as error:
            cookie = service.browser.cookie_of(cookies_of(request)) or ""
            return _trouble(error, elicitation, cookie, service, answers, token=token)
    return see_other(f"/e/{token}")


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
    refused = await _refuse(elicitation, request, parsed(body), service, answers, token=token)
    if refused is not None:
        return refused
    await service.elicitations.end(elicitation, Status.DECLINED)
    return see_other(f"/e/{token}")


@post("/e/{token:str}/code", status_code=HTTPStatus.SEE_OTHER)
async def show_user_code(
    request: Request[Any, Any, Any],
    *,
    token: FromPath[str],
    body: RawBody,
    service: NamedDependency[Service],
    answers: NamedDependency[Answers],
) -> Response[Any]:
    """Bind this browser: the page shows it letters from now on."""
    elicitation = await elicitation_of(token, service)
    refused = refuse_form(parsed(body), request, service, answers, subject=elicitation.id)
    if refused is not None:
        return refused
    pace(elicitation, request, service, is_open=False)
    code = service.identity.code(elicitation, cookies_of(request))
    browser = service.browser.hash_of(cookies_of(request))
    if elicitation.is_by_code and browser is not None and code is None:
        with suppress(NotAllowed, NotPossible):  # the page tells
            await service.user_codes.bind(elicitation.id, browser=browser)
    return see_other(f"/e/{token}")


async def elicitation_of(token: str, service: Service) -> Elicitation:
    """Raises InvalidToken."""
    claims = service.links.read(token, purpose=Purpose.LINK, now=service.clock())
    elicitation = await service.elicitations.get(claims.id)
    if elicitation is None:
        raise InvalidToken("erased")
    return elicitation


async def _refuse(
    elicitation: Elicitation,
    request: Request[Any, Any, Any],
    fields: Fields,
    service: Service,
    answers: Answers,
    *,
    token: str,
) -> Response[Any] | None:
    """The page for another person, or for a form that is not of our page in this browser."""
    refused = await refuse_opener(elicitation, request, service, answers, here=f"/e/{token}")
    return refused or refuse_form(fields, request, service, answers, subject=elicitation.id)


def _trouble(
    error: Failed | NotConfigured,
    elicitation: Elicitation,
    cookie: str,
    service: Service,
    answers: Answers,
    *,
    token: str,
) -> Response[Any]:
    """The provider said no, or nothing that could be understood, or lacks settings here.

    Nothing is over.
    """
    error_id = secrets.token_hex(6)
    _log.warning("provider.failed", exc_info=error, extra={"error_id": error_id})
    view = ProviderTrouble(
        server=elicitation.asked.server,
        provider=service.kinds.label(elicitation),
        error_id=error_id,
        again_action=f"/e/{token}",
        csrf=service.browser.csrf(cookie, subject=elicitation.id),
        trouble=trouble_of(error),
        is_payment=traits_of(elicitation.kind).page == "payment",
    )
    return answers.page(
        view, status=HTTPStatus.BAD_GATEWAY, form_targets=_form_targets(elicitation)
    )


async def _take_answer(
    elicitation: Elicitation,
    shown: PageBuilder,
    fields: Fields,
    typed: PageKind,
    answers: Answers,
    *,
    rules: Rules,
    token: str,
) -> Response[Any]:
    if await shown.ended() is not None:
        return see_other(f"/e/{token}")
    schema = typed.schema(elicitation)
    parsed = parse(schema, fields)
    faults: Sequence[Fault] = parsed.faults
    if not faults and has_rules(elicitation):
        faults = await rules.faults(elicitation, parsed.content)
    if faults:
        view = shown.start_typed(form_of(schema, values=fields, faults=faults))
        return answers.page(view, status=HTTPStatus.UNPROCESSABLE_ENTITY)
    ticks = {tick for tick in _TICKS if fields.get(tick) == ["1"]}
    await typed.complete(elicitation, parsed.content, OnPage(), ticks=ticks)
    return see_other(f"/e/{token}")


def _shown(
    service: Service,
    elicitation: Elicitation,
    *,
    token: str,
    cookie: str,
    locale: Locale | None = None,
) -> PageBuilder:
    csrf = service.browser.csrf(cookie, subject=elicitation.id)
    return PageBuilder(service, elicitation, here=f"/e/{token}", csrf=csrf, locale=locale)


def _form_targets(elicitation: Elicitation) -> list[str]:
    """Browsers hold every redirect after a form to `form-action`, also a service's own ones."""
    if not elicitation.asked.origins:  # our own page takes the answer
        return []
    return sorted({"https:"} | {origin.partition("//")[0] for origin in elicitation.asked.origins})
