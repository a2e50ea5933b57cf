"""Verdicts: what follows from what a seller says of a session that one of our attempts began.

What could go wrong: somebody else's payment taken for ours, one session counted twice, a payment
that nobody is told of. Only a fetch or a verified webhook gets here, each paid session has one row
in the ledger, whole, in the same write as the question that it answers, and what was paid otherwise
than asked settles nothing and is shown to whoever runs the server.
"""

from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from flows.elicitation.proof import PaidSession
from flows.elicitation.states import NOT_ARRIVED, Completion, Elicitation, Status
from flows.errors import NotPossible
from flows.payments.gateway import ProviderSession, forget_page, heard, verify_session
from flows.payments.receipt import Payment
from flows.payments.registry import Gateways
from flows.payments.session import Mismatch, SessionStatus, sessions_of
from webapp.elicitations.complete import complete_elicitation
from webapp.elicitations.service import Also, Elicitations
from webapp.payments.early_events import EarlyEvents
from webapp.payments.ledger import Ledger
from webapp.payments.unresolved import PAID_OTHERWISE, UnresolvedPayments
from webapp.records.rows import StoredWebhook, Value

ON_ITS_WAY = "a payment is on its way: call again later, and nobody pays twice"
_OTHERWISE = ("amount", "currency", "mode")


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
        try:
            verified = verify_session(elicitation, found, seller=self._flow.of(elicitation).seller)
        except Mismatch as mismatch:
            await self.paid_otherwise(elicitation, found, mismatch)
            raise
        if verified is SessionStatus.PENDING and elicitation.status.is_final:
            await self._loose_ends.wait(elicitation, found.id)
        await self.apply(elicitation, found, verified)
        await self.hear(elicitation, found)
        return verified

    async def apply(
        self,
        elicitation: Elicitation,
        session: ProviderSession,
        verified: SessionStatus,
        *,
        hook: StoredWebhook | None = None,
    ) -> Completion | None:
        """Act on what a session of this elicitation says; `hook` is kept in the same write."""
        told_before: list[StoredWebhook] = []
        done = await self._elicitations.whole(
            self._apply(elicitation, session, verified, hook, told_before)
        )
        await self.early.applied(told_before)
        is_plain = not elicitation.status.is_final and elicitation.progress != PAID_OTHERWISE
        if verified is SessionStatus.PAID and not is_plain:
            # Somebody asked, or had to look. Only now: till its row is there it is asked about.
            await self._loose_ends.end(elicitation, session.id)
        return done

    async def hear(self, elicitation: Elicitation, session: ProviderSession) -> None:
        """What became of a payment afterwards, where no event tells."""
        id = await self._ledger.id_for(elicitation, session)
        payment = await self._ledger.read(elicitation.owner, id)
        now = self._elicitations.clock()
        if payment is not None and heard(payment, session, now=now) != payment:
            await self._ledger.hear(payment, lambda p: heard(p, session, now=now))

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

    async def _apply(
        self,
        elicitation: Elicitation,
        session: ProviderSession,
        verified: SessionStatus,
        hook: StoredWebhook | None,
        told_before: list[StoredWebhook],
    ) -> Completion | None:
        payment_id = await self._ledger.id_for(elicitation, session)
        is_news = elicitation.status is not Status.ACCEPTED

        async def rows(changed: Elicitation) -> Sequence[Value]:
            # Nearly always it is news: only what has met a conflict is looked up before it.
            nonlocal is_news
            was_news, is_news = is_news, False
            payment: Payment | None = None
            if session.state is SessionStatus.PAID:  # and gone again: it has its row all the same
                id = payment_id if was_news else await self._ledger.id_for(elicitation, session)
                paid = await self._ledger.payment_of(changed, session, id=id)
                whole = await self.early.whole(heard(paid, session, now=self._elicitations.clock()))
                payment, told_before[:] = whole.payment, whole.hooks
            if not was_news:
                if payment is not None and changed.status is Status.ACCEPTED:
                    payment = await self._ledger.as_surplus(changed, payment)
                kept = await self._unless_there(payment, hook)
                if payment not in kept:  # it was there: what waits for it is for the sweeper
                    told_before.clear()
                return kept
            return [row for row in (payment, hook) if row is not None]

        # What became of an earlier try says nothing of the one that is going on, unless it is paid.
        is_latest = session.id == next(iter(sessions_of(elicitation)), None)
        done: Completion | None = None
        match verified:
            case SessionStatus.PAID if elicitation.status is Status.ACCEPTED:
                done = Completion.ALREADY_SETTLED
            case SessionStatus.PAID:
                done = await self._complete(elicitation, session, payment_id, rows)
                if done is not Completion.ALREADY_SETTLED:
                    return done
            case SessionStatus.FAILED if is_latest:
                with suppress(NotPossible):
                    await self._elicitations.settle(
                        elicitation.id, Status.FAILED, why=NOT_ARRIVED, also=rows
                    )
                    return None
                # Its question was over before: nothing is on its way any more.
                await self._elicitations.change(elicitation.id, _arrived_never)
            case _:
                await self._note(elicitation, session, verified, is_latest=is_latest)
        # Paid twice, or told twice: the ledger has each paid session once.
        await self._elicitations.write_afresh(lambda: rows(elicitation))
        return done

    async def _complete(
        self, elicitation: Elicitation, session: ProviderSession, payment_id: str, rows: Also
    ) -> Completion:
        """Raises KeyError where it was erased meanwhile: then it is looked for at the provider."""
        proof, answer = PaidSession(session=session.id), {"payment": payment_id}
        id = elicitation.id
        done = await complete_elicitation(self._elicitations, id, answer, proof, also=rows)
        if done is Completion.UNKNOWN:
            raise KeyError(id)
        return done

    async def _unless_there(
        self, payment: Payment | None, hook: StoredWebhook | None
    ) -> Sequence[Value]:
        paid = None if payment is None else await self._ledger.unless_there(payment)
        told = None if hook is None else await self._ledger.unless_there(hook)
        if payment is not None and paid is None and told is not None:
            # It was known to be paid: the row of a session is what no second event changes.
            told = replace(told, status="repeated")
        return [row for row in (paid, told) if row is not None]

    async def _note(
        self,
        elicitation: Elicitation,
        session: ProviderSession,
        verified: SessionStatus,
        *,
        is_latest: bool,
    ) -> None:
        """What settles nothing, and yet is good to know while the question is open."""
        if elicitation.status.is_final:
            return
        if (
            verified is SessionStatus.PENDING
            and is_latest
            and elicitation.progress != PAID_OTHERWISE
        ):
            await self._elicitations.change(
                elicitation.id, lambda e: replace(e, progress=ON_ITS_WAY)
            )
        elif verified is SessionStatus.CLOSED:
            await self._elicitations.change(elicitation.id, lambda e: forget_page(e, session.id))


def _arrived_never(elicitation: Elicitation) -> Elicitation:
    is_said = elicitation.progress == ON_ITS_WAY
    return replace(elicitation, progress=None) if is_said else elicitation
