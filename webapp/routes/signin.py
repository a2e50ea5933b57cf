"""Signing in and out on our pages, and pairing a browser with whoever runs the server.

What could go wrong: a browser that is signed in by somebody else. So each of these is a press in
this very browser, what it left with is in a cookie of its own, and a session never outlives the
next sign-in.
"""

import logging
import secrets
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Literal
from urllib.parse import parse_qsl

from litestar import Request, Response, get, post
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException
from litestar.params import FromPath, RawBody

from flows.elicitation.flow import CallbackParams
from flows.errors import Denied, Failed, InvalidToken
from flows.oauth.authorization_code import Mixed
from webapp.http.requests import cookies_of, parsed
from webapp.identity.sessions import BrowserSession
from webapp.identity.sign_in import SigningIn
from webapp.pages.views import Pair, Paired, PairUsed, SignedOut, SignInFailed
from webapp.routes.answers import Answers, see_other
from webapp.routes.fields import refuse_form
from webapp.routes.openers import SIGN_IN, sign_in_button, with_cookie
from webapp.service import Service

PAIR = "pair"  # what the CSRF field of that form is about
_FIELDS_AT_MOST = 50
_WHY: Mapping[type[Exception], tuple[Literal["refused", "trouble", "mixed"], HTTPStatus]] = {
    Denied: ("refused", HTTPStatus.FORBIDDEN),
    Failed: ("trouble", HTTPStatus.BAD_GATEWAY),
    Mixed: ("mixed", HTTPStatus.BAD_REQUEST),
}
_log = logging.getLogger(__name__)


@post("/signin", status_code=HTTPStatus.SEE_OTHER)
async def sign_in(
    request: Request[Any, Any, Any],
    *,
    body: RawBody,
    service: NamedDependency[Service],
    answers: NamedDependency[Answers],
) -> Response[Any]:
    """Send this browser to the issuer."""
    signing_in, fields = _signing_in(service), parsed(body)
    refused = refuse_form(fields, request, service, answers, subject=SIGN_IN)
    if refused is not None:
        return refused
    back = "".join(fields.get("back", []))
    try:
        gone = await signing_in.begin(back=back, switches="switch" in fields)
    except Failed as error:
        return _failed(error, request, service, answers, back=back)
    return see_other(gone.url, cookies=[gone.cookie])


@get("/signin/callback")
async def signed_in(
    request: Request[Any, Any, Any],
    service: NamedDependency[Service],
    answers: NamedDependency[Answers],
) -> Response[Any]:
    """The issuer's answer; it changes something on a GET, as every way back must."""
    signing_in = _signing_in(service)
    text = request.scope["query_string"].decode("ascii", "replace")
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_FIELDS_AT_MOST)
        back = await signing_in.finish(CallbackParams(parameters=tuple(pairs)), cookies_of(request))
    except ValueError:
        raise InvalidToken("too many parameters") from None
    except (Mixed, Denied, Failed) as error:
        back_to = signing_in.back_of(cookies_of(request))
        return _failed(error, request, service, answers, back=back_to)
    _tell("person.signed_in", back.session, service)
    return see_other(back.path, cookies=back.cookies)


@post("/signout", status_code=HTTPStatus.OK)
async def sign_out(
    request: Request[Any, Any, Any],
    *,
    body: RawBody,
    service: NamedDependency[Service],
    answers: NamedDependency[Answers],
) -> Response[Any]:
    """End this browser's session, and every copy of its cookie."""
    refused = refuse_form(parsed(body), request, service, answers, subject=SIGN_IN)
    if refused is not None:
        return refused
    session = await service.sessions.of(cookies_of(request))
    cleared = await service.sessions.end(session)
    if session is not None:
        _tell("person.signed_out", session, service)
    issuer = None if service.signing_in is None else service.signing_in.label
    return answers.page(SignedOut(server=answers.server, issuer=issuer), cookies=[cleared])


@get("/pair/{token:str}")
async def offer_pairing(
    request: Request[Any, Any, Any],
    token: FromPath[str],
    service: NamedDependency[Service],
    answers: NamedDependency[Answers],
) -> Response[Any]:
    """Whether this browser shall be that of the person who runs the server."""
    if not await service.pairing.can_use(token):
        return answers.page(PairUsed(server=answers.server), status=HTTPStatus.GONE)
    cookie, cookies = with_cookie(request, service)
    csrf = service.browser.csrf(cookie, subject=PAIR)
    view = Pair(server=answers.server, action=f"/pair/{token}", csrf=csrf)
    return answers.page(view, cookies=cookies)


@post("/pair/{token:str}", status_code=HTTPStatus.OK)
async def pair(
    request: Request[Any, Any, Any],
    *,
    token: FromPath[str],
    body: RawBody,
    service: NamedDependency[Service],
    answers: NamedDependency[Answers],
) -> Response[Any]:
    """From now on it is; the address works once."""
    refused = refuse_form(parsed(body), request, service, answers, subject=PAIR)
    if refused is not None:
        return refused
    try:
        paired = await service.pairing.use(token)
    except InvalidToken:
        return answers.page(PairUsed(server=answers.server), status=HTTPStatus.GONE)
    session = await service.sessions.start(paired, cookies=cookies_of(request))
    cookie = service.sessions.set_cookie(session)
    _tell("browser.paired", session, service)
    return answers.page(Paired(server=answers.server), cookies=[cookie])


def _tell(event: str, session: BrowserSession, service: Service) -> None:
    """For the operator: whose, by the tag that their questions begin with; nobody's name."""
    owner = service.elicitations.owners.tag(issuer=session.issuer, subject=session.subject)
    _log.info(event, extra={"owner": owner})


def _signing_in(service: Service) -> SigningIn:
    if service.signing_in is None:
        raise NotFoundException
    return service.signing_in


def _failed(
    error: Mixed | Denied | Failed,
    request: Request[Any, Any, Any],
    service: Service,
    answers: Answers,
    *,
    back: str,
) -> Response[Any]:
    cookie, cookies = with_cookie(request, service)
    error_id = None if isinstance(error, Denied) else secrets.token_hex(6)
    reason = error.reason if isinstance(error, Mixed) else str(error)
    _log.warning("signin.failed", extra={"error_id": error_id, "why": reason})
    why, status = _WHY[type(error)]
    assert service.signing_in is not None
    view = SignInFailed(
        server=answers.server,
        issuer=service.signing_in.label,
        why=why,
        error_id=error_id,
        sign_in=sign_in_button(service, back=back, cookie=cookie),
    )
    targets = service.signing_in.form_targets
    if not isinstance(error, Mixed):
        # What it left with is used up by an answer to it, and by nothing that a stranger sends.
        cookies += (service.sessions.forget_leaving(),)
    return answers.page(view, status=status, form_targets=targets, cookies=cookies)
