"""The service for benchmarks without HTTP, opened as the application opens it."""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from flows.crypto.tokens import Ring
from flows.elicitation.states import Asked, Elicitation
from flows.payments.stripe.gateway import StripeAccount
from webapp.deadline import Clock
from webapp.elicitations.service import Elicitations
from webapp.elicitations.watcher import listen
from webapp.service import Service, ServiceOptions, open_service
from webapp.settings.quotas import PolicySettings
from webapp.settings.settings import Settings
from webapp.stores import open_store
from webapp.telemetry.work import NONE, Telemetry


def utc_now() -> datetime:
    return datetime.now(UTC)


@asynccontextmanager
async def open_service_here(
    folder: Path,
    *,
    sellers: Mapping[str, StripeAccount] | None = None,
    address: str | None = None,
    secret: bytes | None = None,
    clock: Clock | None = None,
    telemetry: Telemetry = NONE,
    is_audited: bool = False,
) -> AsyncIterator[tuple[Service, str]]:
    """Open the service, which watches the writes of other processes. Return it with an owner.

    The store is at `address`, or in a file in the folder. Processes that share a store share
    `secret`.
    """
    store = await open_store(address or f"sqlite:///{folder / 'ours.db'}")
    try:
        async with open_service(
            Settings(
                url="http://127.0.0.1:8765",
                ring=Ring([secret or secrets.token_bytes(32)]),
                store="",
                uid=os.getuid(),
                sellers=sellers or {},
                asks=False,
                policies=PolicySettings(audit=is_audited),
            ),
            ServiceOptions(clock=clock or utc_now, telemetry=telemetry),
            store=store,
        ) as service:
            owner = service.identity.local_owner
            await service.elicitations.owners.locker(owner)
            listening = asyncio.create_task(listen(service.elicitations))
            try:
                yield service, owner
            finally:
                listening.cancel()
                await asyncio.wait({listening})
    finally:
        await store.aclose()


@asynccontextmanager
async def open_elicitations(
    folder: Path,
    *,
    address: str | None = None,
    secret: bytes | None = None,
    is_audited: bool = False,
) -> AsyncIterator[tuple[Elicitations, str]]:
    async with open_service_here(folder, address=address, secret=secret, is_audited=is_audited) as (
        service,
        owner,
    ):
        yield service.elicitations, owner


class PrefetchingRequest:
    """A request that has not ended and accepts prefetched answers."""

    has_ended = False

    def record_prefetch(self, settled: Elicitation) -> bool:
        return True


TAKER = PrefetchingRequest()


def fresh(owner: str, *, now: datetime, id: str | None = None) -> Elicitation:
    """Return a new question like those that `elicit.url` writes."""
    id = id or owner + secrets.token_urlsafe(18)
    return Elicitation(
        id=id,
        owner=owner,
        kind="url",
        request=Asked(
            server="shop",
            tool="buy",
            client="a client",
            message="Pay for a pound of tea",
            digest="0123456789abcdef" * 2,
            url=f"https://pay.example/session?id={id}",
            origins=("https://pay.example",),
        ),
        dedupe_key=id[len(owner) :],  # unique
        created_at=now,
        expires_at=now + timedelta(minutes=5),
        waiter="leg",
    )


async def sealed_bytes(elicitations: Elicitations, owner: str) -> int:
    """Return the size of a sealed record, so that the bare writer writes as much."""
    asked = fresh(owner, now=utc_now())
    await elicitations.write(asked)
    found = await elicitations.store.read(owner, "elicitation", asked.id)
    assert found is not None
    return len(found.sealed)
