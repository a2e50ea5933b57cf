"""Acme, a fake custom payment provider that follows the documented contract.

Its webhooks are signed with the `standardwebhooks` library.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable  # noqa: TC003 - next to runtime imports
from datetime import timedelta
from pathlib import Path

import httpx
from standardwebhooks import Webhook

from flows.elicitation.states import Elicitation
from flows.payments.gateway import MerchantAccount
from flows.payments.receipt import ReceiptStatus
from tests.support.payment_env import Body, PaymentEnv
from tests.support.shop_env import Shop
from webapp.cli.payments import list_payments
from webapp.operations.payment_rows import PaymentRow
from webapp.settings.settings import read_settings

DECLARED = """
[sellers.acme]
api = "https://api.acme.example/v1"
checkout_origins = ["https://pay.acme.example"]
test_api = "https://test.acme.example/v1"
test_checkout_origins = ["https://pay-test.acme.example"]
"""
KEY = "a-key"
SIGNS = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


class Acme:
    """A payment provider that implements the documented contract."""

    def __init__(self) -> None:
        self.checkouts: dict[str, Body] = {}
        self.refunds: dict[str, Body] = {}  # refunds by idempotency key
        self.calls: list[str] = []
        self.is_down = False
        self.loses: str | None = None  # lose the reply to requests whose path ends with this text
        self.refuses: str | None = None  # refuse requests whose path ends with this text
        self.refund_state = "succeeded"  # of the replies to refund requests
        self.says: Body = {}  # values that replace those of a new checkout
        self.before_it_answers: Callable[[Body], Awaitable[object]] | None = None
        self._by_key: dict[str, Body] = {}

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        assert request.url.host == "test.acme.example"
        assert request.headers["Authorization"] == f"Bearer {KEY}"
        path = request.url.path.removeprefix("/v1")
        self.calls.append(f"{request.method} {path}")
        if self.is_down:
            return httpx.Response(503)
        if self.refuses is not None and path.endswith(self.refuses):
            return httpx.Response(422, json={"code": "no_such_shop"})
        if path.endswith("/refunds") and self._is_too_much(request, path.split("/")[2]):
            return httpx.Response(422, json={"error": "more than is left of it"})
        answer = self._answer(request, path)
        if path == "/checkouts" and self.before_it_answers is not None:
            await self.before_it_answers(answer)
        if self.loses is not None and path.endswith(self.loses):
            return httpx.Response(502)
        return httpx.Response(201, json=answer)

    def _answer(self, request: httpx.Request, path: str) -> Body:
        match request.method, path.split("/")[1:]:
            case "POST", ["checkouts"]:
                key, wanted = request.headers["Idempotency-Key"], json.loads(request.content)
                if key not in self._by_key:
                    self._by_key[key] = self._made(wanted)
                return self._by_key[key]
            case "GET", ["checkouts", id]:
                return self.checkouts[id]
            case "POST", ["checkouts", id, "close"]:
                if self.checkouts[id]["state"] == "open":
                    self.checkouts[id]["state"] = "closed"
                return self.checkouts[id]
            case "POST", ["payments", payment, "refunds"]:
                key, wanted = request.headers["Idempotency-Key"], json.loads(request.content)
                if key not in self.refunds:
                    self.refunds[key] = {"id": f"re-{len(self.refunds) + 1}", **wanted}
                    self._of(payment)["refunded"] += wanted["amount"]
                return {**self.refunds[key], "state": self.refund_state}
            case _:
                raise AssertionError(path)

    def _is_too_much(self, request: httpx.Request, payment: str) -> bool:
        if request.headers["Idempotency-Key"] in self.refunds:
            return False
        one = self._of(payment)
        gone = int(one["refunded"]) + int(one["charged_back"])
        return gone + int(json.loads(request.content)["amount"]) > int(one["amount"])

    def _made(self, wanted: Body) -> Body:
        id = f"co-{len(self.checkouts) + 1}"
        self.checkouts[id] = {
            "id": id,
            "state": "open",
            "amount": wanted["amount"],
            "currency": wanted["currency"],
            "reference": wanted["reference"],
            "live": False,
            "url": f"https://pay-test.acme.example/{id}",
            "refunded": 0,
            "charged_back": 0,
            **self.says,
        }
        return self.checkouts[id]

    def _of(self, payment: str) -> Body:
        return next(one for one in self.checkouts.values() if one.get("payment") == payment)

    def pay(self, id: str = "co-1", *, state: str = "paid", **says: object) -> bytes:
        """Set a checkout's state, and return the webhook event that reports it."""
        self.checkouts[id] |= {"state": state, "payment": f"pay-{id}"}
        return self.event(id, **says)

    def event(self, id: str = "co-1", **says: object) -> bytes:
        about = {**self.checkouts[id], **says}
        return json.dumps({"type": "checkout.updated", "data": about}).encode()


