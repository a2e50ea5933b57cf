"""`once`: work that is done once, however often a tool's body runs again.

What could go wrong: the process dies between the work and its record. Then it is done again, with
the idempotency key that it got the first time; this cannot be closed from here. The same happens
when the store loses its last seconds, and with them the run: so a key is made from what the client
called and the name of the work, not from an id. Two identical calls are two wishes, and the work of
the second must not be taken for that of the first. So the calls of a day are numbered: after such a
loss the same call gets the number again that was lost. Work that takes
longer than a moment is claimed in the store, and an identical call in another process waits for
its end; two that begin within that moment do it twice, with one key. A result that cannot be handed
on, as it is no JSON or too long, is no reason to do the work again: that it is done is kept in any
case. Nor may a client that gives its call up end the work half way. A program over HTTP does its
work by itself: it claims it first, always.
"""

import asyncio
import inspect
import json
import secrets
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from msgspec.structs import replace

from flows.elicitation.states import Json
from flows.errors import ElicitError, ResultNotKept, Unreadable
from webapp.elicitations.service import Elicitations
from webapp.records.values import CallNumber, DoneOnce, Value
from webapp.stores import Conflict

Also: TypeAlias = Callable[[], Awaitable[Sequence[Value]]]
Wait: TypeAlias = Callable[[Collection[asyncio.Future[None]]], Awaitable[object]]
OnceKey: TypeAlias = tuple[str, str, str]  # the tool, its body's place among inner calls, the key

LETTERS_AT_MOST = 1024 * 1024  # of a result's JSON, which is ASCII
_PIECE = 24 * 1024  # of those in one row, where quotes and backslashes take two
_FAULT_AT_MOST = 500
# Quick work costs no claim. To claim before the work begins is one durable write more, beside the
# one that keeps the result: on PostgreSQL and Valkey a lone `once` then waits 1.8 to 2.5 times as
# long for its store. And it would promise nothing more: a process may die in any case between the
# work and its record, so work goes by its idempotency key, which both of two get.
_CLAIMED_AFTER_SECONDS = 0.5
_RENEWED_AFTER_SECONDS = 10.0
_LOOK_SECONDS = 0.25
CLAIMED = timedelta(seconds=30)
DOING = "doing"
KEPT = timedelta(days=1)
# Past the end of their day: from then on others are given.
NUMBERS_KEPT = timedelta(days=2)
# Longer than any call can still be given the receipt (flows.elicitation.states.KEPT).
KEPT_UNDER_A_RECEIPT = timedelta(days=60)


class Working:
    """Of one body, whether it is inside `once`; whoever cancels it waits until it is not."""

    def __init__(self) -> None:
        self._number = 0
        self._next: Callable[[], object] | None = None
        self.has_begun = False

    def __bool__(self) -> bool:
        return self._number > 0

    @contextmanager
    def begun(self) -> Generator[None]:
        """Until what was done is kept."""
        self.has_begun = True
        self._number += 1
        try:
            yield
        finally:
            self._number -= 1
            if not self._number and self._next is not None:
                self._next()

    def when_out(self, act: Callable[[], object]) -> None:
        """Do it now, or as soon as the body is inside none."""
        if self:
            self._next = act
        else:
            act()


async def do_once(
    elicitations: Elicitations,
    *,
    once: "OncePlace",
    kept: timedelta,
    work: Callable[[str], Awaitable[Json]],
    working: Working,
    wait: Wait,
    also: Also,
) -> Json:
    """Return the stored result of the work at this place; do the work if there is none.

    Raises ResultNotKept if the result is no JSON or too long, and what the work raises.
    """
    owner, name = once.owner, once.name
    id, key = once.id(elicitations), once.idempotency_key(elicitations)
    while (doing := elicitations.doing.get(id)) is not None:
        await wait({doing})  # an identical call is at it in this process
    elicitations.doing[id] = over = asyncio.get_running_loop().create_future()
    try:
        done = await elicitations.done(owner=owner, id=id)
        if _is_claimed(done, elicitations.clock()):
            done = await _elsewhere(elicitations, owner=owner, id=id, wait=wait)
        with working.begun():
            if done is None or done.status == DOING:
                erase_at = elicitations.clock() + kept
                free = done or DoneOnce(id=id, owner=owner, result="", erase_at=erase_at)
                claim = _Claim(elicitations, free)
                async with claim.renewed():
                    given = await _done(work, key)
                done = await keep(elicitations, once, given, kept=kept, known=claim.row, also=also)
    finally:
        del elicitations.doing[id]
        over.set_result(None)
    result = await result_of(elicitations, done, name=name)
    await _end_if_cancelled()
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class OncePlace:
    """The place of one piece of work: its owner, its run or receipt, and its name.

    `wish` is the call by its number, as `numbered` gives it.
    """

    owner: str
    scope: str
    wish: CallNumber
    step: OnceKey
    name: str

    def id(self, elicitations: Elicitations) -> str:
        pepper = elicitations.owners.pepper
        return self.owner + pepper.tag("once", self.scope, *self.step, self.name, size=18)

    def idempotency_key(self, elicitations: Elicitations) -> str:
        pepper = elicitations.owners.pepper
        wish = (self.owner, self.wish.call, self.wish.day, str(self.wish.number))
        return pepper.tag("idempotency", *wish, *self.step, self.name, size=18)


