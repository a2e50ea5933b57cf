"""Payments (the kind `payment`): what is asked, what settles it, and the ledger's rows.

What could go wrong: somebody else's payment taken for ours, one payment counted twice, money that
belongs to no question. Only a verified webhook or a fetch settles, only for a session of our own,
and each paid session has exactly one row in the ledger, whatever became of its question.
"""

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
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
from webapp.elicitations import TRIES_AT_MOST, Contended, Elicitations
from webapp.kind import AskedBy
from webapp.outbound import Outbound
from webapp.rows import Hook, Value
from webapp.stores import Conflict

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
        return _json(_in_hand(found))

    async def used_up(self, delivered: Elicitation) -> list[Value]:
        """The result that used it went out: it is spent."""
        found = await self._of(delivered)
        if found is None or found.status.is_final:
            return []
        return [receipts.spend(_in_hand(found), self._elicitations.clock())]

    def return_path(self, elicitation: Elicitation) -> str:
        return f"/return/{terms_of(elicitation).seller}"

    async def paid(self, elicitation: Elicitation) -> Payment | None:
        """The payment that settled it; also when it was delivered."""
        for session in sessions_of(elicitation):
            id = self._payment_id(elicitation, session)
            found = await self._elicitations.read(Payment, owner=elicitation.owner, id=id)
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
        async def with_hook(_: Elicitation) -> Sequence[Value]:
            return await self._new(hook)

        async def with_payment(changed: Elicitation) -> Sequence[Value]:
            return [*await self._paid(changed, session), *await self._new(hook)]

        # What became of an earlier try says nothing of the one that is going on, unless it is paid.
        is_latest = session.id == next(iter(sessions_of(elicitation)), None)
        match verdict:
            case Verdict.PAID:
                content = {"payment": self._payment_id(elicitation, session.id)}
                done = await accept(self._elicitations, elicitation, content, also=with_payment)
                if done is Completion.ALREADY_SETTLED:
                    # Paid twice, or told twice: the ledger has each paid session once.
                    await self._write(lambda: with_payment(elicitation))
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
                    elicitation.id, lambda e: replace(e, progress="pending"), also=with_hook
                )
                return None
            case _:
                pass
        await self._write(lambda: with_hook(elicitation))
        return None

    async def spend(self, owner: str, id: str) -> Json:
        """Raises NotPossible if it was refunded."""
        now = self._elicitations.clock()
        spent = await self._change(
            owner,
            id,
            # A body that runs again spends again.
            lambda p: p if p.status is ReceiptStatus.SPENT else receipts.spend(_in_hand(p), now),
        )
        return _json(spent)

    async def refund(self, owner: str, id: str, *, reason: str | None) -> Json:
        """Give the money back; the same again gives the same refund.

        Raises NotPossible if it was spent, Failed if the provider cannot be asked.
        """
        payment = await self._read(owner, id)
        if payment.status is not ReceiptStatus.REFUNDED:
            receipts.require(payment, ReceiptStatus.REFUNDED)
        refund = await self._outbound.run(self.flow.refund(payment, reason=reason))
        now = self._elicitations.clock()

        def give_back(current: Payment) -> Payment:
            if current.status is ReceiptStatus.REFUNDED:
                return current
            return receipts.given_back(current, now, reason, refund.id)

        await self._change(owner, id, give_back)
        return refund.as_json()

    async def _change(self, owner: str, id: str, change: Callable[[Payment], Payment]) -> Payment:
        for _ in range(TRIES_AT_MOST):
            current = await self._read(owner, id)
            changed = change(current)
            if changed == current:
                return current
            try:
                await self._elicitations.write(changed)
            except Conflict:
                continue
            return changed
        raise Contended(id)

    async def _write(self, values: Callable[[], Awaitable[Sequence[Value]]]) -> None:
        for _ in range(TRIES_AT_MOST):
            rows = await values()
            try:
                if rows:
                    await self._elicitations.write(*rows)
            except Conflict:
                continue
            return
        raise Contended("the ledger")

    async def _read(self, owner: str, id: str) -> Payment:
        found = await self._elicitations.read(Payment, owner=owner, id=id)
        if found is None:
            raise KeyError(id)
        return found

    async def _of(self, elicitation: Elicitation) -> Payment | None:
        content = elicitation.content
        id = content.get("payment") if isinstance(content, Mapping) else None
        if not isinstance(id, str):
            return None
        return await self._elicitations.read(Payment, owner=elicitation.owner, id=id)

    async def _new(self, hook: Hook | None) -> list[Value]:
        """The row, unless it is there already."""
        if hook is None:
            return []
        found = await self._elicitations.read(Hook, owner=hook.owner, id=hook.id)
        return [hook] if found is None else []

    def _payment_id(self, elicitation: Elicitation, session: str) -> str:
        parts = (terms_of(elicitation).seller, session)
        return elicitation.owner + self._elicitations.owners.pepper.tag("payment", *parts, size=18)

    async def _paid(self, elicitation: Elicitation, session: Session) -> list[Value]:
        """The ledger's row of a paid session, unless it is there already."""
        terms = terms_of(elicitation)
        asked = elicitation.asked
        id = join = self._payment_id(elicitation, session.id)
        if await self._elicitations.read(Payment, owner=elicitation.owner, id=id) is not None:
            return []
        if terms.once:
            bought = self._bought(terms, server=asked.server, tool=asked.tool)
            holder = await self._elicitations.holder(Payment, owner=elicitation.owner, key=bought)
            join = id if holder is not None else bought  # bought already: it is money to give back
        payment = Payment(
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
        return [payment]

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


def _in_hand(payment: Payment) -> Payment:
    """As the tool has it: the elicitation's lease is what says that it is taken."""
    return receipts.take(payment) if payment.status is ReceiptStatus.OPEN else payment


def _json(payment: Payment) -> Json:
    return cast("Json", msgspec.to_builtins(payment))
