"""The page of connected accounts, which only the person who connected them can see and use."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from html import unescape
from urllib.parse import urljoin

import msgspec
import pytest

from flows.elicitation.states import Status
from flows.oauth.connection import Claim, Connection
from flows.oauth.provider import Provider, Revocation
from flows.providers import github
from tests.support.connections_page import (
    city,
    connect_as,
    look,
    main_text,
    press,
    tail,
    the_one,
)
from tests.support.issuer import sign_in
from tests.support.mcp_server import Page, Person, eventually, new_browser, soon
from tests.support.oauth_env import OAuthEnv, approve, ends, oauth_env, with_providers
from webapp.demo.walker import Page as Forms
from webapp.http.exchange import Receive, Scope, Send
from webapp.oauth.access_tokens import CLAIM, WAIT_AT_MOST
from webapp.sandbox import Sandbox
from webapp.settings.settings import Settings

NOBODY = "http://127.0.0.1:1"
APPS = "https://hub.example/apps"
ACTIONS = ("disconnect", "unshare?tool=list", "keep", "switch", "reconnect")


@asynccontextmanager
async def hub_env(change: Callable[[Provider], Provider]) -> AsyncIterator[OAuthEnv]:
    """Open an environment with a provider "hub": the sandbox's GitHub with these changes."""

    def changed(settings: Settings, sandbox: Sandbox) -> Settings:
        hub = replace(github.at(sandbox.url), name="hub", label="Hub", manage=APPS)
        return with_providers(settings, [change(hub)], sandbox)

    async with oauth_env(change=changed) as here:
        yield here


def field_of(here: OAuthEnv, person: Person, subject: str) -> dict[str, str]:
    browser = here.service.browser
    cookie = browser.cookie_of(person.browser.cookies)
    assert cookie is not None
    return {"csrf": browser.csrf(cookie, subject=subject)}


# Viewing.


async def test_connections_page_shows_account_scopes_and_last_use() -> None:
    async with oauth_env() as here:
        await here.connect("repo", tool="list")
        here.clock.tick(minutes=3)
        asked, person = here.ask("repo", tool="count"), await here.person()
        await ends(person, await person.press(await asked.link(), to="/allow"))
        await asked.account()
        here.clock.tick(minutes=5)
        page = await look(person, here)
        assert (page.status, page.heading) == (200, "Your accounts")
        words = main_text(page)
        assert "Shown to you, on this computer ." in words
        assert "GitHub Sandbox O Octo Cat octocat Connected " in words
        assert "Read and write all your repositories, also private ones" in words
        used = re.findall(r"(count|list) Last used 1 Mar 2026, (12:0[0-9]) UTC", words)
        assert [tool for tool, _ in used] == ["count", "list"]
        assert "In use" not in words
        assert "/signout" not in page.text


async def test_connections_page_contains_no_token_or_owner_and_is_not_cached() -> None:
    async with oauth_env() as here:
        await here.connect("repo")
        account, person = await the_one(here), await here.person()
        answer = await person.browser.get(f"{here.url}/connections")
        assert answer.headers["cache-control"] == "no-store"
        for hidden in (
            account.access_token,
            account.refresh_token,
            account.owner,
            account.lookup_key,
            account.picture,
        ):
            assert str(hidden) not in answer.text
        assert f"/connections/{tail(account)}/disconnect" in answer.text


async def test_server_does_not_fetch_the_picture_of_a_person() -> None:
    async with oauth_env() as here:
        sandbox, paths = here.gate._app, list[str]()

        async def recorded(scope: Scope, receive: Receive, send: Send) -> None:
            paths.append(scope["path"])
            await sandbox(scope, receive, send)

        here.gate._app = recorded
        account = await here.connect("repo")
        assert account.picture == f"{here.sandbox.url}/sandbox.svg"
        assert "/github/api/user" in paths
        person, id = await here.person(), tail(await the_one(here))
        await look(person, here)
        answer = await person.browser.get(f"{here.url}/connections/{id}/picture")
        assert answer.status_code == 404
        assert "/sandbox.svg" not in paths


