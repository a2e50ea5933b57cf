"""Callbacks as a thief, a forwarder and a link scanner use them, one story for each test."""

import asyncio
import dataclasses
import logging
from datetime import timedelta
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer
from msgspec.structs import replace

from flows import elicit
from flows.crypto.tokens import Claims, Purpose
from flows.elicitation.states import Status
from flows.errors import Declined
from flows.providers import github, openid
from tests.support.callers import caller_at, is_untouched, sent_out
from tests.support.mcp_server import LEGACY, MODERN, Page, soon
from tests.support.oauth_env import (
    OAuthEnv,
    approve,
    changed,
    decide,
    ends,
    id_in,
    oauth_env,
    parameter,
    process,
)
from webapp.routes.redirect import depart
from webapp.sweeper import fall_due

SECRETS = ("gho_sandbox_", "ghr_sandbox_", "sandbox_at_", "sandbox_rt_")


MADE_UP = [
    None,
    "",
    "x",
    "x" * 5000,
    "é" * 20,
    "../../etc/passwd",
    "AQjLCVCT.x",
    "\x00",
    "%00%ff",
    "null",
    "a b\r\nc",
]


async def test_made_up_state_shows_unknown_link_page(here):
    _, person, link, callback = await sent_out(here)
    for state in MADE_UP:
        page = await person.visit(changed(callback, state=state))
        assert (page.status, page.heading) == (404, "We do not know this link"), state
        assert await is_untouched(here, link), state
        assert "octocat" not in page.text, state


MALFORMED = [
    "%ff=%fe&state=%ff",
    "&".join(f"p{i}=1" for i in range(200)),
    "state",
    "=&=&=",
    "state[]=1",
    ";state=1;",
    "",
    "a" * 8000,
]


async def test_malformed_query_is_answered_with_404(here):
    person = await here.person()
    for query in MALFORMED:
        page = await person.visit(f"{here.url}/callback/github?{query}")
        assert page.status == 404, query


async def test_token_of_another_purpose_is_refused_as_state(here):
    _, person, link, callback = await sent_out(here)
    now, id = here.clock(), id_in(here.service, link.rsplit("/", 1)[1])
    for purpose in set(Purpose) - {Purpose.STATE}:
        claims = Claims(purpose=purpose, id=id, attempt=1, expires_at=now + timedelta(hours=1))
        token = here.service.links.state(claims, now=now)
        page = await person.visit(changed(callback, state=token))
        assert page.status == 404
    assert await is_untouched(here, link)


async def test_state_with_valid_seal_and_wrong_secret_is_refused(here):
    _, person, link, callback = await sent_out(here)
    now, id = here.clock(), id_in(here.service, link.rsplit("/", 1)[1])
    for rest, number in (("", 1), ("guess", 1), ("guess", 0), ("guess", 2)):
        claims = Claims(
            purpose=Purpose.STATE,
            id=id,
            attempt=number,
            rest=rest,
            expires_at=now + timedelta(hours=1),
        )
        token = here.service.links.state(claims, now=now)
        page = await person.visit(changed(callback, state=token))
        assert page.status == 409
    assert await is_untouched(here, link)


async def test_state_without_stored_question_is_refused(here):
    # defect: lynq state of an unknown session
    person, now = await here.person(), here.clock()
    nobody = here.service.elicitations.new_id(here.service.identity.local_owner)
    claims = Claims(
        purpose=Purpose.STATE, id=nobody, attempt=1, expires_at=now + timedelta(hours=1)
    )
    token = here.service.links.state(claims, now=now)
    page = await person.visit(f"{here.url}/callback/github?code=c&state={token}")
    assert page.status == 404


async def test_answer_to_a_question_does_not_settle_another_question(here):
    _, ann, first_link, first = await sent_out(here, arguments="first")
    _, bob, second_link, second = await sent_out(here, arguments="second")
    # The thief's code with the victim's state, and the reverse: PKCE and the browser check refuse.
    for person, callback, other in ((ann, first, second), (bob, second, first)):
        page = await person.visit(other)
        assert (page.status, page.heading) == (403, "This link was opened in another browser")
        page = await person.visit(changed(callback, state=parameter(other, "state")))
        assert page.status == 403
    assert await is_untouched(here, first_link)
    assert await is_untouched(here, second_link)


