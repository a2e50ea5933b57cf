"""The webhook route, many deliveries at once: verified, settled with its receipt, waiter woken.

The baseline is a bare Litestar route that checks the same HMAC and commits one row through the bare
writer. Both are called as ASGI applications, without a network. What could go wrong: deliveries
that settle nothing are cheap; so each is counted, and its waiter must have been woken.
"""

import asyncio
import hashlib
import hmac
import json
import secrets
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
from litestar import Litestar, Request, Response, post
from litestar.di import Provide
from litestar.params import RawBody

from benchmarks.bare import BareWriter
from benchmarks.figure import Figure, Round, alternate, in_rounds, summary
from benchmarks.ours import TAKER, fresh, open_service_here, utc_now
from flows.attempts import hold_open, open_attempt
from flows.checkout import Kept, Seller, Terms, stripe
from flows.elicitation import Elicitation
from flows.signatures import STRIPE, sign
from webapp.routes.webhooks import hooked
from webapp.service import Service

AT_ONCE = 50
SECRET = "whsec_of_the_benchmarks"
SELLER: Seller = stripe("sk_test_of_the_benchmarks", [SECRET])
_LOG_BYTES = 4_000_000

Delivery = tuple[bytes, list[tuple[bytes, bytes]]]


async def webhooks(
    folder: Path, *, seconds: float, times: int = 500, log_bytes: int = _LOG_BYTES
) -> Figure:
    """Deliveries a second, 50 at once."""
    async with open_service_here(folder, sellers={"stripe": SELLER}) as (service, owner):
        writer = BareWriter(folder / "bare.db")
        try:
            bare = _bare_route(writer)
            ours = Litestar(
                [hooked],
                dependencies={"service": Provide(lambda: service, sync_to_thread=False)},
                openapi_config=None,
                logging_config=None,
            )
            both = (
                partial(_bare_rate, bare, times),
                partial(_our_rate, ours, service, owner, times),
            )
            while not all(
                (folder / f"{name}.db-wal").stat().st_size >= log_bytes for name in ("bare", "ours")
            ):
                await alternate(0, *both)
            rounds: list[Round] = [await alternate(number, *both) for number in in_rounds(seconds)]
        finally:
            writer.close()
    return summary(
        f"webhooks a second, {AT_ONCE} at once",
        rounds,
        show=lambda rate: f"{rate:,.0f}/s",
        at_least=0.5,
    )


def _bare_route(writer: BareWriter) -> Litestar:
    key = SECRET.encode()

    @post("/webhooks/stripe", status_code=200)
    async def bare(request: Request[Any, Any, Any], body: RawBody) -> Response[dict[str, str]]:
        parts = dict(part.split("=", 1) for part in request.headers["stripe-signature"].split(","))
        mac = hmac.new(key, parts["t"].encode() + b"." + body, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(mac, parts["v1"]):
            return Response({"received": "no"}, status_code=400)
        await writer.write(json.loads(body)["id"], body)
        return Response({"received": "yes"})

    return Litestar([bare], openapi_config=None, logging_config=None)


async def _bare_rate(app: Litestar, times: int) -> float:
    return await _rate(
        app, [_delivery(f"e{secrets.token_hex(20)}", "cs_bare") for _ in range(times)]
    )


async def _our_rate(app: Litestar, service: Service, owner: str, times: int) -> float:
    """With as many waiting legs, which are woken with what settled them."""
    elicitations = service.elicitations
    waiting = [_opened(owner) for _ in range(times)]
    for one in waiting:
        await elicitations.write(one[0])
    waiters = [
        elicitations.waiters.waiter(one.id, leg="leg", run="run", taker=TAKER) for one, _ in waiting
    ]
    rate = await _rate(app, [_delivery(one.id, session) for one, session in waiting])
    for waiter in waiters:
        now = utc_now()
        assert await waiter.changes(until=now + timedelta(seconds=5), now=now)
        elicitations.waiters.remove(waiter)
    return rate


def _opened(owner: str) -> tuple[Elicitation, str]:
    """A question whose person is at the checkout, and the session there."""
    now = utc_now()
    session = f"cs_test_{secrets.token_hex(24)}"
    terms = Terms(seller="stripe", amount=900, currency="EUR", what="A report", is_live=False)
    kept = Kept(request="x" * 700, expires_at=int(now.timestamp()) + 1800, session=session)
    asked = fresh(owner, now=now)
    asked = msgspec.structs.replace(
        asked,
        kind="payment",
        asked=msgspec.structs.replace(asked.asked, terms=msgspec.to_builtins(terms)),
    )
    opened = open_attempt(asked, browser="0" * 64, now=now, kept=msgspec.to_builtins(kept))
    return hold_open(opened), session


def _delivery(reference: str, session: str) -> Delivery:
    now = utc_now()
    event = {
        "id": f"evt_{secrets.token_hex(12)}",
        "object": "event",
        "type": "checkout.session.completed",
        "created": int(now.timestamp()),
        "livemode": False,
        "data": {
            "object": {
                "id": session,
                "object": "checkout.session",
                "status": "complete",
                "payment_status": "paid",
                "amount_total": 900,
                "currency": "eur",
                "livemode": False,
                "client_reference_id": reference,
                "payment_intent": f"pi_{secrets.token_hex(12)}",
                "metadata": {"elicitation": reference},
            }
        },
    }
    body = json.dumps(event).encode()
    headers = sign(STRIPE, body=body, secret=SECRET, now=now)
    return body, [(name.lower().encode(), value.encode()) for name, value in headers]


async def _rate(app: Litestar, deliveries: list[Delivery]) -> float:
    left: Iterator[Delivery] = iter(deliveries)

    async def work() -> None:
        for delivery in left:
            assert await _post(app, delivery) == 200

    start = perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())
    return len(deliveries) / (perf_counter() - start)


async def _post(app: Any, delivery: Delivery) -> int:
    body, headers = delivery
    status = 0
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> dict[str, Any]:
        return next(messages)

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/webhooks/stripe",
        "raw_path": b"/webhooks/stripe",
        "query_string": b"",
        "headers": [
            *headers,
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8765),
    }
    await app(scope, receive, send)
    return status
