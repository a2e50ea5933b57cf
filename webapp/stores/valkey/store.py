"""A store in Valkey or Redis: each method sends commands to the shards that it concerns.

Risks: the shards of a cluster are changed one after the other. All records of an owner are in one
shard, so a write never spans two shards. Methods that work on all shards (`due`, `erase`, and
`list` without an owner) are not atomic across owners.
"""

import asyncio
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import msgpack

from flows.errors import StoreUnavailable
from webapp.stores.lanes import Gathering, first
from webapp.stores.store import (
    CLAIMS_HELD,
    RECORDS_AT_MOST,
    Conflict,
    Fences,
    OtherFence,
    Record,
    Watch,
    as_written,
    check_copies,
    check_erasure,
    check_limit,
    check_records,
    check_time,
)
from webapp.stores.valkey import layout
from webapp.stores.valkey.address import parse_address
from webapp.stores.valkey.changes import ValkeyChanges
from webapp.stores.valkey.layout import (
    SHARDS_OF_A_CLUSTER,
    Command,
    Entry,
    check_texts,
    entry_of,
    key,
    microseconds,
    name_of,
    record_of,
    shard_of,
    stored,
)
from webapp.stores.valkey.server import (
    ANSWER_SECONDS,
    FAILED,
    ValkeyServer,
    check_server,
    shards_of,
    unavailable,
)

_READS_AT_ONCE = 1000
_WRITES_AT_ONCE = 256
_BYTES_A_SCRIPT = 4 * 1024 * 1024
_ERASED_A_SCRIPT = 1000
_FREE_BYTES_AT_LEAST = 32 * 1024 * 1024

# The shard, the entries, and the records as they are stored.
_Write = tuple[int, list[Entry], list[bytes]]
# Commands, and the shards whose changes must be durable.
_Change = tuple[Sequence[Command], Sequence[int]]
_encode = msgpack.Encoder().encode


async def open_store(url: str) -> "ValkeyStore":
    """Open the store at the address. Raises ValueError for a bad address, or StoreUnavailable."""
    return await ValkeyStore.open(url)


async def holds_something(url: str) -> bool:
    """Return True if the address holds records. Raises StoreUnavailable if the check fails."""
    address = parse_address(url)
    try:
        server = await ValkeyServer.connect(address)
    except FAILED as error:
        raise unavailable(address, error) from error
    try:
        found = await server.run(
            [("EXISTS", key(shard, "records")) for shard in range(SHARDS_OF_A_CLUSTER)]
        )
    finally:
        await server.aclose()
    for answer in found:
        if isinstance(answer, StoreUnavailable):
            raise answer
    return any(found)


