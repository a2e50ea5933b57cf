"""The routes of outgoing events for operators: list the events that were sent, and resend one.

Risks: a program's key reads events about the users of other programs. So the scope `operate` is
separate, and an event shows only the data that its receiver got.
"""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from http import HTTPStatus
from typing import Annotated, Final

from litestar import get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, QueryParameter
from msgspec import Struct

from flows.errors import ElicitError
from webapp.api.access import requires
from webapp.identity.api_keys import KeyScope
from webapp.records.values import OutgoingEvent
from webapp.service import Service

LISTED_AT_MOST: Final = 100
_OPERATORS = [requires(KeyScope.OPERATE)]


class NoSuchEvent(ElicitError):
    """The event id is unknown, or the event has been erased."""

    name = "NO_SUCH_EVENT"
    http_status = 404

    def __init__(self) -> None:
        super().__init__(
            "No event with this id exists, or it is no longer stored: GET /api/events lists the "
            "stored events."
        )


class EventStatus(StrEnum):
    """The delivery status of an event."""

    WAITING = "waiting"
    SENT = "sent"
    GIVEN_UP = "given up"


class EventState(Struct, frozen=True, kw_only=True):
    """An event with the data that its receiver got; `id` is its `webhook-id`.

    `tries` is the number of delivery attempts. `why` is the reason why the last attempt failed.
    """

    id: str
    address: str
    type: str
    data: Mapping[str, str | bool]
    happened_at: datetime
    status: str
    tries: int
    why: str | None = None
    next_at: datetime | None = None
    sent_at: datetime | None = None


class EventPage(Struct, frozen=True, kw_only=True):
    """A page of events, grouped by question. Pass `after` to get the next page."""

    events: list[EventState]
    after: str | None


@get("/api/events", guards=_OPERATORS)
async def list_events(
    *,
    service: NamedDependency[Service],
    address: Annotated[str | None, QueryParameter(pattern="^[a-z0-9_]{1,32}$")] = None,
    status: FromQuery[EventStatus | None] = None,
    after: Annotated[str | None, QueryParameter(pattern=r"^[A-Za-z0-9_.~=-]{1,200}$")] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=LISTED_AT_MOST)] = LISTED_AT_MOST,
) -> EventPage:
    """List sent and waiting events. Pass the `after` of a page to get the next page.

    A short page can still have more pages after it.
    """
    found, last = await service.events.page(
        after=after, address=address, status=status, limit=limit
    )
    return EventPage(events=[*map(_to_event, found)], after=last)


@post("/api/events/{event_id:str}/replay", guards=_OPERATORS, status_code=HTTPStatus.ACCEPTED)
async def replay_event(event_id: FromPath[str], service: NamedDependency[Service]) -> EventState:
    """Send an event again, with the same id."""
    event = await service.events.replay(event_id)
    if event is None:
        raise NoSuchEvent
    return _to_event(event)


def _to_event(event: OutgoingEvent) -> EventState:
    return EventState(
        id=event.webhook_id,
        address=event.address,
        type=event.type,
        data=event.facts,
        happened_at=event.happened_at,
        status=event.status,
        tries=event.tries,
        why=event.why,
        next_at=event.due_at,
        sent_at=event.sent_at,
    )
