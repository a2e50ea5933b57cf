"""`complete_elicitation`: the only function that accepts an answer, in time or late.

OAuth and payment callbacks, webhooks, pages, client forms and trusted code all call this function,
each with the proof of what it verified. Risks: an answer is lost, or answers two questions. So a
late answer is stored in its own elicitation. If the same question has been asked again in the
meantime, the newer elicitation is superseded, and its waiter gets the late answer.
"""

from collections.abc import Sequence
from datetime import datetime
from functools import partial

from msgspec.structs import replace

from flows.elicitation import states
from flows.elicitation.states import Completion, Elicitation, Json, Status
from flows.elicitation.traits import Proof, traits_of
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
    """Accept an answer, and store the values of `also` in the same write.

    Cancelling the caller does not stop the work. If the answer is in time, the first attempt to
    write uses the values `first`. After a conflict, `also` is called for new values.
    `answers_others` is the id of a permanent purchase, which answers every question about the same
    product: a late answer then also answers the open question. Without `answers_others`, the open
    question is superseded.
    """
    accept = partial(states.accept, proof=proof, content=answer)
    more = also or _nothing

    async def rows(ended: Elicitation) -> Sequence[Value]:
        nonlocal first
        if ended.status is not Status.ACCEPTED:
            return ()
        known, first = first, None
        return await more(ended) if known is None else known

    async def complete() -> Completion:
        try:
            ended = await elicitations.end_by(id, accept, also=rows)
        except KeyError:
            return Completion.UNKNOWN
        except NotPossible:
            pass  # the elicitation has ended, but a late answer may still be stored
        else:
            if ended.status is Status.ACCEPTED:
                return Completion.ACCEPTED
        if not proof.may_be_late:
            return Completion.ALREADY_SETTLED
        return await _keep_late(
            elicitations, id, answer, proof, also=more, answers_others=answers_others
        )

    return await elicitations.run_to_completion(complete())


async def _keep_late(
    elicitations: Elicitations,
    id: str,
    answer: Json,
    proof: Proof,
    *,
    also: Also,
    answers_others: str | None,
) -> Completion:
    """Store an answer that arrived after its elicitation ended.

    Supersede a newer elicitation of the same question. With `answers_others`, answer the newer
    elicitation too.
    """
    moved: list[Elicitation] = []

    async def rows() -> Sequence[Value]:
        nonlocal moved
        current = await elicitations.get(id)
        if current is None:
            return []
        if not traits_of(current.kind).stored_for:
            raise NotPossible(status=current.status, wanted=Status.ACCEPTED)
        holder = await elicitations.holder(Elicitation, owner=current.owner, key=current.dedupe_key)
        superseded: list[Elicitation] = []
        now = elicitations.clock()
        if holder is not None and holder.id != id and states.can_still_be_stored(current, now):
            superseded = _superseded(holder, now=now)
        if superseded and answers_others is not None and holder is not None:
            superseded = _answered(holder, answer, proof, by=answers_others, now=now) or superseded
        is_mine = (
            holder is None or holder.id == id or (bool(superseded) and not superseded[0].holds_key)
        )
        late = states.settle_late(current, now=now, content=answer, holds_key=is_mine, proof=proof)
        has_ended = holder is not None and not holder.status.is_final
        moved = [*superseded, late] if has_ended else [late]
        return [*superseded, late, *await also(late)]

    try:
        written = await elicitations.write_rebuilt(rows)
    except NotPossible:
        return Completion.ALREADY_SETTLED
    if written:
        elicitations.have_moved(*moved)
    return Completion.LATE if written else Completion.UNKNOWN


def _superseded(holder: Elicitation, *, now: datetime) -> list[Elicitation]:
    """Return the newer elicitation, superseded and without the question's key.

    The list is empty if the newer elicitation must not be superseded.
    """
    if holder.status is Status.ACCEPTED:
        return []
    if holder.status.is_final:
        return [states.release_key(holder)]
    if Status.SUPERSEDED not in states.TRANSITIONS[holder.status]:
        return []
    ended = states.settle(holder, Status.SUPERSEDED, now=now)
    return [replace(ended, holds_key=False)]


def _answered(
    holder: Elicitation, answer: Json, proof: Proof, *, by: str, now: datetime
) -> list[Elicitation]:
    """Return the newer elicitation, accepted with the same answer.

    The list is empty if the newer elicitation has ended or expired.
    """
    if holder.status.is_final:
        return []
    ended = states.accept(holder, proof, now=now, content=answer)
    return [replace(ended, answered_by=by)] if ended.status is Status.ACCEPTED else []


async def _nothing(_: Elicitation) -> Sequence[Value]:
    return ()
