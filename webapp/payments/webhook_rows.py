"""Hook rows: how what a provider tells us is kept.

What could go wrong: a body that fits no row, and with it the event that was acknowledged. So of a
long one the beginning is kept, for an operator to read, and besides it what the whole of it said.
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
BODY_BYTES_KEPT = 16 * 1024  # a row has 64 KiB, and half a letter takes three bytes
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookBody:
    """What is kept of a body: all of it, or its beginning."""

    text: str
    is_whole: bool


def body_of(body: bytes) -> WebhookBody:
    text = body[:BODY_BYTES_KEPT].decode("utf-8", "replace")
    return WebhookBody(text=text, is_whole=len(body) <= BODY_BYTES_KEPT)


def event_of(hook: StoredWebhook, gateway: Signs) -> Notice:
    """What it said when it came."""
    return hook.said or gateway.kept_notice(hook.body.encode())


def without_address(event: Notice) -> Notice:
    """Nobody is sent to a page that only an event told of, and it may be long."""
    if event.session is None:
        return event
    return with_other(event, session=with_other(event.session, url=None))


class WebhookRows:
    def __init__(self, elicitations: Elicitations) -> None:
        self._elicitations = elicitations
        # What this process has applied: a copy of it, which often comes soon, needs no look.
        self._applied: OrderedDict[str, None] = OrderedDict()
        elicitations.missed.append(self._applied.clear)  # the store may have lost it

    def of(
        self, owner: str, seller: MerchantAccount, event: Notice, body: WebhookBody
    ) -> StoredWebhook:
        """The row of an event, as one that is applied; not written yet."""
        now = self._elicitations.clock()
        reference = event.reference or ""
        # A session that is paid has its row in the ledger, and needs no other mark.
        pepper = self._elicitations.owners.pepper
        is_paid = event.session is not None and event.session.state is SessionStatus.PAID
        says = None if is_paid else event.transition
        return StoredWebhook(
            id=self._elicitations.rows.ids.webhook(
                reference, owner=owner, seller=seller.name, event=event.id
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
        """Whether it is known to be done; else the store tells."""
        return hook.id in self._applied

    def note_applied(self, hook: StoredWebhook) -> None:
        """All that follows from it is durable."""
        self._applied[hook.id] = None
        if len(self._applied) > REMEMBERED_AT_MOST:
            self._applied.popitem(last=False)

    def forget(self, id: str) -> None:
        """Look again at the next copy."""
        self._applied.pop(id, None)

    async def keep(self, hook: StoredWebhook, *, status: str, why: str | None = None) -> str:
        """Authentic, and nothing is done about it now; what became of it, in a word."""
        try:
            await self._elicitations.write(replace(hook, status=status, why=why))
        except Conflict:
            return "duplicate"
        if status == "refused":
            _log.warning("payment.mismatch", extra={"id": hook.id, "why": why})
        return status


def heard_events(payment: Payment, event: Notice, *, now: datetime) -> Payment:
    """The ledger's row with what an event tells that became of it; told twice it says the same."""
    news = event.news
    assert news is not None
    if news.refund is not None:
        return restated(refund_changed(payment, news.refund, at=news.at or now))
    if news.dispute is not None:
        id = event.subject or event.id
        amount = news.claimed if news.claimed_currency == payment.currency else None
        return disputed(payment, id, news.dispute, at=news.at, amount=amount, event=event.id)
    returned = news.returned - failed_since(payment, news.at)
    return restated(receipts.partly_refunded(payment, now, amount=returned))


def contradicts(
    payment: Payment, event: Notice, currency: str | None, *, seller: MerchantAccount
) -> str | None:
    """What of an event is not so that it can be about this payment."""
    if event.account != seller.account:
        return "account"
    if not event.is_live == seller.is_live == payment.is_live:
        return "mode"
    if currency not in (None, payment.currency):
        return "currency"
    return None
