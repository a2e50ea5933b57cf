"""The OAuth callback, as the person and the waiting tool see it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import pytest
from mcp.server.mcpserver import MCPServer
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

from flows import elicit
from flows.elicitation.states import Status
from flows.errors import Cancelled, Declined, Denied, ElicitError, Expired, Failed, Superseded
from flows.oauth.provider import PersonProbe, Provider
from flows.providers import github, google, openid
from tests.support.callers import sent_out
from tests.support.clock import Clock
from tests.support.mcp_server import (
    LEGACY,
    MODERN,
    Page,
    Person,
    ServerEnv,
    _Posts,
    eventually,
    new_browser,
    soon,
    text_of,
)
from tests.support.oauth_env import (
    OAuthEnv,
    approve,
    changed,
    decide,
    decided,
    ends,
    oauth_env,
    parameter,
    process,
    with_providers,
)
from webapp.limits import CallLimits
from webapp.sandbox.settings import Sandbox
from webapp.settings.settings import Settings
from webapp.stores import Record, Store, open_store
from webapp.stores.sqlite import MemoryStore
from webapp.sweeper import fall_due


async def test_account_is_connected_and_await_returns() -> None:
    async with oauth_env() as here:
        asked = here.ask("repo")
        link = await asked.link()
        person = await here.person()
        start = await person.visit(link)
        assert start.heading == "Let shop use your GitHub account?"
        callback = await approve(person, await person.go_on(link))
        page = await ends(person, await person.visit(callback))
        assert (page.status, page.heading) == (200, "GitHub is connected")
        assert "octocat" in page.text
        account = await asked.account()
        assert (account.label, account.scopes) == ("octocat", ("repo",))
        assert here.gate.exchanges == 1


async def test_reloaded_callback_page_shows_done_page() -> None:
    async with oauth_env() as here:
        asked, person, _, callback = await decided(here, "repo")
        for _ in range(3):
            page = await ends(person, await person.visit(callback))
            assert page.heading == "GitHub is connected"
        await asked.account()
        page = await ends(person, await person.visit(callback))
        assert page.heading == "GitHub is connected"
        assert here.gate.exchanges == 1


async def test_concurrent_callbacks_make_single_exchange() -> None:
    # defect: lynq replayed state
    # defect: mcp-authkit two callbacks two exchanges
    async with oauth_env() as here:
        asked, person, link, callback = await decided(here, "repo")
        pages = await asyncio.gather(*(person.visit(callback) for _ in range(5)))
        assert {page.status for page in pages} == {303}  # redirected to the progress page
        assert (await asked.account()).label == "octocat"
        assert here.gate.exchanges == 1
        assert (await person.visit(link)).heading == "GitHub is connected"


async def exchanging(here: OAuthEnv, person: Person, callback: str) -> "asyncio.Task[Page]":
    """Let the person return while the provider is slow. Return the task that loads the page."""
    await here.plan("slow")
    held = asyncio.create_task(person.visit(callback))
    await eventually(lambda: here.gate.exchanges)
    return held


async def test_page_waits_while_provider_is_slow() -> None:
    async with oauth_env() as here:
        asked, person, link, callback = await decided(here, "repo")
        first = await exchanging(here, person, callback)
        assert (await person.visit(link)).heading == "Finishing…"
        second = await person.visit(callback)
        assert (await ends(person, second)).heading == "Finishing…"
        await here.release()
        assert (await ends(person, await soon(first))).heading == "GitHub is connected"
        await asked.account()
        assert here.gate.exchanges == 1


async def test_browser_disconnect_during_exchange_loses_nothing() -> None:
    async with oauth_env() as here:
        asked, person, link, callback = await decided(here, "repo")
        gone = await exchanging(here, person, callback)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        await here.release()
        assert (await asked.account()).label == "octocat"
        assert here.gate.exchanges == 1
        assert (await person.visit(link)).heading == "GitHub is connected"


async def test_decline_at_provider_is_reported_immediately() -> None:
    # defect: lynq access_denied releases nobody
    async with oauth_env() as here:
        asked, person, link, callback = await decided(here, "repo", decision="deny")
        page = await ends(person, await person.visit(callback))
        assert page.heading == "You declined at GitHub"
        with pytest.raises(Denied, match="GitHub"):
            await asked.account()
        assert here.gate.exchanges == 0
        assert (await here.row(link)).status is Status.DENIED
        assert not await here.connections()


@pytest.mark.parametrize(
    "error", ["server_errors", "unavailable", "invalid_scope", "x" * 500, "<b>&'\"", ""]
)
async def test_other_error_of_provider_fails_question(error: str) -> None:
    async with oauth_env() as here:
        asked, person, _, callback = await decided(here, "repo", decision="deny")
        callback = changed(callback, error=error, error_description="<script>alert(1)</script>")
        page = await ends(person, await person.visit(callback))
        assert page.heading == "This did not work"
        assert "<script>alert" not in page.text
        assert "<b>" not in page.text
        with pytest.raises(Failed, match="GitHub refused"):
            await asked.account()
        assert here.gate.exchanges == 0


async def test_log_contains_error_code_of_provider_without_description(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with oauth_env() as here:
        for n, error in enumerate(("invalid_scope", "Their sentence")):
            asked, person, _, callback = await decided(here, "repo", arguments=n, decision="deny")
            callback = changed(callback, error=error, error_description="their+description")
            await ends(person, await person.visit(callback))
            with pytest.raises(Failed):
                await asked.account()
    records = [vars(record) for record in caplog.records if record.name.startswith("webapp")]
    reported = [record for record in records if record["message"] == "provider.refused"]
    assert [(one["levelname"], one.get("error")) for one in reported] == [
        ("WARNING", "invalid_scope"),
        ("WARNING", None),
    ]
    for words in ("description", "A sentence"):
        assert not any(words in str(record) for record in records)


async def test_scope_of_real_provider_works_in_sandbox() -> None:
    calendar = "https://www.googleapis.com/auth/calendar.readonly"
    async with oauth_env() as here:
        account = await here.connect(calendar, provider=google)
        assert calendar in account.scopes
        again = here.ask(calendar, provider=google, arguments="again")
        await again.account()
        assert not again.has_asked


REPLIES: dict[str, Response] = {
    "html": HTMLResponse("<!doctype html><title>Back soon</title>"),
    "error with 200": JSONResponse({"error": "bad_verification_code", "error_uri": "x"}),
    "strange error with 200": JSONResponse({"error": {"a": ["s3cret-of-the-reply"]}}),
    "no token": JSONResponse({"token_type": "bearer", "scope": "repo"}),
    "an empty token": JSONResponse({"access_token": "", "token_type": "bearer"}),
    "null": JSONResponse(None),
    "a list": JSONResponse([{"access_token": "s3cret-of-the-reply"}]),
    "token with a line break": JSONResponse({"access_token": "s3cret-of-the-reply\r\nX: y"}),
    "unknown token type": JSONResponse(
        {"access_token": "s3cret-of-the-reply", "token_type": "mac"}
    ),
    "a huge token": JSONResponse({"access_token": "x" * 100_000, "token_type": "bearer"}),
    "a huge reply": PlainTextResponse("x" * 2_000_000),
    "invalid gzip body": Response(b"\x1f\x8b" + b"x" * 100, headers={"content-encoding": "gzip"}),
    "deeply nested JSON": PlainTextResponse("[" * 200_000, media_type="application/json"),
    "not UTF-8": Response(b'{"access_token":"\xff\xfe"}', media_type="application/json"),
    "a redirect": PlainTextResponse("", 307, headers={"location": "http://127.0.0.1:1/"}),
    "204 without a body": Response(b"", 204),
    "401": JSONResponse({"error": "invalid_client"}, 401),
}


@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES)
async def test_bad_token_response_fails_question_with_message(reply: Response) -> None:
    async with oauth_env() as here:
        asked, person, _, callback = await decided(here, "repo")
        here.gate.answers.append(reply)
        page = await ends(person, await person.visit(callback))
        assert (page.status, page.heading) == (200, "This did not work")
        assert "s3cret" not in page.text
        with pytest.raises(Failed) as failed:
            await asked.account()
        assert "s3cret" not in str(failed.value)
        assert here.gate.exchanges == 1  # a code is never exchanged twice
        await ends(person, await person.visit(callback))
        assert here.gate.exchanges == 1
        assert not await here.connections()


@pytest.mark.parametrize("fault", ["html", "no-token", "huge-token"])
async def test_same_call_after_provider_fault_starts_again(fault: str) -> None:
    async with oauth_env() as here:
        asked, person, _, callback = await decided(here, "repo")
        await here.plan(fault)
        page = await ends(person, await person.visit(callback))
        assert page.heading == "This did not work"
        with pytest.raises(Failed):
            await asked.account()
        assert (await here.connect("repo", person=person)).label == "octocat"


async def test_provider_which_disconnects_leaves_question_open() -> None:
    async def hang_up(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{", "more_body": True})
        raise ConnectionAbortedError

    async with oauth_env() as here:
        asked, person, _, callback = await decided(here, "repo")
        here.gate.answers.append(hang_up)
        page = await ends(person, await person.visit(callback))
        assert page.heading == "GitHub did not answer"
        assert not asked.task.done()


@pytest.mark.parametrize("fault", ["drop-iss", "wrong-iss"])
async def test_callback_of_other_issuer_is_ignored_and_right_callback_is_accepted(
    fault: str,
) -> None:
    async with oauth_env() as here:
        asked, person = here.ask("repo"), await here.person()
        link = await asked.link()
        at_provider = await person.go_on(link)
        await here.plan(fault)
        page = await person.visit(await approve(person, at_provider))
        assert (page.status, page.heading) == (400, "This request can't be processed")
        assert here.gate.exchanges == 0
        assert (await here.row(link)).status is Status.OPENED
        page = await ends(person, await person.visit(await approve(person, at_provider)))
        assert page.heading == "GitHub is connected"
        await asked.account()


async def test_decline_in_name_of_other_issuer_is_ignored() -> None:
    async with oauth_env() as here:
        asked, person = here.ask("repo"), await here.person()
        link = await asked.link()
        at_provider = await person.go_on(link)
        await here.plan("wrong-iss")
        page = await person.visit(await decide(person, at_provider, "deny"))
        assert page.status == 400
        assert (await here.row(link)).status is Status.OPENED


async def test_issuer_which_announces_iss_parameter_must_send_iss() -> None:
    async with oauth_env() as here:
        metadata = f"{here.sandbox.url}/oidc/.well-known/openid-configuration"
        async with new_browser() as browser:
            says = (await browser.get(metadata)).json()
        assert says["authorization_response_iss_parameter_supported"] is True
        asked, person = here.ask(provider="google"), await here.person()
        link = await asked.link()
        at_provider = await person.go_on(link)
        await here.plan("drop-iss")
        page = await person.visit(await approve(person, at_provider))
        assert page.status == 400
        page = await ends(person, await person.visit(await approve(person, at_provider)))
        assert page.heading == "Google is connected"
        assert (await asked.account()).label == "octocat@sandbox.example"


async def test_acceptance_too_late_for_provider_leaves_question_expired() -> None:
    async with oauth_env() as here:
        asked, person, link, callback = await decided(here, "repo")
        here.clock.tick(minutes=5, seconds=10)
        await fall_due(here.service)
        with pytest.raises(Expired):
            await asked.account()
        assert (await person.visit(link)).heading == "This link has expired"
        page = await ends(person, await person.visit(callback))
        assert page.heading == "This link has expired"  # the sandbox's code is valid for a minute
        assert here.gate.exchanges == 1


async def late_yes(here: OAuthEnv, **about: Any) -> tuple[Any, Any, str, str]:
    """Let the question expire while the person is at the provider, and then let them approve."""
    asked, person = here.ask("repo", **about), await here.person()
    link = await asked.link()
    at_provider = await person.go_on(link)
    here.clock.tick(minutes=5, seconds=10)
    callback = await approve(person, at_provider)
    return asked, person, link, callback


async def test_late_acceptance_is_stored_and_next_call_asks_nothing() -> None:
    # defect: mcp-authkit callback after the timeout
    async with oauth_env() as here:
        asked, person, link, callback = await late_yes(here)
        await fall_due(here.service)
        with pytest.raises(Expired):
            await asked.account()
        page = await ends(person, await person.visit(callback))
        assert page.heading == "Done. Ask your assistant to continue"
        again = here.ask("repo")
        assert (await again.account()).label == "octocat"
        assert not again.has_asked
        assert (await person.visit(link)).heading == "Done. Ask your assistant to continue"
        assert here.gate.exchanges == 1


async def test_acceptance_after_expiry_is_late_before_sweeper_ran() -> None:
    async with oauth_env() as here:
        asked, person, _, callback = await late_yes(here)
        page = await ends(person, await person.visit(callback))
        assert page.heading == "Done. Ask your assistant to continue"
        again = here.ask("repo", arguments="another call")
        assert (await again.account()).label == "octocat"
        assert not again.has_asked
        # The waiting call did not see the expiry yet.
        assert (await asked.account()).label == "octocat"


async def test_late_acceptance_answers_current_caller_with_same_question() -> None:
    async with oauth_env() as here:
        asked, person, _, callback = await late_yes(here)
        await fall_due(here.service)
        with pytest.raises(Expired):
            await asked.account()
        again = here.ask("repo")
        link = await again.link()
        assert (await person.visit(link)).heading == "Let shop use your GitHub account?"
        await ends(person, await person.visit(callback))
        assert (await again.account()).label == "octocat"
        assert (await person.visit(link)).heading == "A newer link replaces this one"


async def test_late_decline_is_ignored() -> None:
    async with oauth_env() as here:
        asked, person, _, callback = await decided(here, "repo", decision="deny")
        here.clock.tick(minutes=6)
        await fall_due(here.service)
        with pytest.raises(Expired):
            await asked.account()
        page = await ends(person, await person.visit(callback))
        assert page.heading == "This link has expired"


async def test_callback_a_day_after_expiry_is_refused() -> None:
    # defect: lynq state without expiry
    async with oauth_env() as here:
        _, person, _, callback = await late_yes(here)
        here.clock.tick(days=1)
        page = await person.visit(callback)
        assert (page.status, page.heading) == (410, "This link has expired")
        assert here.gate.exchanges == 0


async def test_acceptance_after_decline_on_our_page_is_stored_and_tool_is_not_notified() -> None:
    async with oauth_env() as here:
        asked, person, link, callback = await decided(here, "repo")
        assert (await person.decline(link)).heading == "You declined"
        with pytest.raises(Declined):
            await asked.account()
        page = await ends(person, await person.visit(callback))
        assert page.heading == "Done. Ask your assistant to continue"
        again = here.ask("repo")
        assert (await again.account()).label == "octocat"
        assert not again.has_asked


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (Status.CANCELLED, Cancelled),
        (Status.SUPERSEDED, Superseded),
        (Status.DECLINED, Declined),
    ],
)
async def test_acceptance_after_question_was_ended_by_server_is_stored(
    status: Status, error: type[ElicitError]
) -> None:
    async with oauth_env() as here:
        asked, person, link, callback = await decided(here, "repo")
        await here.service.elicitations.settle((await here.row(link)).id, status)
        with pytest.raises(error) as raised:
            await asked.account()
        assert type(raised.value) is error
        page = await ends(person, await person.visit(callback))
        assert page.heading == "Done. Ask your assistant to continue"
        assert [each.label for each in await here.connections()] == ["octocat"]


@pytest.mark.parametrize("status", [Status.FAILED, Status.DENIED])
async def test_acceptance_after_failure_or_denial_changes_nothing(status: Status) -> None:
    async with oauth_env() as here:
        asked, person, link, callback = await decided(here, "repo")
        await here.service.elicitations.settle((await here.row(link)).id, status)
        with pytest.raises((Failed, Denied)):
            await asked.account()
        page = await ends(person, await person.visit(callback))
        assert page.heading in ("This did not work", "You declined at GitHub")
        assert here.gate.exchanges == 0
        assert not await here.connections()


async def interrupted(here: OAuthEnv) -> tuple[Any, Any, str, "asyncio.Task[Any]"]:
    """Start an exchange that gets no response for a minute, so that the server ends it."""
    asked, person, link, callback = await decided(here, "repo")
    held = await exchanging(here, person, callback)
    here.clock.tick(seconds=59)
    await fall_due(here.service)
    assert (await here.row(link)).status is Status.EXCHANGING
    here.clock.tick(seconds=2)
    await fall_due(here.service)
    return asked, person, link, held


async def test_interrupted_exchange_fails_after_a_minute() -> None:
    async with oauth_env() as here:
        asked, person, link, held = await interrupted(here)
        with pytest.raises(Failed, match="interrupted"):
            await asked.account()
        page = await person.visit(link)
        assert page.heading == "This did not work"
        assert "remove it there" in page.text  # the provider may have granted access all the same
        await here.release()
        await soon(held)


async def test_response_after_interrupted_exchange_is_stored_for_next_call() -> None:
    async with oauth_env() as here:
        asked, person, link, held = await interrupted(here)
        with pytest.raises(Failed):
            await asked.account()
        here.clock.tick(seconds=-30)  # otherwise the sandbox's code would be too old
        await here.release()
        await soon(held)
        assert (await person.visit(link)).heading == "This did not work"
        again = here.ask("repo")
        assert (await again.account()).label == "octocat"
        assert not again.has_asked


async def test_page_of_interrupted_exchange_explains_next_steps() -> None:
    async with oauth_env() as here:
        _, person, link, held = await interrupted(here)
        page = await person.visit(link)
        await here.release()
        await soon(held)
        assert "To start again" in page.text
        # The provider may hold a grant that the server never received.
        assert "among your connected apps, remove it there" in page.text


@asynccontextmanager
async def two_processes(
    folder: Path, *, played: bool = True
) -> AsyncIterator[tuple[OAuthEnv, OAuthEnv]]:
    """Open two processes on one store. With `played`, the second has the sandbox's settings too."""
    async with AsyncExitStack() as stack:
        stores: list[Store] = []
        for _ in range(2):
            stores.append(await open_store(f"sqlite:///{folder / 'elicit.db'}"))
            stack.push_async_callback(stores[-1].aclose)
        here = await stack.enter_async_context(oauth_env(store=stores[0]))
        other = process(
            here.settings,
            store=stores[1],
            clock=here.clock,
            gate=here.gate,
            sandbox=here.sandbox,
            played=played,
        )
        yield here, await stack.enter_async_context(other)


