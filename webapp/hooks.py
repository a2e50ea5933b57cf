"""Hooks: what a payment provider tells us, once it is verified.

What could go wrong: an acknowledged event that is lost, or one that settles what is not ours. So
2xx is answered only after the write is durable; an authentic event that names an elicitation but a
session that we do not know is kept and reconciled; whatever else contradicts what was asked is
kept with its reason and settles nothing.
"""

import logging
from datetime import timedelta

from msgspec.structs import replace

from flows.checkout import (
    SETTLING_EVENTS,
    Event,
    Mismatch,
    Seller,
    judge_event,
    read_event,
    sessions_of,
)
from flows.elicitation import Elicitation
from flows.signatures import Delivery
from webapp.elicitations import Elicitations
from webapp.payments import Payments
from webapp.rows import Hook
from webapp.stores import Conflict

KEPT = timedelta(days=30)
BODY_BYTES_KEPT = 16 * 1024  # a row has 64 KiB, and half a letter takes three bytes
_log = logging.getLogger(__name__)


class Hooks:
    def __init__(self, *, elicitations: Elicitations, payments: Payments) -> None:
        self._elicitations = elicitations
        self._payments = payments

    async def receive(self, seller: Seller, delivery: Delivery) -> str:
        """What became of it, in a word; it is durable when this returns.

        Raises Malformed.
        """
        event = read_event(delivery)
        if event.type not in SETTLING_EVENTS or event.reference is None:
            return "ignored"
        elicitation = await self._elicitations.recent(event.reference)
        if elicitation is None or elicitation.kind != "payment":
            return "unknown"
        hook = self._hook(elicitation, seller, event, delivery)
        try:
            return await self._apply(elicitation, event, seller, hook)
        except Mismatch:
            pass  # perhaps another process has begun the session
        elicitation = await self._elicitations.get(event.reference) or elicitation
        try:
            return await self._apply(elicitation, event, seller, hook)
        except Mismatch as error:
            return await self._keep(hook, error)

    async def reconcile(self, hook: Hook) -> None:
        """An event about a session that we did not know: is it ours after all? We ask.

        Raises Failed or an error of the network's if the provider cannot be asked.
        """
        elicitation = await self._elicitations.get(hook.elicitation_id)
        if elicitation is None:
            await self._elicitations.write(replace(hook, status="refused"))
            return
        if self._payments.seller(hook.seller) is None:
            return
        elicitation = await self._payments.checkouts.reconcile(elicitation)
        if hook.session in sessions_of(elicitation):
            done = replace(hook, status="applied")
            try:
                await self._payments.checkouts.ask_seller(elicitation)
            except Mismatch as error:
                done = replace(hook, status="refused", why=error.what)
        else:
            done = replace(hook, status="refused")
            _log.warning("payment.foreign", extra={"id": hook.id})
        await self._elicitations.write(done)

    async def _apply(
        self, elicitation: Elicitation, event: Event, seller: Seller, hook: Hook
    ) -> str:
        assert event.session is not None
        verdict = judge_event(elicitation, event, seller=seller)
        done = await self._payments.checkouts.apply(elicitation, event.session, verdict, hook=hook)
        return str(done or verdict)

    async def _keep(self, hook: Hook, error: Mismatch) -> str:
        """Authentic, but not what was asked: kept, and looked into where it may be ours."""
        status = "waiting" if error.what == "session" else "refused"
        try:
            await self._elicitations.write(replace(hook, status=status, why=error.what))
        except Conflict:
            return "duplicate"
        _log.warning("payment.mismatch", extra={"id": hook.id, "why": error.what})
        return status

    def _hook(
        self, elicitation: Elicitation, seller: Seller, event: Event, delivery: Delivery
    ) -> Hook:
        now = self._elicitations.clock()
        pepper = self._elicitations.owners.pepper
        return Hook(
            id=elicitation.owner + pepper.tag("hook", seller.name, event.id, size=18),
            owner=elicitation.owner,
            seller=seller.name,
            elicitation_id=elicitation.id,
            session=event.subject or "",
            body=delivery.body[:BODY_BYTES_KEPT].decode("utf-8", "replace"),
            received_at=now,
            erase_at=now + KEPT,
        )
