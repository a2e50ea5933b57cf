"""The pages of a link: start, continue, decline, and the result.

A GET changes nothing, since link scanners open links. The viewer is checked before any detail is
shown, and again before any change.
"""

import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from typing import Any

from babel import Locale
from litestar import Response, get, post, route
from litestar.params import FromPath
from litestar.response import Stream

from flows.crypto.tokens import Purpose
from flows.elicitation.run import Run
from flows.elicitation.states import Elicitation, Json, Status
from flows.elicitation.traits import OnPage, traits_of
from flows.errors import (
    Failed,
    InvalidAnswer,
    InvalidQuestion,
    InvalidToken,
    NotAllowed,
    NotConfigured,
    NotPossible,
)
from flows.schema.schema import Fault, parse
from webapp.elicitations.waiters import Changed
from webapp.http.parts import READ
from webapp.kinds.decision import WITHDRAWN
from webapp.kinds.page_kind import PageKind
from webapp.pages.builder import PageBuilder
from webapp.pages.form import form_of, with_zones
from webapp.pages.updates import State, state_of
from webapp.pages.views import ProviderTrouble
from webapp.records.rows import Erased
from webapp.routes.answers import problem, see_other
from webapp.routes.openers import must_be_opener, pace, unconfirmed
from webapp.routes.page_request import CurrentPage, PageRequest
from webapp.routes.redirect import depart, trouble_of
from webapp.service import Service

_NOT_SAVED = "Nothing was saved, and the question is still open: try again in a moment."
_TICKS = ("remember", "all_clients")  # the checkboxes next to an approval
_log = logging.getLogger(__name__)


@route("/e/{token:str}", http_method=READ)
async def show(page: CurrentPage, token: FromPath[str]) -> Response[Any]:
    """Show the question of a link, or its result."""
    elicitation = await elicitation_of(page, token)
    await must_be_opener(page, elicitation, here=f"/e/{token}")
    locale = page.answers.locale(page.request)
    shown = _shown(page, elicitation, token=token, locale=locale)
    view = await shown.view(is_bound=page.is_bound(elicitation))
    renewed = await page.service.identity.renewed_cookies(page.cookies)
    targets = _form_targets(elicitation)
    return page.answers.page(
        view,
        form_targets=targets,
        cookies=(*page.new_cookies, *renewed),
        for_user=elicitation.is_for_user,
    )


@post("/e/{token:str}", status_code=HTTPStatus.SEE_OTHER)
async def go_on(page: CurrentPage, token: FromPath[str]) -> Response[Any]:
    """Start an attempt and redirect the browser, or accept the typed answer."""
    elicitation = await _pressed(page, token)
    if traits_of(elicitation.kind).is_anothers:  # another person decides
        return see_other(f"/e/{token}")
    typed = page.service.kinds.on_page(elicitation.kind)
    if typed is not None:
        return await _submit_answer(page, elicitation, typed, token=token)
    if traits_of(elicitation.kind).takes_key:
        return await _submit_key(page, elicitation, token=token)
    attempt = elicitation.attempt
    known = None if attempt is None else attempt.browser
    cookie = page.service.browser.cookie_of(page.cookies, known=known) or ""
    tenant = page.form.get("tenant", [""])[-1]
    try:
        switches = page.is_ticked("switch")
        url = await depart(
            page.service, elicitation, cookie=cookie, switches=switches, tenant=tenant or None
        )
        return see_other(url)
    except InvalidQuestion as error:
        view = _shown(page, elicitation, token=token).start_account(typed=tenant, fault=str(error))
        return page.answers.page(
            view,
            status=HTTPStatus.UNPROCESSABLE_ENTITY,
            form_targets=_form_targets(elicitation),
            for_user=elicitation.is_for_user,
        )
    except NotPossible:
        return await _show_outcome(page, elicitation, token=token, accepts=True)
    except (Failed, NotConfigured) as error:
        return _trouble(page, elicitation, error, token=token)


@post("/e/{token:str}/allow", status_code=HTTPStatus.SEE_OTHER)
async def allow(page: CurrentPage, token: FromPath[str]) -> Response[Any]:
    """Let the tool use an account that is already connected."""
    elicitation = await _pressed(page, token)
    if traits_of(elicitation.kind).gives == "account":
        try:
            await page.service.kinds.accounts.share(elicitation, account=page.last("account"))
        except Failed as error:
            return _trouble(page, elicitation, error, token=token)
    return await _show_outcome(page, elicitation, token=token, accepts=True)


@post("/e/{token:str}/decline", status_code=HTTPStatus.SEE_OTHER)
async def decline(page: CurrentPage, token: FromPath[str]) -> Response[Any]:
    """Decline a question and end its link. If another person decides, withdraw the question."""
    elicitation = await _pressed(page, token)
    ended = await page.service.kinds.decisions.give_up(elicitation)
    return await _show_outcome(page, ended, token=token, accepts=False)


