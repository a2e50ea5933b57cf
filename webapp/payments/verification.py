"""Verdicts: what follows from what a seller says of a session that one of our attempts began.

What could go wrong: somebody else's payment taken for ours, one session counted twice, a payment
that nobody is told of. Only a fetch or a verified webhook gets here, each paid session has one row
in the ledger, whole, in the same write as the question that it answers, and what was paid otherwise
than asked settles nothing and is shown to whoever runs the server.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from flows.elicitation.proof import PaidSession
from flows.elicitation.states import NOT_ARRIVED, Completion, Elicitation, Status
from flows.errors import NotPossible
from flows.payments.gateway import (
    MerchantAccount,
    Notice,
    ProviderSession,
    forget_page,
    heard,
    paid_row,
    verify_notice,
    verify_session,
)
from flows.payments.receipt import Payment
from flows.payments.registry import Gateways
from flows.payments.session import Mismatch, SessionStatus, sessions_of
from flows.payments.unresolved import PAID_OTHERWISE
from webapp.elicitations.complete import complete_elicitation
from webapp.elicitations.retry import Erased
from webapp.elicitations.service import Also, Elicitations
from webapp.payments.early_events import EarlyEvents, Whole
from webapp.payments.ledger import Ledger
from webapp.payments.unresolved import UnresolvedPayments
from webapp.records.values import StoredWebhook, Value

_log = logging.getLogger(__name__)
ON_ITS_WAY = "a payment is on its way: call again later, and nobody pays twice"
_OTHERWISE = ("amount", "currency", "mode")
# What providers were always answered, where that is another word than ours.
_ANSWERS = {SessionStatus.CLOSED: "expired"}


class Verification:
    def __init__(
        self,
        *,
        elicitations: Elicitations,
        flow: Gateways,
        ledger: Ledger,
        loose_ends: UnresolvedPayments,
    ) -> None:
        self._elicitations = elicitations
        self._flow = flow
        self._ledger = ledger
        self._loose_ends = loose_ends
        self.early = EarlyEvents(elicitations=elicitations, flow=flow)

    async def heed(self, elicitation: Elicitation, found: ProviderSession) -> SessionStatus:
        """Act on what was fetched. Raises Mismatch."""
        seller, payment = self._flow.of(elicitation).seller, None
        try:
            verified = verify_session(elicitation, found, seller=seller)
        except Mismatch as mismatch:
            await self.paid_otherwise(elicitation, found, mismatch)
            raise
        if verified is SessionStatus.PENDING and elicitation.status.is_final:
            await self._loose_ends.wait(elicitation, found.id)
        if found.state is SessionStatus.PAID:
            id = await self._ledger.id_for(elicitation, found)
            now, unused = self._elicitations.clock(), self._ledger.unused.get(seller.name)
            payment = paid_row(elicitation, found, id=id, at=seller.api, now=now, unused=unused)
        await self._elicitations.whole(self._act(elicitation, found, verified, payment))
        await self._hear(elicitation, found)
        return verified

    async def told(
        self,
        elicitation: Elicitation,
        event: Notice,
        *,
        seller: MerchantAccount,
        hook: StoredWebhook,
        payment_id: str,
    ) -> str:
        """Act on what a signed notice says, and keep it in the same write; its end, in a word.

        `payment_id` is what the ledger calls its session. For a task that goes on to its end.
        Raises Mismatch.
        """
        verified = verify_notice(elicitation, event, seller=seller)
        session, payment = event.session, None
        assert session is not None
        if session.state is SessionStatus.PAID:  # and gone again: it has its row all the same
            if ":" in session.id:  # perhaps by our own key, and paid at twice
                payment_id = await self._ledger.id_for(elicitation, session)
            now, unused = hook.received_at, self._ledger.unused.get(seller.name)
            payment = paid_row(
                elicitation, session, id=payment_id, at=seller.api, now=now, unused=unused
            )
        done = await self._act(elicitation, session, verified, payment, hook=hook)
        if session.refunded or session.charged_back:  # of nothing, an old notice may tell too
            await self._hear(elicitation, session)
        return str(done or _ANSWERS.get(verified, verified))

    async def must_be_unpaid(self, elicitation: Elicitation) -> None:
        """Answer a question about a product that is bought already.

        Raises NotPossible for such a question.
        """
        payment = await self._ledger.bought_for_good(elicitation)
        if payment is not None and not elicitation.status.is_final:
            await self._ledger.serve(elicitation, payment)
            raise NotPossible(status=Status.ACCEPTED, wanted="paid again")

    async def paid_otherwise(
        self, elicitation: Elicitation, session: ProviderSession, mismatch: Mismatch
    ) -> None:
        """An authentic session of ours that is not as it was asked, which settles nothing.

        Where it was paid, whoever runs the server has to look, and its page and its tool say so.
        """
        if mismatch.what not in _OTHERWISE or session.id not in sessions_of(elicitation):
            return
        if session.state is SessionStatus.PENDING and elicitation.status.is_final:
            await self._loose_ends.wait(elicitation, session.id)
        if session.state is SessionStatus.PAID:
            await self._loose_ends.paid_otherwise(elicitation, session)

    async def _hear(self, elicitation: Elicitation, session: ProviderSession) -> None:
        """What became of a payment afterwards, where no event tells."""
        id = await self._ledger.id_for(elicitation, session)
        payment = await self._ledger.read(elicitation.owner, id)
        now = self._elicitations.clock()
        if payment is not None and heard(payment, session, now=now) != payment:
            owner, id = payment.owner, payment.id
            await self._ledger.change(owner, id, lambda p: heard(p, session, now=now))

    async def _act(
        self,
        elicitation: Elicitation,
        session: ProviderSession,
        verified: SessionStatus,
        payment: Payment | None,
        *,
        hook: StoredWebhook | None = None,
    ) -> Completion | None:
        """`payment` is the row of the session, if it was paid; nothing is written yet."""
        told_before: Sequence[StoredWebhook] = ()
        if session.unknown_word is not None:
            about = {"id": elicitation.id, "session": session.id, "why": session.unknown_word}
            _log.warning("payment.unknown_word", extra=about)

        async def rows(changed: Elicitation) -> Sequence[Value]:
            nonlocal told_before
            unwritten, told_before = await self._unwritten(changed, session, payment, hook)
            return unwritten

        done: Completion | None = None
        match verified:
            case SessionStatus.PAID if elicitation.status is Status.ACCEPTED:
                done, is_kept = Completion.ALREADY_SETTLED, False
            case SessionStatus.PAID:
                assert payment is not None
                # Nearly always it is news: only what has met a conflict is looked up before it.
                whole = await self._whole(elicitation, payment)
                told_before = whole.hooks
                done = await complete_elicitation(
                    self._elicitations,
                    elicitation.id,
                    {"payment": payment.id},
                    PaidSession(session=session.id),
                    also=rows,
                    first=[row for row in (hook, whole.payment) if row is not None],
                    answers_others=payment.id if payment.once else None,
                )
                if done is Completion.UNKNOWN:  # erased: it is looked for at the provider
                    raise Erased(elicitation.id)
                is_kept = done is not Completion.ALREADY_SETTLED
            case _:
                is_kept = await self._note(elicitation, session, verified, also=rows)
        if not is_kept:
            # Paid twice, or told twice: the ledger has each paid session once.
            await self._elicitations.write_afresh(lambda: self._of_ended(elicitation, rows))
        if told_before:
            await self.early.applied(told_before)
        if verified is SessionStatus.PAID:
            await self._resolve(elicitation, session)
        return done

    async def _resolve(self, elicitation: Elicitation, session: ProviderSession) -> None:
        """Only now that its row is there: till then it was asked about, or somebody had to look."""
        if elicitation.status.is_final or elicitation.progress == PAID_OTHERWISE:
            await self._loose_ends.end(elicitation, session.id)

    async def _of_ended(self, elicitation: Elicitation, rows: Also) -> Sequence[Value]:
        """Return the rows for the question as it is now: another write may have ended it."""
        return await rows(await self._elicitations.get(elicitation.id) or elicitation)

    async def _whole(self, elicitation: Elicitation, payment: Payment) -> Whole:
        return await self.early.whole(await self._ledger.unwritten(elicitation, payment))

    async def _unwritten(
        self,
        elicitation: Elicitation,
        session: ProviderSession,
        payment: Payment | None,
        hook: StoredWebhook | None,
    ) -> tuple[Sequence[Value], Sequence[StoredWebhook]]:
        """What of it is not in the store by now, with what has waited for that."""
        paid: Value | None = None
        told_before: Sequence[StoredWebhook] = ()
        told = None if hook is None else await self._ledger.unless_there(hook)
        if payment is not None:
            id = await self._ledger.id_for(elicitation, session)
            whole = await self._whole(elicitation, replace(payment, id=id, join=id))
            paid = await self._ledger.unless_there(whole.payment)
            if paid is not None:
                told_before = whole.hooks
            elif told is not None:
                # It was known to be paid: the row of a session is what no second event changes.
                told = replace(told, status="repeated")
        return [row for row in (paid, told) if row is not None], told_before

    async def _note(
        self,
        elicitation: Elicitation,
        session: ProviderSession,
        verified: SessionStatus,
        *,
        also: Also,
    ) -> bool:
        """What brings no money is said of the question; whether `also` is written with that."""
        # What became of an earlier try says nothing of the one that is going on, unless it is paid.
        is_latest = session.id == next(iter(sessions_of(elicitation)), None)
        if verified is SessionStatus.FAILED and is_latest:
            with suppress(NotPossible):
                await self._elicitations.settle(
                    elicitation.id, Status.FAILED, why=NOT_ARRIVED, also=also
                )
                return True
            # Its question was over before: nothing is on its way any more.
            await self._elicitations.change(elicitation.id, _arrived_never)
        elif elicitation.status.is_final:
            pass
        elif verified is SessionStatus.CLOSED:
            await self._elicitations.change(elicitation.id, lambda e: forget_page(e, session.id))
        elif (
            verified is SessionStatus.PENDING
            and is_latest
            and elicitation.progress != PAID_OTHERWISE
        ):
            await self._elicitations.change(
                elicitation.id, lambda e: replace(e, progress=ON_ITS_WAY)
            )
        return False


def _arrived_never(elicitation: Elicitation) -> Elicitation:
    is_said = elicitation.progress == ON_ITS_WAY
    return replace(elicitation, progress=None) if is_said else elicitation
