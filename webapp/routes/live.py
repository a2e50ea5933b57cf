"""Live status of a link by server-sent events, so that the waiting page moves on by itself."""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from http import HTTPStatus
from typing import Any

from litestar import Request, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath
from litestar.response import Stream

from flows.elicitation import Elicitation
from webapp.requests import cookies_of
from webapp.routes.answers import problem
from webapp.routes.links import elicitation_of
from webapp.routes.openers import pace, unconfirmed
from webapp.service import Service

PING_EVERY = timedelta(seconds=15)


@get("/e/{token:str}/live")
async def live(
    request: Request[Any, Any, Any], token: FromPath[str], service: NamedDependency[Service]
) -> Response[Any]:
    """The status, now and at each change, until it is final."""
    elicitation = await elicitation_of(token, service)
    opening = await service.identity.opening(elicitation, request.scope, cookies_of(request))
    pace(elicitation, request, service, is_open=opening.is_open)

    async def may_see(current: Elicitation) -> bool:
        if service.identity.is_shown_letters(current, cookies_of(request)):
            return True
        return (await service.identity.opening(current, request.scope, cookies_of(request))).is_open

    if not await may_see(elicitation):
        return problem(HTTPStatus.FORBIDDEN, detail="This link belongs to someone else.")
    return Stream(
        _statuses(elicitation, service, may_see),
        media_type="text/event-stream",
        headers={"cache-control": "no-store", "x-accel-buffering": "no"},
    )


async def _statuses(
    elicitation: Elicitation, service: Service, may_see: Callable[[Elicitation], Awaitable[bool]]
) -> AsyncIterator[str]:
    elicitations = service.elicitations
    with elicitations.waiters.waiter(elicitation.id, sees_all=True) as waiter:
        current = await elicitations.get(elicitation.id)
        while current is not None and await may_see(current):  # or signed out meanwhile
            yield f"data: {_status(current)}\n\n"
            if current.status.is_final:
                return
            changes = await waiter.changes(until=service.clock() + PING_EVERY, now=service.clock())
            if not changes:
                yield ": ping\n\n"
            current = await elicitations.newest(current, changes)


def _status(current: Elicitation) -> str:
    if current.status.is_final:
        return current.status
    if current.binding is not None and current.binding.confirmed_at is None:
        return unconfirmed(current.binding)
    return current.progress or current.status