async def test_empty_connections_page_says_how_to_connect() -> None:
    async with oauth_env() as here:
        page = await look(await here.person(), here)
        assert page.status == 200
        assert "Nothing is connected. When a tool needs one of your accounts" in main_text(page)


async def test_get_requests_change_nothing() -> None:
    async with oauth_env() as here:
        await here.connect("repo")
        before, person = await here.connections(), await here.person()
        await look(person, here)
        for action in ACTIONS:
            place = f"{here.url}/connections/{tail(before[0])}/{action}"
            # finding: XP11
            status = 200 if action == "disconnect" else 405
            assert (await person.browser.get(place)).status_code == status
            assert (await person.browser.head(place)).status_code == status
        assert await here.connections() == before


async def test_page_before_disconnect_says_what_stops_working() -> None:
    # finding: XP11
    async with oauth_env() as here:
        await here.connect("repo", tool="list")
        account, person = await the_one(here), await here.person()
        place = f"{here.url}/connections/{tail(account)}/disconnect"
        page = await person.visit(place)
        assert page.heading == "Disconnect octocat at GitHub?"
        assert "These tools can't use the account until you connect it again: list" in main_text(
            page
        )
        assert f'href="/connections#{tail(account)}"' in page.text
        reply = await person.browser.post(place, data={"csrf": page.csrf or ""})
        pressed = Page.of(reply)
        assert (pressed.status, pressed.location) == (303, place)
        assert (reply.content, "json" in reply.headers["content-type"]) == (b"", False)
        assert (await person.visit(place)).heading == "GitHub is disconnected"


async def test_account_pages_name_tools_and_assistants_by_their_titles() -> None:
    async with oauth_env() as here:
        await here.connect(
            "repo", tool="list", title="List repositories", client_title="Claude Desktop"
        )
        other, person = here.ask("repo", tool="count"), await here.person()
        offer = await person.visit(await other.link())
        assert "connected for List repositories" in main_text(offer)
        await ends(person, await person.press(await other.link(), to="/allow"))
        await other.account()
        words = main_text(await look(person, here))
        assert "List repositories Last used" in words
        assert "Stop sharing with List repositories" in words
        assert "count Last used" in words
        assert "Claude Desktop its own name, not verified" in words
        place = f"{here.url}/connections/{tail(await the_one(here))}/disconnect"
        before = main_text(await person.visit(place))
        assert "again: List repositories count Access is revoked" in before


async def test_local_person_reads_who_they_are_in_the_language_of_the_page() -> None:
    async with oauth_env() as here:
        person = await here.person()
        person.browser.headers["accept-language"] = "de"
        assert "Für Sie an diesem Computer angezeigt." in main_text(await look(person, here))


async def test_accounts_of_other_servers_are_listed_under_their_names() -> None:
    async with oauth_env() as here:
        await here.connect("repo", server="shop")
        await here.connect("repo", server="bakery")
        words = main_text(await look(await here.person(), here))
        assert words.index("For bakery") < words.index("For shop")
        assert "In use" not in words


