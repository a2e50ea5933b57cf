"""The ledger: each paid session has one row, and what becomes of it is decided there.

What could go wrong: a payment that is spent twice, or spent and given back. A row changes by
compare-and-set through the one table of `flows.receipt`.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence

import msgspec

from flows import receipt as receipts
from flows.checkout import Session, Terms, sessions_of, terms_of
from flows.elicitation import Elicitation
from flows.receipt import Payment, ReceiptStatus, Refund
from webapp.elicitations import Elicitations
from webapp.rows import Hook


class Ledger:
    """`places` are the addresses of the sellers, by their names."""

    def __init__(self, elicitations: Elicitations, *, places: Mapping[str, str]) -> None:
        self._elicitations = elicitations
        self._places = places

    async def read(self, owner: str, id: str) -> Payment | None:
        return await self._elicitations.read(Payment, owner=owner, id=id)

    def id_of(self, elicitation: Elicitation, session: str) -> str:
        parts = (terms_of(elicitation).seller, session)
        return elicitation.owner + self._elicitations.owners.pepper.tag("payment", *parts, size=18)

    async def payment_of(self, elicitation: Elicitation, session: Session) -> Payment:
        """The ledger's row of a paid session."""
        terms = terms_of(elicitation)
        asked = elicitation.asked
        id = join = self.id_of(elicitation, session.id)
        if terms.once:
            bought = self.bought(terms, server=asked.server, tool=asked.tool)
            holder = await self._elicitations.holder(Payment, owner=elicitation.owner, key=bought)
            join = id if holder is not None else bought  # bought already: it is money to give back
        return Payment(
            id=id,
            owner=elicitation.owner,
            elicitation_id=elicitation.id,
            join=join,
            server=asked.server,
            tool=asked.tool,
            seller=terms.seller,
            session=session.id,
            payment_intent=session.payment_intent,
            amount=terms.amount,
            currency=terms.currency,
            what=terms.what,
            is_live=terms.is_live,
            once=terms.once,
            paid_at=self._elicitations.clock(),
        )

    def bought(self, terms: Terms, *, server: str, tool: str) -> str:
        """The key of what is bought for good: by this question, at this very seller."""
        text = hashlib.sha256(msgspec.json.encode(terms)).hexdigest()
        # What the sandbox took is no payment at the seller of the same name.
        at = self._places.get(terms.seller, "")
        return self._elicitations.owners.pepper.tag("bought", server, tool, at, text, size=18)

    async def paid(self, elicitation: Elicitation) -> Payment | None:
        """The payment that settled it."""
        for session in sessions_of(elicitation):
            found = await self.read(elicitation.owner, self.id_of(elicitation, session))
            if found is not None:
                return found
        return None

    async def spend(self, owner: str, id: str, *, run: str) -> Payment:
        """Use it up; a body that runs again spends again. Raises NotPossible if it was refunded."""
        now = self._elicitations.clock()

        def use_up(payment: Payment) -> Payment:
            if payment.status is ReceiptStatus.SPENT:
                return payment
            return receipts.spend(in_hand(payment), now, run=run)

        return await self._change(owner, id, use_up)

    async def refundable(self, owner: str, id: str) -> Payment:
        """Raises NotPossible if it was spent; one that was refunded may be asked for again."""
        payment = await self._require(owner, id)
        if payment.status is not ReceiptStatus.REFUNDED:
            receipts.require(payment, ReceiptStatus.REFUNDED)
        return payment

    async def give_back(self, owner: str, id: str, refund: Refund, *, reason: str | None) -> None:
        """The provider has given the money back: that stands, whatever happened meanwhile."""
        now = self._elicitations.clock()

        def given_back(payment: Payment) -> Payment:
            if payment.status is ReceiptStatus.REFUNDED:
                return payment
            return receipts.given_back(payment, now, reason=reason, refund_id=refund.id)

        await self._change(owner, id, given_back)

    async def has(self, row: Payment | Hook) -> bool:
        found = await self._elicitations.read(type(row), owner=row.owner, id=row.id)  # type: ignore[type-var]
        return found is not None

    async def _change(self, owner: str, id: str, change: Callable[[Payment], Payment]) -> Payment:
        changed: Payment | None = None

        async def values() -> Sequence[Payment]:
            nonlocal changed
            current = await self._require(owner, id)
            changed = change(current)
            return [] if changed == current else [changed]

        await self._elicitations.write_afresh(values)
        assert changed is not None
        return changed

    async def _require(self, owner: str, id: str) -> Payment:
        found = await self.read(owner, id)
        if found is None:
            raise KeyError(id)
        return found


def in_hand(payment: Payment) -> Payment:
    """As the tool has it: the elicitation's lease is what says that it is taken."""
    return receipts.take(payment) if payment.status is ReceiptStatus.OPEN else payment
