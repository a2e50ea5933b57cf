"""The ledger: one row for each paid session. Every change of a payment changes its row.

Risks: a payment is spent twice, or spent and refunded. A row changes by compare-and-set, as the
table in `flows.payments.receipt` allows. The start of a refund is written together with the
question that leads to the payment, so that no call claims the payment at the same moment.

Another risk is that one thing is paid twice. A permanent purchase (`once=True`) has one key, which
one payment owns. A payment that becomes usable answers the open question for the same thing in the
same write (`usable_again`). A payment for something that another payment has paid is a surplus: it
is refunded at once, and it answers no question.

A third risk is that a payment is refunded although its result was delivered, because the store lost
the write that marked the payment as used. Payments that may have been used in the lost writes are
not refunded automatically; the operator has to check them.
"""

import hashlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial

import msgspec
from msgspec.structs import replace

from flows.elicitation import states
from flows.elicitation.states import Elicitation, Status
from flows.errors import NotPossible
from flows.payments import receipt as receipts
from flows.payments import refunds
from flows.payments.claims import restated
from flows.payments.gateway import ProviderSession, paid_row
from flows.payments.receipt import Payment, ReceiptStatus, Refund
from flows.payments.refunds import RefundRequest
from flows.payments.session import (
    CheckoutTerms,
    began_before,
    is_for_good,
    sessions_of,
    terms_of,
)
from webapp.elicitations.service import Elicitations
from webapp.payments.usable_again import ChangedPayment, UsableAgain
from webapp.records.high_water import StepBack
from webapp.records.ids import owner_of
from webapp.records.rows import Erased
from webapp.records.values import StoredWebhook, Value

_log = logging.getLogger(__name__)


