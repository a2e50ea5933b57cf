"""Worker processes stop cleanly, even while a worker starts or is replaced."""

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil  # type: ignore[import-untyped]
import pytest

from tests.support.cli import PROJECT
from tests.support.clock import Clock
from tests.support.hand_loop import HandLoop
from tests.support.processes import ended, start
from webapp.identity.accepting import LINGER_SECONDS
from webapp.limits import Arrivals
from webapp.serving.http_server import Pages, drained
from webapp.serving.supervising import Workers

# A worker that prints when it serves, and ends on SIGTERM or when its parent is gone.
WORKER = f"""#!{sys.executable}
import signal, socket, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
link = socket.socket(fileno=int(sys.argv[-1]))
link.recv(65536)
print("serving", flush=True)
link.send(b'["serving"]\\n')
link.recv(1)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    program = tmp_path / "worker"
    program.write_text(WORKER)
    program.chmod(0o700)
    return program


@asynccontextmanager
async def one_worker(
    program: Path,
) -> AsyncGenerator[tuple[Workers, asyncio.Task[int], asyncio.Event]]:
    """Yield the workers, the task that runs them, and an event set when the first worker serves."""
    serves = asyncio.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        workers = Workers(
            [str(program)], listener, number=1, sandbox=None, announce=lambda _: serves.set()
        )
        running = asyncio.create_task(workers.run())
        yield workers, running, serves
        async with asyncio.timeout(300):
            await asyncio.wait({running})


def processes_of(program: Path) -> list[psutil.Process]:
    def runs_it(process: psutil.Process) -> bool:
        try:
            return str(program) in process.cmdline()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False

    return [process for process in psutil.Process().children() if runs_it(process)]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(300):
        while not holds():  # noqa: ASYNC110 - no event reports a started process
            await asyncio.sleep(0)


STOPPED = """
import asyncio, sys
from webapp.serving.http_server import stopped_by_signals

async def main():
    told = asyncio.Event()
    with stopped_by_signals(told.set):
        print("ready", flush=True)
        await told.wait()
        print("told", flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_every_termination_signal_allows_graceful_exit(number):
    process = await start(sys.executable, "-c", STOPPED, name="stopped", cwd=PROJECT)
    assert process.stdout is not None
    async with asyncio.timeout(300):
        assert await process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    end = await ended(process)
    assert (end.status, end.out) == (0, "told\n")


@pytest.mark.parametrize("has_requests", [True, False])
def test_server_with_open_requests_listens_after_last_answer(has_requests):
    clock = Clock()
    loop = HandLoop(clock)
    settings = SimpleNamespace(policies=SimpleNamespace(grace=timedelta(seconds=10)))
    drains, ends = list[tuple[float, float]](), list[float]()

    async def drain(*, within: timedelta) -> None:
        drains.append((loop.time(), within.total_seconds()))
        if len(drains) == 1:  # the calls that are open at the signal end after 4 seconds
            pages.server_state.tasks.clear()
            await asyncio.sleep(4)

    async def stop() -> None:
        stopping = asyncio.Event()
        stopping.set()
        await drained(
            cast("Any", SimpleNamespace(drain=drain)),
            stopping,
            settings=cast("Any", settings),
            end=lambda: ends.append(loop.time()),
            pages=[pages],
        )

    pages = Pages(cast("Any", None), arrivals=Arrivals())
    if has_requests:
        pages.server_state.tasks.add(cast("Any", object()))
    try:
        loop.run_until_complete(stop())
    finally:
        loop.close()
    if has_requests:
        later = pytest.approx(4 + LINGER_SECONDS, abs=0.01)
        assert ends == [later]
        assert drains == [(0, 10), (later, pytest.approx(6 - LINGER_SECONDS, abs=0.01))]
    else:
        assert ends == [pytest.approx(4, abs=0.01)]
        assert drains == [(0, 10)]


async def test_server_stopped_while_first_worker_starts_exits(program):
    async with one_worker(program) as (workers, running, _):
        await until(lambda: len(processes_of(program)) == 1)
        workers.stop()
    assert running.result() == 0
    assert processes_of(program) == []


async def test_server_stopped_while_new_worker_starts_exits(program):
    async with one_worker(program) as (workers, running, serves):
        await serves.wait()
        workers.replace_all()
        await until(lambda: len(processes_of(program)) == 2)
        workers.stop()
    assert running.result() == 0
    assert processes_of(program) == []


async def test_server_stopped_while_dead_worker_is_replaced_exits(program):
    async with one_worker(program) as (workers, running, serves):
        await serves.wait()
        (dies,) = processes_of(program)
        dies.kill()
        await until(lambda: processes_of(program) not in ([], [dies]))
        workers.stop()
    assert running.result() == 0
    assert processes_of(program) == []


async def test_new_worker_which_cannot_start_leaves_old_worker_serving(program, capfd):
    async with one_worker(program) as (workers, running, serves):
        await serves.wait()
        before = processes_of(program)
        program.unlink()
        workers.replace_all()
        await until(
            printed_later(capfd, "a new worker did not start; the current workers continue")
        )
        assert processes_of(program) == before
        workers.stop()
    assert running.result() == 0


async def test_worker_which_cannot_start_is_started_later(program, capfd):
    async with one_worker(program) as (workers, running, serves):
        await serves.wait()
        text = program.read_text()
        program.unlink()
        for process in processes_of(program):
            process.kill()
        await until(printed_later(capfd, "no worker could be started"))
        other = program.with_name("companion")
        other.write_text(text)
        other.chmod(0o700)
        other.rename(program)
        await until(printed_later(capfd, "serving"))
        workers.stop()
    assert running.result() == 0


async def test_server_whose_workers_cannot_start_exits_with_reason(program, capfd):
    program.unlink()
    async with one_worker(program) as (_, running, _):
        pass
    assert running.result() == 1
    errors = capfd.readouterr().err
    assert "no worker could be started (" in errors
    assert "No such file or directory" in errors


def printed_later(capfd: pytest.CaptureFixture[str], words: str) -> Callable[[], bool]:
    """Return a function that checks if the words were printed after this call."""

    def is_printed() -> bool:
        texts.extend(capfd.readouterr())
        return words in "".join(texts)

    texts: list[str] = []
    capfd.readouterr()
    return is_printed