async def test_callback_can_arrive_at_another_process(tmp_path: Path) -> None:
    async with two_processes(tmp_path) as (here, there):
        asked = here.ask("repo")
        person = await here.person(host=here.url.removeprefix("http://"))
        # The person presses Continue on a page of the other process.
        at_provider = await person.go_on((await asked.link()).replace(here.url, there.url))
        callback = await approve(await here.person(), at_provider)
        page = await person.visit(callback.replace(here.url, there.url))
        assert page.status == 303
        assert (await asked.account()).label == "octocat"
        again = there.ask("repo", arguments="there")
        assert (await again.account()).label == "octocat"
        assert not again.has_asked


async def test_unconfigured_process_returns_503_and_configured_process_accepts_callback(
    tmp_path: Path,
) -> None:
    async with two_processes(tmp_path, played=False) as (here, there):
        asked, person, _, callback = await decided(here, "repo")
        person.browser.headers["host"] = here.url.removeprefix("http://")
        page = await person.visit(callback.replace(here.url, there.url))
        assert (page.status, page.heading) == (503, "Something went wrong here")
        assert here.gate.exchanges == 0
        del person.browser.headers["host"]
        # The person did not decline, so the process with the settings still accepts the callback.
        page = await ends(person, await person.visit(callback))
        assert page.heading == "GitHub is connected"
        assert (await asked.account()).label == "octocat"


