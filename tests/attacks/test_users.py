"""An application's own users: links opened by the wrong person, and invalid results of `who`."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
from starlette.requests import Request

from flows import Link, Money, NotAllowed, complete_elicitation, elicit
from flows.elicitation.states import Status
from flows.providers import github
from tests.support.asking_env import COOKIE, AskingEnv, Block, asking_env, by_cookie
from tests.support.guarded_server import guarded_by
from tests.support.living import living
from tests.support.mcp_sandbox import Guest
from tests.support.mcp_server import Person, new_server
from tests.support.oauth_env import decide, ends
from webapp.coroutines import completing
from webapp.demo.walker import Page as Forms
from webapp.identity.users import Users
from webapp.records.ids import tail_of
from webapp.settings.identity import IdentitySettings

SECRET_WORDS = "the words of the question"
BY_CODE = IdentitySettings(binds_by_code=True)


@pytest.fixture
async def here() -> AsyncIterator[AskingEnv]:
    async with living(asking_env(sign_in_url="https://shop.example/login")) as here:
        yield here


async def ask() -> str:
    return str(await elicit.secret(SECRET_WORDS))


async def connect() -> str | None:
    return (await elicit.oauth(github)).label


async def status_of(here: AskingEnv, block: Block[Any]) -> Status:
    found = await here.service.elicitations.get((await block.link()).elicitation_id)
    assert found is not None
    return found.status


async def must_be_shut(person: Person, url: str) -> str:
    """Check that no route of the link shows the question to this person. Return the page's text."""
    page = await person.visit(url)
    assert page.status == 403
    assert SECRET_WORDS not in page.text
    live = await person.browser.get(f"{url}/live")
    assert live.status_code == 403
    for place in (url, f"{url}/decline", f"{url}/allow"):
        pressed = await person.browser.post(place, data={"csrf": page.csrf or "x"})
        assert pressed.status_code == 403
    return page.text


async def test_link_of_another_user_is_refused(here: AskingEnv) -> None:
    block = here.begin(ask)
    text = await must_be_shut(await here.browser("mallory"), (await block.link()).url)
    assert "belongs to someone else" in text
    assert "mallory" not in text
    assert await status_of(here, block) is Status.PENDING


async def test_link_shows_sign_in_address_to_signed_out_visitor(here: AskingEnv) -> None:
    block = here.begin(ask)
    text = await must_be_shut(await here.browser(None), (await block.link()).url)
    assert 'href="https://shop.example/login"' in text
    assert await status_of(here, block) is Status.PENDING


async def test_person_at_the_servers_machine_is_not_an_application_user(
    here: AskingEnv,
) -> None:
    person = await here.browser(None)
    await must_be_shut(person, (await here.begin(ask).link()).url)
    # A user is not the server's operator either.
    viewer = await here.service.identity.viewer(
        {"headers": [(b"cookie", f"{COOKIE}=ann".encode())], "type": "http"}, {}
    )
    assert viewer is not None
    assert viewer.owner != here.service.identity.local_owner


async def test_oauth_callback_after_user_changed_is_refused(
    here: AskingEnv,
) -> None:
    block, person = here.begin(connect), await here.browser("ann")
    back = await decide(person, await person.go_on((await block.link()).url), "approve")
    person.browser.cookies.set(COOKIE, "mallory")
    assert (await person.visit(back)).status == 403
    assert await status_of(here, block) is Status.OPENED
    assert await here.connections() == []
    person.browser.cookies.delete(COOKIE)
    assert (await person.visit(back)).status == 403
    person.browser.cookies.set(COOKIE, "ann")  # the refused visits did not use up the callback
    await ends(person, await person.visit(back))
    assert await block


async def test_payment_return_after_user_changed_shows_no_payment(
    here: AskingEnv,
) -> None:
    async def buy() -> str:
        return (await elicit.payment(Money("9.00", "EUR"), SECRET_WORDS)).id

    block, person = here.begin(buy), await here.browser("ann")
    checkout = await person.browser.get(await person.go_on((await block.link()).url))
    (form,) = (f for f in Forms(checkout.text).forms if f.action.endswith("/card"))
    paid = await person.browser.post(urljoin(str(checkout.url), form.action), data=form.fields)
    person.browser.cookies.set(COOKIE, "mallory")
    page = await person.visit(paid.headers["location"])
    assert page.status == 403
    assert SECRET_WORDS not in page.text
    assert await block  # the payment still counts, for ann


