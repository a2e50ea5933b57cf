"""Forms with `check` and `initial`: the author's own check runs before an answer is accepted."""

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Mapping
from datetime import date
from typing import Any, Literal

import msgspec
import pytest
from pydantic import BaseModel, Field, SecretStr

from flows import InvalidUse, elicit
from flows.elicitation.states import Json
from flows.errors import InvalidAnswer, InvalidQuestion
from flows.kinds.checking import FAULT_CHARACTERS
from flows.question import Question
from flows.schema.schema import Fault
from tests.support.clock import Clock
from tests.support.hand_loop import HandLoop
from tests.support.mcp_server import BOTH, FORM, MODERN, URL, caller_of, soon, text_of
from tests.support.service_env import asked, process
from tests.support.task_client import task_client, tasks_env
from webapp.elicitations.watcher import listen
from webapp.kinds.rules import ASKED_AGAIN_AT_MOST, CHECKED_WITHIN, NOT_CHECKED
from webapp.records.values import Check
from webapp.stores.sqlite import MemoryStore

TAKEN = "The attic is taken. Choose another room."
WRONG: dict[str, Json] = {"room": "attic", "nights": 3}
RIGHT: dict[str, Json] = {"room": "garden", "nights": 3}


class Booking(BaseModel):
    room: Literal["garden", "attic"]
    nights: int = Field(ge=1, le=14)
    note: str = ""


class Login(BaseModel):
    user: str
    token: SecretStr


async def free_room(booking: Booking) -> Mapping[str, str] | None:
    assert isinstance(booking, Booking)
    return {"room": TAKEN} if booking.room == "attic" else None


def right_user(login: Login) -> Mapping[str, str] | None:
    assert isinstance(login, Login)
    return None if login.user == "ada" else {"user": "No such user.", "": "The CRM refused it."}


async def known_city(city: str) -> Mapping[str, str] | None:
    return None if city == "Ulm" else {"": "There is no such city."}


async def hangs(_: Booking) -> None:
    await asyncio.get_running_loop().create_future()


def fails(login: Login) -> None:
    raise RuntimeError(login.token.get_secret_value())


async def fails_with_answer(booking: Booking) -> None:
    raise RuntimeError(booking.room)


def leaves(_: Booking) -> None:
    raise SystemExit(1)


def returns_text(_: Booking) -> Any:
    return "taken"


def returns_blank(_: Booking) -> Any:
    return {"room": " "}


def says_too_much(_: Booking) -> dict[str, str]:
    return {"room": "x" * 1000}


async def asks(_: Booking) -> None:
    await elicit.confirm("Sure?")


def strings(content: Mapping[str, Json]) -> dict[str, str]:
    return {f"answer.{name}": str(value) for name, value in content.items()}


ON_PAGE = {"answer.room": "1", "answer.nights": "3", "answer.note": "Late, sorry"}


async def test_page_shows_error_next_to_field_and_accepts_nothing(server, revision):
    # finding: XA15
    @server.tool()
    async def book() -> str:
        booking = await elicit.form("Which room?", Booking, check=free_room)
        return f"{type(booking).__name__} {booking.room} {booking.note}"

    async with caller_of(server, revision, declares=URL) as (env, caller):
        call = caller.call("book")
        link, person = await caller.link(), await env.person()
        page = await person.visit(link)
        refused = await person.browser.post(link, data={"csrf": page.csrf, **ON_PAGE})
        assert refused.status_code == 422
        assert TAKEN in refused.text
        assert 'value="3"' in refused.text
        assert "Late, sorry" in refused.text
        assert 'aria-invalid="true"' in refused.text.partition("answer.room")[2][:300]
        assert await env.status(link) in ("pending", "opened")
        typed = {**ON_PAGE, "answer.room": "0"}
        done = await person.browser.post(link, data={"csrf": page.csrf, **typed})
        assert done.status_code == 303
        assert text_of(await soon(call)) == "Booking garden Late, sorry"


