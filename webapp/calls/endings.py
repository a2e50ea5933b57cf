"""The callbacks of `on_end`: registered by a tool, and run once when its call has ended for good.

The write that ends a run also makes its callbacks due, whichever code ends the run: the delivery
of the result, a cancelled task, the sweeper. A process then claims the callback by compare-and-set,
renews the claim while the callback runs, and stores that the callback has run. A callback that
raises is due again later.

Risks: the process dies after the callback has run and before this is stored. The callback then runs
again, with the same idempotency key. Another risk is a function with the same name that belongs to
another server. A process therefore runs only callbacks of the servers that it serves.
"""

import asyncio
import contextvars
import inspect
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from flows import question as questions
from flows.elicitation import ending as endings
from flows.elicitation import run as runs
from flows.elicitation.ending import (
    CALLBACKS_AT_MOST,
    Ending,
    EndingCallback,
    HowEnded,
    callback_named,
)
from flows.elicitation.run import Run
from flows.elicitation.states import Elicitation, Status
from flows.elicitation.traits import traits_of
from flows.errors import CallOver, InvalidQuestion, StoreUnavailable
from webapp.calls.call import Call
from webapp.calls.once import OnceKey
from webapp.calls.run import OPEN_AT_LEAST
from webapp.completion import Completing
from webapp.elicitations.service import Contended, Elicitations
from webapp.kinds.registry import Kinds
from webapp.records.values import Value
from webapp.stores import Conflict

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

CLAIMED: Final = timedelta(seconds=30)
RENEWED_AFTER_SECONDS: Final = 10.0
AT_ONCE: Final = 16  # callbacks that one process runs at the same time
# A callback that takes longer is cancelled and counts as failed.
CALLBACK_AT_MOST: Final = timedelta(minutes=10)
_CANNOT_ASK: Final = (
    "A callback of on_end cannot ask anybody or begin new work: its call has ended, and no client "
    "waits for a result. Use the ending that the callback received, and its idempotency key."
)
_log = logging.getLogger(__name__)


