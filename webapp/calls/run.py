"""The run that a request belongs to, found by its token or by an identical call, or created.

Risks: the token names the run of another owner, another tool, another version of the tool or other
arguments, or the run is too old. Such a run is not continued: the request starts a new run.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from msgspec.json import encode
from msgspec.structs import replace

from flows.elicitation import run as runs
from flows.elicitation.run import Called, Run, Step
from flows.elicitation.states import Elicitation
from flows.elicitation.tool_call import ToolCall
from flows.errors import ElicitError
from flows.question import Question
from webapp.calls.once import numbered
from webapp.elicitations.service import TRIES_AT_MOST, Contended, Elicitations, pause
from webapp.identity.identity import Caller
from webapp.records.ids import Pepper, owner_of
from webapp.records.rows import Erased
from webapp.records.values import CallNumber, Value
from webapp.stores import Conflict

OPEN_AT_LEAST = timedelta(minutes=10)
ARGUMENTS_BYTES_AT_MOST = 12 * 1024  # bytes of the stored form: JSON text inside JSON


class IdempotencyKeyReused(ElicitError):
    """A different question was already asked with this Idempotency-Key."""

    name = "IDEMPOTENCY_KEY_REUSED"
    http_status = 409

    def __init__(self) -> None:
        super().__init__(
            "This Idempotency-Key was used with a different body: send the same body again, or use "
            "another key for another question."
        )


class CurrentRun:
    """The run of one request, as last read or written. `value` is set by `load`."""

    value: Run

    def __init__(
        self,
        elicitations: Elicitations,
        *,
        caller: Caller,
        tool: ToolCall,
        wait_until_sent: Callable[[str], Awaitable[bool]],
        request_id: str,
        named: str | None,
        named_key: str | None = None,
        asks_once: bool = False,
    ) -> None:
        """Create the run of a caller's request.

        `named` is the run id in the client's token. `named_key` is the run key in the same token,
        for a run that is not stored because it asked no question. `asks_once`: the caller named the
        run with an Idempotency-Key, which belongs to one question.
        """
        pepper = elicitations.owners.pepper
        self._elicitations = elicitations
        self._is_anonymous = caller.owner is None
        self._wait_until_sent = wait_until_sent
        # A caller without an identity has no owner, so the run is its own owner.
        self._owner = caller.owner or pepper.tag("run", request_id)
        self._key = pepper.tag(
            "nobody's call" if self._is_anonymous else "call",
            *(tool.server, caller.client, tool.tool, tool.arguments),
            *tool.version_parts,
            size=18,
        )
        self._named = named
        self._named_key = named_key
        self.asks_once = asks_once
        is_short = len(encode(tool.arguments)) <= ARGUMENTS_BYTES_AT_MOST
        self._called = Called(
            server=tool.server,
            tool=tool.tool,
            client=caller.client,
            arguments=tool.arguments if is_short else None,
            version=tool.version,
        )
        self._lock = asyncio.Lock()
        self.is_loaded = False
        self.is_continued = False

    @property
    def can_go_on(self) -> bool:
        """True if the run alone can repeat the call, because the call's arguments are stored."""
        called = self.value.called
        return called is not None and called.arguments is not None

    async def load(self) -> Run:
        """Return the run that the token names, the run of an identical call, or a new run.

        If the run has a `result`, it has ended, and this request returns the same result.
        """
        async with self._lock:
            if not self.is_loaded:
                self.value = await self._find() or self._new()
                self.is_loaded = True
            return self.value

    async def reload(self, *, writes_again: bool = False) -> None:
        """Reload the run after a write conflict, or load the run that now owns the call's key.

        If neither is stored: with `writes_again`, let the next change store the run as new.
        Otherwise raise Erased if this run was stored before.
        """
        stored = await self._elicitations.read(Run, owner=self._owner, id=self.value.id)
        if stored is None:
            stored = await self._elicitations.holder(Run, owner=self._owner, key=self._key)
        if stored is not None:
            self.value = stored
        elif writes_again:
            self.value = replace(self.value, version=0)
        elif self.value.version:
            raise Erased(self.value.id)

    def must_ask_only(self, step: Step) -> None:
        """Check that a run which asks once has no other question. Raises IdempotencyKeyReused."""
        asked = (each.place for each in self.value.asked)
        if self.asks_once and any(
            (each.kind, each.digest) != (step.kind, step.digest) for each in asked
        ):
            raise IdempotencyKeyReused

    async def restart(self) -> Run:
        """Replace the run with a new one, because the old result does not apply to this call."""
        async with self._lock:
            await self._leave(self.value)
            self.value = self._new()
            return self.value

    async def begin(self) -> Run:
        """Store the run and return it, or return the run that an identical call stored first."""
        await self.change(lambda run: run)
        return self.value

    async def begin_once(
        self, receipt: str | None, *, retention: timedelta
    ) -> tuple[str, CallNumber]:
        """Store the run and its call number in one write, before work that is done once.

        Return the scope of the work (the receipt or the run) and the number.
        """
        found = list[tuple[str, CallNumber]]()

        async def number() -> Sequence[CallNumber]:
            run = self.value
            scope = receipt or run.id
            wish, rows = await numbered(
                self._elicitations, owner=run.owner, scope=scope, call=run.key, retention=retention
            )
            found.append((scope, wish))
            return rows

        await self.change(lambda run: run, also=number)
        return found[-1]

    async def change(
        self,
        change: Callable[[Run], Run],
        *,
        also: Callable[[], Awaitable[Sequence[Value]]] | None = None,
        is_sure: bool = True,
    ) -> None:
        """Change the run and write the rows that `also` returns in the same transaction.

        A run that is not stored yet is stored. With `is_sure=False`, this copy of the run may be
        old: write the run even if `change` returns it unchanged.
        """
        for number in range(TRIES_AT_MOST):
            changed = change(self.value)
            others = await also() if also is not None else ()
            if is_sure and changed == self.value and changed.version and not others:
                return  # another request of the run already made this change
            try:
                await self._elicitations.write(changed, *others)
            except Conflict:
                await pause(number)
                await self.reload()
                continue
            self.value = replace(changed, version=changed.version + 1)
            return
        raise Contended(self.value.id)

    async def name(self, claimed: Elicitation, step: Step) -> None:
        """Record the claimed elicitation at `step`, so that the run's result uses it up.

        Only an answer that was accepted late needs this. Before that answer arrived, another
        request may have replaced the question at `step` with a new one, and this copy of the run
        may not show the replacement. The run is therefore written even if it looks unchanged: if
        this copy is old, the write conflicts, and the run is reloaded and changed.
        """
        if claimed.is_late:
            await self.change(lambda run: runs.put(run, step, claimed.id), is_sure=False)

    async def end_unasked(self) -> None:
        """Store the end of a run in which no question was asked.

        A later request whose token names this run does not continue it, and does not use its
        accounts again.
        """
        ended = replace(runs.wipe(self.value), finished_at=self._elicitations.clock())
        with suppress(Conflict):  # another request with the same token ended the run too
            await self._elicitations.write(ended)

    async def keep_open(self) -> None:
        """Extend the time in which identical calls join the run while a long body runs."""
        soon = self._elicitations.clock() + OPEN_AT_LEAST
        if self.value.open_until < soon:
            await self.change(lambda run: runs.keep_open(run, until=soon + OPEN_AT_LEAST))

    async def _find(self) -> Run | None:
        named = await self._find_named()
        if named is not None and not named.version:
            if await self._wait_until_sent(named.id):  # the response has arrived and ended the run
                named = await self._find_named()
            if named is not None and not named.version:
                self.is_continued = True
                return named
        found = named or await self._elicitations.holder(Run, owner=self._owner, key=self._key)
        # The result may be on its way to the client. If it arrives, this call starts a new run.
        if found is not None and await self._wait_until_sent(found.id):
            found = await self._elicitations.read(Run, owner=self._owner, id=found.id)
        if found is None:
            return None
        self.is_continued = named is not None
        now = self._elicitations.clock()
        if found.answers(now, is_named=named is not None):
            return found
        if found.finished_at is None and (named or now < found.expires_at):
            return found
        await self._leave(found)
        return None

    async def _find_named(self) -> Run | None:
        """Return the run that the token names, if it belongs to this owner and this exact call."""
        named = self._named
        if named is None or not (self._is_anonymous or named.startswith(self._owner)):
            return None
        run = await self._elicitations.read(Run, owner=owner_of(named), id=named)
        if run is None and self._named_key == self._key and not self._is_anonymous:
            return replace(self._new(), id=named)
        if run is None or run.key != self._key:
            return None
        # An anonymous caller joins a run by the token alone. The run's key differs from the keys of
        # identified callers, so these cannot join it.
        self._owner = run.owner
        return run

    async def _leave(self, old: Run) -> None:
        self.is_continued = False
        if not old.holds_key:
            return
        try:
            await self._elicitations.write(runs.free_key(old))
        except Conflict:
            return  # the next write that needs the key meets the same conflict

    def _new(self) -> Run:
        now = self._elicitations.clock()
        return Run(
            id=self._elicitations.new_id(self._owner),
            owner=self._owner,
            key=self._key,
            created_at=now,
            open_until=now + OPEN_AT_LEAST,
            called=self._called,
        )


def join_key(
    question: Question[Any], step: Step, tool: ToolCall, *, client: str, pepper: Pepper
) -> str:
    """Return the key with which equal questions of equal calls find the same elicitation."""
    if question.is_for_good:
        # All calls of all clients share one question about a permanent purchase.
        parts = ("for good", tool.tool, step.kind, step.digest)
        return pepper.tag("join", tool.server, *parts, size=18)
    about = (
        ("named", tool.tool, question.key, step.kind, step.digest)
        if question.key is not None
        else ("placed", tool.tool, tool.arguments, str(step))
    )
    return pepper.tag("join", tool.server, client, *about, *tool.version_parts, size=18)
