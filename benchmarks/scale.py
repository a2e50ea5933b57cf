"""`python -m benchmarks.scale`: the first bottleneck of each store, from one machine to a hundred.

Requests are not simulated one by one. The cost of a call is known for each resource, so at a given
rate the resource is busy for a part of the time. The first resource that is busy all of the time is
the limit (the utilization law of queueing). The cost of a call in our process and of a write in
each store is measured in the same run. The other costs are in STORES and were measured separately.

Risks: the model agrees only with itself. So the same formula also predicts the lifecycles a second
of one process on each store, and the run compares that prediction with a counted rate.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter, process_time, thread_time

import psutil  # type: ignore[import-untyped]

from benchmarks.calling import Caller, serving
from benchmarks.in_process import open_elicitations
from benchmarks.settling import our_lifecycles
from tests.support.postgres_server import shared_server
from tests.support.valkey_server import own_valkey
from webapp.limits import Arrivals, CallLimits
from webapp.settings.quotas import PolicySettings
from webapp.sweeper import EVERY_SECONDS

MACHINES = (1, 2, 4, 10, 30, 100)
COLUMNS = (
    *("store", "machines", "calls per second", "limited by", "next limit", "open questions"),
    *("held streams", "wake", "connections of the store"),
)
_US = 1e-6
_TICK = 0.01  # seconds: the resolution of the processor times of other processes
WRITES = 4  # the number of writes in a lifecycle


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCosts:
    """Costs in processor seconds, except for two latencies.

    A store's server has its own machine.
    """

    name: str
    # In our process, in addition to a call on SQLite.
    our_write: float
    our_read: float
    our_receive: float  # to receive one write of another process
    # In the store: its server, or SQLite's thread.
    a_write: float
    a_read: float
    a_notice: float  # one notice of changes, without the cost of its listeners
    a_listener: float  # to send the notice to one listening process
    a_look: float  # a query for due records
    processors: int | None  # usable by the store; None: all processors of its machine
    # A commit has one writer and up to `together` records.
    commit: float
    together: int
    round_trip: float  # of a notice; changes that arrive during a notice wait for the next notice
    connections: int  # of each process
    connections_at_most: int | None
    machines_at_most: int | None = None
    is_one_writer: bool = False  # one writer for all processes


# Measured separately, by bare clients on two virtual cores under other load. The run measures
# `a_write` and `our_write` and replaces these values.
STORES = (
    StoreCosts(
        name="SQLite",
        our_write=0,
        our_read=0,
        our_receive=0,
        a_write=17 * _US,
        a_read=0,
        a_notice=0,
        a_listener=0,
        a_look=50 * _US,
        processors=1,
        commit=0.4e-3,
        together=64,
        round_trip=5e-3,
        connections=1,
        connections_at_most=None,
        machines_at_most=1,
        is_one_writer=True,
    ),
    StoreCosts(
        name="PostgreSQL",
        our_write=16 * _US,
        our_read=96 * _US,
        our_receive=13 * _US,
        a_write=32 * _US,
        a_read=47 * _US,
        a_notice=70 * _US,
        a_listener=19 * _US,
        a_look=100 * _US,
        processors=None,
        commit=0.4e-3,
        together=64,
        round_trip=2e-3,
        connections=5,  # four, and one that listens
        connections_at_most=100,
    ),
    StoreCosts(
        name="Valkey",
        our_write=19 * _US,
        our_read=88 * _US,
        our_receive=18 * _US,
        a_write=31 * _US,
        a_read=35 * _US,
        a_notice=18 * _US,
        a_listener=4.2 * _US,
        a_look=60 * _US,
        processors=1,
        commit=0.8e-3,
        together=256,
        round_trip=1e-3,
        connections=3,
        connections_at_most=10_000,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCosts:
    """The cost of one call in the process that serves it, and in the store."""

    processor: float  # seconds of the event loop
    writes: float
    reads: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The machines and limits of an installation, and how long people take."""

    machines: int
    processes_a_machine: int = 2
    connections: int = Arrivals().connections
    pending: int = PolicySettings().pending_at_most
    store_processors: int = 8
    answer: float = 30.0  # seconds from the link to the answer
    streams: int = 2  # of each open call: its own, and one of the client or of the page

    @property
    def processes(self) -> int:
        return self.machines * self.processes_a_machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The rate of calls a second at which a resource is busy all of the time."""

    name: str
    calls: float


def limits(call: CallCosts, store: StoreCosts, site: Site) -> Sequence[Limit]:
    """Return all limits, lowest first."""
    return sorted(_limits(call, store, site), key=lambda limit: limit.calls)


def wake(store: StoreCosts, site: Site) -> float:
    """Return the seconds until a waiter in another process is notified, under constant load.

    Changes that arrive during a notice wait for the next notice. Notices therefore become less
    frequent before they use more than half of the store's processors.
    """
    busy = 2 * site.processes * _notice(store, site) / _processors(store, site)
    return max(store.round_trip, busy)


def _limits(call: CallCosts, store: StoreCosts, site: Site) -> Iterator[Limit]:
    if store.machines_at_most is not None and site.machines > store.machines_at_most:
        yield Limit(name="one machine", calls=0)
        return
    processes = site.processes
    others = call.writes * (processes - 1) * store.our_receive
    our_time = call.writes * store.our_write + call.reads * store.our_read
    yield Limit(name="our processors", calls=processes / (call.processor + our_time + others))
    yield Limit(name="held streams", calls=processes * site.connections / _held(site))
    yield Limit(name="open questions", calls=site.pending / site.answer)

    processors, notice = _processors(store, site), _notice(store, site)
    left = processors - processes * store.a_look / EVERY_SECONDS
    served = call.writes * store.a_write + call.reads * store.a_read
    each_alone = left / (served + call.writes * notice)
    gathered = (left - processes * notice / wake(store, site)) / served
    yield Limit(name="the store's processors", calls=max(each_alone, gathered))
    in_line = 1 if store.is_one_writer else processes
    yield Limit(name="commits", calls=in_line * store.together / store.commit / call.writes)


def _held(site: Site) -> float:
    """Return the connection seconds of a call: its open time times its streams."""
    return min(site.answer, CallLimits().call.total_seconds()) * site.streams


def _processors(store: StoreCosts, site: Site) -> int:
    return store.processors or site.store_processors


def _notice(store: StoreCosts, site: Site) -> float:
    return store.a_notice + store.a_listener * site.processes


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The cost of a lifecycle on a store, and the counted lifecycles a second of one process."""

    lifecycle: CallCosts
    store: StoreCosts
    counted: float

    @property
    def predicted(self) -> Limit:
        """The predicted limit of this process, without people at browsers."""
        alone = Site(machines=1, processes_a_machine=1, answer=1e-6)
        return limits(self.lifecycle, self.store, alone)[0]


