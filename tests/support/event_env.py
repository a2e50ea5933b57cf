"""A fake receiver of event webhooks, and processes that send events to it."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from flows.webhooks.signatures import STANDARD_WEBHOOKS, Delivery, verify
from tests.support.clock import Clock
from tests.support.service_env import asked, plain_settings
from webapp.events.addresses import EventAddress
from webapp.http.client import Outbound
from webapp.records.values import OutgoingEvent
from webapp.service import Service, ServiceOptions, open_service
from webapp.settings.quotas import PolicySettings
from webapp.stores import Store
from webapp.sweeper import fall_due
from webapp.telemetry.work import NONE, Telemetry

SECRET = "whsec_" + "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"
OTHER_SECRET = "whsec_" + "YWJjZGVmZ2hpamFiY2RlZmdoaWphYmNk"
CRM = EventAddress(name="crm", url="https://crm.example/hooks", secrets=(SECRET,))
DESK = EventAddress(name="desk", url="https://desk.example/in", secrets=(OTHER_SECRET,))
PUBLIC = "93.184.215.14"


@dataclass
class Receiver:
    """A receiver that returns the next of `answers`, or 204.

    If `is_down`, it refuses connections.
    """

    answers: list[httpx.Response | Exception] = field(default_factory=list)
    is_down: bool = False
    requests: list[httpx.Request] = field(default_factory=list)

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if self.is_down:
            raise httpx.ConnectError("down", request=request)
        self.requests.append(request)
        answer = self.answers.pop(0) if self.answers else httpx.Response(204)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def types(self) -> list[str]:
        return [json.loads(request.content)["type"] for request in self.requests]

    @property
    def ids(self) -> list[str]:
        return [request.headers["webhook-id"] for request in self.requests]

    def body_of(self, number: int = -1) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.requests[number].content)
        return body

    def about(self, host: str) -> list[str]:
        return [json.loads(each.content)["type"] for each in self.requests if each.url.host == host]


def verified(request: httpx.Request, *, secret: str, clock: Clock) -> Delivery:
    headers = [*request.headers.items()]
    return verify(
        STANDARD_WEBHOOKS, body=request.content, headers=headers, secrets=[secret], now=clock()
    )


@asynccontextmanager
async def outbound_to(receiver: Any, *, resolved: str = PUBLIC) -> AsyncIterator[Outbound]:
    """Provide an outbound HTTP client that sends every request to `receiver`."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        return [resolved]

    async with httpx.AsyncClient(transport=httpx.MockTransport(receiver)) as client:
        yield Outbound(client, allow_loopback=False, resolve=resolve)


@asynccontextmanager
async def serving_events(
    store: Store,
    clock: Clock,
    receiver: Any,
    *,
    addresses: Sequence[EventAddress] = (CRM,),
    policies: PolicySettings | None = None,
    resolved: str = PUBLIC,
    telemetry: Telemetry = NONE,
) -> AsyncIterator[Service]:
    """Run one process with events.

    The process sends events only when a test calls `round_of` or `send_all`.
    """
    async with (
        outbound_to(receiver, resolved=resolved) as outbound,
        open_service(
            plain_settings(policies=policies or PolicySettings(), events=tuple(addresses)),
            ServiceOptions(clock=clock, outbound=outbound, telemetry=telemetry),
            store=store,
        ) as service,
    ):
        service.events.send_from_here()
        yield service


async def round_of(service: Service) -> None:
    """Run the sweeper once, and send every event that is due."""
    await fall_due(service)
    await service.events.sender.send_all()


async def pass_time(service: Service, clock: Clock, **amount: float) -> None:
    clock.tick(**amount)
    await round_of(service)


async def events_of(service: Service) -> list[OutgoingEvent]:
    """Return all stored events in the order of the store."""
    return await service.elicitations.all(OutgoingEvent)


async def send_one(service: Service, **about: object) -> None:
    """Ask a question and send the event about it."""
    await asked(service, **about)
    await service.events.sender.send_all()
