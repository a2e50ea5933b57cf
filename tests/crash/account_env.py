"""The environment of crash tests for accounts, payments and secrets.

The test process starts the server and the provider's sandbox, kills the server, and acts as a
customer.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
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
    """A person with one browser, at our pages and at the provider's."""

    def __init__(self, browser: httpx.AsyncClient) -> None:
        self._browser = browser

    async def page(self, url: str) -> Page:
        """Return the page after all redirects."""
        reply = await self._browser.get(url, follow_redirects=True)
        assert reply.status_code == 200, reply.text
        return Page(reply.text)

    async def text(self, url: str) -> str:
        reply = await self._browser.get(url)
        assert reply.status_code == 200, reply.text
        return reply.text

    async def go(self, url: str) -> None:
        """Open the address and ignore the response."""
        await self._browser.get(url)

    async def press(self, url: str, **answers: str) -> str:
        """Press the first button of the page, and return the address of the redirect."""
        reply = await self._browser.get(url)
        assert reply.status_code == 200, reply.text
        form = Page(reply.text).forms[0]
        filled = form.fields | {name: answers.get("typed", "") for name in form.asks}
        sent = await self._browser.post(urljoin(url, form.action), data=filled)
        assert sent.status_code == 303, sent.text
        return urljoin(url, sent.headers["location"])

    async def to_provider(self, link: str) -> str:
        """Press Continue, and return the address of the provider's page."""
        there = await self.press(link)
        assert urlsplit(there).netloc != urlsplit(link).netloc, there
        return there

    async def come_back(self, url: str) -> str:
        """Follow the provider's redirect to our page, and return the page's heading."""
        return (await self.page(url)).heading

    async def walk(self, link: str) -> str:
        """Take all steps to connect an account or to pay. Return the heading of the last page."""
        return await self.come_back(await self.press(await self.to_provider(link)))


@dataclass(slots=True, kw_only=True)
class AccountEnv:
    """A store and a port for all restarts of the server, and the sandbox."""

    process_pool: ProcessPool
    folder: Path
    port: int
    sandbox: Sandbox
    store: Store
    outside: httpx.AsyncClient
    address: str = ""  # the store's address, or empty for a file in the folder

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
        """Wait until a record has this status. A sweep can end before the server serves."""
        await self._wait(kind, lambda statuses: status in statuses)

    async def come_to(self, kind: str, *statuses: str) -> None:
        """Wait for exactly these statuses. They can be stored after the result was sent."""
        await self._wait(kind, lambda found: sorted(found) == sorted(statuses))

    async def none_is(self, status: str, kind: str = "elicitation") -> None:
        """Wait until no record has this status."""
        await self._wait(kind, lambda statuses: status not in statuses)

    async def _wait(self, kind: str, are_right: Callable[[list[str]], bool]) -> None:
        changes = self.store.watch()  # before the first read, so that no change is missed
        async with asyncio.timeout(300):
            while not are_right(await self.statuses(kind)):
                await anext(changes)

    @property
    def work(self) -> list[str]:
        """The idempotency keys of the completed work, in order."""
        path = self.folder / "work"
        return path.read_text().splitlines() if path.exists() else []

    def is_served_once(self, result: str) -> bool:
        return len(self.work) == 1 and result.endswith(f" under {self.work[0]}")

    async def asked(self, what: str) -> list[Mapping[str, str]]:
        """Return the requests of this kind that the provider received, such as `POST /path`."""
        noted = (await self.outside.get("/asked")).json()
        return [one for one in noted if one["what"] == what]

    async def withhold(self, path: str) -> None:
        """Withhold the reply to the next request to this path."""
        await self.outside.post("/withhold", params={"path": path})

    async def withheld(self) -> bytes:
        """Return the withheld reply, once its request was handled."""
        return (await self.outside.get("/withheld")).content

    async def lose_reply(self, server: Server, press: asyncio.Task[Any]) -> bytes:
        """Kill the server while it waits for the withheld reply, and return that reply."""
        reply = await self.withheld()
        server.kill()
        with suppress(httpx.TransportError):
            await press
        return reply

    async def control(self, **wishes: Any) -> None:
        """Set how webhooks are delivered."""
        key = {"authorization": f"Bearer {self.sandbox.stripe_key}"}
        reply = await self.outside.post("/stripe/control", json=wishes, headers=key)
        assert reply.status_code == 200, reply.text

    async def resend_webhooks(self) -> None:
        """Send all webhooks again, as a provider does without an acknowledgement."""
        await self.outside.post("/again")

    async def delivered(self) -> list[Any]:
        """Wait until no webhook is in flight. Return all, with `is_acknowledged` for each."""
        characters: list[Any] = json.loads((await self.outside.get("/delivered")).content)
        return characters

    async def refund(self, payment_intent: str, amount: int) -> None:
        """Refund a part of a payment, as the seller can at the provider's own pages."""
        words = {"payment_intent": payment_intent, "amount": str(amount)}
        key = {"authorization": f"Bearer {self.sandbox.stripe_key}"}
        reply = await self.outside.post(REFUNDS, data=words, headers=key)
        assert reply.status_code == 200, reply.text

    async def stripe(self, path: str, *, asked: Mapping[str, str] | None = None) -> Any:
        """Call the provider's API, or repeat an earlier request."""
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
    # Sockets that are bound but do not listen reserve the ports for all restarts.
    with bound("127.0.0.1") as reserved, bound("127.0.0.1") as other:
        port, its_port = reserved.getsockname()[1], other.getsockname()[1]
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
                # No keepalive: the server can close an idle connection just as it is used again.
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