async def numbered(
    elicitations: Elicitations, *, owner: str, scope: str, call: str, kept: timedelta
) -> tuple[CallNumber, Sequence[CallNumber]]:
    """Return the number of the call that `scope` belongs to, and what has to be written for it.

    `scope` is a run or a receipt, `call` the key of the run. Nothing is to be written for a scope
    that has its number.
    """
    tag, now = elicitations.owners.pepper.tag, elicitations.clock()
    id = owner + tag("call of", scope, size=18)
    found = await elicitations.read(CallNumber, owner=owner, id=id)
    if found is not None:
        return found, ()
    day = f"{now:%Y-%m-%d}"
    last_id = owner + tag("calls of a day", call, day, size=18)
    last = await elicitations.read(CallNumber, owner=owner, id=last_id) or CallNumber(
        id=last_id, owner=owner, call=call, day=day, number=0, erase_at=now + NUMBERS_KEPT
    )
    last = replace(last, number=last.number + 1)
    fresh = replace(last, id=id, version=0, erase_at=now + kept)
    return fresh, (last, fresh)


async def claim(elicitations: Elicitations, once: OncePlace, *, by: str) -> DoneOnce:
    """The row as it stands: done, claimed by another one, or claimed by `by` from now on.

    Claimed again by the same it is renewed. Of two that were at it the first result is kept.
    """
    id, now = once.id(elicitations), elicitations.clock()
    row = DoneOnce(id=id, owner=once.owner, result="", erase_at=now + KEPT_UNDER_A_RECEIPT)

    async def claimed() -> Sequence[DoneOnce]:
        nonlocal row
        found = await elicitations.done(owner=once.owner, id=id)
        row = row if found is None else found
        is_anothers = row.claimed_by != by and _is_claimed(row, now)
        if is_anothers or (found is not None and row.status != DOING):
            return []
        row = replace(row, claimed_until=now + CLAIMED, claimed_by=by, status=DOING)
        return [row]

    await elicitations.write_afresh(claimed)
    return row


async def release(elicitations: Elicitations, once: OncePlace, *, by: str) -> None:
    """The work failed, so whoever is next need not wait."""

    async def released() -> Sequence[DoneOnce]:
        found = await elicitations.done(owner=once.owner, id=once.id(elicitations))
        is_ours = found is not None and found.status == DOING and found.claimed_by == by
        return [replace(found, claimed_until=None)] if found is not None and is_ours else []

    await elicitations.write_afresh(released)


async def keep(
    elicitations: Elicitations,
    once: OncePlace,
    given: Json,
    *,
    also: Also,
    fault: str | None = None,
    kept: timedelta = KEPT_UNDER_A_RECEIPT,
    known: DoneOnce | None = None,
) -> DoneOnce:
    """That it is done, with its result or why that cannot be kept; what was first stays.

    `also` gives what is written with it. `known` is the row as it was read or claimed last.
    """
    id = once.id(elicitations)
    erase_at = elicitations.clock() + kept
    done, *pieces = _kept(given, id=id, owner=once.owner, erase_at=erase_at)
    if fault is not None:
        done, pieces = replace(done, result="", pieces=(), fault=fault[:_FAULT_AT_MOST]), []

    async def rows() -> Sequence[Value]:
        nonlocal done, known
        found, known = known, None
        if found is None:
            found = await elicitations.done(owner=once.owner, id=id)
        if found is not None and found.status != DOING and found.version:
            done = found
            return []
        version = 0 if found is None else found.version
        return [replace(done, version=version), *pieces, *await also()]

    await elicitations.write_afresh(rows)
    return done


async def result_of(elicitations: Elicitations, done: DoneOnce, *, name: str) -> Json:
    """Raises ResultNotKept."""
    return _result(name, done, [await _piece(elicitations, done, piece) for piece in done.pieces])


