"""The routes of deliveries: outgoing events, and the webhooks of payment providers.

Risks: a program's key reads events about the users of other programs. So the scope `operate` is
separate, and an event shows only the data that its receiver got.

Risks: a list shows a payer's address. So a list says only which delivery came and what its result
was; the body, which may name the payer, is returned only for a single id. A replay could apply a
payment twice, so it runs the same code as the delivery, which skips changes already made.
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
from webapp.api.paging import LISTED_AT_MOST, After, Limit, page_of
from webapp.api.representations import WebhookData, WebhookPage, WebhookState
from webapp.identity.api_keys import KeyScope
from webapp.records.ids import owner_of
from webapp.records.owners import SERVICE
from webapp.records.values import OutgoingEvent, StoredWebhook
from webapp.service import Service

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


_WORD_CHARACTERS: Final = 64


class NoSuchWebhook(ElicitError):
    """The delivery id is unknown, or the delivery has been erased."""

    name = "NO_SUCH_WEBHOOK"
    http_status = 404

    def __init__(self) -> None:
        super().__init__(
            "No delivery with this id exists, or it is no longer stored. GET /api/webhooks lists "
            "the stored ones."
        )


@get("/api/webhooks", guards=_OPERATORS)
async def list_webhooks(
    *,
    service: NamedDependency[Service],
    provider: Annotated[str | None, QueryParameter(max_length=_WORD_CHARACTERS)] = None,
    status: FromQuery[WebhookState | None] = None,
    after: After = None,
    limit: Limit = LISTED_AT_MOST,
) -> WebhookPage:
    """List the stored deliveries that were verified, without bodies. `after` gets the next page.

    The order is that of the store: by payer, then by time. The key needs the scope `operate`.
    """
    found, last = await page_of(
        service,
        StoredWebhook,
        owner=None,
        sees=lambda hook: provider in (None, hook.seller),
        status=status,
        after=after,
        limit=limit,
    )
    return WebhookPage(webhooks=[_to_webhook(hook) for hook in found], after=last)


@get("/api/webhooks/{webhook_id:str}", guards=_OPERATORS)
async def read_webhook(webhook_id: FromPath[str], service: NamedDependency[Service]) -> WebhookData:
    """Return a delivery. It includes the original body until the body is erased."""
    hook = await _hook(service, webhook_id)
    return _to_webhook(hook, body=hook.body)


@post("/api/webhooks/{webhook_id:str}/replay", guards=_OPERATORS, status_code=HTTPStatus.OK)
async def replay_webhook(
    webhook_id: FromPath[str], service: NamedDependency[Service]
) -> WebhookData:
    """Process a delivery again. Changes that the delivery already made are not repeated."""
    return _to_webhook(await service.webhooks.replay(await _hook(service, webhook_id)))


async def _hook(service: Service, id: str) -> StoredWebhook:
    owner = SERVICE if id.startswith(SERVICE) else owner_of(id)
    found = await service.elicitations.read(StoredWebhook, owner=owner, id=id)
    if found is None:
        raise NoSuchWebhook
    return found


def _to_webhook(hook: StoredWebhook, *, body: str | None = None) -> WebhookData:
    return WebhookData(
        id=hook.id,
        provider=hook.seller,
        event=hook.type or None,
        event_id=hook.event,
        question_id=hook.elicitation_id or None,
        status=WebhookState(hook.status),
        why=hook.why,
        received_at=hook.received_at,
        replayed_at=hook.replayed_at,
        erased_at=hook.erase_at,
        is_whole=hook.is_whole,
        body=body,
    )
