"""Webhooks: processing of verified events from payment providers.

Risks: an acknowledged event is lost, or an event settles the wrong question. So the reply is 2xx
only after the write is durable. An authentic event that names an elicitation but an unknown session
is stored and reconciled. Other events that contradict the request are stored with the reason and
settle nothing. Events arrive twice and in any order. Each event is a snapshot of the time when it
was sent, and the result does not depend on the order.
"""

import logging
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from flows.elicitation.states import Elicitation
from flows.errors import Failed, NotConfigured
from flows.payments.gateway import MerchantAccount, Notice, Signs, UnsignedNotice
from flows.payments.session import Mismatch, sessions_of
from flows.webhooks.signatures import Delivery
from webapp.elicitations.service import Elicitations
from webapp.http.client import Outbound
from webapp.payments.late_events import LateEvents, later, may_be_ours
from webapp.payments.orphaned_events import OrphanedEvents
from webapp.payments.payments import Payments
from webapp.payments.unsigned_notices import UnsignedNotices
from webapp.payments.webhook_rows import (
    WebhookBody,
    WebhookRows,
    body_of,
    event_of,
    without_address,
)
from webapp.records.owners import SERVICE
from webapp.records.values import StoredWebhook
from webapp.stores import Conflict

_NOT_DONE = ("ignored", "unknown", "duplicate", "waiting", "refused")
_log = logging.getLogger(__name__)


