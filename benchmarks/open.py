"""`python -m benchmarks.open`: the cost of a hundred thousand open questions, on each store.

The baseline is the same work with a thousand open questions. Each owner has fifty questions, and
the service itself writes them. The servers run on this machine and wait for the disk.

Risks: some query reads all records, which no test with a few questions would notice. So each
line must stay constant, or grow no faster than the number of questions.

`python -m benchmarks.open ADDRESS SECRET MANY` is a process that starts on a filled store and
prints its measurements. If the store is in memory, the process fills the store itself.
"""

import argparse
import asyncio
import dataclasses
import json
import os
import secrets
import sys
import tempfile
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import httpx
import psutil  # type: ignore[import-untyped]
from msgspec.structs import replace

from benchmarks.figure import Figure, alternate, in_rounds, summary, table
from benchmarks.in_process import TAKER, fresh, open_service_here, utc_now
from flows.crypto.tokens import Ring
from flows.elicitation.run import Run
from flows.elicitation.states import Elicitation, Status
from flows.elicitation.tool_call import ToolCall
from flows.elicitation.traits import TrustedCode
from tests.support.postgres_server import PostgresServer
from tests.support.valkey_server import own_valkey
from webapp.app import open_app
from webapp.collector import Collector
from webapp.elicitations.complete import complete_elicitation
from webapp.elicitations.service import Elicitations
from webapp.records.values import Open, Standing
from webapp.service import Service
from webapp.settings.quotas import PolicySettings
from webapp.settings.settings import Settings
from webapp.stores import open_store
from webapp.sweeper import sweep
from webapp.telemetry.families import Observer
from webapp.telemetry.work import Telemetry

_TOP = Path(__file__).parents[1]
MANY = 100_000
FEW = 1_000
EACH = 50  # questions of each owner
LIFE = timedelta(hours=6)
STORES = ("memory", "SQLite", "PostgreSQL", "Valkey")
_AT_ONCE = 20
_TURN_SECONDS = 0.001
_URL = "http://127.0.0.1:8765"


class Filled(Observer):
    """A service on a store with `many` open questions. `ahead` moves the service's clock."""

    def __init__(self, many: int) -> None:
        self.many = many
        self.ahead = timedelta()
        self.left = many
        self.all_expired = asyncio.Event()
        self.service: Service
        self.owner = ""

    def now(self) -> datetime:
        return utc_now() + self.ahead

    def after_write(self, values: Sequence[object]) -> None:
        for value in values:
            if isinstance(value, Elicitation) and value.status is Status.EXPIRED:
                self.left -= value.due_at is not None  # `due_at`: count each expiry only once
        if self.left <= 0:
            self.all_expired.set()

    @property
    def elicitations(self) -> Elicitations:
        return self.service.elicitations

    @asynccontextmanager
    async def opened(self, address: str, secret: bytes) -> AsyncIterator["Filled"]:
        telemetry = Telemetry()
        telemetry.observer = self
        async with open_service_here(
            Path(), address=address, secret=secret, clock=self.now, telemetry=telemetry
        ) as (self.service, self.owner):
            await fill(self.elicitations, self.many)
            yield self

    async def resumed(self) -> float:
        """Return the seconds from a new question until its waiter has the answer."""
        elicitations, now = self.elicitations, self.now()
        asked = fresh(self.owner, now=now, id=elicitations.new_id(self.owner))
        start = perf_counter()
        with elicitations.waiters.waiter(
            asked.id, request_id="leg", run="run", taker=TAKER
        ) as waiter:
            await elicitations.write(asked)
            await elicitations.open_attempt(asked.id, browser="0" * 64)
            await complete_elicitation(elicitations, asked.id, {"paid": True}, TrustedCode())
            settled = asked
            while settled.take is None:
                changes = await waiter.changes(until=now + timedelta(minutes=5), now=now)
                settled = await elicitations.rows.newest(settled, changes)
        return perf_counter() - start

    async def resumed_each(self, times: int) -> float:
        return median([await self.resumed() for _ in range(times)])

    async def listed_each(self, times: int) -> float:
        """Return the seconds for listing the open questions of an owner."""
        somebody = _owner(self.elicitations, 0)
        start = perf_counter()
        for _ in range(times):
            assert len(await self.elicitations.rows.open_of(somebody, now=self.now())) == EACH
        return (perf_counter() - start) / times


def _owner(elicitations: Elicitations, number: int) -> str:
    return elicitations.owners.tag(issuer="https://accounts.example", subject=str(number))


