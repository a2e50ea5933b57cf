"""Forms and secrets with `check` in Chromium and Firefox, with and without JavaScript."""

from collections.abc import Mapping
from itertools import product
from pathlib import Path

import pytest
from pydantic import BaseModel, SecretStr

from flows import elicit
from tests.browser.drivers import Driven, driven
from tests.support.mcp_server import LEGACY, MODERN, URL, caller_of, new_server, soon, text_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

TAKEN = "The attic is taken. Choose another room."
NOBODY = "There is no user with this name."
# One axis of pairs, so that each browser runs with and without JavaScript even without `--whole`.
BROWSERS = list(product(("chromium", "firefox"), (True, False)))


class Booking(BaseModel):
    room: str
    nights: int
    note: str = ""


class Login(BaseModel):
    user: str
    token: SecretStr


async def free_place(booking: Booking) -> Mapping[str, str] | None:
    return {"room": TAKEN} if booking.room == "attic" else None


async def right_user(login: Login) -> Mapping[str, str] | None:
    return None if login.user == "ada" else {"user": NOBODY}


async def has_error(ann: Driven, fault: str, *, typed: str) -> None:
    """Wait for a page with the error at the first field, which still contains the typed text."""
    field = f"//*[@id='answer-1'][@value='{typed}'][@aria-invalid='true']"
    await ann.find(f"//div[.{field}]//*[contains(@class, 'fault')][contains(., '{fault}')]")
    described = (
        "contains(concat(' ', //*[@id='answer-1']/@aria-describedby, ' '), concat(' ', @id, ' '))"
    )
    await ann.find(f"//*[@id][{described}][contains(., '{fault}')]")


async def shows_value(ann: Driven, number: int, typed: str) -> None:
    await ann.find(f"//*[@id='answer-{number}'][@value='{typed}']")


@pytest.mark.parametrize(("browser_name", "with_script"), BROWSERS)
async def test_check_error_is_shown_at_its_field_and_second_answer_is_accepted_once(
    browser_name: str, with_script: bool, tmp_path: Path
) -> None:
    # finding: XA15
    server, done = new_server("mcp"), list[str]()

    @server.tool()
    async def book() -> str:
        booking = await elicit.form("Which room?", Booking, check=free_place)
        done.append(booking.room)
        return f"{booking.room}, {booking.nights}, {booking.note}"

    @server.tool()
    async def log_in() -> str:
        login = await elicit.secret("Your login?", Login, check=right_user)
        done.append(login.user)
        return f"{login.user} with {len(login.token.get_secret_value())} letters"

    revision = MODERN if with_script else LEGACY
    async with (
        driven(browser_name, tmp_path, with_script=with_script) as ann,
        caller_of(server, revision, declares=URL) as (env, caller),
    ):
        call = caller.call("book")
        await ann.open(await caller.link())
        for number, text in enumerate(("attic", "3", "Late, sorry"), start=1):
            await ann.type(text, number=number)
        await ann.press("Send")
        await has_error(ann, TAKEN, typed="attic")
        await shows_value(ann, 2, "3")
        await shows_value(ann, 3, "Late, sorry")
        await ann.type("garden")
        await ann.press_twice("Send")
        await ann.reads("Sent")
        assert text_of(await soon(call)) == "garden, 3, Late, sorry"

        call = caller.call("log_in")
        await ann.open(await caller.link())
        await ann.type("bob")
        await ann.type("sesame-1234", number=2)
        await ann.press("Save")
        await has_error(ann, NOBODY, typed="bob")
        await ann.find("//*[@id='answer-2'][not(@value)]")
        await ann.find("//p[contains(., 'Please enter them again.')]")
        await ann.type("ada")
        await ann.type("sesame-1234", number=2)
        await ann.press_twice("Save")
        await ann.reads("Saved")
        assert text_of(await soon(call)) == "ada with 11 letters"

        assert done == ["garden", "ada"]
        assert {row.status for row in await env.elicitations()} == {"accepted"}
