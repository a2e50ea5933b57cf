"""Events: the changes that a provider's webhook makes, on arrival or at a later check.

The table of changes is `CHANGES` in `flows.payments.events`. Risks: an acknowledged event is lost,
or an event settles the wrong question. So the reply is 2xx only after the write is durable, and an
event that contradicts the request is stored and settles nothing. Events arrive twice and in any
order. Each is a snapshot of the time when it was sent, and the result does not depend on the order.

A bank may take the money months later, when the question is already erased, so the payment is
looked up in the ledger, which is stored for years. An event does not create a row in the ledger,
because anyone who pays to the merchant account can set a reference, and the server would refund
such a payment automatically. Instead, the payment is listed for the operator.

Anyone can send an unsigned notice. The server therefore asks the provider only about questions and
payments that it has stored. It also asks to which question a payment belongs, with a rate limit.
"""

import logging
from collections import OrderedDict
from contextlib import suppress
from datetime import timedelta

from msgspec.structs import replace

from flows.elicitation.states import Elicitation
from flows.errors import Failed, NotConfigured
from flows.payments.events import (
    CHANGES,
    Change,
    LedgerState,
    Statement,
    changed_payment,
    contradiction,
    ledger_state,
    stated_in,
)
from flows.payments.gateway import (
    MerchantAccount,
    Notice,
    Signs,
    Traces,
    UnsignedNotice,
)
from flows.payments.receipt import Payment
from flows.payments.session import Mismatch, SessionStatus, sessions_of
from flows.webhooks.signatures import Delivery
from webapp.elicitations.service import Elicitations
from webapp.http.client import Outbound
from webapp.http.rate_limit import Rates
from webapp.payments.payments import Payments
from webapp.payments.unresolved import why_not_stored
from webapp.payments.verification import Received, event_of
from webapp.payments.webhook_log import WEBHOOK_RETENTION, WebhookLog
from webapp.records.ids import owner_of
from webapp.records.owners import SERVICE
from webapp.records.rows import Erased
from webapp.records.values import StoredWebhook
from webapp.stores import Conflict

REMEMBERED_AT_MOST = 10_000
# A row has space for 64 KiB, and each invalid byte of a body is stored as three bytes.
BODY_BYTES_STORED = 16 * 1024
AGAIN_AT_LEAST = timedelta(seconds=30)
AGAIN_AT_MOST = timedelta(minutes=10)
LATER_AT_MOST = timedelta(days=1)  # if the provider cannot be reached
TRACES_AT_ONCE = 60
BETWEEN_TRACES = timedelta(seconds=1)
_NOT_DONE = ("ignored", "unknown", "duplicate", "waiting", "refused")
_log = logging.getLogger(__name__)