class Endings:
    """The callbacks of this process. `servers` are the names of the servers that it serves."""

    def __init__(self, elicitations: Elicitations, *, kinds: Kinds, completing: Completing) -> None:
        self._elicitations = elicitations
        self._kinds = kinds
        self._completing = completing.refusing(_CANNOT_ASK)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self.servers: Collection[str] = ()
        # The latest endings that callbacks of this process received, for the test kit.
        self.ran = deque[Ending](maxlen=100)
        elicitations.run_ends = self

    async def due_with(
        self, runs: Sequence[Run], values: Sequence[Value]
    ) -> Sequence[EndingCallback]:
        """Return the callbacks that become due because these values end these runs."""
        found = list[EndingCallback]()
        for run in runs:
            for id in run.endings:
                row = await self._elicitations.read(EndingCallback, owner=run.owner, id=id)
                if row is not None and row.status == "registered":
                    found.append(await self._ended(row, run, values))
        return found

    def after_write(self, rows: Sequence[Value]) -> None:
        """Start the callbacks that have just become due, if this process serves their server."""
        for row in rows:
            if isinstance(row, EndingCallback) and row.status == "due" and self._can_run(row):
                self._begin(row)

    async def fall_due(self, row: EndingCallback) -> None:
        """Start a due callback without waiting for it, or postpone it if it cannot run here."""
        if row.status == "registered":
            await self._check(row)
            return
        if self._can_run(row):
            self._begin(row)
            return
        is_served = row.server in self.servers
        about = {"callback": row.callback, "server": row.server, "id": row.id}
        if is_served:
            _log.error("ending.callback_missing", extra=about)
        with suppress(Conflict):
            now = self._elicitations.clock()
            await self._elicitations.write(endings.postpone(row, now=now))

    async def settled(self) -> None:
        """Wait until no callback runs in this process."""
        while self._tasks:
            await asyncio.wait(tuple(self._tasks.values()))
            await asyncio.sleep(0)

    async def finish(self, *, within: timedelta) -> None:
        """Wait for the callbacks that run in this process, for at most `within`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within.total_seconds()):
                await self.settled()

    async def aclose(self) -> None:
        """Cancel the callbacks that still run. They are due again when their claim expires."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _can_run(self, row: EndingCallback) -> bool:
        return row.server in self.servers and callback_named(row.callback) is not None

    async def _check(self, row: EndingCallback) -> None:
        """End a registered callback if its run has ended or was erased. Otherwise check later."""
        now = self._elicitations.clock()
        run = await self._elicitations.read(Run, owner=row.owner, id=row.run)
        if run is None:
            changed = endings.end(row, HowEnded.ABANDONED, now=now)
        elif run.is_delivered:
            changed = await self._ended(row, run, ())
        else:
            changed = endings.watch(row, now=now)
        await self._elicitations.write(changed)

    async def _ended(
        self, row: EndingCallback, run: Run, values: Sequence[Value]
    ) -> EndingCallback:
        written = {one.id: one for one in values if isinstance(one, Elicitation)}
        asked = list[Elicitation]()
        for step in run.asked[row.asked_before :]:
            id = step.elicitation_id
            one = written.get(id) or await self._elicitations.get(id)
            if one is not None:
                asked.append(one)
        is_refunded = await self._is_refunded(asked)
        how = endings.how_ended(run, asked, is_refunded=is_refunded)
        return endings.end(row, how, now=self._elicitations.clock())

    async def _is_refunded(self, asked: Sequence[Elicitation]) -> bool:
        """Return True if every payment that was accepted was refunded."""
        paid = [
            await self._kinds.payments.ledger.paid(one)
            for one in asked
            if traits_of(one.kind).gives == "receipt" and one.status is Status.ACCEPTED
        ]
        return bool(paid) and all(one is not None and one.has_ended for one in paid)

    def _begin(self, row: EndingCallback) -> None:
        if row.id in self._tasks:
            return
        # A new context, because the callback could ask questions in the context of the call.
        task = asyncio.create_task(self._attempted(row), context=contextvars.Context())
        self._tasks[row.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(row.id, None))

    async def _attempted(self, row: EndingCallback) -> None:
        async with self._slots:
            try:
                await self._attempt(row)
            except Conflict:  # another process claimed the callback, or its owner was erased
                pass
            except StoreUnavailable as error:
                _log.warning("store.unavailable", extra={"why": error.why})
            except Exception:  # noqa: BLE001 - the edge of a task; the callback is due again
                _log.exception("ending.failed", extra=_about(row))

    async def _attempt(self, row: EndingCallback) -> None:
        """Claim the callback, run it, and store that it has run or when it runs again."""
        function = callback_named(row.callback)
        assert function is not None
        until = self._elicitations.clock() + CLAIMED
        claim = replace(row, tries=row.tries + 1, next_at=until)
        await self._elicitations.write(claim)
        claim = replace(claim, version=claim.version + 1)
        try:
            async with self._renewed(claim), asyncio.timeout(CALLBACK_AT_MOST.total_seconds()):
                await self._run(function, claim.ending())
        except Exception:  # noqa: BLE001 - the author's own function
            _log.exception("ending.callback_failed", extra=_about(claim))
            await self._note(claim, lambda one: endings.fail(one, now=self._elicitations.clock()))
        else:
            _log.info("ending.callback_ran", extra=_about(claim))
            await self._note(claim, endings.complete)

    async def _run(self, function: Callable[[Ending], Any], ending: Ending) -> None:
        """Run the function. A `def` runs in a worker thread, as a `def` tool does."""
        self.ran.append(ending)
        with questions.asking(self._completing, is_tool=False):
            if inspect.iscoroutinefunction(function):
                given = await function(ending)
            else:
                given = await asyncio.to_thread(function, ending)
                if inspect.isawaitable(given):
                    await given

    @asynccontextmanager
    async def _renewed(self, claim: EndingCallback) -> "AsyncGenerator[None]":
        renewing = asyncio.create_task(self._renew(claim))
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    async def _renew(self, claim: EndingCallback) -> None:
        """Extend the claim while the callback runs, unless another process has claimed it."""
        tries = claim.tries
        while True:
            await asyncio.sleep(RENEWED_AFTER_SECONDS)

            async def extended() -> Sequence[EndingCallback]:
                row = await self._elicitations.read(EndingCallback, owner=claim.owner, id=claim.id)
                if row is None or row.status != "due" or row.tries != tries:
                    return []
                return [replace(row, next_at=self._elicitations.clock() + CLAIMED)]

            with suppress(StoreUnavailable, Contended):
                await self._elicitations.write_rebuilt(extended)

    async def _note(
        self, claim: EndingCallback, change: Callable[[EndingCallback], EndingCallback]
    ) -> None:
        """Store the result of a try.

        `done` is stored even if another process has claimed the callback since then.
        """
        noted = change(claim)

        async def rows() -> Sequence[EndingCallback]:
            row = await self._elicitations.read(EndingCallback, owner=claim.owner, id=claim.id)
            is_free = row is not None and row.status == "due"
            is_this_try = row is not None and row.tries == claim.tries
            if row is None or not is_free or not (is_this_try or noted.status == "done"):
                return []
            return [change(row)]

        await self._elicitations.run_to_completion(self._elicitations.write_rebuilt(rows))
        if noted.status == "given up":
            _log.error("ending.given_up", extra=_about(claim))