def acme_of(here: OAuthEnv) -> Provider:
    """Register the server at an unreachable provider, and return the provider."""
    here.service.kinds.accounts._clients._credentials["acme"] = ("id", "secret")  # type: ignore[index]
    return openid("acme", "http://127.0.0.1:1", label="Acme")


async def test_unreachable_provider_does_not_end_question() -> None:
    async with oauth_env() as here:
        asked, person = here.ask(provider=acme_of(here)), await here.person()
        link = await asked.link()
        page = await person.press(link)
        assert (page.status, page.heading) == (502, "Acme did not answer")
        assert (await here.row(link)).status is Status.OPENED
        assert not asked.task.done()


async def test_person_can_press_continue_ten_times() -> None:
    async with oauth_env() as here:
        asked, person = here.ask("repo"), await here.person()
        link = await asked.link()
        csrf = (await person.visit(link)).csrf
        presses = [await person.browser.post(link, data={"csrf": csrf}) for _ in range(11)]
        assert [press.status_code for press in presses] == [303] * 10 + [429]
        last = presses[9].headers["location"]
        page = await ends(person, await person.visit(await approve(person, last)))
        assert page.heading == "GitHub is connected"
        await asked.account()


async def test_exchange_started_in_time_can_end_slightly_later() -> None:
    async with oauth_env() as here:
        asked, person = here.ask("repo"), await here.person()
        link = await asked.link()
        at_provider = await person.go_on(link)
        here.clock.tick(minutes=4, seconds=58)
        callback = await approve(person, at_provider)
        held = await exchanging(here, person, callback)
        here.clock.tick(seconds=5)
        await fall_due(here.service)
        await here.release()
        page = await ends(person, await soon(held))
        assert page.heading == "GitHub is connected"
        assert (await asked.account()).label == "octocat"