async def test_secret_is_checked_and_not_shown_again(server, revision):
    @server.tool()
    async def log_in() -> str:
        login = await elicit.secret("Your login?", Login, check=right_user)
        return login.user

    async with caller_of(server, revision, declares=URL) as (env, caller):
        call = caller.call("log_in")
        link, person = await caller.link(), await env.person()
        page = await person.visit(link)
        typed = {"csrf": page.csrf, "answer.user": "bob", "answer.token": "sesame-1234"}
        refused = await person.browser.post(link, data=typed)
        assert refused.status_code == 422
        assert "No such user." in refused.text
        assert "The CRM refused it." in refused.text
        assert 'value="bob"' in refused.text
        assert "sesame-1234" not in refused.text
        done = await person.browser.post(link, data={**typed, "answer.user": "ada"})
        assert done.status_code == 303
        assert text_of(await soon(call)) == "ada"


async def test_client_shows_form_again_with_error_and_typed_values(server, revision):
    @server.tool()
    async def book() -> str:
        booking = await elicit.form("Which room?", Booking, check=free_room)
        return booking.room

    fills = [{**WRONG, "note": "Late"}, RIGHT]
    async with caller_of(server, revision, declares=BOTH, fills=fills) as (env, caller):
        assert await caller.text("book") == "garden"
        first, second = caller.forms
        assert first.message == "Which room?"
        assert second.message == f"Your answer was not sent:\nRoom: {TAKEN}\n\nWhich room?"
        shown = second.requested_schema["properties"]
        assert {name: field.get("default") for name, field in shown.items()} == {
            "room": "attic",
            "nights": 3,
            "note": "Late",
        }
        (row,) = await env.elicitations()
        assert row.status == "accepted"
        assert row.id not in env.service.kinds.rules.refused


async def test_client_form_of_one_text_is_shown_again(server, revision):
    @server.tool()
    async def visit() -> str:
        return await elicit.form("Which city?", initial="Berlin", check=known_city)

    fills = [{"response": "Berlin"}, {"response": "Ulm"}]
    async with caller_of(server, revision, declares=FORM, fills=fills) as (_, caller):
        assert await caller.text("visit") == "Ulm"
        first, second = caller.forms
        assert first.requested_schema["properties"]["response"]["default"] == "Berlin"
        assert second.message.splitlines()[1] == "There is no such city."


async def test_schema_error_of_checked_form_is_shown_again(server, revision):
    @server.tool()
    async def book() -> str:
        return (await elicit.form("Which room?", Booking, check=free_room)).room

    fills: list[dict[str, Json]] = [{"room": "cellar", "nights": 30}, RIGHT]
    async with caller_of(server, revision, declares=FORM, fills=fills) as (_, caller):
        assert await caller.text("book") == "garden"
        again = caller.forms[1]
        assert "Nights: This must be 14 or less." in again.message
        assert all("default" not in again.requested_schema["properties"][n] for n in RIGHT)


async def test_client_that_repeats_wrong_answer_is_asked_a_few_times_only(server, revision):
    @server.tool()
    async def book() -> str:
        return (await elicit.form("Which room?", Booking, check=free_room)).room

    fills = [WRONG] * 20
    async with caller_of(server, revision, declares=FORM, fills=fills) as (env, caller):
        result = await caller.result("book")
        while not result.is_error:  # on 2026-07-28 a call ends after fewer rounds
            assert "not answered" in text_of(result)
            result = await caller.result("book")
        assert result.meta["details"] == [{"path": "room", "message": TAKEN}]
        assert len(caller.forms) == 1 + ASKED_AGAIN_AT_MOST
        (row,) = await env.elicitations()
        assert row.status == "failed"


class Broken(Booking):
    def model_post_init(self, _: object) -> None:
        raise KeyError("room")


async def test_error_in_the_tools_validator_does_not_blame_the_answer(server, revision):
    @server.tool()
    async def book() -> str:
        return (await elicit.form("Which room?", Broken)).room

    async with caller_of(server, revision, declares=FORM, fills=[WRONG]) as (_, caller):
        result = await caller.result("book")
        assert result.meta["code"] == "ELICITATION_FAILED"
        assert "'Which room?'" in text_of(result)
        assert "raised an error while it checked the answer. This is a bug" in text_of(result)