class Ledger:
    """The rows of all payments. `places` maps each provider's name to its API address.

    Unused payments of the providers in `refundable` are refunded after `refund_unused`, or never
    if `refund_unused` is None.
    """

    def __init__(
        self,
        elicitations: Elicitations,
        *,
        places: Mapping[str, str],
        refund_unused: timedelta | None,
        refundable: Collection[str],
    ) -> None:
        self._elicitations = elicitations
        self._ids = elicitations.rows.ids
        self._places = places
        self._refund_unused = refund_unused
        self.unused = dict.fromkeys(refundable, refund_unused)  # by the seller's name
        self._usable_again = UsableAgain(
            elicitations,
            paid=self.paid,
            product=self.product,
            product_key=self._product_key,
            refunded_after=refund_unused,
        )

    async def read(self, owner: str, id: str) -> Payment | None:
        return await self._elicitations.read(Payment, owner=owner, id=id)

    async def id_for(
        self, elicitation: Elicitation, session: ProviderSession, *, provider: str
    ) -> str:
        """Return the id of the session's row, or of another row for its second payment.

        Some providers identify a page by this server's own key. Such a page can be paid twice, and
        both payments have the same session id.
        """
        first = self._ids.payment(elicitation.id, provider=provider, session=session.id)
        is_by_our_key = session.id.rpartition(":")[0] == elicitation.id
        if not is_by_our_key or session.payment is None:
            return first
        found = await self.read(elicitation.owner, first)
        if found is None or found.payment_intent in (None, session.payment):
            return first
        both = f"{session.id} {session.payment}"
        return self._ids.payment(elicitation.id, provider=provider, session=both)

    async def bought_for_good(self, elicitation: Elicitation) -> Payment | None:
        """Return the payment that holds the key of the product that the question is about."""
        if not is_for_good(elicitation):
            return None
        terms, asked = terms_of(elicitation), elicitation.request
        key = self.bought(terms, server=asked.server, tool=asked.tool)
        return await self._elicitations.holder(Payment, owner=elicitation.owner, key=key)

    async def product(self, payment: Payment) -> Payment | None:
        """Return the payment that holds the key of the same product, which may be this one."""
        key = self._product_key(payment)
        return await self._elicitations.holder(Payment, owner=payment.owner, key=key)

    async def new_row(
        self, elicitation: Elicitation, session: ProviderSession, *, now: datetime
    ) -> Payment:
        """Return the new row of a paid session, with the product's key or as a surplus.

        The first payment for a product owns the product's key. A payment for something that
        another payment has already paid for is a surplus.
        """
        terms = terms_of(elicitation)
        payment = paid_row(
            elicitation,
            session,
            terms=terms,
            id=await self.id_for(elicitation, session, provider=terms.seller),
            at=self._places.get(terms.seller, ""),
            refunded_after=self.unused.get(terms.seller),
            now=now,
        )
        back = await self._elicitations.high_water.step_back()
        if back is not None and began_before(elicitation, payment.session, back.unsure_until):
            payment = receipts.perhaps_used(payment, back.noticed_at)
        if payment.once:
            paid = await self.product(payment)
            if paid is None:
                return replace(payment, dedupe_key=self._product_key(payment))
        else:
            is_ended = elicitation.status.is_final
            paid = await self._paid_for_the_same(elicitation) if is_ended else None
        if paid is None or paid.has_ended or paid.session == payment.session:
            return payment
        return receipts.as_surplus(payment, self._elicitations.clock(), to=paid.id)

    async def _paid_for_the_same(self, elicitation: Elicitation) -> Payment | None:
        """Return the payment that answers this ended question, or a question that replaced it.

        The page of an ended question may still be open, and the same question may have been asked
        again and paid since this one was asked.
        """
        paid = await self.paid(elicitation) if elicitation.status is Status.ACCEPTED else None
        if paid is not None and not paid.has_ended:
            return paid
        for other in await self.all(owner=elicitation.owner):
            is_same = (
                other.question_key == elicitation.dedupe_key
                and other.elicitation_id != elicitation.id
            )
            is_since = other.paid_at >= elicitation.created_at
            if is_same and is_since and not other.has_ended and other.surplus_to is None:
                return other
        return None

    async def mark_perhaps_used(self, back: StepBack) -> None:
        """Mark the payments that a call may have used in the writes that the store lost."""
        for payment in await self.all():
            marked = self._perhaps_used(payment, back)
            if marked != payment:
                with suppress(Erased):
                    change = partial(self._perhaps_used, back=back)
                    await self.change(payment.owner, payment.id, change)

    def _perhaps_used(self, payment: Payment, back: StepBack) -> Payment:
        """Return the payment, marked if a call could use it before the loss was noticed."""
        is_later = payment.paid_at > back.unsure_until
        return payment if is_later else receipts.perhaps_used(payment, back.noticed_at)

    def unused_until(self, payment: Payment) -> datetime | None:
        """Return when the payment is refunded automatically if no call uses it, or None."""
        return None if self._refund_unused is None else payment.paid_at + self._refund_unused

    def bought(self, terms: CheckoutTerms, *, server: str, tool: str) -> str:
        """Return the key of a permanent purchase, from its terms, tool and provider's address."""
        text = hashlib.sha256(msgspec.json.encode(terms)).hexdigest()
        # A purchase at the sandbox does not count at the real provider of the same name.
        at = self._places.get(terms.seller, "")
        return self._elicitations.owners.pepper.tag("bought", server, tool, at, text, size=18)

    def _product_key(self, payment: Payment) -> str:
        terms = CheckoutTerms(
            seller=payment.seller,
            amount=payment.amount,
            currency=payment.currency,
            what=payment.what,
            once=True,
            is_live=payment.is_live,
        )
        return self.bought(terms, server=payment.server, tool=payment.tool)

    async def paid(self, elicitation: Elicitation) -> Payment | None:
        """Return the payment that settled the question; if there are several, prefer a valid one.

        Instead of a surplus, return the payment that was made before it.
        """
        found: Payment | None = None
        provider = terms_of(elicitation).seller
        ids = [
            self._ids.payment(elicitation.id, provider=provider, session=session)
            for session in sessions_of(elicitation)
        ]
        for id in (*ids, elicitation.answered_by):
            payment = None if id is None else await self.read(elicitation.owner, id)
            if payment is not None and payment.surplus_to is not None:
                payment = await self.read(payment.owner, payment.surplus_to) or payment
            if payment is not None and (found is None or not payment.has_ended):
                found = payment
        return found

    async def spend(
        self, owner: str, id: str, *, run: str | None, request_id: str | None = None
    ) -> Payment:
        """Spend the payment, and return it. The same run can spend the payment again.

        Every run can spend a permanent purchase.

        Raises:
            NotPossible: The payment was refunded, another run has spent it, or another request of
                the call has claimed the payment because this request renewed its claim too late.
        """
        spent: Payment | None = None

        async def values() -> Sequence[Value]:
            nonlocal spent
            now = self._elicitations.clock()
            current = spent = await self._require(owner, id)
            if current.status is not ReceiptStatus.SPENT:
                spent = receipts.spend(as_seen_by_call(current), now, run=run)
            elif not current.once and current.spent_by != run:
                raise NotPossible(status=ReceiptStatus.SPENT, wanted=ReceiptStatus.SPENT)
            changed: list[Value] = [] if spent == current else [spent]
            asked = None if request_id is None else await self.receiving_question(current)
            if asked is None or asked.take is None:
                return changed
            if asked.take.leg != request_id:
                if current.once:  # many calls can use a permanent purchase
                    return changed
                raise NotPossible(status=ReceiptStatus.TAKEN, wanted=ReceiptStatus.SPENT)
            return [*changed, states.renew(asked, request_id=asked.take.leg, now=now)]

        await self._elicitations.write_rebuilt(values)
        assert spent is not None
        return spent

    async def begin_refund(
        self, owner: str, id: str, request: RefundRequest, *, only_due: bool = False
    ) -> Payment:
        """Start a refund: from now on no call can use the payment. Return the payment.

        If a refund has begun or ended before, change nothing except the requester of a failed
        refund.

        Raises:
            NotPossible: The payment was spent, a call uses it, or with `only_due`, the automatic
                refund is not due any more.
        """
        begun: Payment | None = None

        async def values() -> Sequence[Value]:
            nonlocal begun
            now = self._elicitations.clock()
            current = begun = await self._require(owner, id)
            if current.status is ReceiptStatus.REFUNDED:
                return []
            if current.status is ReceiptStatus.REFUNDING or refunds.is_rest_refunded(current):
                begun = refunds.begin(current, now, request)
                return [begun] if begun != current else []
            due_at = current.refund_due_at
            if only_due and (due_at is None or now < due_at or await self._is_unsure(current)):
                raise NotPossible(status=current.status, wanted=ReceiptStatus.REFUNDED)
            begun = refunds.begin(current, now, request)
            refunds.require_no_partial_refund(current, now)
            asked = await self._not_in_hand(current, run=request.run)
            # A run that refunds its own payment ends its claim itself.
            is_released = asked is not None and request.run is None
            return [begun, states.release_key(asked)] if asked and is_released else [begun]

        await self._elicitations.write_rebuilt(values)
        assert begun is not None
        return begun

    async def _is_unsure(self, payment: Payment) -> bool:
        """Return True if a call may have used the payment in writes that the store lost.

        Return False once `mark_perhaps_used` has marked all such payments.
        """
        back = await self._elicitations.high_water.step_back()
        if back is None or back.is_handled:
            return False
        marked = self._perhaps_used(payment, back)
        return marked.may_be_delivered

    async def begin_part(
        self, owner: str, id: str, request: RefundRequest, *, up_to: int
    ) -> Payment:
        """Reserve a part refund of a payment that no call uses; see `refunds.begin_part`."""
        begun: Payment | None = None

        async def values() -> Sequence[Value]:
            nonlocal begun
            current = await self._require(owner, id)
            begun = refunds.begin_part(current, self._elicitations.clock(), request, up_to=up_to)
            asked = await self._not_in_hand(current, run=request.run)
            # Write the question too, so that no call claims the payment at the same moment.
            return [begun] if asked is None else [begun, asked]

        await self._elicitations.write_rebuilt(values)
        assert begun is not None
        return begun

    async def is_in_hand(self, payment: Payment) -> bool:
        """Return True if a run's claim on the payment has not expired, for display only."""
        if payment.status not in (ReceiptStatus.OPEN, ReceiptStatus.TAKEN):
            return False
        asked = await self.receiving_question(payment)
        return asked is not None and self._elicitations.is_held(asked)

    async def _not_in_hand(self, payment: Payment, *, run: str | None) -> Elicitation | None:
        """Return the question whose next call would get the payment, or None.

        Raises NotPossible while another run than `run` has claimed the question.
        """
        asked = await self.receiving_question(payment)
        is_its_own = asked is not None and asked.take is not None and asked.take.run == run
        if asked is None or is_its_own:
            return asked
        if await self._elicitations.is_in_hand(asked):
            raise NotPossible(status=ReceiptStatus.TAKEN, wanted=ReceiptStatus.REFUNDED)
        return asked

    async def receiving_question(self, payment: Payment) -> Elicitation | None:
        """Return the elicitation whose next call would get this payment, or None."""
        asked = await self._elicitations.get(payment.answers or payment.elicitation_id)
        content = None if asked is None else asked.content
        is_led = isinstance(content, Mapping) and content.get("payment") == payment.id
        return asked if is_led else None

    async def note_refund(
        self, begun: Payment, refund: Refund, *, up_to: int | None = None, is_pending: bool = False
    ) -> None:
        """Record that the provider has refunded the payment, whatever happened in the meantime.

        `begun` is the payment when the provider was asked. If a refund failed since then, the reply
        may be older than that, so all refunds are checked.
        `up_to` is the total refunded if a bank claims the rest of the payment.
        If the refund `is_pending`, the provider is polled for its final status.
        """
        now = self._elicitations.clock()

        def refunded(payment: Payment) -> Payment:
            if payment.status is ReceiptStatus.REFUNDED and payment.refund_id is not None:
                return payment
            if payment.failed_refunds != begun.failed_refunds:
                return refunds.check_soon(payment, now)
            if up_to is None:
                payment = receipts.refunded(payment, now, refund_id=refund.id)
            else:
                payment = restated(receipts.partly_refunded(payment, now, amount=up_to))
            return refunds.pending(payment, now) if is_pending else payment

        await self.change(begun.owner, begun.id, refunded)

    async def of_intent(self, owner: str, payment_intent: str, *, provider: str) -> Payment | None:
        """Return the owner's payment with this id at the provider, or None."""
        for payment in await self.all(owner=owner):
            if (payment.seller, payment.payment_intent) == (provider, payment_intent):
                return payment
        return None

    async def of_session(
        self, reference: str, session: str, *, provider: str, payment: str | None = None
    ) -> Payment | None:
        """Return the payment of a provider's session, or None. Its question may be erased.

        `reference` is the question's id. `payment` is the payment's id at the provider, for a
        session with several payments.
        """
        for filed in (session, f"{session} {payment}"):
            id = self._ids.payment(reference, provider=provider, session=filed)
            row = await self.read(owner_of(reference), id)
            if row is None or row.elicitation_id != reference:
                continue
            if payment is None or row.payment_intent in (None, payment):
                return row
        return None

    async def all(self, *, owner: str | None = None) -> list[Payment]:
        """Return all rows, of one owner or of everyone, in no particular order."""
        return await self._elicitations.all(Payment, owner=owner)

    async def unless_stored(self, row: Payment | StoredWebhook) -> Payment | StoredWebhook | None:
        """Return the row to write, or None if the row is already stored.

        If another event has already applied the `transition` of an event, the event's row gets the
        status `repeated`.
        """
        if isinstance(row, Payment):
            return row if await self.read(row.owner, row.id) is None else None
        if await self._elicitations.read(StoredWebhook, owner=row.owner, id=row.id) is not None:
            return None
        is_new = row.transition is None or (
            await self._elicitations.holder(StoredWebhook, owner=row.owner, key=row.transition)
            is None
        )
        return row if is_new else replace(row, status="repeated")

    async def change(
        self,
        owner: str,
        id: str,
        change: Callable[[Payment], Payment],
        *,
        hook: StoredWebhook | None = None,
    ) -> Payment:
        """Read one row, apply `change`, and write it by compare-and-set. Return the changed row.

        `hook` is the event that causes the change, and is stored in the same write. If the change
        makes the payment usable, the question that the payment answers is stored too. Raises what
        `change` raises.
        """
        changed: Payment | None = None
        result: ChangedPayment | None = None
        has_failed = False

        async def values() -> Sequence[Value]:
            nonlocal changed, result, has_failed
            current = await self._require(owner, id)
            result = await self._usable_again.made_usable(change(current), before=current)
            has_failed = len(result.payment.failed_refunds) > len(current.failed_refunds)
            changed = result.payment
            webhook_row = None if hook is None else await self.unless_stored(hook)
            rows = (changed, *result.questions, webhook_row)
            return [row for row in rows if row not in (None, current)]

        written = await self._elicitations.write_rebuilt(values)
        assert changed is not None
        assert result is not None
        if written:
            self._elicitations.have_moved(*result.ended)
            if has_failed:
                _log.warning("payment.refund_failed", extra={"id": id, "seller": changed.seller})
        return changed

    async def answer_with(self, elicitation: Elicitation, payment: Payment) -> None:
        """Answer an open question with a valid payment that was made for another question."""
        ended: list[Elicitation] = []

        async def values() -> Sequence[Value]:
            nonlocal ended
            current = await self._elicitations.get(elicitation.id)
            paid = await self.read(payment.owner, payment.id)
            ended = (
                []
                if current is None or paid is None
                else self._usable_again.answered(current, paid)
            )
            return ended

        await self._elicitations.write_rebuilt(values)
        self._elicitations.have_moved(*ended)

    async def _require(self, owner: str, id: str) -> Payment:
        found = await self.read(owner, id)
        if found is None:
            raise Erased(id)
        return found


def as_seen_by_call(payment: Payment) -> Payment:
    """Return the payment with the status that the tool sees while a call uses the payment.

    An open payment gets the status of a claimed payment. In the store, only the elicitation is
    claimed.
    """
    return receipts.claim(payment) if payment.status is ReceiptStatus.OPEN else payment
