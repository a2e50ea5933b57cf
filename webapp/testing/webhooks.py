"""The payment provider's side of a test: refunds, disputes, and webhooks, valid and invalid.

The sandbox sends the webhooks and signs them as the simulated provider does.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx
from msgspec.structs import replace

from flows.payments.money import Money
from flows.payments.receipt import Dispute, Payment
from webapp.sandbox.checkout.deliveries import Deliveries, DeliveryHabits, SandboxEvent
from webapp.sandbox.checkout.sales import Sale, Sales

_OTHER = "elsewhere"


class ProviderWebhooks:
    """The payment provider's webhooks.

    Each method named send_... returns the status code of the application's response.
    """

    def __init__(
        self,
        sales: Sequence[Sales[Any]],
        send: Callable[[httpx.Request], Awaitable[httpx.Response]],
        *,
        settle: Callable[[], Awaitable[object]],
    ) -> None:
        """Create the webhooks. `settle` runs the application's work that is due after a webhook."""
        self._sales = sales
        self._deliveries = tuple(each.deliveries for each in sales)
        self._send = send
        self._settle = settle

    def arrive(
        self, *, duplicates: int = 0, hold: bool = False, drop: bool = False, reorder: bool = False
    ) -> None:
        """Set how webhooks are delivered from now on.

        Without arguments, each webhook is delivered once, without delay.
        """
        for one in self._deliveries:
            one.habits = DeliveryHabits(
                duplicates=duplicates, hold=hold, drop=drop, reorder=reorder
            )

    def hold(self) -> None:
        """Hold back new webhooks until they are released."""
        for one in self._deliveries:
            one.habits = replace(one.habits, hold=True)

    async def release(self) -> None:
        """Send the webhooks that were held back, and stop holding."""
        for one in self._deliveries:
            await one.post(one.release())

    async def send_again(self) -> int:
        """Send the latest webhook again."""
        deliveries, event = self._latest()
        return await self._status(deliveries.request_of(event))

    async def send_forged(self) -> int:
        """Send the latest webhook with its signature and a changed body."""
        deliveries, event = self._latest()
        signed = deliveries.request_of(event)
        headers = [pair for pair in signed.headers.raw if pair[0].lower() != b"content-length"]
        body = event.body + b" "
        return await self._status(httpx.Request("POST", event.url, content=body, headers=headers))

    async def send_foreign(self, session: str) -> int:
        """Send the latest webhook, signed by the provider, for a session that is not ours.

        `session` is the id of the session that the latest webhook is about.
        """
        deliveries, event = self._latest()
        body, id = event.body, event.id + _OTHER
        if session.encode() not in body:
            raise AssertionError(f"The latest webhook is about a session other than {session}.")
        for own, others in ((session, session + _OTHER), (event.id, id)):
            body = body.replace(own.encode(), others.encode())
        foreign = SandboxEvent(id=id, type=event.type, url=event.url, body=body)
        return await self._status(deliveries.request_of(foreign))

    async def report_refund(self, payment: Payment, amount: Money | None = None) -> None:
        """Refund a payment at the provider, or `amount` of it, and send the webhook about that."""
        sales, sale = self._sale(payment)
        units = sale.remaining_units if amount is None else amount.minor_units
        currency = sale.price.currency
        if amount is not None and amount.currency != currency:
            raise AssertionError(f"The payment is in {currency}, and the refund is {amount}.")
        if not 0 < units <= sale.remaining_units:
            remaining = Money.from_minor_units(sale.remaining_units, currency)
            raise AssertionError(f"{remaining} of the payment can be refunded, and not {amount}.")
        sales.refund(sale, units, {})
        await self._report(sales)

    async def report_dispute(self, payment: Payment, stage: str = "open") -> None:
        """Set the stage of a dispute at the provider, and send the webhook about that.

        `stage` is "open" (the bank claims the money), "won" or "lost". Some providers also report
        "inquiry", "closed" (no money moved) and "appealed" (the seller objects).
        """
        sales, sale = self._sale(payment)
        buttons = [each for each in sales.vendor.buttons if each.dispute and each.when(sale)]
        button = next((each for each in buttons if each.dispute == stage), None)
        if button is None:
            possible = ", ".join(str(each.dispute) for each in buttons) or "none"
            known = "" if stage in set(Dispute) else f" {stage!r} is not a stage."
            raise AssertionError(
                f"{sales.vendor.label} cannot report the dispute stage {stage!r} now.{known} "
                f"Possible stages: {possible}."
            )
        sales.press(sale, button.name)
        await self._report(sales)

    async def _report(self, sales: Sales[Any]) -> None:
        await sales.deliveries.send_new()
        await self._settle()

    def _sale(self, payment: Payment) -> tuple[Sales[Any], Sale]:
        for sales in self._sales:
            if (sale := sales.find(payment.session)) is not None:
                return sales, sale
        raise AssertionError("The provider does not know this payment. Use person.payments().")

    def _latest(self) -> tuple[Deliveries, SandboxEvent]:
        for one in self._deliveries:
            if one.latest is not None:
                return one, one.latest
        raise AssertionError("The provider has sent no webhook yet: let the person pay first.")

    async def _status(self, request: httpx.Request) -> int:
        return (await self._send(request)).status_code
