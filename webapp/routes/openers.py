"""The check that the viewer of a link is its asker, and the pages for everybody else.

Risks: a forwarded link. These pages show only the server's name and the kind of the request. A
mismatch does not end the question for the asker, and is logged.
"""

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import assert_never

from flows.elicitation.states import Elicitation
from flows.elicitation.traits import traits_of
from flows.elicitation.user_code import PAGE_WORDS, USERS_PAGE_WORDS, Code
from webapp.http.parts import AnyRequest
from webapp.http.rate_limit import address_key
from webapp.identity.identity import Access, AccessDecision
from webapp.pages.builder import ENDINGS
from webapp.pages.views import Ended, View
from webapp.pages.views_openers import (
    BeforeOpener,
    Closed,
    CodeButton,
    CodePage,
    OtherIssuer,
    SignInButton,
    SomeoneElse,
)
from webapp.routes.answers import NotShown
from webapp.routes.page_request import PageRequest
from webapp.service import Service

SIGN_IN = "signin"  # the subject of the CSRF field of sign-in forms
_log = logging.getLogger(__name__)

_HERE_ONLY = (
    "It works only for the person who asked, in a browser on the computer where the server runs."
)
_PAIR = (
    "It works only for the person who runs the server. If that is you, run `elicit pair` in a "
    "terminal on that computer, and open the address that it prints in this browser."
)
_SHOWN_HERE_ONLY = "They are shown only in a browser on the computer where the server runs."
_SHOWN_TO_PAIRED = (
    "They are shown only to the person who runs the server. If that is you, run `elicit pair` in a "
    "terminal on that computer, and open the address that it prints in this browser."
)
_SHOWN_TO_SIGNED_IN = (
    "They are shown only to the person who is signed in at {name}. Sign in there, in this browser, "
    "and open this page again."
)
_APPLICATION = (
    "It works only for the person who asked, when they are signed in at {name}. Sign in there, in "
    "this browser, and open this link again."
)
_REFUSED = (Access.OTHER_PERSON, Access.OTHER_USER, Access.OTHER_BROWSER, Access.HERE_ONLY)
_CODE = "A code from this page, typed into the chat, shows that it is you who asked."
_SIGN_IN = "You sign in so that no one else can use this link."


async def must_be_opener(page: PageRequest, elicitation: Elicitation, *, here: str) -> None:
    """Check that the viewer is the asker. `here` is the path of the link.

    Raises:
        NotShown: The viewer is not the asker, or not known.
    """
    decision = await page.access(elicitation)
    pace(elicitation, page.request, page.service, is_open=decision.is_open)
    if decision.is_open:
        return
    if decision.access in _REFUSED:
        _log.warning("opener.refused", extra={"id": elicitation.id, "way": decision.access.value})
    is_form = decision.access in (Access.SIGN_IN, Access.OTHER_PERSON)
    raise NotShown(
        page.answers.page(
            _view(page, elicitation, decision, here=here),
            status=HTTPStatus.OK if decision.access is Access.CODE else HTTPStatus.FORBIDDEN,
            form_targets=sign_in_targets(page.service) if is_form else (),
            cookies=page.new_cookies,
            for_user=elicitation.is_for_user,
        )
    )


def pace(elicitation: Elicitation, request: AnyRequest, service: Service, *, is_open: bool) -> None:
    """Apply the rate limit of this link. `is_open`: the viewer is the asker.

    Other viewers are counted by their address, so that they cannot use up the asker's limit.

    Raises:
        TooOften: The link was requested too often.
    """
    who = "" if is_open else address_key(request.scope)
    service.press_limit.require(f"{elicitation.id} {who}")


def unconfirmed(code: Code) -> str:
    """Return the live status of a page that shows a code. Each code has its own status."""
    return f"unconfirmed {code.number}"


def sign_in_button(page: PageRequest, *, back: str, switches: bool = False) -> SignInButton | None:
    signing_in = page.service.identity.signing_in
    if signing_in is None:
        return None
    first, *others = signing_in.places.values()
    return SignInButton(
        action="/signin",
        back=back,
        csrf=page.csrf(SIGN_IN),
        issuer=first.label,
        switch=switches,
        others=tuple(OtherIssuer(name=one.name, label=one.label, site=one.site) for one in others),
    )


def sign_in_targets(service: Service) -> Sequence[str]:
    """Return the form targets of a page with a sign-in button."""
    return () if service.identity.signing_in is None else service.identity.signing_in.form_targets


def closed_page(page: PageRequest, view: Closed) -> NotShown:
    """Return the exception that shows this page in place of one that the browser may not open."""
    return NotShown(
        page.answers.page(
            view,
            status=HTTPStatus.FORBIDDEN,
            form_targets=sign_in_targets(page.service),
            cookies=page.new_cookies,
        )
    )


def why_not_shown(service: Service) -> str:
    """Return why an anonymous caller does not see a person's pages, and what would help."""
    if service.identity.users is not None and service.identity.users.who is not None:
        return _SHOWN_TO_SIGNED_IN.format(name=service.identity.users.application)
    return _SHOWN_TO_PAIRED if service.identity.pairing.is_possible else _SHOWN_HERE_ONLY


def _view(
    page: PageRequest, elicitation: Elicitation, decision: AccessDecision, *, here: str
) -> View:
    server, kind = elicitation.request.server, traits_of(elicitation.kind).page
    match decision.access:
        case Access.SIGN_IN:
            button = sign_in_button(page, back=here)
            return BeforeOpener(server=server, kind=kind, why=_SIGN_IN, sign_in=button)
        case Access.OTHER_PERSON:
            button = sign_in_button(page, back=here, switches=True)
            label = decision.viewer.label if decision.viewer is not None else None
            return SomeoneElse(server=server, other="person", signed_in_as=label, sign_in=button)
        case Access.OTHER_BROWSER:
            return SomeoneElse(server=server, other="browser")
        case Access.CODE if elicitation.status.is_final or page.now >= elicitation.expires_at:
            ending = ENDINGS.get(elicitation.status, "expired")
            return Ended(server=server, ending=ending, kind=kind)
        case Access.CODE if code := page.service.identity.code(elicitation, page.cookies):
            return CodePage(
                server=server,
                kind=kind,
                user_code=page.service.identity.user_codes.of(elicitation, code),
                words=USERS_PAGE_WORDS if elicitation.is_for_user else PAGE_WORDS,
                live_url=f"{here}/live",
                here_url=here,
                status=unconfirmed(code),
                now=page.now,
                expires_at=elicitation.expires_at,
            )
        case Access.CODE:
            press = CodeButton(action=f"{here}/code", csrf=page.csrf(elicitation.id))
            return BeforeOpener(server=server, kind=kind, why=_CODE, code=press)
        case Access.APPLICATION | Access.OTHER_USER:
            return _view_for_user(page, elicitation, is_other=decision.access is Access.OTHER_USER)
        case Access.PAIR:
            return BeforeOpener(server=server, kind=kind, why=_PAIR)
        case Access.HERE_ONLY | Access.OPEN:
            return BeforeOpener(server=server, kind=kind, why=_HERE_ONLY)
    assert_never(decision.access)


def _view_for_user(page: PageRequest, elicitation: Elicitation, *, is_other: bool) -> View:
    server, users = elicitation.request.server, page.service.identity.users
    there = None if users is None else users.sign_in_url
    if is_other:
        return SomeoneElse(server=server, other="person", sign_in_at=there)
    why, kind = _APPLICATION.format(name=server), traits_of(elicitation.kind).page
    return BeforeOpener(server=server, kind=kind, why=why, sign_in_at=there)
