"""The parent's side for accounts, payments and secrets: a stand, its provider, and a customer."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx

from tests.crash.account_server import AccountOrders
from tests.crash.server import settings_of
from tests.crash.shop_env import ProcessPool, Server, no_certificates
from tests.support.serving import bound
from webapp.demo.walker import Page
from webapp.sandbox.settings import Sandbox, new_sandbox
from webapp.stores import Record, Store, open_store

TOKEN = "/github/login/oauth/access_token"
SESSIONS = "/stripe/v1/checkout/sessions"
REFUNDS = "/stripe/v1/refunds"


class Customer:
    """Somebody with one browser, at our pages and at the provider's."""

    def __init__(self, browser: httpx.AsyncClient) -> None:
        self._browser = browser

    async def page(self, url: str) -> Page:
        """What stands at the end of the redirects."""
        reply = await self._browser.get(url, follow_redirects=True)
        assert reply.status_code == 200, reply.text
        return Page(reply.text)

    async def text(self, url: str) -> str:
        reply = await self._browser.get(url)
        assert reply.status_code == 200, reply.text
        return reply.text

    async def go(self, url: str) -> None:
        """Open it, whatever comes of that."""
        await self._browser.get(url)

    async def press(self, url: str, **answers: str) -> str:
        """Press the first button of the page there; where it leads."""
        reply = await self._browser.get(url)
        assert reply.status_code == 200, reply.text
        form = Page(reply.text).forms[0]
        filled = form.fields | {name: answers.get("typed", "") for name in form.asks}
        sent = await self._browser.post(urljoin(url, form.action), data=filled)
        assert sent.status_code == 303, sent.text
        return urljoin(url, sent.headers["location"])

    async def to_provider(self, link: str) -> str:
        """Press Continue; the provider's page."""
        there = await self.press(link)
        assert urlsplit(there).netloc != urlsplit(link).netloc, there
        return there

    async def come_back(self, url: str) -> str:
        """Follow the provider's way back to our page; its heading."""
        return (await self.page(url)).heading

    async def walk(self, link: str) -> str:
        """Connect or pay, the whole way; the heading at its end."""
        return await self.come_back(await self.press(await self.to_provider(link)))


