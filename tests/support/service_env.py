"""A small environment for tests of the service: processes, tool calls and a manual clock."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from flows.crypto.tokens import Ring
from flows.elicitation.states import EXCHANGE_AT_MOST, Asked, Elicitation, Json, Status
from flows.elicitation.tool_call import DescribedTool, ToolCall
from tests.support.clock import Clock
from webapp.calls.call import Call, Presenter
from webapp.calls.presenter import PresentedQuestion
from webapp.elicitations.waiters import Waiter
from webapp.identity.identity import Caller
from webapp.service import Service, ServiceOptions, open_service
from webapp.settings.identity import IdentitySettings
from webapp.settings.quotas import PolicySettings
from webapp.settings.settings import Settings
from webapp.stores import Store

RING = Ring([b"a secret of the tests, 32 bytes!"])
URL = "http://127.0.0.1:8765"
HOLD = timedelta(seconds=30)
MINUTES = timedelta(minutes=5)


def plain_settings(**changes: Any) -> Settings:
    """Return settings for a server on this machine that does not poll payment providers."""
    plain: dict[str, Any] = {"url": URL, "ring": RING, "store": "memory:", "uid": 1000}
    return Settings(**{**plain, "asks": False, **changes})


@asynccontextmanager
async def process(
    store: Store,
    clock: Clock,
    *,
    ring: Ring = RING,
    policies: PolicySettings | None = None,
    who: IdentitySettings | None = None,
) -> AsyncIterator[Service]:
    """Run one process on the store."""
    settings = plain_settings(
        ring=ring,
        policies=policies or PolicySettings(),
        identity=who or IdentitySettings(),
    )
    async with open_service(settings, ServiceOptions(clock=clock), store=store) as service:
        yield service


def question_in_store(
    service: Service,
    *,
    subject: str = "alice",
    issuer: str = "tests",
    join: str = "a question",
    kind: str = "url",
    waiter: str | None = None,
    timeout: timedelta = MINUTES,
    terms: Json = None,
) -> Elicitation:
    """Return an elicitation that is not stored yet."""
    owner = service.elicitations.owners.tag(issuer=issuer, subject=subject)
    now = service.clock()
    asked = Asked(
        server="s",
        tool="t",
        client="c",
        message="Please go there.",
        digest="d",
        url="https://example.com/",
        origins=("https://example.com",),
        terms=terms,
    )
    return Elicitation(
        id=service.elicitations.new_id(owner),
        owner=owner,
        kind=kind,
        request=asked,
        dedupe_key=join,
        created_at=now,
        expires_at=now + timeout,
        waiter=waiter,
    )


async def asked(service: Service, **about: object) -> Elicitation:
    """Store an elicitation and return the stored copy."""
    fresh = question_in_store(service, **about)  # type: ignore[arg-type]  # passed on as they are
    await service.elicitations.write(fresh)
    stored = await service.elicitations.get(fresh.id)
    assert stored is not None
    return stored


@dataclass
class Holding(Presenter):
    """A presenter that shows nothing and waits until the elicitation ends or expires."""

    holds: str | None = None
    shown: PresentedQuestion | None = None

    def can(self, mode: str) -> bool:
        return mode == "url"

    def limit(self, kind: str, *, now: datetime, timeout: timedelta) -> datetime:
        return now + timeout

    def busy(self) -> object:
        return "busy"

    async def wait(
        self, call: Call, shown: PresentedQuestion, waiter: Waiter
    ) -> Elicitation | None:
        self.shown = shown
        self.holds = shown.elicitation.id
        try:
            current = shown.elicitation
            until = current.expires_at
            while True:
                current = await call.hold(current, waiter, until=until)
                if current.status is not Status.EXCHANGING or not call.is_waiting_for(current):
                    return current
                until = (
                    call.clock() + EXCHANGE_AT_MOST
                )  # an exchange that began in time may end later
        finally:
            self.holds = None


def call_of(
    service: Service,
    *,
    presenter: Holding | None = None,
    subject: str = "alice",
    owner: str | None = None,
    server: str = "s",
    tool: str = "t",
    arguments: object = None,
    run_id: str | None = None,
    client: str = "c",
    client_id: str | None = None,
    version: str | None = None,
    teams: tuple[str, ...] = (),
    teams_until: datetime | None = None,
    title: str | None = None,
    client_title: str | None = None,
) -> Call:
    """Return one request of a tool call. `title` is the title of the tool."""
    return Call(
        service,
        Caller(
            owner=owner or service.elicitations.owners.tag(issuer="tests", subject=subject),
            client=client_id or client,
            is_client_verified=client_id is not None,
            name=subject,
            teams=teams,
            teams_until=teams_until,
        ),
        ToolCall(
            server=server,
            tool=tool,
            client=client,
            arguments=json.dumps(arguments),
            version=version,
            client_id=client_id,
            client_title=client_title,
            described=None if title is None else DescribedTool(name=tool, title=title),
        ),
        presenter=presenter or Holding(),
        run_id=run_id,
    )
