"""The page of activity: what a person was asked, and how it ended. A GET changes nothing."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from babel import Locale
from litestar import Response, get
from litestar.di import NamedDependency

from flows.elicitation.states import Elicitation, Status
from flows.elicitation.traits import traits_of
from flows.payments.session import terms_of
from webapp.pages.builder_forms import question_of
from webapp.pages.views_decisions import ActivityEntry, ActivityPage
from webapp.prices import price_in
from webapp.routes.own_pages import about, known_viewer, own_page, paged, updates
from webapp.routes.page_request import PageRequest

HERE: Final = "/activity"
_Outcome = Literal["waiting", "done", "declined", "expired", "failed", "cancelled"]
_OUTCOMES: Mapping[Status, _Outcome] = {
    Status.ACCEPTED: "done",
    Status.DECLINED: "declined",
    Status.DENIED: "declined",
    Status.CANCELLED: "cancelled",
    Status.EXPIRED: "expired",
    Status.FAILED: "failed",
}


@get(HERE)
async def activity(page: NamedDependency[PageRequest]) -> Response[Any]:
    """Show what the viewer was asked, the latest first."""
    viewer = await known_viewer(page, of="activity")
    found = await page.service.elicitations.all(
        Elicitation, owner=viewer.owner, skips_unreadable=True
    )
    # A superseded question was asked again, so its next elicitation is in the list.
    locale = page.answers.locale(page.request)
    asked = [_asked(page, one, locale) for one in found if one.status is not Status.SUPERSEDED]
    asked.sort(key=lambda one: one.asked_at, reverse=True)
    show = page.last("show")
    shows = ("all", "waiting", "done", "declined", "expired", "failed", "cancelled")
    chosen = [one for one in asked if show not in shows[1:] or one.outcome == show]
    part, paging = paged(page, chosen, back=HERE, shows=shows)
    facts = about(page, viewer, back=HERE)
    view = ActivityPage(
        **facts,
        asked=tuple(part),
        paging=paging,
        updates=await updates(page, viewer, "activity"),
    )
    return await own_page(page, view)


def _asked(page: PageRequest, elicitation: Elicitation, locale: Locale | None) -> ActivityEntry:
    asked, now, kinds = elicitation.asked, page.now, page.service.kinds
    kind = traits_of(elicitation.kind).page
    terms = terms_of(elicitation) if kind == "payment" else None
    has_expired = not elicitation.status.is_final and now >= elicitation.expires_at
    outcome = "expired" if has_expired else _OUTCOMES.get(elicitation.status, "waiting")
    return ActivityEntry(
        says=(question_of(elicitation) or asked.message) if terms is None else terms.what,
        tool=asked.tool,
        server=page.answers.pages.brand.shown(asked.server_title or asked.server),
        tool_title=None if asked.described is None else asked.described.title,
        price=None if terms is None else price_in(locale, terms.price),
        provider=kinds.label(elicitation) if kind == "account" else None,
        client=asked.client,
        client_id=asked.client_id,
        client_title=asked.client_title,
        asked_at=elicitation.created_at,
        outcome=outcome,
        url=page.service.links.of(elicitation, now=now) if outcome == "waiting" else None,
    )
