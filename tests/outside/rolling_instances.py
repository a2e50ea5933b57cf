"""Two instances behind nginx, restarted one by one while calls of every kind are in flight.

The sandbox runs outside of both, and its records show what was paid and sent.
"""

import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.hosts.instances import NAMES, instances
from tests.outside.in_flight import (
    FEW,
    MANY,
    SETTINGS,
    TOOLS,
    Served,
    cases_of,
    in_flight,
    is_paid_once,
)
from tests.support.cli import run
from tests.support.mcp_server import new_browser
from tests.support.serving import free_port, serving
from tests.support.shared_stores import STORES
from webapp.connecting import utc_now
from webapp.sandbox import Sandbox, new_sandbox
from webapp.sandbox.app import SandboxApp

FINDING = "a rolling restart behind nginx"
IS_LONG = True


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    for store in ("postgres", "valkey") if times > 1 else ("postgres",):
        async for case, is_right in _with(store, number=MANY if times > 1 else FEW):
            yield f"{store}, {case}", is_right


async def _with(store: str, *, number: int) -> AsyncIterator[tuple[str, bool]]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "rolling_tools.py").write_text(TOOLS)
        front = free_port()
        async with (
            STORES[store](home) as address,
            new_browser() as post,
            _books(front, post) as books,
            instances(
                home,
                store=address,
                server="rolling_tools:mcp",
                extra=SETTINGS,
                front=front,
                sandbox=books.sandbox,
            ) as both,
            both.served.person() as person,
        ):

            async def restart() -> None:
                for name in NAMES:
                    await both.restart(name)

            at = Served(
                url=both.served.url,
                sandbox=books.sandbox.url,
                headers=both.served.key,
                browser=person.browser,
            )
            texts = await in_flight(at, restart, number=number)
            for case in cases_of(texts, home=home):
                yield case
            yield "each webhook arrives in the end", books.sent == books.received
            bought = sum(kind == "buy" for kind, _, _ in texts)
            yield "by the provider's books as much is paid as was bought", len(books.paid) == bought
            listed = await run("payments", "list", "--json", home=home, extra=both.settings)
            yield "each payment is made and used once", is_paid_once(texts, json.loads(listed.out))


class _Books:
    """The sandbox, and its records: webhooks sent, webhooks received, sessions paid."""

    def __init__(self, sandbox: Sandbox, post: httpx.AsyncClient) -> None:
        self.sandbox = sandbox
        self.sent, self.received, self.paid = set[str](), set[str](), set[str]()
        self._post = post
        self.app = SandboxApp(sandbox, clock=utc_now, deliver=self._deliver)

    async def _deliver(self, request: httpx.Request) -> httpx.Response:
        event: dict[str, Any] = json.loads(request.content)
        self.sent.add(event["id"])
        if event["type"] == "checkout.session.completed":
            self.paid.add(event["data"]["object"]["id"])
        reply = await self._post.send(request)
        if reply.is_success:
            self.received.add(event["id"])
        return reply


@asynccontextmanager
async def _books(front: int, post: httpx.AsyncClient) -> AsyncIterator[_Books]:
    port = free_port()
    sandbox = new_sandbox(url=f"http://127.0.0.1:{port}", serves=f"http://127.0.0.1:{front}")
    books = _Books(sandbox, post)
    async with serving(books.app, port=port):
        yield books
