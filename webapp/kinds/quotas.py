"""Quotas: the limits of open questions and their timeouts, and which questions are superseded.

Risks: two processes each start a question where only one may be open. The open questions of an
owner are therefore listed in one row, which is written together with each new question. If two
processes read the same row, one write wins and the other process decides again. The row lists the
questions that were open when it was written. The current status is in each question's own row.

The total of open questions is counted from the owners' rows, at most every ten seconds, and less
often the more questions there are. Each process adds the questions that it starts in between. The
total limit can therefore be exceeded by the questions that other processes start between two
counts. The limit of one owner cannot be exceeded.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from weakref import WeakValueDictionary

from msgspec.structs import replace

from flows.elicitation import states
from flows.elicitation.run import Run
from flows.elicitation.states import TRANSITIONS, Elicitation, Status
from flows.elicitation.tool_call import ToolCall
from flows.elicitation.traits import traits_of
from flows.errors import NotSupported, TooManyPending
from flows.question import Question
from webapp.elicitations.service import Elicitations
from webapp.records.values import KINDS, Open, Standing, Value
from webapp.settings.quotas import PolicySettings
from webapp.stores import Record

BETWEEN_COUNTS = timedelta(seconds=10)
# The time until the next count grows by this much for each counted question: 10 s for a hundred
# thousand questions.
LONGER_FOR_EACH = timedelta(milliseconds=0.1)
NO_FORM = (
    "the client cannot show the form, and this server allows such questions only in the client"
)
_ROWS_AT_ONCE = 1000
_SESSION_BYTES = 9
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The permission for one more question: the questions it supersedes, and the owner's row."""

    superseded: tuple[Elicitation, ...]
    standing: Standing
    session: str

    def rows_for(self, asked: Elicitation) -> list[Value]:
        """Return the records to write together with the question."""
        one = Open(id=asked.id, session=self.session, expires_at=asked.expires_at)
        there = (*self.standing.open, one)
        standing = replace(
            self.standing, open=there, erase_at=max(other.expires_at for other in there)
        )
        return [*self.superseded, standing]


class Quotas:
    """The quotas of a process, built with the service."""

    def __init__(self, *, elicitations: Elicitations, settings: PolicySettings) -> None:
        self._elicitations = elicitations
        self._settings = settings
        self._turns = WeakValueDictionary[str, asyncio.Lock]()
        self._total = _Total(elicitations, limit=settings.pending_at_most)
        # the tools for which a timeout above the maximum was already logged
        self._cut = set[tuple[str, str]]()

    @property
    def gives_tasks(self) -> bool:
        """True if clients may use tasks."""
        return self._settings.tasks

    def is_for_task(self, asked: Elicitation) -> bool:
        """Return True if the question stays open so long that the call should become a task."""
        return asked.expires_at - asked.created_at >= self._settings.tasks_from

    def is_for_client_only(self, kind: str) -> bool:
        """Return True if only the client's own form may ask this kind."""
        traits = traits_of(kind)
        is_plain_form = traits.fits_client_form and not traits.is_gate
        return is_plain_form and not self._settings.forms_on_pages

    def turn(self, owner: str) -> asyncio.Lock:
        """Return the owner's lock.

        Hold the lock while a question starts, to avoid write conflicts between calls.
        """
        return self._turns.setdefault(owner, asyncio.Lock())

    def must_have_form(self, kind: str, *, in_client: bool) -> None:
        """Raise NotSupported if only the client's form may ask this kind and it has no form."""
        if self.is_for_client_only(kind) and not in_client:
            raise NotSupported("form")

    def timeout(self, question: Question[Any], tool: ToolCall) -> timedelta:
        """Return how long the question stays open: its timeout, or the operator's maximum.

        A timeout that is cut to the maximum is logged once for each tool.
        """
        longest = self._settings.timeout_at_most
        if question.timeout <= longest:
            return question.timeout
        if (tool.server, tool.tool) not in self._cut:
            self._cut.add((tool.server, tool.tool))
            _log.warning(
                "elicitation.timeout_cut",
                extra={
                    "tool": tool.tool,
                    "asked_seconds": question.timeout.total_seconds(),
                    "seconds": longest.total_seconds(),
                },
            )
        return longest

    async def standing(self, owner: str) -> Standing:
        """Read the owner's row. Leave out the questions that are known to have ended."""
        fresh = Standing(id=f"{owner}standing", owner=owner)
        found = await self._elicitations.read(Standing, owner=owner, id=fresh.id) or fresh
        now, has_ended = self._elicitations.clock(), self._elicitations.rows.recent.has_ended
        there = [one for one in found.open if now < one.expires_at and not has_ended(one.id)]
        return replace(found, open=tuple(there))

    async def admit(
        self, run: Run, *, client_id: str, tool: ToolCall, standing: Standing | None = None
    ) -> Admission:
        """Check the quotas for another question of this run. Raises TooManyPending.

        `standing` is the owner's row if the caller has just read it.
        """
        pepper = self._elicitations.owners.pepper
        session = pepper.tag("session", client_id, tool.client or "", size=_SESSION_BYTES)
        standing = standing or await self.standing(run.owner)
        now, there = self._elicitations.clock(), list(standing.open)
        superseded: list[Elicitation] = []
        if self._settings.one_per_session:
            superseded = await self._superseded(there, run, session, now=now)
            gone = {one.id for one in superseded}
            there = [one for one in there if one.id not in gone]
        limit = self._settings.pending_per_owner
        if len(there) >= limit:
            there = [one for one in there if await self._is_open(one)]
        if len(there) >= limit:
            raise TooManyPending(limit=limit)
        await self._total.add_one()
        return Admission(
            superseded=tuple(superseded),
            standing=replace(standing, open=tuple(there)),
            session=session,
        )

    async def _superseded(
        self, there: Sequence[Open], run: Run, session: str, *, now: datetime
    ) -> list[Elicitation]:
        """Return copies of the questions of the session's other runs, with the status superseded.

        Nothing is written. Questions that cannot be superseded in their current status (for example
        during an exchange with a provider) are left out.
        """
        own = {asking.elicitation_id for asking in run.asked}
        ended: list[Elicitation] = []
        for one in there:
            if one.session != session or one.id in own:
                continue
            current = await self._elicitations.get(one.id)
            if current is not None and Status.SUPERSEDED in TRANSITIONS[current.status]:
                ended.append(states.settle(current, Status.SUPERSEDED, now=now))
        return ended

    async def _is_open(self, one: Open) -> bool:
        current = await self._elicitations.get(one.id)
        return current is not None and not current.status.is_final


