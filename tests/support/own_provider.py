"""An author's own payment provider, and a shop that sells through it."""

import json
import re
from pathlib import Path

import httpx

from tests.support import signing
from tests.support.acme import KEY
from tests.support.payment_env import Body, PaymentEnv

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "providers.md").read_text("utf-8")
OTHER = re.findall(r"```toml\n(.*?)```", PAGE.partition("\n## Your own")[2], re.DOTALL)[1]


class Orchard:
    """A provider with its own amount format, names and signatures."""

    def __init__(self) -> None:
        self.order: Body = {}
        self.keys: set[str] = set()
        self.refunded: list[Body] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        assert request.headers["X-Orchard-Key"] == KEY
        assert request.headers["X-Orchard-Version"] == "2026-01"
        sent: Body = json.loads(request.content or b"{}")
        match f"{request.method} {request.url.path}":
            case "POST /v2/shops/s-1/orders":
                self.keys.add(request.headers["X-Request-Id"])
                self.order = {"id": "or/1", "state": "new", "shop": "s-1", **sent}
                links = {"page": "https://pay.sandbox.orchard.example/or/1"}
                return httpx.Response(201, json={"order": {"id": "or/1", "links": links}})
            case "GET /v2/shops/s-1/orders/or/1":
                assert request.url.raw_path.endswith(b"/or%2F1")
                return httpx.Response(200, json={"order": self.order})
            case "PUT /v2/shops/s-1/orders/or/1/state":
                self.order |= sent
                return httpx.Response(204)
            case "POST /v2/shops/s-1/refunds":
                self.refunded.append(sent)
                self.order["returned"] = sent["price"]["value"]
                return httpx.Response(201, json={"refund": {"id": "rf-1", "state": "queued"}})
            case call:
                raise AssertionError(call)

    def pay(self) -> None:
        self.order |= {"state": "paid", "charges": [{"id": "ch-1"}]}

    def event(self, kind: str = "order.changed", id: str = "e-1") -> bytes:
        return json.dumps({"id": id, "kind": kind, "data": self.order}).encode()


async def say(payment_env: PaymentEnv, event: bytes) -> str:
    headers = signing.stripe(event, secret="whsec_x", now=payment_env.clock())
    answer = await payment_env.post(event, headers=headers)
    assert answer.status_code == 200
    return str(answer.json()["received"])
