"""`python -m benchmarks.valkey`: compare the service on Valkey with plain redis-py calls.

The baseline runs as many Valkey scripts as the service runs writes. Each baseline script sets one
value of the size of a record, and returns when the value is on disk (`appendfsync always`). The
bare client has redis-py's defaults: it opens a connection for each waiting call. The server is
started for the run, on a Unix socket of this machine.

`wake` starts a second process with `python -m benchmarks.valkey ADDRESS SECRET`. The second process
reads the ids of questions and waits for their answers. When a wait ends, it prints the time of the
clock that both processes share (`perf_counter`).
"""

import argparse
import asyncio
import secrets
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

from redis.asyncio import Redis

from benchmarks.figure import Figure, Round, alternate, in_rounds, summary, table
from benchmarks.in_process import TAKER, fresh, open_elicitations, sealed_bytes, utc_now
from benchmarks.settling import AT_ONCE, bare_lifecycles, blobs, our_lifecycles, our_resumed
from flows.elicitation.traits import TrustedCode
from tests.support.valkey_server import OwnValkey, own_valkey
from webapp.elicitations.complete import complete_elicitation
from webapp.elicitations.service import Elicitations

_SET = "return redis.call('SET', KEYS[1], ARGV[1])"


class BareClient:
    """The writer for `bare_lifecycles`."""

    def __init__(self, client: "Redis", digest: str) -> None:
        self._client = client
        self._digest = digest

    @classmethod
    @asynccontextmanager
    async def open(cls, server: OwnValkey) -> AsyncIterator["BareClient"]:
        async with Redis(unix_socket_path=str(server.socket), protocol=2) as client:
            yield cls(client, await client.script_load(_SET))

    async def write(self, id: str, blob: bytes, version: int = 0) -> None:
        await self._client.evalsha(self._digest, 1, id, blob)


async def lifecycles(server: OwnValkey, folder: Path, *, seconds: float, times: int) -> Figure:
    """Measure lifecycles per second, 100 at once.

    The baseline for a lifecycle is four bare scripts.
    """
    async with (
        open_elicitations(folder, address=server.url) as (elicitations, owner),
        BareClient.open(server) as client,
    ):
        size = await sealed_bytes(elicitations, owner)
        new_id = partial(elicitations.new_id, owner)
        baseline = partial(bare_lifecycles, client.write, blobs(size), times, new_id=new_id)
        our_side = partial(our_lifecycles, elicitations, owner, times)
        await alternate(0, baseline, our_side)
        rounds = [await alternate(number, baseline, our_side) for number in in_rounds(seconds)]
    return summary(
        f"lifecycles a second on Valkey, {AT_ONCE} at once, 4 bare scripts each",
        rounds,
        show=lambda rate: f"{rate:,.0f}/s",
        at_least=0.6,
    )


async def settle_to_resumed(
    server: OwnValkey, folder: Path, *, seconds: float, times: int
) -> Figure:
    """Measure a single call from `settle` to the end of the `await`, against one bare script."""
    async with (
        open_elicitations(folder, address=server.url) as (elicitations, owner),
        BareClient.open(server) as client,
    ):
        values = blobs(await sealed_bytes(elicitations, owner))

        async def one_script() -> float:
            start = perf_counter()
            await client.write(elicitations.new_id(owner), next(values))
            return perf_counter() - start

        our_side = partial(our_resumed, elicitations, owner)
        rounds = [
            await alternate(number, one_script, our_side, times=times)
            for number in in_rounds(seconds)
        ]
    return summary(
        "from a settle until the await returns on Valkey, one at a time", rounds, show=_microseconds
    )


async def wake(server: OwnValkey, folder: Path, *, seconds: float, times: int) -> Figure:
    """Measure from `settle` to the end of another process's `await`, against `settle` alone."""
    secret = secrets.token_bytes(32)
    async with open_elicitations(folder, address=server.url, secret=secret) as (here, owner):
        other = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.valkey", server.url, secret.hex()),
            stdin=PIPE,
            stdout=PIPE,
        )
        try:
            rounds: list[Round] = []
            for _ in in_rounds(seconds):
                took = [await _woken(here, owner, other) for _ in range(times)]
                settled, woken = zip(*took, strict=True)
                rounds.append((median(settled), median(woken)))
        finally:
            other.kill()
            await other.wait()
    return summary(
        "from a settle until the await returns in another process on Valkey",
        rounds,
        show=_microseconds,
    )


async def _woken(here: Elicitations, owner: str, other: Process) -> tuple[float, float]:
    assert other.stdin is not None
    assert other.stdout is not None
    question = fresh(owner, now=utc_now())
    await here.write(question)
    await here.open_attempt(question.id, browser="0" * 64)
    other.stdin.write(f"{question.id}\n".encode())
    await other.stdout.readline()  # the other process waits
    start = perf_counter()
    await complete_elicitation(here, question.id, {"paid": True}, TrustedCode())
    settled = perf_counter() - start
    return settled, float(await other.stdout.readline()) - start


async def _wait(address: str, secret: str) -> None:
    """Run the other process."""
    with tempfile.TemporaryDirectory() as folder:
        opened = open_elicitations(Path(folder), address=address, secret=bytes.fromhex(secret))
        async with opened as (elicitations, _):
            while line := await asyncio.to_thread(sys.stdin.readline):
                await _wait_for(elicitations, line.strip())


async def _wait_for(elicitations: Elicitations, id: str) -> None:
    with elicitations.waiters.waiter(id, request_id="leg", run="run", taker=TAKER) as waiter:
        print("waits", flush=True)
        now = utc_now()
        while not any(await waiter.changes(until=now + timedelta(minutes=5), now=now)):
            pass  # None: a change may have been missed, so wait again
        print(perf_counter(), flush=True)


def _microseconds(took: float) -> str:
    return f"{took * 1e6:,.0f} us"


async def measure(*, seconds: float, times: int = 1000) -> list[Figure]:
    """Measure each figure for about `seconds` seconds."""
    figures: list[Figure] = []
    with own_valkey() as server, tempfile.TemporaryDirectory() as folder:
        for figure, count in ((lifecycles, times), (settle_to_resumed, 50), (wake, 50)):
            server.empty()
            figures.append(
                await figure(server, Path(folder), seconds=seconds, times=min(count, times))
            )
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.valkey")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each figure")
    parser.add_argument("other", nargs="*", metavar="ADDRESS SECRET")
    given = parser.parse_args()
    if given.other:
        asyncio.run(_wait(*given.other))
    else:
        print(table(asyncio.run(measure(seconds=given.seconds))))


if __name__ == "__main__":
    main()
