"""Hooks: what a payment provider tells us, once it is verified.

What could go wrong: an acknowledged event that is lost, or one that settles what is not ours. So
2xx is answered only after the write is durable; an authentic event that names an elicitation but a
session that we do not know is kept and reconciled; whatever else contradicts what was asked is
kept with its reason and settles nothing. Notices come twice and in any order: each is a picture of
when it was made, and what is written by it is the same whichever comes first.
"""

import logging
from datetime import timedelta

import httpx
from msgspec.structs import replace

from flows import receipt as receipts
from flows.checkout import Mismatch, sessions_of
from flows.checkout_events import News
from flows.elicitation import Elicitation
from flows.errors import Failed, NotConfigured
from flows.gateway import Hint, Notice, Registration, Signs, State, judge_notice
from flows.receipt import Payment
from flows.signatures import Delivery
from webapp.elicitations import Elicitations
from webapp.hints import Hints
from webapp.ids import beside, owner_of
from webapp.outbound import Outbound
from webapp.owners import SERVICE
from webapp.payments import Payments
from webapp.rows import Hook
from webapp.stores import Conflict

KEPT = timedelta(days=30)
BODY_BYTES_KEPT = 16 * 1024  # a row has 64 KiB, and half a letter takes three bytes
_NOT_DONE = ("ignored", "unknown", "duplicate", "waiting", "refused")
_log = logging.getLogger(__name__)