class ValkeyStore:
    """A handle to the store, called an opening. A process can have several."""

    def __init__(self, server: ValkeyServer, *, shards: int) -> None:
        self._server = server
        self._shards = shards
        self._opening = secrets.token_hex(8)
        self._channel = f"elicit:{server.address.database}:written"
        self._reads: Gathering[Command] = Gathering(
            server.run, fit=first(_READS_AT_ONCE), place_of=server.node_of
        )
        self._writes: Gathering[_Write] = Gathering(
            self._write_together,
            fit=first(_WRITES_AT_ONCE),
            place_of=lambda write: server.node_of(("GET", key(write[0], "fence"))),
        )
        self._others: Gathering[_Change] = Gathering(self._change_one_by_one, fit=first(1))
        self._changes = ValkeyChanges(
            server, channel=self._channel, opening=self._opening, read=self._read_names
        )
        self._is_closed = False

    @classmethod
    async def open(cls, url: str, *, answer_seconds: float = ANSWER_SECONDS) -> "ValkeyStore":
        """Connect, and refuse a server that would lose acknowledged data.

        A server that does not answer within `answer_seconds` counts as unavailable.
        """
        address = parse_address(url)
        try:
            server = await ValkeyServer.connect(address, answer_seconds=answer_seconds)
        except FAILED as error:
            raise unavailable(address, error) from error
        try:
            await check_server(server)
            store = cls(server, shards=await shards_of(server))
            await store._changes.start()
        except FAILED as error:
            await server.aclose()
            raise unavailable(address, error) from error
        except BaseException:
            await server.aclose()
            raise
        return store

    @property
    def address(self) -> str:
        return self._server.address.shown

    async def write(self, *records: Record) -> tuple[Record, ...]:
        """See Store."""
        check_records(records)
        check_texts(records)
        self._refuse_if_closed()
        if not records:
            return ()
        entries = [entry_of(record, expected=str(record.version)) for record in records]
        values = [
            stored(record, entry, version=record.version + 1)
            for record, entry in zip(records, entries, strict=True)
        ]
        found = await self._writes.put((self._shard(records[0].owner), entries, values))
        _refuse_conflict(found)
        return as_written(records)

    async def read(self, owner: str, kind: str, id: str) -> Record | None:
        """See Store."""
        self._refuse_if_closed()
        where = key(self._shard(owner), "records")
        value = await self._reads.put(("HGET", where, name_of(owner, kind, id)))
        return None if value is None else record_of(value)

    async def find(self, owner: str, kind: str, key: str) -> Record | None:
        """See Store."""
        self._refuse_if_closed()
        command = layout.FIND(self._shard(owner), name_of(owner, kind, key))
        value = await self._reads.put(command)
        return None if value is None else record_of(value)

    async def list(
        self,
        kind: str,
        *,
        owner: str | None = None,
        status: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[Record]:
        """See Store."""
        check_limit(limit)
        self._refuse_if_closed()
        if owner is None:
            prefix, shards, names = f"{kind}\0", list(range(self._shards)), "ids"
            first = f"[{prefix}" if after is None else f"({prefix}{after}\1"
        else:
            prefix, shards, names = f"{owner}\0{kind}\0", [self._shard(owner)], "owned"
            first = f"[{prefix}" if after is None else f"({prefix}{after}"
        # Owners are spread evenly, so twice a shard's share of the page is usually enough.
        part = limit if len(shards) == 1 else 2 * limit // len(shards) + 8
        pages = [
            _Pages(shard, first=first, last=f"({prefix[:-1]}\1", status=status or "", names=names)
            for shard in shards
        ]
        found: list[Record] = []
        while len(found) < limit:
            if hungry := [page for page in pages if page.needs_more]:
                answers = await self._ask([page.command(part) for page in hungry])
                for page, (go_on, *values) in zip(hungry, answers, strict=True):
                    page.feed(go_on, values)
                continue
            full = [page for page in pages if page.records]
            if not full:
                break
            found.append(min(full, key=lambda page: page.records[0].id).records.pop(0))
        return found

    async def due(self, now: datetime, *, hold: timedelta, limit: int = 100) -> Sequence[Record]:
        """See Store."""
        check_time(now)
        check_limit(limit)
        self._refuse_if_closed()
        at, held, until = map(microseconds, (now, now + CLAIMS_HELD * hold, now + hold))
        looked = await self._ask(
            [layout.DUE(shard, at, held, limit) for shard in range(self._shards)]
        )
        oldest = sorted(
            (float(due_at), name, shard)
            for shard, found in enumerate(looked)
            for due_at, name in zip(found[::2], found[1::2], strict=True)
        )[:limit]
        if not oldest:
            return []
        names: dict[int, list[bytes]] = defaultdict(list)
        for _, name, shard in oldest:
            names[shard].append(name)
        claimed = await self._ask(
            [layout.CLAIM(shard, at, held, until, *names[shard]) for shard in names]
        )
        records = [record_of(value) for values in claimed for value in values]
        return sorted(records, key=lambda record: (record.due_at is None, record.due_at))

    def watch(self) -> Watch:
        """See Store."""
        self._refuse_if_closed()
        return self._changes.watch()

    async def erase(
        self, *, owner: str | None = None, before: datetime | None = None, limit: int = 1000
    ) -> int:
        """See Store."""
        check_erasure(owner, before, limit)
        self._refuse_if_closed()
        moment = "" if before is None else str(microseconds(before))
        erased = 0
        for shard in await self._shards_to_erase(owner, moment):
            while erased < limit:
                part = min(limit - erased, _ERASED_A_SCRIPT)
                command = layout.ERASE(shard, owner or "", moment, part)
                (count,) = await self._change([command], durable=[shard])
                erased += count
                if count < part:
                    break
        return erased

    async def access(self) -> Sequence[tuple[str, str | None]]:
        """Return which user connects, and whether the connection is encrypted (see Networked)."""
        address = self._server.address
        fix = (
            "create a Valkey user that alone may use the keys elicit:*, and put it in "
            "ELICIT_STORE: see docs/how-to/stores.md"
        )
        user = str(address.options.get("username", "default"))
        states: list[tuple[str, str | None]] = [
            (f"the server connects as the user {user}: ACL LIST shows who else can write", None)
            if user != "default"
            else ("the server connects as the user default, which other programs may use too", fix)
        ]
        if address.is_encrypted:
            return [*states, ("the connection is encrypted", None)]
        if address.is_on_this_machine:
            return [*states, ("the connection does not leave this machine", None)]
        says = "the connection is not encrypted, and it leaves this machine"
        return [
            *states,
            (says, "turn on TLS in the Valkey server, and write valkeys:// in ELICIT_STORE"),
        ]

    async def check(self) -> None:
        """See Store."""
        self._refuse_if_closed()
        try:
            replies = await self._server.ask_each("INFO", "memory", "persistence")
        except FAILED as error:
            raise unavailable(self._server.address, error) from error
        for info in replies:
            free = info.get("maxmemory", 0) - info.get("used_memory", 0)
            if info.get("maxmemory") and free < min(_FREE_BYTES_AT_LEAST, info["maxmemory"] // 20):
                raise StoreUnavailable(
                    f"the store {self.address} has almost no memory left: raise its maxmemory"
                )
            if info.get("aof_last_write_status", "ok") != "ok":
                raise StoreUnavailable(
                    f"the store {self.address} cannot write its append-only file: check its disk"
                )
        shards = range(self._shards)
        await self._change([layout.CHECK(shard, self._opening) for shard in shards], durable=shards)

    async def scan(self) -> AsyncIterator[Sequence[Record]]:
        """See Store."""
        for shard in range(self._shards):
            first = b"-"
            while first:
                self._refuse_if_closed()
                ((first, *values),) = await self._ask([layout.SCAN(shard, first)])
                for start in range(0, len(values), RECORDS_AT_MOST):
                    yield [record_of(each) for each in values[start : start + RECORDS_AT_MOST]]

    async def load(self, *records: Record, behind: str) -> None:
        """See Store."""
        check_copies(records)
        check_texts(records)
        self._refuse_if_closed()
        of_shard: dict[int, list[Record]] = defaultdict(list)
        for record in records:
            of_shard[self._shard(record.owner)].append(record)
        commands: list[Command] = []
        for shard, group in of_shard.items():
            entries = [entry_of(record, expected=None) for record in group]
            values = [
                stored(record, entry, version=record.version)
                for record, entry in zip(group, entries, strict=True)
            ]
            command = layout.WRITE(shard, "", "", behind, _encode([entries]), *values)
            commands.append(command)
        for (found,) in await self._change(commands, durable=list(of_shard)):
            _refuse_conflict(found)

    async def fence(self, why: str | None, *, instead_of: Fences | None = None) -> None:
        """See Store."""
        self._refuse_if_closed()
        words = [each or "" for each in (why, *(instead_of or ()))]
        commands = [layout.FENCE(shard, *words) for shard in range(self._shards)]
        await self._change(commands, durable=range(self._shards))

    async def fenced(self) -> str | None:
        """See Store."""
        self._refuse_if_closed()
        fences: list[Command] = [("GET", key(n, "fence")) for n in range(self._shards)]
        found = await asyncio.gather(*map(self._reads.put, fences))
        return next((why.decode() for why in found if why is not None), None)

    async def clock(self) -> datetime:
        """Return the server's current time. In a cluster, ask one of the servers."""
        self._refuse_if_closed()
        try:
            (seconds, microsecond), *_ = await self._server.ask_each("TIME")
        except FAILED as error:
            raise unavailable(self._server.address, error) from error
        return datetime.fromtimestamp(seconds, UTC).replace(microsecond=microsecond)

    async def aclose(self) -> None:
        """See Store."""
        if self._is_closed:
            return
        self._is_closed = True
        await self._changes.aclose()
        for gathering in (self._writes, self._others, self._reads):
            await gathering.finish()
        await self._server.aclose()

    def _shard(self, owner: str) -> int:
        return shard_of(owner, shards=self._shards)

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise StoreUnavailable(f"the store {self._server.address.shown} is closed")

    async def _shards_to_erase(self, owner: str | None, before: str) -> Sequence[int]:
        if owner is not None:
            return [self._shard(owner)]
        if self._shards == 1:
            return [0]
        counts = await self._ask(
            [("ZCOUNT", key(shard, "erase"), "-inf", before) for shard in range(self._shards)]
        )
        # If there is nothing to erase, ask one shard anyway: it refuses if the store is fenced.
        return [shard for shard, count in enumerate(counts) if count] or [0]

    async def _ask(self, commands: Sequence[Command]) -> Sequence[Any]:
        """Send reads, or changes that need not be durable. Raises StoreUnavailable if fenced."""
        return _unfenced(await asyncio.gather(*map(self._reads.put, commands)))

    async def _change(
        self, commands: Sequence[Command], *, durable: Sequence[int]
    ) -> Sequence[Any]:
        answers = _unfenced(await self._others.put((commands, durable)))
        if [] in answers:
            raise OtherFence(await self.fenced())
        return answers

    async def _change_one_by_one(self, jobs: Sequence[_Change]) -> Sequence[object]:
        replies = [await self._server.run(commands, durable=durable) for commands, durable in jobs]
        return [
            next((each for each in answers if isinstance(each, StoreUnavailable)), answers)
            for answers in replies
        ]

    async def _write_together(self, writes: Sequence[_Write]) -> Sequence[object]:
        """Execute many writes: run one script for each shard and each 4 MiB of its writes."""
        # For each script: its shard, and the positions of its writes in `writes`.
        places: list[tuple[int, list[int]]] = []
        open_scripts: dict[int, tuple[list[int], int]] = {}
        for index, (shard, _, values) in enumerate(writes):
            size = sum(map(len, values))
            of_script, so_far = open_scripts.get(shard, ([], _BYTES_A_SCRIPT))
            if so_far + size > _BYTES_A_SCRIPT:
                of_script, so_far = list[int](), 0
                places.append((shard, of_script))
            of_script.append(index)
            open_scripts[shard] = (of_script, so_far + size)
        commands = [
            layout.WRITE(
                shard,
                self._opening,
                self._channel,
                "",
                _encode([writes[index][1] for index in of_script]),
                *(value for index in of_script for value in writes[index][2]),
            )
            for shard, of_script in places
        ]
        answers: list[object] = [None] * len(writes)
        replies = await self._server.run(commands, durable=[*open_scripts])
        for (_, of_script), answer in zip(places, replies, strict=True):
            if isinstance(answer, StoreUnavailable | bytes):
                why = answer.decode() if isinstance(answer, bytes) else answer.why
                for index in of_script:
                    answers[index] = StoreUnavailable(why)
            else:
                for index, found in zip(of_script, answer, strict=True):
                    answers[index] = found
        return answers

    async def _read_names(self, names: Sequence[str]) -> Sequence[Record | None]:
        shards = [self._shard(name.partition("\0")[0]) for name in names]
        commands = [
            ("HGET", key(shard, "records"), name) for shard, name in zip(shards, names, strict=True)
        ]
        values = await asyncio.gather(*map(self._reads.put, commands))
        return [None if value is None else record_of(value) for value in values]


class _Pages:
    """The records of one shard for `list`. The next page is read when `records` is empty."""

    def __init__(self, shard: int, *, first: str, last: str, status: str, names: str) -> None:
        self._shard = shard
        self._first: str | bytes = first
        self._last = last
        self._status = status
        self._names = names
        self._has_ended = False
        self.records: list[Record] = []

    @property
    def needs_more(self) -> bool:
        return not self.records and not self._has_ended

    def command(self, limit: int) -> Command:
        return layout.LIST(
            self._shard, self._first, self._last, self._status, limit, names=self._names
        )

    def feed(self, go_on: bytes, values: Sequence[bytes]) -> None:
        self._first = go_on
        self._has_ended = not go_on
        self.records = [record_of(value) for value in values]


def _refuse_conflict(found: bytes | int) -> None:
    if found != 1:
        raise Conflict(record_of(found) if isinstance(found, bytes) else None)


def _unfenced(answers: Sequence[Any]) -> Sequence[Any]:
    for answer in answers:
        if isinstance(answer, bytes):
            raise StoreUnavailable(answer.decode())
    return [*answers]
