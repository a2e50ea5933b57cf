"""A process of its own on a store: what it does is its first argument, the address its second.

It speaks in lines: "ready", then after a line on its input what became of its work, as JSON.
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
    """Claim every record, then wait until the watch has shown each one that the other won."""
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

    # Four at a time, so that neither process has it all in one commit.
    for start in range(0, len(contested), 4):
        await asyncio.gather(*map(claim, contested[start : start + 4]))
    unseen = {item_id for item_id, _ in lost}
    while unseen:
        seen = await anext(watch)
        if not isinstance(seen, Record):  # something may have been missed
            found = await store.list("elicitation", owner="a", limit=1000)
            unseen -= {item.id for item in found if item.status != "pending"}
            continue
        assert seen.status != name
        unseen.discard(seen.id)
    say({"won": won, "lost": lost})
    await asyncio.to_thread(sys.stdin.readline)
    await store.aclose()


async def write_until_killed(address):
    """Write pairs from many tasks, and name each once it is acknowledged."""
    store = await open_store(address)
    say("ready")

    async def write_on(task):
        for number in range(1_000_000):
            name = f"{task}-{number}"
            await store.write(record(name), record(f"{name}-twin"))
            say(name)

    await asyncio.gather(*map(write_on, range(20)))


async def write_until_refused(address):
    """The same one after another, until the store refuses, and then why."""
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
    """Write under a limit of file sizes until that fails, and once more when it is lifted."""
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
    """Open the store as a user who may read it and not write it."""
    await asyncio.to_thread(int)  # what a thread needs is imported while we still may
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
