"""`once`: work that is done once, however often a tool's body runs again.

Risks: the process dies after the work and before the result is stored, or the store loses its
latest writes together with the run. The work is then repeated; this module cannot prevent that. The
repetition must have the same idempotency key. The key is therefore derived from the client's call
and the name of the work, not from a stored id.

A second identical call is a new request for work, so it must not reuse the key of the first call.
Identical calls of one day are therefore numbered. If the store loses a number, the next identical
call gets the same number, and so the same key.

Work that takes longer than half a second is claimed in the store, and an identical call in another
process waits until the work ends. If two calls begin within that half second, both do the work,
with the same key. A program that uses the HTTP API does the work outside this process, so it always
claims the work first.

If a result is not JSON or too long, the work is still recorded as done and not repeated. If a
client cancels its call, the work still runs to its end.
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
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from msgspec.structs import replace

from flows.elicitation.states import Json
from flows.errors import ElicitError, ResultNotStored, Unreadable
from webapp.calls.leases import CallUse
from webapp.elicitations.service import Elicitations
from webapp.records.values import CallNumber, DoneOnce, Value
from webapp.stores import Conflict

Also: TypeAlias = Callable[[], Awaitable[Sequence[Value]]]
Wait: TypeAlias = Callable[[Collection[asyncio.Future[None]]], Awaitable[object]]
OnceKey: TypeAlias = tuple[str, str, str]  # tool, path of the body in nested calls, key

RESULT_CHARACTERS_AT_MOST = 1024 * 1024  # characters of a result's JSON, which is ASCII
_PIECE = 24 * 1024  # characters in one row; a quote or backslash needs two bytes
_FAULT_AT_MOST = 500
# Quick work is not claimed in the store. A claim would cost one more durable write, so that on
# PostgreSQL and Valkey a single `once` would wait 1.8 to 2.5 times as long for the store. A claim
# also cannot prevent that work is repeated, because a process can die after the work and before its
# result is stored. The idempotency key makes a repetition harmless: identical calls at the same
# time get the same key.
_CLAIMED_AFTER_SECONDS = 0.5
_RENEWED_AFTER_SECONDS = 10.0
_LOOK_SECONDS = 0.25
CLAIMED = timedelta(seconds=30)
DOING = "doing"
RETENTION = timedelta(days=1)
# Call numbers begin at 1 each day (UTC), so they are stored a little longer than their day.
NUMBER_RETENTION = timedelta(days=2)
# Calls can receive a receipt until it is erased (flows.elicitation.states.RECORD_RETENTION). The
# record of the work that was done for a receipt must be stored for longer than the receipt.
RECEIPT_RETENTION = timedelta(days=60)


async def do_once(
    elicitations: Elicitations,
    *,
    once: "OncePlace",
    retention: timedelta,
    work: Callable[[str], Awaitable[Json]],
    used: CallUse,
    wait: Wait,
    also: Also,
) -> Json:
    """Return the stored result of the work at this place; do the work if there is none.

    Exceptions of the work propagate.

    Raises:
        ResultNotStored: The result is not JSON or is too long.
    """
    owner, name = once.owner, once.name
    id, key = once.id(elicitations), once.idempotency_key(elicitations)
    while (doing := elicitations.doing.get(id)) is not None:
        await wait({doing})  # an identical call does the work in this process
    elicitations.doing[id] = finished = asyncio.get_running_loop().create_future()
    try:
        done = await elicitations.read(DoneOnce, owner=owner, id=id)
        if _is_claimed(done, elicitations.clock()):
            done = await _elsewhere(elicitations, owner=owner, id=id, wait=wait)
        with used.inside_once():
            if done is None or done.status == DOING:
                erase_at = elicitations.clock() + retention
                free = done or DoneOnce(id=id, owner=owner, result="", erase_at=erase_at)
                claim = _Claim(elicitations, free)
                async with claim.renewed():
                    given = await _done(work, key)
                done = await keep(
                    elicitations, once, given, retention=retention, known=claim.row, also=also
                )
    finally:
        del elicitations.doing[id]
        finished.set_result(None)
    result = await result_of(elicitations, done, name=name)
    await _end_if_cancelled()
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class OncePlace:
    """The identity of one piece of work.

    `scope` is the id of the run or receipt that the work belongs to. `wish` is the call's number
    (see `numbered`), from which the idempotency key is derived.
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
    elicitations: Elicitations, *, owner: str, scope: str, call: str, retention: timedelta
) -> tuple[CallNumber, Sequence[CallNumber]]:
    """Return the call number of `scope`, and the rows that the caller has to write to store it.

    `scope` is the id of a run or a receipt, `call` is the key of the run. If the scope already has
    a number, there are no rows to write.
    """
    tag, now = elicitations.owners.pepper.tag, elicitations.clock()
    id = owner + tag("call of", scope, size=18)
    found = await elicitations.read(CallNumber, owner=owner, id=id)
    if found is not None:
        return found, ()
    day = f"{now:%Y-%m-%d}"
    last_id = owner + tag("calls of a day", call, day, size=18)
    last = await elicitations.read(CallNumber, owner=owner, id=last_id) or CallNumber(
        id=last_id, owner=owner, call=call, day=day, number=0, erase_at=now + NUMBER_RETENTION
    )
    last = replace(last, number=last.number + 1)
    fresh = replace(last, id=id, version=0, erase_at=now + retention)
    return fresh, (last, fresh)