async def test_same_user_in_another_browser_cannot_finish(
    here: AskingEnv,
) -> None:
    block, person = here.begin(connect), await here.browser("ann")
    back = await decide(person, await person.go_on((await block.link()).url), "approve")
    assert (await (await here.browser("ann")).visit(back)).status == 403
    assert await here.connections() == []


async def test_form_of_another_site_changes_nothing(here: AskingEnv) -> None:
    block, person = here.begin(ask), await here.browser("ann")
    url = (await block.link()).url
    await person.visit(url)
    for data in ({}, {"csrf": "made up"}):
        declined = await person.browser.post(f"{url}/decline", data=data)
        assert declined.status_code == 403
    foreign_origin = {"origin": "https://evil.example"}
    assert (await person.browser.post(url, headers=foreign_origin)).status_code == 403
    assert await status_of(here, block) is Status.PENDING


def _raises(_: Request) -> str:
    raise RuntimeError("session store: password=hunter2")


async def _raises_later(_: Request) -> str:
    raise RuntimeError("session store: password=hunter2")


ODD: dict[str, Callable[[Request], Any]] = {
    "exception at the call": _raises,
    "exception at the await": _raises_later,
    "number": lambda _: 7,
    "bytes": lambda _: b"ann",
    "list": lambda _: ["ann"],
    "boolean": lambda _: True,
    "empty": lambda _: "",
    "huge": lambda _: "a" * 1_000_000,
    "lone surrogate": lambda _: "\ud800",
    "recursion error": lambda _: (_ for _ in ()).throw(RecursionError),
}


@pytest.mark.parametrize("odd", ODD)
async def test_invalid_user_id_is_treated_as_signed_out(odd: str) -> None:
    async with asking_env(who=ODD[odd]) as here:
        text = await must_be_shut(await here.browser(), (await here.begin(ask).link()).url)
        assert "hunter2" not in text
        for place in ("/connections", "/payments"):
            assert "hunter2" not in (await (await here.browser()).visit(here.url + place)).text


async def test_who_function_without_answer_in_time_means_signed_out() -> None:
    answer = threading.Event()

    async def waits(_: Request) -> str:
        await asyncio.Event().wait()
        return "ann"

    def blocks(_: Request) -> str:
        answer.wait()
        return "ann"

    for slow in (waits, blocks):
        users = Users(application="shop", who=slow, answers_within=timedelta(0))
        assert await users.at({"type": "http", "headers": []}) is None
    answer.set()


async def test_similar_user_ids_are_different_people(here: AskingEnv) -> None:
    tags = {
        here.service.elicitations.owners.tag_of_user(user, application=application)
        for user, application in [
            *(("b:c", "a"), ("c", "a:b"), ("c", "ab"), ("bc", "a"), ("a:b", ""), ("", "a:b")),
            *(
                ("ann", "shop"),
                ("Ann", "shop"),
                ("ann ", "shop"),
                ("a\u0301", "s"),
                ("\u00e1", "s"),
            ),
        ]
    }
    assert len(tags) == 11
    block = here.begin(ask, owner="ann:1")
    url = (await block.link()).url
    for other in ("ann", "1", "ann%3A1", "ANN:1"):
        await must_be_shut(await here.browser(other), url)


async def test_same_subject_from_an_issuer_is_a_different_person() -> None:
    # A server's own tokens can name any issuer, and never match a user.
    async with asking_env(server=new_server("mcp")) as here:
        owners = here.service.elicitations.owners
        user = owners.tag_of_user("ann", application="shop")
        issuers = ("", "user", "shop", "users", "local", "user:shop", "owner")
        assert user not in {owners.tag(issuer=issuer, subject="ann") for issuer in issuers}


async def test_mcp_caller_and_application_user_with_same_name_share_nothing() -> None:
    server = guarded_by("mcp", {"sub": "ann"})

    @server.tool()
    async def account() -> str:
        return str((await elicit.oauth(github)).label)

    async with asking_env(server=server, identity=BY_CODE) as here:
        block, guest = here.begin(connect), await here.guest("ann")
        await guest.connect((await block.link()).url)
        assert await block
        (connection,) = await here.connections()
        seen = here.service.identity.caller(
            {"headers": []},
            subject=replace(_subject(), subject="ann"),
            client="c",
        )
        assert seen.owner is not None
        assert seen.owner != connection.owner
        again = here.begin(connect, key="another")
        assert await again  # the user has the account


