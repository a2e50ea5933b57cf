"""Refunds, requested by a tool or an operator, or made automatically for unused payments.

Risks: a payment is refunded twice, or while a call uses it. So the ledger first records that no
call can use the payment. Then the provider is asked, with the payment's own idempotency key. If
the provider supports no such keys, only one process at a time asks. A refund without a confirmed
result is requested again, with longer pauses each time.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from msgspec.structs import replace

from flows.errors import Failed, InvalidQuestion, NotPossible
from flows.origin import is_loopback
from flows.payments import receipt as receipts
from flows.payments import refunds
from flows.payments.claims import claimed_of, claimed_price, restated
from flows.payments.declared.declaration import DeclaredAccount
from flows.payments.gateway import MerchantAccount
from flows.payments.receipt import (
    Payment,
    ReceiptStatus,
    Refund,
    RefundChange,
    RefundStatus,
)
from flows.payments.refunds import (
    ASKING_AT_MOST,
    REFUND_AGAIN_AFTER,
    REFUND_AGAIN_AT_MOST,
    NoRefunds,
    RefundRequest,
    UnderWay,
)
from flows.payments.registry import Gateways, settings_of
from flows.payments.session import SessionStatus
from webapp.elicitations.service import Elicitations
from webapp.http.client import Outbound
from webapp.payments.ledger import Ledger

UNUSED = "nobody used it"
PAID_TWICE = "paid twice"
_log = logging.getLogger(__name__)


class Refunds:
    def __init__(
        self,
        *,
        elicitations: Elicitations,
        outbound: Outbound,
        sellers: Mapping[str, MerchantAccount],
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
        """Return True if the provider makes refunds and is configured in the payment's mode."""
        return self._why_not(payment) is None

    async def refund(
        self,
        owner: str,
        id: str,
        *,
        reason: str | None,
        run: str | None = None,
        also_with_result: bool = False,
        also_spent: bool = False,
        up_to: int | None = None,
        by: str | None = None,
    ) -> Refund:
        """Refund a payment. A repeated call returns the same refund once it is known.

        `run` is the run that has claimed the payment, and `by` the audit name of the requester.
        `up_to` is the total to refund in minor units, including earlier part refunds; the remaining
        amount can still be used.

        Raises:
            Erased: There is no such payment.
            NotPossible: The payment was spent (unless `also_spent`) or perhaps delivered (unless
                `also_with_result`), or a run has claimed it.
            UnderWay: Another process is refunding it at the moment.
            NoRefunds: No provider can be asked to refund it. Nothing was started.
            Failed: The provider did not answer. The request is repeated automatically.
        """
        request = RefundRequest(
            reason=reason, run=run, also_with_result=also_with_result, also_spent=also_spent, by=by
        )
        found = await self._ledger.read(owner, id)
        why_not = None
        if found is not None:  # a refund that was started can only be repeated at its provider
            why_not = self._elsewhere(found) if _is_begun(found) else self._why_not(found)
        if why_not is not None:
            raise NoRefunds(why_not)
        if up_to is not None:
            if found is not None and not self._flow.supports_partial_refunds(found.seller):
                label = self._sellers[found.seller].label
                raise NoRefunds(
                    f"{label} cannot make partial refunds for this server: refund all of it."
                )
            async with self._asking.setdefault(id, asyncio.Lock()):
                await self._finish_part(owner, id)
                begun = await self._ledger.begin_part(owner, id, request, up_to=up_to)
                return await self._ask_for_part(begun)
        async with self._asking.setdefault(id, asyncio.Lock()):
            begun = await self._ledger.begin_refund(owner, id, request)
            return await self._ask(begun, then=lambda payment: payment)

    async def fall_due(self, payment: Payment) -> None:
        """Do the payment's due work: its automatic refund, a retry, or a check of its refunds."""
        now = self._elicitations.clock()
        if payment.due_at is None or now < payment.due_at:
            return
        asked_at = None if payment.pending is None else payment.pending.ask_at
        if asked_at is not None and asked_at <= now:
            # Poll before a retry: if the last refund failed, the retry needs another key.
            await self.ask_about(payment)
            return
        if not self.is_possible(payment):
            await self._postpone(payment, pause=REFUND_AGAIN_AT_MOST)
            return
        owner, id = payment.owner, payment.id
        is_unused = payment.part is None and payment.status is ReceiptStatus.OPEN
        if is_unused and payment.surplus_to is not None and not await self._is_surplus(payment):
            return
        reason = UNUSED if payment.surplus_to is None else PAID_TWICE
        try:
            async with self._asking.setdefault(id, asyncio.Lock()):
                if payment.part is not None:
                    await self._finish_part(owner, id)
                else:
                    due = RefundRequest(reason=reason)
                    begun = await self._ledger.begin_refund(owner, id, due, only_due=True)
                    await self._ask(begun, then=lambda current: _tried_again(current, now))
        except NotPossible:
            await self._postpone(payment, pause=REFUND_AGAIN_AFTER)
        except UnderWay:
            pass  # another process asks the provider, and records the result
        except Failed as error:
            tried = await self._ledger.read(owner, id)
            tries = None if tried is None else tried.refund_tries
            about = {"id": id, "why": str(error), "tries": tries}
            _log.warning("payment.not_refunded", extra=about)
        else:
            _log.info("payment.refunded", extra={"id": id})

    async def ask_about(self, payment: Payment) -> bool:
        """Poll the status of a payment's refunds. Return False if the provider reports no status.

        The next poll is a day later if this poll failed or a refund is still pending.
        """
        gateway, clock = self._flow.refund_reporters.get(payment.seller), self._elicitations.clock
        changes: Sequence[RefundChange] | None = None
        if gateway is not None and self._why_not(payment) is None:
            try:
                changes = await self._outbound.run(gateway.refunds(payment))
            except Failed as error:
                about = {"id": payment.id, "why": str(error)}
                _log.warning("provider.failed", extra=about)

        def asked(current: Payment) -> Payment:
            if changes is None:
                return refunds.asked_about(current, clock(), is_pending=True)
            return restated(
                refunds.with_reported_changes(current, changes, clock(), before=payment)
            )

        await self._ledger.change(payment.owner, payment.id, asked)
        return changes is not None

    async def _is_surplus(self, payment: Payment) -> bool:
        """Return True if the provider's charges show that the payment is a surplus.

        If the provider cannot be asked now, postpone the refund and return False.
        """
        owner, id = payment.owner, payment.id
        try:
            is_twice = await self._is_paid_twice(payment)
        except Failed as error:
            _log.warning("payment.not_refunded", extra={"id": id, "why": str(error)})
            await self._postpone(payment, pause=REFUND_AGAIN_AFTER)
            return False
        if not is_twice:
            until = self._ledger.unused_until(payment)
            await self._ledger.change(owner, id, lambda p: receipts.no_surplus(p, until))
        return is_twice

    async def _is_paid_twice(self, payment: Payment) -> bool:
        """Return True if the provider shows two charges for one thing, and this is the second.

        If the question of the first charge is erased, the ledger's row counts as the first charge.
        Raises Failed if the provider cannot be asked.
        """
        other = await self._ledger.read(payment.owner, payment.surplus_to or "")
        if other is None or other.has_ended:
            return False
        charges: set[str] = set()
        for one in (other, payment):
            elicitation = await self._elicitations.get(one.elicitation_id)
            if elicitation is None and one is other:
                charges.add(one.id)
            if elicitation is None:
                continue
            gateway = self._flow.for_stored(one.seller)
            found = await self._outbound.run(gateway.fetch(elicitation, one.session))
            is_there = found.state is SessionStatus.PAID and not found.total_returned
            if is_there and found.payment is not None and found.payment == one.payment_intent:
                charges.add(found.payment)
        return len(charges) == len((other, payment))

    async def _finish_part(self, owner: str, id: str) -> None:
        """Finish a part refund that another process started, if any. Raises UnderWay, Failed."""
        now = self._elicitations.clock()
        resumed = await self._ledger.change(owner, id, lambda one: refunds.resume_part(one, now))
        if resumed.part is not None:
            await self._ask_for_part(resumed)

    async def _ask_for_part(self, begun: Payment) -> Refund:
        """Ask the provider for the part refund that this process has reserved."""
        part, clock = begun.part, self._elicitations.clock
        assert part is not None
        try:
            refund = await self._ask_provider(begun, reason=part.reason, up_to=part.up_to)
        except Failed as error:
            change = partial(refunds.part_failed, part=part, is_refusal=error.is_refusal)
            await self._ledger.change(begun.owner, begun.id, lambda one: change(one, clock()))
            raise
        is_pending = self._is_pending(begun, refund)

        def done(current: Payment) -> Payment:
            total = refund.price.minor_units
            current = refunds.part_done(current, clock(), begun=begun, total=total)
            return refunds.pending(current, clock()) if is_pending else current

        await self._ledger.change(begun.owner, begun.id, done)
        return refund

    def _why_not(self, payment: Payment) -> str | None:
        """Return why no provider can be asked for the refund, or None if one can."""
        if (elsewhere := self._elsewhere(payment)) is not None:
            return elsewhere
        seller = self._sellers.get(payment.seller)
        if seller is None or seller.is_live != payment.is_live:
            needed = " and ".join(settings_of(payment.seller))
            return (
                f"The payment was made at {payment.seller!r}: no provider of this name is "
                f"configured in this environment. It needs {needed}."
            )
        if payment.payment_intent is None:
            return f"{seller.label} has not reported the id of the payment."
        if payment.seller in self._flow.refundable:
            return self._why_no_parts(payment)
        advice = ""
        if isinstance(seller, DeclaredAccount) and seller.declaration.manage is not None:
            advice = f" Refund it there: {seller.declaration.manage}."
        return f"{seller.label} cannot make refunds for this server.{advice}"

    def _elsewhere(self, payment: Payment) -> str | None:
        """Return why the configured provider cannot refund a payment made at another address."""
        seller = self._sellers.get(payment.seller)
        if not payment.at or (seller is not None and seller.api == payment.at):
            return None
        if is_loopback(urlsplit(payment.at).hostname or ""):
            return (
                f"The payment was made at a sandbox, {payment.at}, where no money moves. Only the "
                "server with this sandbox can refund it, on its page /payments."
            )
        if seller is None:
            return None
        return (
            f"The payment was made at {payment.at}, but {seller.label} is configured here at "
            f"{seller.api}: restore the earlier settings, or refund the payment at the provider."
        )

    async def _ask(self, begun: Payment, *, then: Callable[[Payment], Payment]) -> Refund:
        """Ask the provider for the refund. If that fails, restore the due time and apply `then`.

        If another process has changed the due time in the meantime, leave the payment unchanged.
        """
        mine = await self._ledger.change(begun.owner, begun.id, self._leased)

        def released(current: Payment) -> Payment:
            is_mine = current.refund_at == mine.refund_at
            return then(replace(current, refund_at=begun.refund_at)) if is_mine else current

        try:
            return await self._finish(mine)
        except Failed:
            await self._ledger.change(begun.owner, begun.id, released)
            raise

    async def _finish(self, payment: Payment) -> Refund:
        # Send the same content as in the first request, because the key is the same.
        total = refunds.refundable(payment)
        up_to = None if total == payment.amount else total  # a bank claims the difference
        if up_to is not None and payment.status is ReceiptStatus.REFUNDED:
            status = RefundStatus.PENDING if payment.is_refund_pending else RefundStatus.SUCCEEDED
            return Refund(id=payment.refund_id or payment.id, price=payment.price, status=status)
        if up_to is not None and (why_not := self._why_no_parts(payment)) is not None:
            raise NoRefunds(why_not)
        refund = await self._ask_provider(payment, reason=payment.reason, up_to=up_to)
        is_pending = self._is_pending(payment, refund)
        await self._ledger.note_refund(payment, refund, up_to=up_to, is_pending=is_pending)
        return refund

    async def _ask_provider(
        self, payment: Payment, *, reason: str | None, up_to: int | None
    ) -> Refund:
        """Request the refund. Raises Failed, also for an amount that the provider cannot refund."""
        gateway = self._flow.for_stored(payment.seller)
        try:
            return await self._outbound.run(gateway.refund(payment, reason=reason, up_to=up_to))
        except InvalidQuestion as error:  # the provider has fewer decimals than the currency
            raise NoRefunds(
                f"{error} Request another amount, or refund it at the provider.", is_refusal=True
            ) from error

    def _why_no_parts(self, payment: Payment) -> str | None:
        """Return why the part that no bank claims cannot be refunded, or None if it can."""
        if not claimed_of(payment) or self._flow.supports_partial_refunds(payment.seller):
            return None
        return (
            f"A bank claims {claimed_price(payment)} of this payment, and "
            f"{self._sellers[payment.seller].label} cannot make partial refunds for this server: "
            "refund the rest at the provider."
        )

    def _is_pending(self, payment: Payment, refund: Refund) -> bool:
        """Return True if the provider can still say that the refund failed."""
        return (
            refund.status is RefundStatus.PENDING and payment.seller in self._flow.refund_reporters
        )

    def _leased(self, payment: Payment) -> Payment:
        """Reserve the refund for this process if the provider supports no idempotency keys.

        Raises:
            UnderWay: Another process has reserved the refund, or an automatic try starts soon.
            NotPossible: A bank has claimed the payment in the meantime.
        """
        if payment.status is ReceiptStatus.DISPUTED and not refunds.is_rest_refunded(payment):
            raise NotPossible(status=payment.status, wanted=ReceiptStatus.REFUNDED)
        if payment.status is not ReceiptStatus.REFUNDING:
            return payment  # already refunded
        if self._flow.has_refund_key(payment.seller):
            return payment
        now, until = self._elicitations.clock(), payment.refund_at
        if until is not None and now < until <= now + ASKING_AT_MOST:
            raise UnderWay(payment)
        return refunds.postpone(payment, now + ASKING_AT_MOST)

    async def _postpone(self, payment: Payment, *, pause: timedelta) -> None:
        """Postpone the automatic refund, unless another process has changed its due time."""
        until = self._elicitations.clock() + pause

        def postponed(current: Payment) -> Payment:
            is_as_it_was = current.refund_at == payment.refund_at
            return refunds.postpone(current, until) if is_as_it_was else current

        await self._ledger.change(payment.owner, payment.id, postponed)


def _is_begun(payment: Payment) -> bool:
    return payment.status in (ReceiptStatus.REFUNDING, ReceiptStatus.REFUNDED)


def _tried_again(payment: Payment, now: datetime) -> Payment:
    is_going_on = payment.status is ReceiptStatus.REFUNDING
    return refunds.try_again(payment, now) if is_going_on else payment
