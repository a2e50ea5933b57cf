"""A process that works on a store. Its arguments: a function in this module, and an address.

It prints "ready", waits for a line on its input where needed, and prints its results as JSON.
"""

import asyncio
import json
import os
import resource
import sys

from msgspec.structs import replace

from flows.errors import StoreUnavailable
from tests.support.records import record
from webapp.stores import Conflict, Record, open_store


def say(what):
    print(json.dumps(what), flush=True)  # noqa: T201 - its output is its report


async def contend(address, name):
    """Claim every record, then wait until the watch has reported all records of the rival."""
    store = await open_store(address)
    watch = store.watch()
    contested = await store.list("elicitation", owner="a", limit=1000)
    say("ready")
    await asyncio.to_thread(sys.stdin.readline)
    won, lost = [], []

    async def claim(item):
        try:
            await store.write(replace(item, status=name))
            won.append(item.id)
        except Conflict as conflict:
            lost.append((item.id, conflict.found and conflict.found.status))

    # Claim four at a time, so that neither process gets all records in one commit.
    for start in range(0, len(contested), 4):
        await asyncio.gather(*map(claim, contested[start : start + 4]))
    unseen = {item_id for item_id, _ in lost}
    while unseen:
        seen = await anext(watch)
        if not isinstance(seen, Record):  # events may have been missed
            found = await store.list("elicitation", owner="a", limit=1000)
            unseen -= {item.id for item in found if item.status != "pending"}
            continue
        assert seen.status != name
        unseen.discard(seen.id)
    say({"won": won, "lost": lost})
    await asyncio.to_thread(sys.stdin.readline)
    await store.aclose()


async def write_until_killed(address):
    """Write pairs of records from many tasks, and print each name after its write."""
    store = await open_store(address)
    say("ready")

    async def write_on(task):
        for number in range(1_000_000):
            name = f"{task}-{number}"
            await store.write(record(name), record(f"{name}-twin"))
            say(name)

    await asyncio.gather(*map(write_on, range(20)))


async def write_until_refused(address):
    """Write pairs one after another until the store refuses, then print the reason."""
    store = await open_store(address)
    say("ready")
    for number in range(1_000_000):
        try:
            await store.write(record(f"{number}"), record(f"{number}-twin"))
        except StoreUnavailable as error:
            say({"refused": error.why})
            break
        say(f"{number}")
    await store.aclose()


async def fill_the_disk(address):
    """Write until a file size limit makes the store fail, then write again without the limit."""
    store = await open_store(address)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, most))
    acknowledged: list[str] = []
    message = ""
    while not message:
        name = f"a-{len(acknowledged)}"
        try:
            await store.write(record(name, sealed=bytes(60_000)))
            acknowledged.append(name)
        except StoreUnavailable as error:
            message = error.why
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    await store.write(record("after"))
    say({"acknowledged": acknowledged, "message": message})
    await store.aclose()


async def open_as_nobody(address):
    """Open the store as a user who can read the store's file but not write it."""
    await asyncio.to_thread(int)  # import what threads need before the user changes
    if os.geteuid() == 0:
        os.seteuid(65534)
    try:
        store = await open_store(address)
        await store.write(record("a-1"))
    except StoreUnavailable as error:
        say(error.why)


async def main(what, address, *rest):
    async with asyncio.timeout(300):
        await globals()[what](address, *rest)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