def _subject() -> Any:
    from webapp.identity.identity import Subject

    return Subject(issuer="https://login.example.com", subject="", client_id="c")


async def test_account_is_shown_only_to_its_user(here: AskingEnv) -> None:
    block, ann = here.begin(connect), await here.guest("ann")
    await ann.connect((await block.link()).url)
    label = await block
    assert label is not None
    place = f"{here.url}/connections"
    mine = await ann.person.visit(place)
    assert label in mine.text
    (connection,) = await here.connections()
    disconnect = f"{place}/{tail_of(connection)}/disconnect"
    assert disconnect.removeprefix(here.url) in mine.text
    for user in ("mallory", None):
        other = await here.browser(user)
        other_page = await other.visit(place)
        assert label not in other_page.text
        pressed = await other.browser.post(disconnect, data={"csrf": mine.csrf or ""})
        assert pressed.status_code in (403, 404)
    assert (await here.connections())[0] == connection


async def test_custom_route_completes_only_for_same_user_in_same_browser(
    here: AskingEnv,
) -> None:
    def page(link: Link) -> str:
        return f"{here.url}/menu?elicitation={link.return_token}"

    async def choose() -> object:
        return (await elicit.url("Choose.", page, origins=[here.url]))["dish"]

    block, ann = here.begin(choose), await here.browser("ann")
    query = urlsplit(await ann.go_on((await block.link()).url)).query

    def request(user: str, person: Person) -> Request:
        cookies = {**person.browser.cookies, COOKIE: user}
        cookie = "; ".join(f"{name}={value}" for name, value in cookies.items())
        headers = [(b"cookie", cookie.encode())]
        return Request({"type": "http", "query_string": query.encode(), "headers": headers})

    dish = {"dish": "soup"}
    with completing(app=here.app):
        for user, person in (("mallory", ann), ("ann", await here.browser("ann"))):
            with pytest.raises(NotAllowed):
                await complete_elicitation(request(user, person), dish)
        assert await complete_elicitation(request("ann", ann), dish) == "accepted"
    assert await block == "soup"


async def test_link_bound_by_code_opens_only_for_browser_with_typed_code() -> None:
    async with asking_env(who=None, identity=BY_CODE) as here:
        block = here.begin(ask)
        link = await block.link()
        assert link.needs_code
        stranger, person = await here.browser(None), await here.browser(None)
        await stranger.press(link.url, to="/code")
        other_code = await code_on(stranger, link.url)
        await person.press(link.url, to="/code")
        assert (
            await link.confirm("BCDFGHJK")
            == "This is not the code that the page shows. Check the page again, and type all "
            "eight letters."
        )
        mine = await code_on(person, link.url)
        assert mine != other_code
        assert await link.confirm(mine) is None
        assert SECRET_WORDS not in (await stranger.visit(link.url)).text
        await Guest(person).type(link.url)
        assert await block


async def code_on(person: Person, url: str) -> str:
    text = (await person.visit(url)).text
    return text.split('id="letters"')[1].split(">")[1].split("<")[0]


async def test_too_many_wrong_codes_end_the_question() -> None:
    async with asking_env(who=None, identity=BY_CODE) as here:
        block = here.begin(ask)
        link = await block.link()
        person = await here.browser(None)
        await person.press(link.url, to="/code")
        reported = [await link.confirm(f"guess {number}") for number in range(51)]
        assert reported[-1] is None
        with pytest.raises(Exception, match="wrong too often"):
            await block


async def test_who_function_sees_original_request_without_body() -> None:
    seen: list[Request] = []

    async def who(request: Request) -> str | None:
        seen.append(request)
        with pytest.raises(RuntimeError):
            await request.body()
        return await by_cookie(request)

    async with asking_env(who=who) as here:
        block, guest = here.begin(ask), await here.guest()
        link = await block.link()
        await guest.type(link.url)
        assert await block
        assert {request.method for request in seen} == {"GET", "POST"}
        assert not any("litestar_app" in request.scope for request in seen)
        assert str(seen[0].url) == link.url