@post("/e/{token:str}/code", status_code=HTTPStatus.SEE_OTHER)
async def show_user_code(page: CurrentPage, token: FromPath[str]) -> Response[Any]:
    """Bind this browser to the question, so that the page shows this browser a code."""
    service, elicitation = page.service, await elicitation_of(page, token)
    page.must_be_form_about(elicitation.id)
    pace(elicitation, page.request, service, is_open=False)
    code = service.identity.code(elicitation, page.cookies)
    browser = service.browser.hash_of(page.cookies)
    if elicitation.is_by_code and browser is not None and code is None:
        with suppress(NotAllowed, NotPossible):  # the page says why
            await service.identity.user_codes.bind(elicitation.id, browser=browser)
    return see_other(f"/e/{token}")


async def elicitation_of(page: PageRequest, token: str) -> Elicitation:
    """Return the elicitation of a link.

    Raises:
        InvalidToken: The token is invalid, or the question is not stored any more.
    """
    claims = page.service.links.read(token, purpose=Purpose.LINK, now=page.now)
    elicitation = await page.service.elicitations.get(claims.id)
    if elicitation is None:
        raise InvalidToken("erased")
    return elicitation


async def _pressed(page: PageRequest, token: str) -> Elicitation:
    """Return the elicitation that a form is about.

    Raises:
        NotShown: The viewer is another person, or the form is not from our page in this browser.
    """
    elicitation = await elicitation_of(page, token)
    await must_be_opener(page, elicitation, here=f"/e/{token}")
    page.must_be_form_about(elicitation.id)
    return elicitation


def _trouble(
    page: PageRequest, elicitation: Elicitation, error: Failed | NotConfigured, *, token: str
) -> Response[Any]:
    """Return the page of a failed request to the provider, or of missing settings.

    The question stays open.
    """
    error_id = secrets.token_hex(6)
    about = {"id": elicitation.id, "error_id": error_id, "why": getattr(error, "why", str(error))}
    _log.warning("provider.failed", exc_info=error, extra=about)
    view = ProviderTrouble(
        server=elicitation.request.server,
        provider=page.service.kinds.label(elicitation),
        error_id=error_id,
        again_action=f"/e/{token}",
        csrf=page.csrf(elicitation.id),
        trouble=trouble_of(error),
        is_payment=traits_of(elicitation.kind).page == "payment",
    )
    targets = _form_targets(elicitation)
    return page.answers.page(
        view, status=HTTPStatus.BAD_GATEWAY, form_targets=targets, for_user=elicitation.is_for_user
    )


async def _submit_answer(
    page: PageRequest, elicitation: Elicitation, typed: PageKind, *, token: str
) -> Response[Any]:
    shown = _shown(page, elicitation, token=token)
    schema = typed.schema(elicitation)
    form, zone_faults = with_zones(schema, page.form)
    parsed = parse(schema, form)
    pressed = partial(_show_outcome, page, token=token, accepts=True)
    if await shown.ended() is not None:
        return await pressed(elicitation, answer=parsed.content)
    faults: Sequence[Fault] = (*zone_faults, *parsed.faults)
    if not faults:
        faults = await page.service.kinds.rules.faults(elicitation, parsed.content)
    if not faults:
        ticks = set(filter(page.is_ticked, _TICKS))
        try:
            ended = await page.service.kinds.complete(
                elicitation, parsed.content, OnPage(), ticks=ticks
            )
        except InvalidAnswer as refused:
            faults = [Fault(path=one["path"], message=one["message"]) for one in refused.details]
        else:
            # The stored answer is comparable unless a plugin changed it or delivery deleted it.
            is_known = ended.content is not None and not page.service.kinds.plugins.see_answers
            return await pressed(ended, answer=parsed.content if is_known else None)
    view = await shown.with_updates(
        shown.start_typed(form_of(schema, values=page.form, faults=faults))
    )
    return page.answers.page(
        view, status=HTTPStatus.UNPROCESSABLE_ENTITY, for_user=elicitation.is_for_user
    )


async def _submit_key(page: PageRequest, elicitation: Elicitation, *, token: str) -> Response[Any]:
    """Test and store the typed key of an account, or show the form with the faults."""
    accounts, shown = page.service.kinds.accounts, _shown(page, elicitation, token=token)
    if await shown.ended() is not None:
        return await _show_outcome(page, elicitation, token=token, accepts=True)
    terms, client = accounts.terms(elicitation), accounts.client_for(elicitation)
    if client is None or client.provider.key is None:
        error = NotConfigured(f"[providers.{terms.provider}] in elicit.toml")
        return _trouble(page, elicitation, error, token=token)
    schema = accounts.api_keys.schema(client, terms)
    status, faults = HTTPStatus.OK, list[Fault]()
    if any(field.input_name in page.form for field in schema.fields):  # else: show an empty form
        parsed = parse(schema, page.form)
        status, faults = HTTPStatus.UNPROCESSABLE_ENTITY, [*parsed.faults]
        if not faults:
            browser = page.service.browser.hash_of(page.cookies) or ""
            try:
                faults += await accounts.api_keys.connect(
                    elicitation, client, terms, parsed.content, browser=browser
                )
            except NotPossible:
                return await _show_outcome(page, elicitation, token=token, accepts=True)
            except Failed as error:
                about = {"id": elicitation.id, "why": getattr(error, "why", str(error))}
                _log.warning("provider.failed", extra=about)
                status = HTTPStatus.BAD_GATEWAY
                faults.append(Fault(path="", message=f"{error} {_NOT_SAVED}"))
        if not faults:
            found = await page.service.elicitations.get(elicitation.id)
            return await _show_outcome(page, found or elicitation, token=token, accepts=True)
    form = form_of(schema, values=page.form, faults=faults) if faults else None
    view = await shown.with_updates(shown.start_account(form=form))
    return page.answers.page(
        view, status=status, cookies=page.new_cookies, for_user=elicitation.is_for_user
    )