async def measured_sqlite(folder: Path, *, times: int) -> Measured:
    """Measure SQLite. The loop and the thread that waits for the disk are measured separately."""
    async with open_elicitations(folder) as (elicitations, owner):
        await our_lifecycles(elicitations, owner, times)  # fills the log to its full length
        began, loop_began, all_began = perf_counter(), thread_time(), process_time()
        await our_lifecycles(elicitations, owner, times)
        took, loop = perf_counter() - began, thread_time() - loop_began
        thread = process_time() - all_began - loop
    store = replace(STORES[0], a_write=thread / times / WRITES)
    lifecycle = CallCosts(processor=loop / times, writes=WRITES, reads=0)
    return Measured(lifecycle=lifecycle, store=store, counted=times / took)


async def measured_server(
    folder: Path, costs: StoreCosts, address: str, server: int, *, sqlite: Measured, times: int
) -> Measured:
    """Measure a store's server, and the additional cost of our process over SQLite."""
    async with open_elicitations(folder, address=address) as (elicitations, owner):
        await our_lifecycles(elicitations, owner, times)
        began, all_began, server_began = perf_counter(), process_time(), _spent(server)
        await our_lifecycles(elicitations, owner, times)
        took, our_time = perf_counter() - began, process_time() - all_began
        server_time = max(_TICK, _spent(server) - server_began)
    # On a busy machine, the run on SQLite can cost more than this run. Without `min`, the cost of
    # a write would be negative then.
    alone = min(sqlite.lifecycle.processor, our_time / times)
    lifecycle = replace(sqlite.lifecycle, processor=alone)
    store = replace(
        costs, our_write=(our_time / times - alone) / WRITES, a_write=server_time / times / WRITES
    )
    return Measured(lifecycle=lifecycle, store=store, counted=times / took)


