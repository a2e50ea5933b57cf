"""The live status of a link by server-sent events, with which the waiting page updates itself."""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from http import HTTPStatus
from typing import Any

from litestar import Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath
from litestar.response import Stream

from flows.elicitation.states import Elicitation
from flows.elicitation.user_code import Code
from webapp.elicitations.retry import Erased
from webapp.routes.answers import problem
from webapp.routes.links import elicitation_of
from webapp.routes.openers import pace, unconfirmed
from webapp.routes.page_request import PageRequest
from webapp.service import Service

PING_EVERY = timedelta(seconds=15)


@get("/e/{token:str}/live")
async def live(page: NamedDependency[PageRequest], token: FromPath[str]) -> Response[Any]:
    """Send the status, now and at each change, until it is final."""
    service, elicitation = page.service, await elicitation_of(page, token)
    decision = await page.access(elicitation)
    pace(elicitation, page.request, service, is_open=decision.is_open)

    async def status(current: Elicitation) -> str | None:
        """Return the status, or None if the viewer may not see the question (any more)."""
        code = service.identity.code(current, page.cookies)
        if code is None and not (await page.access(current)).is_open:
            return None
        return _status(current, code)

    if await status(elicitation) is None:
        return problem(HTTPStatus.FORBIDDEN, detail="This link belongs to someone else.")
    return Stream(
        _statuses(elicitation, service, status),
        media_type="text/event-stream",
        headers={"cache-control": "no-store", "x-accel-buffering": "no"},
    )


async def _statuses(
    elicitation: Elicitation,
    service: Service,
    status: Callable[[Elicitation], Awaitable[str | None]],
) -> AsyncIterator[str]:
    elicitations = service.elicitations
    with elicitations.waiters.waiter(elicitation.id, sees_all=True) as waiter:
        current, last = await elicitations.get(elicitation.id), ""
        # status() also returns None if the viewer signed out in the meantime
        while current is not None and (message := await status(current)):
            if message != last:  # not every change of the record changes the status
                yield f"data: {message}\n\n"
            last = message
            if current.status.is_final or service.is_draining:  # the browser asks again
                return
            changes = await waiter.changes(until=service.clock() + PING_EVERY, now=service.clock())
            if not changes:
                yield ": ping\n\n"
            try:
                current = await elicitations.newest(current, changes)
            except Erased:  # the browser asks again and sees the erasure
                return


def _status(current: Elicitation, code: Code | None) -> str:
    if current.status.is_final:
        return current.status
    if code is not None and current.binding is not None and current.binding.confirmed_at is None:
        return unconfirmed(code)
    return current.progress or current.status
