"""Checkouts: what sellers say of the sessions that our attempts began, and what follows from it.

What could go wrong: somebody else's payment taken for ours, one session counted twice, a checkout
that stays open when its question is over. Only a fetch or a verified webhook gets here, each paid
session has one row in the ledger, and whatever ends a question closes what it had open.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeVar
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import replace

from flows import attempts
from flows.checkout import Mismatch, Verdict, kept_of, sessions_of
from flows.elicitation import Completion, Elicitation, Status
from flows.errors import Failed, NotConfigured, NotPossible
from flows.flow import Talk
from flows.gateway import Session, forget_page, heard, judge
from flows.gateways import Gateways
from flows.receipt import Payment
from webapp.acceptance import accept
from webapp.elicitations import Elicitations
from webapp.ledger import Ledger
from webapp.outbound import Outbound
from webapp.rows import Hook, Value

T = TypeVar("T")
ON_ITS_WAY = "a payment is on its way: call again later, and nobody pays twice"


class Checkouts:
    def __init__(
        self,
        *,
        elicitations: Elicitations,
        outbound: Outbound,
        flow: Gateways,
        ledger: Ledger,
    ) -> None:
        self._elicitations = elicitations
        self._outbound = outbound
        self._flow = flow
        self._ledger = ledger
        self._asking = WeakValueDictionary[str, asyncio.Lock]()

    async def ask_seller(self, elicitation: Elicitation, *, collects: bool = True) -> list[Verdict]:
        """Fetch the sessions that may have been paid, and act on what they say.

        `collects`: what the person has approved is taken first.

        Raises Failed if the provider cannot be asked, Mismatch if it tells of something else.
        """
        failure: Failed | Mismatch | None = None
        verdicts: list[Verdict] = []
        for session in sessions_of(elicitation):
            try:
                verdicts.append(await self._fetch(elicitation, session, collects=collects))
            except (Failed, Mismatch) as error:
                failure = failure or error  # another one may be paid
        if failure is not None:
            raise failure
        return verdicts

    async def leave(self, elicitation: Elicitation, *, number: int) -> None:
        """The person came back by a checkout's cancel: unless it is paid, that is a no.

        The cancel of an attempt whose checkout has made way for another one says nothing.
        """
        is_former = any(attempt.number == number for attempt in elicitation.former)
        if Verdict.PENDING in await self.ask_seller(elicitation, collects=False) or is_former:
            return  # the money is on its way, or another tab is at it
        with suppress(NotPossible):
            denied = await self._elicitations.settle(
                elicitation.id, Status.DENIED, why="the person left the checkout"
            )
            await self.close(denied)

    async def close(self, elicitation: Elicitation) -> None:
        """Its question is over: what is still open at the provider ends too.

        Raises as `ask_seller` does.
        """
        with suppress(Failed):  # one whose reply is lost or still to come; it may never have been
            elicitation = await self.reconcile(elicitation)
        failure: Failed | None = None
        for session in sessions_of(elicitation):
            try:
                if not await self._talk(self._flow.close(elicitation, session)):
                    with suppress(Mismatch):
                        await self._fetch(elicitation, session, collects=False)
            except Failed as error:
                failure = failure or error  # the others end all the same
        if failure is not None and not self._is_past(elicitation):
            raise failure
        await self._elicitations.change(elicitation.id, attempts.close)

    def _is_past(self, elicitation: Elicitation) -> bool:
        """Whether the provider has closed every checkout by itself by now."""
        now = self._elicitations.clock().timestamp()
        kept = [kept_of(attempt) for attempt in (elicitation.attempt, *elicitation.former)]
        return all(one is None or one.expires_at < now for one in kept)

    async def reconcile(self, elicitation: Elicitation) -> Elicitation:
        """Learn which sessions are ours where the reply to their making was lost."""
        for attempt in (elicitation.attempt, *elicitation.former):
            known = kept_of(attempt)
            if attempt is not None and known is not None and known.session is None:
                kept = await self._talk(self._flow.repeat(elicitation, attempt))
                number, learned = attempt.number, msgspec.to_builtins(kept)
                elicitation = await self._elicitations.change(
                    elicitation.id,
                    lambda e, n=number, k=learned: attempts.keep(e, number=n, kept=k),  # type: ignore[misc]
                )
        return elicitation

    async def apply(
        self,
        elicitation: Elicitation,
        session: Session,
        verdict: Verdict,
        *,
        hook: Hook | None = None,
    ) -> Completion | None:
        """Act on what a session of this elicitation says; `hook` is kept in the same write."""
        return await self._elicitations.whole(self._apply(elicitation, session, verdict, hook))

    async def _talk(self, talk: Talk[T]) -> T:
        try:
            return await self._outbound.run(talk)
        except NotConfigured as error:
            raise Failed("The payment provider is not set up here any more.") from error

    async def _fetch(self, elicitation: Elicitation, session: str, *, collects: bool) -> Verdict:
        ask = self._flow.collect if collects else self._flow.fetch
        # Two at once would both find it approved, and both take it.
        async with self._asking.setdefault(session, asyncio.Lock()):
            found = await self._talk(ask(elicitation, session))
        verdict = judge(elicitation, found, seller=self._flow.of(elicitation).seller)
        await self.apply(elicitation, found, verdict)
        await self.hear(elicitation, found)
        return verdict

    async def hear(self, elicitation: Elicitation, session: Session) -> None:
        """What became of a payment afterwards, where no event tells."""
        id = self._ledger.id_of(elicitation, session.id)
        payment = await self._ledger.read(elicitation.owner, id)
        now = self._elicitations.clock()
        if payment is not None and heard(payment, session, now=now) != payment:
            await self._ledger.hear(payment, lambda p: heard(p, session, now=now))

    async def _apply(
        self, elicitation: Elicitation, session: Session, verdict: Verdict, hook: Hook | None
    ) -> Completion | None:
        is_first = True
        payment_id = self._ledger.id_of(elicitation, session.id)

        async def with_hook(_: Elicitation) -> Sequence[Value]:
            return await unless_there([hook] if hook is not None else [])

        async def with_payment(changed: Elicitation) -> Sequence[Value]:
            payment = await self._ledger.payment_of(changed, session, id=payment_id)
            return await unless_there([payment, hook] if hook is not None else [payment])

        async def unless_there(rows: Sequence[Payment | Hook]) -> Sequence[Value]:
            # Nearly always it is news: only what has met a conflict is looked up before it.
            nonlocal is_first
            if is_first:
                is_first = False
                return rows
            found = [await self._ledger.unless_there(row) for row in rows]
            new = [row for row in found if row is not None]
            if rows and isinstance(rows[0], Payment) and rows[0] not in new:
                # It was known to be paid: the row of a session is what no second event changes.
                return [replace(row, status="repeated") for row in new if isinstance(row, Hook)]
            return new

        # What became of an earlier try says nothing of the one that is going on, unless it is paid.
        is_latest = session.id == next(iter(sessions_of(elicitation)), None)
        match verdict:
            case Verdict.PAID:
                done = Completion.ALREADY_SETTLED
                if elicitation.status is not Status.ACCEPTED:
                    content = {"payment": payment_id}
                    done = await accept(self._elicitations, elicitation, content, also=with_payment)
                if done is Completion.ALREADY_SETTLED:
                    is_first = False
                    # Paid twice, or told twice: the ledger has each paid session once.
                    await self._elicitations.write_afresh(lambda: with_payment(elicitation))
                return done
            case Verdict.FAILED if is_latest:
                with suppress(NotPossible):
                    await self._elicitations.settle(
                        elicitation.id,
                        Status.FAILED,
                        why="the payment did not arrive",
                        also=with_hook,
                    )
                    return None
            case _:
                await self._note(elicitation, session, verdict, is_latest=is_latest)
        await self._elicitations.write_afresh(lambda: with_hook(elicitation))
        return None

    async def _note(
        self, elicitation: Elicitation, session: Session, verdict: Verdict, *, is_latest: bool
    ) -> None:
        """What settles nothing, and yet is good to know while the question is open."""
        if elicitation.status.is_final:
            return
        if verdict is Verdict.PENDING and is_latest:
            await self._elicitations.change(
                elicitation.id, lambda e: replace(e, progress=ON_ITS_WAY)
            )
        elif verdict is Verdict.EXPIRED:
            await self._elicitations.change(elicitation.id, lambda e: forget_page(e, session.id))
