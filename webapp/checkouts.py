"""Checkouts: what sellers say of the sessions that our attempts began, and what follows from it.

What could go wrong: somebody else's payment taken for ours, one session counted twice, a checkout
that stays open when its question is over, money that nobody asks about any more. Only a fetch or a
verified webhook gets here, each paid session has one row in the ledger, whatever ends a question
closes what it had open, and what may still be paid then is asked about until its provider has said.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeVar
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import replace

from flows import attempts
from flows.checkout import Mismatch, Verdict, kept_of, sessions_of
from flows.elicitation import NOT_ARRIVED, Completion, Elicitation, Status
from flows.errors import Failed, NotConfigured, NotPossible
from flows.flow import Talk
from flows.gateway import Session, State, forget_page, heard, judge
from flows.gateways import Gateways
from flows.loose_end import Loose, LooseEnd
from flows.receipt import Payment
from webapp.acceptance import accept
from webapp.elicitations import Also, Elicitations
from webapp.ledger import Ledger
from webapp.loose_ends import PAID_OTHERWISE, LooseEnds
from webapp.outbound import Outbound
from webapp.rows import Hook, Value

T = TypeVar("T")
_log = logging.getLogger(__name__)
ON_ITS_WAY = "a payment is on its way: call again later, and nobody pays twice"
_OTHERWISE = ("amount", "currency", "mode")


class Checkouts:
    def __init__(
        self,
        *,
        elicitations: Elicitations,
        outbound: Outbound,
        flow: Gateways,
        ledger: Ledger,
        loose_ends: LooseEnds,
    ) -> None:
        self._elicitations = elicitations
        self._outbound = outbound
        self._flow = flow
        self._ledger = ledger
        self._loose_ends = loose_ends
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
                found = await self._ask(elicitation, session, collects=collects)
                verdicts.append(await self._heed(elicitation, found))
            except (Failed, Mismatch) as error:
                failure = failure or error  # another one may be paid
        if failure is not None:
            raise failure
        return verdicts

    async def leave(self, elicitation: Elicitation, *, number: int) -> None:
        """The person came back by a checkout's cancel: unless it is paid, that is a no.

        The cancel of an attempt whose checkout has made way for another one says nothing.
        """
        latest = elicitation.attempt
        assert latest is not None
        is_former = any(one.number == number != latest.number for one in elicitation.former)
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
        is_past = self._is_past(elicitation)
        for session in sessions_of(elicitation):
            try:
                if not await self._end(elicitation, session):
                    await self._loose_ends.wait(elicitation, session)
            except Failed as error:
                if not is_past:
                    failure = failure or error  # the others end all the same
                elif self._flow.answers(elicitation):
                    # It cannot be paid any more, and may have been: the last word is its own.
                    await self._loose_ends.wait(elicitation, session)
        if failure is not None:
            raise failure
        await self._elicitations.change(elicitation.id, attempts.close)

    async def ask_again(self, loose: LooseEnd) -> None:
        """Ask about a page whose question is over, and that has not said its last word.

        Goes on to its next turn, later each time, where it still says none.
        """
        elicitation = await self._elicitations.get(loose.elicitation_id)
        if elicitation is None:
            await self._loose_ends.give_up(loose)
            return
        try:
            found = await self._ask(elicitation, loose.session, collects=False)
            with suppress(Mismatch):
                await self._heed(elicitation, found)
            is_over = found.state is not State.PENDING
            if found.state is State.OPEN:
                is_over = await self._end(elicitation, loose.session)
        except Failed as error:
            _log.warning("provider.failed", extra={"id": loose.elicitation_id, "why": str(error)})
            is_over = False
        now = await self._loose_ends.read(loose)
        if now is not None and now.status is Loose.OTHERWISE:
            return  # it was told so just now, and somebody has to look
        if is_over:
            await self._loose_ends.end(elicitation, loose.session)
        else:
            await self._loose_ends.ask_again(loose)

    async def paid_otherwise(
        self, elicitation: Elicitation, session: Session, mismatch: Mismatch
    ) -> None:
        """An authentic session of ours that is not as it was asked, which settles nothing.

        Where it was paid, whoever runs the server has to look, and its page and its tool say so.
        """
        if mismatch.what not in _OTHERWISE or session.id not in sessions_of(elicitation):
            return
        if session.state is State.PENDING and elicitation.status.is_final:
            await self._loose_ends.wait(elicitation, session.id)
        if session.state is State.PAID:
            await self._loose_ends.paid_otherwise(elicitation, session)

    async def _end(self, elicitation: Elicitation, session: str) -> bool:
        """Close its page, or hear why that cannot be; whether it has said its last word.

        Raises Failed while it may be paid and does not say.
        """
        try:
            if await self._talk(self._flow.close(elicitation, session)):
                return True
        except Failed:
            if not self._is_past(elicitation):
                raise
            # It lapses by itself. Whether it was paid before, only an answer says.
        found = await self._ask(elicitation, session, collects=False)
        with suppress(Mismatch):
            await self._heed(elicitation, found)
        return found.state not in (State.PENDING, State.OPEN)

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
                    lambda e, n=number, k=learned: attempts.keep(  # type: ignore[misc]
                        e, number=n, kept=k, is_sent=False
                    ),
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
        done = await self._elicitations.whole(self._apply(elicitation, session, verdict, hook))
        is_plain = not elicitation.status.is_final and elicitation.progress != PAID_OTHERWISE
        if verdict is Verdict.PAID and not is_plain:
            # Somebody asked, or had to look. Only now: till its row is there it is asked about.
            await self._loose_ends.end(elicitation, session.id)
        return done

    async def _talk(self, talk: Talk[T]) -> T:
        try:
            return await self._outbound.run(talk)
        except NotConfigured as error:
            raise Failed("The payment provider is not set up here any more.") from error

    async def _ask(self, elicitation: Elicitation, session: str, *, collects: bool) -> Session:
        ask = self._flow.collect if collects else self._flow.fetch
        # Two at once would both find it approved, and both take it.
        async with self._asking.setdefault(session, asyncio.Lock()):
            return await self._talk(ask(elicitation, session))

    async def _heed(self, elicitation: Elicitation, found: Session) -> Verdict:
        """Act on what was fetched. Raises Mismatch."""
        try:
            verdict = judge(elicitation, found, seller=self._flow.of(elicitation).seller)
        except Mismatch as mismatch:
            await self.paid_otherwise(elicitation, found, mismatch)
            raise
        if verdict is Verdict.PENDING and elicitation.status.is_final:
            await self._loose_ends.wait(elicitation, found.id)
        await self.apply(elicitation, found, verdict)
        await self.hear(elicitation, found)
        return verdict

    async def hear(self, elicitation: Elicitation, session: Session) -> None:
        """What became of a payment afterwards, where no event tells."""
        id = await self._ledger.id_for(elicitation, session)
        payment = await self._ledger.read(elicitation.owner, id)
        now = self._elicitations.clock()
        if payment is not None and heard(payment, session, now=now) != payment:
            await self._ledger.hear(payment, lambda p: heard(p, session, now=now))

    async def _apply(
        self, elicitation: Elicitation, session: Session, verdict: Verdict, hook: Hook | None
    ) -> Completion | None:
        is_first = elicitation.status is not Status.ACCEPTED
        payment_id = await self._ledger.id_for(elicitation, session)

        async def with_hook(changed: Elicitation) -> Sequence[Value]:
            if session.state is State.PAID:  # and gone again: it has its row all the same
                return await with_payment(changed)
            return await unless_there([hook] if hook is not None else [])

        async def with_payment(changed: Elicitation) -> Sequence[Value]:
            id = payment_id if is_first else await self._ledger.id_for(elicitation, session)
            payment = await self._ledger.payment_of(changed, session, id=id)
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
                return await self._accept(elicitation, payment_id, also=with_payment)
            case Verdict.FAILED if is_latest:
                with suppress(NotPossible):
                    await self._elicitations.settle(
                        elicitation.id,
                        Status.FAILED,
                        why=NOT_ARRIVED,
                        also=with_hook,
                    )
                    return None
            case _:
                await self._note(elicitation, session, verdict, is_latest=is_latest)
        await self._elicitations.write_afresh(lambda: with_hook(elicitation))
        return None

    async def _accept(self, elicitation: Elicitation, payment_id: str, *, also: Also) -> Completion:
        if elicitation.status is not Status.ACCEPTED:
            content = {"payment": payment_id}
            done = await accept(self._elicitations, elicitation, content, also=also)
            if done is not Completion.ALREADY_SETTLED:
                return done
        # Paid twice, or told twice: the ledger has each paid session once.
        await self._elicitations.write_afresh(lambda: also(elicitation))
        return Completion.ALREADY_SETTLED

    async def _note(
        self, elicitation: Elicitation, session: Session, verdict: Verdict, *, is_latest: bool
    ) -> None:
        """What settles nothing, and yet is good to know while the question is open."""
        if elicitation.status.is_final:
            return
        if verdict is Verdict.PENDING and is_latest and elicitation.progress != PAID_OTHERWISE:
            await self._elicitations.change(
                elicitation.id, lambda e: replace(e, progress=ON_ITS_WAY)
            )
        elif verdict is Verdict.EXPIRED:
            await self._elicitations.change(elicitation.id, lambda e: forget_page(e, session.id))
