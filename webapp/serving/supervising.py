"""A parent process that runs several workers on one socket and replaces those that die.

The parent binds the socket, starts the workers and tells them when to end. The parent runs none of
the author's code, so a rolling restart (SIGHUP) makes each worker import the code again. The new
worker serves before the old worker ends, and if the new one does not start, the old one stays. A
worker that dies is replaced, with a growing pause. If workers keep dying, the server ends with a
message.

Risks: the parent is killed and its workers keep a socket that its successor needs. Each worker
therefore holds one end of a connection to the parent, and drains when the connection breaks.

A sandbox runs in the parent, so that all workers share it.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import Self

from msgspec import Struct
from msgspec.json import decode, encode

from webapp.http.port import listen
from webapp.printing import print_text
from webapp.sandbox.settings import Sandbox
from webapp.serving.http_server import Annex, outside_pages
from webapp.settings.settings import Settings

_AT_ONCE_SECONDS = 10.0
_DEATHS_AT_MOST = 5
_FIRST_PAUSE_SECONDS = 0.1
_GREETING_BYTES = 64 * 1024


class _Greeting(Struct):
    """The data that the parent sends to each worker."""

    sandbox: Sandbox | None


class Parent:
    """The parent, as seen by a worker."""

    def __init__(self, fd: int) -> None:
        self._link = socket.socket(fileno=fd)
        with self._link.makefile("rb") as lines:
            self.sandbox = decode(lines.readline(_GREETING_BYTES), type=_Greeting).sandbox

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close()

    def ready(self, lines: Sequence[str]) -> Callable[[], None]:
        """Return a function that reports to the parent that this worker serves.

        `lines` is the announcement to print. Call the function in the event loop. From then on, the
        worker drains and ends when the parent is gone.
        """

        def report_start() -> None:
            loop = asyncio.get_running_loop()
            with suppress(OSError):
                self._link.send(encode(lines) + b"\n")

            def gone() -> None:  # the parent sends nothing more, so readable means closed
                loop.remove_reader(self._link)
                os.kill(os.getpid(), signal.SIGTERM)

            loop.add_reader(self._link, gone)

        return report_start


class _Worker:
    """A worker process and the parent's end of the connection to it."""

    def __init__(self, process: asyncio.subprocess.Process, link: socket.socket) -> None:
        self.process = process
        self._link = link
        self._served_at: float | None = None
        self.is_stopping = False

    @classmethod
    async def start(cls, command: Sequence[str], listener: socket.socket, greeting: bytes) -> Self:
        """Start a worker. Raises OSError if the system cannot start a process."""
        own_end, child_end = socket.socketpair()
        try:
            with child_end:
                # In its own session, so that Ctrl+C reaches only the parent, which ends workers.
                process = await asyncio.create_subprocess_exec(
                    *command,
                    *("--fd", str(listener.fileno()), "--parent-fd", str(child_end.fileno())),
                    pass_fds=[listener.fileno(), child_end.fileno()],
                    start_new_session=True,
                )
        except BaseException:
            own_end.close()
            raise
        own_end.setblocking(False)
        with suppress(OSError):  # the worker has ended already; `ready` reports it
            await asyncio.get_running_loop().sock_sendall(own_end, greeting)
        return cls(process, own_end)

    async def ready(self) -> list[str] | None:
        """Wait until the worker serves, and return its announcement. None: the worker ended."""
        loop, received = asyncio.get_running_loop(), b""
        while not received.endswith(b"\n"):
            with suppress(OSError):
                if piece := await loop.sock_recv(self._link, _GREETING_BYTES):
                    received += piece
                    continue
            return None
        self._served_at = loop.time()
        return decode(received, type=list[str])

    @property
    def served_seconds(self) -> float:
        """The time for which the worker has served."""
        now = asyncio.get_running_loop().time()
        return 0.0 if self._served_at is None else now - self._served_at

    async def ended(self) -> int:
        await self.process.wait()
        self._link.close()
        assert self.process.returncode is not None
        return self.process.returncode

    def stop(self) -> None:
        self.is_stopping = True
        with suppress(ProcessLookupError):
            self.process.terminate()


