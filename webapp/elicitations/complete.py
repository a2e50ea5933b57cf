"""`complete_elicitation`: the one door for an answer, in time or late.

OAuth and payment callbacks, webhooks, pages, client forms and trusted code all end here, each with
the proof of what it verified. What could go wrong: a yes that came for nothing, or one that answers
two questions. A late one is kept for the same question; if somebody asks that at the moment, the
newer elicitation makes way, and its waiter gets the answer.
"""

from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace

from flows.elicitation import states
from flows.elicitation.proof import Proof
from flows.elicitation.states import Completion, Elicitation, Json, Status
from flows.elicitation.traits import traits_of
from flows.errors import NotPossible
from webapp.elicitations.service import Also, Elicitations
from webapp.records.values import Value


async def complete_elicitation(
    elicitations: Elicitations,
    id: str,
    answer: Json,
    proof: Proof,
    *,
    also: Also | None = None,
    first: Sequence[Value] | None = None,
    answers_others: str | None = None,
) -> Completion:
    """Settle as accepted, with what `also` gives written beside; goes on when cancelled.

    `first` is tried before `also` is asked, where the answer is in time. `answers_others` is the
    id of what answers every question for the same thing: a late answer does not supersede an open
    question then, it answers that question as well.
    """
    work = _complete(
        elicitations,
        id,
        answer,
        proof,
        also=also or _nothing,
        first=first,
        answers_others=answers_others,
    )
    return await elicitations.whole(work)


async def _complete(
    elicitations: Elicitations,
    id: str,
    answer: Json,
    proof: Proof,
    *,
    also: Also,
    first: Sequence[Value] | None,
    answers_others: str | None,
) -> Completion:
    try:
        ended = await elicitations.accept(id, proof, content=answer, also=also, first=first)
    except KeyError:
        return Completion.UNKNOWN
    except NotPossible:
        pass  # it has ended: what is left is to keep a late yes
    else:
        if ended.status is Status.ACCEPTED:
            return Completion.ACCEPTED
    if not proof.may_be_late:
        return Completion.ALREADY_SETTLED
    return await _keep_late(
        elicitations, id, answer, proof, also=also, answers_others=answers_others
    )


async def _keep_late(
    elicitations: Elicitations,
    id: str,
    answer: Json,
    proof: Proof,
    *,
    also: Also,
    answers_others: str | None,
) -> Completion:
    """Keep a late yes for the same question; a newer elicitation of it makes way."""
    moved: list[Elicitation] = []

    async def kept() -> Sequence[Value]:
        nonlocal moved
        current = await elicitations.get(id)
        if current is None:
            return []
        if not traits_of(current.kind).kept:
            raise NotPossible(status=current.status, wanted=Status.ACCEPTED)
        holder = await elicitations.find(owner=current.owner, join=current.join)
        way: list[Elicitation] = []
        now = elicitations.clock()
        if holder is not None and holder.id != id and states.is_kept(current, now):
            way = _made_way(holder, now=now)
        if way and answers_others is not None and holder is not None:
            way = _answered(holder, answer, proof, by=answers_others, now=now) or way
        is_mine = holder is None or holder.id == id or (bool(way) and not way[0].holds_key)
        late = states.settle_late(current, now=now, content=answer, holds_key=is_mine, proof=proof)
        has_ended = holder is not None and not holder.status.is_final
        moved = [*way, late] if has_ended else [late]
        return [*way, late, *await also(late)]

    try:
        written = await elicitations.write_afresh(kept)
    except NotPossible:
        return Completion.ALREADY_SETTLED
    if written:
        elicitations.have_moved(*moved)
    return Completion.LATE if written else Completion.UNKNOWN


def _made_way(holder: Elicitation, *, now: datetime) -> list[Elicitation]:
    """The holder of a question without its hold on it; empty if it has a better right to it."""
    if holder.status is Status.ACCEPTED:
        return []
    if holder.status.is_final:
        return [states.let_go(holder)]
    if Status.SUPERSEDED not in states.TRANSITIONS[holder.status]:
        return []
    ended = states.settle(holder, Status.SUPERSEDED, now=now)
    return [replace(ended, holds_key=False)]


def _answered(
    holder: Elicitation, answer: Json, proof: Proof, *, by: str, now: datetime
) -> list[Elicitation]:
    """Return the open question as it ends with the same answer; empty if its time is over."""
    if holder.status.is_final:
        return []
    ended = states.accept(holder, proof, now=now, content=answer)
    return [replace(ended, answered_by=by)] if ended.status is Status.ACCEPTED else []


async def _nothing(_: Elicitation) -> Sequence[Value]:
    return ()
