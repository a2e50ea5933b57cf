"""Start `elicit` by forking, because a start with all imports takes three processor seconds.

A forked command is a child of this process, with its own arguments, folder, environment and
streams. Python itself reads some variables when it starts. So a command is forked only if its
environment has the usual values, except for the variables in `VARYING` and more folders at the end
of PYTHONPATH. With `--whole`, as in `make soak`, no command is forked.
"""

import asyncio
import ctypes
import json
import os
import signal
import socket
import sys
import threading
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support.leaks import LEAKS
from tests.support.processes import close, open_process, watched

# Python, its libraries and our settings read none of the last three: tools of tests do.
VARYING = (
    *("BROWSER", "ELICIT_", "HOME", "PYTEST_CURRENT_TEST", "XDG_"),
    *("DEPLOY_SECONDS", "NOTES", "TILL"),
)
_PR_SET_CHILD_SUBREAPER = 36
_PROJECT = Path(__file__).resolve().parents[2]


class ForkServer:
    """A started tests/support/fork_server.py."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._control, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._turn = threading.Lock()
        with child_end:
            self._process = open_process(
                *(sys.executable, "-P", "-m", "tests.support.fork_server"),
                name="the fork server",
                stdin=child_end.fileno(),
                stdout=DEVNULL,
                cwd=_PROJECT,
                env=environment,
            )
        self._libc = ctypes.CDLL(None, use_errno=True)
        assert self._control.recv(16) == b"ready"

    def fork(self, order: Mapping[str, Any], streams: Sequence[int]) -> int:
        """Fork a child for this order, and return the child's process id."""
        text = json.dumps(order)
        with self._turn:
            self._adopt(True)  # until the process in between has ended
            try:
                socket.send_fds(self._control, [text.encode()], streams)
                pid = int(self._control.recv(16))
                assert self._control.recv(16) == b"handed over"
            finally:
                self._adopt(False)
        return pid

    def _adopt(self, is_parent_of_orphans: bool, /) -> None:
        failed = self._libc.prctl(_PR_SET_CHILD_SUBREAPER, int(is_parent_of_orphans), 0, 0, 0)
        assert failed == 0, os.strerror(ctypes.get_errno())

    def close(self) -> None:
        self._control.close()
        close(self._process)


def differs_only_in_varying(env: Mapping[str, str], usual: Mapping[str, str]) -> bool:
    """Return True if a forked command can get this environment."""
    one, other = [
        {name: value for name, value in each.items() if not name.startswith(VARYING)}
        for each in (env, usual)
    ]
    path, start = one.pop("PYTHONPATH", ""), other.pop("PYTHONPATH")
    return one == other and f"{path}{os.pathsep}".startswith(f"{start}{os.pathsep}")


class Forks:
    """Starts commands with this process's fork server. The first command starts the fork server."""

    def __init__(self) -> None:
        self.are_used = False
        self._server: ForkServer | None = None
        self._owner = 0  # the process whose children the server forks
        self._turn = threading.Lock()

    async def start(
        self,
        module: str,
        *arguments: str,
        name: str,
        cwd: Path,
        env: Mapping[str, str],
        usual: Mapping[str, str],
        stdin: int = DEVNULL,
        stdout: int = PIPE,
    ) -> Process | None:
        """Run a module with these arguments. Return None if it cannot be forked.

        `usual` is the environment of a command for which a test sets no variable.
        """
        if not self.are_used or sys.platform != "linux":
            return None
        if not differs_only_in_varying(env, usual):
            return None
        server = await asyncio.to_thread(self._started, usual)
        order = {"module": module, "arguments": arguments, "folder": str(cwd), "environment": env}
        written = LEAKS.listen(name)
        given, used = os.pipe() if stdin == PIPE else (os.open(os.devnull, os.O_RDONLY), None)
        read, output = os.pipe() if stdout == PIPE else (None, os.dup(stdout))
        pid = server.fork(order, (given, output, written.fileno()))
        os.close(given)
        os.close(output)
        return watched(await _opened(pid, stdin=used, stdout=read), written)

    def _started(self, environment: Mapping[str, str]) -> ForkServer:
        with self._turn:
            if self._server is None or self._owner != os.getpid():
                self._server, self._owner = ForkServer(environment), os.getpid()
            return self._server

    def close(self) -> None:
        """End the fork server. Its children continue."""
        self.are_used = False
        if self._server is not None and self._owner == os.getpid():
            self._server.close()
        self._server = None


async def _opened(pid: int, *, stdin: int | None, stdout: int | None) -> Process:
    """Return an asyncio process for the child with this id and our ends of its pipes."""
    loop, pipes = asyncio.get_running_loop(), dict[int, Any]()
    streams = SimpleNamespace(stdin=None, stdout=None, stderr=None)
    if stdin is not None:
        pipes[0], protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(stdin, "wb", 0)
        )
        streams.stdin = asyncio.StreamWriter(pipes[0], protocol, None, loop)
    if stdout is not None:
        reader = streams.stdout = asyncio.StreamReader()
        pipes[1], _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(stdout, "rb", 0)
        )
    transport: Any = Child(pid, pipes)
    return Process(transport, streams, loop)  # type: ignore[arg-type]


class Child(asyncio.SubprocessTransport):
    """The transport of a child that the fork server forked for this process."""

    def __init__(self, pid: int, pipes: Mapping[int, Any]) -> None:
        super().__init__()
        self._pid = pid
        self._pipes = pipes
        self._status: int | None = None
        self._has_ended = asyncio.Event()
        self._descriptor = os.pidfd_open(pid)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self._note_end)

    def _note_end(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        if 0 in self._pipes:
            self._pipes[0].close()  # nobody reads it any more
        self._has_ended.set()

    def get_pid(self) -> int:
        return self._pid

    def get_returncode(self) -> int | None:
        return self._status

    def get_pipe_transport(self, fd: int) -> Any:
        return self._pipes.get(fd)

    def send_signal(self, number: int) -> None:
        if self._status is not None:
            raise ProcessLookupError
        os.kill(self._pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def _wait(self) -> int:
        await self._has_ended.wait()
        assert self._status is not None
        return self._status


FORKS = Forks()