async def test_check_runs_once_for_each_answer_of_a_client(server, revision):
    counted.clear()

    @server.tool()
    async def book() -> str:
        return (await elicit.form("Which room?", Booking, check=counts)).room

    fills = [WRONG, WRONG, RIGHT]
    async with caller_of(server, revision, declares=FORM, fills=fills) as (_, caller):
        assert await caller.text("book") == "garden"
        assert counted == ["attic", "attic", "garden"]


counted: list[str] = []


def counts(booking: Booking) -> Mapping[str, str] | None:
    counted.append(booking.room)
    return {"room": TAKEN} if booking.room == "attic" else None


async def test_person_can_give_up_refused_form(server, revision):
    @server.tool()
    async def book() -> str:
        booking = await elicit.form("Which room?", Booking, check=free_room).or_none()
        return f"{booking}"

    fills = [WRONG, "decline"]
    async with caller_of(server, revision, declares=FORM, fills=fills) as (_, caller):
        assert await caller.text("book") == "None"


async def test_two_presses_are_accepted_once(server, revision):
    @server.tool()
    async def book() -> str:
        return (await elicit.form("Which room?", Booking, check=waits_for_other)).room

    waiting.clear()
    async with caller_of(server, revision, declares=URL) as (env, caller):
        call = caller.call("book")
        link, person = await caller.link(), await env.person()
        page = await person.visit(link)
        typed = [{"csrf": page.csrf, **ON_PAGE, "answer.nights": str(n)} for n in (3, 4)]
        replies = await asyncio.gather(*(person.browser.post(link, data=one) for one in typed))
        assert sorted(reply.status_code for reply in replies) == [303, 409]
        assert len(waiting) == 2
        assert text_of(await soon(call)) == "attic"


waiting: list[asyncio.Event] = []


async def waits_for_other(_: Booking) -> None:
    waiting.append(asyncio.Event())
    if len(waiting) == 2:
        for each in waiting:
            each.set()
    await waiting[-1].wait()


async def test_trusted_code_receives_the_errors_of_the_check(server, revision):
    @server.tool()
    async def book() -> str:
        question = elicit.form("Which?", Booking, check=free_room, elicitation_id="room-8")
        return (await question).room

    async with caller_of(server, revision, declares=URL) as (env, caller):
        call = caller.call("book")
        await caller.link()
        with pytest.raises(InvalidAnswer) as refused:
            await env.service.completing.complete("room-8", WRONG)
        assert refused.value.details == ({"path": "room", "message": TAKEN},)
        assert refused.value.http_status == 422
        await env.service.completing.complete("room-8", RIGHT)
        assert text_of(await soon(call)) == "garden"


async def test_form_begins_with_initial_values(server, revision):
    @server.tool()
    async def book() -> str:
        first = Booking(room="attic", nights=2, note="As last time")
        return (await elicit.form("Which room?", Booking, initial=first)).note

    async with caller_of(server, revision, declares=URL) as (env, caller):
        call = caller.call("book")
        link, person = await caller.link(), await env.person()
        page = await person.visit(link)
        assert 'value="2"' in page.text
        assert "As last time" in page.text
        assert "selected" in page.text.partition("attic")[0][-80:]
        done = await person.browser.post(link, data={"csrf": page.csrf, **ON_PAGE})
        assert done.status_code == 303
        assert text_of(await soon(call)) == "Late, sorry"


async def test_task_repeats_a_refused_form_as_a_new_input_request(server):
    @server.tool()
    async def book() -> str:
        return (await elicit.form("Which room?", Booking, check=free_room)).room

    async with tasks_env(server) as env, task_client(env, MODERN) as client:
        task = await client.task("book")
        first = (await client.get(task))["inputRequests"]
        await client.update(task, action="accept", content=WRONG)
        second = (await client.until(task, "input_required"))["inputRequests"]
        assert not first.keys() & second.keys()
        (request,) = second.values()
        assert TAKEN in request["params"]["message"]
        await client.update(task, action="accept", content=RIGHT)
        assert await client.text(task) == "garden"


# The author's check runs, whichever process receives the answer.


