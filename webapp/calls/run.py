"""The run that a leg belongs to: found by its token or by the same call, or begun anew.

What could go wrong: a stranger's token, a token of another tool, another version of it or other
arguments, a run of long ago. None of them is continued; the leg then begins a run of its own.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta

from msgspec.json import encode
from msgspec.structs import replace

from flows.elicitation import run as runs
from flows.elicitation.run import Called, Run, Step
from flows.elicitation.states import Elicitation
from flows.elicitation.tool_call import ToolCall
from webapp.calls.once import numbered
from webapp.elicitations.retry import TRIES_AT_MOST, Contended, Erased, pause
from webapp.elicitations.service import Elicitations
from webapp.identity.identity import Caller
from webapp.records.ids import owner_of
from webapp.records.values import CallNumber, Value
from webapp.stores import Conflict

OPEN_AT_LEAST = timedelta(minutes=10)
ARGUMENTS_BYTES_AT_MOST = 12 * 1024  # as they are sealed: JSON text inside JSON


def run_of(
    elicitations: Elicitations,
    *,
    caller: Caller,
    tool: ToolCall,
    landed: Callable[[str], Awaitable[bool]],
    leg: str,
    named: str | None,
    named_key: str | None = None,
) -> "CurrentRun":
    """The run of a caller's leg; `named` is the one that the client's token names.

    `named_key` is that of its call, where the run may stand nowhere yet: nothing was asked in it.
    """
    pepper = elicitations.owners.pepper
    call = "nobody's call" if caller.owner is None else "call"
    return CurrentRun(
        elicitations=elicitations,
        landed=landed,
        # Without an identity there is no owner, only this run.
        owner=caller.owner or pepper.tag("run", leg),
        key=pepper.tag(
            call,
            *(tool.server, caller.client, tool.tool, tool.arguments),
            *tool.version_parts,
            size=18,
        ),
        named=named,
        named_key=named_key,
        called=Called(
            server=tool.server,
            tool=tool.tool,
            client=caller.client,
            arguments=tool.arguments if _is_short(tool.arguments) else None,
            version=tool.version,
        ),
        is_nobodys=caller.owner is None,
    )


class CurrentRun:
    """Holds the run of one leg as last read or written; `value` is there after `load`."""

    def __init__(
        self,
        *,
        elicitations: Elicitations,
        landed: Callable[[str], Awaitable[bool]],
        owner: str,
        key: str,
        named: str | None,
        named_key: str | None,
        called: Called | None,
        is_nobodys: bool,
    ) -> None:
        self._elicitations = elicitations
        self._is_nobodys = is_nobodys
        self._landed = landed
        self._owner = owner
        self._key = key
        self._named = named
        self._named_key = named_key
        self._called = called
        self._lock = asyncio.Lock()
        self._value: Run | None = None
        self.is_continued = False

    @property
    def is_loaded(self) -> bool:
        return self._value is not None

    @property
    def value(self) -> Run:
        assert self._value is not None
        return self._value

    @value.setter
    def value(self, run: Run) -> None:
        self._value = run

    @property
    def can_go_on(self) -> bool:
        """Whether the call can be made again by the run alone: its arguments are kept."""
        called = self.value.called
        return called is not None and called.arguments is not None

    async def load(self) -> Run:
        """The run; one whose `result` is there has come to its end and is to be repeated."""
        async with self._lock:
            if self._value is None:
                self._value = await self._find() or self._new()
            return self._value

    async def reload(self, *, writes_again: bool = False) -> None:
        """After a lost race: as it is stored, or the one that holds the call's key now.

        Where neither is stored any more, the next change stores the run as if it were new if
        `writes_again`. Raises Erased otherwise.
        """
        stored = await self._elicitations.run(owner=self._owner, id=self.value.id)
        if stored is None:
            stored = await self._elicitations.find_run(owner=self._owner, key=self._key)
        if stored is not None:
            self._value = stored
        elif writes_again:
            self._value = replace(self.value, version=0)
        elif self.value.version:
            raise Erased(self.value.id)

    async def begin_anew(self) -> Run:
        """A run of its own, where what the other one came to is not this call's any more."""
        async with self._lock:
            await self._leave(self.value)
            self._value = self._new()
            return self._value

    async def begin(self) -> Run:
        """The run as it is stored; an identical call that was first to begin it is joined."""
        await self.change(lambda run: run)
        return self.value

    async def begin_once(self, receipt: str | None, *, kept: timedelta) -> tuple[str, CallNumber]:
        """Store the run and the number of its call, in one write, before work that is done once.

        Return what the work is done under (the receipt, or the run), and the number.
        """
        found = list[tuple[str, CallNumber]]()

        async def number() -> Sequence[CallNumber]:
            run = self.value
            scope = receipt or run.id
            wish, rows = await numbered(
                self._elicitations, owner=run.owner, scope=scope, call=run.key, kept=kept
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
        """Change the run, and what `also` gives in the same write; one not stored yet is then.

        `is_sure`: what this leg has read will do, where that needs no change.
        """
        for number in range(TRIES_AT_MOST):
            changed = change(self.value)
            others = await also() if also is not None else ()
            if is_sure and changed == self.value and changed.version and not others:
                return  # another leg of it has done so
            try:
                await self._elicitations.write(changed, *others)
            except Conflict:
                await pause(number)
                await self.reload()
                continue
            self._value = replace(changed, version=changed.version + 1)
            return
        raise Contended(self.value.id)

    async def name(self, taken: Elicitation, place: Step) -> None:
        """Have the run name what a leg took at a place, so that its result uses it up.

        Before a late yes came, another leg may have found a no at this place and asked anew there;
        the run as this leg has read it does not tell. So it is written even where it seems to need
        no change: whoever read it before the yes came has to look again.
        """
        if taken.is_late:
            await self.change(lambda run: runs.put(run, place, taken.id), is_sure=False)

    async def end_unasked(self) -> None:
        """Nobody was asked in it, so it stands nowhere: only that it is over is kept.

        A token that names it goes on with nothing then, and with no account that it carries.
        """
        ended = replace(runs.wipe(self.value), finished_at=self._elicitations.clock())
        with suppress(Conflict):  # another leg of the same token came to its end too
            await self._elicitations.write(ended)

    async def keep_open(self) -> None:
        """A body that runs for long still belongs to the wish that it began as."""
        soon = self._elicitations.clock() + OPEN_AT_LEAST
        if self.value.open_until < soon:
            await self.change(lambda run: runs.keep_open(run, until=soon + OPEN_AT_LEAST))

    async def _find(self) -> Run | None:
        named = await self._find_named()
        if named is not None and not named.version:
            if await self._landed(named.id):  # its end was arriving this very moment
                named = await self._find_named()
            if named is not None and not named.version:
                self.is_continued = True
                return named
        found = named or await self._elicitations.find_run(owner=self._owner, key=self._key)
        # Its result may be arriving this very moment; if it does, this is a new wish.
        if found is not None and await self._landed(found.id):
            found = await self._elicitations.run(owner=self._owner, id=found.id)
        if found is None:
            return None
        self.is_continued = named is not None
        now = self._elicitations.clock()
        if found.answers(now, is_named=named is not None):
            return found
        if found.finished_at is None and (named or now < found.kept_until):
            return found
        await self._leave(found)
        return None

    async def _find_named(self) -> Run | None:
        """The run of the token, if it is this owner's and of this very call."""
        named = self._named
        if named is None or not (self._is_nobodys or named.startswith(self._owner)):
            return None
        run = await self._elicitations.run(owner=owner_of(named), id=named)
        if run is None and self._named_key == self._key and not self._is_nobodys:
            return replace(self._new(), id=named)
        if run is None or run.key != self._key:
            return None
        # Nobody's run is joined by its token alone; by its key it is no known person's.
        self._owner = run.owner
        return run

    async def _leave(self, old: Run) -> None:
        self.is_continued = False
        if not old.holds_key:
            return
        try:
            await self._elicitations.write(runs.make_way(old))
        except Conflict:
            return  # whoever changed it is met again by the write that wants the key

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


def _is_short(arguments: str) -> bool:
    return len(encode(arguments)) <= ARGUMENTS_BYTES_AT_MOST