class Hooks:
    def __init__(
        self, *, elicitations: Elicitations, payments: Payments, outbound: Outbound
    ) -> None:
        self._elicitations = elicitations
        self._payments = payments
        self._outbound = outbound
        self._hints = Hints(elicitations=elicitations, payments=payments, outbound=outbound)

    async def receive(self, gateway: Signs, delivery: Delivery) -> str:
        """What became of it, in a word; it is durable when this returns.

        Raises Malformed.
        """
        return await self._receive(gateway.seller, gateway.read_notice(delivery), delivery.body)

    async def replay(self, hook: Hook) -> Hook:
        """Take it as if it came now; what it did already, it does not do again.

        Raises NotConfigured if its seller is gone, Failed if that cannot be asked.
        """
        gateway = self._signing(hook)
        is_done = False
        if hook.is_whole and hook.why != "session":
            event = _event_of(hook, gateway)
            became = await self._receive(gateway.seller, event, hook.body.encode())
            is_done = became not in _NOT_DONE
        else:
            await self.reconcile(hook)
        stored = await self._elicitations.read(Hook, owner=hook.owner, id=hook.id) or hook
        if is_done and stored.status in _NOT_DONE:
            stored = replace(stored, status="applied", why=None, transition=None)
        stored = replace(stored, replayed_at=self._elicitations.clock())
        await self._elicitations.write(stored)
        return stored

    async def reconcile(self, hook: Hook) -> None:
        """An event about what we did not know: is it ours after all? We ask.

        Raises Failed or an error of the network's if the provider cannot be asked.
        """
        if self._payments.seller(hook.seller) is None:
            return
        gateway = self._signing(hook)
        event = _event_of(hook, gateway) if hook.is_whole else None
        if event is not None and event.news is not None:
            done = await self._reconcile_news(hook, event, event.news, gateway=gateway)
        else:
            done = await self._reconcile_session(hook)
        if done.status == "refused":
            _log.warning("payment.foreign", extra={"id": hook.id, "why": done.why})
        # Another one may have been applied for the same meanwhile: this one claims nothing.
        await self._elicitations.write(replace(done, transition=None))

    async def hinted(self, seller: str, hint: Hint) -> str:
        """What somebody says who may be anybody; what became of it. Raises as `Hints.take` does."""
        return await self._hints.take(seller, hint)

    def _signing(self, hook: Hook) -> Signs:
        gateway = self._payments.flow.named(hook.seller)
        if not isinstance(gateway, Signs):  # it was another one's, of the same name
            raise NotConfigured(f"the payment provider {hook.seller!r}")
        return gateway

    async def _receive(self, seller: Registration, event: Notice, body: bytes) -> str:
        if event.session is not None and event.reference is not None:
            elicitation = await self._elicitations.recent(event.reference)
            if elicitation is not None and elicitation.kind == "payment":
                return await self._settle(elicitation, seller, event, body)
        elif event.news is not None and _may_be_ours(event, event.news):
            return await self._hear(seller, event, event.news, body)
        elif event.subject is not None and event.reference is not None:
            return await self._ask(seller, event, body)
        is_known = event.session is not None and event.reference is not None
        word = "unknown" if is_known else "ignored"
        return await self._keep(self._hook(SERVICE, seller, event, body), status=word)

    async def _settle(
        self, elicitation: Elicitation, seller: Registration, event: Notice, body: bytes
    ) -> str:
        hook = self._hook(elicitation.owner, seller, event, body)
        try:
            return await self._apply(elicitation, event, seller, hook)
        except Mismatch:
            pass  # perhaps another process has begun the session
        elicitation = await self._elicitations.get(elicitation.id) or elicitation
        try:
            return await self._apply(elicitation, event, seller, hook)
        except Mismatch as error:
            status = "waiting" if error.what == "session" else "refused"
            return await self._keep(hook, status=status, why=error.what)

    async def _ask(self, seller: Registration, event: Notice, body: bytes) -> str:
        """It names a session and says nothing of it: kept, then asked about, now or later."""
        elicitation = await self._elicitations.get(event.reference or "")
        if elicitation is None or elicitation.kind != "payment":
            return await self._keep(self._hook(SERVICE, seller, event, body), status="unknown")
        hook = self._hook(elicitation.owner, seller, event, body)
        word = await self._keep(hook, status="waiting", why="session")
        if word == "waiting":
            stored = await self._elicitations.read(Hook, owner=hook.owner, id=hook.id)
            try:
                await self.reconcile(stored or hook)
            except (Failed, httpx.HTTPError) as error:  # the sweeper asks again
                _log.warning("webhook.not_asked", extra={"seller": seller.name, "why": str(error)})
                return word
            word = "asked"
        return word

    async def _hear(self, seller: Registration, event: Notice, news: News, body: bytes) -> str:
        """What became of a payment afterwards, also before we heard that it was paid."""
        payment = await self._paid(event.reference, event, seller=seller)
        if payment is None:
            hook = self._hook(SERVICE, seller, event, body)
            return await self._keep(hook, status="waiting", why="payment")
        hook = self._hook(payment.owner, seller, event, body)
        wrong = _contradicts(payment, event, news, seller=seller)
        if wrong is not None:
            return await self._keep(hook, status="refused", why=wrong)
        return str((await self._heard(payment, event, news, hook)).status)

    async def _heard(self, payment: Payment, event: Notice, news: News, hook: Hook) -> Payment:
        now = self._elicitations.clock()

        def change(current: Payment) -> Payment:
            if news.dispute is not None:
                return receipts.disputed(current, event.subject or event.id, news.dispute)
            return receipts.given_back_in_part(current, now, amount=news.returned)

        return await self._payments.ledger.hear(payment, change, hook=hook)

    async def _paid(
        self, reference: str | None, event: Notice, *, seller: Registration
    ) -> Payment | None:
        if reference is None or event.payment is None:
            return None
        return await self._payments.ledger.of_intent(
            owner_of(reference), event.payment, seller=seller.name
        )

    async def _reconcile_session(self, hook: Hook) -> Hook:
        elicitation = await self._elicitations.get(hook.elicitation_id)
        if elicitation is None:
            return replace(hook, status="refused")
        elicitation = await self._payments.checkouts.reconcile(elicitation)
        if hook.session not in sessions_of(elicitation):
            return replace(hook, status="refused", why="session")
        try:
            await self._payments.checkouts.ask_seller(elicitation)
        except Mismatch as error:
            return replace(hook, status="refused", why=error.what)
        return replace(hook, status="applied", why=None)

    async def _reconcile_news(
        self, hook: Hook, event: Notice, news: News, *, gateway: Signs
    ) -> Hook:
        """A bank's claim names no question, and other news may come before the payment's own."""
        seller = gateway.seller
        reference = event.reference
        if reference is None and event.payment is not None:
            reference = await self._outbound.run(gateway.trace(event.payment))
        payment = await self._paid(reference, event, seller=seller)
        if payment is None and reference is not None:
            elicitation = await self._elicitations.get(reference)
            if elicitation is not None and elicitation.kind == "payment":
                elicitation = await self._payments.checkouts.reconcile(elicitation)
                try:
                    await self._payments.checkouts.ask_seller(elicitation)
                except Mismatch as error:
                    return replace(hook, status="refused", why=error.what)
                payment = await self._paid(reference, event, seller=seller)
        if payment is None:
            return replace(hook, status="unknown", why=None)
        wrong = _contradicts(payment, event, news, seller=seller)
        if wrong is not None:
            return replace(hook, status="refused", why=wrong)
        done = replace(hook, status="applied", why=None, transition=None)
        await self._heard(payment, event, news, done)
        return done

    async def _apply(
        self, elicitation: Elicitation, event: Notice, seller: Registration, hook: Hook
    ) -> str:
        assert event.session is not None
        verdict = judge_notice(elicitation, event, seller=seller)
        checkouts, session = self._payments.checkouts, event.session
        done = await checkouts.apply(elicitation, session, verdict, hook=hook)
        if session.refunded or session.charged_back:  # of nothing, an old notice may tell too
            await checkouts.hear(elicitation, session)
        return str(done or verdict)

    async def _keep(self, hook: Hook, *, status: str, why: str | None = None) -> str:
        """Authentic, and nothing is done about it, now or ever."""
        try:
            await self._elicitations.write(replace(hook, status=status, why=why))
        except Conflict:
            return "duplicate"
        if status in ("waiting", "refused") and why != "payment":
            _log.warning("payment.mismatch", extra={"id": hook.id, "why": why})
        return status

    def _hook(self, owner: str, seller: Registration, event: Notice, body: bytes) -> Hook:
        now = self._elicitations.clock()
        pepper = self._elicitations.owners.pepper
        reference = event.reference or ""
        is_about = owner_of(reference) == owner
        about = reference if is_about else owner
        tag = pepper.tag("hook", seller.name, event.id, size=12 if is_about else 18)
        # A session that is paid has its row in the ledger, and needs no other mark.
        is_paid = event.session is not None and event.session.state is State.PAID
        says = None if is_paid else event.transition
        return Hook(
            id=beside(about, tag),
            owner=owner,
            seller=seller.name,
            elicitation_id=event.reference or "",
            session=event.subject or "",
            body=body[:BODY_BYTES_KEPT].decode("utf-8", "replace"),
            is_whole=len(body) <= BODY_BYTES_KEPT,
            received_at=now,
            erase_at=now + KEPT,
            event=event.id,
            type=event.type,
            transition=None if says is None else pepper.tag("transition", seller.name, says),
        )


def _event_of(hook: Hook, gateway: Signs) -> Notice:
    return gateway.kept_notice(hook.body.encode())


def _may_be_ours(event: Notice, news: News) -> bool:
    """A charge carries our reference; a bank's claim names the payment only."""
    is_told = event.reference is not None or news.dispute is not None
    return is_told and event.payment is not None


def _contradicts(
    payment: Payment, event: Notice, news: News, *, seller: Registration
) -> str | None:
    """What of the news is not so that it can be about this payment."""
    if event.account != seller.account:
        return "account"
    if not event.is_live == seller.is_live == payment.is_live:
        return "mode"
    if news.currency not in (None, payment.currency):
        return "currency"
    return None
