"""Orphaned events: events of a session whose question is no longer stored.

Risks: a bank takes the money months later, and a permanent purchase is still delivered. Or money
arrives for an erased question and the operator does not notice. So the payment is looked up in the
ledger, which is stored for years. If the ledger has no row for the payment, no row is created:
anyone who pays to the merchant account can set a reference, and the server would refund the payment
of a new row automatically. Such an event is refused, and its payment is listed for the operator.
An event of a question that this store never had, for example after a restore from a backup, is
refused and listed too.
"""

from msgspec.structs import replace

from flows.payments.gateway import MerchantAccount, Notice, ProviderSession, heard
from flows.payments.receipt import Payment
from flows.payments.session import SessionStatus
from webapp.elicitations.service import Elicitations
from webapp.payments.payments import Payments
from webapp.payments.unresolved import why_not_stored
from webapp.payments.webhook_rows import WebhookBody, WebhookRows, contradicts
from webapp.records.owners import SERVICE
from webapp.records.values import StoredWebhook


class OrphanedEvents:
    def __init__(self, *, elicitations: Elicitations, payments: Payments) -> None:
        self._elicitations = elicitations
        self._payments = payments
        self._rows = WebhookRows(elicitations)

    async def apply(self, seller: MerchantAccount, event: Notice, body: WebhookBody) -> str:
        """Apply an event of a session whose question is not stored.

        Return the payment's new status, or the status of the stored webhook.
        """
        payment = await self._of_session(event, seller=seller)
        hook = self._rows.of(SERVICE if payment is None else payment.owner, seller, event, body)
        done = await self._verified(hook, event, payment, seller=seller)
        if payment is None or done.status == "refused":
            return await self._rows.keep(done, status=done.status, why=done.why)
        return str((await self._heard(payment, event, done)).status)

    async def reconcile(
        self, hook: StoredWebhook, event: Notice, *, seller: MerchantAccount
    ) -> StoredWebhook:
        """Apply a stored event as `apply` does. Return the webhook's row to write."""
        payment = await self._of_session(event, seller=seller)
        done = await self._verified(hook, event, payment, seller=seller)
        if payment is not None and done.status != "refused":
            await self._heard(payment, event, None)
        return done

    async def _verified(
        self,
        hook: StoredWebhook,
        event: Notice,
        payment: Payment | None,
        *,
        seller: MerchantAccount,
    ) -> StoredWebhook:
        session = event.session
        if payment is None or session is None:
            is_ours = event.account == seller.account and event.is_live == seller.is_live
            reference, now = event.reference or "", self._elicitations.clock()
            why = why_not_stored(reference, now=now)
            if why is None or not is_ours or _is_no_money(session):
                return replace(hook, status="unknown", why=None)
            if session is not None:
                unresolved = self._payments.unresolved
                await unresolved.add_unmatched(reference, session, seller=seller, why=why)
            return replace(hook, status="refused", why=why)
        wrong = contradicts(payment, event, session.currency, seller=seller)
        if wrong is None and session.amount != payment.amount:
            wrong = "amount"
        if wrong is not None:
            return replace(hook, status="refused", why=wrong)
        is_news = heard(payment, session, now=self._elicitations.clock()) != payment
        return replace(hook, status="applied" if is_news else "repeated", why=None)

    async def _heard(self, payment: Payment, event: Notice, hook: StoredWebhook | None) -> Payment:
        session, now = event.session, self._elicitations.clock()
        assert session is not None
        return await self._payments.ledger.change(
            payment.owner,
            payment.id,
            lambda current: heard(current, session, now=now),
            hook=hook,
        )

    async def _of_session(self, event: Notice, *, seller: MerchantAccount) -> Payment | None:
        """Return the payment of the event's session, or None if the ledger has no row for it.

        The question may be erased, so the caller reads the owner from the payment.
        """
        if event.session is None or event.reference is None:
            return None
        session = event.session
        return await self._payments.ledger.of_session(
            event.reference, session.id, provider=seller.name, payment=session.payment
        )


def _is_no_money(session: ProviderSession | None) -> bool:
    """Return True if the session shows that no money was paid or all was returned.

    An event without a session says nothing about the money: False.
    """
    if session is None:
        return False
    return session.state is not SessionStatus.PAID or session.total_returned >= (
        session.amount or 1
    )
