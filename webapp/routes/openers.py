"""Whoever opens is whoever asked: what everybody else is shown, and what would help them.

What could go wrong: a forwarded link. Nothing of what is asked is on these pages but the server's
name and the kind of request; a mismatch ends nothing for whoever asked, and is logged.
"""

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, assert_never

from litestar import Request, Response

from flows.elicitation.states import Elicitation
from flows.elicitation.traits import traits_of
from flows.elicitation.user_code import PAGE_WORDS, Code
from webapp.http.rate_limit import address_key
from webapp.http.requests import cookies_of
from webapp.identity.identity import Opening, Way
from webapp.pages.builder import ENDINGS
from webapp.pages.views import (
    BeforeOpener,
    CodeButton,
    CodePage,
    Ended,
    SignInButton,
    SomeoneElse,
    View,
)
from webapp.routes.answers import Answers
from webapp.service import Service

SIGN_IN = "signin"  # what the CSRF field of those forms is about
_log = logging.getLogger(__name__)

_HERE_ONLY = (
    "It works only for the person who asked, in a browser on the computer where the server runs."
)
_PAIR = (
    "It works only for the person who runs the server. If that is you, type `elicit pair` in a "
    "terminal on that computer: it prints an address that makes this browser yours."
)
_THEIRS_HERE_ONLY = "They are shown only in a browser on the computer where the server runs."
_THEIRS_PAIR = (
    "They are shown only to the person who runs the server. If that is you, type `elicit pair` in "
    "a terminal on that computer: it prints an address that makes this browser yours."
)
_LETTERS = "Letters from this page, typed into the chat, show that it is you who asked."
_SIGN_IN = "You sign in so that nobody else can use this link."


async def refuse_opener(
    elicitation: Elicitation,
    request: Request[Any, Any, Any],
    service: Service,
    answers: Answers,
    *,
    here: str,
) -> Response[Any] | None:
    """The page for whoever may not go on; None for the person who asked. `here` is the link."""
    opening = await service.identity.opening(elicitation, request.scope, cookies_of(request))
    pace(elicitation, request, service, is_open=opening.is_open)
    if opening.is_open:
        return None
    if opening.way in (Way.OTHER_PERSON, Way.OTHER_BROWSER, Way.HERE_ONLY):
        _log.warning("opener.refused", extra={"id": elicitation.id, "way": opening.way.value})
    cookie, cookies = with_cookie(request, service)
    view = _view(elicitation, opening, request, service, here=here, cookie=cookie)
    is_form = opening.way in (Way.SIGN_IN, Way.OTHER_PERSON)
    return answers.page(
        view,
        status=HTTPStatus.OK if opening.way is Way.CODE else HTTPStatus.FORBIDDEN,
        form_targets=sign_in_targets(service) if is_form else (),
        cookies=cookies,
    )


def pace(
    elicitation: Elicitation,
    request: Request[Any, Any, Any],
    service: Service,
    *,
    is_open: bool,
) -> None:
    """Raises TooOften if this one link is asked for without end.

    Strangers are counted by their address: they must not be able to hold back whoever asked, who
    is not known yet when the link is opened.
    """
    who = "" if is_open else address_key(request.scope)
    service.paces.require(f"{elicitation.id} {who}")


def with_cookie(request: Request[Any, Any, Any], service: Service) -> tuple[str, tuple[str, ...]]:
    """The browser's binding cookie, and what to set where it has none yet."""
    cookies = cookies_of(request)
    cookie = service.browser.cookie_of(cookies)
    if cookie is not None:
        return cookie, service.browser.marks(cookie, cookies)
    cookie = service.browser.fresh()
    return cookie, service.browser.set_cookies(cookie)


def unconfirmed(code: Code) -> str:
    """The live status of a page that shows letters; with other letters it is another one."""
    return f"unconfirmed {code.number}"


def sign_in_button(
    service: Service, *, back: str, cookie: str, switches: bool = False
) -> SignInButton | None:
    if service.signing_in is None:
        return None
    return SignInButton(
        action="/signin",
        back=back,
        csrf=service.browser.csrf(cookie, subject=SIGN_IN),
        issuer=service.signing_in.label,
        switch=switches,
    )


def sign_in_targets(service: Service) -> Sequence[str]:
    """Where a form of a page with that button may lead."""
    return () if service.signing_in is None else service.signing_in.form_targets


def why_not_shown(service: Service) -> str:
    """Why nobody is shown what belongs to a person, and what would change that."""
    return _THEIRS_PAIR if service.pairing.is_possible else _THEIRS_HERE_ONLY


def _view(
    elicitation: Elicitation,
    opening: Opening,
    request: Request[Any, Any, Any],
    service: Service,
    *,
    here: str,
    cookie: str,
) -> View:
    server, kind = elicitation.asked.server, traits_of(elicitation.kind).page
    match opening.way:
        case Way.SIGN_IN:
            button = sign_in_button(service, back=here, cookie=cookie)
            return BeforeOpener(server=server, kind=kind, why=_SIGN_IN, sign_in=button)
        case Way.OTHER_PERSON:
            button = sign_in_button(service, back=here, cookie=cookie, switches=True)
            label = opening.viewer.label if opening.viewer is not None else None
            return SomeoneElse(server=server, other="person", signed_in_as=label, sign_in=button)
        case Way.OTHER_BROWSER:
            return SomeoneElse(server=server, other="browser")
        case Way.CODE if _is_over(elicitation, service):
            ending = ENDINGS.get(elicitation.status, "expired")
            return Ended(server=server, ending=ending, kind=kind)
        case Way.CODE if code := service.identity.code(elicitation, cookies_of(request)):
            return CodePage(
                server=server,
                kind=kind,
                letters=service.user_codes.of(elicitation, code),
                words=PAGE_WORDS,
                live_url=f"{here}/live",
                here_url=here,
                status=unconfirmed(code),
                now=service.clock(),
                expires_at=elicitation.expires_at,
            )
        case Way.CODE:
            csrf = service.browser.csrf(cookie, subject=elicitation.id)
            press = CodeButton(action=f"{here}/code", csrf=csrf)
            return BeforeOpener(server=server, kind=kind, why=_LETTERS, code=press)
        case Way.PAIR:
            return BeforeOpener(server=server, kind=kind, why=_PAIR)
        case Way.HERE_ONLY | Way.OPEN:
            return BeforeOpener(server=server, kind=kind, why=_HERE_ONLY)
    assert_never(opening.way)


def _is_over(elicitation: Elicitation, service: Service) -> bool:
    return elicitation.status.is_final or service.clock() >= elicitation.expires_at