async def test_page_shows_remaining_time_of_exchange() -> None:
    clock = Clock()
    async with oauth_env(clock=clock) as here:
        asked, person, link, callback = await decided(here, "repo")
        held = await exchanging(here, person, callback)
        clock.tick(seconds=20)
        page = await person.visit(link)
        assert 'data-left="40"' in page.text
        # Loading the page does not change the status.
        assert (await here.row(link)).status is Status.EXCHANGING
        await here.release()
        await soon(held)
        await asked.account()


async def test_page_contains_no_state_and_record_no_code() -> None:
    async with oauth_env() as here:
        asked, person, link, callback = await decided(here, "repo")
        page = await ends(person, await person.visit(callback))
        await asked.account()
        for name in ("code", "state"):
            assert parameter(callback, name) not in page.text
        row = await here.row(link)
        assert parameter(callback, "code") not in str(row.attempt)
        assert row.request.origins == (here.sandbox.url,)
        assert row.stored_until - row.expires_at == timedelta(minutes=10)


async def test_another_tool_asks_once_on_our_page_and_is_allowed() -> None:
    async with oauth_env() as here:
        await here.connect("repo")
        asked, person = here.ask("repo", tool="export_all"), await here.person()
        link = await asked.link()
        page = await person.visit(link)
        assert page.heading == "Let shop use octocat at GitHub?"
        assert "list" in page.text
        for button in ("Allow", "Another account", "Decline"):
            assert button in page.text
        page = await ends(person, await person.press(link, to="/allow"))
        assert page.heading == "GitHub is connected"
        assert (await asked.account()).label == "octocat"
        again = here.ask("repo", tool="export_all", arguments="again")
        assert (await again.account()).label == "octocat"
        assert not again.has_asked
        assert here.gate.exchanges == 1


