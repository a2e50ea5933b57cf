"""Runs `elicit`, usually as a process, with its own home directory and a time limit.

`-P` leaves the working directory off Python's path, as the installed command does.
"""

import asyncio
import contextlib
import io
import logging
import os
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from tests.support import processes
from tests.support.forking import FORKS
from tests.support.leaks import LEAKS
from tests.support.processes import DEADLINE_SECONDS, Ended, ended, error_of
from webapp.cli.main import main
from webapp.command import TALKATIVE_LOGGERS
from webapp.logs.events import ACCESS_LOGGERS, TOOL_LOGGERS

__all__ = [
    "COMMAND",
    "PROJECT",
    "Ended",
    "Server",
    "WaitingDemo",
    "called",
    "ended",
    "environment_of",
    "log_as_before",
    "output_until",
    "procfile_words",
    "run",
    "serving",
    "start",
    "waiting_demo",
]

PROJECT = Path(__file__).resolve().parents[2]
MODULE = "elicit_url"
COMMAND = (sys.executable, "-P", "-m", MODULE)


def environment_of(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return a command's environment, without the machine's own settings for elicit and MCP."""
    others = ("ELICIT_", "FASTMCP_", "MCP_", "XDG_")
    variables = {k: v for k, v in os.environ.items() if not k.startswith(others)}
    at_once = {"ELICIT_MIN_ANSWER": "0"}  # clients in tests answer immediately
    return {**variables, "HOME": str(home), "PYTHONPATH": str(PROJECT), **at_once, **(extra or {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server process. `output` is the text that it printed when it was ready."""

    url: str
    output: str
    process: Process


async def start(
    *arguments: str,
    home: Path,
    cwd: Path | None = None,
    extra: Mapping[str, str] | None = None,
    stdin: int = DEVNULL,
    stdout: int = PIPE,
    module: str = MODULE,
) -> Process:
    """Start `elicit` or another module. The fork server starts it if its environment allows."""
    name = f"elicit {arguments[0]}" if module == MODULE else module
    env, cwd = environment_of(home, extra), cwd or home
    forked = await FORKS.start(
        *(module, *arguments),
        name=name,
        cwd=cwd,
        env=env,
        usual=environment_of(PROJECT),
        stdin=stdin,
        stdout=stdout,
    )
    return forked or await processes.start(
        *(*COMMAND[:-1], module, *arguments),
        name=name,
        stdin=stdin,
        stdout=stdout,
        cwd=cwd,
        env=env,
    )


async def run(
    *arguments: str, home: Path, cwd: Path | None = None, extra: Mapping[str, str] | None = None
) -> Ended:
    """Run a command to completion."""
    process = await start(*arguments, home=home, cwd=cwd, extra=extra)
    return await ended(process)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingDemo:
    """A running demo that waits for its person. `link` is the link that it printed."""

    link: str
    output: str
    process: Process


async def waiting_demo(
    url: str, *arguments: str, tool: str = "sign_guest_book", home: Path
) -> WaitingDemo:
    # BROWSER=true runs the command `true`, which opens nothing: the test acts as the person.
    process = await start(
        *("demo", "--tool", tool, "--url", url, *arguments), home=home, extra={"BROWSER": "true"}
    )
    output = await output_until("left)", process)
    link = next(word for word in output.split() if word.startswith(f"{url}/e/"))
    return WaitingDemo(link=link, output=output, process=process)


async def called(
    *arguments: str, home: Path, cwd: Path | None = None, extra: Mapping[str, str] | None = None
) -> Ended:
    """Run a command in this process, which is ten times faster.

    The command must not be a server, and must not read input.
    """
    out, err = io.StringIO(), io.StringIO()
    modules, path = set(sys.modules), sys.path[:]
    with (
        mock.patch.dict(os.environ, environment_of(home, extra), clear=True),
        contextlib.chdir(cwd or home),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        log_as_before(),
    ):
        try:
            # Use a thread, because a command runs its own event loop.
            status = await asyncio.to_thread(_status_of, arguments)
        finally:
            sys.path[:] = path
            for name in set(sys.modules) - modules:
                if str(getattr(sys.modules[name], "__file__", "")).startswith(str(home)):
                    del sys.modules[name]
    LEAKS.check(f"standard error of elicit {arguments[0]}", err.getvalue())
    for stream, text in (("stdout", out), ("stderr", err)):
        LEAKS.show(f"{stream} of elicit {arguments[0]}", text.getvalue())
    return Ended(status=status, out=out.getvalue(), err=err.getvalue())


@contextlib.contextmanager
def log_as_before() -> Iterator[None]:
    """Restore the loggers at the end, because a command redirects the log that tests listen to."""
    logger_names = ("webapp", "flows", "fastmcp", None)
    names = (*logger_names, *TALKATIVE_LOGGERS, *TOOL_LOGGERS, *ACCESS_LOGGERS)
    loggers = [logging.getLogger(name) for name in names]
    before = [(each.handlers[:], each.filters[:], each.level, each.propagate) for each in loggers]
    try:
        yield
    finally:
        for each, (handlers, filters, level, propagate) in zip(loggers, before, strict=True):
            for handler in {*each.handlers}.difference(handlers):
                handler.close()
            each.handlers[:], each.filters[:] = handlers, filters
            if each.level != level:  # setLevel clears the caches of all loggers
                each.setLevel(level)
            each.propagate = propagate


def _status_of(arguments: Sequence[str]) -> int:
    try:
        return main(arguments)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0


def procfile_words(environment: Mapping[str, str]) -> list[str]:
    """Return the words of the Procfile's command, as a shell with these variables passes them."""
    (line,) = (line for line in (PROJECT / "Procfile").read_text().splitlines() if line[:1] != "#")
    name, _, command = line.partition(": ")
    assert name == "web"
    shell = ["/bin/sh", "-c", f"printf '%s\\n' {command}"]
    words = subprocess.run(shell, env=environment, check=True, capture_output=True, text=True)
    return words.stdout.splitlines()


@contextlib.asynccontextmanager
async def serving(
    *arguments: str,
    home: Path,
    port: int = 0,
    cwd: Path | None = None,
    extra: Mapping[str, str] | None = None,
    pairs: bool = False,
) -> AsyncIterator[Server]:
    """Run `elicit serve` on a free port. Set `pairs` if it prints a pairing secret."""
    process = await start("serve", *arguments, "--port", str(port), home=home, cwd=cwd, extra=extra)
    async with until_stopped(process, name="elicit serve", pairs=pairs) as server:
        yield server


@contextlib.asynccontextmanager
async def until_stopped(
    process: Process, *, name: str, pairs: bool = False
) -> AsyncIterator[Server]:
    """Wait until the process has printed its address, and stop it at the end."""
    try:
        output = await output_until("stop", process)
        if not pairs:
            LEAKS.check(f"standard output of {name}", output)
        url = next(line.split()[1] for line in output.splitlines() if "address" in line)
        yield Server(url=url, output=output, process=process)
    finally:
        if process.returncode is None:
            process.terminate()
            LEAKS.check(f"standard output of {name}", (await ended(process)).out)


async def output_until(words: str, process: Process) -> str:
    """Return the process's output up to the line with these words."""
    assert process.stdout is not None
    output = ""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while words not in output:
            line = (await process.stdout.readline()).decode()
            if not line:
                raise AssertionError(f"it ended before it printed {words!r}:\n{error_of(process)}")
            output += line
    return output