async def claim(elicitations: Elicitations, once: OncePlace, *, by: str) -> DoneOnce:
    """Claim the work for the worker `by`, unless it is done or claimed. Return the work's row.

    The row is done, claimed by another worker, or claimed by `by`. A second claim by the same
    worker renews the first. If two workers do the work, the first result is stored.
    """
    id, now = once.id(elicitations), elicitations.clock()
    row = DoneOnce(id=id, owner=once.owner, result="", erase_at=now + RECEIPT_RETENTION)

    async def claimed() -> Sequence[DoneOnce]:
        nonlocal row
        found = await elicitations.read(DoneOnce, owner=once.owner, id=id)
        row = row if found is None else found
        is_anothers = row.claimed_by != by and _is_claimed(row, now)
        if is_anothers or (found is not None and row.status != DOING):
            return []
        row = replace(row, claimed_until=now + CLAIMED, claimed_by=by, status=DOING)
        return [row]

    await elicitations.write_rebuilt(claimed)
    return row


async def release(elicitations: Elicitations, once: OncePlace, *, by: str) -> None:
    """Release the claim of `by` after the work failed, so that the next worker need not wait."""

    async def released() -> Sequence[DoneOnce]:
        found = await elicitations.read(DoneOnce, owner=once.owner, id=once.id(elicitations))
        is_claimed_here = found is not None and found.status == DOING and found.claimed_by == by
        return [replace(found, claimed_until=None)] if found is not None and is_claimed_here else []

    await elicitations.write_rebuilt(released)


async def keep(
    elicitations: Elicitations,
    once: OncePlace,
    given: Json,
    *,
    also: Also,
    fault: str | None = None,
    retention: timedelta = RECEIPT_RETENTION,
    known: DoneOnce | None = None,
) -> DoneOnce:
    """Store that the work is done, with its result or the reason why the result cannot be stored.

    An earlier result is not replaced. `also` returns the rows to write in the same transaction.
    `known` is the row as it was last read or claimed.
    """
    id = once.id(elicitations)
    erase_at = elicitations.clock() + retention
    done, *pieces = _pieces_of(given, id=id, owner=once.owner, erase_at=erase_at)
    if fault is not None:
        done, pieces = replace(done, result="", pieces=(), fault=fault[:_FAULT_AT_MOST]), []

    async def rows() -> Sequence[Value]:
        nonlocal done, known
        found, known = known, None
        if found is None:
            found = await elicitations.read(DoneOnce, owner=once.owner, id=id)
        if found is not None and found.status != DOING and found.version:
            done = found
            return []
        version = 0 if found is None else found.version
        return [replace(done, version=version), *pieces, *await also()]

    await elicitations.write_rebuilt(rows)
    return done


async def result_of(elicitations: Elicitations, done: DoneOnce, *, name: str) -> Json:
    """Return the stored result. Raises ResultNotStored if the result could not be stored."""
    return _result(name, done, [await _piece(elicitations, done, piece) for piece in done.pieces])


