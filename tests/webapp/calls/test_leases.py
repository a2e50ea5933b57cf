"""Claims of a cancelled request: they are released, so that the next request can claim."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from tests.support.clock import Clock
from tests.support.service_env import asked, process
from webapp.calls import once
from webapp.calls.leases import CallUse
from webapp.records.values import DoneOnce
from webapp.stores.sqlite import MemoryStore


class Slow:
    """A store whose claims succeed after `answers` is set."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.began = asyncio.Event()
        self.released: list[str] = []

    async def claim(self, id: str, *, run: str, request_id: str, known: Any) -> Any:
        self.began.set()
        await self.answers.wait()
        return type("Row", (), {"id": id})

    async def each(self, ids: list[str], change: object) -> None:
        self.released += ids


async def test_claim_in_progress_at_cancellation_is_released_afterwards() -> None:
    # finding: T4
    slow = Slow()
    used = CallUse(slow, request_id="leg")  # type: ignore[arg-type]  # has all used methods
    current: Any = type("Row", (), {"id": "e1", "take": None})
    taking = asyncio.create_task(used.claim(current, run="run"))
    await slow.began.wait()
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    letting_go = asyncio.create_task(used.release_unused())
    slow.answers.set()
    await letting_go
    assert slow.released == ["e1"]


async def test_claim_that_completes_in_same_loop_turn_as_cancellation_is_released() -> None:
    slow = Slow()
    used = CallUse(slow, request_id="leg")  # type: ignore[arg-type]  # has all used methods
    current: Any = type("Row", (), {"id": "e1", "take": None})
    taking = asyncio.create_task(used.claim(current, run="run"))
    await slow.began.wait()
    slow.answers.set()
    await asyncio.sleep(0)  # the claim ends in this turn, and its caller continues in the next
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    await used.release_unused()
    assert slow.released == ["e1"]


async def test_request_of_run_does_not_release_claim_extended_by_other_request() -> None:
    # finding: XD1
    clock = Clock()
    async with process(MemoryStore(), clock) as service:
        elicitations = service.elicitations
        question = await asked(service)
        await service.completing.complete(question.id, {})
        current = await elicitations.get(question.id)
        assert current is not None
        first, second = [CallUse(elicitations, request_id="run", is_shared=True) for _ in range(2)]
        for one in (first, second):
            claimed = await one.claim(current, run="run")
            assert claimed is not None
            one.use(claimed)
            current = claimed
            clock.tick(seconds=1)
        await first.release_used()
        await second.release_used()  # `second` found the answer already claimed
        after = await elicitations.get(question.id)
        assert after is not None
        assert elicitations.is_held(after)


@pytest.mark.parametrize(("by", "stays"), [("a worker", False), ("worker", True), ("0", True)])
async def test_worker_releases_only_its_own_claim_of_a_step(by: str, *, stays: bool) -> None:
    async with process(MemoryStore(), Clock()) as service:
        elicitations, owner = service.elicitations, (await asked(service)).owner
        number, _ = await once.numbered(
            elicitations, owner=owner, scope="run", call="call", retention=timedelta(days=1)
        )
        place = once.OncePlace(
            owner=owner, scope="run", wish=number, step=("buy", "", "1"), name="book"
        )
        await once.claim(elicitations, place, by="a worker")
        await once.release(elicitations, place, by=by)
        row = await elicitations.read(DoneOnce, owner=owner, id=place.id(elicitations))
        assert row is not None
        assert (row.claimed_until is not None) == stays