class _Total:
    """The number of open questions in total, as far as this process knows."""

    def __init__(self, elicitations: Elicitations, *, limit: int) -> None:
        self._elicitations = elicitations
        self._limit = limit
        self._count = 0
        self._again_at: datetime | None = None
        self._exactly_again_at: datetime | None = None
        self._lock = asyncio.Lock()

    async def add_one(self) -> None:
        """Count one more question. Raises TooManyPending."""
        async with self._lock:
            now = self._elicitations.clock()
            if self._again_at is None or now >= self._again_at:
                self._count = await self._at_most()
                self._again_at = now + BETWEEN_COUNTS + LONGER_FOR_EACH * self._count
            # The owners' rows still list some questions that have ended, so count the open
            # questions themselves before refusing.
            exactly = self._exactly_again_at
            if self._count >= self._limit and (exactly is None or now >= exactly):
                self._count = await self._exact(now)
                self._again_at = now + BETWEEN_COUNTS + LONGER_FOR_EACH * self._count
                self._exactly_again_at = now + LONGER_FOR_EACH * self._count
            if self._count >= self._limit:
                raise TooManyPending(limit=self._limit, is_in_all=True)
            self._count += 1

    async def _at_most(self) -> int:
        """Return the total of all owners' rows. The status of a row is its number of questions."""
        total, after = 0, None
        while True:
            page = await self._page(KINDS[Standing], after=after)
            total += sum(int(record.status) for record in page)
            if len(page) < _ROWS_AT_ONCE:
                return total
            after = page[-1].id
            await asyncio.sleep(0)

    async def _exact(self, now: datetime) -> int:
        """Return the number of open questions, counted up to about the limit."""
        total = 0
        for status in Status:
            after = None
            while not status.is_final and total < self._limit:
                page = await self._page(KINDS[Elicitation], status=status, after=after)
                total += sum(record.due_at is None or record.due_at > now for record in page)
                if len(page) < _ROWS_AT_ONCE:
                    break
                after = page[-1].id
                await asyncio.sleep(0)
        return total

    async def _page(
        self, kind: str, *, status: str | None = None, after: str | None
    ) -> Sequence[Record]:
        store = self._elicitations.store
        return await store.list(kind, status=status, after=after, limit=_ROWS_AT_ONCE)