async def test_repeated_allow_shares_account_once() -> None:
    async with oauth_env() as here:
        await here.connect("repo")
        asked, person = here.ask("repo", tool="export_all"), await here.person()
        link = await asked.link()
        page = await person.visit(link)
        allow, form = page.leading("/allow"), {"csrf": page.csrf}
        answers = await asyncio.gather(*(person.browser.post(allow, data=form) for _ in range(4)))
        assert {answer.status_code for answer in answers} == {303}
        assert (await asked.account()).label == "octocat"
        (connection,) = await here.connections()
        assert connection.tools == ("list", "export_all")


async def test_another_tool_can_use_another_account() -> None:
    async with oauth_env() as here:
        await here.connect("repo")
        asked, person = here.ask("repo", tool="export_all"), await here.person()
        link = await asked.link()
        at_provider = await person.go_on(link)  # to connect another account
        page = await ends(
            person, await person.visit(await approve(person, at_provider, person="hubot"))
        )
        assert page.heading == "GitHub is connected"
        assert "hubot" in page.text
        assert (await asked.account()).label == "hubot"


async def test_another_tool_can_be_declined() -> None:
    async with oauth_env() as here:
        await here.connect("repo")
        asked, person = here.ask("repo", tool="export_all"), await here.person()
        page = await person.decline(await asked.link())
        assert page.heading == "You declined"
        with pytest.raises(Declined):
            await asked.account()
        first = here.ask("repo", arguments="again")
        assert (await first.account()).label == "octocat"


