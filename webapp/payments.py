"""Payments (the kind `payment`): what is asked, what settles it, and the ledger's rows.

What could go wrong: somebody else's payment taken for ours, one payment counted twice, money that
belongs to no question. Only a verified webhook or a fetch settles, only for a session of our own,
and each paid session has exactly one row in the ledger, whatever became of its question.
"""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import cast

import msgspec
from msgspec.structs import replace

from flows import attempts
from flows import receipt as receipts
from flows.checkout import (
    CheckoutFlow,
    Mismatch,
    Seller,
    Session,
    Terms,
    Verdict,
    judge,
    kept_of,
    sessions_of,
    terms_of,
)
from flows.elicitation import Asked, Completion, Elicitation, Json, Status
from flows.errors import Failed, NotConfigured, NotPossible
from flows.question import Link
from flows.receipt import Payment, ReceiptStatus
from flows.requests import PaymentRequest
from webapp.acceptance import accept
from webapp.elicitations import Elicitations
from webapp.kind import AskedBy
from webapp.ledger import Ledger, in_hand
from webapp.outbound import Outbound
from webapp.rows import Hook, Value

ON_ITS_WAY = "on its way"  # paid by a method that takes days
NO_SELLER = ("ELICIT_STRIPE_KEY", "ELICIT_STRIPE_WEBHOOK_SECRET")


