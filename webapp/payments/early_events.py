"""Early events: refunds and disputes of a payment that arrive before the payment itself.

Risks: the money is gone, and a tool still gets a receipt because the event came first. So these
events are stored by the payment that they name, and the code that records a payment applies its
early events before it writes the payment's row. When an early event arrives, the owner of the
question may be unknown, so the rows of early events belong to the service. A separate write marks
the events as applied. If that write is lost, they are applied twice, which changes nothing.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from msgspec.structs import replace

from flows.payments.gateway import MerchantAccount, Notice
from flows.payments.receipt import Payment
from flows.payments.registry import Gateways
from webapp.elicitations.service import Elicitations
from webapp.payments.webhook_rows import contradicts, event_of, heard_events
from webapp.records.ids import owner_of
from webapp.records.owners import SERVICE
from webapp.records.values import EarlyEvent, StoredWebhook
from webapp.stores import Conflict

REMEMBERED_AT_MOST = 100  # for one payment; the sweeper handles all of them


@dataclass(frozen=True, slots=True)
class PaymentWithEvents:
    """A payment to which its early events were applied, with the webhooks of these events."""

    payment: Payment
    webhooks: Sequence[StoredWebhook] = ()


class EarlyEvents:
    def __init__(self, *, elicitations: Elicitations, flow: Gateways) -> None:
        self._elicitations = elicitations
        self._flow = flow

    async def wait(self, hook: StoredWebhook, event: Notice) -> str:
        """Store the event until its payment is recorded. Return "waiting" or "duplicate"."""
        assert event.payment is not None
        ids = self._elicitations.rows.ids
        id = ids.early_event(SERVICE, provider=hook.seller, payment=event.payment)

        async def values() -> Sequence[StoredWebhook | EarlyEvent]:
            if (
                await self._elicitations.read(StoredWebhook, owner=hook.owner, id=hook.id)
                is not None
            ):
                return []
            fresh = EarlyEvent(id=id, owner=SERVICE, hooks=(), erase_at=hook.erase_at)
            found = await self._elicitations.read(EarlyEvent, owner=SERVICE, id=id) or fresh
            hooks = (*found.hooks, hook.id)[-REMEMBERED_AT_MOST:]
            waiting = replace(hook, status="waiting", why="payment")
            return [waiting, replace(found, hooks=hooks, erase_at=hook.erase_at)]

        return "waiting" if await self._elicitations.write_afresh(values) else "duplicate"

    async def apply_to(self, payment: Payment) -> PaymentWithEvents:
        """Return the payment's row with its early events applied, and their webhooks."""
        gateway = self._flow.signers.get(payment.seller)
        if payment.payment_intent is None or gateway is None:
            return PaymentWithEvents(payment)
        ids = self._elicitations.rows.ids
        id = ids.early_event(SERVICE, provider=payment.seller, payment=payment.payment_intent)
        early = await self._elicitations.read(EarlyEvent, owner=SERVICE, id=id)
        hooks: list[StoredWebhook] = []
        for hook_id in () if early is None else early.hooks:
            hook = await self._elicitations.read(StoredWebhook, owner=SERVICE, id=hook_id)
            event = None if hook is None else event_of(hook, gateway)
            if hook is None or event is None or not _is_of(payment, event, gateway.seller):
                continue
            payment = heard_events(payment, event, now=self._elicitations.clock())
            hooks.append(hook)
        return PaymentWithEvents(payment, hooks)

    async def applied(self, hooks: Sequence[StoredWebhook]) -> None:
        """Mark the webhooks as applied, after the payment's row was written."""
        for hook in hooks:
            if hook.status != "applied":
                with suppress(Conflict):  # the sweeper is handling this webhook
                    done = replace(hook, status="applied", why=None, transition=None)
                    await self._elicitations.write(done)


def _is_of(payment: Payment, event: Notice, seller: MerchantAccount) -> bool:
    if event.news is None or event.payment != payment.payment_intent:
        return False
    if event.reference is not None and owner_of(event.reference) != payment.owner:
        return False
    return contradicts(payment, event, event.news.currency, seller=seller) is None
