"""Erased: what is told of a payment whose question is no longer stored.

What could go wrong: a bank takes the money months later, and what was bought is still handed out;
or money comes for a question that is gone, and nobody hears of it. So the row in the ledger, which
is kept for years, is found by what it was for. Where there is none, none is made: anybody who pays
at our account can give a reference of ours, and by itself a row would be given back. Such an event
is refused, and its payment listed as one that somebody has to look at. So is one of a question
that this store never had, as where it was put back from a backup.
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

    async def hear(self, seller: MerchantAccount, event: Notice, body: WebhookBody) -> str:
        """A session is told of whose question is not stored; what became of it, in a word."""
        payment = await self._of_session(event, seller=seller)
        hook = self._rows.of(SERVICE if payment is None else payment.owner, seller, event, body)
        done = await self._verified(hook, event, payment, seller=seller)
        if payment is None or done.status == "refused":
            return await self._rows.keep(done, status=done.status, why=done.why)
        return str((await self._heard(payment, event, done)).status)

    async def reconcile(
        self, hook: StoredWebhook, event: Notice, *, seller: MerchantAccount
    ) -> StoredWebhook:
        """The same of an event that is a row already; as it is to be written."""
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
                loose_ends = self._payments.loose_ends
                await loose_ends.of_nobody(reference, session, seller=seller, why=why)
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
        """The payment of a session whose question may be erased: the row says whose it was."""
        if event.session is None or event.reference is None:
            return None
        session = event.session
        return await self._payments.ledger.of_session(
            event.reference, session.id, seller=seller.name, payment=session.payment
        )


def _is_no_money(session: ProviderSession | None) -> bool:
    """Whether it says that there is none; of a session that it only names it says nothing."""
    if session is None:
        return False
    return session.state is not SessionStatus.PAID or session.gone >= (session.amount or 1)