async def test_code_of_another_attempt_fails_with_our_state(here):
    asked, person, link, callback = await sent_out(here)
    _, _, _, stolen = await sent_out(here, arguments="another")
    mixed = changed(callback, code=parameter(stolen, "code"))
    page = await ends(person, await person.visit(mixed))
    assert page.heading == "This did not work"  # the PKCE verifier belongs to another code
    assert (await here.row(link)).status is Status.FAILED
    assert not await here.connections()
    assert asked.has_asked


async def test_callback_at_another_providers_path_is_refused(here):
    _, person, link, callback = await sent_out(here)
    for other in ("google", "GitHub", "github2", "stripe", "%67ithub%00", "x" * 300):
        page = await person.visit(callback.replace("/callback/github", f"/callback/{other}"))
        assert page.status in (400, 404)
    assert await is_untouched(here, link)


async def test_oauth_state_is_refused_at_payment_return(here):
    _, person, link, callback = await sent_out(here)
    for seller in ("stripe", "github"):
        page = await person.visit(callback.replace("/callback/github", f"/return/{seller}"))
        assert page.status == 404
    assert await is_untouched(here, link)


@pytest.mark.parametrize(
    "more",
    [
        "&state={state}",
        "&state=x",
        "&code=another",
        "&code={code}",
        "&iss=http://127.0.0.1:1/evil",
        "&error=access_denied",
        "&error=access_denied&error=server_error",
        "&error=",
    ],
)
async def test_mixed_up_callback_is_refused(more, here):
    asked, person, link, callback = await sent_out(here)
    state, code = parameter(callback, "state"), parameter(callback, "code")
    page = await person.visit(callback + more.format(state=state, code=code))
    assert page.status in (400, 404)
    assert await is_untouched(here, link)
    assert (await ends(person, await person.visit(callback))).heading == "GitHub is connected"
    assert (await asked.account()).label == "octocat"


@pytest.mark.parametrize("code", [None, "", "x" * 5000, "a\x00b", "é", "a\nb"])
async def test_malformed_code_is_not_exchanged(code, here):
    _, person, link, callback = await sent_out(here)
    page = await person.visit(changed(callback, code=code))
    assert page.status == 400
    assert await is_untouched(here, link)


async def test_callback_in_browser_without_pressed_continue_is_refused(here):
    asked, person, link, callback = await sent_out(here)
    thief = await here.person()
    page = await thief.visit(callback)  # the thief has no cookie
    assert (page.status, page.heading) == (403, "This link was opened in another browser")
    await thief.visit(link)  # sets a cookie of the thief's browser
    assert (await thief.visit(callback)).status == 403
    name = here.service.browser.cookie_name
    for forged in ("", "x", "x" * 32, "x" * 5000, here.service.browser.fresh()):
        headers = {"cookie": f"{name}={forged}"}
        page = Page.of(await thief.browser.get(callback, headers=headers))
        assert page.status == 403
        assert "octocat" not in page.text
    assert await is_untouched(here, link)
    await person.visit(callback)
    assert (await asked.account()).label == "octocat"


async def test_attackers_code_is_not_accepted_in_victims_browser(here):
    """Check login CSRF: the attacker makes the victim's browser send the attacker's code."""
    _, _, attackers_link, callback = await sent_out(here, arguments="the attacker's")
    asked = here.ask("repo", arguments="the victim's")
    victim = await here.person()
    await victim.go_on(await asked.link())
    page = await victim.visit(callback)
    assert page.status == 403
    assert await is_untouched(here, attackers_link)
    assert not asked.task.done()


async def test_callback_of_earlier_attempt_is_refused_after_second_press(here):
    asked, person, link, earlier = await sent_out(here)
    later = await approve(person, await person.go_on(link))
    page = await person.visit(earlier)
    assert (page.status, page.heading) == (409, "This link has been used")
    assert await is_untouched(here, link)
    assert (await ends(person, await person.visit(later))).heading == "GitHub is connected"
    assert (await asked.account()).label == "octocat"
    assert here.gate.exchanges == 1


async def test_first_browser_cannot_finish_after_press_in_second_browser(here):
    asked, first, link, callback = await sent_out(here)
    second = await here.person()
    later = await approve(second, await second.go_on(link))
    page = await first.visit(callback)
    assert (page.status, page.heading) == (403, "This link was opened in another browser")
    await second.visit(later)
    assert (await asked.account()).label == "octocat"
    assert here.gate.exchanges == 1


