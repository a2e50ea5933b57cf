"""The webhook route under load: verified, settled with its payment, waiter woken.

The baseline is a bare Litestar route that checks the same HMAC and commits one row through the bare
writer. uvicorn serves each route in its own process. Both get prepared requests over 50
connections, and one request in five is a copy of an answered request. Risks: deliveries that settle
nothing are cheap. So each new delivery must wake its waiter.
"""

import asyncio
import json
import secrets
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from time import perf_counter
from urllib.parse import urlsplit

import httpx

from benchmarks.calling import serving
from benchmarks.figure import Figure, Round, alternate, in_rounds, summary
from benchmarks.hooked import SECRET
from benchmarks.in_process import utc_now
from webapp.sandbox.stripe.sessions import signature_of

AT_ONCE = 50


async def webhooks(*, seconds: float, times: int = 500) -> Figure:
    """Measure deliveries a second over HTTP."""
    async with (
        serving("bare", module="benchmarks.hooked") as bare_url,
        serving("ours", module="benchmarks.hooked") as our_url,
        httpx.AsyncClient(base_url=our_url, timeout=60) as our_client,
    ):
        both = partial(_bare_rate, bare_url, times), partial(_our_rate, our_client, times)
        await alternate(0, *both)  # warm-up
        rounds: list[Round] = [await alternate(number, *both) for number in in_rounds(seconds)]
    return summary(
        f"webhooks a second over HTTP, {AT_ONCE} at once",
        rounds,
        show=lambda rate: f"{rate:,.0f}/s",
        at_least=0.55,
    )


async def _bare_rate(url: str, times: int) -> float:
    return await _rate(url, [(secrets.token_urlsafe(36), "cs_bare") for _ in range(times)])


async def _our_rate(our_client: httpx.AsyncClient, times: int) -> float:
    """Return our deliveries a second. Each delivery must wake a waiting request."""
    opened = (await our_client.get("/prepare", params={"times": times})).raise_for_status().json()
    rate = await _rate(str(our_client.base_url), opened)
    assert (await our_client.get("/woken")).json() == times
    return rate


def paid_event(reference: str, session: str) -> bytes:
    """Return the provider's event for a paid session."""
    event = {
        "id": f"evt_{secrets.token_hex(12)}",
        "object": "event",
        "type": "checkout.session.completed",
        "created": int(utc_now().timestamp()),
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
    return json.dumps(event).encode()


async def delivered(url: str, reference: str, session: str) -> None:
    """Send one delivery over its own connection."""
    host, _, port = urlsplit(url).netloc.partition(":")
    await _deliver(host, int(port), _Post([_delivery(url, reference, session)]))


def _delivery(url: str, reference: str, session: str) -> bytes:
    """Return a complete HTTP request."""
    body, now = paid_event(reference, session), utc_now()
    headers = [signature_of(body, secret=SECRET, now=now)]
    lines = [
        "POST /webhooks/stripe HTTP/1.1",
        f"host: {urlsplit(url).netloc}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        *(f"{name}: {value}" for name, value in headers),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def _rate(url: str, about: Sequence[tuple[str, str]]) -> float:
    post = _Post([_delivery(url, reference, session) for reference, session in about])
    host, _, port = urlsplit(url).netloc.partition(":")
    start = perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(_deliver(host, int(port), post))
    rate = post.sent / (perf_counter() - start)
    assert post.sent == len(about) * 5 // 4
    return rate


class _Post:
    """The deliveries.

    One in five repeats an answered delivery, like a provider that missed the response.
    """

    def __init__(self, deliveries: Sequence[bytes]) -> None:
        self._fresh = iter(deliveries)
        self._answered = deque[bytes]()
        self._fresh_sent = 0
        self.sent = 0

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        copies = self.sent - self._fresh_sent
        if self._answered and copies < self._fresh_sent // 4:
            delivery = self._answered.popleft()
        else:
            delivery = next(self._fresh)
            self._fresh_sent += 1
        self.sent += 1
        return delivery

    def answered(self, delivery: bytes) -> None:
        self._answered.append(delivery)


async def _deliver(host: str, port: int, post: _Post) -> None:
    """Send requests one after the other over one connection."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        for request in post:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length))
            post.answered(request)
    finally:
        writer.close()
        await writer.wait_closed()