@pytest.mark.parametrize("number", [1, 30, 300])
async def test_long_list_of_accounts_is_paged_filtered_and_collapsed(number: int) -> None:
    # finding: XP13
    def both(settings: Settings, sandbox: Sandbox) -> Settings:
        hub = replace(github.at(sandbox.url), name="hub", label="Hub", manage=APPS)
        return with_providers(settings, [hub, github.at(sandbox.url)], sandbox)

    async with oauth_env(change=both) as here:
        await here.connect("repo", provider="hub")
        if number > 1:
            await here.connect("repo")
        bases = await here.connections()
        for one in range(len(bases), number):
            mine = bases[one % len(bases)]
            more = msgspec.structs.replace(
                mine,
                id=f"{mine.owner}-more-{one:03}",
                label=f"o{one:03}",
                lapsed_at=mine.connected_at if one == number - 1 else None,
                is_active=False,
                version=0,
            )
            await here.service.elicitations.write(more)
        person = await here.person()
        seen, url = list[str](), f"{here.url}/connections"
        while url:
            page = await person.visit(url)
            found = re.findall(r'<article class="row" id="([^"]*)"', page.text)
            assert 0 < len(found) <= 20
            assert page.text.count("<details open>") == (1 if number == 1 else 0)
            names = re.findall(r'<a class="button small"[^>]*>(.*?)</a>', page.text)
            assert len(set(names)) == len(names)
            seen += found
            older = re.search(r'rel="next" href="([^"]*)"', page.text)
            url = f"{here.url}{unescape(older[1])}" if older else ""
        assert len(seen) == len(set(seen)) == number
        for odd in ("page=0", "page=999999", "page=x", "show=x", "show=at-"):
            assert 'class="row"' in (await person.visit(f"{here.url}/connections?{odd}")).text
        lapsed = await person.visit(f"{here.url}/connections?show=over")
        assert lapsed.text.count('class="row"') == (0 if number == 1 else 1)
        assert ("No account matches this filter." in lapsed.text) == (number == 1)
        hubs = await person.visit(f"{here.url}/connections?show=at-hub")
        assert ("<bdi>GitHub</bdi></a>" in hubs.text) == (number > 1)
        assert "at GitHub" not in hubs.text
        if number == 300:
            # After a press, the browser returns to the page of the list that has the account.
            last = await person.visit(f"{here.url}/connections?page=15")
            form = next(form for form in Forms(last.text).forms if "/unshare" in form.action)
            answer = Page.of(
                await person.browser.post(urljoin(here.url, form.action), data=form.fields)
            )
            assert re.search(r"/connections\?page=15#.*-tools$", answer.location or "")


async def test_lapsed_account_is_marked_and_can_be_connected_again() -> None:
    async with hub_env(lambda hub: hub) as here:
        await here.connect("repo", provider="hub")
        await revoke_at(here, await the_one(here))
        here.clock.tick(hours=2)
        asked, person = here.ask("repo", provider="hub"), await here.person()
        link = await asked.link()
        words = main_text(await look(person, here))
        assert "It no longer works." in words
        assert "the next time a tool needs it, you are asked to connect it again" in words
        assert "/switch" not in words
        await ends(person, await person.visit(await approve(person, await person.go_on(link))))
        assert (await asked.account()).label == "octocat"
        assert "It no longer works." not in main_text(await look(person, here))


async def revoke_at(here: OAuthEnv, connection: Connection) -> None:
    """Revoke the authorization at the provider, as the person would."""
    id, secret = here.sandbox.client_id, here.sandbox.client_secret
    async with new_browser() as browser:
        done = await browser.request(
            "DELETE",
            f"{here.sandbox.url}/github/api/applications/{id}/token",
            auth=(id, secret),
            json={"access_token": connection.access_token},
        )
    assert done.status_code == 204, done.text


# Disconnecting.


async def test_disconnected_account_is_revoked_at_provider_and_wiped_here() -> None:
    async with oauth_env() as here:
        account, person = await here.connect("repo"), await here.person()
        key = (await the_one(here)).access_token
        page = await press(person, here, "/disconnect")
        assert (page.status, page.heading) == (200, "GitHub is disconnected")
        assert "GitHub has confirmed that access is revoked." in main_text(page)
        async with new_browser() as browser:
            headers = {"authorization": f"Bearer {key}"}
            reply = await browser.get(f"{here.sandbox.url}/github/api/user", headers=headers)
        assert reply.status_code == 401
        assert (await the_one(here)).access_token == ""
        assert account.label not in (await look(person, here)).text
        asked = here.ask("repo", arguments="again")
        assert (
            await person.visit(await asked.link())
        ).heading == "Let shop use your GitHub account?"


async def test_repeated_disconnect_shows_same_page() -> None:
    async with oauth_env() as here:
        await here.connect("repo")
        person = await here.person()
        place = f"{here.url}/connections/{tail(await the_one(here))}/disconnect"
        fields = {"csrf": (await person.visit(place)).csrf or ""}
        sent = [Page.of(await person.browser.post(place, data=fields)) for _ in range(2)]
        assert [page.status for page in sent] == [303, 303]
        pages = [await ends(person, page) for page in sent]
        assert pages[0].text == pages[1].text
        words = main_text(pages[1])
        assert "shop has deleted what it stored about octocat" in words
        assert "name stays here for a day, so that this page can be shown again." in words
        stale = place.replace("disconnect", "switch")
        again = Page.of(await person.browser.post(stale, data=fields))
        assert "Nothing is connected." in main_text(await ends(person, again))