def _spent(number: int) -> float:
    """Return the processor seconds of a process and its children."""
    first = psutil.Process(number)
    return sum(sum(each.cpu_times()[:2]) for each in (first, *first.children(recursive=True)))


async def measured_stores(*, times: int) -> Sequence[Measured]:
    """Measure each store, with servers that are started for the run."""
    with tempfile.TemporaryDirectory() as folder:
        sqlite = await measured_sqlite(Path(folder), times=times)
        measure = partial(measured_server, Path(folder), sqlite=sqlite, times=times)
        postgres = shared_server(on_disk=True)
        number = int((postgres.data / "postmaster.pid").read_text("utf-8").split()[0])
        async with postgres.database() as address:
            on_postgres = await measure(STORES[1], address, number)
        with own_valkey() as valkey:
            on_valkey = await measure(STORES[2], valkey.url, valkey.pid)
    return sqlite, on_postgres, on_valkey


async def measured_call(store: StoreCosts, *, times: int) -> CallCosts:
    """Measure the cost of a call over HTTP, whose person is as quick as a program."""
    async with serving("with_elicit") as url:
        server = max(psutil.Process().children(), key=psutil.Process.create_time).pid
        spent = list[float]()
        for mode in ("legacy", "2026-07-28"):
            async with Caller.connected(url, mode=mode) as caller:
                for _ in range(max(1, times // 4)):
                    await caller.call()
                began = _spent(server)
                for _ in range(times):
                    await caller.call()
                spent.append((_spent(server) - began) / times)
    # The average of the two revisions, as counted by `python -m benchmarks.counts`.
    writes, reads = (5.0 + 6.0) / 2, (3.9 + 5.0) / 2
    loop = sum(spent) / len(spent) - writes * store.a_write
    return CallCosts(processor=loop, writes=writes, reads=reads)


def table(call: CallCosts, stores: Sequence[StoreCosts], site: Site) -> str:
    """Return a table with a line for each store and number of machines."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for store in stores:
        for machines in MACHINES:
            here = replace(site, machines=machines)
            first, *rest = limits(call, store, here)
            if not rest:
                break
            second = rest[0]
            needed = here.processes * store.connections
            over = store.connections_at_most is not None and needed > store.connections_at_most
            lines.append(
                f"| {store.name} | {machines} | {first.calls:,.0f} | {first.name} "
                f"| {second.name} at {second.calls:,.0f} | {first.calls * here.answer:,.0f} "
                f"| {first.calls * _held(here):,.0f} | {wake(store, here) * 1e3:.0f} ms "
                f"| {needed}{f' of {store.connections_at_most}' if over else ''} |"
            )
    return "\n".join(lines)


async def run(*, times: int, calls: int, site: Site) -> str:
    """Return the measurements, the predictions and the tables."""
    measured = await measured_stores(times=times)
    stores = [each.store for each in measured]
    call = await measured_call(stores[0], times=calls)
    raised = replace(site, connections=20_000, pending=2_000_000)
    return f"""\
A call over HTTP takes {call.processor * 1e3:.1f} ms of the loop, a lifecycle \
{measured[0].lifecycle.processor * 1e6:.0f} us.

| one process on | a write, our process | a write, the store | lifecycles, predicted | measured |
|---|---|---|---|---|
{chr(10).join(map(_line, measured))}

As it comes:

{table(call, stores, site)}

With ELICIT_CONNECTIONS={raised.connections} and ELICIT_PENDING_AT_MOST={raised.pending}:

{table(call, stores, raised)}"""


def _line(measured: Measured) -> str:
    store = measured.store
    return (
        f"| {store.name} | {store.our_write * 1e6:.0f} us | {store.a_write * 1e6:.0f} us "
        f"| {measured.predicted.calls:,.0f} a second | {measured.counted:,.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--times", type=int, default=5000, help="lifecycles; default: %(default)s")
    parser.add_argument("--calls", type=int, default=200, help="over HTTP; default: %(default)s")
    parser.add_argument("--answer", type=float, default=30, help="seconds that a person takes")
    parser.add_argument("--store-processors", type=int, default=8)
    options = parser.parse_args()
    site = Site(machines=1, answer=options.answer, store_processors=options.store_processors)
    print(asyncio.run(run(times=options.times, calls=options.calls, site=site)))


if __name__ == "__main__":
    main()
