"""Start processes for tests, and search their standard error for leaks.

If a test fails, pytest shows the output of the processes that the test started.

Risks: a test starts a process and nobody reads its standard error. So tests start this project's
processes only with this module. tests/test_leaks.py checks that.
"""

import asyncio
import subprocess
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

from tests.support.leaks import LEAKS, Written

DEADLINE_SECONDS = 300.0
_WRITTEN: WeakKeyDictionary["Process | subprocess.Popen[bytes]", Written] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The exit status and output of a finished process."""

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
    """Start a process. `error_of` returns its standard error."""
    written = LEAKS.listen(name)
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=stdin,
        stdout=stdout,
        stderr=written.fileno(),
        cwd=cwd,
        env=env,
        pass_fds=pass_fds,
    )
    return watched(process, written)


def watched(process: Process, written: Written) -> Process:
    """Remember that `written` is the standard error of this process, and return the process."""
    _WRITTEN[process] = written
    return process


def error_of(process: "Process | subprocess.Popen[bytes]") -> str:
    """Return what the process has written to standard error until now."""
    return _WRITTEN[process].text()


async def ended(process: Process, *, within_seconds: float = DEADLINE_SECONDS) -> Ended:
    """Wait until the process ends. After the deadline, kill the process and fail."""
    try:
        async with asyncio.timeout(within_seconds):
            out, _ = await process.communicate()
    except BaseException:
        await killed(process)
        raise
    assert process.returncode is not None
    written = _WRITTEN[process]
    written.close()
    end = Ended(status=process.returncode, out=(out or b"").decode(), err=written.text())
    LEAKS.show(f"stdout of {written.name}", end.out)
    return end


async def killed(process: Process) -> None:
    """Kill the process if it still runs, and wait for its end."""
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
    env: Mapping[str, str] | None = None,
    passes_on: bool = False,
) -> "subprocess.Popen[bytes]":
    """Start a process that serves many tests.

    Set `passes_on` if the process calls LEAKS.pass_on, which sends its texts to the test's process.
    """
    written = LEAKS.listen(name, passes_on=passes_on)
    process = subprocess.Popen(
        command, stdin=stdin, stdout=stdout, stderr=written.fileno(), bufsize=0, cwd=cwd, env=env
    )
    _WRITTEN[process] = written
    return process


def close(process: "subprocess.Popen[bytes]") -> None:
    """Close the input of a process from `open_process`, and wait for its end."""
    try:
        process.communicate(timeout=DEADLINE_SECONDS)
    finally:
        _WRITTEN[process].close()


@contextmanager
def error_output(name: str) -> Iterator[Written]:
    """Provide a standard error file for a process that a library starts."""
    written = LEAKS.listen(name)
    try:
        yield written
    finally:
        written.close()