class _Claim:
    """That this process is at it, in the store as soon as it takes longer than a moment."""

    def __init__(self, elicitations: Elicitations, row: DoneOnce) -> None:
        self._elicitations = elicitations
        self._is_over = asyncio.Event()
        self.row = row

    @asynccontextmanager
    async def renewed(self) -> AsyncGenerator[None]:
        """Until the work is over, however it ends."""
        renewing = asyncio.create_task(self._renew())
        try:
            yield
        except BaseException:
            await self._elicitations.whole(self._release(renewing))
            raise
        self._is_over.set()
        await renewing

    async def _release(self, renewing: asyncio.Task[None]) -> None:
        """It failed, so whoever calls again need not wait."""
        self._is_over.set()
        await renewing
        if self.row.claimed_until is not None:
            with suppress(Conflict, ElicitError):
                await self._elicitations.write(replace(self.row, claimed_until=None))

    async def _renew(self) -> None:
        pause = _CLAIMED_AFTER_SECONDS
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._is_over.wait()
                return
            pause = _RENEWED_AFTER_SECONDS
            until = self._elicitations.clock() + CLAIMED
            claimed = replace(self.row, claimed_until=until, status=DOING)
            try:
                await self._elicitations.write(claimed)
            except (Conflict, ElicitError):  # another one was quicker, or the store is not there
                return
            self.row = replace(claimed, version=claimed.version + 1)


async def _end_if_cancelled() -> None:
    """A call that was cancelled while its work went on ends here, and nothing behind it is done."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        await asyncio.sleep(0)


def _is_claimed(done: DoneOnce | None, now: datetime) -> bool:
    """Whether somebody in another process is at it; what a dead one claimed is free in a while."""
    if done is None or done.status != DOING or done.claimed_until is None:
        return False
    return now < done.claimed_until


async def _elsewhere(
    elicitations: Elicitations, *, owner: str, id: str, wait: Wait
) -> DoneOnce | None:
    """What stands there when nobody else is at it any more; `wait` may give up before."""

    async def over() -> None:
        while _is_claimed(  # noqa: ASYNC110 - what changes is in another process
            await elicitations.done(owner=owner, id=id), elicitations.clock()
        ):
            await asyncio.sleep(_LOOK_SECONDS)

    looking = asyncio.create_task(over())
    try:
        await wait({looking})
    finally:
        looking.cancel()
    return await elicitations.done(owner=owner, id=id)


async def do_unkept(name: str, work: Callable[[str], Awaitable[Json]], *, working: Working) -> Json:
    """For a caller without an identity, of whom nothing is kept: every leg does it again."""
    with working.begun():
        given = await _done(work, secrets.token_urlsafe(18))
    await _end_if_cancelled()
    done, *pieces = _kept(given, id="", owner="", erase_at=datetime.max.replace(tzinfo=UTC))
    return _result(name, done, [piece.result for piece in pieces])


async def _done(work: Callable[[str], Awaitable[Json]], key: str) -> Json:
    """What the work gives; by the time that it is seen to be no coroutine it is done, too."""
    given: Any = work(key)
    result: Json = await given if inspect.isawaitable(given) else given
    return result


def _kept(given: object, *, id: str, owner: str, erase_at: datetime) -> list[DoneOnce]:
    """The row that says that it is done, and those that its result goes on in."""
    done = DoneOnce(id=id, owner=owner, result="", erase_at=erase_at)
    try:
        text = json.dumps(given, allow_nan=False)
    except Exception as error:  # noqa: BLE001 - it may have code of its own
        return [replace(done, fault=f"is no JSON: {error}"[:_FAULT_AT_MOST])]
    if len(text) > LETTERS_AT_MOST:
        return [replace(done, fault=f"is longer than {LETTERS_AT_MOST} letters of JSON")]
    first, *rest = [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
    pieces = [replace(done, id=f"{id}-{number}", result=piece) for number, piece in enumerate(rest)]
    return [replace(done, result=first, pieces=tuple(piece.id for piece in pieces)), *pieces]


async def _piece(elicitations: Elicitations, done: DoneOnce, id: str) -> str:
    found = await elicitations.done(owner=done.owner, id=id)
    if found is None:
        raise Unreadable
    return found.result


def _result(name: str, done: DoneOnce, pieces: Sequence[str]) -> Json:
    if done.fault is not None:
        raise ResultNotKept(
            f"What once({name!r}) did is done, but not its result kept, which {done.fault}."
        )
    result: Json = json.loads("".join((done.result, *pieces)))
    return result
