"""What one tool call takes in the server, counted: no noise of the machine touches a count.

`python -m benchmarks.counts` prints a table of turns of the event loop, tasks, timers, and, for
ours, reads and commits of the store, each for one call by each revision, by hand and with us. What
an idle server does in the same time is counted beside and taken off.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import httpx

from benchmarks.calling import REVISIONS, Caller, serving
from benchmarks.served import by_hand, until_stdin_ends, with_elicit
from webapp.stores.sqlite import SqliteStore
from webapp.stores.sqlite_writer import SqliteWriter

CALLS = 100
IDLE_SECONDS = 2.0
_counts: Counter[str] = Counter()


class CountingLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop: uvloop's turns cannot be counted."""

    def _run_once(self) -> None:
        _counts["turns"] += 1
        super()._run_once()  # type: ignore[misc]

    def create_task(self, *given: Any, **named: Any) -> Any:
        _counts["tasks"] += 1
        return super().create_task(*given, **named)

    def call_at(self, *given: Any, **named: Any) -> Any:
        _counts["timers"] += 1
        return super().call_at(*given, **named)


def counted(owner: type[Any], name: str, what: str) -> None:
    """Count the calls of a method, in this process alone."""
    method = getattr(owner, name)

    @wraps(method)
    def counting(*given: Any, **named: Any) -> Any:
        _counts[what] += 1
        return method(*given, **named)

    setattr(owner, name, counting)


def telling(app: Any) -> Any:
    """With an address that tells what was counted."""

    async def served(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == "/counts":
            body = json.dumps({**_counts, "at": time.monotonic()}).encode()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": body})
            return
        await app(scope, receive, send)

    return served


async def serve(which: str) -> None:
    with tempfile.TemporaryDirectory() as folder:

        def build(base: str) -> Any:
            return telling(
                by_hand(base) if which == "by_hand" else with_elicit(base, folder=Path(folder))
            )

        await until_stdin_ends(build)


async def count(which: str, mode: str) -> dict[str, float]:
    """For one call, without what an idle server does meanwhile."""
    async with at(which) as url, httpx.AsyncClient() as http, Caller.connected(url, mode=mode) as c:

        async def told() -> dict[str, float]:
            return dict((await http.get(f"{url}/counts")).json())

        for _ in range(20):  # what happens once
            await c.call()
        await told()
        before = await told()
        await asyncio.sleep(IDLE_SECONDS)
        idle = await told()
        for _ in range(CALLS):
            await c.call()
        after = await told()
    rest = {name: (idle[name] - before[name]) / (idle["at"] - before["at"]) for name in idle}
    took = after["at"] - idle["at"]
    return {
        name: (after[name] - idle[name] - rest.get(name, 0) * took) / CALLS
        for name in after
        if name != "at"
    }


@asynccontextmanager
async def at(which: str) -> AsyncIterator[str]:
    async with serving(which, module="benchmarks.counts") as url:
        yield url


async def table() -> str:
    lines = ["| a call | turns | tasks | timers | reads | commits |", "|" + "---|" * 6]
    for revision, mode in REVISIONS.items():
        for which in ("by_hand", "with_elicit"):
            found = await count(which, mode)
            parts = [f"{found.get(name, 0):.1f}" for name in NAMES]
            lines.append(f"| {revision}, {which.replace('_', ' ')} | {' | '.join(parts)} |")
    return "\n".join(lines)


NAMES = ("turns", "tasks", "timers", "reads", "commits")

if __name__ == "__main__":
    if len(sys.argv) > 1:
        for name in ("read", "find", "list"):
            counted(SqliteStore, name, "reads")
        counted(SqliteWriter, "_commit", "commits")
        with asyncio.Runner(loop_factory=CountingLoop) as runner:
            runner.run(serve(sys.argv[1]))
    else:
        print(asyncio.run(table()))