async def fill(elicitations: Elicitations, many: int) -> None:
    """Write the questions of each owner, and the row that counts them."""
    numbers = iter(range(many // EACH))

    async def work() -> None:
        for number in numbers:
            owner, now = _owner(elicitations, number), elicitations.clock()
            ids = [elicitations.new_id(owner) for _ in range(EACH)]
            ends = now + LIFE
            asked = [replace(fresh(owner, now=now, id=id), expires_at=ends) for id in ids]
            there = tuple(Open(id=id, session="s", expires_at=ends) for id in ids)
            standing = Standing(id=f"{owner}standing", owner=owner, open=there, erase_at=ends)
            await elicitations.rows.write(*asked, standing)

    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(work())


@asynccontextmanager
async def longest_turn() -> AsyncIterator[list[float]]:
    """Provide the longest time in seconds that one turn blocked the loop, known at the end."""
    longest = [0.0]

    async def look() -> None:
        before = perf_counter()
        while True:
            await asyncio.sleep(_TURN_SECONDS)
            now = perf_counter()
            longest[0] = max(longest[0], now - before - _TURN_SECONDS)
            before = now

    looking = asyncio.create_task(look())
    await asyncio.sleep(0)
    try:
        yield longest
        await asyncio.sleep(2 * _TURN_SECONDS)  # count a turn that has just ended too
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking


@dataclass(slots=True, kw_only=True)
class Expiry:
    """The measurements while all open questions expired together."""

    each: float = 0.0
    processor: float = 0.0
    longest_turn: float = 0.0
    quiet: list[float] = field(default_factory=list[float])
    meanwhile: list[float] = field(default_factory=list[float])


async def expiry(filled: Filled, *, times: int) -> Expiry:
    """Expire all questions with the sweeper, as in the application, while others ask and answer."""
    found = Expiry(quiet=[await filled.resumed() for _ in range(times)])

    async def ask_on() -> None:
        while True:
            found.meanwhile.append(await filled.resumed())
            await asyncio.sleep(0.02)

    async with longest_turn() as longest, asyncio.TaskGroup() as group:
        filled.ahead = LIFE + timedelta(minutes=1)
        asking = group.create_task(ask_on())
        start, processor = perf_counter(), process_time()
        sweeping = group.create_task(sweep(filled.service))
        await filled.all_expired.wait()
        found.each = (perf_counter() - start) / filled.many
        found.processor = (process_time() - processor) / filled.many
        asking.cancel()
        sweeping.cancel()
    found.longest_turn = longest[0]
    somebody = _owner(filled.elicitations, 0)
    assert not await filled.elicitations.rows.open_of(somebody, now=filled.now())
    return found


async def start(address: str, secret: bytes, many: int) -> Mapping[str, float]:
    """Start the application on the store. Return its times in seconds and its memory in bytes."""
    ring = Ring([secret])
    policies = PolicySettings(pending_at_most=2 * many)  # a full store is measured elsewhere
    settings = Settings(url=_URL, ring=ring, store=address, uid=os.getuid(), policies=policies)
    services = list[Service]()
    began = perf_counter()
    store = await open_store(address)
    async with open_app(settings, None, store=store, built=services.append) as app:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url=_URL) as client:
            assert (await client.get("/ready")).is_success
            ready = perf_counter() - began
            (service,) = services
            if address == "memory:":
                await fill(service.elicitations, many)
            took = {"ready": ready, "memory": float(psutil.Process().memory_info().rss)}
            took["room"] = await _check_seconds(service)
            async with longest_turn() as longest:
                began = perf_counter()
                await Collector(service).read_through()
                took["counted"] = perf_counter() - began
            took["turn"] = longest[0]
            took["memory counted"] = float(psutil.Process().memory_info().rss)
    await store.aclose()
    return took


async def _check_seconds(service: Service) -> float:
    """Return the seconds of the first limit check. It counts all open questions in the store."""
    now, owner = service.clock(), service.identity.local_owner
    run = Run(id=f"{owner}run", owner=owner, key="key", created_at=now, open_until=now)
    tool = ToolCall(server="shop", tool="buy", client="a client", arguments="{}")
    began = perf_counter()
    await service.kinds.quotas.admit(run, client_id="client", tool=tool)
    return perf_counter() - began


async def started(address: str, secret: bytes, many: int) -> Mapping[str, float]:
    """Run `start` in a new process, and return its measurements."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.open", address, secret.hex(), str(many)),
        stdout=PIPE,
        cwd=_TOP,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, "the benchmark process must exit with status 0"
    took: Mapping[str, float] = json.loads(output.splitlines()[-1])
    return took


async def of_store(
    name: str,
    addresses: tuple[str, str],
    *,
    few: int,
    many: int,
    seconds: float,
    times: int,
    starts: int,
) -> list[Figure]:
    """Return the lines of a store. `addresses` belong to two empty stores."""
    secret = secrets.token_bytes(32)
    sides = Filled(few), Filled(many)
    async with sides[0].opened(addresses[0], secret), sides[1].opened(addresses[1], secret):
        began = [
            await starts_of(address, secret, side.many, times=starts)
            for address, side in zip(addresses, sides, strict=True)
        ]
        bare, our_side = (partial(side.resumed_each, 10) for side in sides)
        resumed = [await alternate(number, bare, our_side) for number in in_rounds(seconds)]
        bare, our_side = (partial(side.listed_each, 10) for side in sides)
        listed = [await alternate(number, bare, our_side) for number in in_rounds(seconds / 4)]
        expired = [await expiry(side, times=times) for side in sides]
    lines = [
        *_of_start(began[0], began[1]),
        summary("from a new question until its await returns", resumed, show=_time, at_most=1.3),
        summary("listing a person's open questions", listed, show=_time, at_most=1.3),
        *_of_expiry(expired[0], expired[1], number=many),
    ]
    return [dataclasses.replace(line, what=f"{name}: {line.what}") for line in lines]


async def starts_of(address: str, secret: bytes, many: int, *, times: int) -> Mapping[str, float]:
    """Return the median of each measurement over several starts, because starts differ."""
    every = [await started(address, secret, many) for _ in range(times)]
    return {name: median(each[name] for each in every) for name in every[0]}


def _of_start(few: Mapping[str, float], many: Mapping[str, float]) -> Iterator[Figure]:
    for name, what in (
        ("ready", "a start, until it is ready"),
        ("memory", "memory of a process that is ready"),
        ("room", "the first new question, for which all open questions are counted"),
        ("counted", "reading all questions for the metrics"),
        ("turn", "the longest turn of the loop while they are read"),
        ("memory counted", "memory with metrics"),
    ):
        show = _megabytes if name.startswith("memory") else _time
        yield _line(what, few[name], many[name], show=show)


def _of_expiry(few: Expiry, many: Expiry, *, number: int) -> Iterator[Figure]:
    yield _line("the sweeper expires a question", few.each, many.each, at_most=1.3)
    yield _line("processor time to expire a question", few.processor, many.processor, at_most=1.3)
    yield _line(
        "the longest turn of the loop while they expire", few.longest_turn, many.longest_turn
    )
    quiet, meanwhile = many.quiet, many.meanwhile
    what = f"a question asked while {number:,} expire, against before"
    yield _line(f"{what}: median", median(quiet), median(meanwhile), rounds=len(meanwhile))
    yield _line(f"{what}: longest", max(quiet), max(meanwhile), rounds=len(meanwhile))


def _line(
    what: str,
    baseline: float,
    our_side: float,
    *,
    show: Callable[[float], str] | None = None,
    at_most: float | None = None,
    rounds: int = 1,
) -> Figure:
    figure = summary(what, [(baseline, our_side)], show=show or _time, at_most=at_most)
    return dataclasses.replace(figure, rounds=rounds)


def _time(seconds: float) -> str:
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def _megabytes(size: float) -> str:
    return f"{size / 2**20:.0f} MB"


@asynccontextmanager
async def two_empty(name: str, folder: Path) -> AsyncIterator[tuple[str, str]]:
    """Provide the addresses of two empty stores, on a server that is started for them."""
    if name == "memory":
        yield "memory:", "memory:"
    elif name == "SQLite":
        yield f"sqlite:///{folder / 'few.db'}", f"sqlite:///{folder / 'many.db'}"
    elif name == "PostgreSQL":
        postgres = PostgresServer(on_disk=True)
        postgres.start()
        try:
            async with postgres.database() as few, postgres.database() as many:
                yield few, many
        finally:
            postgres.remove()
    else:
        with own_valkey() as valkey:
            yield valkey.url, valkey.url.replace("db=0", "db=1")


async def measure(
    stores: Sequence[str] = STORES,
    *,
    few: int = FEW,
    many: int = MANY,
    seconds: float = 10.0,
    times: int = 50,
    starts: int = 3,
) -> AsyncIterator[Figure]:
    """Yield the lines of each store as they are measured."""
    for name in stores:
        with tempfile.TemporaryDirectory() as folder:
            async with two_empty(name, Path(folder)) as addresses:
                figures = await of_store(
                    name,
                    addresses,
                    few=few,
                    many=many,
                    seconds=seconds,
                    times=times,
                    starts=starts,
                )
            for figure in figures:
                yield figure


async def _table(stores: Sequence[str], *, many: int) -> str:
    figures = list[Figure]()
    async for figure in measure(stores, many=many):
        figures.append(figure)
        print(f"{figure.what}: {figure.baseline}, {figure.our_side}", file=sys.stderr)
    return table(figures)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.open", description=__doc__)
    parser.add_argument("--many", type=int, default=MANY, help="default: %(default)s")
    parser.add_argument("--store", action="append", choices=STORES, help="this one alone")
    parser.add_argument("process", nargs="*", metavar="ADDRESS SECRET MANY")
    given = parser.parse_args()
    if given.process:
        address, secret, many = given.process
        print(json.dumps(asyncio.run(start(address, bytes.fromhex(secret), int(many)))))
    else:
        print(asyncio.run(_table(given.store or STORES, many=given.many)))


if __name__ == "__main__":
    main()
