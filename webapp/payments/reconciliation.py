"""Reconciliation: comparison of a provider's sessions since a given time with this store.

Risks: a store lost its latest writes in a restore or a failover, and a payment is missing. The
provider's sessions have the id of their question. A session that the store does not know is added
to its question, which is then settled as usual. A paid session whose question is also lost, or that
this server did not begin, is put on the operator's list. After the sessions, the unused payments
are polled, because the store may have lost a refund.

The progress is stored in one row for each provider, page by page. The sweeper continues it in one
process at a time, also after a restart. A repeated comparison changes nothing.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from msgspec.structs import replace

from flows.elicitation.states import Elicitation
from flows.errors import Failed, NotConfigured
from flows.payments.claims import claimed
from flows.payments.gateway import CLOCKS_DIFFER, MerchantAccount, Notice, ProviderSession
from flows.payments.listing import Lists
from flows.payments.receipt import Payment, ReceiptStatus
from flows.payments.registry import Gateways
from flows.payments.session import Mismatch, SessionStatus, sessions_of, terms_of
from webapp.elicitations.service import Elicitations
from webapp.http.client import Outbound
from webapp.payments.checkouts import Checkouts
from webapp.payments.ledger import Ledger
from webapp.payments.unresolved import UnresolvedPayments, why_not_stored
from webapp.records.owners import SERVICE
from webapp.records.values import Reconciliation
from webapp.stores import Conflict

REPORT_RETENTION = timedelta(days=30)
PAGES_AT_ONCE = 20  # pages of a provider's list; then the sweeper works on another row
RECEIPTS_AT_ONCE = 50
AGAIN_AFTER = timedelta(seconds=30)  # the pause after the first failure; it doubles each time
AGAIN_AT_MOST = timedelta(hours=1)
TRIES_THAT_COUNT = 8
_log = logging.getLogger(__name__)


class Reconciling:
    """The comparison with the providers that list their sessions; built with the service."""

    def __init__(
        self,
        *,
        elicitations: Elicitations,
        outbound: Outbound,
        flow: Gateways,
        ledger: Ledger,
        checkouts: Checkouts,
        unresolved: UnresolvedPayments,
    ) -> None:
        self._elicitations = elicitations
        self._outbound = outbound
        self._flow = flow
        self._ledger = ledger
        self._checkouts = checkouts
        self._unresolved = unresolved

    @property
    def unlisted(self) -> list[str]:
        """The names of the providers that cannot be compared: they list no sessions."""
        return [name for name in self._flow.names if name not in self._flow.listing]

    async def reconcile(self, since: datetime) -> Sequence[Reconciliation]:
        """Start comparing the providers' sessions since `since` with this store.

        The sweeper does the work. If several processes call this method, or one process calls it
        twice, there is still one comparison for each provider, which starts at the oldest `since`.
        """
        return [await self._begin(name, since) for name in self._flow.listing]

    async def compare_part(self, row: Reconciliation) -> Reconciliation:
        """Do a part of the comparison. If the provider does not answer, schedule another try."""
        gateway = self._flow.listing.get(row.seller)
        if gateway is None:  # no longer configured
            return await self._store_progress(row, next_at=self._later(row), tries=row.tries + 1)
        try:
            if not row.is_listed:
                return await self._go_through(row, gateway)
            return await self._ask_about_unused(row)
        except (Failed, NotConfigured) as error:
            _log.warning("payments.not_compared", extra={"seller": row.seller, "why": str(error)})
            row = await self._stored(row) or row
            return await self._store_progress(row, next_at=self._later(row), tries=row.tries + 1)
        except Conflict:  # another process is working on this row
            return await self._stored(row) or row

    async def _begin(self, provider: str, since: datetime) -> Reconciliation:
        now, id = self._elicitations.clock(), f"{SERVICE}compared:{provider}"
        begun: Reconciliation | None = None

        async def values() -> Sequence[Reconciliation]:
            nonlocal begun
            found = await self._elicitations.read(Reconciliation, owner=SERVICE, id=id)
            is_going_on = found is not None and found.status == "waiting"
            if found is not None and is_going_on and found.since <= since:
                begun = found
                return []
            begun = Reconciliation(
                id=id,
                owner=SERVICE,
                seller=provider,
                since=since,
                begun_at=now,
                erase_at=now + REPORT_RETENTION,
                next_at=now,
                version=0 if found is None else found.version,
            )
            return [begun]

        written = await self._elicitations.write_rebuilt(values)
        assert begun is not None
        return replace(begun, version=begun.version + 1) if written else begun

    async def _go_through(self, row: Reconciliation, gateway: Lists) -> Reconciliation:
        for _ in range(PAGES_AT_ONCE):
            since = row.since - CLOCKS_DIFFER
            page = await self._outbound.run(gateway.list_sessions(since, after=row.after))
            for session in page.sessions:
                row = await self._compare(row, session, seller=gateway.seller)
            row = await self._store_progress(
                replace(row, after=page.next, is_listed=page.next is None),
                next_at=self._elicitations.clock(),
            )
            if row.is_listed:
                break
        return row

    async def _ask_about_unused(self, row: Reconciliation) -> Reconciliation:
        """Poll the unused payments, which may have been refunded or disputed in the meantime."""
        found = [one for one in await self._ledger.all() if one.seller == row.seller]
        unused = sorted(
            [
                one
                for one in found
                if one.status is ReceiptStatus.OPEN and one.id > (row.receipt or "")
            ],
            key=lambda one: one.id,
        )
        for payment in unused[:RECEIPTS_AT_ONCE]:
            elicitation = await self._elicitations.get(payment.elicitation_id)
            if elicitation is not None and payment.session in sessions_of(elicitation):
                with suppress(Mismatch):
                    await self._checkouts.ask_provider(elicitation, collects=False)
            row = replace(row, receipt=payment.id)
        status = "waiting" if len(unused) > RECEIPTS_AT_ONCE else "done"
        if status == "done":
            counts = {"seen": row.seen, "found": row.found, "listed": row.listed}
            _log.info("payments.compared", extra={"seller": row.seller, **counts})
        return await self._store_progress(
            replace(row, status=status), next_at=self._elicitations.clock()
        )

    async def _compare(
        self, row: Reconciliation, session: ProviderSession, *, seller: MerchantAccount
    ) -> Reconciliation:
        """Compare one session, and return the row with updated counts."""
        reference = session.reference or ""
        why = why_not_stored(reference, now=self._elicitations.clock())
        if why is None:
            return row
        row = replace(row, seen=row.seen + 1)
        elicitation = await self._elicitations.get(reference)
        if elicitation is None or elicitation.kind != "payment":
            known = await self._ledger.of_session(
                reference, session.id, provider=seller.name, payment=session.payment
            )
            is_listed = known is None and await self._list(session, seller, why=why)
            return replace(row, listed=row.listed + is_listed)
        if session.id not in sessions_of(elicitation):
            if terms_of(elicitation).seller != seller.name or not session.is_made_by_us:
                is_listed = await self._list(session, seller, why="foreign")
                return replace(row, listed=row.listed + is_listed)
            elicitation = await self._checkouts.adopt(elicitation, session)
            row = replace(row, found=row.found + 1)
        if await self._is_news(elicitation, session):
            with suppress(Mismatch):  # paid differently than requested: already on the list
                await self._checkouts.ask_provider(elicitation, collects=False)
        return row

    async def ask_about_claims(self, payment: Payment, event: Notice) -> bool:
        """Store the current stages of the payment's claims, as the provider reports them.

        The reported stages override the stage in the event. Return False if the event is about no
        claim, or if the provider does not report the claim: the caller then applies the event.
        """
        gateway = self._flow.dispute_reporters.get(payment.seller)
        if gateway is None or event.news is None or event.news.dispute is None:
            return False
        asked_at, owner = self._elicitations.clock(), payment.owner
        try:
            reported = await self._outbound.run(gateway.claims(payment))
        except Failed as error:
            _log.warning("provider.failed", extra={"id": payment.id, "why": str(error)})
            return False
        await self._ledger.change(
            owner, payment.id, lambda current: claimed(current, reported, asked_at=asked_at)
        )
        return any(one.id == event.subject for one in reported)

    async def _is_news(self, elicitation: Elicitation, session: ProviderSession) -> bool:
        """Return True if the provider reports a status of the session that is not stored."""
        provider = terms_of(elicitation).seller
        id = await self._ledger.id_for(elicitation, session, provider=provider)
        payment = await self._ledger.read(elicitation.owner, id)
        if payment is not None:
            return session.refunded > payment.refunded
        return session.state in (SessionStatus.PAID, SessionStatus.PENDING, SessionStatus.FAILED)

    async def _list(self, session: ProviderSession, seller: MerchantAccount, *, why: str) -> bool:
        """Put a paid session on the operator's list, and return True.

        Return False without listing the session if no money is left in it, or if its mode (test or
        live) is not the merchant account's mode.
        """
        if session.state is not SessionStatus.PAID or session.is_returned:
            return False
        if session.is_live != seller.is_live:
            return False
        reference = session.reference or ""
        await self._unresolved.add_unmatched(reference, session, seller=seller, why=why)
        return True

    async def _store_progress(
        self, row: Reconciliation, *, next_at: datetime, tries: int = 0
    ) -> Reconciliation:
        """Store the row's progress, and return the row.

        Raises Conflict if another write has changed the row in the meantime.
        """
        changed = replace(row, next_at=next_at, tries=tries)
        await self._elicitations.write(changed)
        return replace(changed, version=changed.version + 1)

    def _later(self, row: Reconciliation) -> datetime:
        pause: timedelta = min(AGAIN_AFTER * 2 ** min(row.tries, TRIES_THAT_COUNT), AGAIN_AT_MOST)
        return self._elicitations.clock() + pause

    async def _stored(self, row: Reconciliation) -> Reconciliation | None:
        return await self._elicitations.read(Reconciliation, owner=row.owner, id=row.id)
