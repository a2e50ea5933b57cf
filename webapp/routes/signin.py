"""Signing in and out on our pages, and pairing a browser with the operator.

Risks: somebody else signs this browser in. So each sign-in or pairing begins with a press in this
browser, the sign-in's state is in its own cookie, and a new sign-in always replaces the session.
"""

import logging
import secrets
from dataclasses import replace
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

from litestar import Response, get, post, route
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException
from litestar.params import FromPath, RawBody

from flows.errors import Denied, Failed, InvalidToken, StoreUnavailable
from flows.oauth.access_token import BadBearer
from flows.oauth.authorization_code import Mixed
from flows.oauth.registered_client import fix_of
from flows.oauth.sign_in import Unnamed
from webapp.http.parts import READ
from webapp.identity.sessions import BrowserSession
from webapp.identity.sign_in import CALLBACK_PATH, LOGOUT_PATH, SIGNED_OUT_PATH, SigningIn
from webapp.pages.views_openers import Pair, Paired, PairUsed, SignedOut, SignInFailed, SignInFault
from webapp.routes.answers import see_other
from webapp.routes.openers import SIGN_IN, sign_in_button
from webapp.routes.page_request import CurrentPage, PageRequest
from webapp.service import Service

PAIR = "pair"  # the subject of the CSRF field of the pairing form
LOGOUT_BYTES_AT_MOST = 20 * 1024
_FIELDS_AT_MOST = 20
_NOT_STORED = {"cache-control": "no-store"}
_NO_LOGOUT_TOKEN = "This is not a valid logout token of this issuer for this server."  # noqa: S105
_NOT_LOGGED_OUT = "The sign-out could not be checked or stored now. Send the token again."
_log = logging.getLogger(__name__)


@post("/signin", status_code=HTTPStatus.SEE_OTHER)
async def sign_in(page: CurrentPage) -> Response[Any]:
    """Redirect this browser to the issuer."""
    signing_in = _signing_in(page)
    page.must_be_form_about(SIGN_IN)
    back, at = ("".join(page.form.get(name, [])) for name in ("back", "at"))
    if at not in signing_in.places:
        raise NotFoundException
    try:
        gone = await signing_in.begin(at=at, back=back, switches="switch" in page.form)
    except Failed as error:
        return _failed(page, signing_in, error, back=back, at=at)
    return see_other(gone.url, cookies=[gone.cookie])


@get([CALLBACK_PATH, CALLBACK_PATH + "/{at:str}"])
async def signed_in(page: CurrentPage, at: FromPath[str] = "") -> Response[Any]:
    """Handle the issuer's response and start a session, on a GET because it is a redirect."""
    signing_in = _signing_in(page)
    if at not in signing_in.places:
        raise NotFoundException
    try:
        back = await signing_in.finish(page.callback_params(), page.cookies, at=at)
    except (Mixed, Denied, Failed) as error:
        return _failed(page, signing_in, error, back=signing_in.back_of(page.cookies), at=at)
    _log_session("person.signed_in", back.session, page.service)
    return see_other(back.path, cookies=back.cookies)


@post("/signout", status_code=HTTPStatus.OK)
async def sign_out(page: CurrentPage) -> Response[Any]:
    """End this browser's session, and every copy of its cookie."""
    page.must_be_form_about(SIGN_IN)
    service, server = page.service, page.answers.server
    session = await service.identity.sessions.of(page.cookies)
    cleared = await service.identity.sessions.end(session)
    if session is not None:
        _log_session("person.signed_out", session, service)
    signing_in = service.identity.signing_in
    if signing_in is None:
        return page.answers.page(SignedOut(server=server, issuer=None), cookies=[cleared])
    known = None if session is None else signing_in.label_of(session.issuer)
    view = SignedOut(server=server, issuer=known or signing_in.places[""].label)
    ends = None if session is None else await signing_in.end_session(session)
    if ends is None:
        return page.answers.page(view, cookies=[cleared])
    view = replace(view, end_url=ends.url, end_fields=ends.fields)
    targets = signing_in.form_targets
    return page.answers.page(view, form_targets=targets, cookies=[cleared, ends.cookie])


@get(SIGNED_OUT_PATH)
async def signed_out(page: CurrentPage) -> Response[Any]:
    """Show that the session has ended, here and at the issuer that redirected the browser."""
    signing_in, sessions = _signing_in(page), page.service.identity.sessions
    has_ended = signing_in.has_ended(page.callback_params(), page.cookies)
    if not has_ended or await sessions.of(page.cookies) is not None:
        return see_other("/")
    view = SignedOut(server=page.answers.server, issuer=None)
    return page.answers.page(view, cookies=[sessions.clear_sign_in_cookie()])