class Forgetful(Acme):
    """An Acme that ignores idempotency keys. Each reply waits until the request's gate opens."""

    def __init__(self) -> None:
        super().__init__()
        self.made = asyncio.Semaphore(0)
        self.gates = [asyncio.Event(), asyncio.Event()]

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST" and request.url.path.endswith("/checkouts"):
            gate = self.gates[len(self.checkouts)]
            answer = dict(self._made(json.loads(request.content)))
            self.made.release()
            await gate.wait()
            return httpx.Response(201, json=answer)
        return await super().__call__(request)


async def send(
    payment_env: PaymentEnv,
    event: bytes,
    *,
    id: str = "msg_1",
    secret: str = SIGNS,
    minutes_ago: int = 0,
) -> httpx.Response:
    """Send the event to the webhook route, signed with the `standardwebhooks` library."""
    at = payment_env.clock() - timedelta(minutes=minutes_ago)
    headers = [
        ("webhook-id", id),
        ("webhook-timestamp", str(int(at.timestamp()))),
        ("webhook-signature", Webhook(secret).sign(id, at, event.decode())),
        ("content-type", "application/json"),
    ]
    return await payment_env.post(event, headers=headers)


def declared(text: str, *, folder: Path) -> MerchantAccount:
    """Return the merchant account that the settings read from this elicit.toml."""
    (folder / "elicit.toml").write_text(text, "utf-8")
    settings = read_settings(
        {
            "HOME": str(folder),
            "ELICIT_CONFIG": str(folder / "elicit.toml"),
            "ELICIT_ACME_KEY": KEY,
            "ELICIT_ACME_WEBHOOK_SECRET": SIGNS,
        }
    )
    return settings.sellers["acme"]


async def begun(payment_env: PaymentEnv) -> Elicitation:
    """Ask for a payment and press Continue."""
    asked = await payment_env.asked()
    assert await payment_env.go_on(asked) == "https://pay-test.acme.example/co-1"
    return asked


async def paid(payment_env: PaymentEnv, acme: Acme) -> Elicitation:
    asked = await begun(payment_env)
    assert (await send(payment_env, acme.pay())).json() == {"received": "accepted"}
    return asked


async def webhook_statuses(payment_env: PaymentEnv) -> list[tuple[str, str | None]]:
    return [(hook.status, hook.why) for hook in await payment_env.webhooks()]


async def ledger(payment_env: PaymentEnv) -> list[ReceiptStatus]:
    return [payment.status for payment in await payment_env.service.kinds.payments.ledger.all()]


async def still_open(payment_env: PaymentEnv | Shop) -> list[PaymentRow]:
    return [*(await list_payments(payment_env.service, only_open=True)).rows]


async def note_of_open_payment(payment_env: PaymentEnv | Shop) -> str:
    """Return the note that the operator sees at the first open payment."""
    return (await still_open(payment_env))[0].note or ""


async def left_pending(payment_env: PaymentEnv, acme: Acme) -> Elicitation:
    """Set the checkout to `pending` without a webhook, and let the question expire."""
    asked = await begun(payment_env)
    acme.pay(state="pending")
    await payment_env.sweep(minutes=31)
    return asked