class Workers:
    """The workers, each with an index. The first announcement is shown once all workers serve."""

    def __init__(
        self,
        command: Sequence[str],
        listener: socket.socket,
        *,
        number: int,
        sandbox: Sandbox | None,
        announce: Callable[[list[str]], object],
    ) -> None:
        """`command` starts one worker."""
        self._command = command
        self._listener = listener
        self._greeting = encode(_Greeting(sandbox=sandbox)) + b"\n"
        self._announce = announce
        self._places: list[_Worker | None] = [None] * number
        self._starting = set[_Worker]()
        self._stopping = asyncio.Event()
        self._recreate = asyncio.Event()
        self._status = 0

    def stop(self) -> None:
        """Tell the workers to drain and end. At the second call, they end immediately."""
        self._end()
        for worker in self._all():
            worker.stop()

    def replace_all(self) -> None:
        """Replace the workers one after the other."""
        self._recreate.set()

    async def run(self) -> int:
        """Run the workers until `stop` is called or they keep failing. Return the exit status."""
        announced = await self._begin()
        if announced is not None:
            self._announce(announced)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._restart_on_request())
                for place in range(len(self._places)):
                    group.create_task(self._keep(place))
        for worker in self._all():
            await worker.ended()
        return self._status

    def _all(self) -> list[_Worker]:
        return [worker for worker in (*self._places, *self._starting) if worker is not None]

    def _end(self) -> None:
        """Start no more workers, and end those that are starting."""
        self._stopping.set()
        self._recreate.set()  # wakes up the restart task

    def _give_up(self, status: int) -> None:
        self._status = max(status, 1)
        self._end()
        for worker in self._all():
            if not worker.is_stopping:
                worker.stop()

    async def _begin(self) -> list[str] | None:
        """Start all workers and return the first announcement, or None if they must end.

        The first worker starts alone, so that a configuration error is printed once and shared data
        is created once.
        """
        announced: list[str] | None = None
        for places in (range(1), range(1, len(self._places))):
            for place in places:
                if not self._stopping.is_set():
                    self._places[place] = await self._started()
                    if self._places[place] is None:
                        self._give_up(1)
            for worker in filter(None, self._places[places.start :]):
                lines = await worker.ready()
                announced = announced or lines
                if lines is None and not self._stopping.is_set():
                    self._give_up(await worker.ended())  # the worker has printed the reason
        return None if self._stopping.is_set() else announced

    async def _keep(self, place: int) -> None:
        """Keep a worker running at this index until all are to stop."""
        deaths = 0
        while not self._stopping.is_set():
            worker = self._places[place]  # None if the system could not start a process
            status = 1 if worker is None else await worker.ended()
            if self._stopping.is_set() or self._places[place] is not worker:
                continue
            has_served = worker is not None and worker.served_seconds >= _AT_ONCE_SECONDS
            deaths = 1 if has_served else deaths + 1
            if deaths >= _DEATHS_AT_MOST:
                print_text(
                    f"elicit: a worker died {deaths} times right after it started, so the server "
                    "stops. See its output above.",
                    out=sys.stderr,
                )
                self._give_up(status)
                return
            if worker is not None:
                print_text(
                    f"elicit: worker {worker.process.pid} {_died(status)}; a new worker replaces "
                    "it.",
                    out=sys.stderr,
                )
            await asyncio.sleep(_FIRST_PAUSE_SECONDS * (2 ** (deaths - 1)))
            if not self._stopping.is_set() and self._places[place] is worker:
                new = await self._started()
                if new is not None:
                    await self._replace(place, new, of=worker)
                    await new.ready()
                elif self._places[place] is worker:
                    self._places[place] = None

    async def _restart_on_request(self) -> None:
        while True:
            await self._recreate.wait()
            if self._stopping.is_set():
                return
            self._recreate.clear()
            await self._restart()

    async def _restart(self) -> None:
        for place in range(len(self._places)):
            new = await self._started()
            if new is not None:
                self._starting.add(new)
                is_ready = await new.ready() is not None
                if self._stopping.is_set():
                    return
                self._starting.discard(new)
                if not is_ready:
                    await new.ended()
                    new = None
            if new is None:
                print_text(
                    "elicit: a new worker did not start; the current workers continue.",
                    out=sys.stderr,
                )
                return
            old = self._places[place]
            await self._replace(place, new, of=old)
        print_text("elicit: all workers have been replaced.")

    async def _replace(self, place: int, new: _Worker, *, of: _Worker | None) -> None:
        """Put the worker `new` in the place of the worker `of`, and end `of`.

        If another worker has already replaced `of`, end `new` instead.
        """
        if self._places[place] is not of:
            new.stop()
            await new.ended()
            return
        self._places[place] = new
        if of is not None:
            of.stop()
            await of.ended()

    async def _started(self) -> _Worker | None:
        """Start a worker. If all workers are to stop, tell the new worker to end immediately.

        If the system cannot start a process, print the reason and return None.
        """
        try:
            worker = await _Worker.start(self._command, self._listener, self._greeting)
        except OSError as error:
            print_text(
                f"elicit: no worker could be started ({error}): check that {self._command[0]} "
                "exists, and that this user may have more processes and open files (ulimit -u, "
                "ulimit -n).",
                out=sys.stderr,
            )
            return None
        if self._stopping.is_set():
            worker.stop()
        return worker


async def supervise(
    command: Sequence[str],
    listener: socket.socket,
    *,
    settings: Settings,
    number: int,
    annex: Annex | None,
) -> int:
    """Run `number` workers on the socket until a signal arrives.

    Return the exit status.

    `command` starts one worker.
    """
    async with AsyncExitStack() as stack:
        workers = Workers(
            command,
            listener,
            number=number,
            sandbox=None if annex is None else annex.sandbox,
            announce=lambda lines: print_text("\n".join(lines)),
        )
        stack.enter_context(_handling_signals(workers))
        if annex is None:
            return await workers.run()
        pages = await outside_pages(stack, annex.sandbox, settings)
        listen(annex.listener)
        async with asyncio.TaskGroup() as group:
            group.create_task(pages.serve(sockets=[annex.listener]))
            try:
                return await workers.run()
            finally:
                pages.stop()
                pages.stop()


@contextmanager
def _handling_signals(workers: Workers) -> Generator[None]:
    """Within this block, SIGTERM and SIGINT end the workers, and SIGHUP restarts them."""
    loop = asyncio.get_running_loop()
    handlers: dict[signal.Signals, Callable[[], None]] = {
        signal.SIGINT: workers.stop,
        signal.SIGTERM: workers.stop,
        signal.SIGHUP: workers.replace_all,
    }
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)


def _died(status: int) -> str:
    return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
