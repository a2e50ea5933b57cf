"""A kill -9 of one process while another process on the same file waits for the same answer."""

from collections.abc import Iterator

import httpx
import pytest

from tests.crash.shop_env import LEASE_OVER, Person, Shop, calling, held
from tests.support.serving import bound


@pytest.fixture
def other_port() -> Iterator[int]:
    with bound("127.0.0.1") as reserved:
        yield reserved.getsockname()[1]


async def test_surviving_process_completes_question_asked_by_both(
    shop: Shop, person: Person, other_port: int, mode: str
) -> None:
    async with (
        shop.start() as first,
        shop.start(port=other_port) as second,
        calling(first, mode=mode, pauses=True) as call,
    ):
        callback = await person.go_on(await call.link())
        async with calling(second, mode=mode) as again:
            await again.link()
            first.kill()
            person.is_led_to(second)
            assert await person.finish(callback) == "accepted"
            assert shop.is_booked_once(await again.result())
    assert len(await shop.elicitations()) == 1


async def test_answer_stored_by_killed_process_reaches_waiter_in_another(
    shop: Shop, person: Person, other_port: int, mode: str
) -> None:
    async with (
        shop.start(die="settled") as first,
        shop.start(port=other_port) as second,
        calling(first, mode=mode, pauses=True) as call,
    ):
        callback = await person.go_on(await call.link())
        async with calling(second, mode=mode) as again:
            await again.link()
            with pytest.raises(httpx.TransportError):
                await person.finish(callback)
            await first.died()
            assert shop.is_booked_once(await again.result())
    assert len(await shop.elicitations()) == 1


async def test_call_waits_for_lease_of_killed_process_and_continues(
    shop: Shop, person: Person, other_port: int, mode: str
) -> None:
    async with (
        shop.start(hangs=True) as first,
        shop.start(port=other_port) as second,
        calling(first, mode=mode) as call,
    ):
        await person.walk(await held(first, call, mode=mode))
        await first.says("working")
        async with calling(second, mode=mode) as again:
            for _ in range(2):  # the claim fails while the first process has the lease
                await second.says("read elicitation", before="wrote")
            first.kill()
            await second.set_clock(LEASE_OVER)
            await second.says("read run", before="wrote")  # the call waits between two checks
            assert shop.is_booked_once(await again.result())
            assert again.times_asked == 0
    assert len(await shop.elicitations()) == 1
