"""A process on a PostgreSQL store, for figures that need several processes.

The process prints "ready", starts at a line on its input, and prints its measurements as JSON.
"""

import asyncio
import json
import sys
from functools import partial
from pathlib import Path
from time import perf_counter, process_time

from benchmarks.in_process import open_elicitations
from benchmarks.settling import our_lifecycles
from webapp.stores.postgres import PostgresStore, open_store

SECRET = b"the same in every process: 32 B."
_WARM = 200


def say(what: object) -> None:
    print(json.dumps(what), flush=True)


async def lifecycles(address: str, times: str) -> None:
    """Print processor time and round trips of each lifecycle."""
    async with open_elicitations(Path(), address=address, secret=SECRET) as (elicitations, owner):
        store = elicitations.store
        assert isinstance(store, PostgresStore)
        await our_lifecycles(elicitations, owner, _WARM)
        say("ready")
        await asyncio.to_thread(sys.stdin.readline)
        trips, processor, start = store.round_trips, process_time(), perf_counter()
        await our_lifecycles(elicitations, owner, int(times))
        took = perf_counter() - start
        say(
            {
                "processor": (process_time() - processor) / int(times),
                "trips": (store.round_trips - trips) / int(times),
                "rate": int(times) / took,
            }
        )
        await asyncio.to_thread(sys.stdin.readline)


async def receive(address: str, times: str) -> None:
    """Print when each record of another process arrived, by the clock that all processes share."""
    store = await open_store(address)
    watch = store.watch()
    say("ready")
    left = int(times)
    while left:
        seen = await anext(watch)
        if seen is not None:
            say(perf_counter())
            left -= 1
    await store.aclose()


async def main(what: str, *rest: str) -> None:
    await {"lifecycles": partial(lifecycles), "receive": partial(receive)}[what](*rest)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
