"""Runs `elicit` as a process: with a home of its own, and an end in every case.

`-P` leaves the working directory off Python's path, as the installed command does.
"""

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support import processes
from tests.support.leaks import EARS
from tests.support.processes import DEADLINE_SECONDS, Ended, ended, error_of

__all__ = [
    "COMMAND",
    "HOUSE",
    "Ended",
    "Server",
    "ended",
    "environment_of",
    "run",
    "serving",
    "start",
]

HOUSE = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-P", "-m", "elicit_url")


def environment_of(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """What is set for a command: nothing of ours but what a test says."""
    ours = {k: v for k, v in os.environ.items() if not k.startswith(("ELICIT_", "MCP_", "XDG_"))}
    return {**ours, "HOME": str(home), "PYTHONPATH": str(HOUSE), **(extra or {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running `elicit serve`; `said` is the block that it prints when it is ready."""

    url: str
    said: str
    process: Process


async def start(
    *arguments: str,
    home: Path,
    cwd: Path | None = None,
    extra: Mapping[str, str] | None = None,
    stdin: int = DEVNULL,
    stdout: int = PIPE,
) -> Process:
    return await processes.start(
        *COMMAND,
        *arguments,
        name=f"elicit {arguments[0]}",
        stdin=stdin,
        stdout=stdout,
        cwd=cwd or home,
        env=environment_of(home, extra),
    )


async def run(
    *arguments: str, home: Path, cwd: Path | None = None, extra: Mapping[str, str] | None = None
) -> Ended:
    """Run a command to its end."""
    process = await start(*arguments, home=home, cwd=cwd, extra=extra)
    return await ended(process)


@contextlib.asynccontextmanager
async def serving(
    *arguments: str,
    home: Path,
    port: int = 0,
    cwd: Path | None = None,
    extra: Mapping[str, str] | None = None,
    pairs: bool = False,
) -> AsyncIterator[Server]:
    """`elicit serve` on a free port, ready; `pairs`: it prints what a client is paired with."""
    process = await start("serve", *arguments, "--port", str(port), home=home, cwd=cwd, extra=extra)
    try:
        said = await _said(process)
        if not pairs:
            EARS.hear("standard output of elicit serve", said)
        url = next(line.split()[1] for line in said.splitlines() if "address" in line)
        yield Server(url=url, said=said, process=process)
    finally:
        if process.returncode is None:
            process.terminate()
            EARS.hear("standard output of elicit serve", (await ended(process)).out)


async def _said(process: Process) -> str:
    assert process.stdout is not None
    said = ""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while "stop" not in said:
            line = (await process.stdout.readline()).decode()
            if not line:
                raise AssertionError(f"it ended before it was ready:\n{error_of(process)}")
            said += line
    return said
