"""Payments that become usable again, and the questions that they answer.

Risks: a bank withdraws its claim, and the person, who was asked to pay again in the meantime, pays
twice. So the open question for the same thing is answered in the write that changes the payment.
If no question is open, the payment is restored as the answer of the question that it was made for,
and the next call receives the payment. If another payment has paid for the same thing in the
meantime, the payment that becomes usable again is a surplus.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from msgspec.structs import replace

from flows.elicitation import states
from flows.elicitation.states import Elicitation, Status
from flows.elicitation.traits import PaidSession
from flows.payments import receipt as receipts
from flows.payments.receipt import Payment, ReceiptStatus
from webapp.elicitations.service import Elicitations


@dataclass(frozen=True, slots=True)
class ChangedPayment:
    """A changed payment, and the questions to write together with the payment.

    `ended` are the questions that end in this write. `questions` includes them.
    """

    payment: Payment
    questions: Sequence[Elicitation] = ()
    ended: Sequence[Elicitation] = ()


class UsableAgain:
    """The rules that decide which rows to write when a payment becomes usable again.

    The class itself writes nothing. `paid` finds the payment that settled a question. `product`
    finds the payment that owns the key of a permanent purchase. `product_key` returns that key.
    """

    def __init__(
        self,
        elicitations: Elicitations,
        *,
        paid: Callable[[Elicitation], Awaitable[Payment | None]],
        product: Callable[[Payment], Awaitable[Payment | None]],
        product_key: Callable[[Payment], str],
        refunded_after: timedelta | None,
    ) -> None:
        self._elicitations = elicitations
        self._paid = paid
        self._product = product
        self._product_key = product_key
        self._refunded_after = refunded_after

    def answered(self, asked: Elicitation, payment: Payment) -> list[Elicitation]:
        """Answer the open question with this payment. Return the ended question to write.

        The question ends as accepted, or as expired if its time has run out. The list is empty if
        the question had already ended, or if the payment is not usable.
        """
        if asked.status.is_final or not payment.is_usable:
            return []
        proof, content = PaidSession(session=payment.session), {"payment": payment.id}
        ended = states.accept(asked, proof, now=self._elicitations.clock(), content=content)
        if ended.status is Status.ACCEPTED:
            return [replace(ended, answered_by=payment.id)]
        return [replace(ended, holds_key=False)]

    async def made_usable(self, payment: Payment, *, before: Payment) -> ChangedPayment:
        """Return the rows to write if the change from `before` makes the payment usable.

        An open question for the same thing is answered with the payment. If no question is open,
        the payment is restored as the answer of the question that it was made for, so that the
        next call receives the payment.
        """
        if before.is_usable or not payment.is_usable:
            return ChangedPayment(payment)
        if payment.once:
            holder = await self._product(payment)
            if holder is not None and holder.id != payment.id:
                return ChangedPayment(self._bought_again(payment, holder))
            payment = replace(payment, dedupe_key=self._product_key(payment))
        question = await self._elicitations.get(payment.answers or payment.elicitation_id)
        key = payment.question_key or (None if question is None else question.dedupe_key)
        if key is None:  # rows of older versions do not name the question
            return ChangedPayment(payment)
        asked = await self._elicitations.holder(Elicitation, owner=payment.owner, key=key)
        ended: list[Elicitation] = []
        if asked is not None and not asked.status.is_final:
            ended = self.answered(asked, payment)
            if ended[0].status is Status.ACCEPTED:
                restored = replace(self._usable_again(payment), answers=asked.id)
                return ChangedPayment(restored, questions=ended, ended=ended)
            asked = None  # the open question had expired, so it is not the holder below
        if payment.once:
            return ChangedPayment(self._usable_again(payment), questions=ended, ended=ended)
        result = await self._restored_for_next_call(payment, question, asked)
        return ChangedPayment(result.payment, questions=[*ended, *result.questions], ended=ended)

    async def _restored_for_next_call(
        self, payment: Payment, question: Elicitation | None, holder: Elicitation | None
    ) -> ChangedPayment:
        """Return the rows that restore the payment as the answer of `question`, for the next call.

        `question` is the question that the payment was made for. `holder` is the ended question
        that owns the question's key now, if any.
        """
        if holder is not None:
            other = await self._paid(holder)
            if other is not None and other.id != payment.id and not other.has_ended:
                return ChangedPayment(self._bought_again(payment, other))
            if self._elicitations.is_held(holder):
                return ChangedPayment(payment)
        leading = self._leading_again(question, payment)
        if not leading:
            return ChangedPayment(payment)
        if holder is not None and holder.id != leading[0].id:
            leading = [states.release_key(holder), *leading]
        return ChangedPayment(self._usable_again(payment), questions=leading)

    def _leading_again(self, asked: Elicitation | None, payment: Payment) -> list[Elicitation]:
        """Return the accepted question with this payment as its answer.

        The list is empty if a call uses the question, or if it cannot be answered any more.
        """
        if asked is None or asked.status is not Status.ACCEPTED:
            return []
        is_stored = states.can_still_be_stored(asked, self._elicitations.clock())
        if not is_stored or self._elicitations.is_held(asked):
            return []
        content = {"payment": payment.id}
        if asked.holds_key and asked.content == content and asked.delivered_at is None:
            return []  # the payment is still the question's answer
        return [replace(asked, holds_key=True, content=content, delivered_at=None, take=None)]

    def _bought_again(self, payment: Payment, other: Payment) -> Payment:
        """Return the payment as a surplus: `other` has paid for the same thing in the meantime.

        A payment that was used before is no surplus. Return it without the key of the permanent
        purchase, which `other` owns now.
        """
        if payment.status is ReceiptStatus.OPEN:
            return receipts.as_surplus(payment, self._elicitations.clock(), to=other.id)
        return replace(payment, dedupe_key=payment.id)  # the payment was used before

    def _usable_again(self, payment: Payment) -> Payment:
        """Return the payment with a new period in which it can be used."""
        if self._refunded_after is None or payment.refund_at is None:
            return payment
        until = self._elicitations.clock() + self._refunded_after
        return replace(payment, refund_at=max(payment.refund_at, until))
