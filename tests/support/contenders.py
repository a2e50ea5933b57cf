"""Processes that compete for one store."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.processes import killed, start

_TOP = Path(__file__).parents[2]


@asynccontextmanager
async def contender(*arguments) -> AsyncIterator[Process]:
    process = await start(
        *(sys.executable, "-m", "tests.support.contender"),
        *map(str, arguments),
        name="the contender",
        stdin=PIPE,
        cwd=_TOP,
    )
    try:
        async with asyncio.timeout(300):
            yield process
    finally:
        await killed(process)


async def read_line(process):
    return json.loads(await process.stdout.readline())


async def let_start(process):
    process.stdin.write(b"go\n")
    await process.stdin.drain()
