"""The pages of a person's own data, and the page that anonymous callers get for them.

The page of activity shows what a person was asked, and how it ended.
"""

import hashlib
import logging
import re
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from itertools import chain
from operator import itemgetter
from typing import Any, Final, Literal, Protocol, TypedDict, TypeVar
from urllib.parse import urlencode

from babel import Locale
from litestar import Response, get, route
from litestar.response import Stream

from flows.elicitation.states import Elicitation, Status
from flows.elicitation.traits import traits_of
from flows.errors import Unreadable
from flows.payments.session import terms_of
from webapp.http.parts import READ
from webapp.identity.identity import Viewer
from webapp.pages.builder_forms import question_of
from webapp.pages.views import Updates
from webapp.pages.views_forms import ActivityEntry, ActivityPage
from webapp.pages.views_openers import Closed, OwnPage, Paging, PersonsPage, SignInButton
from webapp.prices import price_in
from webapp.records.ids import OWNER_TAG_CHARACTERS, made_at
from webapp.routes.answers import problem
from webapp.routes.openers import (
    SIGN_IN,
    closed_page,
    sign_in_button,
    sign_in_targets,
    why_not_shown,
)
from webapp.routes.page_request import CurrentPage, PageRequest
from webapp.stores import Record

T = TypeVar("T")
PAGE_OF: Final = 20
PING_EVERY: Final = timedelta(seconds=15)
PAGE_NUMBER: Final = re.compile("[0-9]{1,6}")


class ListedRow(Protocol):
    """A row of a list."""

    @property
    def id(self) -> str: ...


class _About(TypedDict):
    server: str
    for_user: bool
    viewer: str
    sign_out_csrf: str | None
    sign_in: SignInButton | None
    now: datetime


async def known_viewer(
    page: PageRequest, *, of: PersonsPage, is_too_long_ago: bool = False
) -> Viewer:
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
    raise closed_page(page, view)


def viewer_fields(page: PageRequest, viewer: Viewer, *, back: str) -> _About:
    """Return the view fields about the viewer of a person's page. `back` is the page's path."""
    has_session = viewer.session is not None
    return {
        "server": page.answers.pages.brand.shown(page.answers.server),
        "for_user": viewer.is_user,
        "viewer": viewer.label,
        "sign_out_csrf": page.csrf(SIGN_IN) if has_session else None,
        "sign_in": None if has_session else sign_in_button(page, back=back),
        "now": page.now,
    }