async def test_other_served_server_does_not_reveal_account() -> None:
    async with oauth_env() as here:
        await here.connect("repo")
        asked, person = here.ask("repo", server="another shop"), await here.person()
        page = await person.visit(await asked.link())
        assert page.heading == "Let another shop use your GitHub account?"
        assert "octocat" not in page.text


def shop() -> MCPServer:
    server = MCPServer("shop")

    @server.tool()
    async def show() -> str:
        """Show who it is."""
        return (await elicit.oauth(github)).label

    return server


def served_by(here: OAuthEnv) -> ServerEnv:
    return ServerEnv(
        url=here.url, service=here.service, settings=here.settings, posts=_Posts(here.gate)
    )


async def test_model_receives_names_of_missing_settings() -> None:
    async with oauth_env(server=shop(), played=False) as here:
        env = served_by(here)
        for revision in (LEGACY, MODERN):
            async with env.caller(revision) as caller:
                result = await soon(caller.call("show"))
                assert result.is_error
                assert "ELICIT_GITHUB_CLIENT_ID" in text_of(result)
                assert "ELICIT_GITHUB_CLIENT_SECRET" in text_of(result)
                assert not caller.has_links_left


class CountedStore(MemoryStore):
    """A store that counts its reads."""

    reads = 0

    async def read(self, owner: str, kind: str, id: str) -> Record | None:
        self.reads += 1
        return await super().read(owner, kind, id)