async def faults_of(
    question: Question[Any],
    content: Mapping[str, Json],
    *,
    serves: str | None = "s",
    imports: bool = False,
    clock: Clock | None = None,
) -> tuple[list[Fault], list[Check]]:
    """Return the faults that the process of the page finds, and its `Check` rows.

    Another process runs the check if it has asked the question (`imports`) or serves `serves`.
    """
    clock, store, request = clock or Clock(), MemoryStore(), question.request
    async with process(store, clock) as page, process(store.sibling(), clock) as tool:
        listening = [asyncio.ensure_future(listen(one.elicitations)) for one in (page, tool)]
        terms = msgspec.to_builtins(request.terms)  # type: ignore[attr-defined]
        elicitation = await asked(tool, kind=request.kind, terms=terms)
        if imports:
            tool.kinds.rules.remember(elicitation, request)
        if serves is not None:
            tool.kinds.rules.serves.add(serves)
        await asyncio.sleep(0)
        found = await page.kinds.rules.faults(elicitation, dict(content))
        for one in listening:
            one.cancel()
        await asyncio.gather(*listening, return_exceptions=True)
        records = await store.list("check")
        checks = [await page.elicitations.rows.open(record, Check) for record in records]
    return list(found), checks


ROOM = elicit.form("Which room?", Booking, check=free_room)
LOGIN = elicit.secret("Your login?", Login, check=right_user)
CITY = elicit.form("Which city?", check=known_city)


@pytest.mark.parametrize("imports", [False, True])
@pytest.mark.parametrize(
    ("question", "content", "expected"),
    [
        (ROOM, RIGHT, []),
        (ROOM, WRONG, [Fault(path="room", message=TAKEN)]),
        (LOGIN, {"user": "ada", "token": "t"}, []),
        (CITY, {"response": "Ulm"}, []),
        (CITY, {"response": "Bonn"}, [Fault(path="response", message="There is no such city.")]),
    ],
)
async def test_other_process_of_the_server_checks_answer(imports, question, content, expected):
    found, (check,) = await faults_of(question, content, imports=imports)
    assert found == expected
    assert check.content is None  # typed values are not stored


@pytest.mark.parametrize("serves", [None, "another server"])
def test_answer_is_not_accepted_if_no_process_of_the_server_runs(serves):
    clock = Clock()
    loop = HandLoop(clock)
    found, _ = loop.run_until_complete(faults_of(ROOM, RIGHT, serves=serves, clock=clock))
    assert found == [NOT_CHECKED]
    loop.close()


def test_check_that_hangs_accepts_nothing():
    clock = Clock()
    loop = HandLoop(clock)
    question = elicit.form("Which room?", Booking, check=hangs)
    found, (check,) = loop.run_until_complete(faults_of(question, RIGHT, clock=clock))
    assert found == [NOT_CHECKED]
    assert loop.time() == pytest.approx(CHECKED_WITHIN, abs=1)
    assert check.faults == (("", NOT_CHECKED.message),)
    loop.close()


@pytest.mark.parametrize(
    ("check", "logged"),
    [
        (fails_with_answer, "RuntimeError: attic"),
        (leaves, "The check called sys.exit."),
        (returns_text, 'returns_text returned str: return {"room"'),
        (returns_blank, "returned a field without a sentence"),
        (asks, "NoAsker"),
    ],
)
async def test_failing_check_accepts_nothing_and_is_logged_with_its_error_id(check, logged, caplog):
    caplog.set_level(logging.ERROR)
    question = elicit.form("Which room?", Booking, check=check)
    (fault,), _ = await faults_of(question, WRONG)
    assert fault.path == ""
    assert "nothing was sent" in fault.message
    (record,) = [one for one in caplog.records if one.msg == "rules.failed"]
    assert record.__dict__["error_id"] in fault.message
    assert logged in caplog.text


async def test_failing_check_of_secret_does_not_log_the_secret(caplog):
    question = elicit.secret("Your login?", Login, check=fails)
    (fault,), _ = await faults_of(question, {"user": "ada", "token": "sesame-1234"})
    (record,) = [one for one in caplog.records if one.msg == "rules.failed"]
    assert record.__dict__["error_id"] in fault.message
    assert record.__dict__["at"].startswith(__file__)
    assert "sesame-1234" not in caplog.text


async def test_long_error_of_check_is_shortened():
    question = elicit.form("Which room?", Booking, check=says_too_much)
    (fault,), _ = await faults_of(question, WRONG)
    assert len(fault.message) == FAULT_CHARACTERS


