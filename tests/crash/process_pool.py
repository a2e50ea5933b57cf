"""A process that imports and uses everything once, and forks a child for each order.

The process reads requests from a socket. An order includes a file descriptor, the child's socket,
and the reply is the child's process id. If the request is a process id, the reply is the exit
status of that process.
"""

import asyncio
import json
import os
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from tests.crash.program import run_program
from tests.crash.server import serve_orders, warm_up
from tests.support.leaks import LEAKS

ORDER_BYTES_AT_MOST = 4096
Serve: TypeAlias = Callable[[bytes, socket.socket], Coroutine[Any, Any, None]]


def raise_children(warming: Coroutine[Any, Any, None], *, serve: Serve) -> None:
    """Warm up, then fork a serving child for each order, until the input ends."""
    LEAKS.pass_on()
    asyncio.run(warming)
    control = socket.socket(fileno=sys.stdin.fileno())
    control.send(b"ready")
    children: set[int] = set()
    while True:
        text, descriptors, _, _ = socket.recv_fds(control, ORDER_BYTES_AT_MOST, 1)
        if not text:
            break
        if descriptors:
            pid = os.fork()
            if pid == 0:
                control.close()
                _run_child(serve, text, descriptors[0])
            os.close(descriptors[0])
            children.add(pid)
            control.send(str(pid).encode())
        else:
            pid = int(text)
            _, status = os.waitpid(pid, 0)
            children.discard(pid)
            control.send(str(os.waitstatus_to_exitcode(status)).encode())
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _run_child(serve: Serve, text: bytes, descriptor: int) -> None:
    warnings.simplefilter("ignore")
    LEAKS.begin()
    code = 0
    try:
        asyncio.run(serve(text, socket.socket(fileno=descriptor)))
    except BaseException:  # noqa: BLE001 - a child must never return into the pool's own loop
        traceback.print_exc()
        code = 1
    os._exit(code)


async def _serve(text: bytes, line: socket.socket) -> None:
    """Run a server, or a program if the order has an API key."""
    await (run_program if json.loads(text)["key"] else serve_orders)(text, line)


if __name__ == "__main__":
    raise_children(warm_up(), serve=_serve)
