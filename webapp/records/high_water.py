"""The high-water mark: detects that the store has lost data that this process has seen.

A store can step back: a standby without the last seconds takes over, a replaced primary comes back,
or a backup or an older copy of a file is restored. Such a store looks intact, but acknowledged
writes are missing, and a payment made since then is on no list. So the store holds a mark. While
records are written, a new mark is made every few seconds. Each mark has a nonce and lists the
nonces of the marks before it. A process compares that list with the last mark that it saw. After a
lost connection, the process also compares the versions of the records that it wrote or read last. A
new process compares the mark with a copy outside the store, in a folder of this machine.

Risks: another process makes marks in a store that has stepped back, until the number of marks is as
high as before. The nonces of the new marks differ, so the step back is still noticed. A record can
be missing because it expired or its owner was purged. An expired record is therefore no evidence. A
purge in the seconds before a lost connection can be mistaken for a step back. Such a mistake only
causes a comparison with the payment providers, which changes nothing.
"""

import asyncio
import logging
import secrets
from collections import OrderedDict
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from webapp.deadline import STEP, Clock, ticks_of
from webapp.records.owners import SERVICE
from webapp.stores import Conflict, Record, Store
from webapp.stores.store import plain_record

MARK: Final = "store mark"
STEP_BACK: Final = "step back"
MARKED_EVERY: Final = timedelta(seconds=5)
# Compare a record for this long, even if a newer mark exists: in a cluster, the node with the
# record can lose data while the node with the mark does not.
_COMPARED_SECONDS: Final = 15.0
_RECORDS_AT_MOST: Final = 64
_MARKS_LISTED: Final = 32
_NONCE_BYTES: Final = 8
_log = logging.getLogger(__name__)

StructT = TypeVar("StructT", bound=Struct)
_Name: TypeAlias = tuple[str, str, str]
_Remembered: TypeAlias = OrderedDict[_Name, tuple[Record, float]]


class MadeMark(Struct, frozen=True, array_like=True):
    """A mark. Writes acknowledged before `at` were in the store when the mark was made."""

    nonce: bytes
    at: datetime


class Mark(Struct, frozen=True, kw_only=True):
    """The newest marks of a store, the newest last. `number` is the version of the mark's record.

    `store` is a random name, which copies of the store share.
    """

    number: int
    store: Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]  # used as a file name
    made: Annotated[tuple[MadeMark, ...], Meta(min_length=1)]

    @property
    def at(self) -> datetime:
        return self.made[-1].at

    def has_lost(self, before: "Mark") -> bool:
        """Return True if the store has lost `before`: this mark's list does not continue it."""
        back = self.number - before.number
        if back < 0:
            return True
        return back < len(self.made) and self.made[-1 - back] != before.made[-1]

    def common_with(self, other: "Mark") -> datetime | None:
        """Return the time of the newest mark in the lists of both marks, or None."""
        both = {*self.made} & {*other.made}  # nonces are unique
        return max((each.at for each in both), default=None)


class StepBack(Struct, frozen=True, kw_only=True):
    """The last time that a process noticed that the store has stepped back.

    Writes that were acknowledged before `survived` were not lost. A restored backup is recorded in
    the same way. `is_handled` means that the checks of payments after the step back were done.
    """

    noticed_at: datetime
    survived: datetime
    why: str
    was_restored: bool = False
    is_handled: bool = False

    @property
    def unsure_until(self) -> datetime:
        """The latest time of a record that may be from before the step back: clocks can differ."""
        return self.noticed_at + STEP


