"""Two who give the same payment back at once, at a provider that knows no keys."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import httpx
import pytest

from flows.declared_seller import DeclaredSeller
from flows.errors import Failed
from flows.receipt import Payment, ReceiptStatus
from flows.sellers import SELLERS
from flows.signature_schemes import LEMON_SQUEEZY
from flows.signatures import sign
from tests.mcp.stage import eventually
from tests.service.providers import Till, selling
from tests.service.world import RING, URL
from webapp.outbound import Outbound
from webapp.refunds import ASKING_AT_MOST, Refunds, UnderWay
from webapp.service import Service, open_service
from webapp.sweeper import fall_due

SECRET = "shh"
SELLER = DeclaredSeller(
    declaration=SELLERS["lemon_squeezy"],
    secret="a-key",
    webhook_secrets=(SECRET,),
    is_live=False,
    own={"store": "1", "variant": "2"},
    more_checkout_origins=("https://shop.lemonsqueezy.com",),
)


class LemonSqueezy:
    """It gives back whatever it is asked to, each time, once it is told to answer."""

    def __init__(self) -> None:
        self.refunds = 0
        self.given_back = 0
        self.is_down = False
        self.answers = asyncio.Event()
        self.answers.set()

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/checkouts":
            return httpx.Response(201, json={"data": self._made(request)})
        id = request.url.path.split("/")[3]
        if request.method == "POST":
            self.refunds += 1
            await self.answers.wait()
            if self.is_down:
                return httpx.Response(503)
            self.given_back += 900
        told = {"currency": "EUR", "refunded_amount": self.given_back}
        about = {**told, "status": "refunded", "refunded": True}
        return httpx.Response(200, json={"data": {"type": "orders", "id": id, "attributes": about}})

    def _made(self, request: httpx.Request) -> dict[str, object]:
        asked = json.loads(request.content)["data"]["attributes"]
        about = {
            "url": "https://shop.lemonsqueezy.com/c1",
            "test_mode": True,
            "preview": {"total": 900, "currency": "EUR"},
            "checkout_data": asked["checkout_data"],
            "expires_at": asked["expires_at"],
        }
        return {"type": "checkouts", "id": "c1", "attributes": about}


@pytest.fixture
def there() -> LemonSqueezy:
    return LemonSqueezy()


@pytest.fixture
async def till(there: LemonSqueezy) -> AsyncIterator[Till]:
    async with selling(SELLER, there) as till:
        yield till


@pytest.fixture
async def payment(till: Till) -> Payment:
    asked = await till.asked()
    await till.go_on(asked)
    order = {
        "status": "paid",
        "total": 900,
        "currency": "EUR",
        "test_mode": True,
        "refunded_amount": 0,
    }
    body = json.dumps(
        {
            "meta": {
                "event_name": "order_created",
                "custom_data": {"elicitation": f"{asked.id}:1"},
            },
            "data": {"type": "orders", "id": "111", "attributes": order},
        }
    ).encode()
    headers = sign(LEMON_SQUEEZY, body=body, secret=SECRET, now=till.clock())
    assert (await till.post(body, headers=headers)).status_code == 200
    found = await till.paid(asked)
    assert found is not None
    return found


@asynccontextmanager
async def another_process(till: Till, there: LemonSqueezy) -> AsyncGenerator[Service]:
    async def public(_host: str, _port: int) -> list[str]:
        return ["93.184.215.14"]

    async with (
        httpx.AsyncClient(transport=httpx.MockTransport(there)) as client,
        open_service(
            store=till.store.sibling(),
            ring=RING,
            public_url=URL,
            uid=1000,
            clock=till.clock,
            outbound=Outbound(client, allow_loopback=True, resolve=public),
            sellers={SELLER.name: SELLER},
        ) as service,
    ):
        yield service


def refunds_of(service: Service) -> Refunds:
    return service.kinds.payments.refunds


async def standing(till: Till, payment: Payment) -> ReceiptStatus:
    found = await till.service.kinds.payments.ledger.read(payment.owner, payment.id)
    assert found is not None
    return found.status


async def test_two_who_give_it_back_at_once_ask_the_provider_once(
    till: Till, there: LemonSqueezy, payment: Payment
) -> None:
    there.answers.clear()
    give_back = refunds_of(till.service).give_back
    async with asyncio.TaskGroup() as group:
        asking = [
            group.create_task(give_back(payment.owner, payment.id, reason=reason))
            for reason in ("the person", "an operator")
        ]
        await eventually(lambda: there.refunds)
        there.answers.set()
    assert [str(one.result().price) for one in asking] == ["9.00 EUR"] * 2
    assert (there.refunds, there.given_back) == (1, 900)
    assert await standing(till, payment) is ReceiptStatus.REFUNDED


async def test_while_one_process_asks_another_one_does_not(
    till: Till, there: LemonSqueezy, payment: Payment
) -> None:
    there.answers.clear()
    async with another_process(till, there) as other:
        first = asyncio.create_task(
            refunds_of(till.service).give_back(payment.owner, payment.id, reason="a")
        )
        await eventually(lambda: there.refunds)
        with pytest.raises(UnderWay, match="at the moment"):
            await refunds_of(other).give_back(payment.owner, payment.id, reason="b")
        till.clock.tick(seconds=31)
        await fall_due(other)
        there.answers.set()
        await first
        # And then it is told what became of it.
        refund = await refunds_of(other).give_back(payment.owner, payment.id, reason="b")
        assert str(refund.price) == "9.00 EUR"
    assert (there.refunds, there.given_back) == (1, 900)


async def test_what_a_process_that_died_had_begun_is_asked_again_in_a_minute(
    till: Till, there: LemonSqueezy, payment: Payment
) -> None:
    there.answers.clear()
    async with another_process(till, there) as other:
        dying = asyncio.create_task(
            refunds_of(other).give_back(payment.owner, payment.id, reason=None)
        )
        await eventually(lambda: there.refunds)
        dying.cancel()
        await asyncio.wait({dying})
    there.answers.set()
    await fall_due(till.service)
    assert (there.given_back, await standing(till, payment)) == (0, ReceiptStatus.REFUNDING)
    till.clock.now += ASKING_AT_MOST + timedelta(seconds=1)
    await fall_due(till.service)
    assert (there.given_back, await standing(till, payment)) == (900, ReceiptStatus.REFUNDED)


async def test_one_that_did_not_work_is_in_nobodys_way(
    till: Till, there: LemonSqueezy, payment: Payment
) -> None:
    there.is_down = True
    async with another_process(till, there) as other:
        with pytest.raises(Failed):
            await refunds_of(till.service).give_back(payment.owner, payment.id, reason=None)
        (row,) = await till.service.kinds.payments.ledger.all()
        assert row.due_at is not None
        assert row.due_at - till.clock() == timedelta(minutes=5)
        there.is_down = False
        await refunds_of(other).give_back(payment.owner, payment.id, reason=None)
    assert (there.given_back, await standing(till, payment)) == (900, ReceiptStatus.REFUNDED)
