"""Shutdown signals: our handler runs before the host's handler."""

import asyncio
import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from webapp.http.ending import on_end_signal

ended = list[str]()


@pytest.fixture(autouse=True)
def host() -> Iterator[None]:
    """Install a host's SIGTERM handler, as uvicorn does."""

    def handle(number: int, frame: FrameType | None) -> None:
        ended.append("host")

    ended.clear()
    former = signal.signal(signal.SIGTERM, handle)
    yield
    signal.signal(signal.SIGTERM, former)


async def test_signal_is_reported_here_and_handled_by_host() -> None:
    reported = asyncio.Event()
    with on_end_signal(reported.set):
        signal.raise_signal(signal.SIGTERM)
        async with asyncio.timeout(300):
            await reported.wait()
    assert ended == ["host"]


async def test_handler_of_host_is_restored_afterwards() -> None:
    reported = asyncio.Event()
    before = signal.getsignal(signal.SIGTERM)
    with on_end_signal(reported.set):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_handler_of_host_runs_after_overlapping_contexts_exit_out_of_order() -> None:
    async def first(begun: asyncio.Event) -> None:
        with on_end_signal(lambda: None):
            begun.set()
            await asyncio.sleep(0)

    async def both() -> None:
        begun = asyncio.Event()
        one = asyncio.create_task(first(begun))
        await begun.wait()
        with on_end_signal(lambda: None):
            await one

    asyncio.run(both())
    signal.raise_signal(signal.SIGTERM)
    assert ended == ["host"]


async def test_signal_handler_installed_after_our_handler_is_not_removed() -> None:
    with on_end_signal(lambda: None):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


async def test_handlers_are_unchanged_in_other_thread() -> None:
    before = signal.getsignal(signal.SIGTERM)

    async def there() -> bool:
        with on_end_signal(lambda: None):
            return signal.getsignal(signal.SIGTERM) is before

    assert await asyncio.to_thread(lambda: asyncio.run(there()))
