"""Unsigned notices about a payment, which only make this server ask the provider.

Risks: anyone can send a notice and so cause requests to the provider. The provider is asked only
about questions and payments that this server has stored. For a notice that names only a payment,
the provider is first asked for the payment's question; one rate limit covers all such requests.
"""

from datetime import timedelta

from flows.payments.gateway import Traces, UnsignedNotice, heard
from flows.payments.receipt import Payment
from flows.payments.session import Mismatch, sessions_of
from webapp.elicitations.service import Elicitations
from webapp.http.client import Outbound
from webapp.http.rate_limit import Rates
from webapp.payments.payments import Payments
from webapp.records.ids import owner_of

TRACES_AT_ONCE = 60
BETWEEN_TRACES = timedelta(seconds=1)


class UnsignedNotices:
    def __init__(
        self, *, elicitations: Elicitations, payments: Payments, outbound: Outbound
    ) -> None:
        self._elicitations = elicitations
        self._payments = payments
        self._outbound = outbound
        self._traces = Rates(
            burst=TRACES_AT_ONCE,
            every=BETWEEN_TRACES,
            clock=elicitations.clock,
        )

    async def receive(self, provider: str, hint: UnsignedNotice) -> str:
        """Poll the provider if the session is this server's. Return "asked" or "unknown".

        Raises:
            Failed: The provider cannot be asked now.
            TooOften: Too many payments were looked up.
            Mismatch: The session differs from what was requested.
        """
        ledger = self._payments.ledger
        elicitation = await self._elicitations.get(hint.reference or "")
        if elicitation is None and hint.payment is not None:
            reference = await self._trace(provider, hint.payment)
            if reference is None:
                return "unknown"
            elicitation = await self._elicitations.get(reference)
            if elicitation is None:
                found = await ledger.of_intent(owner_of(reference), hint.payment, provider=provider)
                return await self._revisit(provider, found)
        if elicitation is None and hint.reference is not None and hint.session is not None:
            found = await ledger.of_session(hint.reference, hint.session, provider=provider)
            return await self._revisit(provider, found)
        if elicitation is None or elicitation.kind != "payment":
            return "unknown"
        if self._payments.merchant_of(elicitation) != provider:
            return "unknown"
        checkouts = self._payments.checkouts
        if hint.session is not None and hint.session not in sessions_of(elicitation):
            elicitation = await checkouts.reconcile(elicitation)
            if hint.session not in sessions_of(elicitation):
                return "unknown"
        await checkouts.ask_provider(elicitation)
        return "asked"

    async def _trace(self, provider: str, payment: str) -> str | None:
        """Return the question's id that the provider has stored with the payment, or None."""
        gateway = self._payments.flow.named(provider)
        if not isinstance(gateway, Traces):
            return None
        self._traces.require(provider)
        return await self._outbound.run(gateway.trace(payment))

    async def _revisit(self, provider: str, payment: Payment | None) -> str:
        """Poll the session of a payment whose question is erased. Return "asked" or "unknown".

        A bank may claim a payment months later, when its question is no longer stored.
        """
        gateway = self._payments.flow.named(provider)
        if payment is None or not isinstance(gateway, Traces):
            return "unknown"
        found = await self._outbound.run(gateway.revisit(payment))
        if found.payment != payment.payment_intent:
            raise Mismatch("payment", session=found.id)
        if (found.currency, found.amount) != (payment.currency, payment.amount):
            raise Mismatch("amount", session=found.id)
        now = self._elicitations.clock()
        await self._payments.ledger.change(
            payment.owner, payment.id, lambda current: heard(current, found, now=now)
        )
        return "asked"
