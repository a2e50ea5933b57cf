"""The pages of a person's own data, and the page that anonymous callers get for them."""

from datetime import datetime
from http import HTTPStatus
from typing import Any, TypedDict

from litestar import Response

from webapp.identity.identity import Viewer
from webapp.pages.views_openers import Closed, OwnPage, SignInButton, Theirs
from webapp.routes.answers import NotShown
from webapp.routes.openers import SIGN_IN, sign_in_button, sign_in_targets, why_not_shown
from webapp.routes.page_request import PageRequest


class _About(TypedDict):
    server: str
    for_user: bool
    viewer: str
    sign_out_csrf: str | None
    sign_in: SignInButton | None
    now: datetime


async def known_viewer(page: PageRequest, *, of: Theirs, is_too_long_ago: bool = False) -> Viewer:
    """Return the viewer of a person's own page. `of` names the page, and its path is /`of`.

    `is_too_long_ago`: the viewer's sign-in is too old for this page.

    Raises:
        NotShown: The viewer is not known, or signed in too long ago.
    """
    viewer = await page.viewer()
    if viewer is not None and not is_too_long_ago:
        return viewer
    view = Closed(
        server=page.answers.server,
        of=of,
        why=why_not_shown(page.service),
        sign_in=sign_in_button(page, back=f"/{of}"),
        by_code=page.service.identity.binds_by_code,
    )
    raise NotShown(
        page.answers.page(
            view,
            status=HTTPStatus.FORBIDDEN,
            form_targets=sign_in_targets(page.service),
            cookies=page.new_cookies,
        )
    )


def about(page: PageRequest, viewer: Viewer, *, back: str) -> _About:
    """Return the fields about the viewer for such a page. `back` is the page's own path."""
    has_session = viewer.session is not None
    return {
        "server": page.answers.pages.brand.shown(page.answers.server),
        "for_user": viewer.is_user,
        "viewer": viewer.label,
        "sign_out_csrf": page.csrf(SIGN_IN) if has_session else None,
        "sign_in": None if has_session else sign_in_button(page, back=back),
        "now": page.now,
    }


async def own_page(page: PageRequest, view: OwnPage) -> Response[Any]:
    kept_up = await page.service.identity.kept_up(page.cookies)
    targets = sign_in_targets(page.service)
    return page.answers.page(view, form_targets=targets, cookies=(*page.new_cookies, *kept_up))