def test_check_changes_the_digest_of_the_question():
    plain = elicit.form("Which room?", Booking)
    assert len({plain.digest, ROOM.digest}) == 2
    assert ROOM.digest == elicit.form("Which room?", Booking, check=free_room).digest


# Misuse.


class Methods:
    def check(self, _: Booking) -> None: ...

    def __call__(self, _: Booking) -> None: ...


def takes_two(_: Booking, __: str) -> None: ...


def takes_none() -> None: ...


async def yields(_: Booking) -> AsyncIterator[None]:
    yield


def nested() -> Any:
    async def check(_: Booking) -> None: ...

    return check


def nested_model() -> Any:
    class Inner(BaseModel):
        name: str

    return Inner


TOP_LEVEL = "top level of a module"


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda _: None, TOP_LEVEL),
        (nested(), TOP_LEVEL),
        (functools.partial(free_room), TOP_LEVEL),
        (Methods(), TOP_LEVEL),
        (Booking, TOP_LEVEL),
        (takes_two, "must have one parameter"),
        (takes_none, "must have one parameter"),
        (yields, "check=yields contains `yield`"),
        ("free_room", "check must be"),
    ],
)
@pytest.mark.parametrize("verb", [elicit.form, elicit.secret])
def test_check_that_no_process_can_find_is_refused(check, message, verb):
    with pytest.raises(InvalidQuestion, match=message):
        verb("Which room?", Booking, check=check)


def test_model_of_check_must_be_at_top_level():
    with pytest.raises(InvalidQuestion, match="Inner must be a class at the top level"):
        _ = elicit.form("Who?", nested_model(), check=free_room)


class Trip(BaseModel):
    start: date
    price: float | None = None
    stops: list[Literal["Ulm", "Bonn"]] = []


@pytest.mark.parametrize(
    ("model", "initial", "message"),
    [
        (Booking, {"rooms": "attic"}, "has the field 'rooms'. The form has room, nights, note"),
        (Booking, {"room": "cellar"}, r"initial\['room'\] is not valid: Choose one"),
        (Booking, {"nights": 20}, r"initial\['nights'\] is not valid: This must be 14 or less"),
        (Booking, {"nights": "3"}, "Write a number"),
        (Booking, Login(user="a", token=SecretStr("b")), "must be Booking or a dict, not Login"),
        (Booking, {"note": object()}, "not JSON"),
        (Booking, ["attic"], "must be Booking or a dict, not list"),
        (str, 5, "must be str"),
        (Trip, {"start": "tomorrow"}, "Write a date"),
        (Trip, {"stops": ["Bonn", "Bonn"]}, "Choose each choice only once"),
    ],
)
def test_initial_value_that_is_not_valid_is_refused(model, initial, message):
    with pytest.raises(InvalidQuestion, match=message):
        _ = elicit.form("Which?", model, initial=initial)


def test_initial_value_of_a_secret_is_refused():
    with pytest.raises(InvalidQuestion, match="'token', which is a secret"):
        _ = elicit.secret("Login?", Login, initial={"token": "sesame"})
    question = elicit.secret("Login?", Login, initial={"user": "ada"})
    (user, token) = question.request.schema.fields  # type: ignore[attr-defined]
    assert (user.default, token.default) == ("ada", None)


def test_initial_values_are_python_values():
    given = {"start": date(2031, 5, 28), "price": 9.5, "stops": ["Ulm"]}
    question = elicit.form("Which?", Trip, initial=given)
    fields = question.request.schema.fields  # type: ignore[attr-defined]
    assert [field.default for field in fields] == ["2031-05-28", 9.5, ["Ulm"]]


async def test_misuse_in_tool_names_the_line(server, revision):
    found: list[InvalidUse] = []

    @server.tool()
    async def book() -> str:
        try:
            _ = elicit.form("Which?", Booking, check=lambda _: None)
        except InvalidUse as error:
            found.append(error)
            raise
        return ""

    async with caller_of(server, revision, declares=URL) as (_, caller):
        result = await caller.result("book")
        assert result.meta["code"] == "ELICITATION_INVALID_USE"
        assert (found[0].place or "").startswith("test_checks.py:")
        assert TOP_LEVEL in text_of(result)
