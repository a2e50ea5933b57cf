"""Webhooks that differ from what their sender signed are refused, and nothing is written."""

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address
from itertools import count
from random import Random
from typing import Any
from urllib.parse import urlsplit

import pytest

from flows.webhooks.certificates import sign_certified
from tests.support import signing
from tests.support.mcp_server import eventually
from tests.support.shop_env import Buying, Process, Shop, buying, open_shop
from webapp.http.exchange import Message
from webapp.records.values import KINDS, TurnedAway
from webapp.sandbox.paypal.certificates import CERTIFICATE_ID, sandbox_scheme, signers_key
from webapp.stores import Record

MEGABYTE = 1024 * 1024
SECOND = timedelta(seconds=1)
STRIPE_READS = (
    "id",
    "object",
    "amount_total",
    "client_reference_id",
    "currency",
    "livemode",
    "payment_intent",
    "payment_status",
    "status",
)
BODIES = (
    b"",
    b"\0",
    b"\xff\xfe\x00",
    b'{"id":"\xff","object":"event"}',
    b"\xed\xa0\x80",
    "{}".encode("utf-16"),
    bytes(range(256)),
    b"[" * 100_000,
    b'{"a":' * 40_000,
    b'"' + b"\\" * 99_999,
    b"9" * 200_000,
)
ENCODINGS = (b"gzip", b"deflate", b"br", b"identity", b"gzip, gzip", b"\xff", b"")
KINDS_OF_BODY = (
    b"",
    b"\xff",
    b"multipart/form-data",
    b"multipart/form-data; boundary=" + b"a" * 1000,
    b"application/x-www-form-urlencoded",
    b"application/json; charset=utf-16",
    b"application/json; charset=none-such",
    b"/;;;=",
)
NAMED = b"paypal-cert-url"
Pairs = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """A payment provider, its signature, and a delivery that settles the waiting payment.

    `late` and `early` are how far a signature's timestamp may be in the past or in the future.
    """

    name: str
    late: timedelta
    early: timedelta
    sign: Callable[[Shop, bytes, datetime], signing.Headers]
    delivery: Callable[[Shop, Buying], Awaitable[bytes]]

    @property
    def path(self) -> str:
        return f"/webhooks/{self.name}"


async def stripes_event(shop: Shop, buy: Buying) -> bytes:
    """Pay. Return Stripe's event with only the fields that the server reads: fewer bits to test."""
    await buy.person.pay(buy.link)
    event = json.loads(shop.post.pop())
    about = {name: event["data"]["object"][name] for name in STRIPE_READS}
    event = {name: event[name] for name in ("id", "object", "type", "created", "livemode")}
    return json.dumps({**event, "data": {"object": about}}, separators=(",", ":")).encode()


async def paypals_event(shop: Shop, buy: Buying) -> bytes:
    """Return the event of an approved order, whose payment the server then captures."""
    await pressed(shop, buy, "balance")
    event = json.loads(shop.post.pop())
    about = {
        "id": event["resource"]["id"],
        "purchase_units": [{"custom_id": event["resource"]["purchase_units"][0]["custom_id"]}],
    }
    event = {"id": event["id"], "event_type": event["event_type"], "resource": about}
    return json.dumps(event, separators=(",", ":")).encode()


def signed_by_paypal(shop: Shop, body: bytes, now: datetime) -> signing.Headers:
    """Sign as PayPal does, but omit the algorithm's header, which the server does not read."""
    headers = dict(
        sign_certified(
            sandbox_scheme(shop.sandbox.url),
            body=body,
            id="aac5ed50-2fcb-11f0-a48d-0737b43c836c",
            webhook_id=shop.sandbox.paypal_webhook_id,
            certificate_id=CERTIFICATE_ID,
            key=signers_key(),
            now=now,
        )
    )
    del headers["paypal-auth-algo"]
    signature = headers.pop("paypal-transmission-sig")
    return [*headers.items(), ("paypal-transmission-sig", signature)]


async def mollies_notice(shop: Shop, buy: Buying) -> bytes:
    await pressed(shop, buy, "paid")
    return shop.post.pop()


async def pressed(shop: Shop, buy: Buying, button: str) -> None:
    """Press a button at the checkout, and wait until the provider has an event."""
    await buy.person.pay(buy.link, button=button)
    await eventually(lambda: len(shop.post) > 0)