async def register(
    call: Call, callback: str, payload: str, *, step: OnceKey, caller: str | None
) -> None:
    """Store the callback together with the call's run. A repeated registration changes nothing.

    `step` is the tool, the path of the body in nested calls, and the key.

    Raises:
        InvalidQuestion: The key is registered with another callback or payload, or the call has
            too many callbacks.
        CallOver: The call has already ended.
    """
    elicitations, run = call.elicitations, call.run
    pepper = elicitations.owners.pepper
    soon = elicitations.clock() + OPEN_AT_LEAST

    def place(value: Run) -> str:
        return value.owner + pepper.tag("ending", value.id, *step, size=18)

    def with_callback(value: Run) -> Run:
        if value.finished_at is not None:
            raise CallOver
        if value.open_until < soon - timedelta(minutes=1):
            value = runs.keep_open(value, until=soon)
        if place(value) in value.endings:
            return value
        if len(value.endings) >= CALLBACKS_AT_MOST:
            raise InvalidQuestion(f"on_end: one call can have {CALLBACKS_AT_MOST} callbacks.")
        return replace(value, endings=(*value.endings, place(value)))

    async def row() -> Sequence[EndingCallback]:
        value = run.value
        known = await elicitations.read(EndingCallback, owner=value.owner, id=place(value))
        if known is None:
            return [
                EndingCallback(
                    id=place(value),
                    owner=value.owner,
                    run=value.id,
                    server=call.tool.server,
                    tool=call.tool.tool,
                    callback=callback,
                    key=step[2],
                    payload=payload,
                    idempotency_key=pepper.tag("ending key", place(value), size=18),
                    caller=caller,
                    asked_before=len(value.asked),
                    next_at=elicitations.clock() + endings.CHECKED_AFTER,
                )
            ]
        return _registered_again(known, callback=callback, payload=payload)

    await run.change(with_callback, also=row)


def _registered_again(
    known: EndingCallback, *, callback: str, payload: str
) -> Sequence[EndingCallback]:
    """Return the rows to write if the key is already registered. Raises InvalidQuestion."""
    if known.status == "registered" and payload != known.payload:
        raise InvalidQuestion(
            f"on_end: key={known.key} is registered in this call with another payload. The body "
            "runs again after a question, so the payload must be the same each time: compute it "
            "with elicit.once, or give each callback its own key."
        )
    if known.callback == callback:
        return []
    if callback_named(known.callback) is None:  # the function was renamed in the meantime
        return [replace(known, callback=callback)]
    raise InvalidQuestion(
        f"on_end: key={known.key} is registered in this call with {known.callback}. Give each "
        "callback its own key."
    )


def _about(row: EndingCallback) -> dict[str, object]:
    about = {"id": row.id, "callback": row.callback, "how": row.how, "tries": row.tries}
    return {**about, "tool": row.tool}
