"""Told that this process is to end, before the connections are closed.

A server that is told to end waits for its connections first and runs the end of the lifespan last:
calls that are held would hold it. So whoever handles the signal is called as before, and we beside.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def told_of_the_end(tell: Callable[[], object]) -> Generator[None]:
    """Within it, `tell` is called in this loop when the process is told to end.

    Signals come to the main thread alone, and those that nobody handles are left as they are.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def handle(number: int, frame: FrameType | None) -> None:
        if not loop.is_closed():  # else another's handler, put over this one, has kept it
            loop.call_soon_threadsafe(tell)
        former = before[signal.Signals(number)]
        assert callable(former)
        former(number, frame)

    handled = [number for number, handler in before.items() if callable(handler)]
    for number in handled:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in handled:
            if signal.getsignal(number) is handle:
                signal.signal(number, before[number])
