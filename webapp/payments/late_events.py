"""Late events: refunds and disputes after a payment, including those that arrive before it.

Risks: the money is gone and a receipt still counts because the event came first. An event that
comes first is stored while its question exists and is unpaid. The code that records the payment
applies the event (`webapp.payments.early_events`). Until the payment is recorded, the sweeper polls
the provider, less and less often.
"""

import logging
from contextlib import suppress
from datetime import datetime, timedelta

from msgspec.structs import replace

from flows.elicitation.states import Elicitation
from flows.errors import Failed
from flows.payments.claims import claimed
from flows.payments.gateway import MerchantAccount, Notice, Signs
from flows.payments.receipt import Payment, PaymentChange
from flows.payments.session import Mismatch
from webapp.elicitations.service import Elicitations
from webapp.http.client import Outbound
from webapp.payments.payments import Payments
from webapp.payments.webhook_rows import WebhookBody, WebhookRows, contradicts, heard_events
from webapp.records.ids import owner_of
from webapp.records.owners import SERVICE
from webapp.records.values import StoredWebhook

_log = logging.getLogger(__name__)
AGAIN_AT_LEAST = timedelta(seconds=30)
AGAIN_AT_MOST = timedelta(minutes=10)
LATER_AT_MOST = timedelta(days=1)  # while the provider cannot be reached


class LateEvents:
    def __init__(
        self, *, elicitations: Elicitations, payments: Payments, outbound: Outbound
    ) -> None:
        self._elicitations = elicitations
        self._payments = payments
        self._outbound = outbound
        self._rows = WebhookRows(elicitations)

    async def apply(
        self, seller: MerchantAccount, event: Notice, change: PaymentChange, body: WebhookBody
    ) -> str:
        """Apply a refund or dispute event, or store it until its payment is recorded.

        Return the payment's new status, or the status of the stored webhook.
        """
        payment = await self._named(event.reference, event, seller=seller)
        if payment is None:
            hook = self._rows.of(SERVICE, seller, event, body)
            return await self._payments.verification.early.wait(hook, event)
        hook = self._rows.of(payment.owner, seller, event, body)
        wrong = contradicts(payment, event, change.currency, seller=seller)
        if wrong is not None:
            return await self._rows.keep(hook, status="refused", why=wrong)
        return str((await self._heard(payment, event, hook)).status)

    async def reconcile(
        self, hook: StoredWebhook, event: Notice, change: PaymentChange, *, gateway: Signs
    ) -> StoredWebhook:
        """Find the payment of a stored event and apply it. Return the webhook's row to write.

        Some events, such as disputes, do not name their question. For these events, ask the
        provider which question the payment was made for.

        Raises:
            Failed: The provider cannot say which question the payment was for.
        """
        seller = gateway.seller
        reference = event.reference
        if reference is None and event.payment is not None:
            reference = await self._outbound.run(gateway.trace(event.payment))
        payment = await self._named(reference, event, seller=seller)
        if payment is None and reference is not None:
            elicitation = await self._elicitations.get(reference)
            if elicitation is not None and self._is_of(elicitation, seller):
                try:
                    elicitation = await self._ask(elicitation)
                except Mismatch as error:
                    return replace(hook, status="refused", why=error.what)
                payment = await self._named(reference, event, seller=seller)
                if payment is None and not await self._is_paid(elicitation):
                    return self._again(hook)
        if payment is None:
            return replace(hook, status="unknown", why=None)
        wrong = contradicts(payment, event, change.currency, seller=seller)
        if wrong is not None:
            return replace(hook, status="refused", why=wrong)
        if change.dispute is None or not await self._asked_about_claims(payment, event):
            await self._heard(payment, event, None)
        return replace(hook, status="applied", why=None, transition=None)

    async def _ask(self, elicitation: Elicitation) -> Elicitation:
        """Ask the provider about the question's sessions if they may be paid. Raises Mismatch."""
        checkouts = self._payments.checkouts
        if elicitation.is_open_there or not elicitation.status.is_final:
            with suppress(Failed):  # the sweeper polls the provider later
                elicitation = await checkouts.reconcile(elicitation)
                await checkouts.ask_provider(elicitation)
        return await self._elicitations.get(elicitation.id) or elicitation

    def _is_of(self, elicitation: Elicitation, seller: MerchantAccount) -> bool:
        is_payment = elicitation.kind == "payment"
        return is_payment and self._payments.merchant_of(elicitation) == seller.name

    async def _is_paid(self, elicitation: Elicitation) -> bool:
        return await self._payments.ledger.paid(elicitation) is not None

    def _again(self, hook: StoredWebhook) -> StoredWebhook:
        waiting = replace(hook, status="waiting", why="payment")
        return later(waiting, now=self._elicitations.clock(), at_most=AGAIN_AT_MOST)

    async def _heard(self, payment: Payment, event: Notice, hook: StoredWebhook | None) -> Payment:
        now = self._elicitations.clock()
        return await self._payments.ledger.change(
            payment.owner,
            payment.id,
            lambda current: heard_events(current, event, now=now),
            hook=hook,
        )

    async def _asked_about_claims(self, payment: Payment, event: Notice) -> bool:
        """Store the current stages of the payment's claims, as the provider reports them.

        They override the stage in the event. Return False if the provider does not report the
        event's claim: the caller then applies the event itself.
        """
        gateway = self._payments.flow.claim_tellers.get(payment.seller)
        if gateway is None:
            return False
        try:
            reported = await self._outbound.run(gateway.claims(payment))
        except Failed as error:
            _log.warning("provider.failed", extra={"id": payment.id, "why": str(error)})
            return False
        now, owner = self._elicitations.clock(), payment.owner
        await self._payments.ledger.change(
            owner, payment.id, lambda current: claimed(current, reported, now=now)
        )
        return any(one.id == event.subject for one in reported)

    async def _named(
        self, reference: str | None, event: Notice, *, seller: MerchantAccount
    ) -> Payment | None:
        if reference is None or event.payment is None:
            return None
        return await self._payments.ledger.of_intent(
            owner_of(reference), event.payment, provider=seller.name
        )


def may_be_ours(event: Notice, change: PaymentChange) -> bool:
    """Return True if the event may be about a payment of this server.

    An event about a charge names its question. An event about a bank's claim, or about a refund
    made at the provider's dashboard, names only the payment.
    """
    names_payment = change.dispute is not None or change.refund is not None
    return (event.reference is not None or names_payment) and event.payment is not None


def later(
    hook: StoredWebhook, *, now: datetime, at_most: timedelta = LATER_AT_MOST
) -> StoredWebhook:
    """Schedule the next check of the stored webhook.

    The pause is the time since the webhook arrived, so the checks become rarer, up to `at_most`.
    """
    pause = min(max(now - hook.received_at, AGAIN_AT_LEAST), at_most)
    return replace(hook, again_at=now + pause)
