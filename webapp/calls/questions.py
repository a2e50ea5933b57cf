"""The elicitations behind a request's questions: one per question of an owner.

A repeated question joins the existing elicitation, and a new question starts one. The elicitation
is stored and the waiter is registered before anything leaves the process and before the author's
own function runs, because a reply may come back at once. The address that the author's function
returns is stored before the link is shown. If the process dies after the question was stored and
before the address was, the next identical call runs the function again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec.structs import replace

from flows.elicitation import run as runs
from flows.elicitation import states
from flows.elicitation.run import AskedStep, Run, Step
from flows.elicitation.states import DOES_NOT_FIT, INTERRUPTED, Asked, Elicitation, Status
from flows.elicitation.tool_call import DescribedTool, ToolCall
from flows.elicitation.traits import traits_of
from flows.errors import CallOver, InvalidQuestion
from flows.kinds.url import Visit
from flows.question import Question
from flows.requests import is_for_good
from flows.shown import must_be_tool_name
from webapp.calls.presenter import PresentedQuestion, Prompts
from webapp.calls.run import OPEN_AT_LEAST, CurrentRun
from webapp.elicitations.aliases import give_alias, must_be_alias
from webapp.elicitations.links import Links
from webapp.elicitations.question_kind import AskedBy
from webapp.elicitations.retry import TRIES_AT_MOST, Contended, pause
from webapp.elicitations.service import Elicitations
from webapp.elicitations.waiters import Waiter
from webapp.kinds.gate import still_applies
from webapp.kinds.quotas import Room
from webapp.kinds.registry import Kinds
from webapp.stores import Conflict
from webapp.telemetry.work import note, traceparent

if TYPE_CHECKING:
    from webapp.records.values import Value

SAYS_CHARACTERS = 80

# Called before each question. It raises if the step cannot be asked together with the run's earlier
# questions.
Check: TypeAlias = Callable[[Run, Step], None]


class Questions:
    """The elicitations of one request's questions."""

    def __init__(
        self,
        *,
        elicitations: Elicitations,
        links: Links,
        kinds: Kinds,
        run: CurrentRun,
        tool: ToolCall,
        client_id: str,
        leg: str,
        is_by_code: bool,
        is_for_user: bool,
        is_of_task: bool,
        asker: str | None,
        rounds: tuple[str, ...],
        has_ended: Callable[[], bool],
        check: Check,
    ) -> None:
        self._elicitations = elicitations
        self._links = links
        self._kinds = kinds
        self._run = run
        self._tool = tool
        self._client_id = client_id
        self._leg = leg
        self._is_by_code = is_by_code
        self._is_for_user = is_for_user
        self._is_of_task = is_of_task
        self._asker = asker
        self._rounds = rounds
        self._has_ended = has_ended
        self._lock = asyncio.Lock()
        self._fresh: str | None = None  # id of an elicitation that is started but not announced yet
        self._check = check

    async def start_or_join(
        self, question: Question[Any], step: Step, waiter: Waiter, *, is_ordered: bool
    ) -> Elicitation:
        """Find, join or start the elicitation at this place, and return it.

        `waiter` is registered first, so that it receives the elicitation's changes.
        """
        if question.elicitation_id is not None:
            must_be_alias(question.elicitation_id)
        async with self._lock, self._kinds.quotas.turn(self._run.value.owner):
            if self._has_ended():  # another question ended the request: do not start a new one
                raise CallOver
            current = await self._start_or_join(question, step, waiter, is_ordered=is_ordered)
            note(current)
            if question.elicitation_id is not None:
                await self._name(question.elicitation_id, current)
            if isinstance(question.request, Visit):
                current = await self._addressed(question.request, current)
            self._kinds.rules.know(current, question.request)
            if current.id == self._fresh:
                self._fresh = None
                if self._elicitations.plugins.hear_starts:
                    await self._elicitations.plugins.started(current)
            return current

    def shown(
        self, current: Elicitation, step: Step, *, before: AskedStep | None, group: Prompts
    ) -> PresentedQuestion:
        """Return the question for a presenter. `before` is the run's earlier step at this place."""
        asked = self._run.value.asked
        known = None if before is None else before.elicitation_id
        return PresentedQuestion(
            elicitation=current,
            link=cache(partial(self._links.of, current, now=self._elicitations.clock())),
            index=next(i for i, asking in enumerate(asked) if asking.place == step),
            is_again=known == current.id,
            replaces=known if known != current.id else None,
            group=group,
            arguments=self._tool.arguments,
        )

    async def take_over(self) -> None:
        """Move the wait for all questions of the run to this request.

        An older request of the run that claimed an outcome and waits for a later question ends.
        """
        await self._run.reload()
        await self._elicitations.each(
            [asking.elicitation_id for asking in self._run.value.asked],
            lambda e: states.join(e, leg=self._leg, run=self._run.value.id),
        )

    async def _start_or_join(
        self, question: Question[Any], step: Step, waiter: Waiter, *, is_ordered: bool
    ) -> Elicitation:
        join = self._join_key(question, step)
        worded: Question[Any] | None = None
        for number in range(TRIES_AT_MOST):
            before = run = self._run.value
            self._check(run, step)
            known = run.at(step)
            current, previous = await self._look(run, known, join)
            changed: list[Value] = []
            superseded: Sequence[Elicitation] = ()
            if current is None:
                admit = partial(
                    self._kinds.quotas.room, run, client_id=self._client_id, tool=self._tool
                )
                if worded is None and self._elicitations.plugins.hear_asking:
                    worded, room = await self._worded(question, run, admit)
                else:
                    room = await admit()
                asked = question if worded is None else worded
                current = await self._start(asked, step, join, run, previous)
                superseded = room.superseded
                changed += [current, *room.rows_for(current), *map(states.let_go, previous)]
            elif not current.status.is_final and current.waiter != self._leg:
                current = self._joined(question, current, run)
                changed.append(current)
            if known is None or known.elicitation_id != current.id:
                asking = AskedStep(
                    place=step,
                    elicitation_id=current.id,
                    is_ordered=is_ordered,
                    says=question.message[:SAYS_CHARACTERS],
                    after=self._rounds,
                )
                run = runs.ask(run, asking, open_until=current.expires_at + OPEN_AT_LEAST)
                changed.append(run)
            waiter.run = run.id  # an identical call may have stored its run first
            self._elicitations.waiters.add(waiter, run.id)
            self._elicitations.waiters.add(waiter, current.id)
            if not changed:
                return current
            try:
                await self._elicitations.write(*changed)
            except Conflict:
                await pause(number)
                await self._run.reload()
                continue
            self._elicitations.have_moved(*superseded)
            if run is not before:
                self._run.value = replace(run, version=run.version + 1)
            if changed[0] is current:
                return replace(current, version=current.version + 1)
            return current
        raise Contended(str(step))

    def _joined(self, question: Question[Any], current: Elicitation, run: Run) -> Elicitation:
        is_anothers = is_for_good(question.request) and current.run != run.id
        joined = states.join(current, leg=self._leg, run=run.id, is_of_task=self._is_of_task)
        # The other call keeps waiting: one answer serves both calls.
        return replace(joined, is_shared=True) if is_anothers else joined

    async def _worded(
        self, question: Question[Any], run: Run, admit: Callable[[], Awaitable[Room]]
    ) -> tuple[Question[Any], Room]:
        """Return the question as changed by plugins, once for all attempts. Raises HookRefused."""
        return await self._elicitations.plugins.asking(
            question,
            tool=self._tool,
            owner=run.owner,
            is_for_user=self._is_for_user,
            admit=admit,
        )

    async def _name(self, alias: str, current: Elicitation) -> None:
        """Give the elicitation its alias, after its write and before its link is shown."""
        try:
            await give_alias(self._elicitations, alias, current)
        except InvalidQuestion:
            await self._elicitations.end(current, Status.CANCELLED)
            raise

    async def _addressed(self, visit: Visit, current: Elicitation) -> Elicitation:
        """Call the author's function for the visit's address, if the elicitation has no address.

        Return the elicitation with the address. The elicitation may have ended when the function
        returns, because a reply to the function's own request can come at once. If the function
        raises, end the question as cancelled and propagate the exception; an identical call then
        asks again.
        """
        if current.asked.url is not None or current.status.is_final:
            return current
        link = self._links.for_author(
            elicitation_id=current.id,
            expires_at=current.expires_at,
            now=self._elicitations.clock(),
        )
        try:
            url = visit.address(link)
        except Exception:
            await self._elicitations.end(current, Status.CANCELLED)
            raise
        return await self._elicitations.change(current.id, lambda e: states.lead_to(e, url))

    async def _look(
        self, run: Run, known: AskedStep | None, join: str
    ) -> tuple[Elicitation | None, Sequence[Elicitation]]:
        """Return the elicitation to join, or None and the ended ones that own its key."""
        current = None if known is None else await self._elicitations.get(known.elicitation_id)
        if current is not None and not self._is_still_asked(current):
            current = None
        is_answered = current is not None and current.status is Status.ACCEPTED
        if current is not None and (current.holds_key or not is_answered):
            return current, ()
        held = await self._elicitations.find(owner=run.owner, join=join)
        # An elicitation that was accepted late does not count if another accepted elicitation
        # owns the key.
        if current is not None and (held is None or held.status is not Status.ACCEPTED):
            return current, ()
        if held is None:
            return None, ()
        if not held.status.is_final and self._elicitations.clock() >= held.expires_at:
            held = await self._elicitations.end(
                held, Status.EXPIRED
            )  # the sweeper has not come to it yet
        now = self._elicitations.clock()
        is_there = held.status is Status.ACCEPTED and now < held.joined_until
        if not held.status.is_final or is_there:
            return held, ()
        return None, (held,)

    def _is_still_asked(self, current: Elicitation) -> bool:
        """Return True if the run's earlier question is valid and need not be asked again."""
        if current.delivered_at is not None:
            return False
        if not (self._run.is_continued or current.status.is_final):
            return self._elicitations.clock() < current.expires_at
        if current.status is Status.ACCEPTED:
            # In all other cases the content of the accepted question is already erased.
            return still_applies(current, self._elicitations) or self._is_stored(
                current, Status.ACCEPTED
            )
        return (
            self._run.is_continued
            or not current.status.is_final
            or self._is_stored(current, Status.DECLINED, Status.DENIED)
            or (
                current.why not in (INTERRUPTED, DOES_NOT_FIT)
                and self._is_stored(current, Status.FAILED)
            )
        )

    def _is_stored(self, held: Elicitation, *statuses: Status) -> bool:
        return held.status in statuses and self._elicitations.clock() < held.stored_until

    def _join_key(self, question: Question[Any], step: Step) -> str:
        pepper, tool = self._elicitations.owners.pepper, self._tool
        if is_for_good(question.request):
            # All calls of all clients share one question about a permanent purchase.
            parts = ("for good", tool.tool, step.kind, step.digest)
            return pepper.tag("join", tool.server, *parts, size=18)
        about = (
            ("named", tool.tool, question.key, step.kind, step.digest)
            if question.key is not None
            else ("placed", tool.tool, tool.arguments, str(step))
        )
        return pepper.tag(
            "join", tool.server, self._client_id, *about, *tool.version_parts, size=18
        )

    def _described(self, request: Any) -> DescribedTool | None:
        """Return the tool in its author's words: all of them only where a person approves."""
        called = self._tool.described
        if traits_of(request.kind).page in ("confirm", "decision"):
            return getattr(request, "described", None) or called
        return None if called is None else called.titled

    async def _start(
        self,
        question: Question[Any],
        step: Step,
        join: str,
        run: Run,
        previous: Sequence[Elicitation],
    ) -> Elicitation:
        request = question.request
        must_be_tool_name(self._tool.tool)
        id = self._fresh = self._elicitations.new_id(run.owner)
        now = self._elicitations.clock()
        expires_at = now + self._kinds.quotas.timeout(question, self._tool)
        asked = Asked(
            server=self._tool.server,
            tool=self._tool.tool,
            client=self._tool.client,
            message=question.message,
            digest=step.digest,
            version=self._tool.version,
            client_id=self._tool.client_id,
            client_apart=self._tool.client_apart,
            server_title=self._tool.server_title,
            client_title=self._tool.client_title,
            described=self._described(request),
        )
        link = self._links.for_author(elicitation_id=id, expires_at=expires_at, now=now)
        by = AskedBy(
            owner=run.owner,
            server=self._tool.server,
            tool=self._tool.tool,
            version=self._tool.version,
            client=self._tool.calling_client,
            asker=self._asker,
        )
        asked = await self._kinds[request.kind].asked(request, asked, link=link, by=by)
        started = Elicitation(
            id=id,
            owner=run.owner,
            kind=request.kind,
            asked=asked,
            join=join,
            created_at=now,
            expires_at=expires_at,
            waiter=self._leg,
            run=run.id,
            is_by_code=self._is_by_code,
            is_for_page=any(one.why == DOES_NOT_FIT and now < one.expires_at for one in previous),
            is_for_user=self._is_for_user,
            user=self._asker if self._is_for_user else None,
            is_of_task=self._is_of_task,
            trace=traceparent(),
        )
        await self._kinds.decisions.announce(started)
        return started
