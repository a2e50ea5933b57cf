"""Consistent reports: after each step, the page, the list, the event and the model agree."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows import Receipt
from tests.support.event_env import SECRET
from tests.support.mcp_server import eventually, text_of
from tests.support.paying import give_up
from tests.support.serving import serving_at
from tests.support.shop_env import Buying, Shop, buying
from webapp.cli.payments import list_payments, refund_payment
from webapp.events.addresses import EventAddress
from webapp.records.ids import tail_of
from webapp.records.values import OutgoingEvent

if TYPE_CHECKING:
    import mcp_types as types

OUTCOMES = Path(__file__).parents[3] / "docs/reference/payment-outcomes.md"
NOT_GIVEN = "no seats are left"
HANDED_OUT = "the receipt"


class Books:
    """Everything that is reported about the latest payment: page, list, events and model."""

    def __init__(self, shop: Shop, buy: Buying, events: dict[str, Any]) -> None:
        self.shop = shop
        self.buy = buy
        self.events = events
        self.rows: list[list[str]] = []
        self.there = ""
        self._asking: asyncio.Task[types.CallToolResult] | None = None

    async def press(self, *buttons: str) -> None:
        """Press buttons as the seller or a bank would at the provider, and deliver its events."""
        for button in buttons:
            await self.buy.person.press_there(self.there, button)
            if button != "slow":
                await eventually(lambda: self.shop.post)
            await self.shop.send_all()
        await self.shop.sweep()

    async def refund(self, amount: str | None = None, *, days: int = 0) -> str:
        (payment,) = await self.shop.payments()
        (line,) = await refund_payment(
            self.shop.service, tail_of(payment), reason=None, also_spent=False, amount=amount
        )
        await eventually(lambda: self.shop.post)
        await self.shop.send_all()
        self.shop.clock.tick(days=days)
        return line

    async def write(self, what: str, *, asks: bool = True) -> None:
        """Add a row to the table. With `asks`, first repeat the tool call, for the model column."""
        model = await self._model() if asks else ""
        events = ", ".join(await self._events())
        row = [what, await self._page(), await self._listed(), events, model]
        self.rows.append([cell.replace("|", "/") for cell in row])

    @property
    def table(self) -> str:
        """Return the table as `docs/reference/payment-outcomes.md` shows it."""
        head = [
            "what happened",
            "`/payments` page",
            "`elicit payments list`",
            "event",
            "the model reads",
        ]
        lines = [head, ["---"] * len(head), *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines).replace("|  |", "| |")

    async def _events(self) -> list[str]:
        """Return the types of the events that were sent since the previous row."""
        while any(  # noqa: ASYNC110 - the process sends them
            one.status == "waiting"
            for one in await self.shop.service.elicitations.all(OutgoingEvent)
        ):
            await asyncio.sleep(0)
        types = [reported["type"] for reported in self.events.values()]
        self.events.clear()
        return [f"`{one}`" for one in types if one.startswith("payment")]

    async def _page(self) -> str:
        text = (await self.buy.person.visit(f"{self.shop.url}/payments")).text
        card = text.partition("</blockquote>")[2].partition('<p class="hint">')[0]
        paragraphs = re.findall(r"<p.*?</p>", card, re.DOTALL)
        loud = [re.findall(r"<strong>(.*?)</strong>", one) or [one] for one in paragraphs]
        page_text = re.sub(r"<[^>]+>", "", " ".join(one for (one,) in loud))
        return unescape(page_text).replace("\u00a0", " ")

    async def _listed(self) -> str:
        (row,) = (await list_payments(self.shop.service, only_open=False)).rows
        is_open = (await list_payments(self.shop.service, only_open=True)).rows != []
        words = row.standing if row.note is None else f"{row.standing}; {row.note}"
        words = re.sub(r"\d{4}-\d\d-\d\d", "DATE", words)
        return f"{words} (open)" if is_open else words

    async def _model(self) -> str:
        """Return the text that the repeated call gives to the model.

        If the call asks for another payment, say so and leave the call open.
        """
        caller, bodies = self.buy.caller, self.shop.bodies
        (payment,) = await self.shop.payments()
        if self._asking is not None and payment.has_ended:
            return "still asks for a new payment"
        call, self._asking = self._asking or caller.call("report"), None
        await eventually(lambda: call.done() or caller.has_links_left)
        if caller.has_links_left:
            await caller.link()
            self._asking = call
            return "asks for a new payment"
        return HANDED_OUT if self.shop.bodies > bodies else text_of(call.result())


@asynccontextmanager
async def booked(shop: Shop) -> AsyncIterator[Books]:
    """Pay for a call whose tool fails, so that each repeated call receives the same receipt."""
    reported: dict[str, Any] = {}  # by event id

    async def receive(scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        id = dict(scope["headers"])[b"webhook-id"].decode()
        reported[id] = json.loads(body)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def fails(receipt: Receipt) -> str:
        raise ValueError(NOT_GIVEN)

    shop.body = fails
    async with serving_at(lambda _: receive) as place:
        address = EventAddress(name="books", url=place, secrets=(SECRET,))
        await shop.restart(events=(address,))
        async with buying(shop) as buy:
            books = Books(shop, buy, reported)
            await give_up(shop, buy)
            books.there = await buy.press("card")
            await shop.send_all()
            yield books


async def test_payment_reports_match_the_documented_table_at_each_step_after_the_sale(
    shop: Shop,
) -> None:
    # finding: XM3, XM4, XM6
    async with booked(shop) as books:
        await books.write("the person pays, and the tool fails")
        await books.press("slow")
        await books.refund("3.00", days=3)
        await books.write("the operator refunds 3.00 EUR")
        await books.press("refund_fails")
        await books.write("three days later the refund fails")
        await books.refund("3.00")
        await books.press("refund_arrives")
        await books.write("the operator repeats the refund")
        await books.press("inquiry")
        await books.write("a bank asks about the payment (inquiry)")
        await books.press("claim")
        await books.write("the bank opens a dispute")
        await books.write("the client repeats the call")
        await books.press("lost")
        await books.write("the dispute is lost")
        await books.press("appeal")
        await books.write("the seller appeals")
        await books.press("won")
        await books.write("the appeal is won")
        await books.refund(days=3)
        await books.write("the operator refunds the rest", asks=False)
        await books.press("refund_fails")
        await books.write("three days later the refund fails")
        await books.refund()
        await books.press("refund_arrives")
        await books.write("the operator repeats the refund, and it succeeds", asks=False)
        assert len(await shop.payments()) == 1
        assert books.table in OUTCOMES.read_text()