@post(
    [LOGOUT_PATH, LOGOUT_PATH + "/{at:str}"],
    status_code=HTTPStatus.OK,
    request_max_body_size=LOGOUT_BYTES_AT_MOST,
)
async def end_sessions(
    body: RawBody, service: NamedDependency[Service], at: FromPath[str] = ""
) -> Response[Any]:
    """End the sessions that an issuer reports as ended (Back-Channel Logout 1.0, 2.8)."""
    signing_in = service.identity.signing_in
    if signing_in is None or at not in signing_in.places:
        raise NotFoundException
    try:
        await signing_in.receive_logout(_logout_token(body), at=at)
    except (BadBearer, Failed, StoreUnavailable) as error:
        why = error.reason if isinstance(error, BadBearer) else str(error)
        expected = getattr(error, "expected", None)
        _log.warning("signout.refused", extra={"at": at, "why": why, "expected": expected})
        is_bad_token = isinstance(error, BadBearer)
        problem = {
            "error": "invalid_request" if is_bad_token else "temporarily_unavailable",
            "error_description": _NO_LOGOUT_TOKEN if is_bad_token else _NOT_LOGGED_OUT,
        }
        return Response(problem, status_code=HTTPStatus.BAD_REQUEST, headers=_NOT_STORED)
    _log.info("signout.received", extra={"at": at})
    return Response(b"", status_code=HTTPStatus.OK, headers=_NOT_STORED)


def _logout_token(body: bytes) -> str:
    """Return the only logout token in a form. Raises BadBearer."""
    try:
        fields = parse_qs(body.decode("ascii"), max_num_fields=_FIELDS_AT_MOST)
    except ValueError:
        fields = {}
    tokens = fields.get("logout_token", [])
    if len(tokens) != 1:
        raise BadBearer("no token", expected="a form with one logout_token")
    return tokens[0]


@route("/pair/{token:str}", http_method=READ)
async def offer_pairing(page: CurrentPage, token: FromPath[str]) -> Response[Any]:
    """Ask the operator to confirm that the operator uses this browser."""
    if not await page.service.identity.pairing.can_use(token):
        return _pair_used(page)
    view = Pair(server=page.answers.server, action=f"/pair/{token}", csrf=page.csrf(PAIR))
    return page.answers.page(view, cookies=page.new_cookies)


@post("/pair/{token:str}", status_code=HTTPStatus.OK)
async def pair(page: CurrentPage, token: FromPath[str]) -> Response[Any]:
    """Pair this browser with the operator. The address works once."""
    page.must_be_form_about(PAIR)
    try:
        paired = await page.service.identity.pairing.use(token)
    except InvalidToken:
        return _pair_used(page)
    sessions = page.service.identity.sessions
    session = await sessions.start(paired, cookies=page.cookies)
    _log_session("browser.paired", session, page.service)
    view = Paired(server=page.answers.server)
    return page.answers.page(view, cookies=[sessions.set_cookie(session)])


def _pair_used(page: PageRequest) -> Response[Any]:
    return page.answers.page(PairUsed(server=page.answers.server), status=HTTPStatus.GONE)


def _log_session(event: str, session: BrowserSession, service: Service) -> None:
    """Log the event without the person's name. The person's question ids start with `owner`."""
    owner = service.elicitations.owners.tag(issuer=session.issuer, subject=session.subject)
    _log.info(event, extra={"owner": owner})


def _signing_in(page: PageRequest) -> SigningIn:
    if page.service.identity.signing_in is None:
        raise NotFoundException
    return page.service.identity.signing_in


def _why(error: Mixed | Denied | Failed, fix: str | None) -> tuple[SignInFault, HTTPStatus]:
    match error:
        case Mixed():
            return "mixed", HTTPStatus.BAD_REQUEST
        case Denied():
            return "refused", HTTPStatus.FORBIDDEN
        case Unnamed():
            return "unnamed", HTTPStatus.BAD_GATEWAY
        case _:
            return "trouble" if fix is None else "not set up", HTTPStatus.BAD_GATEWAY


def _failed(
    page: PageRequest, signing_in: SigningIn, error: Mixed | Denied | Failed, *, back: str, at: str
) -> Response[Any]:
    error_id = None if isinstance(error, Denied) else secrets.token_hex(6)
    place = signing_in.places[at]
    # If the metadata or the keys could not be fetched, `__cause__` is the issuer's own error.
    first = error.__cause__ if isinstance(error.__cause__, Failed) else error
    reason = error.reason if isinstance(error, Mixed) else getattr(first, "why", str(first))
    fix = fix_of(first, place.registration)
    about = {"error_id": error_id, "why": reason} | ({} if fix is None else {"fix": fix})
    _log.warning("signin.failed", extra=about)
    why, status = _why(error, fix)
    view = SignInFailed(
        server=page.answers.server,
        issuer=place.label,
        why=why,
        error_id=error_id,
        sign_in=sign_in_button(page, back=back),
    )
    cookies = page.new_cookies
    if not isinstance(error, Mixed):
        # The sign-in has ended, so its cookie is deleted. Mixed means that the response was not for
        # this sign-in, which may still succeed.
        cookies += (page.service.identity.sessions.clear_sign_in_cookie(),)
    targets = signing_in.form_targets
    return page.answers.page(view, status=status, form_targets=targets, cookies=cookies)