@pytest.mark.parametrize(
    ("revocation", "words"),
    [
        (None, "Hub offers no way to revoke access from here."),
        (Revocation(url=f"{NOBODY}/revoke"), "Hub did not confirm that access is revoked."),
    ],
    ids=["no revocation endpoint", "revocation endpoint unreachable"],
)
async def test_unconfirmed_revocation_shows_link_for_manual_removal(
    revocation: Revocation | None, words: str
) -> None:
    async with hub_env(lambda hub: replace(hub, revoke=revocation)) as here:
        await here.connect("repo", provider="hub")
        person = await here.person()
        link = f'<a href="{APPS}" rel="noopener noreferrer" translate="no">'
        assert link in (await look(person, here)).text
        page = await press(person, here, "/disconnect")
        assert page.status == 200
        assert words in main_text(page)
        assert "confirmed" not in main_text(page)
        assert f"Remove it there: {APPS}" in main_text(page)
        assert link in page.text
        assert (await the_one(here)).access_token == ""
        assert await here.ask("repo", provider="hub", arguments="again").link()


@pytest.mark.parametrize("hours", [0, -2])
async def test_disconnect_blocked_by_other_process_can_be_retried(
    hours: int,
) -> None:
    # finding: H2
    async with oauth_env() as here:
        await here.connect("repo")
        account, person = await the_one(here), await here.person()
        elicitations = here.service.elicitations
        await claimed_by(here, "another process")
        pressing = asyncio.create_task(press(person, here, "/disconnect"))
        await eventually(lambda: len(elicitations.waiters))
        here.clock.set(hours=hours)
        here.clock.tick(seconds=CLAIM.total_seconds() - 1)
        await claimed_by(here, "a third one")
        here.clock.tick(seconds=WAIT_AT_MOST.total_seconds() - CLAIM.total_seconds() + 1)
        page = await soon(pressing)
        assert (page.status, page.heading) == (502, "GitHub did not answer")
        assert page.actions == (f"{here.url}/connections/{tail(account)}/disconnect",)
        here.clock.tick(hours=1)
        again = await person.browser.post(page.actions[0], data={"csrf": page.csrf})
        assert "has confirmed" in (await ends(person, Page.of(again))).text


async def claimed_by(here: OAuthEnv, name: str) -> None:
    claim = Claim(by=name, until=here.clock() + CLAIM)
    await here.service.elicitations.write(msgspec.structs.replace(await the_one(here), claim=claim))


# Sharing and switching.


async def test_unshared_tool_asks_again_and_other_tool_does_not() -> None:
    strange = "count/what? a&b=c #1 é%2f+"
    async with oauth_env() as here:
        await here.connect("repo", tool="list")
        asked, person = here.ask("repo", tool=strange), await here.person()
        await ends(person, await person.press(await asked.link(), to="/allow"))
        await asked.account()
        (form,) = (
            f for f in Forms((await look(person, here)).text).forms if "?tool=count" in f.action
        )
        place = urljoin(here.url, form.action)
        page = Page.of(await person.browser.post(place, data=form.fields))
        assert (page.status, page.location) == (
            303,
            f"{here.url}/connections#{tail(await the_one(here))}-tools",
        )
        assert (await the_one(here)).tools == ("list",)
        again = here.ask("repo", tool=strange, arguments="again")
        start = await person.visit(await again.link())
        assert start.heading == "Let shop use octocat at GitHub?"
        quiet = here.ask("repo", tool="list", arguments="again")
        await quiet.account()
        assert not quiet.has_asked


async def test_next_call_uses_account_switched_to() -> None:
    async with oauth_env() as here:
        await here.connect("repo", tool="list")
        hubot = await connect_as(here, "hubot", tool="list", arguments="b", account="hubot")
        person = await here.person()
        assert not hubot.is_active
        words = main_text(await look(person, here))
        assert words.count("In use") == 1
        assert words.index("In use") < words.index("Octo Cat") < words.index("Hubot")
        page = await press(person, here, f"{tail(hubot)}/switch")
        assert (
            main_text(page).index("In use")
            < main_text(page).index("Hubot")
            < main_text(page).index("Octo Cat")
        )
        again = here.ask("repo", tool="list", arguments="again")
        assert (await again.account()).label == "hubot"
        assert not again.has_asked


