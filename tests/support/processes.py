"""Processes that tests start: what each says on standard error is heard, and shown on failure.

What could go wrong: a process that no ears listen to. So nothing in tests/ starts one of ours in
another way; see tests/test_leaks.py.
"""

import asyncio
import subprocess
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

from tests.support.leaks import EARS, Written

DEADLINE_SECONDS = 300.0
_WRITTEN: WeakKeyDictionary["Process | subprocess.Popen[bytes]", Written] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What a finished process left."""

    status: int
    out: str
    err: str


async def start(
    *command: str,
    name: str,
    stdin: int = DEVNULL,
    stdout: int = PIPE,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> Process:
    """Start it; its standard error is `error_of` it."""
    written = EARS.listen(name)
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=stdin,
        stdout=stdout,
        stderr=written.fileno(),
        cwd=cwd,
        env=env,
        pass_fds=pass_fds,
    )
    _WRITTEN[process] = written
    return process


def error_of(process: "Process | subprocess.Popen[bytes]") -> str:
    """What it has written to standard error until now."""
    return _WRITTEN[process].text()


async def ended(process: Process, *, within_seconds: float = DEADLINE_SECONDS) -> Ended:
    """Wait for it to end by itself; after the deadline it is killed and the test fails."""
    try:
        async with asyncio.timeout(within_seconds):
            out, _ = await process.communicate()
    except BaseException:
        await killed(process)
        raise
    assert process.returncode is not None
    _WRITTEN[process].close()
    return Ended(status=process.returncode, out=(out or b"").decode(), err=error_of(process))


async def killed(process: Process) -> None:
    """End it, if it has not ended."""
    if process.returncode is None:
        process.kill()
    await process.communicate()
    _WRITTEN[process].close()


def open_process(
    *command: str,
    name: str,
    stdin: int,
    stdout: int | None = None,
    cwd: Path | None = None,
    passes_on: bool = False,
) -> "subprocess.Popen[bytes]":
    """Start one that serves many tests; with `passes_on` it has ears of its own (EARS.pass_on)."""
    written = EARS.listen(name, passes_on=passes_on)
    process = subprocess.Popen(
        command, stdin=stdin, stdout=stdout, stderr=written.fileno(), bufsize=0, cwd=cwd
    )
    _WRITTEN[process] = written
    return process


def close(process: "subprocess.Popen[bytes]") -> None:
    """Wait for the end of such a one, which comes with the end of its input."""
    try:
        process.communicate(timeout=DEADLINE_SECONDS)
    finally:
        _WRITTEN[process].close()


@contextmanager
def heard(name: str) -> Iterator[Written]:
    """A standard error for a process that a library starts."""
    written = EARS.listen(name)
    try:
        yield written
    finally:
        written.close()
