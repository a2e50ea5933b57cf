"""Checkouts: polling and closing the provider sessions that this server's attempts began.

Risks: a checkout stays open after its question has ended, a payment is not noticed, or an approved
payment is captured twice at once. So the end of a question closes its sessions. Sessions that may
still be paid after that are polled until the provider reports their final status. A process polls
each session with one request at a time. `webapp.payments.verification` acts on the results.

Providers whose webhooks do not reach this server are polled in turns, from the press of Continue
until the link expires, at the provider's own pace. The time of the next turn is stored with the
question, so any process can poll. A process remembers the turns that it planned, so that it polls
on time.
"""

import asyncio
import logging
from collections.abc import Collection
from contextlib import suppress
from datetime import datetime, timedelta
from heapq import heappop, heappush
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import replace

from flows.elicitation import flow as attempts
from flows.elicitation.states import Elicitation, Status
from flows.errors import Failed, NotConfigured, NotPossible
from flows.payments.checkout_page import next_turn, turn_after_trouble
from flows.payments.gateway import (
    CLOCKS_DIFFER,
    ProviderSession,
    forget_page,
    has_open_page_elsewhere,
)
from flows.payments.registry import Gateways
from flows.payments.responses import KeyUsed, with_session
from flows.payments.session import (
    Mismatch,
    SessionStatus,
    StoredCheckout,
    UnresolvedPayment,
    UnresolvedStatus,
    checkout_of,
    sessions_of,
    terms_of,
)
from webapp.elicitations.service import Elicitations
from webapp.http.client import Outbound
from webapp.http.rate_limit import Rates
from webapp.payments.unresolved import LOST, UnresolvedPayments
from webapp.payments.verification import Verification

BETWEEN_FETCHES = timedelta(seconds=2)
# For one merchant account, whose limit at the provider is shared with other programs.
FETCHES_AT_ONCE = 10
BETWEEN_FETCHES_THERE = timedelta(seconds=0.25)
_LEAST_SECONDS = 0.05  # the shortest wait: the event loop's clock and the wall clock can differ
PAGES_AT_MOST = 100  # pages to read of a provider's list when searching for one question's sessions
_log = logging.getLogger(__name__)


