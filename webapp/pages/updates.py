"""Updates of a question's page: the status that it listens to, and the next question of its call.

The page contains the status that it shows, and the live route sends the current status. If the two
differ, the page reloads. This module computes both, so that a page that shows the current state
does not reload.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from flows.elicitation.run import Run
from flows.elicitation.states import Elicitation, Status
from flows.elicitation.traits import traits_of
from flows.payments.events import ON_ITS_WAY
from flows.payments.session import is_paid_otherwise
from webapp.pages.views import Updates
from webapp.service import Service

# How long a page of an accepted question waits for the assistant, which may never continue.
LISTENS_FOR: Final = timedelta(minutes=10)
_STEPS_AT_MOST: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The part of a page that can change. `next` is an open question of the same call."""

    status: str
    has_continued: bool = False
    step: int = 1
    steps: int = 1
    next: Elicitation | None = None
    ends: bool = False  # the state does not change any more


async def state_of(service: Service, elicitation: Elicitation) -> State:
    """Return the state of a question, with the other questions of its call if it is accepted."""
    if elicitation.status is not Status.ACCEPTED:
        is_final = elicitation.status.is_final
        status = elicitation.status if is_final else elicitation.progress or elicitation.status
        return State(status=status, ends=is_final and not is_paid_later(elicitation.progress))
    has_continued = elicitation.take is not None or elicitation.delivered_at is not None
    run, step, steps, after = await _steps(service, elicitation)
    has_finished = has_continued and (run is None or run.finished_at is not None)
    until = (elicitation.settled_at or elicitation.created_at) + LISTENS_FOR
    return State(
        status=f"accepted{' continued' if has_continued else ''}{' next' if after else ''}",
        has_continued=has_continued,
        step=step,
        steps=steps,
        next=after,
        ends=has_finished or service.clock() >= until,
    )


async def updates_of(service: Service, elicitation: Elicitation, *, here: str) -> Updates:
    """Return the fields that the page at `here` needs for updates and for the next question."""
    state = await state_of(service, elicitation)
    links, now = service.links, service.clock()
    return Updates(
        url=None if state.ends else f"{here}/live",
        here=here,
        status=state.status,
        has_continued=state.has_continued,
        step=state.step,
        steps=state.steps,
        next_url=None if state.next is None else links.of(state.next, now=now),
        next_kind=None if state.next is None else traits_of(state.next.kind).page,
    )


def is_paid_later(progress: str | None) -> bool:
    """Return True if the payment is on its way, or differs from what was asked for."""
    return progress == ON_ITS_WAY or is_paid_otherwise(progress)


async def _steps(
    service: Service, elicitation: Elicitation
) -> tuple[Run | None, int, int, Elicitation | None]:
    """Return the run, this question's place, the number of questions, and another open question."""
    rows, owner = service.elicitations, elicitation.owner
    run = await rows.read(Run, owner=owner, id=elicitation.run) if elicitation.run else None
    asked = () if run is None else run.asked
    ids = list(dict.fromkeys(step.elicitation_id for step in asked))[:_STEPS_AT_MOST]
    if elicitation.id not in ids:
        return run, 1, 1, None
    for id in ids:
        other = None if id == elicitation.id else await rows.get(id)
        if (
            other is not None
            and other.owner == owner
            and not other.status.is_final
            and service.clock() < other.expires_at
            and not traits_of(other.kind).is_anothers
        ):
            return run, ids.index(elicitation.id) + 1, len(ids), other
    return run, ids.index(elicitation.id) + 1, len(ids), None
