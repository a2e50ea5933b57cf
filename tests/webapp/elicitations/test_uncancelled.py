"""Work that runs in its own task and continues if its caller is cancelled."""

import asyncio

import pytest

from webapp.elicitations.service import Uncancelled


class Work:
    """Work that ends once `may_end` is set."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.has_ended = False

    async def __call__(self) -> str:
        await self.may_end.wait()
        self.has_ended = True
        return "done"


async def fails() -> None:
    raise ValueError("no")


async def awaited(doing: Uncancelled[str]) -> str:
    return await doing.result


async def test_result_of_work_reaches_its_caller() -> None:
    work = Work()
    doing = Uncancelled(work())
    work.may_end.set()
    assert await doing.result == "done"
    assert doing.task.done()


async def test_error_of_work_reaches_its_caller() -> None:
    with pytest.raises(ValueError, match="no"):
        await Uncancelled(fails()).result


async def test_work_continues_when_its_caller_is_cancelled() -> None:
    work = Work()
    doing = Uncancelled(work())
    caller = asyncio.create_task(awaited(doing))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    work.may_end.set()
    await doing.task
    assert work.has_ended


@pytest.mark.parametrize("has_begun", [False, True])
async def test_caller_is_cancelled_with_the_task_of_its_work(has_begun: bool) -> None:
    doing = Uncancelled(Work()())
    caller = asyncio.create_task(awaited(doing))
    if has_begun:
        await asyncio.sleep(0)
    doing.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller


async def test_error_after_cancellation_of_the_caller_is_not_logged_by_asyncio() -> None:
    reported = list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, about: reported.append(about))
    doing = Uncancelled(fails())
    doing.result.cancel()
    await asyncio.wait({doing.task})
    del doing
    assert not reported
