"""Verification: applying a provider's status of a session that this server began.

Risks: another program's payment is accepted, one session is counted twice, or a payment is not
noticed. Callers pass only a status that was fetched or came in a verified webhook. Each paid
session has one complete row in the ledger, written together with the question that the session
answers. A payment that differs from what was requested settles nothing and is listed for the
operator.

Another risk is that a tool gets a receipt although the money is gone, because the refund or dispute
was reported before the payment. Such early events are stored under the id of the payment that they
name, and applied to the payment's row before the row is written.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from msgspec.structs import replace

from flows.elicitation.states import (
    MONEY_RETURNED,
    NOT_ARRIVED,
    Completion,
    Elicitation,
    Status,
)
from flows.elicitation.traits import PaidSession
from flows.errors import NotPossible
from flows.payments.events import (
    CHANGES,
    Change,
    changed_payment,
    changed_question,
    contradiction,
    ledger_state,
    stated,
)
from flows.payments.gateway import (
    MerchantAccount,
    Notice,
    ProviderSession,
    Signs,
    verify_notice,
    verify_session,
    with_returns,
)
from flows.payments.receipt import Payment
from flows.payments.refunds import check_soon
from flows.payments.registry import Gateways
from flows.payments.session import (
    Mismatch,
    SessionStatus,
    is_paid_otherwise,
    sessions_of,
    terms_of,
)
from webapp.elicitations.complete import complete_elicitation
from webapp.elicitations.service import Also, Elicitations
from webapp.payments.ledger import Ledger
from webapp.payments.unresolved import UnresolvedPayments
from webapp.records.ids import owner_of
from webapp.records.owners import SERVICE
from webapp.records.rows import Erased
from webapp.records.values import EarlyEvent, StoredWebhook, Value
from webapp.stores import Conflict

EARLY_EVENTS_AT_MOST = 100  # per payment; the sweeper handles all waiting webhooks
_log = logging.getLogger(__name__)
_OTHERWISE = ("amount", "currency", "mode")
# Replies to webhooks name some statuses differently, for compatibility with older versions.
_ANSWERS = {SessionStatus.CLOSED: "expired"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A verified event. `body` is the complete body, or only the beginning of a long body."""

    seller: MerchantAccount
    event: Notice
    body: str
    is_whole: bool


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

    async def apply(self, elicitation: Elicitation, found: ProviderSession) -> SessionStatus:
        """Apply a fetched session, and return its verified status.

        Raises Mismatch if the session differs from what was requested.
        """
        try:
            verified = verify_session(elicitation, found, seller=self._flow.of(elicitation).seller)
        except Mismatch as mismatch:
            await self.paid_otherwise(elicitation, found, mismatch)
            raise
        change = CHANGES[ledger_state(elicitation, found.id)].get(stated(found))
        await self._elicitations.run_to_completion(self._act(elicitation, found, change))
        await self._record_returns(elicitation, found)
        return verified

    async def apply_notice(
        self,
        elicitation: Elicitation,
        received: Received,
        change: Change | None,
        *,
        hook: StoredWebhook,
    ) -> str:
        """Make the `change` of a signed notice, and store the notice in the same write.

        Return the resulting status.

        Call this method through `run_to_completion` or `run_uncancelled`, because a cancelled
        request must not stop it.

        Raises:
            Erased: The question is erased.
            Mismatch: The session differs from what was requested.
        """
        verified = verify_notice(elicitation, received.event, seller=received.seller)
        session = received.event.session
        assert session is not None
        done = await self._act(elicitation, session, change, hook=hook)
        if session.refunded or session.charged_back:  # an old notice has 0 despite a later refund
            await self._record_returns(elicitation, session)
        return str(done or _ANSWERS.get(verified, verified))

    async def must_be_unpaid(self, elicitation: Elicitation) -> None:
        """Check that no payment has bought the product already.

        Raises:
            NotPossible: The product is paid. The question is now answered with that payment.
        """
        payment = await self._ledger.bought_for_good(elicitation)
        if payment is not None and not elicitation.status.is_final:
            await self._ledger.answer_with(elicitation, payment)
            raise NotPossible(status=Status.ACCEPTED, wanted="paid again")

    async def paid_otherwise(
        self, elicitation: Elicitation, session: ProviderSession, mismatch: Mismatch
    ) -> None:
        """Handle an authentic session that differs from what was requested; it settles nothing.

        If the session was paid, list it for the operator. The question's page and the tool report
        the difference.
        """
        if mismatch.what not in _OTHERWISE or session.id not in sessions_of(elicitation):
            return
        if session.state is SessionStatus.PENDING and elicitation.status.is_final:
            await self._unresolved.poll_later(elicitation, session.id)
        if session.state is SessionStatus.PAID:
            await self._unresolved.paid_otherwise(elicitation, session)

    async def _record_returns(self, elicitation: Elicitation, session: ProviderSession) -> None:
        """Update a recorded payment with the refunds and disputes that the session shows."""
        provider = terms_of(elicitation).seller
        id = await self._ledger.id_for(elicitation, session, provider=provider)
        with suppress(Erased):  # the payment is not recorded
            await self.record_returns(elicitation.owner, id, session)

    async def record_returns(self, owner: str, id: str, session: ProviderSession) -> None:
        """Update the payment `id`. If its refunded amount is lower now, poll all its refunds.

        A refund can fail or be canceled after the provider had reported it as done.
        """
        now = self._elicitations.clock()

        def changed(payment: Payment) -> Payment:
            payment = with_returns(payment, session, now=now)
            is_paid = session.is_now and session.state is SessionStatus.PAID
            is_lower = is_paid and session.refunded < payment.refunded
            if not is_lower or payment.seller not in self._flow.refund_reporters:
                return payment
            return check_soon(payment, now)

        await self._ledger.change(owner, id, changed)

    async def _act(
        self,
        elicitation: Elicitation,
        session: ProviderSession,
        change: Change | None,
        *,
        hook: StoredWebhook | None = None,
    ) -> Completion | None:
        """Make the change that the table CHANGES names for the statement of a verified session.

        Return the result for the question, or None if the session is not paid.
        """
        early: Sequence[StoredWebhook] = ()
        now = self._elicitations.clock() if hook is None else hook.received_at
        if session.unknown_word is not None:
            about = {"id": elicitation.id, "session": session.id, "why": session.unknown_word}
            _log.warning("payment.unknown_status", extra=about)

        async def rows(changed: Elicitation) -> Sequence[Value]:
            nonlocal early
            unwritten, early = await self._unwritten(changed, session, hook, now=now)
            return unwritten

        done = Completion.ALREADY_SETTLED if change is Change.SECOND else None
        if change is Change.ACCEPT:
            # Write without a look-up first: nearly always the rows are new, and a conflict leads to
            # the look-up in `rows`.
            new, early = await self._paid_row(elicitation, session, now=now)
            done = await complete_elicitation(
                self._elicitations,
                elicitation.id,
                {"payment": new.id},
                PaidSession(session=session.id),
                also=rows,
                first=[row for row in (hook, new) if row is not None],
                answers_others=new.id if new.once else None,
            )
            if done is Completion.UNKNOWN:  # the question is erased
                raise Erased(elicitation.id)
            is_written = done is not Completion.ALREADY_SETTLED
        else:
            is_written = await self._change_question(elicitation, session, change, also=rows)
        if not is_written:
            # Paid twice or reported twice: the ledger has each paid session once.
            await self._elicitations.write_rebuilt(lambda: self._of_ended(elicitation, rows))
        for one in early:
            if one.status != "applied":
                with suppress(Conflict):  # the sweeper is handling this webhook
                    applied = replace(one, status="applied", why=None, transition=None)
                    await self._elicitations.write(applied)
        may_be_unresolved = elicitation.status.is_final or is_paid_otherwise(elicitation.progress)
        if done is not None and may_be_unresolved:  # possible only after the payment is stored
            await self._unresolved.end(elicitation, session.id)
        return done

    async def _change_question(
        self,
        elicitation: Elicitation,
        session: ProviderSession,
        change: Change | None,
        *,
        also: Also,
    ) -> bool:
        """Change the question of an unpaid session. Return True if `also` was written with it."""
        if change is Change.FAIL:
            why = MONEY_RETURNED if session.is_returned else NOT_ARRIVED
            with suppress(NotPossible):
                await self._elicitations.settle(elicitation.id, Status.FAILED, why=why, also=also)
                return True
            change = Change.GIVE_UP  # another write has ended the question
        if change is Change.POLL and session.is_now:
            await self._unresolved.poll_later(elicitation, session.id)
        elif change in (Change.EXPECT, Change.NEW_PAGE, Change.GIVE_UP):
            await self._elicitations.change(
                elicitation.id, lambda e: changed_question(e, change, session=session.id)
            )
        return False

    async def _of_ended(self, elicitation: Elicitation, rows: Also) -> Sequence[Value]:
        """Return the rows for the current question, which another write may have ended."""
        return await rows(await self._elicitations.get(elicitation.id) or elicitation)

    async def _unwritten(
        self,
        elicitation: Elicitation,
        session: ProviderSession,
        hook: StoredWebhook | None,
        *,
        now: datetime,
    ) -> tuple[Sequence[Value], Sequence[StoredWebhook]]:
        """Return the rows that are not stored yet, and the webhooks of applied early events."""
        paid: Value | None = None
        early: Sequence[StoredWebhook] = ()
        webhook_row = None if hook is None else await self._ledger.unless_stored(hook)
        if session.state is SessionStatus.PAID:  # a refunded payment needs its row too
            new, hooks = await self._paid_row(elicitation, session, now=now)
            paid = await self._ledger.unless_stored(new)
            if paid is not None:
                early = hooks
            elif webhook_row is not None:
                # The payment was known: a second event does not change a session's row.
                webhook_row = replace(webhook_row, status="repeated")
        return [row for row in (paid, webhook_row) if row is not None], early

    async def wait_for_payment(self, hook: StoredWebhook, event: Notice) -> str:
        """Store an early event until its payment is recorded. Return "waiting" or "duplicate".

        The owner of the payment may be unknown, so the rows of early events belong to the service.
        """
        assert event.payment is not None
        ids = self._elicitations.rows.ids
        id = ids.early_event(SERVICE, provider=hook.seller, payment=event.payment)

        async def values() -> Sequence[StoredWebhook | EarlyEvent]:
            known = await self._elicitations.read(StoredWebhook, owner=hook.owner, id=hook.id)
            if known is not None:
                return []
            fresh = EarlyEvent(id=id, owner=SERVICE, webhook_ids=(), erase_at=hook.erase_at)
            found = await self._elicitations.read(EarlyEvent, owner=SERVICE, id=id) or fresh
            ids = (*found.webhook_ids, hook.id)[-EARLY_EVENTS_AT_MOST:]
            waiting = replace(hook, status="waiting", why="payment")
            return [waiting, replace(found, webhook_ids=ids, erase_at=hook.erase_at)]

        return "waiting" if await self._elicitations.write_rebuilt(values) else "duplicate"

    async def _paid_row(
        self, elicitation: Elicitation, session: ProviderSession, *, now: datetime
    ) -> tuple[Payment, Sequence[StoredWebhook]]:
        """Return the new row of a paid session, and the webhooks of the early events in this row.

        The events are marked as applied in another write. If that write is lost, they are applied
        twice, which changes nothing.
        """
        payment = await self._ledger.new_row(elicitation, session, now=now)
        gateway, hooks = self._flow.signers.get(payment.seller), list[StoredWebhook]()
        if payment.payment_intent is None or gateway is None:
            return payment, hooks
        ids = self._elicitations.rows.ids
        id = ids.early_event(SERVICE, provider=payment.seller, payment=payment.payment_intent)
        early = await self._elicitations.read(EarlyEvent, owner=SERVICE, id=id)
        for hook_id in () if early is None else early.webhook_ids:
            hook = await self._elicitations.read(StoredWebhook, owner=SERVICE, id=hook_id)
            event = None if hook is None else event_of(hook, gateway)
            if hook is None or event is None or not _is_of(payment, event, gateway.seller):
                continue
            payment = changed_payment(payment, event, now=self._elicitations.clock())
            hooks.append(hook)
        return payment, hooks


def event_of(hook: StoredWebhook, gateway: Signs) -> Notice:
    """Return the event of a stored webhook."""
    return hook.said or gateway.read_notice(hook.body.encode())


def _is_of(payment: Payment, event: Notice, seller: MerchantAccount) -> bool:
    if event.news is None or event.payment != payment.payment_intent:
        return False
    if event.reference is not None and owner_of(event.reference) != payment.owner:
        return False
    return contradiction(payment, event, seller=seller) is None