class Webhooks:
    def __init__(
        self, *, elicitations: Elicitations, payments: Payments, outbound: Outbound
    ) -> None:
        self.log = WebhookLog(elicitations)
        self._elicitations = elicitations
        self._payments = payments
        self._outbound = outbound
        # The ids of events that this process has applied, with durable results.
        self.applied = OrderedDict[str, None]()
        # forget them, because the store may have lost these events
        elicitations.on_gap.append(self.applied.clear)
        self._traces = Rates(burst=TRACES_AT_ONCE, every=BETWEEN_TRACES, clock=elicitations.clock)

    async def receive(self, gateway: Signs, delivery: Delivery) -> str:
        """Process an event and return its resulting status, after the result is durable.

        Call this method in the request's own task.

        Raises:
            Malformed: The body is not an event.
        """
        event = gateway.read_notice(delivery.body)
        received = Received(
            seller=gateway.seller,
            event=event,
            body=delivery.body[:BODY_BYTES_STORED].decode("utf-8", "replace"),
            is_whole=len(delivery.body) <= BODY_BYTES_STORED,
        )
        return await self._elicitations.run_uncancelled(self._apply(received, may_be_stale=True))

    async def replay(self, hook: StoredWebhook) -> StoredWebhook:
        """Process a stored event again as if it had just arrived. Effects are not repeated.

        Raises:
            NotConfigured: The provider is not configured any more.
            Failed: The provider cannot be asked.
        """
        gateway = self._signing(hook)
        event = event_of(hook, gateway)
        is_done = False
        if hook.why == "session" or (event.news is not None and hook.status in _NOT_DONE):
            await self.reconcile(hook)
        else:
            again = Received(
                seller=gateway.seller, event=event, body=hook.body, is_whole=hook.is_whole
            )
            self.applied.pop(hook.id, None)
            work = self._apply(again, may_be_stale=False)
            is_done = await self._elicitations.run_to_completion(work) not in _NOT_DONE
        stored = await self._elicitations.read(StoredWebhook, owner=hook.owner, id=hook.id) or hook
        if is_done and stored.status in _NOT_DONE:
            stored = replace(stored, status="applied", why=None, transition=None)
        stored = replace(stored, replayed_at=self._elicitations.clock())
        await self._elicitations.write(stored)
        return stored

    async def forget_body(self, hook: StoredWebhook) -> bool:
        """Erase the body of a processed webhook, which has the payer's data. Keep the parsed event.

        Return False for a waiting webhook: its body stays until it is compared with its payment.
        """
        if hook.status == "waiting":
            return False
        if hook.body:
            notice = hook.said
            with suppress(NotConfigured):  # without its provider, no event can be parsed
                notice = event_of(hook, self._signing(hook)).without_address
            await self._elicitations.write(replace(hook, body="", is_whole=False, said=notice))
        return True

    async def _apply(self, received: Received, *, may_be_stale: bool) -> str:
        """Make the change that the table names for the event. Return the resulting status.

        `may_be_stale`: the question may come from this process's cache instead of the store.
        """
        event, seller = received.event, received.seller
        statement, question, payment = stated_in(event), None, None
        names_question = statement not in (Statement.CHANGED, Statement.NOTHING)
        if names_question and event.reference is not None:
            # The provider is asked about a named session, so the store must have its question.
            is_read = not may_be_stale or statement is Statement.NAMED
            find = self._elicitations.get if is_read else self._elicitations.rows.as_remembered
            question = await find(event.reference)
        if question is None:
            payment = await self._payment_of(event, event.reference, seller=seller)
        about = payment or question
        session = None if event.session is None else event.session.id
        known = ledger_state(question, session) if payment is None else LedgerState.RECORDED
        owner = SERVICE if about is None or known is LedgerState.NO_PAYMENT else about.owner
        row = self._row(received, owner)
        match change := CHANGES[known].get(statement):
            case Change.UPDATE:
                assert payment is not None
                return await self._update(payment, event, row, seller=seller)
            case Change.WAIT:
                return await self._payments.verification.wait_for_payment(row, event)
            case Change.LIST:
                return await self._keep(await self._listed(row, event, seller=seller))
            case Change.ASK:
                return await self._ask(row)
            case Change.UNRELATED:
                return await self._keep(replace(row, status="unknown"))
            case Change.IGNORE:
                return await self._keep(replace(row, status="ignored"))
            case _ if row.id in self.applied:
                return "duplicate"
            case _:
                assert question is not None
                return await self._settle(
                    question, received, change, row=row, may_be_stale=may_be_stale
                )

    async def _settle(
        self,
        question: Elicitation,
        received: Received,
        change: Change | None,
        *,
        row: StoredWebhook,
        may_be_stale: bool,
    ) -> str:
        """Apply an event of a session to its question, and return the resulting status."""
        verification, session = self._payments.verification, received.event.session
        assert session is not None
        try:
            became = await verification.apply_notice(question, received, change, hook=row)
        except (Erased, Mismatch) as error:
            if may_be_stale:  # another process may have begun the session or erased the question
                return await self._apply(received, may_be_stale=False)
            if isinstance(error, Erased):
                raise
            await verification.paid_otherwise(question, session, error)
            status = "waiting" if error.what == "session" else "refused"
            return await self._keep(replace(row, status=status, why=error.what))
        self.applied[row.id] = None
        if len(self.applied) > REMEMBERED_AT_MOST:
            self.applied.popitem(last=False)
        return became

    async def _update(
        self, payment: Payment, event: Notice, row: StoredWebhook, *, seller: MerchantAccount
    ) -> str:
        """Apply an event to a recorded payment, and return the payment's status.

        If the event contradicts the payment, store the event and return the event's status.
        """
        done = self._compared(payment, event, row, seller=seller)
        if done.status == "refused":
            return await self._keep(done)
        return str((await self._change(payment, event, done)).status)

    async def _ask(self, row: StoredWebhook) -> str:
        """Store an event that names a session without its status, and poll the provider.

        Return "asked", or the status of the stored webhook.
        """
        word = await self._keep(replace(row, status="waiting", why="session"))
        if word != "waiting":
            return word
        stored = await self._elicitations.read(StoredWebhook, owner=row.owner, id=row.id)
        try:
            await self.reconcile(stored or row)
        except Failed as error:  # the sweeper polls the provider later
            _log.warning(
                "webhook.provider_unreachable", extra={"seller": row.seller, "why": str(error)}
            )
            return word
        return "asked"

    async def reconcile(self, hook: StoredWebhook) -> None:
        """Ask the provider about an event whose session or payment was unknown, and apply it.

        Raises Failed if the provider cannot be asked.
        """
        if self._payments.seller(hook.seller) is None:
            return
        gateway = self._signing(hook)
        event = event_of(hook, gateway)
        if event.news is not None:
            done = await self._reconcile_payment(hook, event, gateway)
        else:
            try:
                done = await self._reconcile_session(hook, event, gateway.seller)
            except Failed:
                with suppress(Conflict):
                    await self._elicitations.write(self._later(hook, at_most=LATER_AT_MOST))
                raise
        if done.status == "refused":
            _log.warning("payment.foreign", extra={"id": hook.id, "why": done.why})
        # Another event of the same transition may have been applied in the meantime.
        await self._elicitations.write(replace(done, transition=None))

    async def _reconcile_session(
        self, hook: StoredWebhook, event: Notice, seller: MerchantAccount
    ) -> StoredWebhook:
        """Compare a stored event with its question, or with the payment. Return the row to write.

        The reply to the request that began the session may have been lost, so ask the provider.
        """
        question = await self._elicitations.get(hook.elicitation_id)
        if question is None:
            payment = await self._payment_of(event, event.reference, seller=seller)
            if payment is not None:
                done = self._compared(payment, event, hook, seller=seller)
                if done.status != "refused":
                    await self._change(payment, event)
                return done
            if CHANGES[LedgerState.UNKNOWN].get(stated_in(event)) is Change.LIST:
                return await self._listed(hook, event, seller=seller)
            return replace(hook, status="unknown", why=None)
        checkouts = self._payments.checkouts
        question = await checkouts.reconcile(question)
        if hook.session not in sessions_of(question):
            return replace(hook, status="refused", why="session")
        try:
            await checkouts.ask_provider(question)
        except Mismatch as error:
            return replace(hook, status="refused", why=error.what)
        return replace(hook, status="applied", why=None)

    async def _reconcile_payment(
        self, hook: StoredWebhook, event: Notice, gateway: Signs
    ) -> StoredWebhook:
        """Find the payment of a stored refund or dispute and apply it. Return the row to write.

        Some events, such as disputes, do not name their question. For these events, ask the
        provider which question the payment was made for.
        """
        seller, reference = gateway.seller, event.reference
        if reference is None and event.payment is not None:
            reference = await self._outbound.run(gateway.trace(event.payment))
        payment = await self._payment_of(event, reference, seller=seller)
        if payment is None and reference is not None:
            question = await self._elicitations.get(reference)
            if question is not None and self._is_of(question, seller.name):
                try:
                    question = await self._asked_about(question)
                except Mismatch as error:
                    return replace(hook, status="refused", why=error.what)
                payment = await self._payment_of(event, reference, seller=seller)
                if payment is None and await self._payments.ledger.paid(question) is None:
                    waiting = replace(hook, status="waiting", why="payment")
                    return self._later(waiting, at_most=AGAIN_AT_MOST)
        if payment is None:
            return replace(hook, status="unknown", why=None)
        done = self._compared(payment, event, hook, seller=seller)
        reconciling = self._payments.reconciling
        if done.status != "refused" and not await reconciling.ask_about_claims(payment, event):
            await self._change(payment, event)
        return done

    async def poll_for_notice(self, provider: str, hint: UnsignedNotice) -> str:
        """Poll the provider about an unsigned notice. Return "asked" or "unknown".

        Raises:
            Failed: The provider cannot be asked now.
            TooOften: Too many payments were looked up.
            Mismatch: The session differs from what was requested.
        """
        ledger, checkouts = self._payments.ledger, self._payments.checkouts
        question = await self._elicitations.get(hint.reference or "")
        if question is None and hint.payment is not None:
            reference = await self._trace(provider, hint.payment)
            if reference is None:
                return "unknown"
            question = await self._elicitations.get(reference)
            if question is None:
                found = await ledger.of_intent(owner_of(reference), hint.payment, provider=provider)
                return await self._revisit(provider, found)
        if question is None and hint.reference is not None and hint.session is not None:
            found = await ledger.of_session(hint.reference, hint.session, provider=provider)
            return await self._revisit(provider, found)
        if question is None or not self._is_of(question, provider):
            return "unknown"
        if hint.session is not None and hint.session not in sessions_of(question):
            question = await checkouts.reconcile(question)
            if hint.session not in sessions_of(question):
                return "unknown"
        await checkouts.ask_provider(question)
        return "asked"

    async def _trace(self, provider: str, payment: str) -> str | None:
        """Return the question's id that the provider has stored with the payment, or None."""
        gateway = self._payments.flow.named(provider)
        if not isinstance(gateway, Traces):
            return None
        self._traces.require(provider)
        return await self._outbound.run(gateway.trace(payment))

    async def _revisit(self, provider: str, payment: Payment | None) -> str:
        """Poll the session of a payment whose question is erased. Return "asked" or "unknown"."""
        gateway = self._payments.flow.named(provider)
        if payment is None or not isinstance(gateway, Traces):
            return "unknown"
        asked_at = self._elicitations.clock()
        found = (await self._outbound.run(gateway.revisit(payment))).answered(asked_at)
        if found.payment != payment.payment_intent:
            raise Mismatch("payment", session=found.id)
        if (found.currency, found.amount) != (payment.currency, payment.amount):
            raise Mismatch("amount", session=found.id)
        await self._payments.verification.record_returns(payment.owner, payment.id, found)
        return "asked"

    async def _listed(
        self, row: StoredWebhook, event: Notice, *, seller: MerchantAccount
    ) -> StoredWebhook:
        """List a payment whose question is not stored, for the operator. Return the event's row.

        An event of another merchant account, or of another server's question, is not listed, and
        its row gets the status `unknown`.
        """
        is_of_account = event.account == seller.account and event.is_live == seller.is_live
        reference, now = event.reference or "", self._elicitations.clock()
        why = why_not_stored(reference, now=now) if is_of_account else None
        if why is None:
            return replace(row, status="unknown", why=None)
        if event.session is not None:
            unresolved = self._payments.unresolved
            await unresolved.add_unmatched(reference, event.session, seller=seller, why=why)
        return replace(row, status="refused", why=why)

    def _compared(
        self, payment: Payment, event: Notice, row: StoredWebhook, *, seller: MerchantAccount
    ) -> StoredWebhook:
        """Return the event's row with its status after a comparison with the payment."""
        wrong = contradiction(payment, event, seller=seller)
        if wrong is not None:
            return replace(row, status="refused", why=wrong)
        now = self._elicitations.clock()
        is_known = event.session and changed_payment(payment, event, now=now) == payment
        return replace(row, status="repeated" if is_known else "applied", why=None)

    async def _change(
        self, payment: Payment, event: Notice, row: StoredWebhook | None = None
    ) -> Payment:
        """Apply an event to the payment's current row, and store `row` in the same write."""
        now, ledger = self._elicitations.clock(), self._payments.ledger
        return await ledger.change(
            payment.owner,
            payment.id,
            lambda current: changed_payment(current, event, now=now),
            hook=row,
        )

    async def _asked_about(self, question: Elicitation) -> Elicitation:
        """Ask the provider about the question's sessions if they may be paid. Raises Mismatch."""
        checkouts = self._payments.checkouts
        if question.is_open_there or not question.status.is_final:
            with suppress(Failed):  # the sweeper polls the provider later
                question = await checkouts.reconcile(question)
                await checkouts.ask_provider(question)
        return await self._elicitations.get(question.id) or question

    async def _payment_of(
        self, event: Notice, reference: str | None, *, seller: MerchantAccount
    ) -> Payment | None:
        """Return the event's payment if the ledger has it. `reference` names its question."""
        ledger, session = self._payments.ledger, event.session
        if reference is None:
            return None
        if session is not None:
            return await ledger.of_session(
                reference, session.id, provider=seller.name, payment=session.payment
            )
        if event.news is None or event.payment is None:
            return None
        return await ledger.of_intent(owner_of(reference), event.payment, provider=seller.name)

    def _is_of(self, question: Elicitation, provider: str) -> bool:
        return question.kind == "payment" and self._payments.merchant_of(question) == provider

    def _signing(self, hook: StoredWebhook) -> Signs:
        gateway = self._payments.flow.named(hook.seller)
        if not isinstance(gateway, Signs):  # another provider had this name before
            raise NotConfigured(f"the payment provider {hook.seller!r}")
        return gateway

    def _row(self, received: Received, owner: str) -> StoredWebhook:
        """Return the row of an event with the status `applied`, without writing it."""
        event, seller, now = received.event, received.seller, self._elicitations.clock()
        reference = event.reference or ""
        # A paid session has a row in the ledger, so its event needs no `transition`.
        is_paid = event.session is not None and event.session.state is SessionStatus.PAID
        says = None if is_paid else event.transition
        return StoredWebhook(
            id=self._elicitations.rows.ids.webhook(
                reference, owner=owner, provider=seller.name, event=event.id
            ),
            owner=owner,
            seller=seller.name,
            elicitation_id=reference,
            session=event.subject or "",
            body=received.body,
            is_whole=received.is_whole,
            received_at=now,
            erase_at=now + WEBHOOK_RETENTION,
            event=event.id,
            type=event.type,
            transition=says
            and self._elicitations.owners.pepper.tag("transition", seller.name, says),
            said=None if received.is_whole else event.without_address,
        )

    async def _keep(self, row: StoredWebhook) -> str:
        """Store an authentic event that is not applied now.

        Return its status, or "duplicate" if the event was stored before.
        """
        try:
            await self._elicitations.write(row)
        except Conflict:
            return "duplicate"
        if row.status == "refused":
            _log.warning("payment.mismatch", extra={"id": row.id, "why": row.why})
        return row.status

    def _later(self, hook: StoredWebhook, *, at_most: timedelta) -> StoredWebhook:
        """Schedule the next check of the stored webhook.

        The pause is the time since the webhook arrived, so the checks become rarer.
        """
        now = self._elicitations.clock()
        pause = min(max(now - hook.received_at, AGAIN_AT_LEAST), at_most)
        return replace(hook, again_at=now + pause)
