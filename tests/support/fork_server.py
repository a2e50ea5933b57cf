"""A process that has imported the commands of `elicit`, and forks a child for each order.

Its input is a socket. An order has the child's module, arguments, folder and environment as JSON,
and its three standard streams as file descriptors. The process forks twice, and the process in
between ends at once, so that the process that gave the order adopts the child
(PR_SET_CHILD_SUBREAPER).
"""

import gc
import json
import os
import runpy
import socket
import sys
import threading
from importlib import import_module
from typing import Any

from webapp import connecting
from webapp.cli.main import COMMANDS, module_of

ORDER_BYTES_AT_MOST = 1 << 17
# Modules that `elicit serve` imports when it starts.
MODULES = (
    *dict.fromkeys(map(module_of, COMMANDS)),
    *("anyio._backends._asyncio", "encodings.idna", "httpcore", "jinja2.ext", "rich.logging"),
    *("litestar.middleware.csrf", "litestar.plugins.attrs", "litestar.plugins.pydantic"),
    *("mcp.server.mcpserver", "uvicorn.lifespan.off", "uvicorn.protocols.websockets.auto"),
    *("uvloop", "webapp.sandbox.app"),
)


def take_orders(control: socket.socket) -> str | None:
    """Fork a child for each order. In a child, return the order's module; at the end, None."""
    while True:
        order, streams, _, _ = socket.recv_fds(control, ORDER_BYTES_AT_MOST, 3)
        if not order:
            return None
        between = os.fork()
        if between == 0:
            pid = os.fork()
            if pid == 0:
                control.close()
                return _prepared(json.loads(order), streams)
            control.send(str(pid).encode())
            os._exit(0)
        for stream in streams:
            os.close(stream)
        os.waitpid(between, 0)
        control.send(b"handed over")


def _prepared(order: dict[str, Any], streams: list[int]) -> str:
    """Set up this process as if it was started with the order. Return the order's module."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.argv[1:] = order["arguments"]
    usual = os.environ["PYTHONPATH"]
    _, *more = order["environment"]["PYTHONPATH"].removeprefix(usual).split(os.pathsep)
    after = sys.path.index(usual) + 1
    sys.path[after:after] = more
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    return str(order["module"])


def main() -> None:
    with socket.socket(fileno=os.dup(0)) as control:
        for name in MODULES:
            import_module(name)
        connecting._trust()
        # Children collect only their own garbage, and do not copy this process's pages for it.
        gc.collect()
        gc.freeze()
        assert threading.active_count() == 1, "only a process with one thread can fork safely"
        control.send(b"ready")
        module = take_orders(control)
    if module is not None:
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