class Webhooks:
    def __init__(
        self, *, elicitations: Elicitations, payments: Payments, outbound: Outbound
    ) -> None:
        self._elicitations = elicitations
        self._payments = payments
        self._rows = WebhookRows(elicitations)
        self._late_events = LateEvents(
            elicitations=elicitations, payments=payments, outbound=outbound
        )
        self._orphaned_events = OrphanedEvents(elicitations=elicitations, payments=payments)
        self._unsigned_notices = UnsignedNotices(
            elicitations=elicitations, payments=payments, outbound=outbound
        )

    async def receive(self, gateway: Signs, delivery: Delivery) -> str:
        """Process an event and return its resulting status, after the result is durable.

        Call this method in the request's own task.

        Raises:
            Malformed: The body is not an event.
        """
        body, event, known = body_of(delivery.body), gateway.read_notice(delivery), None
        if event.session is not None and event.reference is not None:
            known = await self._elicitations.as_remembered(event.reference)
        work = self._receive(gateway, event, body, known)
        return await self._elicitations.uncancelled(work)

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
            body = WebhookBody(text=hook.body, is_whole=hook.is_whole)
            self._rows.forget(hook.id)
            known = await self._elicitations.get(event.reference or "")
            work = self._receive(gateway, event, body, known)
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
            said = hook.said
            with suppress(NotConfigured):  # without its provider, no event can be parsed
                said = without_address(event_of(hook, self._signing(hook)))
            await self._elicitations.write(replace(hook, body="", is_whole=False, said=said))
        return True

    async def reconcile(self, hook: StoredWebhook) -> None:
        """Ask the provider about an event whose session or payment was unknown, and apply it.

        Raises Failed if the provider cannot be asked.
        """
        if self._payments.seller(hook.seller) is None:
            return
        gateway = self._signing(hook)
        event = event_of(hook, gateway)
        if event.news is not None:
            done = await self._late_events.reconcile(hook, event, event.news, gateway=gateway)
        else:
            try:
                done = await self._reconcile_session(hook, event, gateway.seller)
            except Failed:
                with suppress(Conflict):
                    await self._elicitations.write(later(hook, now=self._elicitations.clock()))
                raise
        if done.status == "refused":
            _log.warning("payment.foreign", extra={"id": hook.id, "why": done.why})
        # Another event may have been applied for the same transition in the meantime.
        await self._elicitations.write(replace(done, transition=None))

    async def hinted(self, provider: str, hint: UnsignedNotice) -> str:
        """Process an unsigned notice and return its status; see `UnsignedNotices.receive`."""
        return await self._unsigned_notices.receive(provider, hint)

    def _signing(self, hook: StoredWebhook) -> Signs:
        gateway = self._payments.flow.named(hook.seller)
        if not isinstance(gateway, Signs):  # another provider had this name before
            raise NotConfigured(f"the payment provider {hook.seller!r}")
        return gateway

    async def _receive(
        self, gateway: Signs, event: Notice, body: WebhookBody, elicitation: Elicitation | None
    ) -> str:
        """Process an event and return its status.

        `elicitation` is the question that the event's session names, if any.
        """
        seller = gateway.seller
        if event.session is not None and event.reference is not None:
            if elicitation is None:
                return await self._orphaned_events.apply(seller, event, body)
            if elicitation.kind == "payment":
                return await self._settle_stored(elicitation, gateway, event, body)
        elif event.news is not None and may_be_ours(event, event.news):
            return await self._late_events.apply(seller, event, event.news, body)
        elif event.subject is not None and event.reference is not None:
            return await self._ask(seller, event, body)
        is_known = event.session is not None and event.reference is not None
        word = "unknown" if is_known else "ignored"
        return await self._rows.keep(self._rows.of(SERVICE, seller, event, body), status=word)

    async def _settle_stored(
        self, elicitation: Elicitation, gateway: Signs, event: Notice, body: WebhookBody
    ) -> str:
        seller, session = gateway.seller, event.session
        assert session is not None
        hook = self._rows.of(elicitation.owner, seller, event, body)
        payment_id = self._elicitations.rows.ids.payment(
            elicitation.id, provider=seller.name, session=session.id
        )
        if self._rows.is_applied(hook):
            return "duplicate"
        tell = partial(
            self._payments.verification.apply_notice,
            event=event,
            seller=seller,
            hook=hook,
            payment_id=payment_id,
        )
        try:
            try:
                became = await tell(elicitation)
            except Mismatch:
                # Another process may have begun the session: compare with the stored question.
                elicitation = await self._elicitations.get(elicitation.id) or elicitation
                became = await tell(elicitation)
        except Mismatch as error:
            await self._payments.verification.paid_otherwise(elicitation, session, error)
            status = "waiting" if error.what == "session" else "refused"
            return await self._rows.keep(hook, status=status, why=error.what)
        except KeyError:
            if await self._elicitations.get(elicitation.id) is not None:
                raise
            # The elicitation was in this process's cache but is erased.
            return await self._orphaned_events.apply(seller, event, body)
        self._rows.note_applied(hook)
        return became

    async def _ask(self, seller: MerchantAccount, event: Notice, body: WebhookBody) -> str:
        """Store an event that names a session without its status, and poll the provider.

        Return "asked", or the status of the stored webhook.
        """
        elicitation = await self._elicitations.get(event.reference or "")
        if elicitation is None:
            return await self._orphaned_events.apply(seller, event, body)
        if elicitation.kind != "payment":
            row = self._rows.of(SERVICE, seller, event, body)
            return await self._rows.keep(row, status="unknown")
        hook = self._rows.of(elicitation.owner, seller, event, body)
        word = await self._rows.keep(hook, status="waiting", why="session")
        if word == "waiting":
            stored = await self._elicitations.read(StoredWebhook, owner=hook.owner, id=hook.id)
            try:
                await self.reconcile(stored or hook)
            except Failed as error:  # the sweeper polls the provider later
                _log.warning(
                    "webhook.provider_unreachable", extra={"seller": seller.name, "why": str(error)}
                )
                return word
            word = "asked"
        return word

    async def _reconcile_session(
        self, hook: StoredWebhook, event: Notice, seller: MerchantAccount
    ) -> StoredWebhook:
        elicitation = await self._elicitations.get(hook.elicitation_id)
        if elicitation is None:
            return await self._orphaned_events.reconcile(hook, event, seller=seller)
        elicitation = await self._payments.checkouts.reconcile(elicitation)
        if hook.session not in sessions_of(elicitation):
            return replace(hook, status="refused", why="session")
        try:
            await self._payments.checkouts.ask_provider(elicitation)
        except Mismatch as error:
            return replace(hook, status="refused", why=error.what)
        return replace(hook, status="applied", why=None)
