"""A kill -9 at each of seven points, and a restart on the same file and port.

Nothing is lost, nobody is asked again after an answer, and the work is done once.
"""

from contextlib import suppress

import httpx
import pytest

from flows import complete_elicitation
from tests.crash.shop_env import GIVEN_AGAIN_OVER, LEASE_OVER, Person, Shop, calling, held
from webapp.connecting import connect


async def killed(shop: Shop, person: Person, *, mode: str, die: str, hangs: bool = False) -> str:
    """Call the tool, answer as the person, and wait until the server dies.

    Return the link.
    """
    async with shop.start(die=die, hangs=hangs) as server, calling(server, mode=mode) as call:
        link = await held(server, call, mode=mode)
        callback = await person.go_on(link)
        with suppress(httpx.TransportError):  # the reply can be lost with the process
            await person.finish(callback)
        await server.died()
    return link


async def test_unseen_question_is_shown_when_call_is_repeated(
    shop: Shop, person: Person, mode: str
) -> None:
    async with shop.start(die="stored") as server, calling(server, mode=mode) as call:
        await server.died()
        assert call.times_asked == 0
    ((id, status),) = await shop.elicitations()
    assert status == "pending"
    async with shop.start() as server, calling(server, mode=mode) as call:
        await person.walk(await call.link())
        assert shop.is_booked_once(await call.result())
    assert await shop.elicitations() == [(id, "accepted")]


async def test_link_from_before_crash_still_works(shop: Shop, person: Person, mode: str) -> None:
    async with shop.start(die="link out") as server, calling(server, mode=mode) as call:
        link = await call.link()
        await server.died()
    ((id, _),) = await shop.elicitations()
    async with shop.start() as server, calling(server, mode=mode) as call:
        await call.link()
        await person.walk(link)
        assert shop.is_booked_once(await call.result())
    assert await shop.elicitations() == [(id, "accepted")]


async def test_retrying_client_continues_after_crash_with_its_state(
    shop: Shop, person: Person
) -> None:
    async with (
        shop.start(die="link out") as server,
        calling(server, mode="2026-07-28", pauses=True) as call,
    ):
        link = await call.link()
        await server.died()
        async with shop.start():
            call.may_go_on.set()
            await person.walk(link)
            assert shop.is_booked_once(await call.result())
    assert len(await shop.elicitations()) == 1


async def test_continue_works_again_after_redirect_was_lost(
    shop: Shop, person: Person, mode: str
) -> None:
    async with shop.start(die="opened") as server, calling(server, mode=mode) as call:
        link = await call.link()
        with pytest.raises(httpx.TransportError):
            await person.go_on(link)
        await server.died()
    ((id, status),) = await shop.elicitations()
    assert status == "opened"
    async with shop.start() as server, calling(server, mode=mode) as call:
        await call.link()
        await person.walk(link)
        assert shop.is_booked_once(await call.result())
    assert await shop.elicitations() == [(id, "accepted")]


@pytest.mark.parametrize("die", ["settled", "taken", "work written"])
async def test_answer_is_used_after_lease_of_killed_process_expires(
    shop: Shop, person: Person, mode: str, die: str
) -> None:
    link = await killed(shop, person, mode=mode, die=die)
    answered = await shop.elicitations()
    async with shop.start(later=LEASE_OVER) as server:
        assert await person.heading(link) == "Done"
        async with calling(server, mode=mode) as call:
            assert shop.is_booked_once(await call.result())
            assert call.times_asked == 0
    assert await shop.elicitations() == answered


async def test_answer_without_waiting_request_is_usable_at_once_after_restart(
    shop: Shop, person: Person
) -> None:
    async with (
        shop.start(die="settled") as server,
        calling(server, mode="2026-07-28", pauses=True) as call,
    ):
        callback = await person.go_on(await call.link())
        with pytest.raises(httpx.TransportError):
            await person.finish(callback)
        await server.died()
    async with shop.start() as server, calling(server, mode="2026-07-28") as call:
        assert shop.is_booked_once(await call.result())
        assert call.times_asked == 0


async def test_client_notified_of_completion_before_crash_gets_result(
    shop: Shop, person: Person
) -> None:
    # The notification and the tool's body run concurrently, so the body must not get far.
    await killed(shop, person, mode="legacy", die="completion told", hangs=True)
    async with shop.start(later=LEASE_OVER) as server, calling(server, mode="legacy") as call:
        assert shop.is_booked_once(await call.result())
        assert call.times_asked == 0


@pytest.mark.parametrize(("die", "later"), [("woken", 0), ("taken from another process", 31)])
async def test_answer_from_another_process_survives_kill_of_woken_request(
    shop: Shop, mode: str, die: str, later: int
) -> None:
    async with shop.start(die=die) as server, calling(server, mode=mode) as call:
        await held(server, call, mode=mode)
        ((id, _),) = await shop.elicitations()
        async with connect(shop.settings):
            assert await complete_elicitation(id, {"name": "ann"}) == "accepted"
        await server.died()
    async with shop.start(later=later) as server, calling(server, mode=mode) as call:
        assert shop.is_booked_once(await call.result())
        assert call.times_asked == 0
    assert await shop.elicitations() == [(id, "accepted")]


async def test_unrecorded_work_is_repeated_with_same_idempotency_key(
    shop: Shop, person: Person, mode: str
) -> None:
    await killed(shop, person, mode=mode, die="worked")
    async with shop.start(later=LEASE_OVER) as server, calling(server, mode=mode) as call:
        result = await call.result()
        assert call.times_asked == 0
    first, second = shop.work
    assert first == second
    assert result == f"tea for ann under {first}"


@pytest.mark.parametrize("die", ["finished", "arrived"])
async def test_possibly_undelivered_result_is_returned_again(
    shop: Shop, person: Person, mode: str, die: str
) -> None:
    await killed(shop, person, mode=mode, die=die)
    answered = await shop.elicitations()
    async with shop.start() as server, calling(server, mode=mode) as call:
        assert shop.is_booked_once(await call.result())
        assert call.times_asked == 0
    assert await shop.elicitations() == answered


async def test_call_after_delivered_result_asks_again(
    shop: Shop, person: Person, mode: str
) -> None:
    link = await killed(shop, person, mode=mode, die="delivered")
    (done,) = await shop.elicitations()
    async with shop.start(later=GIVEN_AGAIN_OVER) as server:
        assert await person.heading(link) == "Done"
        async with calling(server, mode=mode) as call:
            await person.walk(await call.link())
            result = await call.result()
    first, second = shop.work
    assert first != second
    assert result == f"tea for ann under {second}"
    assert len({done, *await shop.elicitations()}) == 2