class _Claim:
    """This process's claim on its work, stored after `_CLAIMED_AFTER_SECONDS` of work."""

    def __init__(self, elicitations: Elicitations, row: DoneOnce) -> None:
        self._elicitations = elicitations
        self._has_ended = asyncio.Event()
        self.row = row

    @asynccontextmanager
    async def renewed(self) -> AsyncGenerator[None]:
        """Renew the claim until the work ends. Release the claim if the work raises."""
        renewing = asyncio.create_task(self._renew())
        try:
            yield
        except BaseException:
            await self._elicitations.run_to_completion(self._release(renewing))
            raise
        self._has_ended.set()
        await renewing

    async def _release(self, renewing: asyncio.Task[None]) -> None:
        """Release the claim of failed work, so that the next call need not wait."""
        self._has_ended.set()
        await renewing
        if self.row.claimed_until is not None:
            with suppress(Conflict, ElicitError):
                await self._elicitations.write(replace(self.row, claimed_until=None))

    async def _renew(self) -> None:
        pause = _CLAIMED_AFTER_SECONDS
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._has_ended.wait()
                return
            pause = _RENEWED_AFTER_SECONDS
            until = self._elicitations.clock() + CLAIMED
            claimed = replace(self.row, claimed_until=until, status=DOING)
            try:
                await self._elicitations.write(claimed)
            except (Conflict, ElicitError):  # claimed by another process, or the store is down
                return
            self.row = replace(claimed, version=claimed.version + 1)


async def _end_if_cancelled() -> None:
    """End the tool's body here if the call was cancelled while the work ran."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        await asyncio.sleep(0)


def _is_claimed(done: DoneOnce | None, now: datetime) -> bool:
    """Return True if a process holds an unexpired claim on the work."""
    if done is None or done.status != DOING or done.claimed_until is None:
        return False
    return now < done.claimed_until


async def _elsewhere(
    elicitations: Elicitations, *, owner: str, id: str, wait: Wait
) -> DoneOnce | None:
    """Wait until no other process holds the claim, and return the row. `wait` may end the call."""

    async def poll_until_free() -> None:
        while _is_claimed(  # noqa: ASYNC110 - the change is made by another process
            await elicitations.read(DoneOnce, owner=owner, id=id), elicitations.clock()
        ):
            await asyncio.sleep(_LOOK_SECONDS)

    polling = asyncio.create_task(poll_until_free())
    try:
        await wait({polling})
    finally:
        polling.cancel()
    return await elicitations.read(DoneOnce, owner=owner, id=id)


async def do_unkept(name: str, work: Callable[[str], Awaitable[Json]], *, used: CallUse) -> Json:
    """Do the work for an anonymous caller.

    No result is stored, so every request repeats the work.
    """
    with used.inside_once():
        given = await _done(work, secrets.token_urlsafe(18))
    await _end_if_cancelled()
    done, *pieces = _pieces_of(given, id="", owner="", erase_at=datetime.max.replace(tzinfo=UTC))
    return _result(name, done, [piece.result for piece in pieces])


async def _done(work: Callable[[str], Awaitable[Json]], key: str) -> Json:
    """Run the work and return its result. The work may be a plain function or a coroutine."""
    given: Any = work(key)
    result: Json = await given if inspect.isawaitable(given) else given
    return result


def _pieces_of(given: object, *, id: str, owner: str, erase_at: datetime) -> list[DoneOnce]:
    """Return the row that records the work as done, and the rows for the rest of its result."""
    done = DoneOnce(id=id, owner=owner, result="", erase_at=erase_at)
    try:
        text = json.dumps(given, allow_nan=False)
    except Exception as error:  # noqa: BLE001 - serializing a value can run the author's code
        return [replace(done, fault=f"is not JSON: {error}"[:_FAULT_AT_MOST])]
    if len(text) > RESULT_CHARACTERS_AT_MOST:
        return [
            replace(done, fault=f"is longer than {RESULT_CHARACTERS_AT_MOST} characters of JSON")
        ]
    first, *rest = [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
    pieces = [replace(done, id=f"{id}-{number}", result=piece) for number, piece in enumerate(rest)]
    return [replace(done, result=first, pieces=tuple(piece.id for piece in pieces)), *pieces]


async def _piece(elicitations: Elicitations, done: DoneOnce, id: str) -> str:
    found = await elicitations.read(DoneOnce, owner=done.owner, id=id)
    if found is None:
        raise Unreadable
    return found.result


def _result(name: str, done: DoneOnce, pieces: Sequence[str]) -> Json:
    if done.fault is not None:
        raise ResultNotStored(
            f"once({name!r}) is done, but its return value could not be saved: it {done.fault}."
        )
    result: Json = json.loads("".join((done.result, *pieces)))
    return result
