"""The kind `payment`: its questions, and how a tool gets, spends and refunds a payment.

Risks: another program's payment is accepted, one payment is counted twice, or money belongs to no
question. Only a verified webhook or a fetched status settles a question, and only for a session
that this server began. Each paid session has exactly one row in the ledger, even if its question
ended.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import cast

import msgspec
from msgspec.structs import replace

from flows.elicitation import states
from flows.elicitation.states import Asked, Elicitation, Json
from flows.errors import Failed, NotConfigured, NotPossible
from flows.payments import receipt as receipts
from flows.payments.claims import stage_of
from flows.payments.events import ON_ITS_WAY
from flows.payments.gateway import MerchantAccount
from flows.payments.receipt import Dispute, Payment, ReceiptStatus
from flows.payments.registry import BUILT_IN, Gateways, settings_of
from flows.payments.session import (
    PAID_OTHERWISE,
    CheckoutTerms,
    UnresolvedPayment,
    UnresolvedStatus,
    terms_of,
)
from flows.question import Link
from flows.requests import PaymentRequest
from webapp.elicitations.question_kind import AskedBy, QuestionKind, missing_table
from webapp.elicitations.service import Elicitations
from webapp.http.client import Outbound
from webapp.payments.checkouts import Checkouts
from webapp.payments.ledger import Ledger, as_seen_by_call
from webapp.payments.reconciliation import Reconciling
from webapp.payments.refunds import Refunds
from webapp.payments.unresolved import LOST, UnresolvedPayments
from webapp.payments.verification import Verification
from webapp.records.values import Value

_GONE = "refunded in the meantime"


class PaymentGone(NotPossible):
    """The payment was used by another run, refunded or disputed, so this run cannot use it."""

    def __init__(self, payment: Payment | None) -> None:
        """Build the error. `payment` is None if a refund has removed the link to the payment."""
        self.became, status = _GONE, ReceiptStatus.REFUNDED
        if payment is not None:
            self.became = _became(payment)
            status = payment.status if payment.surplus_to is None else ReceiptStatus.REFUNDED
        super().__init__(
            status=status,
            wanted=ReceiptStatus.SPENT,
            message=f"The payment was {self.became}. This run cannot use it: do not deliver "
            "anything for it.",
        )


class Payments(QuestionKind):
    """The kind `payment`, of a PaymentRequest."""

    needs_closing = True
    can_answer_without_asking = True
    outlives_errors = True

    def __init__(
        self,
        *,
        elicitations: Elicitations,
        outbound: Outbound,
        sellers: Mapping[str, MerchantAccount],
        refund_unused: timedelta | None,
        unreached: Collection[str] = (),
        config: str = "elicit.toml",
    ) -> None:
        self._elicitations = elicitations
        self._sellers = sellers
        self._config = config  # the name of the file that declares providers, for errors
        self.flow = Gateways(sellers)
        self.ledger = Ledger(
            elicitations,
            places={s.name: s.api for s in sellers.values()},
            refund_unused=refund_unused,
            refundable=self.flow.refundable,
        )
        self.unresolved = UnresolvedPayments(elicitations)
        self.verification = Verification(
            elicitations=elicitations,
            flow=self.flow,
            ledger=self.ledger,
            unresolved=self.unresolved,
        )
        self.checkouts = Checkouts(
            elicitations=elicitations,
            outbound=outbound,
            flow=self.flow,
            unresolved=self.unresolved,
            verification=self.verification,
            unreached=unreached,
        )
        self.reconciling = Reconciling(
            elicitations=elicitations,
            outbound=outbound,
            flow=self.flow,
            ledger=self.ledger,
            checkouts=self.checkouts,
            unresolved=self.unresolved,
        )
        self.refunds = Refunds(
            elicitations=elicitations,
            outbound=outbound,
            sellers=sellers,
            flow=self.flow,
            ledger=self.ledger,
        )

    def redirect_flow(self) -> Gateways:
        return self.flow

    def facts(self, request: PaymentRequest) -> Json:
        seller = self._chosen(request)
        facts = request.facts()
        assert isinstance(facts, Mapping)
        return {**facts, "seller": seller.name, "live": seller.is_live, "at": seller.api}

    async def known(self, request: PaymentRequest, by: AskedBy) -> Json | None:
        """Return the payment of a permanent purchase, or None if there is none.

        The first use spends the payment, so that it is not refunded.
        """
        if not request.once:
            return None
        key = self.ledger.bought(self._terms(request), server=by.server, tool=by.tool)
        found = await self._elicitations.holder(Payment, owner=by.owner, key=key)
        if found is not None and found.status is ReceiptStatus.OPEN:
            with suppress(NotPossible):
                return _json(await self.ledger.spend(by.owner, found.id, run=None))
            return None
        return None if found is None else _json(found)

    async def is_bought(self, request: PaymentRequest, by: AskedBy) -> bool:
        """Return True if the permanent purchase was paid. Unlike `known`, spend no payment."""
        key = self.ledger.bought(self._terms(request), server=by.server, tool=by.tool)
        return await self._elicitations.holder(Payment, owner=by.owner, key=key) is not None

    async def asked(
        self, request: PaymentRequest, asked: Asked, *, link: Link, by: AskedBy
    ) -> Asked:
        """Return `asked` with its payment terms.

        Raises:
            Failed: Another payment for the same thing is on its way, or the operator has to check
                that payment.
        """
        seller, terms = self._chosen(request), self._terms(request)
        self.flow.named(seller.name).check(request.price)
        blocking = await self.unresolved.blocking(by.owner, terms, server=by.server, tool=by.tool)
        for payment in blocking:
            await self._require_ended(payment)
        return replace(asked, origins=seller.checkout_origins[:1], terms=msgspec.to_builtins(terms))

    async def answer(self, claimed: Elicitation) -> Json:
        try:
            return _json(as_seen_by_call(await self.usable(claimed)))
        except PaymentGone as error:
            await self._elicitations.change(claimed.id, self._delivered_without_payment)
            why = f"The payment was {error.became}."
        # Raise outside of the `except` block: a cause would hide the tool's own line.
        raise Failed(why, elicitation_id=claimed.id)

    async def usable(self, claimed: Elicitation) -> Payment:
        """Return the payment that a run has claimed, so that no other run uses or refunds it.

        All code that passes a payment to a tool calls this after it has claimed the question. If
        another payment has paid for the same product, return that payment.

        Raises:
            PaymentGone: The payment cannot be used any more.
        """
        bought = await self.ledger.bought_for_good(claimed)
        if bought is not None and bought.id != _payment_in(claimed):
            return await self.ledger.spend(claimed.owner, bought.id, run=None)
        found = await self._of(claimed)
        if found is None:  # a refund was begun and has removed the link to the payment
            raise PaymentGone(await self.ledger.paid(claimed))
        if not (found.is_usable or _is_of_itself(found, claimed)):
            raise PaymentGone(found)
        return found

    async def record_result(self, used: Elicitation, *, now: datetime) -> list[Payment]:
        """Mark the payment as perhaps delivered, which ends its automatic refund."""
        return _changed(await self._of(used), lambda found: receipts.record_result(found, now))

    async def record_work(self, owner: str, id: str | None) -> list[Payment]:
        """Record that `once` has done work for the payment, which ends its automatic refund."""
        now = self._elicitations.clock()
        found = None if id is None else await self.ledger.read(owner, id)
        return _changed(found, lambda one: receipts.record_result(one, now, by_once=True))

    async def record_failure(self, used: Elicitation) -> list[Payment]:
        """Record that the tool failed. The same call can use the payment later.

        If no call uses the payment, it is refunded automatically.
        """
        return _changed(await self._of(used), receipts.record_failure)

    async def used_up(self, delivered: Elicitation) -> list[Value]:
        """Spend the payment, because the result that used it was sent."""
        now = self._elicitations.clock()
        return [*_changed(await self._of(delivered), lambda found: receipts.used(found, now))]

    def return_path(self, elicitation: Elicitation) -> str:
        return f"/return/{terms_of(elicitation).seller}"

    def label(self, elicitation: Elicitation) -> str:
        seller = self.seller(self.merchant_of(elicitation))
        return "" if seller is None else seller.label

    def merchant_of(self, elicitation: Elicitation) -> str:
        return terms_of(elicitation).seller

    def seller(self, name: str) -> MerchantAccount | None:
        return self._sellers.get(name)

    async def spend(self, owner: str, id: str, *, run: str, request_id: str) -> Json:
        """Spend a payment. Raises NotPossible as `Ledger.spend` does."""
        return _json(await self.ledger.spend(owner, id, run=run, request_id=request_id))

    async def refund(self, owner: str, id: str, *, reason: str | None, run: str) -> Json:
        """Refund a payment that the run has claimed; see `Refunds.refund`."""
        refund = await self.refunds.refund(owner, id, reason=reason, run=run)
        return refund.as_json()

    def _delivered_without_payment(self, claimed: Elicitation) -> Elicitation:
        """Mark the question as delivered: this call gets the error, and the next one asks again."""
        assert claimed.take is not None
        return states.deliver(claimed, run=claimed.take.run, now=self._elicitations.clock())

    async def _require_ended(self, payment: UnresolvedPayment) -> None:
        if payment.status is UnresolvedStatus.WAITING:
            await self.checkouts.ask_again(payment)
        now = await self.unresolved.read(payment) or payment
        if now.status is UnresolvedStatus.WAITING:
            raise Failed(f"For the same request, {ON_ITS_WAY}.", elicitation_id=now.elicitation_id)
        if now.status is UnresolvedStatus.OTHERWISE and now.paid is None:
            raise Failed(f"{LOST[:1].upper()}{LOST[1:]}.", elicitation_id=now.elicitation_id)
        if now.status is UnresolvedStatus.OTHERWISE:
            raise Failed(
                f"The same request was {PAID_OTHERWISE}.", elicitation_id=now.elicitation_id
            )

    async def _of(self, elicitation: Elicitation) -> Payment | None:
        id = _payment_in(elicitation)
        return None if id is None else await self.ledger.read(elicitation.owner, id)

    def _terms(self, request: PaymentRequest) -> CheckoutTerms:
        seller = self._chosen(request)
        return CheckoutTerms(
            seller=seller.name,
            amount=request.price.minor_units,
            currency=request.price.currency,
            what=request.what,
            once=request.once,
            is_live=seller.is_live,
        )

    def _chosen(self, request: PaymentRequest) -> MerchantAccount:
        if request.seller is not None:
            if request.seller not in self._sellers:
                raise self._unknown(request.seller)
            return self._sellers[request.seller]
        if not self._sellers:
            raise NotConfigured(*settings_of(), has_none=True)
        return next(iter(self._sellers.values()))

    def _unknown(self, name: str) -> NotConfigured:
        has_none = not self._sellers
        if name in BUILT_IN:
            return NotConfigured(*settings_of(name), has_none=has_none)
        _, *also = settings_of(name)
        known = {*BUILT_IN, *self._sellers}
        return missing_table(
            "sellers", name, known=known, config=self._config, also=also, has_none=has_none
        )


def _became(payment: Payment) -> str:
    """Return a text for the model that says why the payment cannot be used."""
    if payment.owed:
        return (
            f"refunded, and the refund of {payment.owed_price} failed: the operator of this server "
            "has to pay it back"
        )
    if payment.status is ReceiptStatus.SPENT and payment.surplus_to is None:
        return "used by an earlier call"
    if payment.status is not ReceiptStatus.DISPUTED:
        return f"{_GONE}, and the money is on its way" if payment.is_refund_pending else _GONE
    match stage_of(payment):
        case Dispute.OPEN:
            return "disputed at the person's bank, which has not decided yet"
        case Dispute.APPEALED:
            return "charged back by the person's bank, and the operator of this server has appealed"
        case _:
            return "charged back by the person's bank"


def _payment_in(elicitation: Elicitation) -> str | None:
    """Return the id of the payment in the question's answer, or None."""
    content = elicitation.content
    id = content.get("payment") if isinstance(content, Mapping) else None
    return id if isinstance(id, str) else None


def _is_of_itself(payment: Payment, claimed: Elicitation) -> bool:
    """Return True if this run itself spent the payment or began its refund before.

    Such a run is executed again and gets the same payment. Once the refund is done, return False.
    """
    run = None if claimed.take is None else claimed.take.run
    match payment.status:
        case ReceiptStatus.SPENT:
            return run is not None and payment.spent_by == run
        case ReceiptStatus.REFUNDING:
            return run is not None and payment.refund_by == run
        case _:
            return False


def _changed(found: Payment | None, change: Callable[[Payment], Payment]) -> list[Payment]:
    changed = None if found is None else change(found)
    return [] if changed is None or changed == found else [changed]


def _json(payment: Payment) -> Json:
    return cast("Json", msgspec.to_builtins(payment))
