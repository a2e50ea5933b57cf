"""The cost of a settled question in addition to its durable commit: latency and throughput.

Both sides write records of the same size to SQLite with `synchronous=FULL` and group commit, the
same number of times. Risks: SQLite writes nothing if a row is replaced by the same bytes. Our
store writes different bytes each time, because it encrypts them, so the bare writer gets different
bytes for each write, too. A commit that lengthens the log takes several times as long as one that
overwrites it, so both sides write until their logs have their full length before the measurement
starts.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from functools import partial
from itertools import cycle
from pathlib import Path
from time import perf_counter

from msgspec.structs import replace

from benchmarks.bare import BareWriter, SealingWriter
from benchmarks.figure import Figure, Round, alternate, in_rounds, summary
from benchmarks.in_process import TAKER, fresh, open_elicitations, sealed_bytes, utc_now
from flows.elicitation import states
from flows.elicitation.states import Status
from flows.elicitation.traits import TrustedCode
from webapp.elicitations.complete import complete_elicitation
from webapp.elicitations.service import Elicitations

AT_ONCE = 100
LOG_BYTES = 4_000_000  # SQLite restarts its log after some 1,000 pages


async def settle_to_resumed(
    folder: Path, *, seconds: float, times: int = 100, log_bytes: int = LOG_BYTES
) -> Figure:
    """Measure the time from `settle` until the waiting `await` returns.

    The baseline is a commit, after which a future is set.
    """
    async with open_elicitations(folder) as (elicitations, owner):
        size = await sealed_bytes(elicitations, owner)
        writer = BareWriter(folder / "bare.db")
        try:
            baseline = partial(_bare_resumed, writer, blobs(size))
            our_side = partial(our_resumed, elicitations, owner)
            while not _is_grown(folder, log_bytes):
                await alternate(0, baseline, our_side)
            rounds = [
                await alternate(number, baseline, our_side, times=times)
                for number in in_rounds(seconds)
            ]
        finally:
            writer.close()
    return summary(
        "from a settle until the await returns",
        rounds,
        show=lambda took: f"{took * 1e6:.0f} us",
        at_most=1.7,
    )


async def lifecycles(
    folder: Path,
    *,
    writes: type[BareWriter] | None,
    seconds: float,
    times: int = 1000,
    log_bytes: int = LOG_BYTES,
) -> Figure:
    """Measure how many lifecycles of a question run per second, 100 at a time.

    The baseline makes four writes for each lifecycle, with a writer of the class `writes`. If
    `writes` is None, the baseline writes to our own encrypting store, and the ratio shows only the
    cost of our service.
    """
    kind = {None: "of our store's", SealingWriter: "sealed", BareWriter: "bare"}[writes]
    async with open_elicitations(folder) as (elicitations, owner):
        size = await sealed_bytes(elicitations, owner)
        writer = (writes or BareWriter)(folder / "bare.db")
        try:
            new_id = partial(elicitations.new_id, owner)
            baseline = partial(bare_lifecycles, writer.write, blobs(size), times, new_id=new_id)
            if writes is None:
                # The bare log must be full too, although it is not measured.
                await writer.write(new_id(), bytes(log_bytes))
                baseline = partial(stored_lifecycles, elicitations, owner, times)
            our_side = partial(our_lifecycles, elicitations, owner, times)
            while not _is_grown(folder, log_bytes):
                await alternate(0, baseline, our_side)
            rounds: list[Round] = [
                await alternate(number, baseline, our_side) for number in in_rounds(seconds)
            ]
        finally:
            writer.close()
    return summary(
        f"lifecycles a second, {AT_ONCE} at once, 4 {kind} writes each",
        rounds,
        show=lambda rate: f"{rate:,.0f}/s",
        at_least=0.6 if writes is None else None,
    )


async def _bare_resumed(writer: BareWriter, blobs: Iterator[bytes]) -> float:
    id = secrets.token_urlsafe(30)
    await writer.write(id, next(blobs))
    await writer.write(id, next(blobs))
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def line() -> float:
        await future
        return perf_counter()

    async with asyncio.TaskGroup() as group:
        resumed = group.create_task(line())
        await asyncio.sleep(0)
        start = perf_counter()
        await writer.write(id, next(blobs))
        future.set_result(None)
    return resumed.result() - start


async def our_resumed(elicitations: Elicitations, owner: str) -> float:
    question = fresh(owner, now=utc_now())
    await elicitations.write(question)
    question = await elicitations.open_attempt(question.id, browser="0" * 64)

    async def line() -> float:
        with elicitations.waiters.waiter(
            question.id, request_id="leg", run="run", taker=TAKER
        ) as waiter:
            settled = question
            while settled.status is not Status.ACCEPTED:
                now = utc_now()
                changes = await waiter.changes(until=now + timedelta(minutes=5), now=now)
                settled = await elicitations.rows.newest(question, changes)
            return perf_counter()

    async with asyncio.TaskGroup() as group:
        resumed = group.create_task(line())
        await asyncio.sleep(0)
        start = perf_counter()
        await complete_elicitation(elicitations, question.id, {"paid": True}, TrustedCode())
    return resumed.result() - start


async def bare_lifecycles(
    write: Callable[[str, bytes, int], Awaitable[None]],
    blobs: Iterator[bytes],
    times: int,
    *,
    new_id: Callable[[], str],
) -> float:
    async def one() -> None:
        id = new_id()
        for version in range(4):
            await write(id, next(blobs), version)

    return await rate(one, times)


async def stored_lifecycles(elicitations: Elicitations, owner: str, times: int) -> float:
    async def one() -> None:
        question = fresh(owner, now=utc_now(), id=elicitations.new_id(owner))
        for version in range(4):
            await elicitations.rows.write(replace(question, version=version))

    return await rate(one, times)


async def our_lifecycles(elicitations: Elicitations, owner: str, times: int) -> float:
    async def tool() -> None:
        question = fresh(owner, now=utc_now(), id=elicitations.new_id(owner))
        with elicitations.waiters.waiter(
            question.id, request_id="leg", run="run", taker=TAKER
        ) as waiter:
            await elicitations.write(question)
            person = asyncio.create_task(browse(question.id))
            settled = question
            while settled.take is None:  # a wake is a hint to check again
                now = utc_now()
                changes = await waiter.changes(until=now + timedelta(minutes=5), now=now)
                settled = await elicitations.rows.newest(settled, changes)
            await elicitations.each(
                [settled.id], lambda e: states.deliver(e, run="run", now=utc_now())
            )
            await person

    async def browse(id: str) -> None:
        await elicitations.open_attempt(id, browser="0" * 64)
        await complete_elicitation(elicitations, id, {"paid": True}, TrustedCode())

    return await rate(tool, times)


async def rate(one: Callable[[], Awaitable[None]], times: int) -> float:
    """Return the rate of `one`, run `times` times by 100 workers."""
    left = iter(range(times))

    async def work() -> None:
        for _ in left:
            await one()

    start = perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())
    return times / (perf_counter() - start)


def _is_grown(folder: Path, log_bytes: int) -> bool:
    return all((folder / f"{name}.db-wal").stat().st_size >= log_bytes for name in ("bare", "ours"))


def blobs(size: int) -> Iterator[bytes]:
    return cycle([secrets.token_bytes(size) for _ in range(61)])