STRIPE = Sender(
    name="stripe",
    late=timedelta(minutes=5),
    early=timedelta(minutes=5),
    sign=lambda shop, body, now: signing.stripe(body, secret=shop.sandbox.webhook_secret, now=now),
    delivery=stripes_event,
)
PAYPAL = Sender(
    name="paypal",
    late=timedelta(days=4),
    early=timedelta(minutes=5),
    sign=signed_by_paypal,
    delivery=paypals_event,
)
MOLLIE = Sender(
    name="mollie",
    late=timedelta(0),
    early=timedelta(0),
    sign=lambda _shop, _body, _now: [],
    delivery=mollies_notice,
)
SENDERS = {"stripe": STRIPE, "paypal": PAYPAL}
each = pytest.mark.parametrize("sender", SENDERS.values(), ids=SENDERS)


class Door:
    """The server's application, and a delivery of a payment that the server waits for.

    Requests go to the application without an HTTP client, so that they can contain any bytes.
    """

    def __init__(
        self,
        process: Process,
        *,
        shop: Shop,
        sender: Sender,
        buy: Buying,
        body: bytes,
        query: bytes,
    ) -> None:
        self.body = body
        self.query = query
        self.url = shop.url
        self._process = process
        self._shop = shop
        self._sender = sender
        self._buy = buy
        self._before: list[Record] = []
        self._senders = count(1)

    def signed(self, body: bytes | None = None, *, late: timedelta = timedelta(0)) -> Pairs:
        """Return the signature headers of `body`, as signed `late` before now."""
        now = self._shop.clock() - late
        headers = self._sender.sign(self._shop, self.body if body is None else body, now)
        return [(name.lower().encode(), value.encode()) for name, value in headers]

    async def refuses(self, body: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Return True if the status is 400, or 429 for headers that name another certificate.

        429 is the response when the rate limit of certificate fetches is exceeded.
        """
        pairs = [*headers]
        status = await self.post(body, pairs)
        names_another = any(pair[0] == NAMED and pair not in self.signed() for pair in pairs)
        return status == 400 or (status == 429 and names_another)

    async def post(
        self,
        body: bytes,
        headers: Iterable[tuple[bytes, bytes]],
        *,
        query: bytes | None = None,
    ) -> int:
        """Post the request and return its status. Each request comes from another address."""
        statuses: list[int] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": self._sender.path,
            "raw_path": self._sender.path.encode(),
            "query_string": self.query if query is None else query,
            "root_path": "",
            "headers": [(b"host", urlsplit(self.url).netloc.encode()), *headers],
            "client": (str(ip_address("10.0.0.0") + next(self._senders)), 50000),
            "server": ("127.0.0.1", 80),
            "state": {},
        }
        await self._process.app(scope, receive, send)
        [status] = statuses
        return status

    async def on_the_wire(self, headers: bytes, body: bytes) -> int:
        """Send raw bytes that no client would send, and return the status."""
        place = urlsplit(self.url)
        start = f"POST {self._sender.path} HTTP/1.1\r\nhost: {place.netloc}\r\n".encode()
        async with asyncio.timeout(300):
            reader, writer = await asyncio.open_connection(place.hostname, place.port)
            writer.write(start + headers + b"connection: close\r\n\r\n" + body)
            with suppress(ConnectionError):  # the server may have answered and closed already
                await writer.drain()
            line = await reader.readline()
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
        return int(line.split()[1])

    async def look(self) -> None:
        self._before = await self._stored()

    async def is_as_before(self) -> bool:
        return await self._stored() == self._before

    async def settles(self, *, late: timedelta = timedelta(0)) -> None:
        """Check that nothing was written, and that the unchanged delivery is then accepted."""
        assert await self.is_as_before()
        assert await self.post(self.body, self.signed(late=late)) == 200
        await self.is_paid()

    async def is_paid(self) -> None:
        assert await self._buy.result() == "paid 9.00 EUR"

    async def _stored(self) -> list[Record]:
        """Return all records except the counts of refused webhooks, which change independently."""
        kinds = [name for kind, name in KINDS.items() if kind is not TurnedAway]
        return [record for name in kinds for record in await self._shop.store.list(name)]


@asynccontextmanager
async def waiting(sender: Sender) -> AsyncGenerator[Door]:
    async with open_shop() as shop:
        await shop.restart(sellers={sender.name: shop.settings.sellers[sender.name]})
        process = await shop.process()
        async with buying(shop) as buy:
            body = await sender.delivery(shop, buy)
            [asked] = await shop.asked()
            query = b"" if sender in SENDERS.values() else b"elicitation=" + asked.id.encode()
            door = Door(process, shop=shop, sender=sender, buy=buy, body=body, query=query)
            if sender is PAYPAL:  # fetch PayPal's certificate before a test names others
                assert await door.post(b"", door.signed()) == 400
            await door.look()
            yield door
        await process.ended()


def with_bits_changed(data: bytes, *bits: int) -> bytes:
    changed = bytearray(data)
    for bit in bits:
        changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def with_each_header(headers: Pairs, change: Callable[[bytes], Iterable[bytes]]) -> list[Pairs]:
    """Return copies of the headers, each with one header changed in one way."""
    return [
        [*headers[:index], (name, changed), *headers[index + 1 :]]
        for index, (name, value) in enumerate(headers)
        for changed in change(value)
        if changed != value
    ]


# Bits


@each
async def test_any_changed_bit_of_body_is_refused(sender: Sender) -> None:
    async with waiting(sender) as door:
        headers = door.signed()
        for bit in range(len(door.body) * 8):
            assert await door.refuses(with_bits_changed(door.body, bit), headers), bit
        await door.settles()


@each
async def test_any_changed_bit_of_header_is_refused(sender: Sender) -> None:
    """Timestamps are covered too, because every sender puts its timestamp in a header."""
    async with waiting(sender) as door:
        for headers in with_each_header(
            door.signed(),
            lambda value: (with_bits_changed(value, bit) for bit in range(len(value) * 8)),
        ):
            assert await door.refuses(door.body, headers), headers
        await door.settles()


@each
async def test_several_changed_bits_anywhere_are_refused(sender: Sender) -> None:
    random = Random(20)  # noqa: S311 - the same few each time
    async with waiting(sender) as door:
        for _ in range(200):
            [*before, (name, value)] = door.signed()
            bits = random.sample(range(len(value + door.body) * 8), random.randint(2, 6))
            changed = with_bits_changed(value + door.body, *bits)
            headers = [*before, (name, changed[: len(value)])]
            assert await door.refuses(changed[len(value) :], headers), bits
        await door.settles()


async def test_changed_bits_of_unsigned_hint_settle_nothing() -> None:
    """A changed hint names an existing payment or no payment, and neither settles anything."""
    async with waiting(MOLLIE) as door:
        for bit in range(len(door.body) * 8):
            assert await door.post(with_bits_changed(door.body, bit), []) in (200, 400), bit
        for bit in range(len(door.query) * 8):
            query = with_bits_changed(door.query, bit)
            assert await door.post(door.body, [], query=query) in (200, 400), bit
        await door.settles()


async def test_body_which_is_no_hint_or_is_too_large_is_refused() -> None:
    async with waiting(MOLLIE) as door:
        for body in (*BODIES, gzip.compress(door.body)):
            assert await door.post(body, [(b"content-encoding", b"gzip")]) == 400, body[:20]
        assert await door.post(b" " * (10 * MEGABYTE), []) == 413
        await door.settles()


async def test_forged_request_on_real_connection_is_refused_with_sandbox() -> None:
    """A server that runs with a sandbox trusts the sandbox's own certificate authority."""
    async with waiting(PAYPAL) as door:
        length = b"content-length: %d\r\n" % len(door.body)
        for headers in ([], door.signed(door.body + b" ")):
            lines = b"".join(b"%b: %b\r\n" % header for header in headers)
            assert await door.on_the_wire(length + lines, door.body) == 400
        assert await door.is_as_before()
        lines = b"".join(b"%b: %b\r\n" % header for header in door.signed())
        assert await door.on_the_wire(length + lines, door.body) == 200
        await door.is_paid()


# Clocks


@each
@pytest.mark.parametrize("direction", [1, -1], ids=["old", "future"])
async def test_clock_difference_is_accepted_up_to_tolerance(sender: Sender, direction: int) -> None:
    edge = sender.late if direction == 1 else -sender.early
    async with waiting(sender) as door:
        for late in (edge + direction * SECOND, 2 * edge, direction * timedelta(days=20_000)):
            assert await door.post(door.body, door.signed(late=late)) == 400, late
        await door.settles(late=edge)


# Headers


def malformed(value: bytes) -> list[bytes]:
    return [
        b"",
        b" ",
        b",",
        b"," * 1000,
        b";",
        b"=",
        b"\0",
        value + b"\0",
        b"\0" + value,
        value.replace(b"=", b"=\0"),
        value + b"," * MEGABYTE,
        b"a" * MEGABYTE,
        b"\xff" + value,
        value + b"\xff",
        value + "\u0661".encode(),
        "\u0661\u0662\u0663".encode(),
        b"\xe9",
        value.upper(),
        value[::-1],
        value[:-1],
        value + b"\r\nx-other: 1",
        b'"' + value + b'"',
    ]


@each
async def test_missing_repeated_or_malformed_header_is_refused(sender: Sender) -> None:
    async with waiting(sender) as door:
        right = door.signed()
        missing = [right[:index] + right[index + 1 :] for index in range(len(right))]
        repeated = [
            [*before, (name, more), *after]
            for name, value in right
            for more in (value, b"", b"1", door.signed(b"{}")[-1][1])
            for before, after in ((right, []), ([], right))
        ]
        for headers in [[], *missing, *repeated, *with_each_header(right, malformed)]:
            assert await door.refuses(door.body, headers), str(headers)[:500]
        await door.settles()


@each
async def test_malformed_requests_on_real_connection_are_refused(sender: Sender) -> None:
    async with waiting(sender) as door:
        length = b"content-length: %d\r\n" % len(door.body)
        signed = b"".join(b"%b: %b\r\n" % header for header in door.signed())
        [*_, (name, value)] = door.signed()
        for headers in (
            length,
            length + signed + signed,
            length + name + b":\r\n",
            length + name + b": ,\r\n",
            length + name + b": " + value + b"\0\r\n",
            length + name + b": \0\r\n",
            length + name + b": \xff\xfe\r\n",
            length + name + b" : " + value + b"\r\n",
            length + name + b": a\n b\r\n",
            length + b"%b: %b\r\n" % (name, b"a" * MEGABYTE),
            length + b"x-filling: a\r\n" * 10_000 + signed,
            length + b"\xff\xfe: 1\r\n" + signed,
            length + b"\0: 1\r\n" + signed,
            length + b"content-length: 1\r\n" + signed,
            b"content-length: 1\r\n" + signed,
            b"content-length: -1\r\n" + signed,
            b"content-length: ten\r\n" + signed,
            b"content-length: %d\r\n" % (10 * MEGABYTE) + signed,
            b"transfer-encoding: gzip\r\n" + length + signed,
            signed,
        ):
            status = await door.on_the_wire(headers, door.body)
            assert status in (400, 413, 431, 501), (status, headers[:200])
        chunked = b"transfer-encoding: chunked\r\n" + signed
        for body in (b"no number\r\n", b"-1\r\n", b"2\r\n{}0\r\n\r\n", b"0\r\n\r\n"):
            assert await door.on_the_wire(chunked, body) == 400
        await door.settles()


# Bodies


@each
async def test_body_which_is_no_event_is_refused_signed_or_unsigned(sender: Sender) -> None:
    async with waiting(sender) as door:
        for body in BODIES:
            for headers in ([], door.signed(), door.signed(body)):
                assert await door.post(body, headers) == 400, body[:20]
        await door.settles()


@each
async def test_ten_megabyte_body_is_refused_signed_or_unsigned(sender: Sender) -> None:
    body = b" " * (10 * MEGABYTE)
    async with waiting(sender) as door:
        length = [(b"content-length", str(len(body)).encode())]
        for headers in ([], door.signed(), door.signed(body)):
            for more in ([], length):
                assert await door.post(body, [*headers, *more]) == 413
        await door.settles()


@each
async def test_compressed_body_is_refused_and_never_decompressed(sender: Sender) -> None:
    async with waiting(sender) as door:
        for body in (
            gzip.compress(door.body),
            zlib.compress(door.body),
            gzip.compress(b" " * (10 * MEGABYTE) + door.body),
            gzip.compress(gzip.compress(door.body)),
            gzip.compress(door.body)[:-9],
        ):
            for encoding in ENCODINGS:
                for headers in (door.signed(), door.signed(body)):
                    about = [*headers, (b"content-encoding", encoding)]
                    assert await door.post(body, about) == 400, encoding
        await door.settles()


@each
async def test_content_type_of_body_changes_nothing(sender: Sender) -> None:
    async with waiting(sender) as door:
        for kind in KINDS_OF_BODY:
            about = (b"content-type", kind)
            assert await door.post(door.body, [about]) == 400
            assert await door.post(door.body + b" ", [about, *door.signed()]) == 400
        await door.settles()
        for kind in KINDS_OF_BODY:
            assert await door.post(door.body, [(b"content-type", kind), *door.signed()]) == 200
