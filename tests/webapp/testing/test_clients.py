"""Clients that show nothing, lose their connection or wait for long, and a server that restarts."""

import re
from typing import Any

import pytest

from flows import elicit
from tests.support.mcp_server import new_server
from tests.webapp.testing.conftest import DECLARES, Profile
from webapp.testing import NeverAsked, elicit_person

pytestmark = [pytest.mark.diagonal, pytest.mark.parametrize("declares", DECLARES)]


# finding: XA14
@pytest.mark.parametrize("pause", ["sees_nothing", "disconnects"])
async def test_call_succeeds_although_client_shows_nothing_or_disconnects(
    shop, revision, declares, pause
):
    options: dict[str, Any] = {"revision": revision, "declares": DECLARES[declares]}
    async with elicit_person(shop, **options) as person:
        for cups in (1, 2):
            getattr(person, pause)()
            person.pays()
            assert (await person.call("buy_tea", cups=cups)).text == f"{cups} cups for 9.00 EUR"
            getattr(person, pause)()
            person.fills(name="Ada")
            assert (await person.call("sign_up")).text == "Ada, 7"
        assert len(person.asked) == 4


async def test_same_call_continues_when_person_answers_later(shop, revision, declares):
    options: dict[str, Any] = {"revision": revision, "declares": DECLARES[declares]}
    async with elicit_person(shop, **options) as person:
        for minutes in (0, 2):
            person.leaves_open()
            await person.call("sign_up")
            await person.let_pass(minutes=minutes)
            person.fills(name="Ada")
            assert (await person.call("sign_up")).text == "Ada, 7"
        person.leaves_open()
        assert "/e/" in (await person.call("buy_tea", cups=1)).text
        await person.let_pass(minutes=20)
        person.pays()
        assert (await person.call("buy_tea", cups=1)).text == "1 cups for 9.00 EUR"
        assert len(person.asked) == 3


async def test_question_that_is_left_open_expires(shop, revision, declares):
    options: dict[str, Any] = {"revision": revision, "declares": DECLARES[declares]}
    async with elicit_person(shop, **options) as person:
        person.leaves_open()
        await person.call("sign_up")
        await person.let_pass(minutes=6)
        person.fills(name="Ada")
        assert (await person.call("sign_up")).text == "Ada, 7"
        assert len(person.asked) == 2


# finding: XA14
async def test_question_survives_restart_between_two_calls(library, revision, declares):
    made = list[Any]()

    def make() -> Any:
        server = new_server(library)
        made.append(server)

        @server.tool()
        async def book() -> str:
            return (await elicit.form("For whom?", Profile)).name

        return server

    options: dict[str, Any] = {"revision": revision, "declares": DECLARES[declares]}
    async with elicit_person(make, **options) as person:
        ann = await person.another("ann")
        person.leaves_open()
        await person.call("book")
        await person.restarts()
        assert len(made) == 2
        person.fills(name="Ada")
        ann.fills(name="Ann")
        assert (await person.call("book")).text == "Ada"
        assert (await ann.call("book")).text == "Ann"
        assert [len(person.asked), len(ann.asked)] == [1, 1]


async def test_accounts_and_payments_survive_restart(shop, revision, declares):
    options: dict[str, Any] = {"revision": revision, "declares": DECLARES[declares]}
    async with elicit_person(shop, **options) as person:
        person.connects()
        await person.call("list_repositories")
        person.leaves_open()
        await person.call("buy_tea", cups=1)
        await person.restarts()
        assert (await person.call("list_repositories")).text.startswith("octocat")
        person.pays()
        assert (await person.call("buy_tea", cups=1)).text == "1 cups for 9.00 EUR"
        assert [payment.status for payment in await person.payments()] == ["spent"]


async def test_question_can_be_left_open_repeatedly(shop, revision, declares):
    options: dict[str, Any] = {"revision": revision, "declares": DECLARES[declares]}
    async with elicit_person(shop, **options) as person:
        person.leaves_open()
        await person.call("buy_tea", cups=1)
        person.leaves_open()
        await person.call("buy_tea", cups=1)
        person.connects()
        assert (await person.call("list_repositories")).text.startswith("octocat")
        person.disconnects()
        person.pays()
        assert (await person.call("buy_tea", cups=1)).text == "1 cups for 9.00 EUR"
        assert [question.kind for question in person.asked] == ["payment", "oauth"]


# finding: XA14
async def test_failure_says_what_model_received_and_which_page_person_saw(shop, revision, declares):
    options: dict[str, Any] = {"revision": revision, "declares": DECLARES[declares]}
    failed = await failure_of(shop, "coffee", **options)
    (note,) = failed.__notes__
    words = r"The last call returned: 1 cups for 9\.00 EUR\n"
    words += r"The person last saw: 200 '.*' at http://127\.0\.0\.1:8765/e/…"
    assert re.fullmatch(words, note)
    failed = await failure_of(shop, "1 cups for 9.00 EUR", plans_too_much=True, **options)
    assert isinstance(failed, NeverAsked)
    assert note in str(failed)
    assert not hasattr(failed, "__notes__")


async def failure_of(
    shop: Any, expected: str, *, plans_too_much: bool = False, **options: Any
) -> AssertionError:
    """Run a test that fails after the person has paid for a cup of tea. Return its error."""
    try:
        async with elicit_person(shop, **options) as person:
            person.pays()
            assert (await person.call("buy_tea", cups=1)).text == expected
            if plans_too_much:
                person.pays()
    except AssertionError as error:
        return error
    raise RuntimeError("The test did not fail.")
