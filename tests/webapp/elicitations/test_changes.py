"""Changes written by other processes: the listener survives a store that fails for a moment."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from flows import elicit
from flows.errors import StoreUnavailable
from flows.question import Outcome, asking
from tests.support.clock import NOON, Clock
from tests.support.hand_loop import HandLoop
from tests.support.service_env import Holding, call_of, process
from webapp.calls.verbs import Verbs
from webapp.elicitations.watcher import LISTEN_AGAIN_SECONDS, listen
from webapp.service import Service
from webapp.stores.sqlite import MemoryStore
from webapp.stores.store import Watch

QUESTION = elicit.url("Please go there.", "https://example.com/")


class Shaky(MemoryStore):
    """A store whose watches can be made to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.watches: list[Watch] = []

    def watch(self) -> Watch:
        self.watches.append(super().watch())
        return self.watches[-1]

    def fail(self) -> None:
        self.watches[-1].end(StoreUnavailable("database is locked"))


class Scene:
    """Two processes: a request waits in one, and the answer is written in the other."""

    def __init__(self, *, here: Service, there: Service, store: Shaky, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self._here = here
        self._there = there
        self.listening = asyncio.ensure_future(listen(here.elicitations))

    async def ask(self) -> tuple[str, asyncio.Future[Outcome[Any]]]:
        presenter = Holding()
        waiting = asyncio.ensure_future(self._answer(presenter))
        await settled_loop()
        assert presenter.holds is not None
        return presenter.holds, waiting

    async def _answer(self, presenter: Holding) -> Outcome[Any]:
        call = call_of(self._here, presenter=presenter, arguments=len(self.store.watches))
        call.begin()
        with asking(Verbs(call)):
            return await QUESTION.outcome()

    async def answer(self, id: str) -> None:
        await self._there.completing.complete(id, {"n": 1})

    @property
    def seconds(self) -> float:
        return (self.clock.now - NOON).total_seconds()


async def settled_loop() -> None:
    """Run everything that is ready, without advancing the clock."""
    for _ in range(50):
        await asyncio.sleep(0)


def play(scene: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    clock = Clock()
    loop = HandLoop(clock)

    async def played() -> None:
        store = Shaky()
        async with process(store, clock) as here, process(store.sibling(), clock) as there:
            at = Scene(here=here, there=there, store=store, clock=clock)
            await settled_loop()
            await scene(at)
            assert not at.listening.done(), "the listener must run until the scene ends"
            at.listening.cancel()
            await asyncio.wait({at.listening})

    loop.run_until_complete(played())
    loop.close()


def test_changes_written_while_watch_was_down_are_found_after_reconnect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene(at: Scene) -> None:
        id, waiting = await at.ask()
        at.store.fail()
        await settled_loop()
        await at.answer(id)
        await settled_loop()
        assert not waiting.done(), "without a watcher, no change wakes the waiting call"
        assert (await waiting).content == {"n": 1}
        assert at.seconds < 2 * LISTEN_AGAIN_SECONDS

    with caplog.at_level(logging.WARNING):
        play(scene)
    assert [record.message for record in caplog.records] == ["store.watch_failed"]


def test_listening_continues_after_failed_watches() -> None:
    async def scene(at: Scene) -> None:
        for count in (1, 2, 3):
            assert len(at.store.watches) == count
            at.store.fail()
            await settled_loop()
            id, waiting = await at.ask()
            await at.answer(id)
            assert (await waiting).content == {"n": 1}
        id, waiting = await at.ask()
        before = at.seconds
        await at.answer(id)
        assert (await waiting).content == {"n": 1}
        assert at.seconds == before, "the change wakes the waiting call before any timer"

    play(scene)
