"""The callback routes: the browser returns from a provider, with the provider's response.

These routes change a question on a GET, because providers redirect browsers back with a GET. Three
checks before the exchange keep out scanners, forwarded addresses and other people's browsers:

- The state can be used once.
- The browser must have the cookie of the browser that pressed Continue.
- The viewer must be the asker.

A provider with `response_mode=form_post` returns the browser with a POST from its own page. A
browser sends no SameSite=Lax cookie with that request, so the route changes nothing. It redirects
the browser to the GET with the same parameters, and the browser sends its cookie there.
"""

import logging
import secrets
from contextlib import suppress
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from litestar import Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, RawBody
from msgspec import DecodeError
from msgspec.json import decode

from flows.elicitation import flow as attempts
from flows.elicitation.states import Completion, Elicitation, Json, Status
from flows.errors import Denied, Failed, InvalidToken, NotConfigured, NotPossible
from flows.oauth.authorization_code import PARAMETERS, Mixed, callback_names
from flows.payments.session import Mismatch, SessionStatus
from webapp.completion import RETURN_PARAMETER
from webapp.http.browser import query_of
from webapp.identity.identity import Access
from webapp.pages.builder import PageBuilder
from webapp.pages.views import BadRequest, Trouble, Unknown, Used
from webapp.pages.views_openers import SomeoneElse
from webapp.routes.answers import NotShown, problem, see_other
from webapp.routes.openers import must_be_opener
from webapp.routes.page_request import CurrentPage, PageRequest
from webapp.routes.redirect import returned
from webapp.service import Service

_log = logging.getLogger(__name__)


@get("/callback/{provider:str}")
async def provider_answers(page: CurrentPage, provider: FromPath[str]) -> Response[Any]:
    """Handle an authorization server's response (RFC 6749, 4.1.2)."""
    service, answers, arrival = page.service, page.answers, page.callback_params()
    back = await returned(service, arrival.all("state"), now=page.now)
    elicitation, attempt, state = back.elicitation, back.attempt, back.state
    server, accounts = elicitation.request.server, service.kinds.accounts
    if elicitation.kind != "oauth" or accounts.terms(elicitation).provider != provider:
        raise InvalidToken("another provider")
    await _must_be_bound(page, elicitation)
    here = service.links.of(elicitation, now=page.now)
    if attempt is None or attempt.state != state:
        # a double click: the page of the link shows the progress
        is_at_it = elicitation.status is Status.EXCHANGING
        shown = PageBuilder(service, elicitation, here=here, csrf="")
        if is_at_it or await shown.ended() is not None:
            return see_other(here)
        label = service.kinds.label(elicitation)
        used = Used(server=server, provider=label, here_url=here)
        return answers.page(used, status=HTTPStatus.CONFLICT, for_user=elicitation.is_for_user)
    try:
        code, members = accounts.flow.read_callback(elicitation, arrival)
    except Mixed as error:
        _log.warning("callback.mix_up", extra={"id": elicitation.id, "why": error.reason})
        mixed = BadRequest(server=server, problem=str(error))
        return answers.page(mixed, status=HTTPStatus.BAD_REQUEST, for_user=elicitation.is_for_user)
    # this server's configuration lacks the provider; the question stays open
    except NotConfigured as error:
        error_id = secrets.token_hex(6)
        _log.warning("provider.unknown", exc_info=error, extra={"error_id": error_id})
        trouble = Trouble(server=server, error_id=error_id, again_url=here)
        return answers.page(
            trouble, status=HTTPStatus.SERVICE_UNAVAILABLE, for_user=elicitation.is_for_user
        )
    except (Denied, Failed) as error:
        await accounts.code_exchange.callback_refused(elicitation, error)
        return see_other(here)
    # NotPossible: another request exchanges the code already, and the page shows the progress
    with suppress(NotPossible):
        await accounts.code_exchange.connect(elicitation, state=state, code=code, callback=members)
    return see_other(here)


