"""Webhook rows: how verified webhooks are stored.

Risks: a body is too large for a row, and an acknowledged event is lost. So only the beginning of a
large body is stored, for the operator to read, together with the parsed event.
"""

import logging
from collections import OrderedDict
from dataclasses import dataclass
from dataclasses import replace as with_other
from datetime import datetime, timedelta

from msgspec.structs import replace

from flows.payments import receipt as receipts
from flows.payments.claims import disputed, restated
from flows.payments.gateway import MerchantAccount, Notice, Signs
from flows.payments.receipt import Payment
from flows.payments.refunds import failed_since, refund_changed
from flows.payments.session import SessionStatus
from webapp.elicitations.service import Elicitations
from webapp.records.values import StoredWebhook
from webapp.stores import Conflict

KEPT = timedelta(days=30)
REMEMBERED_AT_MOST = 10_000
BODY_BYTES_KEPT = 16 * 1024  # a row has 64 KiB; an invalid byte becomes a three-byte character
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookBody:
    """The stored part of a body: all of it, or its beginning."""

    text: str
    is_whole: bool


def body_of(body: bytes) -> WebhookBody:
    text = body[:BODY_BYTES_KEPT].decode("utf-8", "replace")
    return WebhookBody(text=text, is_whole=len(body) <= BODY_BYTES_KEPT)


def event_of(hook: StoredWebhook, gateway: Signs) -> Notice:
    """Return the event of a stored webhook."""
    return hook.said or gateway.kept_notice(hook.body.encode())


def without_address(event: Notice) -> Notice:
    """Remove the page's address: it may be long, and no browser is sent to an event's address."""
    if event.session is None:
        return event
    return with_other(event, session=with_other(event.session, url=None))


class WebhookRows:
    def __init__(self, elicitations: Elicitations) -> None:
        self._elicitations = elicitations
        # Events that this process has applied: a duplicate, which often follows, needs no read.
        self._applied: OrderedDict[str, None] = OrderedDict()
        elicitations.on_gap.append(self._applied.clear)  # the store may have lost these events

    def of(
        self, owner: str, seller: MerchantAccount, event: Notice, body: WebhookBody
    ) -> StoredWebhook:
        """Return the row of an event with the status `applied`, without writing it."""
        now = self._elicitations.clock()
        reference = event.reference or ""
        # A paid session has a row in the ledger, so its event needs no `transition`.
        pepper = self._elicitations.owners.pepper
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
            body=body.text,
            is_whole=body.is_whole,
            received_at=now,
            erase_at=now + KEPT,
            event=event.id,
            type=event.type,
            transition=says and pepper.tag("transition", seller.name, says),
            said=None if body.is_whole else without_address(event),
        )

    def is_applied(self, hook: StoredWebhook) -> bool:
        """Return True if this process has applied the event.

        After False, read the store: another process may have applied the event.
        """
        return hook.id in self._applied

    def note_applied(self, hook: StoredWebhook) -> None:
        """Remember that the event was applied and its results are durable."""
        self._applied[hook.id] = None
        if len(self._applied) > REMEMBERED_AT_MOST:
            self._applied.popitem(last=False)

    def forget(self, id: str) -> None:
        """Forget an event, so that its next copy is processed again."""
        self._applied.pop(id, None)

    async def keep(self, hook: StoredWebhook, *, status: str, why: str | None = None) -> str:
        """Store an authentic event that is not applied now.

        Return its status, or "duplicate" if the event was stored before.
        """
        try:
            await self._elicitations.write(replace(hook, status=status, why=why))
        except Conflict:
            return "duplicate"
        if status == "refused":
            _log.warning("payment.mismatch", extra={"id": hook.id, "why": why})
        return status


def heard_events(payment: Payment, event: Notice, *, now: datetime) -> Payment:
    """Return the payment after a refund or dispute event. A repeated event changes nothing."""
    change = event.news
    assert change is not None
    if change.refund is not None:
        return restated(refund_changed(payment, change.refund, at=change.at or now))
    if change.dispute is not None:
        id = event.subject or event.id
        amount = change.claimed if change.claimed_currency == payment.currency else None
        return disputed(payment, id, change.dispute, at=change.at, amount=amount, event=event.id)
    returned = change.returned - failed_since(payment, change.at)
    return restated(receipts.partly_refunded(payment, now, amount=returned))


def contradicts(
    payment: Payment, event: Notice, currency: str | None, *, seller: MerchantAccount
) -> str | None:
    """Return the first difference between the event and the payment, or None if they match."""
    if event.account != seller.account:
        return "account"
    if not event.is_live == seller.is_live == payment.is_live:
        return "mode"
    if currency not in (None, payment.currency):
        return "currency"
    return None
