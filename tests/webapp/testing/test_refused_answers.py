"""Refused answers to forms and secrets: planned with `answers_wrongly`, or as a test failure."""

import logging
from collections.abc import Mapping
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, SecretStr

from flows import elicit
from tests.support.mcp_server import new_server
from tests.webapp.testing.conftest import DECLARES, a_test
from webapp.testing import AskedPerson, NeverAsked, UnexpectedQuestion, elicit_person

# Use every library, revision and `declares` value, but not every combination of them.
pytestmark = pytest.mark.diagonal

TAKEN = "The attic is taken."


class Booking(BaseModel):
    room: Literal["garden", "attic"]
    nights: int = Field(ge=1, le=14)


class Login(BaseModel):
    user: str
    token: SecretStr


def is_free(booking: Booking) -> Mapping[str, str] | None:
    return {"room": TAKEN} if booking.room == "attic" else None


def is_known(login: Login) -> Mapping[str, str] | None:
    return None if login.user == "ada" else {"user": "No such user.", "": "Ask Eve."}


def is_key(key: str) -> Mapping[str, str] | None:
    return None if key.startswith("sk-") else {"": "A key begins with sk-."}


def fills(person: AskedPerson) -> None:
    person.fills(room="garden", nights=3)


@pytest.fixture
def inn(library: str) -> Any:
    server = new_server(library)

    @server.tool()
    async def book() -> str:
        booking = await elicit.form("Which room?", Booking, check=is_free)
        return f"{booking.room}, {booking.nights}"

    @server.tool()
    async def ask() -> str:
        return (await elicit.form("Which room?", Booking)).room

    @server.tool()
    async def log_in() -> str:
        return (await elicit.secret("Your login?", Login, check=is_known)).user

    @server.tool()
    async def unlock() -> str:
        return f"{len(await elicit.secret('The key', check=is_key))} letters"

    return server


@pytest.mark.parametrize("declares", DECLARES)
async def test_person_answers_correctly_after_refused_answers(inn, revision, declares):
    options: dict[str, Any] = {"revision": revision, "declares": DECLARES[declares]}
    async with elicit_person(inn, **options) as person:
        person.answers_wrongly(room="attic", nights=3)
        person.answers_wrongly(room="garden", nights=30)
        person.fills(room="garden", nights=3)
        assert (await person.call("book")).text == "garden, 3"
        assert person.refused == [{"room": TAKEN}, {"nights": "This must be 14 or less."}]
        person.answers_wrongly(user="bob", token="sesame")
        person.types(user="ada", token="sesame")
        assert (await person.call("log_in")).text == "ada"
        person.answers_wrongly("sesame")
        person.types("sk-1")
        assert (await person.call("unlock")).text == "4 letters"
        assert person.refused[2:] == [
            {"user": "No such user.", "": "Ask Eve."},
            {"value": "A key begins with sk-."},
        ]
        assert len(person.asked) == 3


@pytest.mark.parametrize("declares", DECLARES)
async def test_person_leaves_after_refused_answer_and_returns(inn, revision, declares):
    options: dict[str, Any] = {"revision": revision, "declares": DECLARES[declares]}
    async with elicit_person(inn, **options) as person:
        for _ in range(2):
            person.answers_wrongly(room="attic", nights=3)
            person.leaves_open()
            assert "garden" not in (await person.call("book")).text
        person.answers_wrongly(room="attic", nights=3)
        person.fills(room="garden", nights=3)
        assert (await person.call("book")).text == "garden, 3"
        assert len(person.refused) == 3


async def test_invalid_answer_without_check_reaches_tool_from_client_form(inn, revision):
    async with elicit_person(inn, revision=revision) as person:
        person.answers_wrongly(room="garden", nights=99)
        assert (await person.call("ask")).code == "INVALID_INPUT"


@pytest.mark.parametrize("declares", DECLARES)
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"room": "attic", "nights": 3}, rf"did not accept .*[Rr]oom: {TAKEN}.*wrongly\("),
        ({"room": "garden", "nights": 30}, r"[Nn]ights: This must be 14 or less\."),
        ({"rooms": "garden"}, r"no field rooms: it has room, nights\."),
    ],
)
async def test_refused_answer_fails_test_with_its_errors(inn, revision, declares, answer, message):
    options: dict[str, Any] = {"revision": revision, "declares": DECLARES[declares]}
    with pytest.raises(AssertionError, match=message):
        await a_test(inn, lambda person: person.fills(**answer), tool="book", **options)


async def test_refused_secret_fails_test_with_its_errors(inn):
    def types(person: AskedPerson) -> None:
        person.types(user="bob", token="sesame")

    with pytest.raises(AssertionError, match=r"Ask Eve\.; User: No such user\."):
        await a_test(inn, types, tool="log_in")


async def test_second_answer_that_is_not_used_fails_test(inn, revision):
    with pytest.raises(NeverAsked, match="fill in a form"):
        await a_test(inn, fills, fills, tool="book", revision=revision)


@pytest.mark.parametrize("declares", DECLARES)
async def test_accepted_wrong_answer_fails_test(inn, declares):
    def answers(person: AskedPerson) -> None:
        person.answers_wrongly(room="garden", nights=3)

    with pytest.raises(AssertionError, match="accepts this answer of answers_wrongly"):
        await a_test(inn, answers, tool="book", declares=DECLARES[declares])


async def test_question_without_action_after_wrong_answer_fails_test(inn, revision):
    def answers(person: AskedPerson) -> None:
        person.answers_wrongly(room="attic", nights=3)

    with pytest.raises(UnexpectedQuestion, match="planned no answer"):
        await a_test(inn, answers, tool="book", revision=revision, declares=["url"])


async def test_decline_is_logged_without_traceback(inn, caplog):
    async with elicit_person(inn) as person:
        person.declines()
        assert (await person.call("book")).code == "ELICITATION_DECLINED"
    (logged,) = [one for one in caplog.records if one.levelno >= logging.ERROR and one.exc_info]
    assert "Declined" in caplog.text
    assert "Traceback" not in caplog.text
    assert logged.exc_info is not None