async def test_question_of_another_owner_is_neither_shown_nor_finished(here):
    # defect: frontmcp another session answers
    stranger = here.service.elicitations.owners.tag(issuer="https://i.example", subject="eve")
    asked = here.ask("repo", owner=stranger)
    link, person = await asked.link(), await here.person()
    page = await person.visit(link)
    assert page.status == 403
    assert "GitHub" not in page.text
    row = await here.row(link)
    cookie = here.service.browser.fresh()
    at_provider = await depart(here.service, row, cookie=cookie)
    headers = {"cookie": f"{here.service.browser.cookie_name}={cookie}"}
    callback = await approve(person, at_provider)
    page = Page.of(await person.browser.get(callback, headers=headers))
    assert page.status == 403
    assert await is_untouched(here, link)


async def test_link_scanner_changes_nothing(here):
    asked, person, link, callback = await sent_out(here)
    before = await here.row(link)
    scanner = await here.person(**{"user-agent": "scanner"})
    addresses = [
        link,
        f"{link}/allow",
        f"{link}/decline",
        f"{link}/live",
        callback,
        changed(callback, code=None, error="access_denied"),
        changed(callback, code=None),
        f"{here.url}/",
    ]
    for address in addresses:
        for method in ("HEAD", "GET", "OPTIONS"):
            if (method, address) != ("GET", f"{link}/live"):  # an endless stream
                answer = await scanner.browser.request(method, address)
                assert answer.status_code < 500
    assert await here.row(link) == before
    assert await is_untouched(here, link)
    # A scanner that stores cookies is as harmless.
    for address in addresses[:1] * 3 + addresses[4:]:
        await scanner.browser.get(address)
    assert await here.row(link) == before
    await person.visit(callback)
    assert (await asked.account()).label == "octocat"


async def test_form_without_csrf_field_is_refused(here):
    asked, person, link, _ = await sent_out(here)
    before = await here.row(link)
    for path in ("", "/allow", "/decline"):
        for data in ({}, {"csrf": "x"}, {"csrf": ["a", "b"]}):
            answer = await person.browser.post(link + path, data=data)
            assert answer.status_code == 403
    assert await here.row(link) == before
    assert not asked.task.done()


async def test_decline_cannot_be_forged_from_another_browser(here):
    _, _, link, callback = await sent_out(here)
    thief = await here.person()
    forged = changed(callback, code=None, error="access_denied")
    assert (await thief.visit(forged)).status == 403
    assert await is_untouched(here, link)


async def test_error_callback_after_acceptance_is_ignored(here):
    asked, person, link, callback = await sent_out(here)
    await person.visit(callback)
    await asked.account()
    forged = changed(callback, code=None, error="access_denied")
    assert (await ends(person, await person.visit(forged))).heading == "GitHub is connected"
    assert (await here.row(link)).status is Status.ACCEPTED


async def test_allow_after_decline_does_not_undo_the_decline(here):
    await here.connect("repo")
    asked, person = here.ask("repo", tool="export_all"), await here.person()
    link = await asked.link()
    page = await person.visit(link)
    assert page.heading.startswith("Let shop use octocat at GitHub?")
    await person.browser.post(f"{link}/decline", data={"csrf": page.csrf})
    with pytest.raises(Declined):
        await asked.account()
    answer = await person.browser.post(page.leading("/allow"), data={"csrf": page.csrf})
    assert answer.status_code == 409  # its page says that the answer came too late
    assert (await here.row(link)).status is Status.DECLINED
    (connection,) = await here.connections()
    assert connection.tools == ("list",)


async def test_allow_after_expiry_is_refused(here):
    await here.connect("repo")
    asked, person = here.ask("repo", tool="export_all"), await here.person()
    link = await asked.link()
    page = await person.visit(link)
    here.clock.tick(minutes=6)
    answer = await person.browser.post(page.leading("/allow"), data={"csrf": page.csrf})
    assert answer.status_code == 409  # its page says that the answer came too late
    assert (await person.visit(link)).heading == "This link has expired"
    (connection,) = await here.connections()
    assert connection.tools == ("list",)


async def test_allow_after_account_was_disconnected_asks_to_connect_again(here):
    await here.connect("repo")
    asked, person = here.ask("repo", tool="export_all"), await here.person()
    link = await asked.link()
    page = await person.visit(link)
    (connection,) = await here.connections()  # in the meantime, in another window
    await here.service.kinds.accounts.keys.disconnect(connection.owner, connection.id)
    answer = await person.browser.post(page.leading("/allow"), data={"csrf": page.csrf})
    assert answer.status_code == 303
    assert (await person.visit(link)).heading == "Let shop use your GitHub account?"


