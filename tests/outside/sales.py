"""Sales through the sandbox's Stripe by a served process, on SQLite and on PostgreSQL."""

import json
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.crash.account_env import SESSIONS, AccountEnv, Customer, open_customer, open_market
from tests.crash.shop_env import ProcessPool, Server
from tests.support import signing
from tests.support.shared_stores import STORES
from webapp.stores import open_store
from webapp.stores.moving import copy, fence_empty, open_whole

STORE_KINDS = ("sqlite", "postgres")
LEGACY = "legacy"


@dataclass(slots=True, kw_only=True)
class Sales:
    env: AccountEnv
    customer: Customer
    folder: Path

    async def charges(self) -> int:
        """Return the number of paid sessions that were not refunded."""
        reported = [one["event"]["data"]["object"] for one in await self.env.delivered()]
        refunds = (await self.env.stripe("/stripe/v1/refunds?limit=100"))["data"]
        paid = {one["payment_intent"] for one in reported if one.get("payment_status") == "paid"}
        return len(paid - {one["payment_intent"] for one in refunds})

    async def session(self, page: str) -> Any:
        return await self.env.stripe(f"{SESSIONS}/{urlsplit(page).path.rsplit('/', 1)[1]}")

    async def send_event(self, kind: str, about: dict[str, Any]) -> None:
        """Send an event as Stripe does."""
        event = {
            "id": f"evt_{kind.replace('.', '_')}",
            "object": "event",
            "type": kind,
            "created": int(time.time()),
            "livemode": False,
            "data": {"object": about},
        }
        body = json.dumps(event).encode()
        secret, url = self.env.sandbox.webhook_secret, self.env.sandbox.webhook_url
        headers = signing.stripe(body, secret=secret, now=datetime.now(UTC))
        reply = await self.env.outside.post(url, content=body, headers=headers)
        assert reply.status_code == 200, reply.text

    @asynccontextmanager
    async def copied(self, store: str) -> AsyncIterator[AccountEnv]:
        """Provide the environment on a copy of the store. Later writes do not reach the copy."""
        place = self.folder / "copied"
        place.mkdir()
        async with STORES[store](place) as address:
            target = await open_store(address)
            await fence_empty(target, "copied")
            await copy(self.env.store.scan, target, behind="copied")
            await open_whole(target, "copied")
            try:
                yield AccountEnv(
                    process_pool=self.env.process_pool,
                    folder=self.env.folder,
                    port=self.env.port,
                    sandbox=self.env.sandbox,
                    store=target,
                    outside=self.env.outside,
                    address=address,
                )
            finally:
                await target.aclose()


@asynccontextmanager
async def selling(process_pool: ProcessPool, store: str) -> AsyncIterator[tuple[Sales, Server]]:
    """Serve an environment that has no payments yet. `store` is the kind of its store."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with (
            STORES[store](folder) as address,
            open_market(process_pool, folder, address=address) as env,
            open_customer() as customer,
            env.start() as server,
        ):
            yield Sales(env=env, customer=customer, folder=folder), server