async def test_page_says_no_account_is_in_use_after_the_used_one_is_disconnected() -> None:
    async with oauth_env() as here:
        await here.connect("repo", tool="list")
        hubot = await connect_as(here, "hubot", tool="list", arguments="b", account="hubot")
        person = await here.person()
        words = main_text(await look(person, here))
        assert "Not in use. A tool gets this account only if it asks for it by name." in words
        octocat = next(one for one in await here.connections() if one.label == "octocat")
        await press(person, here, f"{tail(octocat)}/disconnect")
        words = main_text(await look(person, here))
        assert "No account is chosen for this site. A tool that needs one asks you" in words
        assert "Not in use" not in words
        # The tool asks, as the page says.
        await here.ask("repo", tool="list", arguments="again").link()
        await press(person, here, f"{tail(hubot)}/switch")
        assert "ot in use" not in main_text(await look(person, here))


# Reconnecting.


async def test_provider_requested_by_name_is_shown_by_label() -> None:
    # finding: A10
    async with hub_env(lambda hub: hub) as here:
        link = await here.ask("repo", provider="hub", reason="to count stars").link()
        assert (await here.row(link)).request.message == "Connect Hub: to count stars"


async def test_lapsed_account_is_reconnected_from_page() -> None:
    async with hub_env(lambda hub: hub) as here:
        await here.connect("repo", provider="hub", tool="list")
        await revoke_at(here, await the_one(here))
        here.clock.tick(hours=2)
        # The server notices that the account has lapsed.
        await here.ask("repo", provider="hub", tool="list").link()
        assert (await the_one(here)).status == "lapsed"
        person = await here.person()
        assert "Reconnect it here, or do nothing" in main_text(await look(person, here))
        start = await press(person, here, "/reconnect")
        assert start.heading == "Let shop use your Hub account?"
        words = main_text(start)
        assert "You asked to reconnect this account on the page Your accounts" in words
        assert "You asked Claude" not in words
        await ends(person, await approved(here, person, start))
        account = await the_one(here)
        assert (account.status, account.tools, account.is_active) == ("connected", ("list",), True)
        again = here.ask("repo", provider="hub", tool="list", arguments="again")
        assert (await again.account()).label == "octocat"
        assert not again.has_asked


async def approved(here: OAuthEnv, person: Person, start: Page, /, **changes: str) -> Page:
    """Continue, approve at the sandbox, and return the page after the callback."""
    (form,) = (f for f in Forms(start.text).forms if "/decline" not in f.action)
    sent = Page.of(await person.browser.post(urljoin(here.url, form.action), data=form.fields))
    assert sent.location is not None
    return await person.visit(await approve(person, sent.location, **changes))


async def test_working_account_can_be_reconnected_with_new_token() -> None:
    async with oauth_env() as here:
        await here.connect("repo", tool="list")
        before, person = await the_one(here), await here.person()
        start = await press(person, here, "/reconnect")
        assert start.heading == "Let shop use your GitHub account?"
        await ends(person, await approved(here, person, start))
        after = await the_one(here)
        assert after.access_token != before.access_token
        assert (after.tools, after.is_active) == (("list",), True)


async def test_inactive_account_stays_inactive_after_reconnect() -> None:
    async with oauth_env() as here:
        await here.connect("repo", tool="list")
        hubot = await connect_as(here, "hubot", tool="list", arguments="b", account="hubot")
        person = await here.person()
        start = await press(person, here, f"{tail(hubot)}/reconnect")
        await ends(person, await approved(here, person, start, person="hubot"))
        account = {one.label: one for one in await here.connections()}
        assert account["hubot"].access_token != hubot.access_token
        assert (account["hubot"].is_active, account["octocat"].is_active) == (False, True)