async def test_call_expiring_during_exchange_waits_without_polling() -> None:
    store, limits = CountedStore(), CallLimits(call=timedelta(hours=1))
    async with (
        oauth_env(server=shop(), store=store, limits=limits) as here,
        served_by(here).caller(LEGACY) as caller,
    ):
        call, person = caller.call("show"), await here.person()
        callback = await approve(person, await person.go_on(await caller.link()))
        held = await exchanging(here, person, callback)
        here.clock.tick(minutes=5, seconds=1)
        here.service.elicitations.waiters.wake_all()
        before = store.reads
        for _ in range(1000):
            await asyncio.sleep(0)
        reads = store.reads - before
        here.clock.tick(minutes=-5)  # otherwise the sandbox's code would be too old
        await here.release()
        await soon(held)
        assert text_of(await soon(call)) == "octocat"
        assert reads < 10


async def test_process_without_provider_settings_says_that_site_is_not_set_up() -> None:
    async with oauth_env() as here:
        asked, person = here.ask(provider=acme_of(here)), await here.person()
        link = await asked.link()
        # The process was started without these credentials.
        clients = here.service.kinds.accounts._clients
        del clients._credentials["acme"], clients.clients["acme"]
        page = await person.press(link)
        assert (page.status, page.heading) == (502, "The other site is not set up here")
        assert (await here.row(link)).status is Status.PENDING
        assert not asked.task.done()


async def test_real_issuer_on_loopback_is_not_marked_as_sandbox() -> None:
    # finding: S14
    async with oauth_env() as here:
        for provider, is_practice in ((acme_of(here), False), (github, True)):
            asked, person = here.ask(provider=provider), await here.person()
            page = await person.visit(await asked.link())
            assert page.status == 200
            assert ("only practice" in page.text) is is_practice


