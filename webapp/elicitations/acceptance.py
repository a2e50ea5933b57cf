"""Acceptance: a yes, in time or late, and what is written with it.

What could go wrong: a yes that came for nothing, or one that answers two questions. A late one is
kept for the same question; if somebody asks that at the moment, the newer elicitation makes way,
and its waiter gets the answer.
"""

from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace

from flows.elicitation import states
from flows.elicitation.states import Completion, Elicitation, Json, Status
from flows.errors import NotPossible
from webapp.elicitations.service import Also, Elicitations
from webapp.records.rows import Value


async def accept(
    elicitations: Elicitations, current: Elicitation, content: Json, *, also: Also | None = None
) -> Completion:
    """Settle as accepted; whoever calls this goes on to its end when cancelled."""
    also = also or _nothing
    try:
        if not current.status.is_final and _is_over(current, elicitations.clock()):
            await elicitations.settle(current.id, Status.EXPIRED)
        else:
            await elicitations.settle(current.id, Status.ACCEPTED, content=content, also=also)
            return Completion.ACCEPTED
    except NotPossible:
        pass  # it has ended: what is left is to keep a late yes
    return await _accept_late(elicitations, current.id, content, also=also)


async def _accept_late(
    elicitations: Elicitations, id: str, content: Json, *, also: Also
) -> Completion:
    """Keep a late yes for the same question; a newer elicitation of it makes way."""

    async def kept() -> Sequence[Value]:
        current = await elicitations.get(id)
        if current is None:
            return []
        holder = await elicitations.find(owner=current.owner, join=current.join)
        moved: list[Elicitation] = []
        if holder is not None and holder.id != id and states.is_kept(current, elicitations.clock()):
            moved = _made_way(holder, now=elicitations.clock())
        is_mine = holder is None or holder.id == id or bool(moved)
        late = states.settle_late(
            current, now=elicitations.clock(), content=content, holds_key=is_mine
        )
        return [*moved, late, *await also(late)]

    try:
        written = await elicitations.write_afresh(kept)
    except NotPossible:
        return Completion.ALREADY_SETTLED
    return Completion.LATE if written else Completion.UNKNOWN


def _is_over(current: Elicitation, now: datetime) -> bool:
    # An exchange that began in time may end a little later.
    return current.status is not Status.EXCHANGING and now >= current.expires_at


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


async def _nothing(_: Elicitation) -> Sequence[Value]:
    return ()
