"""A page shows an error number: the log and `elicit show` lead to cause, question and payment.

docs/how-to/monitoring.md describes the same steps. They run on each store.
"""

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from mcp import Client
from standardwebhooks import Webhook
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.cli import PROJECT, Server, called, serving
from tests.support.mcp_server import Person, link_in, new_browser, text_of
from tests.support.postgres_server import fresh_database
from tests.support.processes import error_of
from tests.support.serving import serving as serving_app

FINDING = "XV5"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
TOOLS = """
from flows import Money, elicit
from mcp.server.mcpserver import MCPServer

mcp = MCPServer("tools")


@mcp.tool()
async def buy() -> str:
    receipt = await elicit.payment(Money("9.00", "EUR"), "Report", provider="acme")
    return f"paid {receipt.price}"
"""
# The lines of the timeline, in order.
HAPPENED = (
    "asked: payment",
    "Continue pressed (2)",
    "paid 9.00 EUR",
    "webhook checkout.updated applied",
    "accepted",
    "result delivered",
)


class Acme:
    """A payment provider that is down until a test starts it."""

    def __init__(self) -> None:
        self.is_down = True
        self.checkout: dict[str, Any] = {}
        self.app = Starlette(
            routes=[
                Route("/checkouts", self.made, methods=["POST"]),
                Route("/checkouts/{id}", self.read),
            ]
        )

    async def made(self, request: Request) -> Response:
        if self.is_down:
            return Response(status_code=503)
        wanted = await request.json()
        self.checkout = {
            **{name: wanted[name] for name in ("amount", "currency", "reference")},
            "id": "co-1",
            "state": "open",
            "live": False,
            "refunded": 0,
            "charged_back": 0,
            "url": str(request.base_url) + "pay",
        }
        return JSONResponse(self.checkout, status_code=201)

    async def read(self, request: Request) -> Response:
        return JSONResponse(self.checkout)


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    for _ in range(times):
        for name, store in (("SQLite", _sqlite()), ("PostgreSQL", fresh_database())):
            async with store as address:
                async for case, is_right in _played(address):
                    yield f"{case} ({name})", is_right


@asynccontextmanager
async def _sqlite() -> AsyncIterator[str | None]:
    yield None


async def _played(store: str | None) -> AsyncIterator[tuple[str, bool]]:
    acme = Acme()
    with TemporaryDirectory() as folder:
        home = Path(folder)
        async with serving_app(acme.app) as place:
            extra = _set_up(home, place, store)
            async with (
                serving("tools:mcp", home=home, extra=extra) as here,
                Client(f"{here.url}/mcp") as client,
                new_browser() as browser,
            ):
                link, number = await _incident(acme, here, client, Person(browser))
                log = error_of(here.process)
            # From here on, only the log and the commands are used.
            (line, *_) = [each for each in log.splitlines() if number in each] or [""]
            yield "the number of the page is in the log", f"error_id={number}" in line
            yield "its line names the cause", "provider.failed" in line and "503" in line
            found = re.search(r" id=([\w-]+)", line)
            id = "" if found is None else found[1]
            for what, given in (("line", id), ("link", link), ("provider's id", "co-1")):
                shown = await called("show", given, home=home, extra=extra)
                yield f"the id of the {what} leads to what became of it", _has_events(shown.out)
            listed = await called(
                *("payments", "list", "--where", "session=co-1", "--json"), home=home, extra=extra
            )
            (payment,) = json.loads(listed.out) or [{}]
            yield "the payment is found by a filter", payment.get("standing") == "spent"
        page = (PROJECT / "docs" / "how-to" / "monitoring.md").read_text("utf-8")
        yield "the page of monitoring has the same steps", all(each in page for each in HAPPENED)


def _has_events(text: str) -> bool:
    """Return True if the text has each event, in order."""
    places = [text.find(f"\t{each}") for each in HAPPENED]
    return "failed_starts  1" in text and -1 not in places and places == sorted(places)


def _set_up(home: Path, place: str, store: str | None) -> Mapping[str, str]:
    (home / "tools.py").write_text(TOOLS, "utf-8")
    config = home / "elicit.toml"
    config.write_text(
        f'[sellers.acme]\nlabel = "Acme"\napi = "{place}"\ncheckout_origins = ["{place}"]\n'
        f'test_api = "{place}"\ntest_checkout_origins = ["{place}"]\n',
        "utf-8",
    )
    return {
        "ELICIT_CONFIG": str(config),
        "ELICIT_ACME_KEY": "a-key",
        "ELICIT_ACME_WEBHOOK_SECRET": SECRET,
        "ELICIT_LOG_LEVEL": "info",
        **({} if store is None else {"ELICIT_STORE": store}),
    }


async def _incident(acme: Acme, here: Server, client: Client, person: Person) -> tuple[str, str]:
    """Cause the incident. Return the person's link and the error number of the page."""
    result: Any = await client.call_tool("buy", {})
    link = link_in(result)
    page = await person.press(link)  # the provider is down
    found = re.search(r"<code[^>]*>([0-9a-f]{12})</code>", page.text)
    assert found is not None, page.text
    acme.is_down = False
    await person.go_on(link)
    acme.checkout |= {"state": "paid", "payment": "pay-1"}
    body = json.dumps({"type": "checkout.updated", "data": acme.checkout})
    now = datetime.now(UTC)
    headers = {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(SECRET).sign("msg_1", now, body),
        "content-type": "application/json",
    }
    async with httpx.AsyncClient(timeout=300) as provider:
        reply = await provider.post(f"{here.url}/webhooks/acme", content=body, headers=headers)
    assert reply.status_code == 200, reply.text
    assert text_of(await client.call_tool("buy", {})) == "paid 9.00 EUR"
    return link, found[1]