async def test_reconnecting_with_another_account_changes_nothing() -> None:
    async with oauth_env() as here:
        await here.connect("repo", tool="list")
        before, person = await here.connections(), await here.person()
        start = await press(person, here, "/reconnect")
        page = await ends(person, await approved(here, person, start, person="hubot"))
        assert page.heading == "This did not work"
        assert await here.connections() == before


async def called_before(here: OAuthEnv, label: str) -> Connection:
    """Give the only account this label, as if its person was renamed after connecting it."""
    renamed = msgspec.structs.replace(await the_one(here), label=label)
    await here.service.elicitations.write(renamed)
    return renamed


async def test_renamed_account_can_be_reconnected() -> None:
    async with oauth_env() as here:
        await here.connect("repo", tool="list")
        before = await called_before(here, "octopus")
        person = await here.person()
        start = await press(person, here, "/reconnect")
        assert "octopus , and no other" in main_text(start).replace("octopus,", "octopus ,")
        assert before.person_id not in start.text
        page = await ends(person, await approved(here, person, start))
        assert page.heading == "GitHub is connected"
        after = await the_one(here)
        assert after.access_token != before.access_token
        assert (after.id, after.label, after.tools) == (before.id, "octocat", ("list",))


async def test_other_account_with_former_name_is_refused_on_reconnect() -> None:
    async with oauth_env() as here:
        await here.connect("repo", tool="list")
        before, person = await called_before(here, "hubot"), await here.person()
        start = await press(person, here, "/reconnect")
        page = await ends(person, await approved(here, person, start, person="hubot"))
        assert page.heading == "This did not work"
        why = "The name hubot now belongs to another account than the one that was connected"
        assert why in main_text(page)
        account = await the_one(here)
        assert (account.access_token, account.label) == (before.access_token, "hubot")


async def test_repeated_reconnect_reuses_question_until_question_ends() -> None:
    async with oauth_env() as here:
        await here.connect("repo")
        person = await here.person()
        (form,) = (
            f for f in Forms((await look(person, here)).text).forms if "/reconnect" in f.action
        )
        place = urljoin(here.url, form.action)

        async def pressed() -> str:
            page = Page.of(await person.browser.post(place, data=form.fields))
            assert (page.status, page.location is None) == (303, False)
            return (await here.row(str(page.location))).id

        first = await pressed()
        assert await pressed() == first
        here.clock.tick(minutes=11)
        second = await pressed()
        assert second != first
        row = await here.service.elicitations.get(second)
        assert row is not None
        await here.service.elicitations.end(row, Status.DECLINED)
        assert await pressed() not in (first, second)


async def test_disconnected_account_cannot_be_reconnected_from_old_page() -> None:
    async with oauth_env() as here:
        await here.connect("repo")
        person = await here.person()
        (form,) = (
            f for f in Forms((await look(person, here)).text).forms if "/reconnect" in f.action
        )
        await press(person, here, "/disconnect")
        sent = await person.browser.post(urljoin(here.url, form.action), data=form.fields)
        page = await ends(person, Page.of(sent))
        assert page.heading == "Your accounts"
        assert (
            await here.service.elicitations.rows.open_of(
                here.service.identity.local_owner, now=here.service.clock()
            )
            == []
        )


# Who can press the buttons.


async def test_press_needs_csrf_field_of_same_browser_and_account() -> None:
    async with oauth_env() as here:
        await here.connect("repo", tool="list")
        hubot = await connect_as(here, "hubot", tool="list", arguments="b", account="hubot")
        before, person, other = await here.connections(), await here.person(), await here.person()
        await look(person, here)
        await look(other, here)
        octocat = next(one for one in before if one.label == "octocat")
        fields: tuple[dict[str, str], ...] = (
            {},
            {"csrf": ""},
            field_of(here, person, octocat.id),
            field_of(here, other, hubot.id),
            field_of(here, person, tail(hubot)),
            field_of(here, person, "signin"),
        )
        for action in ACTIONS:
            for data in fields:
                place = f"{here.url}/connections/{tail(hubot)}/{action}"
                refused = await person.browser.post(place, data=data)
                assert refused.status_code == 403
                assert "hubot" not in refused.text
        assert await here.connections() == before


