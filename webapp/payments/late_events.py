"""Afterwards: what became of a payment once it was paid, also where that is told before it.

What could go wrong: money that is gone and a receipt that still counts, because the news came
first. They wait while the question that they name is ours and unpaid: whatever records the
payment takes them in (`webapp.payments.early_events`), and the sweeper asks the provider meanwhile,
but less and less often.
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
LATER_AT_MOST = timedelta(days=1)  # where its provider would have to be asked


class LateEvents:
    def __init__(
        self, *, elicitations: Elicitations, payments: Payments, outbound: Outbound
    ) -> None:
        self._elicitations = elicitations
        self._payments = payments
        self._outbound = outbound
        self._rows = WebhookRows(elicitations)

    async def hear(
        self, seller: MerchantAccount, event: Notice, news: PaymentChange, body: WebhookBody
    ) -> str:
        """What became of a payment afterwards, also before we heard that it was paid."""
        payment = await self._named(event.reference, event, seller=seller)
        if payment is None:
            hook = self._rows.of(SERVICE, seller, event, body)
            return await self._payments.verification.early.wait(hook, event)
        hook = self._rows.of(payment.owner, seller, event, body)
        wrong = contradicts(payment, event, news.currency, seller=seller)
        if wrong is not None:
            return await self._rows.keep(hook, status="refused", why=wrong)
        return str((await self._heard(payment, event, hook)).status)

    async def reconcile(
        self, hook: StoredWebhook, event: Notice, news: PaymentChange, *, gateway: Signs
    ) -> StoredWebhook:
        """A bank's claim names no question, and other news may come before the payment's own.

        Raises Failed if the provider cannot say whose it is.
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
        wrong = contradicts(payment, event, news.currency, seller=seller)
        if wrong is not None:
            return replace(hook, status="refused", why=wrong)
        if news.dispute is None or not await self._asked_about_claims(payment, event):
            await self._heard(payment, event, None)
        return replace(hook, status="applied", why=None, transition=None)

    async def _ask(self, elicitation: Elicitation) -> Elicitation:
        """Raises Mismatch."""
        checkouts = self._payments.checkouts
        if elicitation.is_open_there or not elicitation.status.is_final:
            with suppress(Failed):  # it is asked again
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
        """Ask how far the claims are now, which counts more than an event of any time.

        Returns False if the provider does not say that of the claim in the event.
        """
        gateway = self._payments.flow.claim_tellers.get(payment.seller)
        if gateway is None:
            return False
        try:
            told = await self._outbound.run(gateway.claims(payment))
        except Failed as error:
            _log.warning("provider.failed", extra={"id": payment.id, "why": str(error)})
            return False
        now, owner = self._elicitations.clock(), payment.owner
        await self._payments.ledger.change(
            owner, payment.id, lambda current: claimed(current, told, now=now)
        )
        return any(one.id == event.subject for one in told)

    async def _named(
        self, reference: str | None, event: Notice, *, seller: MerchantAccount
    ) -> Payment | None:
        if reference is None or event.payment is None:
            return None
        return await self._payments.ledger.of_intent(
            owner_of(reference), event.payment, seller=seller.name
        )


def may_be_ours(event: Notice, news: PaymentChange) -> bool:
    """A charge carries our reference; a bank's claim or a refund by hand names the payment only."""
    names_payment = news.dispute is not None or news.refund is not None
    return (event.reference is not None or names_payment) and event.payment is not None


def later(
    hook: StoredWebhook, *, now: datetime, at_most: timedelta = LATER_AT_MOST
) -> StoredWebhook:
    """It is looked into again, after as long a time as it has waited by now."""
    pause = min(max(now - hook.received_at, AGAIN_AT_LEAST), at_most)
    return replace(hook, again_at=now + pause)