class HighWater:
    """The store's marks as one process knows them, and the marks that it makes."""

    def __init__(self, store: Store, *, clock: Clock, folder: Path | None = None) -> None:
        """`folder` gets a copy of each mark. It also has the copies of earlier processes."""
        self._store = store
        self._clock = clock
        self._ticks = ticks_of(clock)
        self._folder = folder
        self._known: Mark | None = None
        self._copied: Mark | None = None
        self._has_looked_outside = False
        self._has_reconnected = False
        # The newest records that were written or read here, with the time.
        self._written, self._read = _Remembered(), _Remembered()
        self._lock = asyncio.Lock()

    def remember(self, *records: Record, are_new: bool = False) -> None:
        """Remember records as they were read.

        `are_new`: the records were just written, and each still has its version from before the
        write.
        """
        names, now = self._written if are_new else self._read, self._ticks()
        for record in records:
            name = (record.owner, record.kind, record.id)
            names[name] = (replace(record, sealed=b"", version=record.version + are_new), now)
            names.move_to_end(name)
            if len(names) > _RECORDS_AT_MOST:
                names.popitem(last=False)

    def receive(self, record: Record) -> None:
        """Use a mark that another process has made."""
        found, known = mark_of(record), self._known
        if found is not None and known is not None and not found.has_lost(known):
            self._known = found

    def reconnected(self) -> None:
        """Let the next check also compare the used records, because the connection was lost."""
        self._has_reconnected = True

    async def look(self) -> bool:
        """Compare the store with the known mark. Return True if the store has stepped back.

        A step back is logged, and recorded in the store for the process that acts on it.

        Raises:
            StoreUnavailable: The store cannot be reached.
        """
        async with self._lock:
            found = await self._stored_mark()
            if not self._has_looked_outside:
                self._known = await self._read_mark_copy(found)
                self._has_looked_outside = True
            known = self._known
            if known is not None and (found is None or found.has_lost(known)):
                common = None if found is None else found.common_with(known)
                survived, why = common or known.made[0].at, _missing(known)
            elif self._has_reconnected and (lost := await self._lost()):
                survived = min(lost) if known is None else min(*lost, known.at)
                why = f"{len(lost)} of the most recently used records are missing or older"
            else:
                self._known, self._has_reconnected = found, False
                return False
            await self._note(why, survived=survived, known=known)
            self._has_reconnected = False
            # Copy the new mark: `why_older` must not report the same step back again.
            await self._copy_outside()
            return True

    async def make_mark(self) -> None:
        """Make a mark if something was written since the last one. Raises StoreUnavailable."""
        if await self.look():
            return
        async with self._lock:
            now, is_time = self._ticks(), self._known is None
            if self._known is not None:
                is_time = self._known.at + MARKED_EVERY <= self._clock()
            if self._written and is_time:
                with suppress(Conflict):  # another process makes a mark at the same time
                    await self._write(await self._read_mark())
                for names in (self._written, self._read):
                    for name, (_, since) in tuple(names.items()):
                        if since < now - _COMPARED_SECONDS:
                            del names[name]
        await self._copy_outside()

    async def step_back(self) -> StepBack | None:
        """Return the last step back that is recorded in the store."""
        return step_back_of(await self._store.read(SERVICE, STEP_BACK, SERVICE))

    async def settle(self, record: Record, back: StepBack) -> None:
        """Record that the checks after this step back were done. Raises Conflict."""
        done = replace(back, is_handled=True)
        await self._store.write(_step_back_record(done, version=record.version))

    async def why_older(self) -> str | None:
        """Return why the store is older than the copy of its mark, or None. Write nothing."""
        found = await self._stored_mark()
        before = await self._read_mark_copy(found)
        has_lost = before is not None and found is not None and found.has_lost(before)
        return _missing(before) if before is not None and has_lost else None

    async def _note(self, why: str, *, survived: datetime, known: Mark | None) -> None:
        self._written.clear()
        self._read.clear()
        while True:
            record = await self._store.read(SERVICE, STEP_BACK, SERVICE)
            step_back = step_back_of(record)
            if step_back is not None and (known is None or known.at <= step_back.noticed_at):
                self._known = await self._stored_mark()
                _log.warning("store.stepped_back_before", extra={"why": why})
                return
            if step_back is not None and not step_back.is_handled:
                survived = min(survived, step_back.survived)
            noticed = StepBack(noticed_at=self._clock(), survived=survived, why=why)
            version = 0 if record is None else record.version
            with suppress(Conflict):
                await self._write(
                    await self._read_mark(), _step_back_record(noticed, version=version)
                )
                break
        facts = {"why": why, "survived": survived.isoformat(timespec="seconds")}
        _log.error("store.stepped_back", extra=facts)

    async def _write(self, before: Record | None, *others: Record) -> None:
        written = await self._store.write(next_mark(before, at=self._clock()), *others)
        self._known = mark_of(written[0])

    async def _read_mark(self) -> Record | None:
        return await self._store.read(SERVICE, MARK, SERVICE)

    async def _stored_mark(self) -> Mark | None:
        return mark_of(await self._read_mark())

    async def _lost(self) -> list[datetime]:
        """Return the times at which this process wrote or read the records that are now lost."""
        now, ticks = self._clock(), self._ticks()
        remembered = {**self._read, **self._written}.values()
        compared = [each for each in remembered if not _has_ended(each[0], now)]
        found = await asyncio.gather(
            *(self._store.read(each.owner, each.kind, each.id) for each, _ in compared)
        )
        return [
            now - timedelta(seconds=ticks - since)
            for one, (each, since) in zip(found, compared, strict=True)
            if one is None or one.version < each.version
        ]

    async def _read_mark_copy(self, found: Mark | None) -> Mark | None:
        if self._folder is None or found is None:
            return None
        return await asyncio.to_thread(_read_copy, _copy_of(found, self._folder))

    async def _copy_outside(self) -> None:
        known = self._known
        if self._folder is None or known is None or known == self._copied:
            return
        self._copied = known
        try:
            await asyncio.to_thread(_write_copy, _copy_of(known, self._folder), known)
        except OSError as error:  # a later process then cannot detect a step back
            _log.warning("store.mark_not_copied", extra={"why": str(error)})


