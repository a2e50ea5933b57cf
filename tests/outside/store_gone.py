"""A store's file is deleted while the server runs: the server must acknowledge no further write."""

import json
import tempfile
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import httpx
from mcp import Client
from mcp_types import ElicitResult

from tests.support import signing
from tests.support.cli import serving
from webapp.demo.client import text_of

FINDING = "R6"
EVENT = {
    "id": "evt_1",
    "object": "event",
    "type": "checkout.session.completed",
    "created": 1772366400,
    "livemode": False,
    "data": {
        "object": {
            "id": "cs_test_1",
            "object": "checkout.session",
            "status": "complete",
            "payment_status": "paid",
            "amount_total": 900,
            "currency": "eur",
            "livemode": False,
            "client_reference_id": "A" * 44,
        }
    },
}
PATIENCE_SECONDS = 300.0
SECRET = "whsec_of_a_shop_that_is_tried_from_outside"


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    for _ in range(times):
        with tempfile.TemporaryDirectory() as home:
            async for tried in _once(Path(home)):
                yield tried


async def _once(home: Path) -> AsyncIterator[tuple[str, bool]]:
    async def accept(_: Any, __: Any) -> Any:
        return ElicitResult(action="accept")

    seller = {"ELICIT_STRIPE_KEY": "sk_test_1", "ELICIT_STRIPE_WEBHOOK_SECRET": SECRET}
    async with (
        serving(home=home, extra=seller) as server,
        httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_SECONDS) as anybody,
    ):
        is_well = (await anybody.get("/ready")).status_code == 200
        (home / ".local/share/elicit-url/elicit.db").unlink()
        for mode in ("legacy", "2026-07-28"):
            async with Client(
                f"{server.url}/mcp", mode=mode, elicitation_callback=cast("Any", accept)
            ) as client:
                result = await client.call_tool("sign_guest_book", {})
            words = text_of(result)
            yield (
                f"a call fails because nothing can be stored ({mode})",
                "[STORE_UNAVAILABLE]" in words,
            )
        answers = [(await anybody.get(path)).status_code for path in ("/live", "/ready", "/health")]
        yield "alive, and not ready", is_well and answers == [200, 503, 503]
        event = json.dumps(EVENT).encode()
        headers = signing.stripe(event, secret=SECRET, now=datetime.now(UTC))
        hook = await anybody.post("/webhooks/stripe", content=event, headers=headers)
        yield "no webhook is acknowledged", hook.status_code == 503
