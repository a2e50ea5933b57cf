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
    """Run a call whose person has answered, until its server dies at this point.

    Return the link.
    """
    async with shop.start(die=die, hangs=hangs) as server, calling(server, mode=mode) as call:
        link = await held(server, call, mode=mode)
        callback = await person.go_on(link)
        with suppress(httpx.TransportError):  # the reply can be lost with the process
            await person.finish(callback)
        await server.died()
    return link


async def test_a_question_that_nobody_saw_is_shown_by_the_same_call(
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


async def test_a_link_of_before_the_crash_still_works(
    shop: Shop, person: Person, mode: str
) -> None:
    async with shop.start(die="link out") as server, calling(server, mode=mode) as call:
        link = await call.link()
        await server.died()
    ((id, _),) = await shop.elicitations()
    async with shop.start() as server, calling(server, mode=mode) as call:
        await call.link()
        await person.walk(link)
        assert shop.is_booked_once(await call.result())
    assert await shop.elicitations() == [(id, "accepted")]


async def test_a_retrying_client_goes_on_over_a_crash_with_the_state_that_it_has(
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


async def test_whose_redirect_was_lost_presses_again(shop: Shop, person: Person, mode: str) -> None:
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
async def test_what_was_answered_is_used_when_the_lease_of_the_dead_is_out(
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


async def test_an_answer_that_no_leg_waited_for_needs_no_lease_to_run_out(
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


async def test_a_client_that_was_told_of_the_end_and_then_lost_the_server_gets_the_result(
    shop: Shop, person: Person
) -> None:
    # The notification and the tool's body run concurrently, so the body must not get far.
    await killed(shop, person, mode="legacy", die="completion told", hangs=True)
    async with shop.start(later=LEASE_OVER) as server, calling(server, mode="legacy") as call:
        assert shop.is_booked_once(await call.result())
        assert call.times_asked == 0


@pytest.mark.parametrize(("die", "later"), [("woken", 0), ("taken from another process", 31)])
async def test_an_answer_from_another_process_outlives_the_leg_that_it_woke(
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


async def test_work_that_was_done_and_not_written_is_done_again_under_the_same_key(
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
async def test_a_result_that_may_not_have_arrived_is_given_again(
    shop: Shop, person: Person, mode: str, die: str
) -> None:
    await killed(shop, person, mode=mode, die=die)
    answered = await shop.elicitations()
    async with shop.start() as server, calling(server, mode=mode) as call:
        assert shop.is_booked_once(await call.result())
        assert call.times_asked == 0
    assert await shop.elicitations() == answered


async def test_a_delivered_wish_is_a_new_wish_afterwards(
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