def paged(
    page: PageRequest, items: Sequence[T], *, back: str, shows: Sequence[str] = ()
) -> tuple[Sequence[T], Paging]:
    """Return the part of a list that the query parameter `page` selects, and its paging links.

    `shows` are the names of the filters; the caller has applied the chosen one.
    """
    text, show = page.last("page"), page.last("show")
    last_page = max(1, -(-len(items) // PAGE_OF))
    number = min(max(1, int(text)), last_page) if PAGE_NUMBER.fullmatch(text) else 1
    show = show if show in shows else "all"

    def address(number: int, show: str) -> str:
        query = {
            **({} if show == "all" else {"show": show}),
            **({"page": number} if number > 1 else {}),
        }
        return f"{back}?{urlencode(query)}" if query else back

    start = (number - 1) * PAGE_OF
    part = items[start : start + PAGE_OF]
    paging = Paging(
        first=start + 1 if part else 0,
        last=start + len(part),
        total=len(items),
        newer=address(number - 1, show) if number > 1 else None,
        older=address(number + 1, show) if number < last_page else None,
        show=show,
        shows=tuple((name, address(1, name)) for name in shows),
    )
    return part, paging


def place_in(ids: Sequence[str], id: str, *, back: str, part: str = "") -> str:
    """Return the address of an entry, or of a part of it, in the list of all `ids`."""
    number = ids.index(id) // PAGE_OF + 1 if id in ids else 1
    page = back if number == 1 else f"{back}?page={number}"
    return f"{page}#{id[OWNER_TAG_CHARACTERS:]}{part}"


async def listed(page: PageRequest, viewer: Viewer, of: PersonsPage) -> Sequence[ListedRow]:
    """Return all rows of a list: those of every page, without a filter."""
    kinds, owner = page.service.kinds, viewer.owner
    if of == "connections":
        accounts = kinds.accounts.connections
        return await accounts.seen_by(owner, viewer.teams, server=page.answers.server)
    if of == "payments":
        return await kinds.payments.ledger.all(owner=owner)
    if of == "activity":
        return await page.service.elicitations.rows.sealed(Elicitation, owner=owner)
    approvals = await kinds.gates.approvals.all(owner=owner)
    waiting = [(await kinds.decisions.inbox(name))[0] for name in _inboxes(page, viewer)]
    return [*approvals, *chain.from_iterable(waiting)]


def _owners(page: PageRequest, viewer: Viewer, of: PersonsPage) -> list[str]:
    """Return the owners whose rows a list shows."""
    owner, accounts = viewer.owner, page.service.kinds.accounts.connections
    if of == "connections":
        return [owner, *(accounts.holder(owner, team) for team in accounts.teams)]
    if of == "inbox":
        ids = page.service.elicitations.rows.ids
        return [owner, *map(ids.approver, _inboxes(page, viewer))]
    return [owner]


def _inboxes(page: PageRequest, viewer: Viewer) -> Collection[str]:
    approvers = page.service.kinds.decisions.approvers
    person = approvers.deciding(viewer)
    return () if person is None else approvers.names_of(person)


# The part of a row whose change makes the list reload. The use of an account is not such a part:
# otherwise the page would reload, and lose what the person has ticked.
_CHANGES: Final[Mapping[PersonsPage, Callable[[Any], object]]] = {
    "connections": lambda a: (a.ended_at, a.lapsed_at, a.tools, a.only, a.is_active),
    "payments": lambda payment: payment.version,
    "activity": lambda asked: asked.status,
    "inbox": lambda _: None,
}


def _state(of: PersonsPage, found: Sequence[ListedRow]) -> str:
    """Return a hash that changes when the list changes."""
    facts = sorted(((one.id, _CHANGES[of](one)) for one in found), key=itemgetter(0))
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def updates(page: PageRequest, of: PersonsPage, found: Sequence[ListedRow]) -> Updates:
    """Return what a page needs to reload its list when these rows (from `listed`) change."""
    query = page.scope["query_string"].decode("latin-1")
    here = f"/{of}?{query}" if query else f"/{of}"
    return Updates(url=f"/{of}/live", here=here, status=_state(of, found))


async def own_page(page: PageRequest, view: OwnPage) -> Response[Any]:
    renewed = await page.service.identity.renewed_cookies(page.cookies)
    targets = sign_in_targets(page.service)
    return page.answers.page(view, form_targets=targets, cookies=(*page.new_cookies, *renewed))


@get(["/connections/live", "/payments/live", "/inbox/live", "/activity/live"])
async def live_list(page: CurrentPage) -> Response[Any]:
    """Send a hash of the viewer's list, now and at each change of the list."""
    of: PersonsPage = page.scope["path"].split("/")[-2]
    viewer = await page.viewer()
    if viewer is None:
        return problem(HTTPStatus.FORBIDDEN, detail="Sign in to see this list.")
    owners = _owners(page, viewer, of)
    return Stream(
        _changes(page, viewer.owner, of, owners),
        media_type="text/event-stream",
        headers={"cache-control": "no-store", "x-accel-buffering": "no"},
    )


async def _changes(
    page: PageRequest, owner: str, of: PersonsPage, owners: list[str]
) -> AsyncIterator[str]:
    service, last = page.service, ""
    with service.elicitations.waiters.waiter(*owners, sees_all=True) as waiter:
        # The viewer may have signed out in the meantime.
        while (viewer := await page.viewer()) is not None and viewer.owner == owner:
            status = _state(of, await listed(page, viewer, of))
            if status != last:
                yield f"data: {status}\n\n"
            last = status
            if service.is_draining:  # the browser reconnects
                return
            while not await waiter.changes(until=service.clock() + PING_EVERY, now=service.clock()):
                yield ": ping\n\n"


# The page of activity: what a person was asked, and how it ended.

HERE: Final = "/activity"
_NEVER: Final = datetime.min.replace(tzinfo=UTC)
# the logger has the same name as in earlier versions
_log = logging.getLogger("webapp.routes.activity")
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
async def activity(page: CurrentPage) -> Response[Any]:
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
        **viewer_fields(page, viewer, back=HERE),
        asked=tuple([entry for one in part if (entry := await _entry(page, one)) is not None]),
        paging=paging,
        updates=updates(page, "activity", found),
    )
    return await own_page(page, view)


async def _outcome(page: PageRequest, record: Record) -> _Outcome | None:
    """Return the outcome of a question. Decrypt the record only if it has not ended."""
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
    asked, now, kinds = elicitation.request, page.now, page.service.kinds
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