@dataclass(slots=True, kw_only=True)
class AccountEnv:
    """One store and one port through all the lives of the server, and the sandbox beside it."""

    process_pool: ProcessPool
    folder: Path
    port: int
    sandbox: Sandbox
    store: Store
    outside: httpx.AsyncClient
    address: str = ""  # of the store, where it is no file in the folder

    def start(
        self,
        *,
        die: str | None = None,
        later: int = 0,
        flying: int = 0,
        reads: str = "",
        waits_to_sweep: bool = False,
        key: str = "",
    ) -> Server:
        return self.process_pool.start(
            AccountOrders(
                port=self.port,
                public_port=self.port,
                folder=str(self.folder),
                die=die,
                later=later,
                flying=flying,
                reads=reads,
                waits_to_sweep=waits_to_sweep,
                sandbox=asdict(self.sandbox),
                store=self.address,
                key=key,
            )
        )

    async def records(self, kind: str) -> list[Record]:
        return list(await self.store.list(kind, limit=100_000))

    async def statuses(self, kind: str = "elicitation") -> list[str]:
        return [record.status for record in await self.records(kind)]

    async def until(self, status: str, kind: str = "elicitation") -> None:
        """Wait until something stands so; the server's first sweep may be over before it serves."""
        async with asyncio.timeout(300):
            while status not in await self.statuses(kind):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0)

    async def come_to(self, kind: str, *statuses: str) -> None:
        """Wait until there are just these: a result is noted as delivered after it went out."""
        async with asyncio.timeout(300):
            while sorted(await self.statuses(kind)) != sorted(statuses):  # noqa: ASYNC110
                await asyncio.sleep(0)

    async def none_is(self, status: str, kind: str = "elicitation") -> None:
        """Wait until nothing stands so any more."""
        async with asyncio.timeout(300):
            while status in await self.statuses(kind):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0)

    @property
    def work(self) -> list[str]:
        """The idempotency keys of what was done, in order."""
        path = self.folder / "work"
        return path.read_text().splitlines() if path.exists() else []

    def is_served_once(self, result: str) -> bool:
        return len(self.work) == 1 and result.endswith(f" under {self.work[0]}")

    async def asked(self, what: str) -> list[Mapping[str, str]]:
        """What the provider was asked of that sort, as `POST /path`."""
        noted = (await self.outside.get("/asked")).json()
        return [one for one in noted if one["what"] == what]

    async def withhold(self, path: str) -> None:
        """Keep the reply to the next request there."""
        await self.outside.post("/withhold", params={"path": path})

    async def withheld(self) -> bytes:
        """The reply that was kept, once its request was carried out."""
        return (await self.outside.get("/withheld")).content

    async def lose_reply(self, server: Server, press: asyncio.Task[Any]) -> bytes:
        """Kill the server while it waits for the withheld reply, which is returned."""
        reply = await self.withheld()
        server.kill()
        with suppress(httpx.TransportError):
            await press
        return reply

    async def control(self, **wishes: Any) -> None:
        """Say how webhooks arrive."""
        key = {"authorization": f"Bearer {self.sandbox.stripe_key}"}
        reply = await self.outside.post("/stripe/control", json=wishes, headers=key)
        assert reply.status_code == 200, reply.text

    async def bring_again(self) -> None:
        """Send all webhooks again, as a provider does with those that were not answered."""
        await self.outside.post("/again")

    async def carried(self) -> list[Any]:
        """All webhooks there were, and which were acknowledged, once none is on its way."""
        letters: list[Any] = json.loads((await self.outside.get("/carried")).content)
        return letters

    async def refund(self, payment_intent: str, amount: int) -> None:
        """A part of it, as the seller may at the provider's own pages."""
        words = {"payment_intent": payment_intent, "amount": str(amount)}
        key = {"authorization": f"Bearer {self.sandbox.stripe_key}"}
        reply = await self.outside.post(REFUNDS, data=words, headers=key)
        assert reply.status_code == 200, reply.text

    async def stripe(self, path: str, *, asked: Mapping[str, str] | None = None) -> Any:
        """Call the provider's API, or send once more what it was asked."""
        headers = {"authorization": f"Bearer {self.sandbox.stripe_key}"}
        if asked is None:
            reply = await self.outside.get(path, headers=headers)
        else:
            headers |= {
                "idempotency-key": asked["key"],
                "content-type": "application/x-www-form-urlencoded",
            }
            reply = await self.outside.post(path, content=asked["body"], headers=headers)
        assert reply.status_code == 200, reply.text
        return json.loads(reply.content)


@asynccontextmanager
async def open_market(
    process_pool: ProcessPool, folder: Path, *, address: str = ""
) -> AsyncIterator[AccountEnv]:
    # Sockets that are bound and do not listen keep the ports for all the lives.
    with bound("127.0.0.1") as reserved, bound("127.0.0.1") as beside:
        port, its_port = reserved.getsockname()[1], beside.getsockname()[1]
        serves = f"http://127.0.0.1:{port}"
        sandbox = new_sandbox(url=f"http://127.0.0.1:{its_port}", serves=serves)
        orders = AccountOrders(
            port=its_port,
            public_port=its_port,
            folder=str(folder),
            sandbox=asdict(sandbox),
            is_sandbox=True,
        )
        settings = settings_of(public_port=port, folder=str(folder), store=address)
        store = await open_store(settings.store)
        try:
            async with (
                process_pool.start(orders),
                # A connection that stood idle may end just as it is used again.
                httpx.AsyncClient(
                    base_url=sandbox.url,
                    verify=no_certificates(),
                    timeout=300,
                    limits=httpx.Limits(max_keepalive_connections=0),
                ) as outside,
            ):
                yield AccountEnv(
                    process_pool=process_pool,
                    folder=folder,
                    port=port,
                    sandbox=sandbox,
                    store=store,
                    outside=outside,
                    address=address,
                )
        finally:
            await store.aclose()


@asynccontextmanager
async def open_customer() -> AsyncIterator[Customer]:
    async with httpx.AsyncClient(verify=no_certificates(), timeout=300) as browser:
        yield Customer(browser)
