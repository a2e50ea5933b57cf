"""Completing a visit (the kind `url`), in time or late.

What could go wrong: a yes that came for nothing, or one that answers two questions. A late one is
kept for the same question; if somebody asks that at the moment, the newer elicitation makes way,
and its waiter gets the answer.
"""

from datetime import datetime

from msgspec.structs import replace

from flows import elicitation as states
from flows.elicitation import Completion, Elicitation, Json, Status
from flows.errors import NotPossible
from webapp.elicitations import TRIES_AT_MOST, Contended, Elicitations
from webapp.stores import Conflict


async def complete_visit(elicitations: Elicitations, id: str, content: Json) -> Completion:
    """Settle as accepted what trusted code says is done; `id` may be one of the author's own.

    Goes on to its end when cancelled. Raises InvalidQuestion for content that is no JSON, or too
    large.
    """
    kept = states.checked_content(content)
    return await elicitations.whole(_complete(elicitations, id, kept))


async def _complete(elicitations: Elicitations, id: str, content: Json) -> Completion:
    current = await elicitations.get(id) or await elicitations.aliased(id)
    if current is None or current.kind != "url":
        return Completion.UNKNOWN
    try:
        if not current.status.is_final and elicitations.clock() >= current.expires_at:
            await elicitations.settle(current.id, Status.EXPIRED)
        else:
            await elicitations.settle(current.id, Status.ACCEPTED, content=content)
            return Completion.ACCEPTED
    except NotPossible:
        pass  # it has ended: what is left is to keep a late yes
    return await _complete_late(elicitations, current.id, content)


async def _complete_late(elicitations: Elicitations, id: str, content: Json) -> Completion:
    """Keep a late yes for the same question; a newer elicitation of it makes way."""
    for _ in range(TRIES_AT_MOST):
        current = await elicitations.get(id)
        if current is None:
            return Completion.UNKNOWN
        holder = await elicitations.find(owner=current.owner, join=current.join)
        moved: list[Elicitation] = []
        if holder is not None and holder.id != id and states.is_kept(current, elicitations.clock()):
            moved = _made_way(holder, now=elicitations.clock())
        is_mine = holder is None or holder.id == id or bool(moved)
        try:
            late = states.settle_late(
                current, now=elicitations.clock(), content=content, holds_key=is_mine
            )
        except NotPossible:
            return Completion.ALREADY_SETTLED
        try:
            await elicitations.write(*moved, late)
        except Conflict:
            continue
        return Completion.LATE
    raise Contended(id)


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