@post("/callback/{provider:str}", status_code=HTTPStatus.SEE_OTHER)
async def provider_posts(page: CurrentPage, provider: FromPath[str]) -> Response[Any]:
    """Redirect the browser to `provider_answers` with the parameters of the provider's form."""
    accounts = page.service.kinds.accounts
    back = await returned(page.service, page.form.get("state", []), now=page.now)
    is_account = back.elicitation.kind == "oauth"
    client = accounts.client_for(back.elicitation) if is_account else None
    if client is None or client.provider.name != provider:
        raise InvalidToken("another provider")
    if client.provider.response_mode != "form_post":
        raise InvalidToken(
            "the provider sent a form, although its declaration says that it redirects"
        )
    names = (*PARAMETERS, *callback_names(client.provider))
    named = {name: page.form[name] for name in names if name in page.form}
    return see_other(f"/callback/{provider}?{urlencode(named, doseq=True)}")


@get("/return/{seller:str}")
async def provider_returns(page: CurrentPage, seller: FromPath[str]) -> Response[Any]:
    """Handle the return from a checkout, and ask the provider whether it was paid."""
    service, arrival = page.service, page.callback_params()
    back = await returned(service, arrival.all("state"), now=page.now)
    elicitation, payments = back.elicitation, service.kinds.payments
    if elicitation.kind != "payment" or payments.merchant_of(elicitation) != seller:
        raise InvalidToken("another seller")
    try:
        await _must_be_bound(page, elicitation)
    except NotShown:
        await payments.checkouts.ask_once(elicitation)  # somebody else may have paid
        raise
    try:
        if arrival.all("cancelled"):
            await payments.checkouts.decline_if_unpaid(elicitation, number=back.number)
        else:
            statuses = await payments.checkouts.ask_provider(elicitation)
            # The first status belongs to the latest session. The page of the link shows the result.
            if statuses[:1] == [SessionStatus.OPEN]:
                await service.elicitations.change(
                    elicitation.id, lambda e: attempts.come_back_unpaid(e, number=back.number)
                )
    except (Failed, Mismatch) as error:
        # The provider's webhook brings the result; until then the page of the link waits.
        _log.warning("return.provider_unreachable", exc_info=error, extra={"id": elicitation.id})
    return see_other(service.links.of(elicitation, now=page.now))


async def _must_be_bound(page: PageRequest, elicitation: Elicitation) -> None:
    """Check that this browser pressed Continue and that the viewer is the asker.

    Raises:
        NotShown: The request is from another browser or another person.
    """
    is_same, access = page.is_bound(elicitation), (await page.access(elicitation)).access
    if is_same and access is Access.OPEN:
        return
    if is_same and access in (Access.SIGN_IN, Access.APPLICATION):
        # The person is no longer signed in: must_be_opener raises NotShown with a sign-in page.
        here = page.service.links.of(elicitation, now=page.now)
        await must_be_opener(page, elicitation, here=here.removeprefix(page.service.public_url))
    _log.warning("callback.refused", extra={"id": elicitation.id, "way": access.value})
    view = SomeoneElse(server=elicitation.request.server, other="browser")
    raise NotShown(
        page.answers.page(view, status=HTTPStatus.FORBIDDEN, for_user=elicitation.is_for_user)
    )


# The routes for an author's service: the browser's return, and the service's own callback request.
@get("/return")
async def come_back(page: CurrentPage) -> Response[Any]:
    """Complete the question when the browser that pressed Continue comes back.

    This GET changes the question, because a redirect is a GET. Scanners lack the browser's cookie.
    """
    service = page.service
    tokens = query_of(page.request).get(RETURN_PARAMETER, [])
    if len(tokens) != 1:
        raise InvalidToken("missing or repeated")
    elicitation = await service.completing.returned(tokens[0])
    server, decision = elicitation.request.server, await page.access(elicitation)
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
