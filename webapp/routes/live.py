"""The live status of a link by server-sent events, with which the waiting page updates itself."""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from http import HTTPStatus
from typing import Any

from litestar import Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath
from litestar.response import Stream

from flows.elicitation.run import Run
from flows.elicitation.states import Elicitation
from webapp.elicitations.retry import Erased
from webapp.elicitations.waiters import Changed
from webapp.pages.updates import State, state_of
from webapp.pages.views_openers import Theirs
from webapp.routes.answers import problem
from webapp.routes.links import elicitation_of
from webapp.routes.openers import pace, unconfirmed
from webapp.routes.own_pages import listed
from webapp.routes.page_request import PageRequest
from webapp.service import Service

PING_EVERY = timedelta(seconds=15)


@get("/e/{token:str}/live")
async def live(page: NamedDependency[PageRequest], token: FromPath[str]) -> Response[Any]:
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


@get(["/connections/live", "/payments/live", "/inbox/live"])
async def live_list(page: NamedDependency[PageRequest]) -> Response[Any]:
    """Send a text that changes with the viewer's list, now and at each change."""
    of: Theirs = page.scope["path"].split("/")[-2]
    viewer = await page.viewer()
    if viewer is None:
        return problem(HTTPStatus.FORBIDDEN, detail="Sign in to see this list.")
    owners, _ = await listed(page, viewer, of)
    return Stream(
        _changes(page, viewer.owner, of, owners),
        media_type="text/event-stream",
        headers={"cache-control": "no-store", "x-accel-buffering": "no"},
    )


async def _changes(
    page: PageRequest, owner: str, of: Theirs, owners: list[str]
) -> AsyncIterator[str]:
    service, last = page.service, ""
    with service.elicitations.waiters.waiter(*owners, sees_all=True) as waiter:
        # The viewer may have signed out in the meantime.
        while (viewer := await page.viewer()) is not None and viewer.owner == owner:
            _, status = await listed(page, viewer, of)
            if status != last:
                yield f"data: {status}\n\n"
            last = status
            if service.is_draining:  # the browser asks again
                return
            while not await waiter.changes(until=service.clock() + PING_EVERY, now=service.clock()):
                yield ": ping\n\n"


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
            if now.ends:  # the browser would ask again at once
                yield "event: end\ndata:\n\n"
                return
            if service.is_draining:  # the browser asks again
                return
            changes = await waiter.changes(until=service.clock() + PING_EVERY, now=service.clock())
            if not changes:
                yield ": ping\n\n"
            try:
                changed: list[Changed] = [one for one in changes if not isinstance(one, Run)]
                current = await elicitations.newest(current, changed)
            except Erased:  # the browser asks again and sees the erasure
                return