async def _show_outcome(
    page: PageRequest,
    elicitation: Elicitation,
    *,
    token: str,
    accepts: bool,
    answer: Mapping[str, Json] | None = None,
) -> Response[Any]:
    """Show the result of the question, and say so if the person pressed too late.

    `elicitation` is the question as this route last read or wrote it. `answer` is the typed answer,
    to compare with the stored one.
    """
    locale = page.answers.locale(page.request)
    shown = _shown(page, elicitation, token=token, locale=locale)
    view = await shown.ended()
    if accepts:
        counts = elicitation.status is Status.ACCEPTED and (
            not answer or answer == elicitation.content
        )
    else:
        counts = elicitation.status is Status.DECLINED or elicitation.why == WITHDRAWN
    if view is None or counts:
        return see_other(f"/e/{token}")
    view = await shown.with_updates(replace(view, came_late=True))
    return page.answers.page(view, status=HTTPStatus.CONFLICT, for_user=elicitation.is_for_user)


def _shown(
    page: PageRequest, elicitation: Elicitation, *, token: str, locale: Locale | None = None
) -> PageBuilder:
    csrf = page.csrf(elicitation.id)
    return PageBuilder(page.service, elicitation, here=f"/e/{token}", csrf=csrf, locale=locale)


def _form_targets(elicitation: Elicitation) -> list[str]:
    """Return the sources for `form-action`, which browsers apply to every redirect after a form.

    The redirects of the author's service are therefore included.
    """
    takes_key = traits_of(elicitation.kind).takes_key
    if takes_key or not elicitation.request.origins:  # our own page handles the answer
        return []
    return sorted(
        {"https:"} | {origin.partition("//")[0] for origin in elicitation.request.origins}
    )


# The live status of a link by server-sent events, with which the waiting page updates itself.

PING_EVERY = timedelta(seconds=15)


@get("/e/{token:str}/live")
async def live(page: CurrentPage, token: FromPath[str]) -> Response[Any]:
    """Send the status, now and at each change, until it is final."""
    service, elicitation = page.service, await elicitation_of(page, token)
    decision = await page.access(elicitation)
    pace(elicitation, page.request, service, is_open=decision.is_open)

    async def state(current: Elicitation) -> State | None:
        """Return the state, or None if the viewer may not see the question (any more)."""
        code = service.identity.code(current, page.cookies)
        if code is None and not (await page.access(current)).is_open:
            return None
        is_unproven = current.binding is not None and current.binding.confirmed_at is None
        if code is not None and is_unproven and not current.status.is_final:
            return State(status=unconfirmed(code))
        return await state_of(service, current)

    if await state(elicitation) is None:
        return problem(HTTPStatus.FORBIDDEN, detail="This link belongs to someone else.")
    return Stream(
        _statuses(elicitation, service, state),
        media_type="text/event-stream",
        headers={"cache-control": "no-store", "x-accel-buffering": "no"},
    )


async def _statuses(
    elicitation: Elicitation,
    service: Service,
    state: Callable[[Elicitation], Awaitable[State | None]],
) -> AsyncIterator[str]:
    elicitations = service.elicitations
    # The call's run changes when its next question is asked.
    ids = [id for id in (elicitation.id, elicitation.run) if id]
    with elicitations.waiters.waiter(*ids, sees_all=True) as waiter:
        current, last = await elicitations.get(elicitation.id), ""
        # state() also returns None if the viewer signed out in the meantime
        while current is not None and (now := await state(current)):
            if now.status != last:  # not every change of the record changes the status
                yield f"data: {now.status}\n\n"
            last = now.status
            if now.ends:  # without this event, the browser would reconnect at once
                yield "event: end\ndata:\n\n"
                return
            if service.is_draining:  # the browser reconnects
                return
            changes = await waiter.changes(until=service.clock() + PING_EVERY, now=service.clock())
            if not changes:
                yield ": ping\n\n"
            try:
                changed: list[Changed] = [one for one in changes if not isinstance(one, Run)]
                current = await elicitations.rows.newest(current, changed)
            except Erased:  # the browser reconnects and sees the erasure
                return