class Checkouts:
    def __init__(
        self,
        *,
        elicitations: Elicitations,
        outbound: Outbound,
        flow: Gateways,
        unresolved: UnresolvedPayments,
        verification: Verification,
        unreached: Collection[str],
    ) -> None:
        """Poll the providers in `unreached` in turns: their webhooks do not reach this server."""
        self._elicitations = elicitations
        self._outbound = outbound
        self._flow = flow
        self._unresolved = unresolved
        self._verification = verification
        self._unreached = frozenset(unreached)
        self._planned: list[datetime] = []
        self._has_new_turn = asyncio.Event()
        self._asking = WeakValueDictionary[str, asyncio.Lock]()
        self._press_locks = WeakValueDictionary[str, asyncio.Lock]()
        clock = elicitations.clock
        self._poll_limit = Rates(burst=1, every=BETWEEN_FETCHES, clock=clock)  # by question
        self._fetches = Rates(burst=FETCHES_AT_ONCE, every=BETWEEN_FETCHES_THERE, clock=clock)

    async def ask_provider(
        self, elicitation: Elicitation, *, collects: bool = True
    ) -> list[SessionStatus]:
        """Fetch the sessions that may have been paid, and act on their status.

        `collects`: first capture a payment that the person has approved.

        Raises:
            Failed: The provider cannot be asked.
            Mismatch: A session differs from what was requested.
        """
        failure: Failed | Mismatch | None = None
        statuses: list[SessionStatus] = []
        for session in sessions_of(elicitation):
            try:
                found = await self._ask(elicitation, session, collects=collects)
                statuses.append(await self._verification.apply(elicitation, found))
            except (Failed, Mismatch) as error:
                failure = failure or error  # another session may be paid
        if failure is not None:
            raise failure
        return statuses

    def one_at_a_time(self, elicitation_id: str) -> asyncio.Lock:
        """Return the lock that makes a press of Continue wait for the previous press."""
        return self._press_locks.setdefault(elicitation_id, asyncio.Lock())

    async def close_earlier_page(self, elicitation_id: str, *, browser: str) -> None:
        """Close the page of an earlier press, unless it is this browser's own page.

        Raises:
            Failed: The provider neither closed the page nor reported its status.
            NotPossible: The page is paid, or the same permanent purchase was paid before.
        """
        elicitation = await self._elicitations.get(elicitation_id)
        if elicitation is None:
            return
        await self._verification.must_be_unpaid(elicitation)
        if self._blocks_new_page(elicitation, browser):
            await self._close_page(elicitation, browser)

    async def _close_page(self, elicitation: Elicitation, browser: str) -> None:
        known = sessions_of(elicitation)
        try:
            elicitation = await self.reconcile(elicitation)
        except Failed as error:
            if not error.is_refusal:
                raise
            await self._elicitations.change(elicitation.id, _refused)
            return
        latest = checkout_of(elicitation.attempt)
        if latest is None or latest.session is None:
            return
        is_own_page = latest.url is not None and not self._blocks_new_page(elicitation, browser)
        for session in sessions_of(elicitation):
            if session == latest.session:
                if not is_own_page:  # this browser's own page stays open
                    await self._close_session(elicitation, session)
            elif session not in known:
                await self._close_session(elicitation, session)

    async def _close_session(self, elicitation: Elicitation, session: str) -> None:
        """Close a session, so that another one can be created.

        Raises NotPossible if the session cannot be closed because it is paid, and Failed if the
        provider does not report the session's status.
        """
        try:
            gateway = self._flow.for_stored(terms_of(elicitation).seller)
            is_closed = await self._outbound.run(gateway.close(elicitation, session))
        except Failed as error:
            if not error.is_refusal:
                raise
            is_closed = True  # the session expires by itself; a second payment is refunded
        if not is_closed:
            found = await self._ask(elicitation, session, collects=True)
            with suppress(Mismatch):
                await self._verification.apply(elicitation, found)
            raise NotPossible(status=found.state, wanted="paid again")
        await self._elicitations.change(elicitation.id, lambda e: forget_page(e, session))

    async def can_be_requested_again(self, elicitation_id: str, refused: Failed) -> bool:
        """Return True if a refused page can be requested again with another idempotency key.

        The key may belong to an earlier page of this question that the store has lost. In that
        case, look up the earlier page at the provider and close it.

        Raises:
            NotPossible: The earlier page is paid, or the provider lists no pages.
            Failed: The provider did not answer.
        """
        elicitation = await self._elicitations.get(elicitation_id)
        if elicitation is None:
            return False
        if not self._flow.lists(elicitation):
            if not isinstance(refused, KeyUsed):
                return False
            await self._unresolved.list_lost(elicitation)
            ended = await self._elicitations.end(elicitation, Status.FAILED, why=LOST)
            raise NotPossible(status=ended.status, wanted="paid at another page")
        known = sessions_of(elicitation)
        try:
            elicitation = await self.find_lost(elicitation)
        except Failed:
            if isinstance(refused, KeyUsed):
                raise
            return False
        lost = [session for session in sessions_of(elicitation) if session not in known]
        for session in lost:
            await self._close_session(elicitation, session)
        if not lost and isinstance(refused, KeyUsed):
            await self._elicitations.change(elicitation.id, _refused)
        return bool(lost) or isinstance(refused, KeyUsed)

    async def find_lost(self, elicitation: Elicitation) -> Elicitation:
        """Search the provider's list for lost sessions of the question, and store the sessions.

        Call this method only for a provider that lists its sessions. Raises Failed if the provider
        does not answer, or if it lists too many sessions.
        """
        gateway = self._flow.listing[terms_of(elicitation).seller]
        since, after = elicitation.created_at - CLOCKS_DIFFER, None
        for _ in range(PAGES_AT_MOST):
            page = await self._outbound.run(gateway.list_sessions(since, after=after))
            for found in page.sessions:
                if found.reference == elicitation.id and found.is_made_by_us:
                    elicitation = await self.adopt(elicitation, found)
            if page.next is None:
                return elicitation
            after = page.next
        raise Failed("The provider lists too many payment pages to search them.")

    async def adopt(self, elicitation: Elicitation, found: ProviderSession) -> Elicitation:
        """Add a session that this server began, and that the store has lost, to its question."""
        now, until = self._elicitations.clock(), found.closes_at or elicitation.expires_at
        seller = self._flow.of(elicitation).seller
        stored = StoredCheckout(request="", expires_at=int(until.timestamp()), session=found.id)
        with suppress(Failed):  # the page's terms differ: store no URL for the browser
            stored = with_session(stored, elicitation, found, seller)
        _log.warning("payment.lost_page_found", extra={"id": elicitation.id})
        return await self._elicitations.change(
            elicitation.id,
            lambda e: (
                e
                if found.id in sessions_of(e)
                else attempts.adopt(e, attempt_data=msgspec.to_builtins(stored), now=now)
            ),
        )

    def _blocks_new_page(self, elicitation: Elicitation, browser: str) -> bool:
        now = self._elicitations.clock()
        is_going_on = not elicitation.status.is_final
        return is_going_on and has_open_page_elsewhere(elicitation, browser=browser, now=now)

    async def ask_once(self, elicitation: Elicitation) -> Elicitation:
        """Poll the elicitation's sessions, unless they were polled a moment ago.

        Return the current elicitation. Each merchant account has a rate limit. If the limit
        prevents this poll, a webhook or a later poll reports the status.
        """
        await self._ask_unless_held_back(elicitation)
        return await self._elicitations.get(elicitation.id) or elicitation

    async def ask_in_turn(self, elicitation: Elicitation) -> None:
        """Poll a due elicitation, and schedule its next turn, which is later after a failure.

        If the merchant account is rate-limited, do nothing: the elicitation becomes due again when
        the store's claim expires.
        """
        found = await self._ask_unless_held_back(elicitation)
        if found is not None:
            planned = await self._elicitations.change(
                elicitation.id, lambda e: self.plan_turn(e, is_troubled=not found)
            )
            self.expect_turn(planned)

    def plan_turn(self, elicitation: Elicitation, *, is_troubled: bool = False) -> Elicitation:
        """Return the elicitation with its next turn. Call this after Continue or a poll."""
        return replace(elicitation, ask_at=self._next_turn(elicitation, is_troubled=is_troubled))

    def expect_turn(self, elicitation: Elicitation) -> None:
        """Let `wait_for_turn` return when this elicitation's poll is due. Store that time first."""
        if elicitation.ask_at is not None and not elicitation.status.is_final:
            heappush(self._planned, elicitation.ask_at)
            self._has_new_turn.set()

    async def wait_for_turn(self, *, within: float) -> None:
        """Wait until the next turn that this process expects, but at most `within` seconds."""
        loop = asyncio.get_running_loop()
        until = loop.time() + within
        while (seconds := until - loop.time()) > 0:
            self._has_new_turn.clear()
            if self._planned:
                now = self._elicitations.clock()
                if self._planned[0] <= now:
                    while self._planned and self._planned[0] <= now:
                        heappop(self._planned)
                    return
                remaining = (self._planned[0] - now).total_seconds()
                seconds = min(seconds, max(remaining, _LEAST_SECONDS))
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._has_new_turn.wait()

    def _next_turn(self, elicitation: Elicitation, *, is_troubled: bool) -> datetime | None:
        attempt, provider = elicitation.attempt, terms_of(elicitation).seller
        if (
            attempt is None
            or provider not in self._unreached
            or not self._flow.can_be_polled(elicitation)
        ):
            return None
        try:
            pace = self._flow.of(elicitation).pace
        except NotConfigured:
            return None
        plan = turn_after_trouble if is_troubled else next_turn
        turn = plan(pace, begun_at=attempt.started_at, now=self._elicitations.clock())
        return turn if turn < elicitation.expires_at else None

    async def _ask_unless_held_back(self, elicitation: Elicitation) -> bool | None:
        """Return True if the sessions were polled now or a moment ago, False if that failed.

        None means that the rate limit of the merchant account prevented the poll.
        """
        if elicitation.status.is_final or not sessions_of(elicitation):
            return True
        try:
            seller = self._flow.of(elicitation).seller
        except NotConfigured:
            return False
        if not self._flow.can_be_polled(elicitation) or self._poll_limit.consume(elicitation.id):
            return True
        if self._fetches.consume(f"{seller.name} {seller.account}"):
            return None
        try:
            await self.ask_provider(elicitation)
        except (Failed, Mismatch) as error:
            about = {"id": elicitation.id, "why": str(error)}
            _log.warning("provider.failed", extra=about)
            return False
        return True

    async def decline_if_unpaid(self, elicitation: Elicitation, *, number: int) -> None:
        """Decline the question after the person used a checkout's cancel link, unless it is paid.

        The cancel link of an earlier attempt, whose checkout was superseded, changes nothing.
        """
        latest = elicitation.attempt
        assert latest is not None
        earlier = {attempt.number for attempt in elicitation.earlier_attempts} - {latest.number}
        if (
            SessionStatus.PENDING in await self.ask_provider(elicitation, collects=False)
            or number in earlier
        ):
            return  # the money is on its way, or another tab has a newer checkout
        with suppress(NotPossible):
            denied = await self._elicitations.settle(
                elicitation.id, Status.DENIED, why="the person left the checkout"
            )
            await self.close(denied)

    async def close(self, elicitation: Elicitation) -> None:
        """Close the sessions of an ended question at the provider.

        Raises:
            Failed: The provider could not be reached.
        """
        failure: Failed | None = None
        is_past = self._is_past(elicitation)
        try:
            elicitation = await self.reconcile(elicitation)
        except Failed as error:
            elicitation = await self._elicitations.get(elicitation.id) or elicitation
            # A refusal means that the session was never created. If the provider did not answer,
            # the session may exist.
            failure = None if error.is_refusal else error
            if failure is not None and is_past:
                now = self._elicitations.clock()
                elicitation = await self._elicitations.change(
                    elicitation.id, lambda e: attempts.close_later(e, now=now)
                )
        for session in sessions_of(elicitation):
            try:
                if not await self._end(elicitation, session):
                    await self._unresolved.poll_later(elicitation, session)
            except Failed as error:
                if not is_past:
                    failure = failure or error  # close the other sessions all the same
                elif self._flow.can_be_polled(elicitation):
                    # The session has expired but may have been paid: poll it for its final status.
                    await self._unresolved.poll_later(elicitation, session)
        if failure is not None:
            raise failure
        await self._elicitations.change(elicitation.id, attempts.close)

    async def ask_again(self, payment: UnresolvedPayment) -> None:
        """Poll a session whose question has ended and whose final status is unknown.

        If the status is still not final, schedule the next poll, with longer pauses each time.
        """
        elicitation = await self._elicitations.get(payment.elicitation_id)
        if elicitation is None:
            await self._unresolved.give_up(payment)
            return
        try:
            found = await self._ask(elicitation, payment.session, collects=False)
            with suppress(Mismatch):
                await self._verification.apply(elicitation, found)
            has_ended = found.state is not SessionStatus.PENDING
            if found.state is SessionStatus.OPEN:
                has_ended = await self._end(elicitation, payment.session)
        except Failed as error:
            _log.warning("provider.failed", extra={"id": payment.elicitation_id, "why": str(error)})
            has_ended = False
        now = await self._unresolved.read(payment)
        if now is not None and now.status is UnresolvedStatus.OTHERWISE:
            return  # just reported as paid differently: the operator has to check the payment
        if has_ended:
            await self._unresolved.end(elicitation, payment.session)
        else:
            await self._unresolved.ask_again(payment)

    async def reconcile(self, elicitation: Elicitation) -> Elicitation:
        """Find the sessions of attempts whose reply from the provider was lost.

        Raises:
            Failed: A session could not be found; the others are stored first. The error is a
                refusal only if the provider refused each request.
        """
        failure: Failed | None = None
        for attempt in (elicitation.attempt, *elicitation.earlier_attempts):
            known = checkout_of(attempt)
            if attempt is None or known is None or attempt.trouble == "refused":
                continue
            if known.session is None:
                try:
                    gateway = self._flow.for_stored(terms_of(elicitation).seller)
                    stored = await self._outbound.run(gateway.repeat(elicitation, attempt))
                except Failed as error:
                    before = sessions_of(elicitation)
                    elicitation, refused = await self._looked_up(elicitation, error)
                    if sessions_of(elicitation) == before:
                        failure = refused if failure is None or failure.is_refusal else failure
                    continue
                number, now_known = attempt.number, msgspec.to_builtins(stored)
                elicitation = await self._elicitations.change(
                    elicitation.id,
                    lambda e, n=number, k=now_known: attempts.keep(  # type: ignore[misc]
                        e, number=n, attempt_data=k, is_sent=False
                    ),
                )
        if failure is not None:
            raise failure
        return elicitation

    async def _looked_up(
        self, elicitation: Elicitation, refused: Failed
    ) -> tuple[Elicitation, Failed]:
        """Search for an earlier session if the provider refused the repeated request.

        A provider that has forgotten the idempotency key may refuse although a session exists.
        Return the elicitation with the sessions found, and the error that remains.
        """
        if refused.is_refusal and self._flow.lists(elicitation):
            try:
                return await self.find_lost(elicitation), refused
            except Failed as error:
                return elicitation, error
        return elicitation, refused

    async def _end(self, elicitation: Elicitation, session: str) -> bool:
        """Close a session. Return True if its status is final.

        Raises Failed if the session may still be paid and the provider does not report its status.
        """
        try:
            gateway = self._flow.for_stored(terms_of(elicitation).seller)
            if await self._outbound.run(gateway.close(elicitation, session)):
                return True
        except Failed:
            if not self._is_past(elicitation):
                raise
            # The session has expired. Only the provider knows whether it was paid before.
        found = await self._ask(elicitation, session, collects=False)
        with suppress(Mismatch):
            await self._verification.apply(elicitation, found)
        return found.state not in (SessionStatus.PENDING, SessionStatus.OPEN)

    def _is_past(self, elicitation: Elicitation) -> bool:
        """Return True if all checkouts of the elicitation have expired at the provider."""
        now = self._elicitations.clock().timestamp()
        attempts = (elicitation.attempt, *elicitation.earlier_attempts)
        stored = [checkout_of(attempt) for attempt in attempts]
        return all(one is None or one.expires_at < now for one in stored)

    async def _ask(
        self, elicitation: Elicitation, session: str, *, collects: bool
    ) -> ProviderSession:
        gateway = self._flow.for_stored(terms_of(elicitation).seller)
        ask = gateway.collect if collects else gateway.fetch
        # Two requests at once would both find the payment approved and capture it.
        async with self._asking.setdefault(session, asyncio.Lock()):
            asked_at = self._elicitations.clock()
            found = await self._outbound.run(ask(elicitation, session))
            return found.answered(asked_at)


def _refused(elicitation: Elicitation) -> Elicitation:
    """Record that the provider refused the repeated request of the latest attempt."""
    latest = elicitation.attempt
    number = 0 if latest is None else latest.number
    return attempts.record_failed_start(elicitation, number=number, trouble="refused")