class Payments:
    """Implements webapp.kind.Kind for requests of type PaymentRequest."""

    holds_open = True

    def __init__(
        self, *, elicitations: Elicitations, outbound: Outbound, sellers: Mapping[str, Seller]
    ) -> None:
        self._elicitations = elicitations
        self._outbound = outbound
        self._sellers = sellers
        self._ledger = Ledger(elicitations)
        self.flow = CheckoutFlow(sellers)

    def facts(self, request: PaymentRequest) -> Json:
        seller = self._chosen(request)
        facts = request.facts()
        assert isinstance(facts, Mapping)
        return {**facts, "seller": seller.name, "live": seller.is_live, "at": seller.api}

    async def known(self, request: PaymentRequest, by: AskedBy) -> Json | None:
        """What was bought for good."""
        if not request.once:
            return None
        key = self._bought(self._terms(request), server=by.server, tool=by.tool)
        found = await self._elicitations.holder(Payment, owner=by.owner, key=key)
        return None if found is None else _json(found)

    def asked(self, request: PaymentRequest, asked: Asked, *, link: Link) -> Asked:
        seller = self._chosen(request)
        terms = msgspec.to_builtins(self._terms(request))
        return replace(asked, origins=(seller.checkout_origin,), terms=terms)

    async def answer(self, taken: Elicitation) -> Json:
        found = await self._of(taken)
        if found is None or found.status is ReceiptStatus.REFUNDED:
            raise Failed("The payment was given back meanwhile.", elicitation_id=taken.id)
        return _json(in_hand(found))

    async def used_up(self, delivered: Elicitation) -> list[Value]:
        """The result that used it went out: it is spent."""
        found = await self._of(delivered)
        if found is None or found.status.is_final:
            return []
        return [receipts.spend(in_hand(found), self._elicitations.clock())]

    def return_path(self, elicitation: Elicitation) -> str:
        return f"/return/{terms_of(elicitation).seller}"

    async def paid(self, elicitation: Elicitation) -> Payment | None:
        """The payment that settled it; also when it was delivered."""
        for session in sessions_of(elicitation):
            id = self._payment_id(elicitation, session)
            found = await self._ledger.read(elicitation.owner, id)
            if found is not None:
                return found
        return None

    def seller_of(self, elicitation: Elicitation) -> str:
        return terms_of(elicitation).seller

    def seller(self, name: str) -> Seller | None:
        return self._sellers.get(name)

    async def ask_seller(self, elicitation: Elicitation) -> None:
        """Fetch the sessions that may have been paid, and act on what they say.

        Raises Failed if the provider cannot be asked, Mismatch if it tells of something else.
        """
        failure: Failed | Mismatch | None = None
        for session in sessions_of(elicitation):
            try:
                await self._fetch(elicitation, session)
            except (Failed, Mismatch) as error:
                failure = failure or error  # another one may be paid
        if failure is not None:
            raise failure

    async def leave(self, elicitation: Elicitation) -> None:
        """The person came back by the checkout's cancel: unless it is paid, that is a no."""
        await self.ask_seller(elicitation)
        with suppress(NotPossible):
            await self._elicitations.settle(
                elicitation.id, Status.DENIED, why="the person left the checkout"
            )

    async def close(self, elicitation: Elicitation) -> None:
        """Its question is over: what is still open at the provider ends too.

        Raises as `ask_seller` does.
        """
        for session in sessions_of(elicitation):
            if not await self._outbound.run(self.flow.expire(elicitation, session)):
                with suppress(Mismatch):
                    await self._fetch(elicitation, session)
        await self._elicitations.change(elicitation.id, attempts.close)

    async def reconcile(self, elicitation: Elicitation) -> Elicitation:
        """Learn which sessions are ours where the reply to their making was lost."""
        for attempt in (elicitation.attempt, *elicitation.former):
            known = kept_of(attempt)
            if attempt is not None and known is not None and known.session is None:
                kept = await self._outbound.run(self.flow.repeat(elicitation, attempt))
                number, learned = attempt.number, msgspec.to_builtins(kept)
                elicitation = await self._elicitations.change(
                    elicitation.id,
                    lambda e, n=number, k=learned: attempts.keep(e, number=n, kept=k),  # type: ignore[misc]
                )
        return elicitation

    async def apply(
        self,
        elicitation: Elicitation,
        session: Session,
        verdict: Verdict,
        *,
        hook: Hook | None = None,
    ) -> Completion | None:
        """Act on what a session of this elicitation says; `hook` is kept in the same write."""
        return await self._elicitations.whole(self._apply(elicitation, session, verdict, hook))

    async def _fetch(self, elicitation: Elicitation, session: str) -> None:
        seller = self._sellers[terms_of(elicitation).seller]
        found = await self._outbound.run(self.flow.fetch(elicitation, session))
        await self.apply(elicitation, found, judge(elicitation, found, seller=seller))

    async def _apply(
        self, elicitation: Elicitation, session: Session, verdict: Verdict, hook: Hook | None
    ) -> Completion | None:
        is_first = True

        async def with_hook(_: Elicitation) -> Sequence[Value]:
            return await unless_there([hook] if hook is not None else [])

        async def with_payment(changed: Elicitation) -> Sequence[Value]:
            payment = await self._payment(changed, session)
            return await unless_there([payment, hook] if hook is not None else [payment])

        async def unless_there(rows: Sequence[Payment | Hook]) -> Sequence[Value]:
            # Nearly always it is news: only what has met a conflict is looked up before it.
            nonlocal is_first
            if is_first:
                is_first = False
                return rows
            return [row for row in rows if not await self._ledger.has(row)]

        # What became of an earlier try says nothing of the one that is going on, unless it is paid.
        is_latest = session.id == next(iter(sessions_of(elicitation)), None)
        match verdict:
            case Verdict.PAID:
                content = {"payment": self._payment_id(elicitation, session.id)}
                done = await accept(self._elicitations, elicitation, content, also=with_payment)
                if done is Completion.ALREADY_SETTLED:
                    # Paid twice, or told twice: the ledger has each paid session once.
                    await self._ledger.write(lambda: with_payment(elicitation))
                return done
            case Verdict.FAILED if is_latest:
                with suppress(NotPossible):
                    await self._elicitations.settle(
                        elicitation.id,
                        Status.FAILED,
                        why="the payment did not arrive",
                        also=with_hook,
                    )
                    return None
            case Verdict.PENDING if is_latest and not elicitation.status.is_final:
                await self._elicitations.change(
                    elicitation.id, lambda e: replace(e, progress=ON_ITS_WAY), also=with_hook
                )
                return None
            case _:
                pass
        await self._ledger.write(lambda: with_hook(elicitation))
        return None

    async def spend(self, owner: str, id: str) -> Json:
        """Raises NotPossible if it was refunded."""
        return _json(await self._ledger.spend(owner, id))

    async def refund(self, owner: str, id: str, *, reason: str | None) -> Json:
        """Give the money back; the same again gives the same refund.

        Raises NotPossible if it was spent, Failed if the provider cannot be asked.
        """
        payment = await self._ledger.refundable(owner, id)
        refund = await self._outbound.run(self.flow.refund(payment, reason=reason))
        await self._ledger.give_back(owner, id, refund, reason=reason)
        return refund.as_json()

    async def _of(self, elicitation: Elicitation) -> Payment | None:
        content = elicitation.content
        id = content.get("payment") if isinstance(content, Mapping) else None
        if not isinstance(id, str):
            return None
        return await self._ledger.read(elicitation.owner, id)

    def _payment_id(self, elicitation: Elicitation, session: str) -> str:
        parts = (terms_of(elicitation).seller, session)
        return elicitation.owner + self._elicitations.owners.pepper.tag("payment", *parts, size=18)

    async def _payment(self, elicitation: Elicitation, session: Session) -> Payment:
        """The ledger's row of a paid session."""
        terms = terms_of(elicitation)
        asked = elicitation.asked
        id = join = self._payment_id(elicitation, session.id)
        if terms.once:
            bought = self._bought(terms, server=asked.server, tool=asked.tool)
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

    def _bought(self, terms: Terms, *, server: str, tool: str) -> str:
        text = hashlib.sha256(msgspec.json.encode(terms)).hexdigest()
        return self._elicitations.owners.pepper.tag("bought", server, tool, text, size=18)

    def _terms(self, request: PaymentRequest) -> Terms:
        seller = self._chosen(request)
        return Terms(
            seller=seller.name,
            amount=request.price.minor_units,
            currency=request.price.currency,
            what=request.what,
            once=request.once,
            is_live=seller.is_live,
        )

    def _chosen(self, request: PaymentRequest) -> Seller:
        if request.seller is not None:
            if request.seller not in self._sellers:
                raise NotConfigured(f"ELICIT_{request.seller.upper()}_KEY")
            return self._sellers[request.seller]
        if not self._sellers:
            raise NotConfigured(*NO_SELLER)
        return next(iter(self._sellers.values()))


def _json(payment: Payment) -> Json:
    return cast("Json", msgspec.to_builtins(payment))
