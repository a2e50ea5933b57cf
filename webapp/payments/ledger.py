"""The ledger: each paid session has one row, and what becomes of it is decided there.

What could go wrong: a payment that is spent twice, or spent and given back. A row changes by
compare-and-set through the one table of `flows.payments.receipt`; one that is to be given back,
together with the question that leads to it, so that no call takes it in the same moment.

Or one thing that is paid twice. A product (`once=True`) has one key, which one payment holds. A
payment that becomes usable answers the open question for the same thing in the write that changes
the payment (`_made_usable`). A payment for something that another payment has paid is a surplus:
it is refunded at once, and no question is answered with it.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
from msgspec.structs import replace

from flows.elicitation import states
from flows.elicitation.proof import PaidSession
from flows.elicitation.states import Elicitation, Status
from flows.errors import NotPossible
from flows.payments import receipt as receipts
from flows.payments.gateway import ProviderSession
from flows.payments.receipt import Payment, ReceiptStatus, Refund
from flows.payments.session import CheckoutTerms, is_for_good, sessions_of, terms_of
from webapp.elicitations.service import Elicitations
from webapp.records.ids import owner_of
from webapp.records.values import StoredWebhook, Value


@dataclass(frozen=True, slots=True)
class ChangedPayment:
    """A changed payment, the questions that are written with it, and those that it ended."""

    payment: Payment
    questions: Sequence[Elicitation] = ()
    ended: Sequence[Elicitation] = ()


class Ledger:
    """`places` are the addresses of the sellers, by their names.

    What nobody used is given back after `refund_unused`; None: never.
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

    async def read(self, owner: str, id: str) -> Payment | None:
        return await self._elicitations.read(Payment, owner=owner, id=id)

    def id_of(self, elicitation: Elicitation, session: str) -> str:
        seller = terms_of(elicitation).seller
        return self._ids.payment(elicitation.id, seller=seller, session=session)

    async def id_for(self, elicitation: Elicitation, session: ProviderSession) -> str:
        """The id of what was paid there: of the session's row, or of a payment besides that.

        A page that goes by our own key can be paid at twice, and tells of one session.
        """
        first = self.id_of(elicitation, session.id)
        is_by_our_key = session.id.rpartition(":")[0] == elicitation.id
        if not is_by_our_key or session.payment is None:
            return first
        found = await self.read(elicitation.owner, first)
        if found is None or found.payment_intent in (None, session.payment):
            return first
        return self.id_of(elicitation, f"{session.id} {session.payment}")

    async def bought_for_good(self, elicitation: Elicitation) -> Payment | None:
        """Return the payment that holds the key of the product that the question is about."""
        if not is_for_good(elicitation):
            return None
        terms, asked = terms_of(elicitation), elicitation.asked
        key = self.bought(terms, server=asked.server, tool=asked.tool)
        return await self._elicitations.holder(Payment, owner=elicitation.owner, key=key)

    async def product(self, payment: Payment) -> Payment | None:
        """Return the payment that holds the key of the same product, which may be this one."""
        key = self._product_key(payment)
        return await self._elicitations.holder(Payment, owner=payment.owner, key=key)

    async def unwritten(self, elicitation: Elicitation, payment: Payment) -> Payment:
        """Return the new row of a payment as it has to be written.

        The first payment for a product gets the key of the product. A payment for what another
        payment has paid already is a surplus.
        """
        if payment.once:
            paid = await self.product(payment)
            if paid is None:
                return replace(payment, join=self._product_key(payment))
        else:
            is_answered = elicitation.status is Status.ACCEPTED
            paid = await self.paid(elicitation) if is_answered else None
        if paid is None or paid.is_over or paid.session == payment.session:
            return payment
        return receipts.as_surplus(payment, self._elicitations.clock(), to=paid.id)

    def unused_until(self, payment: Payment) -> datetime | None:
        """When it is given back by itself, if nobody uses it."""
        return None if self._refund_unused is None else payment.paid_at + self._refund_unused

    def bought(self, terms: CheckoutTerms, *, server: str, tool: str) -> str:
        """The key of what is bought for good: by this question, at this very seller."""
        text = hashlib.sha256(msgspec.json.encode(terms)).hexdigest()
        # What the sandbox took is no payment at the seller of the same name.
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
        """Return the payment that settled the question; if there are several, one that stands.

        A surplus is no answer: the payment that it is a surplus to is.
        """
        found: Payment | None = None
        ids = [self.id_of(elicitation, session) for session in sessions_of(elicitation)]
        for id in (*ids, elicitation.answered_by):
            payment = None if id is None else await self.read(elicitation.owner, id)
            if payment is not None and payment.surplus_to is not None:
                payment = await self.read(payment.owner, payment.surplus_to) or payment
            if payment is not None and (found is None or not payment.is_over):
                found = payment
        return found

    async def spend(
        self, owner: str, id: str, *, run: str | None, leg: str | None = None
    ) -> Payment:
        """Use it up; a body that runs again spends again.

        Raises NotPossible if it was refunded, if another run has spent it, or if another leg has it
        in hand by now: this one was too slow to say that it goes on, and what is paid for is given
        out by that one. What is bought for good is spent by every run.
        """
        spent: Payment | None = None

        async def values() -> Sequence[Value]:
            nonlocal spent
            now = self._elicitations.clock()
            current = spent = await self._require(owner, id)
            if current.status is not ReceiptStatus.SPENT:
                spent = receipts.spend(in_hand(current), now, run=run)
            elif not current.once and current.spent_by != run:
                raise NotPossible(status=ReceiptStatus.SPENT, wanted=ReceiptStatus.SPENT)
            changed: list[Value] = [] if spent == current else [spent]
            asked = None if leg is None else await self.leading_to(current)
            if asked is None or asked.take is None:
                return changed
            if asked.take.leg != leg:
                if current.once:  # a product is used by many calls
                    return changed
                raise NotPossible(status=ReceiptStatus.TAKEN, wanted=ReceiptStatus.SPENT)
            return [*changed, states.renew(asked, leg=asked.take.leg, now=now)]

        await self._elicitations.write_afresh(values)
        assert spent is not None
        return spent

    async def begin_refund(
        self,
        owner: str,
        id: str,
        *,
        reason: str | None,
        run: str | None = None,
        also_spent: bool = False,
        by: str | None = None,
    ) -> Payment:
        """From here on nobody uses it; `run` is the one that gives back what it has in hand.

        One that was given back may be asked for again. Raises NotPossible if it was spent, or if a
        call uses it.
        """
        begun: Payment | None = None

        async def values() -> Sequence[Value]:
            nonlocal begun
            now = self._elicitations.clock()
            current = begun = await self._require(owner, id)
            if current.status in (ReceiptStatus.REFUNDED, ReceiptStatus.REFUNDING):
                return []
            begun = receipts.begin_refund(
                current, now, reason=reason, run=run, also_spent=also_spent, by=by
            )
            asked = await self.leading_to(current) if run is None else None
            if asked is None:
                return [begun]
            if self._elicitations.is_taken(asked):
                raise NotPossible(status=ReceiptStatus.TAKEN, wanted=ReceiptStatus.REFUNDED)
            return [begun, states.let_go(asked)]

        await self._elicitations.write_afresh(values)
        assert begun is not None
        return begun

    async def leading_to(self, payment: Payment) -> Elicitation | None:
        """The elicitation whose next taker would get this payment."""
        asked = await self._elicitations.get(payment.answers or payment.elicitation_id)
        content = None if asked is None else asked.content
        is_led = isinstance(content, Mapping) and content.get("payment") == payment.id
        return asked if is_led else None

    async def note_refund(self, owner: str, id: str, refund: Refund) -> None:
        """The provider has given the money back: that stands, whatever happened meanwhile."""
        now = self._elicitations.clock()

        def refunded(payment: Payment) -> Payment:
            if payment.status is ReceiptStatus.REFUNDED and payment.refund_id is not None:
                return payment
            return receipts.refunded(payment, now, refund_id=refund.id)

        await self.change(owner, id, refunded)

    async def of_intent(self, owner: str, payment_intent: str, *, seller: str) -> Payment | None:
        """The owner's payment that the provider calls so."""
        for payment in await self.all(owner=owner):
            if (payment.seller, payment.payment_intent) == (seller, payment_intent):
                return payment
        return None

    async def of_session(
        self, reference: str, session: str, *, seller: str, payment: str | None = None
    ) -> Payment | None:
        """What was paid for a question, which may be erased, by this session of this seller.

        `payment`: by this one, where the session has several.
        """
        for filed in (session, f"{session} {payment}"):
            id = self._ids.payment(reference, seller=seller, session=filed)
            row = await self.read(owner_of(reference), id)
            if row is None or row.elicitation_id != reference:
                continue
            if payment is None or row.payment_intent in (None, payment):
                return row
        return None

    async def all(self, *, owner: str | None = None) -> list[Payment]:
        """Every row, of one owner or of all, in no order that means anything."""
        return await self._elicitations.all(Payment, owner=owner)

    async def unless_there(self, row: Payment | StoredWebhook) -> Payment | StoredWebhook | None:
        """None for what is there; an event that says what another one said, as such."""
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
        """Change one row: read, decide, compare-and-set. Raises what `change` raises.

        `hook` is the event that says so; it is stored in the same write. So is the question that
        the payment answers, if the change makes the payment usable.
        """
        changed: Payment | None = None
        result: ChangedPayment | None = None

        async def values() -> Sequence[Value]:
            nonlocal changed, result
            current = await self._require(owner, id)
            result = await self._made_usable(change(current), before=current)
            changed = result.payment
            told = None if hook is None else await self.unless_there(hook)
            rows = (changed, *result.questions, told)
            return [row for row in rows if row not in (None, current)]

        written = await self._elicitations.write_afresh(values)
        assert changed is not None
        assert result is not None
        if written:
            self._elicitations.have_moved(*result.ended)
        return changed

    async def serve(self, elicitation: Elicitation, payment: Payment) -> None:
        """Answer an open question with a payment that stands, made for another question."""
        ended: list[Elicitation] = []

        async def values() -> Sequence[Value]:
            nonlocal ended
            current = await self._elicitations.get(elicitation.id)
            paid = await self.read(payment.owner, payment.id)
            ended = [] if current is None or paid is None else self._answered(current, paid)
            return ended

        await self._elicitations.write_afresh(values)
        self._elicitations.have_moved(*ended)

    def _answered(self, asked: Elicitation, payment: Payment) -> list[Elicitation]:
        """Return the open question as it ends with this payment; an empty list if it has ended."""
        if asked.status.is_final or not payment.is_usable:
            return []
        proof, content = PaidSession(session=payment.session), {"payment": payment.id}
        ended = states.accept(asked, proof, now=self._elicitations.clock(), content=content)
        if ended.status is Status.ACCEPTED:
            return [replace(ended, answered_by=payment.id)]
        return [replace(ended, holds_key=False)]

    async def _made_usable(self, payment: Payment, *, before: Payment) -> ChangedPayment:
        """Return what else is written if the change makes the payment usable.

        An open question for the same thing is answered with the payment. If nobody asks, the
        question that the payment was made for leads to it again, so that the next call gets it.
        """
        if before.is_usable or not payment.is_usable:
            return ChangedPayment(payment)
        if payment.once:
            holder = await self.product(payment)
            if holder is not None and holder.id != payment.id:
                return ChangedPayment(self._bought_again(payment, holder))
            payment = replace(payment, join=self._product_key(payment))
        former = await self._elicitations.get(payment.answers or payment.elicitation_id)
        join = payment.asked or (None if former is None else former.join)
        if join is None:  # rows of older versions do not name the question
            return ChangedPayment(payment)
        asked = await self._elicitations.find(owner=payment.owner, join=join)
        ended: list[Elicitation] = []
        if asked is not None and not asked.status.is_final:
            ended = self._answered(asked, payment)
            if ended[0].status is Status.ACCEPTED:
                kept = replace(self._kept_again(payment), answers=asked.id)
                return ChangedPayment(kept, questions=ended, ended=ended)
            asked = None  # its time was over
        if payment.once:
            return ChangedPayment(self._kept_again(payment), questions=ended, ended=ended)
        result = await self._left_for_the_next_call(payment, former, asked)
        return ChangedPayment(result.payment, questions=[*ended, *result.questions], ended=ended)

    async def _left_for_the_next_call(
        self, payment: Payment, former: Elicitation | None, holder: Elicitation | None
    ) -> ChangedPayment:
        """`former` leads to the payment again; `holder` is the ended question that is found now."""
        if holder is not None:
            other = await self.paid(holder)
            if other is not None and other.id != payment.id and not other.is_over:
                return ChangedPayment(self._bought_again(payment, other))
            if self._elicitations.is_taken(holder):
                return ChangedPayment(payment)
        leading = self._leading_again(former, payment)
        if not leading:
            return ChangedPayment(payment)
        if holder is not None and holder.id != leading[0].id:
            leading = [states.let_go(holder), *leading]
        return ChangedPayment(self._kept_again(payment), questions=leading)

    def _leading_again(self, asked: Elicitation | None, payment: Payment) -> list[Elicitation]:
        """Return the accepted question with this payment as its answer.

        The list is empty if a call uses the question, or if it cannot be answered any more.
        """
        if asked is None or asked.status is not Status.ACCEPTED:
            return []
        is_kept = states.is_kept(asked, self._elicitations.clock())
        if not is_kept or self._elicitations.is_taken(asked):
            return []
        content = {"payment": payment.id}
        return [replace(asked, holds_key=True, content=content, delivered_at=None, take=None)]

    def _bought_again(self, payment: Payment, other: Payment) -> Payment:
        """Return a payment for what `other` has paid while this one could not be used."""
        if payment.status is ReceiptStatus.OPEN:
            return receipts.as_surplus(payment, self._elicitations.clock(), to=other.id)
        return replace(payment, join=payment.id)  # it was used before

    def _kept_again(self, payment: Payment) -> Payment:
        """Return the payment with a new period in which it can be used."""
        if self._refund_unused is None or payment.refund_at is None:
            return payment
        until = self._elicitations.clock() + self._refund_unused
        return replace(payment, refund_at=max(payment.refund_at, until))

    async def _require(self, owner: str, id: str) -> Payment:
        found = await self.read(owner, id)
        if found is None:
            raise KeyError(id)
        return found


def in_hand(payment: Payment) -> Payment:
    """As the tool has it: the elicitation's lease is what says that it is taken."""
    return receipts.take(payment) if payment.status is ReceiptStatus.OPEN else payment