async def test_allow_shares_only_the_account_shown_on_page(here):
    await here.connect("repo")
    asked, person = here.ask("repo", tool="export_all"), await here.person()
    link = await asked.link()
    page = await person.visit(link)
    assert "octocat" in page.text
    other = here.ask("repo", tool="paste")  # in the meantime, in another window
    at_provider = await person.go_on(await other.link())
    await person.visit(await approve(person, at_provider, person="hubot"))
    assert (await other.account()).label == "hubot"
    pressed = await person.browser.post(page.leading("/allow"), data={"csrf": page.csrf})
    assert pressed.status_code < 500
    shared = [each.label for each in await here.connections() if "export_all" in each.tools]
    assert shared in ([], ["octocat"])
    assert asked.has_asked


async def test_access_token_is_in_no_page_log_address_or_result(caplog):
    # defect: mcp-authkit raw state is logged
    caplog.set_level(logging.DEBUG)
    server = MCPServer("shop")
    held: list[Any] = []

    @server.tool()
    async def show() -> str:
        """Show all that can be shown."""
        account = await elicit.oauth(github, scopes=["repo"])
        held.append(account)
        async with account.client() as api:
            answer = await api.get("/user")
        return f"{account} {account!r} {account.client()!r} {api.auth!r} {answer.json()}"

    @server.tool()
    async def leak() -> Any:
        """Return the account itself."""
        return await elicit.oauth(github, scopes=["repo"])

    @server.tool()
    async def crash() -> str:
        """Break off with the account in hand."""
        account = await elicit.oauth(github, scopes=["repo"])
        raise RuntimeError(f"no luck with {account!r}", account)

    pages: list[Page] = []
    answers: list[str] = []
    async with oauth_env(server=server) as here:
        for revision in (LEGACY, MODERN):
            async with caller_at(here, revision) as caller:
                for tool in ("show", "leak", "crash"):
                    call = caller.call(tool)
                    if revision == LEGACY:
                        await answer_one(here, await caller.link(), pages)
                    result = await soon(call)
                    answers.append(result.model_dump_json())
        keys = [each.access_token for each in held]
        keys += [each.access_token for each in await here.connections()]
        keys += [str(each.refresh_token) for each in await here.connections()]
        assert all(key.startswith(SECRETS) for key in keys)
        rows = [repr(each) for each in await here.connections()]
        rows += [str(record) for record in await here.service.elicitations.store.list("account")]
    log = [f"{each.getMessage()} {each.__dict__} {each.exc_text}" for each in caplog.records]
    texts = [each.text + str(each.location) for each in pages] + answers + rows + log
    assert answers[0].count("octocat") >= 1
    for key in [*keys, here.sandbox.client_secret]:
        assert not any(key in text for text in texts)
    # Our own log lines contain no authorization code either.
    records = [each for each in caplog.records if each.name.startswith(("webapp", "flows"))]
    for page in pages:
        if page.location is not None and "code=" in page.location:
            code = parameter(page.location, "code")
            assert not any(code in f"{each.getMessage()} {each.__dict__}" for each in records)


async def answer_one(here: OAuthEnv, link: str, pages: list[Page]) -> None:
    """Connect, or allow a connected account. Every page on the way is recorded."""
    person = await here.person()
    page = await person.visit(link)
    pages.append(page)
    if "use octocat at GitHub?" in page.heading:
        page = await person.press(link, to="/allow")
    else:
        callback = await approve(person, await person.go_on(link))
        pages.append(replace_location(page, callback))
        page = await person.visit(callback)
    pages.append(page)
    pages.append(await ends(person, page))


def replace_location(page: Page, location: str) -> Page:
    return dataclasses.replace(page, location=location)


async def test_failed_exchange_reveals_no_secret(caplog):
    caplog.set_level(logging.DEBUG)
    async with oauth_env() as here:
        for fault in ("500", "html", "200-with-error", "no-token", "huge-token"):
            asked, person, link, callback = await sent_out(here, arguments=fault)
            await here.plan(fault)
            page = await ends(person, await person.visit(callback))
            row = await here.row(link)
            assert row.attempt is not None
            stored: Any = row.attempt.kept
            texts = [repr(row), page.text]
            if fault not in ("500", "200-with-error"):  # these leave the question open
                with pytest.raises(Exception, match="GitHub") as failed:
                    await asked.account()
                texts += [str(failed.value), repr(failed.value)]
            texts += [f"{each.getMessage()} {each.exc_text}" for each in caplog.records]
            for secret in (
                stored["verifier"],
                here.sandbox.client_secret,
                "x" * 1000,
            ):
                assert not any(secret in text for text in texts)