def next_mark(record: Record | None, *, at: datetime) -> Record:
    """Return the record of the next mark, to be written in place of `record`."""
    before = mark_of(record)
    number = 0 if record is None else record.version
    marks = (*(before.made if before else ()), MadeMark(secrets.token_bytes(_NONCE_BYTES), at))
    mark = Mark(
        number=number + 1,
        store=before.store if before else secrets.token_hex(_NONCE_BYTES),
        made=marks[-_MARKS_LISTED:],
    )
    return _record(MARK, mark, version=number)


def restored(record: Record | None, *, made_at: datetime, now: datetime) -> tuple[Record, Record]:
    """Return the mark and the StepBack to write after restoring a backup.

    The two records make a process check for lost data. `record` is the mark in the backup, and
    `made_at` is the time of the backup.
    """
    mark = next_mark(record, at=now)
    before = mark_of(record)
    survived = made_at if before is None else min(made_at, before.at)
    back = StepBack(
        noticed_at=now, survived=survived, why="a backup was restored", was_restored=True
    )
    return replace(mark, version=mark.version + 1), _step_back_record(back, version=1)


def mark_of(record: Record | None) -> Mark | None:
    """Return the record's mark, or None if the record is missing or has foreign content."""
    return None if record is None else _decoded(record, Mark)


def step_back_of(record: Record | None) -> StepBack | None:
    return None if record is None else _decoded(record, StepBack)


def _decoded(record: Record, kind: type[StructT]) -> StructT | None:
    try:
        return msgspec.msgpack.decode(record.sealed, type=kind)
    except msgspec.MsgspecError:
        return None


def _step_back_record(back: StepBack, *, version: int) -> Record:
    due_at = None if back.is_handled else back.noticed_at
    return _record(STEP_BACK, back, version=version, due_at=due_at)


def _record(kind: str, value: Struct, *, version: int, due_at: datetime | None = None) -> Record:
    sealed = msgspec.msgpack.encode(value)
    return plain_record(
        SERVICE, kind, SERVICE, status="noted", due_at=due_at, version=version, sealed=sealed
    )


def _has_ended(record: Record, now: datetime) -> bool:
    return record.erase_at is not None and record.erase_at <= now


def _missing(before: Mark) -> str:
    return f"mark {before.number}, made at {before.at:%Y-%m-%d %H:%M:%S} UTC, is missing"


def _copy_of(mark: Mark, folder: Path) -> Path:
    return folder / f"{mark.store}.mark"


def _read_copy(path: Path) -> Mark | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Mark)
    except (OSError, msgspec.MsgspecError):
        return None


def _write_copy(path: Path, mark: Mark) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(_NONCE_BYTES)}")
    try:
        draft.write_bytes(msgspec.json.encode(mark))
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
