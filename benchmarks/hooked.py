"""The webhook route served over HTTP, bare and with elicit.

`python -m benchmarks.hooked bare` or `ours` prints its address and serves until its standard input
ends. The server with elicit prepares a question with a waiting request for each delivery.
Afterwards it reports how many of these requests were woken.
"""

import asyncio
import hashlib
import hmac
import json
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
from litestar import Litestar, Request, Response, get, post
from litestar.di import Provide
from litestar.params import FromQuery, RawBody

from benchmarks.bare import BareWriter
from benchmarks.in_process import TAKER, fresh, open_service_here, utc_now
from benchmarks.served import until_stdin_ends
from flows.elicitation.flow import hold_open, open_attempt
from flows.elicitation.states import Elicitation
from flows.payments.session import CheckoutTerms, StoredCheckout
from flows.payments.stripe.gateway import stripe
from webapp.elicitations.waiters import Waiter  # noqa: TC001 - the imports above are needed at run time
from webapp.routes.webhooks import hooked
from webapp.service import Service
from webapp.serving.http_server import loop_factory

SECRET = "whsec_of_the_benchmarks"
SELLER = stripe("sk_test_of_the_benchmarks", [SECRET])


def bare(writer: BareWriter) -> Litestar:
    key, arrived = SECRET.encode(), count()

    @post("/webhooks/stripe", status_code=200)
    async def take(request: Request[Any, Any, Any], body: RawBody) -> Response[dict[str, str]]:
        parts = dict(part.split("=", 1) for part in request.headers["stripe-signature"].split(","))
        mac = hmac.new(key, parts["t"].encode() + b"." + body, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(mac, parts["v1"]):
            return Response({"received": "no"}, status_code=400)
        # Use a new row for a copy too: for SQLite, writing the same row again would be no write.
        await writer.write(f"{json.loads(body)['id']} {next(arrived)}", body)
        return Response({"received": "yes"})

    return Litestar([take], openapi_config=None, logging_config=None)


def our_application(service: Service, owner: str) -> Litestar:
    waiters: list[Waiter] = []

    @get("/prepare")
    async def prepare(times: FromQuery[int]) -> list[tuple[str, str]]:
        waiting = [opened_checkout(owner) for _ in range(times)]
        for one, _ in waiting:
            await service.elicitations.write(one)
            waiters.append(
                service.elicitations.waiters.waiter(
                    one.id, request_id="leg", run="run", taker=TAKER
                )
            )
        return [(one.id, session) for one, session in waiting]

    @get("/woken")
    async def woken() -> int:
        count = 0
        while waiters:
            waiter, now = waiters.pop(), utc_now()
            count += bool(await waiter.changes(until=now + timedelta(seconds=5), now=now))
            service.elicitations.waiters.remove(waiter)
        return count

    return Litestar(
        [hooked, prepare, woken],
        dependencies={"service": Provide(lambda: service, sync_to_thread=False)},
        openapi_config=None,
        logging_config=None,
    )


def opened_checkout(owner: str) -> tuple[Elicitation, str]:
    """Return a question whose person is at the checkout, and the checkout's session."""
    now = utc_now()
    session = f"cs_test_{secrets.token_hex(24)}"
    terms = CheckoutTerms(
        seller="stripe", amount=900, currency="EUR", what="A report", is_live=False
    )
    stored = StoredCheckout(
        request="x" * 700, expires_at=int(now.timestamp()) + 1800, session=session
    )
    asked = fresh(owner, now=now)
    asked = msgspec.structs.replace(
        asked,
        kind="payment",
        request=msgspec.structs.replace(asked.request, terms=msgspec.to_builtins(terms)),
    )
    opened = open_attempt(
        asked, browser="0" * 64, now=now, attempt_data=msgspec.to_builtins(stored)
    )
    return hold_open(opened), session


@asynccontextmanager
async def opened(which: str, folder: Path) -> AsyncIterator[Litestar]:
    if which == "bare":
        writer = BareWriter(folder / "bare.db")
        try:
            yield bare(writer)
        finally:
            writer.close()
    else:
        async with open_service_here(folder, sellers={"stripe": SELLER}) as here:
            yield our_application(*here)


async def serve(which: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with opened(which, Path(folder)) as app:
            await until_stdin_ends(app)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(sys.argv[1]))