async def test_live_registration_never_uses_sandbox_account(here):
    await here.connect("repo")
    kinds = here.service.kinds.accounts
    live = kinds._clients.clients["github"]
    assert live.provider.api.startswith(here.sandbox.url)
    # The same store and owner, with our registration at the real provider.
    settings = dataclasses.replace(here.settings, credentials={"github": ("id", "secret")})
    async with process(
        settings,
        store=here.service.elicitations.store,
        clock=here.clock,
        gate=here.gate,
        sandbox=here.sandbox,
    ) as there:
        asked = there.ask("repo", arguments="live")
        link = await asked.link()
        row = await there.row(link)
        assert row.request.origins == ("https://github.com",)
        person = await here.person(host=here.url.removeprefix("http://"))
        page = await person.visit(link.replace(here.url, there.url))
        assert page.heading == "Let shop use your GitHub account?"
        assert "octocat" not in page.text
        assert "sandbox" not in page.text.lower()
        # The reverse: an account of the real provider is not offered for the sandbox.
        (connection,) = await there.connections()
        there_github = there.service.kinds.accounts._clients.clients["github"]
        row_key = kinds.connections.key(there_github, server="shop")
        assert connection.lookup_key != row_key
        lived = replace(
            connection,
            id=connection.owner + "a-live-account-of-the-same",
            lookup_key=row_key,
            label="somebody",
            version=0,
        )
        await there.service.elicitations.write(lived)
        assert (await soon(there.ask("repo", arguments="x").task)).label == "somebody"
        assert (await soon(here.ask("repo", arguments="y").task)).label == "octocat"


async def test_sandbox_on_another_port_is_a_different_provider(here):
    await here.connect("repo")
    async with oauth_env(store=here.service.elicitations.store) as there:
        asked = there.ask("repo", arguments="there")
        await asked.link()
        assert not asked.task.done()


async def test_code_and_verifier_go_to_the_original_provider(here):
    """Check that a provider whose metadata changes during the redirect receives nothing."""
    acme = openid("acme", f"{here.sandbox.url}/oidc", label="Acme")
    credentials = (here.sandbox.client_id, here.sandbox.client_secret)
    here.service.kinds.accounts._clients._credentials["acme"] = credentials
    asked, person = here.ask(provider=acme), await here.person()
    link = await asked.link()
    callback = await approve(person, await person.go_on(link))
    row = await here.row(link)
    assert row.attempt is not None
    stored: Any = row.attempt.kept
    assert stored["token"] == f"{here.sandbox.url}/oidc/token"
    assert stored["redirect_uri"] == f"{here.url}/callback/acme"
    assert (await ends(person, await person.visit(callback))).heading == "Acme is connected"
    await asked.account()


async def test_wrong_callbacks_do_not_affect_the_right_callback(here):
    asked, person, link, callback = await sent_out(here)
    thieves = [await here.person() for _ in range(4)]
    wrong = [
        thief.visit(address)
        for thief in thieves
        for address in (callback, changed(callback, state="x"), changed(callback, code="y"))
    ]
    right = person.visit(callback)
    await asyncio.gather(*wrong[:6], right, *wrong[6:])
    assert (await asked.account()).label == "octocat"
    assert here.gate.exchanges == 1
    await fall_due(here.service)
    assert (await here.row(link)).status is Status.ACCEPTED


async def test_callback_is_not_an_open_redirect(here):
    _, person, _, callback = await sent_out(here)
    elsewhere = f"{callback}&redirect_uri=https://evil.example&return_to=https://evil.example"
    answer = await person.browser.get(elsewhere)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith(f"{here.url}/e/")
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-store"


async def test_error_description_on_denial_is_not_shown(here):
    asked, person = here.ask("repo"), await here.person()
    denied = await decide(person, await person.go_on(await asked.link()), "deny")
    address = changed(
        denied, error_description="Call 0800 to win", error_uri="https://evil.example"
    )
    page = await ends(person, await person.visit(address))
    assert page.heading == "You declined at GitHub"
    assert "0800" not in page.text
    assert "evil" not in page.text
