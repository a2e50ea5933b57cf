"""Callbacks: the browser comes back from a provider, with its answer.

They change something on a GET, as every way back from a provider must. What keeps a scanner, a
forwarded address and another person's browser out: the state, which is used up by the first; the
cookie of the browser that pressed Continue; and whoever asked. All three come before the exchange.
"""

import logging
import secrets
from contextlib import suppress
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from litestar import Request, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath

from flows.elicitation import attempt as attempts
from flows.elicitation.flow import CallbackParams
from flows.elicitation.states import Elicitation, Status
from flows.errors import Denied, Failed, InvalidToken, NotConfigured, NotPossible
from flows.oauth.authorization_code import Mixed
from flows.oauth.responses import ERROR_CODE
from flows.payments.session import Mismatch, SessionStatus
from webapp.http.requests import cookies_of
from webapp.identity.identity import Way
from webapp.pages.builder import PageBuilder
from webapp.pages.views import BadRequest, SomeoneElse, Trouble, Used
from webapp.routes.answers import Answers, see_other
from webapp.routes.openers import refuse_opener
from webapp.routes.redirect import returned
from webapp.service import Service

_FIELDS_AT_MOST = 50
_log = logging.getLogger(__name__)


@get("/callback/{provider:str}")
async def provider_answers(
    request: Request[Any, Any, Any],
    provider: FromPath[str],
    service: NamedDependency[Service],
    answers: NamedDependency[Answers],
) -> Response[Any]:
    """An authorisation server's answer (RFC 6749, 4.1.2)."""
    arrival = _callback_params(request)
    back = await returned(service, arrival.all("state"))
    elicitation, attempt, state = back.elicitation, back.attempt, back.state
    accounts = service.kinds.accounts
    if elicitation.kind != "oauth" or accounts.terms(elicitation).provider != provider:
        raise InvalidToken("another provider")
    refused = await _refuse(elicitation, request, service, answers)
    if refused is not None:
        return refused
    here = service.links.of(elicitation, now=service.clock())
    if attempt is None or attempt.state != state:
        is_at_it = elicitation.status is Status.EXCHANGING  # a double click: the page tells how far
        if (
            is_at_it
            or await PageBuilder(service, elicitation, here=here, csrf="").ended() is not None
        ):
            return see_other(here)
        label = service.kinds.label(elicitation)
        used = Used(server=elicitation.asked.server, provider=label, here_url=here)
        return answers.page(used, status=HTTPStatus.CONFLICT)
    try:
        code = accounts.flow.code_of(elicitation, arrival)
    except Mixed as error:
        _log.warning("callback.mixed", extra={"id": elicitation.id, "why": error.reason})
        mixed = BadRequest(server=elicitation.asked.server, problem=str(error))
        return answers.page(mixed, status=HTTPStatus.BAD_REQUEST)
    except NotConfigured as error:  # here, now: what was asked is not over for that
        error_id = secrets.token_hex(6)
        _log.warning("provider.unknown", exc_info=error, extra={"error_id": error_id})
        trouble = Trouble(server=elicitation.asked.server, error_id=error_id, again_url=here)
        return answers.page(trouble, status=HTTPStatus.SERVICE_UNAVAILABLE)
    except (Denied, Failed) as error:
        for code in filter(ERROR_CODE.fullmatch, arrival.all("error")):
            _log.warning("provider.refused", extra={"id": elicitation.id, "error": code})
        await accounts.grants.refuse(elicitation, error)
        return see_other(here)
    with suppress(NotPossible):  # pressed twice: the first is at it, and the page tells how far
        await accounts.grants.connect(elicitation, state=state, code=code)
    return see_other(here)


@get("/return/{seller:str}")
async def provider_returns(
    request: Request[Any, Any, Any],
    seller: FromPath[str],
    service: NamedDependency[Service],
    answers: NamedDependency[Answers],
) -> Response[Any]:
    """The way back from a checkout; whether it is paid, the seller is asked."""
    arrival = _callback_params(request)
    back = await returned(service, arrival.all("state"))
    elicitation = back.elicitation
    payments = service.kinds.payments
    if elicitation.kind != "payment" or payments.merchant_of(elicitation) != seller:
        raise InvalidToken("another seller")
    refused = await _refuse(elicitation, request, service, answers)
    if refused is not None:
        await payments.checkouts.ask_once(elicitation)  # whoever it is, it may be paid
        return refused
    try:
        if arrival.all("cancelled"):
            await payments.checkouts.leave(elicitation, number=back.number)
        else:
            verification = await payments.checkouts.ask_provider(elicitation)
            if verification[:1] == [
                SessionStatus.OPEN
            ]:  # of the latest; what it says, the page tells
                await service.elicitations.change(
                    elicitation.id, lambda e: attempts.come_back_unpaid(e, number=back.number)
                )
    except (Failed, Mismatch) as error:
        # The webhook will tell; until then the page waits.
        _log.warning("return.unanswered", exc_info=error, extra={"id": elicitation.id})
    return see_other(service.links.of(elicitation, now=service.clock()))


def _callback_params(request: Request[Any, Any, Any]) -> CallbackParams:
    text = request.scope["query_string"].decode("ascii", "replace")
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_FIELDS_AT_MOST)
    except ValueError:
        raise InvalidToken("too many parameters") from None
    return CallbackParams(parameters=tuple(pairs))


async def _refuse(
    elicitation: Elicitation,
    request: Request[Any, Any, Any],
    service: Service,
    answers: Answers,
) -> Response[Any] | None:
    """Another browser than the one that pressed Continue, or another person's."""
    opening = await service.identity.opening(elicitation, request.scope, cookies_of(request))
    is_same = service.completing.is_bound(elicitation, cookies_of(request))
    if opening.is_open and is_same:
        return None
    if opening.way is Way.SIGN_IN and is_same:  # signed out meanwhile: the link itself goes on
        here = service.links.of(elicitation, now=service.clock())
        return await refuse_opener(elicitation, request, service, answers, here=urlsplit(here).path)
    _log.warning("callback.refused", extra={"id": elicitation.id, "way": opening.way.value})
    view = SomeoneElse(server=elicitation.asked.server, other="browser")
    return answers.page(view, status=HTTPStatus.FORBIDDEN)
