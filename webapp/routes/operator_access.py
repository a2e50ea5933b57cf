"""The access to the pages for operators, and the one-time link for the operator's own machine.

Risks: a person who is no operator learns that the pages exist. So that person gets the page for
unknown addresses. Another risk is a link scanner that opens the link. So the link has an effect
only after a press of a button.
"""

import logging
from http import HTTPStatus
from typing import Any, Final

from litestar import Response, post, route
from litestar.exceptions import NotFoundException
from litestar.params import FromPath

from flows.errors import InvalidToken
from webapp.http.parts import READ
from webapp.identity.operators import ENTRY, OperatorAccess, OperatorDecision
from webapp.operations.catalog import LISTS
from webapp.pages.views_openers import Closed, PairUsed
from webapp.pages.views_operator import OperatorEnter
from webapp.routes.answers import see_other
from webapp.routes.openers import closed_page, sign_in_button
from webapp.routes.page_request import CurrentPage, PageRequest

HERE: Final = "/operator"
SEARCH: Final = "operator search"  # the subject of the CSRF field of the search form
_ENTER: Final = "enter operator"  # the subject of the CSRF field of the one-time link's form
_TABS: Final = tuple((name, kind.label) for name, kind in LISTS.items())
_log = logging.getLogger(__name__)


@route([ENTRY + "/{token:str}"], http_method=READ)
async def offer_operator(page: CurrentPage, token: FromPath[str]) -> Response[Any]:
    """Show a page with a button. Opening the link has no effect, because scanners open links."""
    if not await page.service.operators.can_use(token, page.scope):
        return _link_used(page)
    csrf = page.csrf(_ENTER)
    view = OperatorEnter(server=page.answers.server, action=f"{ENTRY}/{token}", csrf=csrf)
    return page.answers.page(view, cookies=page.new_cookies)


@post([ENTRY + "/{token:str}"], status_code=HTTPStatus.SEE_OTHER)
async def enter_operator(page: CurrentPage, token: FromPath[str]) -> Response[Any]:
    """Give this browser access to the pages for operators. The link works once."""
    page.must_be_form_about(_ENTER)
    try:
        cookie = await page.service.operators.use(token, page.scope, cookie=page.cookie)
    except InvalidToken:
        return _link_used(page)
    _log.warning("operator.entered")
    return see_other(f"{HERE}/questions", cookies=[cookie])


async def known_operator(page: PageRequest) -> OperatorDecision:
    """Return the operator at this browser.

    Raises:
        NotFoundException: The viewer is no operator, or this server has no operators.
        NotShown: The viewer has to sign in, or has to open a one-time link.
    """
    operators = page.service.operators
    viewer = None if operators.can_link or not operators.is_on else await page.viewer()
    decision = operators.access(viewer, page.scope, page.cookies)
    if decision.access is OperatorAccess.OPEN:
        return decision
    if decision.access is OperatorAccess.HIDDEN:
        raise NotFoundException
    signs_in = decision.access is OperatorAccess.SIGN_IN
    view = Closed(
        server=page.answers.server,
        of="operator",
        why="Run `elicit operator` in a terminal of the computer that the server runs on, and open "
        "the address that it prints in this browser.",
        sign_in=sign_in_button(page, back=_here(page)) if signs_in else None,
    )
    raise closed_page(page, view)


def operator_page(page: PageRequest, view: Any, *, status: int = HTTPStatus.OK) -> Response[Any]:
    return page.answers.page(view, status=status, cookies=page.new_cookies)


def about_operator(
    page: PageRequest, operator: OperatorDecision, *, tab: str = "", sought: str = ""
) -> dict[str, Any]:
    return {
        "server": page.answers.server,
        "operator": operator.label,
        "now": page.now,
        "tab": tab,
        "tabs": _TABS,
        "sought": sought,
        "search_csrf": page.csrf(SEARCH),
    }


def _link_used(page: PageRequest) -> Response[Any]:
    if not page.service.operators.can_link:
        raise NotFoundException
    view = PairUsed(server=page.answers.server, command="elicit operator")
    return page.answers.page(view, status=HTTPStatus.GONE)


def _here(page: PageRequest) -> str:
    """Return the path to which the browser comes back after the sign-in."""
    if page.request.method != "GET":
        return HERE
    query = page.scope["query_string"].decode("latin-1")
    return f"{page.scope['path']}?{query}" if query else str(page.scope["path"])
