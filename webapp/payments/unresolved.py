"""Unresolved payments: sessions to poll again, and payments that the operator must check.

Risks: a row is lost, and the money with it. A row is written before its question is closed, and
is stored separately and longer than the question.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from flows.elicitation.states import RECORD_RETENTION, Elicitation, Status
from flows.errors import InvalidQuestion, Unreadable
from flows.payments import session as transitions
from flows.payments.gateway import MerchantAccount, ProviderSession
from flows.payments.money import Money
from flows.payments.session import (
    ASK_AGAIN_AFTER,
    PAID_OTHERWISE,
    UNRESOLVED_RETENTION,
    CheckoutTerms,
    UnresolvedPayment,
    UnresolvedStatus,
    terms_of,
)
from webapp.elicitations.service import Elicitations
from webapp.records.ids import made_at, owner_of
from webapp.records.owners import SERVICE
from webapp.records.values import KINDS

LOST = (
    "a payment page was opened for the same request before, and the server cannot find it any "
    "more: the operator of this server has to check it at the provider"
)
ABOUT: Final = {
    "erased": "a payment whose question is erased",
    "missing": "a payment whose question is not in this store",
    "foreign": "a payment that names a question of this server, but was not started by it",
}
_log = logging.getLogger(__name__)


class UnresolvedPayments:
    def __init__(self, elicitations: Elicitations) -> None:
        self._elicitations = elicitations

    async def poll_later(self, elicitation: Elicitation, session: str) -> None:
        """Store a session to poll later: its question has ended, but it may still be paid."""
        now = self._elicitations.clock()
        fresh = self._fresh(elicitation, session)

        def waiting(current: UnresolvedPayment | None) -> UnresolvedPayment:
            if current is not None and current.status is not UnresolvedStatus.OVER:
                return current
            version = 0 if current is None else current.version
            return transitions.ask_again(replace(fresh, version=version), now)

        await self._change(fresh, waiting)

    async def ask_again(self, payment: UnresolvedPayment) -> None:
        now = self._elicitations.clock()
        await self._change(payment, lambda current: current and transitions.ask_again(current, now))

    async def give_up(self, payment: UnresolvedPayment) -> None:
        await self._change(payment, lambda current: current and transitions.give_up(current))

    async def paid_otherwise(self, elicitation: Elicitation, session: ProviderSession) -> None:
        """List a session that was paid differently than requested, unless it was refunded."""
        now = self._elicitations.clock()
        fresh = self._fresh(elicitation, session.id)
        is_refunded = 0 < (session.amount or 0) <= session.total_returned

        def updated(current: UnresolvedPayment | None) -> UnresolvedPayment | None:
            if is_refunded:
                return None if current is None else transitions.end(current, now)
            return transitions.paid_otherwise(
                current or fresh,
                amount=session.amount,
                currency=session.currency,
                is_live=session.is_live,
            )

        await self._change(fresh, updated)
        if not is_refunded:
            with suppress(KeyError):  # erased in the meantime
                await self._elicitations.change(elicitation.id, _paid_differently)

    async def list_lost(self, elicitation: Elicitation) -> None:
        """List a lost payment page for the operator: its provider does not list sessions."""
        fresh = self._fresh(elicitation, elicitation.id)
        await self._change(
            fresh, lambda current: current or replace(fresh, status=UnresolvedStatus.OTHERWISE)
        )

    async def add_unmatched(
        self, reference: str, session: ProviderSession, *, seller: MerchantAccount, why: str
    ) -> None:
        """List a payment for a question that is not stored. `why` is a key of ABOUT.

        If the owner's tag in the reference is unknown, the row belongs to the service.
        """
        is_known = await self._elicitations.owners.has(owner_of(reference))
        owner = owner_of(reference) if is_known else SERVICE
        amount, currency = session.amount or 0, session.currency or ""
        try:
            Money.from_minor_units(amount, currency)
        except InvalidQuestion:
            return  # the amount is no valid price: only the webhook stays stored
        now = self._elicitations.clock()
        fresh = UnresolvedPayment(
            id=self._elicitations.rows.ids.unresolved(
                reference, owner=owner, provider=seller.name, session=session.id
            ),
            owner=owner,
            elicitation_id=reference,
            tool="",
            seller=seller.name,
            what=ABOUT[why],
            amount=amount,
            currency=currency,
            is_live=session.is_live,
            session=session.id,
            found_at=now,
            until=now,
        )
        await self._change(
            fresh,
            lambda current: transitions.paid_otherwise(
                current or fresh, amount=amount, currency=currency, is_live=session.is_live
            ),
        )

    async def end(self, elicitation: Elicitation, session: str) -> None:
        """End the row, because the provider reported the session's final status."""
        now = self._elicitations.clock()
        await self._change(
            self._fresh(elicitation, session),
            lambda current: None if current is None else transitions.end(current, now),
        )

    async def close_checked(self, payment: UnresolvedPayment) -> None:
        """End the row, because the operator has checked the payment."""
        now = self._elicitations.clock()
        await self._change(
            payment,
            lambda current: current and transitions.end(current, now, status=UnresolvedStatus.DONE),
        )

    async def list_to_check(self) -> list[UnresolvedPayment]:
        """Return the payments that the operator must check, the latest first."""
        found: list[UnresolvedPayment] = []
        for status in (UnresolvedStatus.UNANSWERED, UnresolvedStatus.OTHERWISE):
            found += await self._elicitations.all(UnresolvedPayment, status=status)
        return sorted(found, key=lambda one: (one.found_at, one.id), reverse=True)

    async def blocking(
        self, owner: str, terms: CheckoutTerms, *, server: str, tool: str
    ) -> list[UnresolvedPayment]:
        """Return the sessions of this purchase that can still be paid or were paid differently."""
        found: list[UnresolvedPayment] = []
        for status in (UnresolvedStatus.WAITING, UnresolvedStatus.OTHERWISE):
            found += await self._elicitations.all(
                UnresolvedPayment, owner=owner, status=status, skips_unreadable=True
            )
        same = (terms.seller, terms.amount, terms.currency, terms.what, terms.is_live, tool)
        return [
            one
            for one in found
            if (one.seller, one.amount, one.currency, one.what, one.is_live, one.tool) == same
            and await self._may_be_of(one, server)
        ]

    async def read(self, payment: UnresolvedPayment) -> UnresolvedPayment | None:
        return await self._elicitations.read(UnresolvedPayment, owner=payment.owner, id=payment.id)

    def _fresh(self, elicitation: Elicitation, session: str) -> UnresolvedPayment:
        terms, now = terms_of(elicitation), self._elicitations.clock()
        return UnresolvedPayment(
            id=self._elicitations.rows.ids.unresolved(
                elicitation.id, owner=elicitation.owner, provider=terms.seller, session=session
            ),
            owner=elicitation.owner,
            elicitation_id=elicitation.id,
            tool=elicitation.request.tool,
            seller=terms.seller,
            what=terms.what,
            amount=terms.amount,
            currency=terms.currency,
            is_live=terms.is_live,
            session=session,
            found_at=now,
            # The provider cannot be asked after the question is erased.
            until=min(elicitation.erase_at - ASK_AGAIN_AFTER, now + UNRESOLVED_RETENTION),
        )

    async def _may_be_of(self, payment: UnresolvedPayment, server: str) -> bool:
        """Return True if this server asked the question, or if the question is erased."""
        try:
            asked = await self._elicitations.get(payment.elicitation_id)
        except Unreadable:
            _log.exception("record.unreadable", extra={"kind": KINDS[Elicitation]})
            return False
        return asked is None or asked.request.server == server

    async def _change(
        self,
        about: UnresolvedPayment,
        change: Callable[[UnresolvedPayment | None], UnresolvedPayment | None],
    ) -> None:
        async def values() -> list[UnresolvedPayment]:
            current = await self._elicitations.read(
                UnresolvedPayment, owner=about.owner, id=about.id
            )
            changed = change(current)
            return [] if changed is None or changed == current else [changed]

        await self._elicitations.write_rebuilt(values)


def why_not_stored(reference: str, *, now: datetime) -> str | None:
    """Return why the question with this id is not stored; None if it is not an elicitation id."""
    created_at = made_at(reference)
    if created_at is None:
        return None
    return "erased" if created_at + RECORD_RETENTION <= now else "missing"


def _paid_differently(elicitation: Elicitation) -> Elicitation:
    """Show PAID_OTHERWISE as an open question's progress, and as an expired question's reason."""
    if not elicitation.status.is_final:
        return replace(elicitation, progress=PAID_OTHERWISE)
    if elicitation.status is Status.EXPIRED:
        return replace(elicitation, progress=PAID_OTHERWISE, why=PAID_OTHERWISE)
    return elicitation
