"""Verification: applying a provider's status of a session that this server began.

Risks: another program's payment is accepted, one session is counted twice, or a payment is not
noticed. Callers pass only a status that was fetched or came in a verified webhook. Each paid
session has one complete row in the ledger, written together with the question that the session
answers. A payment that differs from what was requested settles nothing and is listed for the
operator.
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
from flows.payments.unresolved import is_paid_otherwise
from webapp.elicitations.complete import complete_elicitation
from webapp.elicitations.retry import Erased
from webapp.elicitations.service import Also, Elicitations
from webapp.payments.early_events import EarlyEvents, PaymentWithEvents
from webapp.payments.ledger import Ledger
from webapp.payments.unresolved import UnresolvedPayments
from webapp.records.values import StoredWebhook, Value

_log = logging.getLogger(__name__)
ON_ITS_WAY = "a payment is on its way: call again later, and nobody pays twice"
_OTHERWISE = ("amount", "currency", "mode")
# Replies to webhooks name some statuses differently, for compatibility with older versions.
_ANSWERS = {SessionStatus.CLOSED: "expired"}


class Verification:
    def __init__(
        self,
        *,
        elicitations: Elicitations,
        flow: Gateways,
        ledger: Ledger,
        unresolved: UnresolvedPayments,
    ) -> None:
        self._elicitations = elicitations
        self._flow = flow
        self._ledger = ledger
        self._unresolved = unresolved
        self.early = EarlyEvents(elicitations=elicitations, flow=flow)

    async def apply(self, elicitation: Elicitation, found: ProviderSession) -> SessionStatus:
        """Apply a fetched session, and return its verified status.

        Raises Mismatch if the session differs from what was requested.
        """
        seller, payment = self._flow.of(elicitation).seller, None
        try:
            verified = verify_session(elicitation, found, seller=seller)
        except Mismatch as mismatch:
            await self.paid_otherwise(elicitation, found, mismatch)
            raise
        if verified is SessionStatus.PENDING and elicitation.status.is_final:
            await self._unresolved.wait(elicitation, found.id)
        if found.state is SessionStatus.PAID:
            id = await self._ledger.id_for(elicitation, found)
            now, unused = self._elicitations.clock(), self._ledger.unused.get(seller.name)
            payment = paid_row(elicitation, found, id=id, at=seller.api, now=now, unused=unused)
        await self._elicitations.run_to_completion(self._act(elicitation, found, verified, payment))
        await self._hear(elicitation, found)
        return verified

    async def apply_notice(
        self,
        elicitation: Elicitation,
        event: Notice,
        *,
        seller: MerchantAccount,
        hook: StoredWebhook,
        payment_id: str,
    ) -> str:
        """Apply a signed notice, store it in the same write, and return the resulting status.

        `payment_id` is the session's id in the ledger. A cancelled request must not stop this
        method: call it through `run_to_completion` or `uncancelled`.

        Raises:
            Mismatch: The session differs from what was requested.
        """
        verified = verify_notice(elicitation, event, seller=seller)
        session, payment = event.session, None
        assert session is not None
        if session.state is SessionStatus.PAID:  # a refunded payment needs its row too
            if ":" in session.id:  # the id may be this server's own key, and paid twice
                payment_id = await self._ledger.id_for(elicitation, session)
            now, unused = hook.received_at, self._ledger.unused.get(seller.name)
            payment = paid_row(
                elicitation, session, id=payment_id, at=seller.api, now=now, unused=unused
            )
        done = await self._act(elicitation, session, verified, payment, hook=hook)
        if session.refunded or session.charged_back:  # an old notice has 0 despite a later refund
            await self._hear(elicitation, session)
        return str(done or _ANSWERS.get(verified, verified))

    async def must_be_unpaid(self, elicitation: Elicitation) -> None:
        """Check that no payment has bought the product already.

        Raises:
            NotPossible: The product is paid. The question is now answered with that payment.
        """
        payment = await self._ledger.bought_for_good(elicitation)
        if payment is not None and not elicitation.status.is_final:
            await self._ledger.serve(elicitation, payment)
            raise NotPossible(status=Status.ACCEPTED, wanted="paid again")

    async def paid_otherwise(
        self, elicitation: Elicitation, session: ProviderSession, mismatch: Mismatch
    ) -> None:
        """Handle an authentic session that differs from what was requested; it settles nothing.

        If the session was paid, list it for the operator. Its page and its tool say so.
        """
        if mismatch.what not in _OTHERWISE or session.id not in sessions_of(elicitation):
            return
        if session.state is SessionStatus.PENDING and elicitation.status.is_final:
            await self._unresolved.wait(elicitation, session.id)
        if session.state is SessionStatus.PAID:
            await self._unresolved.paid_otherwise(elicitation, session)

    async def _hear(self, elicitation: Elicitation, session: ProviderSession) -> None:
        """Update a recorded payment with the refunds and disputes that the session shows."""
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
        """Write the rows that the verified status requires.

        `payment` is the new row of a paid session. Return the result for the question, or None if
        the session is not paid.
        """
        early_webhooks: Sequence[StoredWebhook] = ()
        if session.unknown_word is not None:
            about = {"id": elicitation.id, "session": session.id, "why": session.unknown_word}
            _log.warning("payment.unknown_status", extra=about)

        async def rows(changed: Elicitation) -> Sequence[Value]:
            nonlocal early_webhooks
            unwritten, early_webhooks = await self._unwritten(changed, session, payment, hook)
            return unwritten

        done: Completion | None = None
        match verified:
            case SessionStatus.PAID if elicitation.status is Status.ACCEPTED:
                done, is_written = Completion.ALREADY_SETTLED, False
            case SessionStatus.PAID:
                assert payment is not None
                # Write without a look-up first: nearly always the rows are new, and a conflict
                # leads to the look-up in `rows`.
                with_events = await self._with_early_events(elicitation, payment)
                early_webhooks = with_events.webhooks
                done = await complete_elicitation(
                    self._elicitations,
                    elicitation.id,
                    {"payment": payment.id},
                    PaidSession(session=session.id),
                    also=rows,
                    first=[row for row in (hook, with_events.payment) if row is not None],
                    answers_others=payment.id if payment.once else None,
                )
                if done is Completion.UNKNOWN:  # the question is erased
                    raise Erased(elicitation.id)
                is_written = done is not Completion.ALREADY_SETTLED
            case _:
                is_written = await self._note(elicitation, session, verified, also=rows)
        if not is_written:
            # Paid twice or reported twice: the ledger has each paid session once.
            await self._elicitations.write_afresh(lambda: self._of_ended(elicitation, rows))
        if early_webhooks:
            await self.early.applied(early_webhooks)
        if verified is SessionStatus.PAID:
            await self._resolve(elicitation, session)
        return done

    async def _resolve(self, elicitation: Elicitation, session: ProviderSession) -> None:
        """End the session's unresolved row, which is possible only after the payment is stored."""
        if elicitation.status.is_final or is_paid_otherwise(elicitation.progress):
            await self._unresolved.end(elicitation, session.id)

    async def _of_ended(self, elicitation: Elicitation, rows: Also) -> Sequence[Value]:
        """Return the rows for the current question, which another write may have ended."""
        return await rows(await self._elicitations.get(elicitation.id) or elicitation)

    async def _with_early_events(
        self, elicitation: Elicitation, payment: Payment
    ) -> PaymentWithEvents:
        return await self.early.apply_to(await self._ledger.unwritten(elicitation, payment))

    async def _unwritten(
        self,
        elicitation: Elicitation,
        session: ProviderSession,
        payment: Payment | None,
        hook: StoredWebhook | None,
    ) -> tuple[Sequence[Value], Sequence[StoredWebhook]]:
        """Return the rows that are not stored yet, and the webhooks of applied early events."""
        paid: Value | None = None
        early_webhooks: Sequence[StoredWebhook] = ()
        webhook_row = None if hook is None else await self._ledger.unless_there(hook)
        if payment is not None:
            id = await self._ledger.id_for(elicitation, session)
            with_events = await self._with_early_events(
                elicitation, replace(payment, id=id, join=id)
            )
            paid = await self._ledger.unless_there(with_events.payment)
            if paid is not None:
                early_webhooks = with_events.webhooks
            elif webhook_row is not None:
                # The payment was known: a second event does not change a session's row.
                webhook_row = replace(webhook_row, status="repeated")
        return [row for row in (paid, webhook_row) if row is not None], early_webhooks

    async def _note(
        self,
        elicitation: Elicitation,
        session: ProviderSession,
        verified: SessionStatus,
        *,
        also: Also,
    ) -> bool:
        """Apply the status of an unpaid session. Return True if the rows of `also` were written."""
        # The status of an earlier session, which is not paid, says nothing about the current one.
        is_latest = session.id == next(iter(sessions_of(elicitation)), None)
        if verified is SessionStatus.FAILED and is_latest:
            with suppress(NotPossible):
                await self._elicitations.settle(
                    elicitation.id, Status.FAILED, why=NOT_ARRIVED, also=also
                )
                return True
            # The question had ended before: no payment is on its way any more.
            await self._elicitations.change(elicitation.id, _arrived_never)
        elif elicitation.status.is_final:
            pass
        elif verified is SessionStatus.CLOSED:
            await self._elicitations.change(elicitation.id, lambda e: forget_page(e, session.id))
        elif (
            verified is SessionStatus.PENDING
            and is_latest
            and not is_paid_otherwise(elicitation.progress)
        ):
            await self._elicitations.change(
                elicitation.id, lambda e: replace(e, progress=ON_ITS_WAY)
            )
        return False


def _arrived_never(elicitation: Elicitation) -> Elicitation:
    is_said = elicitation.progress == ON_ITS_WAY
    return replace(elicitation, progress=None) if is_said else elicitation