async def test_post_from_another_site_is_refused() -> None:
    async with oauth_env() as here:
        await here.connect("repo")
        before, person = await here.connections(), await here.person()
        await look(person, here)
        for action in ACTIONS:
            refused = await person.browser.post(
                f"{here.url}/connections/{tail(before[0])}/{action}",
                data=field_of(here, person, before[0].id),
                headers={"origin": "https://evil.example"},
            )
            assert refused.status_code == 403
        assert await here.connections() == before


async def test_stranger_sees_no_accounts_and_how_to_be_identified() -> None:
    async with oauth_env() as here:
        await here.connect("repo")
        before = await here.connections()
        stranger = await here.person(**{"x-forwarded-for": "203.0.113.9"})
        page = await look(stranger, here)
        assert (page.status, page.actions) == (403, ())
        assert "elicit pair" in page.text
        places = [f"{here.url}/connections/{tail(before[0])}/{action}" for action in ACTIONS]
        data = field_of(here, stranger, before[0].id)
        answers = [Page.of(await stranger.browser.post(place, data=data)) for place in places]
        for answer in (page, *answers):
            assert answer.status == 403
            assert "octocat" not in answer.text
            assert "GitHub" not in answer.text
        assert await here.connections() == before


async def test_people_cannot_see_or_change_accounts_of_each_other() -> None:
    async with city() as here:
        alice, bob = await here.citizen("alice"), await here.citizen("bob")
        await here.oauth_env.connect("repo", owner=here.owner("alice"), person=alice)
        hers = await the_one(here.oauth_env)
        page = await look(alice, here.oauth_env)
        assert "Signed in as alice ." in main_text(page)
        assert "octocat" in page.text
        his = await look(bob, here.oauth_env)
        assert "Signed in as bob ." in main_text(his)
        assert "Nothing is connected." in main_text(his)
        # Bob gets no access with the cookie and form field of Alice's browser, or with the full id.
        both, name = await here.oauth_env.person(), here.oauth_env.service.browser.cookie_name
        both.browser.cookies.update({**bob.browser.cookies, name: alice.browser.cookies[name]})
        assert "Signed in as bob ." in main_text(await look(both, here.oauth_env))
        data = field_of(here.oauth_env, alice, hers.id)
        places = f"{here.oauth_env.url}/connections/{{}}/"
        for action in ACTIONS:
            tried = [
                await person.browser.post(places.format(id) + action, data=fields)
                for id in (tail(hers), hers.id, "unknown", "x" * 500, "%F0%9F%9A%80", "~")
                for person, fields in ((both, data), (bob, field_of(here.oauth_env, bob, hers.id)))
            ]
            assert {answer.status_code for answer in tried} == {404}
            assert len({answer.text for answer in tried}) == 1
        assert await the_one(here.oauth_env) == hers


async def test_each_person_disconnects_only_own_account_of_same_name() -> None:
    async with city() as here:
        alice, bob = await here.citizen("alice"), await here.citizen("bob")
        for name, person in (("alice", alice), ("bob", bob)):
            await here.oauth_env.connect("repo", owner=here.owner(name), person=person)
        page = await press(bob, here.oauth_env, "/disconnect")
        assert "has confirmed" in main_text(page)
        account = {one.owner: one.access_token != "" for one in await here.oauth_env.connections()}
        assert account == {here.owner("alice"): True, here.owner("bob"): False}
        assert "octocat" in (await look(alice, here.oauth_env)).text
        quiet = here.oauth_env.ask("repo", owner=here.owner("alice"), arguments="again")
        assert (await quiet.account()).label == "octocat"
        assert not quiet.has_asked


async def test_log_records_sign_in_sign_out_connect_and_disconnect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # finding: S26
    caplog.set_level(logging.INFO, logger="webapp")
    async with city() as here:
        alice = await here.citizen("alice")
        owner = here.owner("alice")
        await here.oauth_env.connect("repo", owner=owner, person=alice)
        hers = await the_one(here.oauth_env)
        await press(alice, here.oauth_env, "/disconnect")
        await press(alice, here.oauth_env, "/signout")
    events = ("person.signed_in", "account.connected", "account.disconnected", "person.signed_out")
    reported = [one for one in caplog.records if one.getMessage() in events]
    assert [one.getMessage() for one in reported] == list(events)
    signed_in, connected, disconnected, signed_out = map(vars, reported)
    assert signed_in["owner"] == signed_out["owner"] == owner
    assert connected["id"].startswith(owner)
    assert (connected["provider"], disconnected["id"]) == ("github", hers.id)


