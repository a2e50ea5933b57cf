"""Refunds: money goes back, on a call's word or an operator's, or by itself as nobody used it.

What could go wrong: it goes back twice, or goes back while a call uses what it paid for. So the
ledger says first that nobody uses it any more; then one at a time asks the provider, under a key of
the receipt's own, which some do not know; and what is not known to be done is asked again, later
each time.
"""

import asyncio
import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from weakref import WeakValueDictionary

from msgspec.structs import replace

from flows import receipt as receipts
from flows.declared_seller import DeclaredSeller
from flows.errors import Failed, NotConfigured, NotPossible
from flows.gateway import Registration
from flows.gateways import Gateways
from flows.receipt import REFUND_AGAIN_AFTER, REFUND_AGAIN_AT_MOST, Payment, ReceiptStatus, Refund
from webapp.elicitations import Elicitations
from webapp.ledger import Ledger
from webapp.outbound import Outbound

UNUSED = "nobody used it"
# How long whoever asks the provider is left alone: a refund is three requests at most.
ASKING_AT_MOST = timedelta(minutes=1)
_log = logging.getLogger(__name__)


class UnderWay(Failed):
    """Another process asks for this very refund at the moment."""

    def __init__(self) -> None:
        super().__init__("It is being given back at the moment: ask again in a minute.")


class NoRefunds(Failed):
    """It cannot be asked to give anything back; nothing was begun."""


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
        self._asking = WeakValueDictionary[str, asyncio.Lock]()

    def is_possible(self, payment: Payment) -> bool:
        """Whether whoever took it is set up here, in the mode that it was paid in, and refunds."""
        seller = self._sellers.get(payment.seller)
        is_theirs = seller is not None and seller.is_live == payment.is_live
        can_refund = self._flow.gives_back(payment.seller)
        return is_theirs and can_refund and payment.payment_intent is not None

    async def give_back(
        self,
        owner: str,
        id: str,
        *,
        reason: str | None,
        run: str | None = None,
        also_spent: bool = False,
    ) -> Refund:
        """Give the money back; the same again gives the same refund, once that is known.

        `run` is the one that has it in hand. Raises KeyError if there is no such payment,
        NotPossible if it was spent (unless that counts, too) or a call uses it, Failed if the
        provider cannot be asked: then it is asked again by itself. Raises NoRefunds, and nothing is
        begun, where it cannot be asked at all.
        """
        found = await self._ledger.read(owner, id)
        if found is not None and not self.is_possible(found) and not _is_begun(found):
            raise self._no_refunds(found)
        async with self._asking.setdefault(id, asyncio.Lock()):
            begun = await self._ledger.begin_refund(
                owner, id, reason=reason, run=run, also_spent=also_spent
            )
            mine = await self._ledger.change(owner, id, self._leased)
            try:
                return await self._finish(mine)
            except Failed:
                await self._ledger.change(owner, id, lambda p: _let_go(p, mine, begun))
                raise

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
        except UnderWay:
            pass  # whoever is at it will say what became of it
        except Failed as error:
            tried = await self._ledger.change(
                payment.owner, payment.id, lambda p: _tried_again(p, now)
            )
            about = {"id": payment.id, "why": str(error), "tries": tried.refund_tries}
            _log.warning("payment.not_refunded", extra=about)
        else:
            _log.info("payment.refunded", extra={"id": payment.id})

    def _no_refunds(self, payment: Payment) -> "NoRefunds":
        seller = self._sellers.get(payment.seller)
        if seller is None or seller.is_live != payment.is_live:
            variable = f"ELICIT_{payment.seller.upper()}_"
            return NoRefunds(
                f"{payment.seller!r}, who took it, is not set up here: its variables "
                f"({variable}...) stand in the environment of the server."
            )
        if payment.payment_intent is None:
            return NoRefunds(f"{seller.label} has not said which payment it was.")
        by_hand = ""
        if isinstance(seller, DeclaredSeller) and seller.declaration.manage is not None:
            by_hand = f" Do it by hand at {seller.declaration.manage}."
        return NoRefunds(f"{seller.label} gives nothing back when asked by us.{by_hand}")

    async def _finish(self, payment: Payment) -> Refund:
        try:
            # As it was begun: the same words under the same key.
            talk = self._flow.refund(payment, reason=payment.reason)
            refund = await self._outbound.run(talk)
        except NotConfigured as error:
            raise Failed("The payment provider is not set up here any more.") from error
        await self._ledger.give_back(payment.owner, payment.id, refund)
        return refund

    def _leased(self, payment: Payment) -> Payment:
        """Where it takes no key, whoever writes this asks it alone, until it is due again.

        Raises UnderWay if that is another one: nothing else makes it due so soon.
        """
        if payment.status is ReceiptStatus.DISPUTED:  # a bank was faster
            raise NotPossible(status=payment.status, wanted=ReceiptStatus.REFUNDED)
        if payment.status is not ReceiptStatus.REFUNDING:
            return payment  # it is back already
        if self._flow.has_refund_key(payment.seller):
            return payment
        now, until = self._elicitations.clock(), payment.refund_at
        if until is not None and now < until <= now + ASKING_AT_MOST:
            raise UnderWay
        return receipts.postpone(payment, now + ASKING_AT_MOST)

    async def _postpone(self, payment: Payment, *, pause: timedelta) -> None:
        until = self._elicitations.clock() + pause
        await self._ledger.change(payment.owner, payment.id, lambda p: receipts.postpone(p, until))


def _is_begun(payment: Payment) -> bool:
    return payment.status in (ReceiptStatus.REFUNDING, ReceiptStatus.REFUNDED)


def _let_go(payment: Payment, mine: Payment, before: Payment) -> Payment:
    """It did not work: the next one may try at once, and by itself it is tried as planned."""
    is_mine = payment.refund_at == mine.refund_at
    return replace(payment, refund_at=before.refund_at) if is_mine else payment


def _tried_again(payment: Payment, now: datetime) -> Payment:
    is_going_on = payment.status is ReceiptStatus.REFUNDING
    return receipts.try_again(payment, now) if is_going_on else payment