# finding: XB5
async def test_link_whose_question_is_gone_says_to_ask_for_a_new_one() -> None:
    async with oauth_env() as here:
        _, person, link, _ = await sent_out(here)
        store = here.service.elicitations.store
        for question in await store.list("elicitation"):
            await store.erase(owner=question.owner)
        page = await person.visit(link)
    assert (page.status, page.heading) == (404, "Ask for a new link")


def _posting(settings: Settings, sandbox: Sandbox) -> Settings:
    hub = replace(
        github.at(sandbox.url), name="hub", label="Hub", response_mode="form_post", sandbox=None
    )
    return with_providers(settings, [hub], sandbox)


async def posted(callback: str, **changes: str) -> Page:
    """Post the callback's parameters as the provider's page does, without cookies."""
    form = {**dict(parse_qsl(urlsplit(callback).query)), **changes}
    headers = {"origin": "https://hub.example", "sec-fetch-site": "cross-site"}
    async with new_browser() as browser:
        url = callback.partition("?")[0]
        return Page.of(await browser.post(url, data=form, headers=headers))


async def test_form_of_the_provider_leads_to_a_get_that_is_checked_like_any_callback() -> None:
    # finding: XO2
    async with oauth_env(change=_posting) as here:
        asked = here.ask("repo", provider="hub")
        link, person = await asked.link(), await here.person()
        at_provider = await person.go_on(link)
        assert parameter(at_provider, "response_mode") == "form_post"
        callback = await approve(person, at_provider)
        page = await posted(callback, user='{"name":"x"}', scope="repo")
        assert page.status == 303
        assert page.location is not None
        assert set(parse_qs(urlsplit(page.location).query)) == {"code", "state", "iss"}
        # Another browser that follows the redirect is refused: it did not open the question.
        stranger = await here.person()
        assert (await stranger.visit(page.location)).status == 403
        assert here.gate.exchanges == 0
        done = await ends(person, await person.visit(page.location))
        assert done.heading == "Hub is connected"
        assert (await asked.account()).label == "octocat"
        assert here.gate.exchanges == 1


async def test_form_is_refused_where_the_provider_redirects_or_the_state_is_foreign() -> None:
    async with oauth_env(change=_posting) as here:
        _, person, _, callback = await decided(here, "repo")
        assert (await posted(callback)).status == 404
        asked = here.ask("repo", provider="hub", tool="other")
        callback = await approve(person, await person.go_on(await asked.link()))
        assert (await posted(callback, state="made up")).status == 404
        assert (await posted(callback.replace("/callback/hub", "/callback/github"))).status == 404
        assert (await posted(callback.replace("/callback/hub", "/callback/url/x"))).status == 403
        assert here.gate.exchanges == 0


SHOP = Provider(
    name="shop",
    label="Shop",
    tenants=("*.shops.example",),
    tenant_label="Your shop",
    authorize="https://{tenant}/authorize",
    token="https://{tenant}/token",
    api="https://{tenant}/api",
    person=PersonProbe(url="https://{tenant}/me", id="id", label="email"),
)


async def test_page_asks_for_the_tenant_and_refuses_other_hosts() -> None:
    # finding: XO3
    async with oauth_env(providers=[SHOP]) as here:
        asked, person = here.ask(provider="shop"), await here.person()
        link = await asked.link()
        page = await person.visit(link)
        assert "Your shop" in page.text
        assert "*.shops.example" in page.text
        typed = {"csrf": page.csrf, "tenant": "evil.example#.shops.example"}
        wrong = Page.of(await person.browser.post(link, data=typed))
        assert wrong.status == 422
        assert "The address must be like *.shops.example" in wrong.text
        assert 'value="evil.example#.shops.example"' in wrong.text
        typed = {"csrf": page.csrf, "tenant": "Acme"}
        left = Page.of(await person.browser.post(link, data=typed))
        assert left.location is not None
        assert urlsplit(left.location).netloc == "acme.shops.example"