async def test_signing_out_hides_accounts_and_invalidates_form() -> None:
    async with city() as here:
        alice = await here.citizen("alice")
        await here.oauth_env.connect("repo", owner=here.owner("alice"), person=alice)
        hers = await the_one(here.oauth_env)
        data = field_of(here.oauth_env, alice, hers.id)
        assert (await press(alice, here.oauth_env, "/signout")).heading == "You are signed out"
        page = await look(alice, here.oauth_env)
        # After signing out on this machine, the caller is the local operator and not Alice.
        assert "octocat" not in page.text
        place = f"{here.oauth_env.url}/connections/{tail(hers)}/disconnect"
        assert (await alice.browser.post(place, data=data)).status_code in (403, 404)
        assert await the_one(here.oauth_env) == hers


async def test_remote_person_signs_in_and_returns_to_connections_page() -> None:
    async with city() as here:
        stranger = await here.oauth_env.person(**{"x-forwarded-for": "203.0.113.9"})
        page = await look(stranger, here.oauth_env)
        assert (page.status, page.heading) == (403, "Sign in to see your accounts")
        assert "elicit pair" not in page.text
        assert page.actions == (f"{here.oauth_env.url}/signin",)
        page = await sign_in(stranger, page, "alice")
        assert (page.status, page.heading) == (200, "Your accounts")
        assert "Signed in as alice ." in main_text(page)


async def test_local_user_can_sign_in_as_another_person() -> None:
    async with city() as here:
        person = await here.oauth_env.person()
        await here.oauth_env.connect("repo", person=person)
        words = main_text(await look(person, here.oauth_env))
        assert "octocat" in words
        assert f"Sign in with {here.issuer.url.removeprefix('http://')}" in words
        page = await sign_in(person, await look(person, here.oauth_env), "alice")
        assert "octocat" not in page.text


# Limiting an account to some clients.


async def test_account_is_limited_to_selected_clients_and_shared_with_all_again() -> None:
    # finding: S11
    async with oauth_env() as here:
        await here.connect("repo", client="Claude")
        await here.ask("repo", client="Cursor").account()
        person = await here.person()
        page = await look(person, here)
        assert "Claude its own name, not verified" in main_text(page)
        assert page.text.count(" checked>") == 2
        account, (claude, _) = await the_one(here), (await the_one(here)).clients
        data = {**field_of(here, person, account.id), "client": claude.key}
        place = f"{here.url}/connections/{tail(account)}/keep"
        assert (await person.browser.post(place, data=data)).status_code == 303
        page = await look(person, here)
        assert "Only the selected assistants. Any other asks you first." in main_text(page)
        assert page.text.count(" checked>") == 1
        again = here.ask("repo", client="Claude", arguments="again")
        await again.account()
        assert not again.has_asked
        asked = here.ask("repo", client="Cursor", arguments="again")
        page = await person.visit(await asked.link())
        assert "the assistant that asks now can use it too" in main_text(page)
        await press(person, here, "/keep?all=1")
        last = here.ask("repo", client="Another", arguments="again")
        await last.account()
        assert not last.has_asked


async def test_limiting_account_to_unknown_client_permits_no_client() -> None:
    # finding: S11
    async with oauth_env() as here:
        await here.connect("repo")
        person = await here.person()
        await look(person, here)
        account = await the_one(here)
        data = {**field_of(here, person, account.id), "client": "f" * 32}
        place = f"{here.url}/connections/{tail(account)}/keep"
        assert (await person.browser.post(place, data=data)).status_code == 303
        assert (await the_one(here)).only == ()
        asked = here.ask("repo", arguments="again")
        assert (await person.visit(await asked.link())).heading == "Let shop use octocat at GitHub?"
        asked.task.cancel()
