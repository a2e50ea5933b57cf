"""Refunds: money goes back, on a call's word or an operator's, or by itself as nobody used it.

What could go wrong: it goes back twice, or goes back while a call uses what it paid for. So the
ledger says first that nobody uses it any more; then the provider is asked, under a key of the
receipt's own; and what is not known to be done is asked again, later each time.
"""

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta

from flows import receipt as receipts
from flows.errors import Failed, NotConfigured, NotPossible
from flows.gateway import Registration
from flows.gateways import Gateways
from flows.receipt import REFUND_AGAIN_AFTER, REFUND_AGAIN_AT_MOST, Payment, ReceiptStatus, Refund
from webapp.elicitations import Elicitations
from webapp.ledger import Ledger
from webapp.outbound import Outbound

UNUSED = "nobody used it"
_log = logging.getLogger(__name__)


class Refunds:
    def __init__(
        self,
        *,
        elicitations: Elicitations,
        outbound: Outbound,
        sellers: Mapping[str, Registration],
        flow: Gateways,
        ledger: Ledger,
    ) -> None:
        self._elicitations = elicitations
        self._outbound = outbound
        self._sellers = sellers
        self._flow = flow
        self._ledger = ledger

    def is_possible(self, payment: Payment) -> bool:
        """Whether whoever took it is set up here, in the mode that it was paid in."""
        seller = self._sellers.get(payment.seller)
        is_theirs = seller is not None and seller.is_live == payment.is_live
        return is_theirs and payment.payment_intent is not None

    async def give_back(
        self,
        owner: str,
        id: str,
        *,
        reason: str | None,
        run: str | None = None,
        also_spent: bool = False,
    ) -> Refund:
        """Give the money back; the same again gives the same refund.

        `run` is the one that has it in hand. Raises KeyError if there is no such payment,
        NotPossible if it was spent (unless that counts, too) or a call uses it, Failed if the
        provider cannot be asked: then it is asked again by itself.
        """
        payment = await self._ledger.begin_refund(
            owner, id, reason=reason, run=run, also_spent=also_spent
        )
        return await self._finish(payment)

    async def fall_due(self, payment: Payment) -> None:
        """Give back what nobody used, or what could not be given back before."""
        now = self._elicitations.clock()
        if payment.due_at is None or now < payment.due_at:
            return
        if not self.is_possible(payment):
            await self._postpone(payment, pause=REFUND_AGAIN_AT_MOST)
            return
        try:
            await self.give_back(payment.owner, payment.id, reason=UNUSED)
        except NotPossible:
            await self._postpone(payment, pause=REFUND_AGAIN_AFTER)
        except Failed as error:
            tried = await self._ledger.change(
                payment.owner, payment.id, lambda p: _tried_again(p, now)
            )
            about = {"id": payment.id, "why": str(error), "tries": tried.refund_tries}
            _log.warning("payment.not_refunded", extra=about)
        else:
            _log.info("payment.refunded", extra={"id": payment.id})

    async def _finish(self, payment: Payment) -> Refund:
        try:
            # As it was begun: the same words under the same key.
            talk = self._flow.refund(payment, reason=payment.reason)
            refund = await self._outbound.run(talk)
        except NotConfigured as error:
            raise Failed("The payment provider is not set up here any more.") from error
        await self._ledger.give_back(payment.owner, payment.id, refund)
        return refund

    async def _postpone(self, payment: Payment, *, pause: timedelta) -> None:
        until = self._elicitations.clock() + pause
        await self._ledger.change(payment.owner, payment.id, lambda p: receipts.postpone(p, until))


def _tried_again(payment: Payment, now: datetime) -> Payment:
    is_going_on = payment.status is ReceiptStatus.REFUNDING
    return receipts.try_again(payment, now) if is_going_on else payment
