"""The page of activity: what a person was asked, and how it ended. A GET changes nothing."""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal

from babel import Locale
from litestar import Response, route
from litestar.di import NamedDependency

from flows.elicitation.states import Elicitation, Status
from flows.elicitation.traits import traits_of
from flows.errors import Unreadable
from flows.payments.session import terms_of
from webapp.http.parts import READ
from webapp.pages.builder_forms import question_of
from webapp.pages.views_decisions import ActivityEntry, ActivityPage
from webapp.prices import price_in
from webapp.records.ids import made_at
from webapp.routes.own_pages import about, known_viewer, own_page, paged, updates
from webapp.routes.page_request import PageRequest
from webapp.stores import Record

HERE: Final = "/activity"
_NEVER: Final = datetime.min.replace(tzinfo=UTC)
_log = logging.getLogger(__name__)
_Outcome = Literal["waiting", "done", "declined", "expired", "failed", "cancelled"]
_OUTCOMES: Mapping[str, _Outcome] = {
    Status.ACCEPTED: "done",
    Status.DECLINED: "declined",
    Status.DENIED: "declined",
    Status.CANCELLED: "cancelled",
    Status.EXPIRED: "expired",
    Status.FAILED: "failed",
}


@route(HERE, http_method=READ)
async def activity(page: NamedDependency[PageRequest]) -> Response[Any]:
    """Show what the viewer was asked, the latest first."""
    viewer = await known_viewer(page, of="activity")
    found = await page.service.elicitations.rows.sealed(Elicitation, owner=viewer.owner)
    # A superseded question was asked again, so its next elicitation is in the list.
    asked = [one for one in found if one.status != Status.SUPERSEDED]
    asked.sort(key=lambda one: made_at(one.id) or _NEVER, reverse=True)
    show = page.last("show")
    shows = ("all", "waiting", "done", "declined", "expired", "failed", "cancelled")
    if show in shows[1:]:
        asked = [one for one in asked if await _outcome(page, one) == show]
    part, paging = paged(page, asked, back=HERE, shows=shows)
    view = ActivityPage(
        **about(page, viewer, back=HERE),
        asked=tuple([entry for one in part if (entry := await _entry(page, one)) is not None]),
        paging=paging,
        updates=updates(page, "activity", found),
    )
    return await own_page(page, view)


async def _outcome(page: PageRequest, record: Record) -> _Outcome | None:
    """Return the outcome of a question. Only a question that has not ended has to be opened."""
    if (outcome := _OUTCOMES.get(record.status)) is not None:
        return outcome
    entry = await _entry(page, record)
    return None if entry is None else entry.outcome


async def _entry(page: PageRequest, record: Record) -> ActivityEntry | None:
    """Return the entry of a question, or None if its record cannot be read."""
    try:
        asked = await page.service.elicitations.rows.open(record, Elicitation)
    except Unreadable:
        _log.exception("record.unreadable", extra={"kind": record.kind})
        return None
    return _asked(page, asked, page.answers.locale(page.request))


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
        tool_title=asked.tool_title,
        price=None if terms is None else price_in(locale, terms.price),
        provider=kinds.label(elicitation) if kind == "account" else None,
        client=asked.client,
        client_id=asked.client_id,
        client_title=asked.client_title,
        asked_at=elicitation.created_at,
        outcome=outcome,
        url=page.service.links.of(elicitation, now=now) if outcome == "waiting" else None,
    )
