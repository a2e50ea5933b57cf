"""A full refund whose webhook arrives before the payment's: nothing is delivered."""

import json
import tempfile
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.crash.account_env import SESSIONS, AccountEnv, open_customer, open_market
from tests.crash.shop_env import ProcessPool, calling, held, open_process_pool
from tests.support import signing

FINDING = "M1"
REVISIONS = {"2025-11-25": "legacy", "2026-07-28": "2026-07-28"}


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    with open_process_pool("tests.crash.account_server") as process_pool:
        for _ in range(times):
            for revision, mode in REVISIONS.items():
                yield f"refunded, then paid ({revision})", await _is_withheld(process_pool, mode)


async def _is_withheld(process_pool: ProcessPool, mode: str) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        async with (
            open_market(process_pool, Path(folder)) as account_env,
            open_customer() as customer,
            account_env.start() as server,
            calling(server, "buy", mode=mode) as call,
        ):
            await account_env.control(drop=True)
            there = await customer.to_provider(await held(server, call, mode=mode))
            await customer.press(there)
            session = await account_env.stripe(
                f"{SESSIONS}/{urlsplit(there).path.rsplit('/', 1)[1]}"
            )
            charge = {
                "id": "ch_1",
                "object": "charge",
                "payment_intent": session["payment_intent"],
                "amount": session["amount_total"],
                "amount_refunded": session["amount_total"],
                "currency": session["currency"],
                "metadata": session["metadata"],
            }
            await _send_event(account_env, "charge.refunded", charge)
            await _send_event(account_env, "checkout.session.completed", session)
            try:
                delivered = await call.result()
            except AssertionError as error:  # the tool's error
                delivered = str(error)
            return "refunded in the meantime" in delivered and account_env.work == []


async def _send_event(account_env: AccountEnv, kind: str, about: dict[str, Any]) -> None:
    event = {
        "id": f"evt_{kind.replace('.', '_')}",
        "object": "event",
        "type": kind,
        "created": int(time.time()),
        "livemode": False,
        "data": {"object": about},
    }
    body = json.dumps(event).encode()
    secret, url = account_env.sandbox.webhook_secret, account_env.sandbox.webhook_url
    headers = signing.stripe(body, secret=secret, now=datetime.now(UTC))
    reply = await account_env.outside.post(url, content=body, headers=headers)
    assert reply.status_code == 200, reply.text
