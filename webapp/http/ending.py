"""Notification that this process is about to end, before its connections are closed.

A server that is stopped waits for its connections first and ends the lifespan last, so calls that
wait for a person would block the shutdown. The signal handlers here notify the service first and
then call the previous handler.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def on_end_signal(callback: Callable[[], object]) -> Generator[None]:
    """Within this block, call `callback` in this event loop when a signal ends the process.

    Signals reach only the main thread. Signals without a handler are not changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def handle(number: int, frame: FrameType | None) -> None:
        # a handler that was installed later can still call this one after the loop is closed
        if not loop.is_closed():
            loop.call_soon_threadsafe(callback)
        previous = before[signal.Signals(number)]
        assert callable(previous)
        previous(number, frame)

    handled = [number for number, handler in before.items() if callable(handler)]
    for number in handled:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in handled:
            if signal.getsignal(number) is handle:
                signal.signal(number, before[number])
